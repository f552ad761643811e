/* Rotation to positions, and the same on the way into the cache. Limited by memory; at few rows by the launches, which
 * is why there is one for q, k and v. */
#include "kernels/cuda/rope.h"

enum { ROPE_THREADS = 256 };

static __global__ void rope_kernel(struct rope_job j)
{
    int row = (int)blockIdx.y, head = (int)blockIdx.x * (ROPE_THREADS / WARP) + warp_id();
    if (head < j.n_heads)
        rope_head_of(j, row, head);
}

cudaError_t launch_rope(cudaStream_t s, const struct rope_job *j)
{
    dim3 grid(ceil_div(j->n_heads, ROPE_THREADS / WARP), j->rows);
    return launch(rope_kernel, grid, dim3(ROPE_THREADS), 0, s, *j);
}

/* Warp: RoPE on a q head in place, or on a k head, which is then stored with its v. */
static __global__ void rope_write_kernel(struct rope_write_job j)
{
    int row = (int)blockIdx.y, head = (int)blockIdx.x * (ROPE_THREADS / WARP) + warp_id(), kv_head = head - j.q.n_heads;
    if (kv_head < 0) {
        rope_head_of(j.q, row, head);
        return;
    }
    uint8_t *keys = kv_head < j.write.kv.n_heads ? cache_row(j.write.step, j.write.kv, row, kv_head) : nullptr;
    if (keys)
        rope_into_cache(j, keys, row, kv_head);
}

cudaError_t launch_rope_write(cudaStream_t s, const struct rope_write_job *j)
{
    dim3 grid(ceil_div(j->q.n_heads + j->write.kv.n_heads, ROPE_THREADS / WARP), j->q.rows);
    return launch(rope_write_kernel, grid, dim3(ROPE_THREADS), 0, s, *j);
}
