/* Rotation to positions, and the same on the way into the cache. Limited by memory; at few rows by the launches, which is why there is one for q, k and v. */
#include "kernels/cuda/cache.h"

enum { ROPE_THREADS = 256 };

/* Warp: one head of one row, normed and then turned in place. */
__device__ static void turn_head(const struct rope_job &j, float *x, int row, const float *gain)
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

static __global__ void rope_kernel(struct rope_job j)
{
    int row = (int)blockIdx.y, head = (int)blockIdx.x * (ROPE_THREADS / WARP) + warp_id();
    if (head < j.n_heads)
        turn_head(j, j.x + (int64_t)row * j.ld + (int64_t)head * j.head_dim, row, j.gain);
}

cudaError_t launch_rope(cudaStream_t s, const struct rope_job *j)
{
    dim3 grid(ceil_div(j->n_heads, ROPE_THREADS / WARP), j->rows);
    return launch(rope_kernel, grid, dim3(ROPE_THREADS), 0, s, *j);
}

/* Warp: a q head, turned in place; or a k head, turned and stored with its v. */
static __global__ void rope_write_kernel(struct rope_write_job j)
{
    int row = (int)blockIdx.y, head = (int)blockIdx.x * (ROPE_THREADS / WARP) + warp_id(), kv_head = head - j.q.n_heads, dim = j.q.head_dim;
    if (kv_head < 0) {
        turn_head(j.q, j.q.x + (int64_t)row * j.q.ld + (int64_t)head * dim, row, j.q.gain);
        return;
    }
    uint8_t *keys = kv_head < j.write.kv.n_heads ? cache_row(j.write.step, j.write.kv, row, kv_head) : nullptr;
    if (!keys)
        return;
    float *k = j.k + (int64_t)row * j.write.ldk + (int64_t)kv_head * dim;
    const float *v = j.write.v + (int64_t)row * j.write.ldv + (int64_t)kv_head * dim;
    turn_head(j.q, k, row, j.k_gain);
    __syncwarp();
    for (int i = lane_id(); i < j.write.kv.padded_dim; i += WARP) {
        store_cached(j.write.kv.type, keys, i, i < dim ? k[i] : 0.0f);
        store_cached(j.write.kv.type, keys + j.write.kv.value_at, i, i < dim ? v[i] : 0.0f);
    }
}

cudaError_t launch_rope_write(cudaStream_t s, const struct rope_write_job *j)
{
    dim3 grid(ceil_div(j->q.n_heads + j->write.kv.n_heads, ROPE_THREADS / WARP), j->q.rows);
    return launch(rope_write_kernel, grid, dim3(ROPE_THREADS), 0, s, *j);
}
