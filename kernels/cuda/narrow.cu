/* Inputs of products of many rows: made, and narrowed to 16 bits. Bound by memory bandwidth. */
#include "kernels/cuda/widen.h"

enum { NARROW_THREADS = 256 };

/* Input c of x and x2. */
__device__ static float narrowed(const struct narrow_job &j, float x, float x2, int c, float scale)
{
    if (c >= j.cols)
        return 0;
    if (j.gain)
        return x * scale * j.gain[c];
    return j.x2 ? x / (1.0f + expf(-x)) * x2 : x;
}

/* Elements c and c + 1 of the CTA's row, as far as it has them; c is even. */
__device__ static float2 read_pair(const struct narrow_job &j, const void *p, int ld, int c)
{
    int64_t at = (int64_t)blockIdx.x * ld + c;
    if (!p || c >= j.cols)
        return make_float2(0, 0);
    if (j.half && c + 1 < j.cols)
        return act_pair(p, true, at);
    return make_float2(act_at(p, j.half, at), c + 1 < j.cols ? act_at(p, j.half, at + 1) : 0);
}

/* CTA: one row. */
static __global__ void narrow_kernel(struct narrow_job j)
{
    uint32_t *y = (uint32_t *)(j.y + (int64_t)blockIdx.x * j.ldy);
    float scale = 1, sum = 0;
    if (j.gain) {
        for (int c = (int)threadIdx.x; c < j.cols; c += NARROW_THREADS) {
            float x = act_at(j.x, j.half, (int64_t)blockIdx.x * j.ldx + c);
            sum = fmaf(x, x, sum);
        }
        scale = 1.0f / sqrtf(cta_sum<NARROW_THREADS / WARP>(sum) / (float)j.cols + j.eps);
    }
    for (int i = (int)threadIdx.x; i < j.ldy / 2; i += NARROW_THREADS) {
        float2 x = read_pair(j, j.x, j.ldx, 2 * i), x2 = read_pair(j, j.x2, j.ldx2, 2 * i);
        float lo = narrowed(j, x.x, x2.x, 2 * i, scale), hi = narrowed(j, x.y, x2.y, 2 * i + 1, scale);
        y[i] = j.f16 ? pair_of<half_type::f16>(lo, hi) : pair_of<half_type::bf16>(lo, hi);
    }
}

cudaError_t launch_narrow(cudaStream_t s, const struct narrow_job *j)
{
    return launch(narrow_kernel, dim3(j->rows), dim3(NARROW_THREADS), 0, s, *j);
}
