/* Writing a step's rows into the cache, and moving cached tokens between placements. Bound by memory bandwidth. A block
 * holds its heads one after the other; a head its keys [position][element], then its values the same, rows padded with
 * zeros to 16 elements. */
#include "kernels/cuda/cache.h"

enum { KV_THREADS = 128 };

/* CTA: one row, one head. */
static __global__ void kv_write_kernel(struct kv_write_job j)
{
    int row = (int)blockIdx.x, head = (int)blockIdx.y, dim = j.kv.head_dim;
    uint8_t *keys = cache_row(j.step, j.kv, row, head);
    if (!keys)
        return;
    for (int i = (int)threadIdx.x; i < j.kv.padded_dim; i += KV_THREADS) {
        store_cached(j.kv.type, keys, i, i < dim ? act_at(j.k, j.half, (int64_t)row * j.ldk + head * dim + i) : 0.0f);
        store_cached(j.kv.type, keys + j.kv.value_at, i,
                     i < dim ? act_at(j.v, j.half, (int64_t)row * j.ldv + head * dim + i) : 0.0f);
    }
}

cudaError_t launch_kv_write(cudaStream_t s, const struct kv_write_job *j)
{
    return launch(kv_write_kernel, dim3(j->step.n_rows, j->kv.n_heads), dim3(KV_THREADS), 0, s, *j);
}

__device__ static uint8_t *cached_row(const struct kv_move_side &e, int layer, int head, int position)
{
    return e.base + (size_t)layer * e.layer_bytes + (size_t)e.blocks[position / e.tokens] * e.block_bytes +
           (size_t)(e.head + head) * e.head_bytes;
}

/* Warp: the keys and values of one position of one head of one layer; a position's row is a multiple of 16 bytes. */
static __global__ void kv_move_kernel(struct kv_move_job j)
{
    int at = (int)blockIdx.x * (KV_THREADS / WARP) + warp_id(), head = (int)blockIdx.y, layer = (int)blockIdx.z;
    if (at >= j.n_tokens)
        return;
    int position = j.first_token + at;
    const uint8_t *from = cached_row(j.from, layer, head, position) + (size_t)(position % j.from.tokens) * j.row_bytes;
    uint8_t *to = cached_row(j.to, layer, head, position) + (size_t)(position % j.to.tokens) * j.row_bytes;
    for (size_t i = (size_t)lane_id() * 16; i < j.row_bytes; i += WARP * 16) {
        *(uint4 *)(to + i) = *(const uint4 *)(from + i);
        *(uint4 *)(to + j.to.value_at + i) = *(const uint4 *)(from + j.from.value_at + i);
    }
}

cudaError_t launch_kv_move(cudaStream_t s, const struct kv_move_job *j)
{
    dim3 grid(ceil_div(j->n_tokens, KV_THREADS / WARP), j->n_heads, j->n_layers);
    return launch(kv_move_kernel, grid, dim3(KV_THREADS), 0, s, *j);
}
