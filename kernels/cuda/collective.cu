/* What a member does with the buffers that the others publish, once its stream has waited for them: copies rectangles,
 * and adds planes in the tree's order. Bound by memory bandwidth, or by the link where the members have devices of
 * their own. */
#include "kernels/cuda/prim.h"

enum { COPY_THREADS = 256, STACK = 20 };

/* CTAs of one z: one rectangle, a row at a time. */
static __global__ void copy_kernel(struct copy_job j)
{
    const struct copy_rect &r = j.rects[blockIdx.z];
    int c = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    for (int row = (int)blockIdx.y; row < r.rows && c < r.cols; row += (int)gridDim.y)
        r.to[(int64_t)row * r.ld_to + c] = r.from[(int64_t)row * r.ld_from + c];
}

cudaError_t launch_copy(cudaStream_t s, const struct copy_job *j)
{
    int rows = 1, cols = 1;
    for (int i = 0; i < j->n; i++) {
        rows = j->rects[i].rows > rows ? j->rects[i].rows : rows;
        cols = j->rects[i].cols > cols ? j->rects[i].cols : cols;
    }
    rows = rows < 4096 ? rows : 4096;
    return launch(copy_kernel, dim3(ceil_div(cols, COPY_THREADS), rows, j->n), dim3(COPY_THREADS), 0, s, *j);
}

/* Thread: one element. Planes are pushed in the leaves' order, each followed by its additions of the top two. */
static __global__ void sum_kernel(struct sum_job j)
{
    int64_t at = j.first + (int64_t)blockIdx.x * blockDim.x + threadIdx.x, row = at / j.cols;
    int col = (int)(at % j.cols), depth = 0;
    float stack[STACK];
    if (at >= j.end)
        return;
    for (int p = 0; p < j.n_planes; p++) {
        stack[depth++] = j.planes[p][row * j.lds[p] + col];
        for (int k = 0; k < j.adds[p]; k++, depth--)
            stack[depth - 2] = stack[depth - 2] + stack[depth - 1];
    }
    float *y = j.y + row * j.ldy + col;
    *y = j.accumulate ? *y + stack[0] : stack[0];
}

cudaError_t launch_sum(cudaStream_t s, const struct sum_job *j)
{
    return launch(sum_kernel, dim3(ceil_div(j->end - j->first, COPY_THREADS)), dim3(COPY_THREADS), 0, s, *j);
}
