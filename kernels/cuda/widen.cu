/* A window of quantised weights as a bf16 matrix, for the library's product of many rows. One thread per block of 32
 * columns; bound by memory bandwidth. */
#include "kernels/cuda/widen.h"

enum { WIDEN_THREADS = 256 };

static __global__ void widen_kernel(struct widen_job j)
{
    int64_t at = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    int blocks = j.w.cols / BLOCK_COLS, row = (int)(at / blocks), b = (int)(at % blocks);
    uint32_t pair[16];
    if (row >= j.w.rows)
        return;
    widen_any(j.w.p, j.w.row0 + row, j.w.col0 / BLOCK_COLS + b, pair);
    uint4 *to = (uint4 *)(j.to + (int64_t)row * j.w.cols + b * BLOCK_COLS);
#pragma unroll
    for (int k = 0; k < 4; k++)
        to[k] = {pair[4 * k], pair[4 * k + 1], pair[4 * k + 2], pair[4 * k + 3]};
}

cudaError_t launch_widen(cudaStream_t s, const struct widen_job *j)
{
    return launch(widen_kernel, dim3(ceil_div((int64_t)j->w.rows * (j->w.cols / BLOCK_COLS), WIDEN_THREADS)),
                  dim3(WIDEN_THREADS), 0, s, *j);
}
