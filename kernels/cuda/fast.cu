/* The default mode's products on tensor cores: inputs narrowed to 16 bits, few rows by a kernel that streams each weight once, more rows by tiles.
 * Sums are f32, in an order that depends on the shape of the matrix alone (and, tiles against few rows, on which of the two kernels runs). */
#include "kernels/cuda/widen.h"

enum { NARROW_THREADS = 256, CHUNK = 128, SKINNY_WARPS = 8, SKINNY_OUTS = 16 };

/* ---- inputs */

__device__ static float cta_sum(float v)
{
    __shared__ float part[NARROW_THREADS / WARP];
    for (int k = WARP / 2; k; k /= 2)
        v += __shfl_xor_sync(ALL_LANES, v, k);
    if (lane_id() == 0)
        part[warp_id()] = v;
    __syncthreads();
    v = 0;
    for (int w = 0; w < NARROW_THREADS / WARP; w++)
        v += part[w];
    return v;
}

__device__ static float narrowed(const struct narrow_job &j, const float *x, const float *x2, int c, float scale)
{
    if (c >= j.cols)
        return 0;
    if (j.gain)
        return x[c] * scale * j.gain[c];
    return x2 ? x[c] / (1.0f + expf(-x[c])) * x2[c] : x[c];
}

/* CTA: one row. Limited by memory. */
static __global__ void narrow_kernel(struct narrow_job j)
{
    const float *x = j.x + (int64_t)blockIdx.x * j.ldx, *x2 = j.x2 ? j.x2 + (int64_t)blockIdx.x * j.ldx2 : nullptr;
    uint32_t *y = (uint32_t *)(j.y + (int64_t)blockIdx.x * j.ldy);
    float scale = 1, sum = 0;
    if (j.gain) {
        for (int c = (int)threadIdx.x; c < j.cols; c += NARROW_THREADS)
            sum = fmaf(x[c], x[c], sum);
        scale = 1.0f / sqrtf(cta_sum(sum) / (float)j.cols + j.eps);
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

__device__ static void put_output(const struct fast_job &j, int row, int out, float v)
{
    if (row >= j.rows || out >= j.w.rows)
        return;
    float *y = j.y + (int64_t)row * j.ldy + out;
    v = j.bias ? v + j.bias[out] : v;
    *y = j.accumulate ? *y + v : v;
}

/* ---- few rows */

/* A lane's 32 columns of one input row, zeros where there is no row. */
__device__ static void load_input(const struct fast_job &j, int row, int col, uint32_t pair[16])
{
    const uint4 *from = (const uint4 *)(j.x + (int64_t)row * j.ldx + col);
#pragma unroll
    for (int k = 0; k < 4; k++) {
        uint4 v = {0, 0, 0, 0};
        if (row < j.rows)
            v = from[k];
        pair[4 * k] = v.x, pair[4 * k + 1] = v.y, pair[4 * k + 2] = v.z, pair[4 * k + 3] = v.w;
    }
}

/* CTA: 16 outputs for up to 8 N rows. A warp takes every eighth chunk of 128 columns; in it, lane (g, q) has columns 32q .. 32q+31 of the weights g and g+8 and of
 * input row g. That is another order of k than the instruction's, the same for both operands, so that all loads are of 16 bytes. */
template <enum family F, int N> static __global__ void __launch_bounds__(SKINNY_WARPS *WARP, N == 4 ? 1 : 2) skinny_kernel(struct fast_job j)
{
    constexpr half_type H = F == FAM_F16 ? half_type::f16 : half_type::bf16;
    __shared__ float part[SKINNY_WARPS][SKINNY_OUTS][8 * N + 1];
    int g = lane_id() / 4, q = lane_id() % 4, out0 = (int)blockIdx.x * SKINNY_OUTS;
    int64_t row0 = j.w.row0 + out0 + g, row1 = row0 + 8, last = j.w.row0 + j.w.rows - 1;
    row0 = row0 < last ? row0 : last; /* outputs past the end repeat the last, and are not stored */
    row1 = row1 < last ? row1 : last;
    float acc[N][4] = {};
    for (int c = warp_id() * CHUNK; c < j.w.cols; c += SKINNY_WARPS * CHUNK) {
        int col = c + 32 * q, b = (j.w.col0 + col) / BLOCK_COLS;
        uint32_t w0[16] = {}, w1[16] = {};
        if (col < j.w.cols) {
            widen_block<F>(j.w.p, row0, b, w0);
            widen_block<F>(j.w.p, row1, b, w1);
        }
#pragma unroll
        for (int n = 0; n < N; n++) {
            uint32_t x[16];
            load_input(j, 8 * n + g, col, x);
#pragma unroll
            for (int k = 0; k < 8; k++) {
                const uint32_t a[4] = {w0[2 * k], w1[2 * k], w0[2 * k + 1], w1[2 * k + 1]}, bb[2] = {x[2 * k], x[2 * k + 1]};
                mma<H>(acc[n], a, bb);
            }
        }
    }
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            part[warp_id()][g + 8 * (i / 2)][8 * n + 2 * q + i % 2] = acc[n][i];
    __syncthreads();
    for (int i = (int)threadIdx.x; i < SKINNY_OUTS * 8 * N; i += SKINNY_WARPS * WARP) {
        int out = i % SKINNY_OUTS, row = i / SKINNY_OUTS;
        float sum = 0;
#pragma unroll
        for (int w = 0; w < SKINNY_WARPS; w++)
            sum += part[w][out][row];
        put_output(j, row, out0 + out, sum);
    }
}

template <enum family F> static cudaError_t launch_skinny_family(cudaStream_t s, const struct fast_job *j)
{
    dim3 grid(ceil_div(j->w.rows, SKINNY_OUTS)), block(SKINNY_WARPS * WARP);
    if (j->rows <= 8)
        return launch(skinny_kernel<F, 1>, grid, block, 0, s, *j);
    if (j->rows <= 16)
        return launch(skinny_kernel<F, 2>, grid, block, 0, s, *j);
    return launch(skinny_kernel<F, 4>, grid, block, 0, s, *j);
}

cudaError_t launch_skinny(cudaStream_t s, const struct fast_job *j)
{
    if (j->rows > SKINNY_ROWS)
        return cudaErrorInvalidValue;
    switch (j->w.p.family) {
    case FAM_F16: return launch_skinny_family<FAM_F16>(s, j);
    case FAM_BF16: return launch_skinny_family<FAM_BF16>(s, j);
    case FAM_U4: return launch_skinny_family<FAM_U4>(s, j);
    case FAM_U4M: return launch_skinny_family<FAM_U4M>(s, j);
    case FAM_U5: return launch_skinny_family<FAM_U5>(s, j);
    case FAM_U5M: return launch_skinny_family<FAM_U5M>(s, j);
    case FAM_S8: return launch_skinny_family<FAM_S8>(s, j);
    case FAM_K4: return launch_skinny_family<FAM_K4>(s, j);
    case FAM_K5: return launch_skinny_family<FAM_K5>(s, j);
    case FAM_K6: return launch_skinny_family<FAM_K6>(s, j);
    default: return cudaErrorInvalidValue;
    }
}
