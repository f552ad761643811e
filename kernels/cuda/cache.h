/* Where a row of a step lies in the KV cache, and how its elements are stored. CUDA C++ only. Invariant: rows of
 * padding have no place in the cache. */
#ifndef CUDA_CACHE_H
#define CUDA_CACHE_H

#include "kernels/cuda/prim.h"

/* The keys of this row of a sequence for this head; its values follow value_at later. */
__device__ static inline uint8_t *cache_row_of(const struct step_view &step, const struct kv_at &kv,
                                               const struct seq_at &seq, int row, int head)
{
    int position = seq.pos0 + row - seq.row0, at = position % kv.tokens;
    int block = step.blocks[seq.block0 + position / kv.tokens];
    size_t row_bytes = (size_t)kv.padded_dim * (kv.type == DT_F32 ? 4 : kv.type == DT_F8 ? 1 : 2);
    return kv.base + (size_t)block * kv.block_bytes + (size_t)head * kv.head_bytes + (size_t)at * row_bytes;
}

/* NULL: the row is padding. */
__device__ static inline uint8_t *cache_row(const struct step_view &step, const struct kv_at &kv, int row, int head)
{
    return step.row_seq[row] < 0 ? nullptr : cache_row_of(step, kv, step.seqs[step.row_seq[row]], row, head);
}

__device__ static inline void store_cached(enum dtype t, uint8_t *row, int i, float x)
{
    if (t == DT_F32)
        ((float *)row)[i] = x;
    else if (t == DT_F8)
        row[i] = to_f8_bits(x);
    else
        ((uint16_t *)row)[i] = t == DT_F16 ? to_f16_bits(x) : to_bf16_bits(x);
}

#endif
