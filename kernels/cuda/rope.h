/* RoPE of one head, and of a k head that goes with its v into the cache. All kernels that rotate use these, so the
 * operations are the same everywhere. CUDA C++ only; executed by a warp. Invariant: rows of padding are not written. */
#ifndef CUDA_ROPE_H
#define CUDA_ROPE_H

#include "kernels/cuda/cache.h"

/* A head of a row: where it begins among the elements of x. */
struct head_at {
    const void *x;
    bool half;
    int64_t first;
};

/* RMSNorm (when there is a gain) and then RoPE; put(i, v) takes element i. Only the lane that puts an element has read
 * it, after all have read it for the norm: so it may go where it came from. */
template <typename Put>
__device__ static inline void rope_head(const struct rope_job &j, const struct head_at &h, int row, const float *gain,
                                        Put put)
{
    enum { AT_ONCE = 2 };
    int half = j.dim / 2;
    float scale = gain ? rms_inverse([&](int i) { return act_at(h.x, h.half, h.first + i); }, j.head_dim, j.eps) : 1.0f;
    auto value = [&](int i, float v) { return gain ? (v * scale) * gain[i] : v; };
    const float *cosine = j.angles + (int64_t)row * j.dim, *sine = cosine + half;
    for (int first = lane_id(); first < half; first += AT_ONCE * WARP) {
        float x[AT_ONCE], y[AT_ONCE], c[AT_ONCE], s[AT_ONCE];
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) { /* all loads are under way at once */
            int i = first + k * WARP < half ? first + k * WARP : first;
            x[k] = act_at(h.x, h.half, h.first + (j.halves ? i : 2 * i));
            y[k] = act_at(h.x, h.half, h.first + (j.halves ? half + i : 2 * i + 1));
            c[k] = cosine[i], s[k] = sine[i];
        }
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
            int i = first + k * WARP, a = j.halves ? i : 2 * i, b = j.halves ? half + i : 2 * i + 1;
            if (i >= half)
                break;
            float x0 = value(a, x[k]), y0 = value(b, y[k]);
            put(a, x0 * c[k] - y0 * s[k]);
            put(b, x0 * s[k] + y0 * c[k]);
        }
    }
    for (int i = j.dim + lane_id(); i < j.head_dim; i += WARP)
        put(i, value(i, act_at(h.x, h.half, h.first + i)));
}

/* In place. */
__device__ static inline void rope_head_of(const struct rope_job &j, int row, int head)
{
    int64_t first = (int64_t)row * j.ld + (int64_t)head * j.head_dim;
    rope_head(j, {j.x, j.half, first}, row, j.gain, [&](int i, float v) { put_act(j.x, j.half, first + i, v); });
}

/* RoPE on a k head of a row, on its way into the cache, where its keys are, with its v. */
__device__ static inline void rope_into_cache(const struct rope_write_job &j, uint8_t *keys, int row, int kv_head)
{
    enum { AT_ONCE = 4 };
    const struct kv_write_job &w = j.write;
    int dim = j.q.head_dim;
    int64_t k = (int64_t)row * w.ldk + (int64_t)kv_head * dim, v = (int64_t)row * w.ldv + (int64_t)kv_head * dim;
    rope_head(j.q, {w.k, w.half, k}, row, j.k_gain, [&](int i, float x) { store_cached(w.kv.type, keys, i, x); });
    for (int i = dim + lane_id(); i < w.kv.padded_dim; i += WARP)
        store_cached(w.kv.type, keys, i, 0);
    for (int first = lane_id(); first < w.kv.padded_dim; first += AT_ONCE * WARP) {
        float x[AT_ONCE];
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++)
            x[k] = first + k * WARP < dim ? act_at(w.v, w.half, v + first + k * WARP) : 0.0f;
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++)
            if (first + k * WARP < w.kv.padded_dim)
                store_cached(w.kv.type, keys + w.kv.value_at, first + k * WARP, x[k]);
    }
}

#endif
