/* Inputs of products of many rows: made, and narrowed to 16 bits. Bound by memory bandwidth. */
#include "kernels/cuda/widen.h"

enum { NARROW_THREADS = 256 };

__device__ static float narrowed(const struct narrow_job &j, const float *x, const float *x2, int c, float scale)
{
    if (c >= j.cols)
        return 0;
    if (j.gain)
        return x[c] * scale * j.gain[c];
    return x2 ? x[c] / (1.0f + expf(-x[c])) * x2[c] : x[c];
}

/* CTA: one row. */
static __global__ void narrow_kernel(struct narrow_job j)
{
    const float *x = j.x + (int64_t)blockIdx.x * j.ldx, *x2 = j.x2 ? j.x2 + (int64_t)blockIdx.x * j.ldx2 : nullptr;
    uint32_t *y = (uint32_t *)(j.y + (int64_t)blockIdx.x * j.ldy);
    float scale = 1, sum = 0;
    if (j.gain) {
        for (int c = (int)threadIdx.x; c < j.cols; c += NARROW_THREADS)
            sum = fmaf(x[c], x[c], sum);
        scale = 1.0f / sqrtf(cta_sum<NARROW_THREADS / WARP>(sum) / (float)j.cols + j.eps);
    }
    for (int i = (int)threadIdx.x; i < j.ldy / 2; i += NARROW_THREADS) {
        float lo = narrowed(j, x, x2, 2 * i, scale), hi = narrowed(j, x, x2, 2 * i + 1, scale);
        y[i] = j.f16 ? pair_of<half_type::f16>(lo, hi) : pair_of<half_type::bf16>(lo, hi);
    }
}

cudaError_t launch_narrow(cudaStream_t s, const struct narrow_job *j)
{
    return launch(narrow_kernel, dim3(j->rows), dim3(NARROW_THREADS), 0, s, *j);
}
