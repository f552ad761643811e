/* RoPE of one head, and of a k head that goes with its v into the cache. All kernels that rotate use these, so the
 * operations are the same everywhere. CUDA C++ only; executed by a warp. Invariant: rows of padding are not written. */
#ifndef CUDA_ROPE_H
#define CUDA_ROPE_H

#include "kernels/cuda/cache.h"

/* RMSNorm (when there is a gain) and then RoPE on one head of one row, in place. */
__device__ static inline void rope_head(const struct rope_job &j, float *x, int row, const float *gain)
{
    int half = j.dim / 2;
    if (gain) {
        float scale = rms_inverse(x, j.head_dim, j.eps);
        __syncwarp();
        for (int i = lane_id(); i < j.head_dim; i += WARP)
            x[i] = (x[i] * scale) * gain[i];
        __syncwarp();
    }
    const float *cosine = j.angles + (int64_t)row * j.dim, *sine = cosine + half;
    for (int i = lane_id(); i < half; i += WARP) {
        int a = j.halves ? i : 2 * i, b = j.halves ? half + i : 2 * i + 1;
        float x0 = x[a], y0 = x[b], c = cosine[i], s = sine[i];
        x[a] = x0 * c - y0 * s;
        x[b] = x0 * s + y0 * c;
    }
}

/* RoPE on a k head of a row, in place; then the head and its v go into the cache. */
__device__ static inline void rope_into_cache(const struct rope_write_job &j, int row, int kv_head)
{
    int dim = j.q.head_dim;
    uint8_t *keys = cache_row(j.write.step, j.write.kv, row, kv_head);
    if (!keys)
        return;
    float *k = j.k + (int64_t)row * j.write.ldk + (int64_t)kv_head * dim;
    const float *v = j.write.v + (int64_t)row * j.write.ldv + (int64_t)kv_head * dim;
    rope_head(j.q, k, row, j.k_gain);
    __syncwarp();
    for (int i = lane_id(); i < j.write.kv.padded_dim; i += WARP) {
        store_cached(j.write.kv.type, keys, i, i < dim ? k[i] : 0.0f);
        store_cached(j.write.kv.type, keys + j.write.kv.value_at, i, i < dim ? v[i] : 0.0f);
    }
}

#endif
