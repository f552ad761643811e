/* Attention of the default mode: a CTA has up to 64 queries (rows times the q heads of one kv head, 16 to a warp) and walks 64 positions at a time, keys and values through shared
 * memory, scores and outputs in registers, softmax as it goes. A chunk of a prompt fills the queries and is limited by the tensor cores; a decode has few and is
 * limited by reading the cache, so long caches are cut into parts that are folded afterwards. Head sizes are padded to 64, 128 or 256. */
#include "kernels/cuda/tensor.h"

enum { FLASH_WARPS = 4, FLASH_THREADS = FLASH_WARPS * WARP, POSITIONS = 64, SCORES = POSITIONS / 8 };

/* Row lengths in shared memory: loads of four elements (q, k) and of eight rows (v) fall on different banks. */
template <int D> struct flash_space {
    uint16_t q[FLASH_QUERIES][D + 16], k[POSITIONS][D + 16], v[POSITIONS][D + 8];
};

/* Of one lane: queries g and g + 8 of its warp. */
template <int D> struct flash_state {
    float o[D / 8][4], m[2], l[2];  /* l: of the lane's own columns */
    int lo[2], hi[2];               /* positions seen; hi 0: no query */
};

struct flash_queries {
    int head0, heads, n;            /* of the item */
};

__device__ static struct flash_queries queries_of(const struct flash_job &j, const struct flash_item &it)
{
    int head0 = j.first_head[blockIdx.y], heads = j.first_head[blockIdx.y + 1] - head0;
    return {head0, heads, it.n_rows * heads};
}

template <half_type H, int D>
__device__ static void load_queries(const struct flash_job &j, const struct flash_item &it, struct flash_queries n, struct flash_space<D> *s)
{
    int dim = j.kv.head_dim;
    for (int i = (int)threadIdx.x; i < FLASH_QUERIES * (D / 2); i += FLASH_THREADS) {
        int query = i / (D / 2), c = i % (D / 2) * 2;
        float x[2] = {0, 0};
        if (query < n.n) {
            const float *q = j.q + (int64_t)(it.row0 + query / n.heads) * j.ldq + (n.head0 + query % n.heads) * dim;
            x[0] = c < dim ? q[c] : 0;
            x[1] = c + 1 < dim ? q[c + 1] : 0;
        }
        *(uint32_t *)&s->q[query][c] = pair_of<H>(x[0], x[1]);
    }
}

template <int D> __device__ static void begin_state(const struct flash_job &j, const struct flash_item &it, struct flash_queries n, struct flash_state<D> *t)
{
    struct seq_at seq = j.step.seqs[it.seq];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int query = warp_id() * 16 + lane_id() / 4 + 8 * i;
        int position = seq.pos0 + it.row0 + query / n.heads - seq.row0;
        t->hi[i] = query < n.n ? position + 1 : 0;
        t->lo[i] = j.window > 0 && position >= j.window ? position - j.window + 1 : 0;
        t->m[i] = -INFINITY;
        t->l[i] = 0;
    }
#pragma unroll
    for (int d = 0; d < D / 8; d++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            t->o[d][i] = 0;
}

/* Positions [p, p + 64) of keys and values; zeros from `end` on, and past the head's own elements. */
template <int D> __device__ static void load_positions(const struct flash_job &j, const struct flash_item &it, int block0, int p, struct flash_space<D> *s)
{
    const uint8_t *head = j.kv.base + (size_t)blockIdx.y * j.kv.head_bytes;
    for (int i = (int)threadIdx.x; i < POSITIONS * (D / 8); i += FLASH_THREADS) {
        int at = i / (D / 8), c = i % (D / 8) * 8, position = p + at;
        uint4 k = {0, 0, 0, 0}, v = {0, 0, 0, 0};
        if (position < it.end && c < j.kv.padded_dim) {
            int block = j.step.blocks[block0 + position / j.kv.tokens];
            const uint8_t *row = head + (size_t)block * j.kv.block_bytes + ((size_t)(position % j.kv.tokens) * (size_t)j.kv.padded_dim + (size_t)c) * 2;
            k = *(const uint4 *)row;
            v = *(const uint4 *)(row + j.kv.value_at);
        }
        *(uint4 *)&s->k[at][c] = k;
        *(uint4 *)&s->v[at][c] = v;
    }
}

/* Scores of the warp's 16 queries with the 64 positions. The order of the head's elements is our own, the same for both operands. */
template <half_type H, int D> __device__ static void score(const struct flash_space<D> &s, float acc[SCORES][4])
{
    int g = lane_id() / 4, q = lane_id() % 4, row = warp_id() * 16 + g;
#pragma unroll
    for (int n = 0; n < SCORES; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            acc[n][i] = 0;
#pragma unroll
    for (int k = 0; k < D; k += 16) {
        uint2 lo = *(const uint2 *)&s.q[row][k + 4 * q], hi = *(const uint2 *)&s.q[row + 8][k + 4 * q];
        const uint32_t a[4] = {lo.x, hi.x, lo.y, hi.y};
#pragma unroll
        for (int n = 0; n < SCORES; n++) {
            uint2 key = *(const uint2 *)&s.k[8 * n + g][k + 4 * q];
            const uint32_t b[2] = {key.x, key.y};
            mma<H>(acc[n], a, b);
        }
    }
}

__device__ static float quad_max(float v)
{
    v = fmaxf(v, __shfl_xor_sync(ALL_LANES, v, 1));
    return fmaxf(v, __shfl_xor_sync(ALL_LANES, v, 2));
}

__device__ static float quad_sum(float v)
{
    v += __shfl_xor_sync(ALL_LANES, v, 1);
    return v + __shfl_xor_sync(ALL_LANES, v, 2);
}

/* Scores into weights; what was summed so far is brought to the new maximum. */
template <int D> __device__ static void weigh(const struct flash_job &j, int p, float acc[SCORES][4], struct flash_state<D> *t)
{
    int q = lane_id() % 4;
    float most[2] = {t->m[0], t->m[1]};
#pragma unroll
    for (int n = 0; n < SCORES; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int position = p + 8 * n + 2 * q + i % 2;
            bool seen = position >= t->lo[i / 2] && position < t->hi[i / 2];
            acc[n][i] = seen ? acc[n][i] * j.scale : -INFINITY;
            most[i / 2] = fmaxf(most[i / 2], acc[n][i]);
        }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        most[i] = quad_max(most[i]);
        float base = most[i] == -INFINITY ? 0 : most[i], old = exp2f(t->m[i] - base);
        t->m[i] = most[i];
        t->l[i] *= old;
#pragma unroll
        for (int d = 0; d < D / 8; d++) {
            t->o[d][2 * i] *= old;
            t->o[d][2 * i + 1] *= old;
        }
#pragma unroll
        for (int n = 0; n < SCORES; n++)
#pragma unroll
            for (int k = 2 * i; k < 2 * i + 2; k++) {
                acc[n][k] = exp2f(acc[n][k] - base);
                t->l[i] += acc[n][k];
            }
    }
}

template <half_type H, int D> __device__ static void mix(const struct flash_space<D> &s, const float acc[SCORES][4], struct flash_state<D> *t)
{
#pragma unroll
    for (int k = 0; k < POSITIONS / 16; k++) {
        const float *lo = acc[2 * k], *hi = acc[2 * k + 1];
        const uint32_t a[4] = {pair_of<H>(lo[0], lo[1]), pair_of<H>(lo[2], lo[3]), pair_of<H>(hi[0], hi[1]), pair_of<H>(hi[2], hi[3])};
#pragma unroll
        for (int d = 0; d < D / 8; d++) {
            uint32_t b[2];
            load_transposed(b, &s.v[16 * k + lane_id() % 16][8 * d]);
            mma<H>(t->o[d], a, b);
        }
    }
}

/* The warp's results: the whole, or a part to be folded. */
template <int D>
__device__ static void store(const struct flash_job &j, const struct flash_item &it, struct flash_queries n, const struct flash_state<D> &t)
{
    int dim = j.kv.head_dim, q = lane_id() % 4;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int query = warp_id() * 16 + lane_id() / 4 + 8 * i;
        float l = quad_sum(t.l[i]), scale = it.part < 0 ? 1.0f / l : 1.0f;
        if (query >= n.n)
            continue;
        float *out = j.out + (int64_t)(it.row0 + query / n.heads) * j.ldo + (n.head0 + query % n.heads) * dim;
        if (it.part >= 0)
            out = j.parts + (((int64_t)it.part * j.kv.n_heads + blockIdx.y) * FLASH_QUERIES + query) * (dim + 2);
#pragma unroll
        for (int d = 0; d < D / 8; d++)
#pragma unroll
            for (int k = 0; k < 2; k++)
                if (8 * d + 2 * q + k < dim)
                    out[8 * d + 2 * q + k] = t.o[d][2 * i + k] * scale;
        if (it.part >= 0 && q == 0) {
            out[dim] = t.m[i];
            out[dim + 1] = l;
        }
    }
}

template <half_type H, int D> static __global__ void __launch_bounds__(FLASH_THREADS, D == 256 ? 1 : 2) flash_kernel(struct flash_job j)
{
    SHARED_BYTES(bytes);
    struct flash_space<D> &s = *(struct flash_space<D> *)bytes;
    struct flash_item it = j.items[blockIdx.x];
    struct flash_queries n = queries_of(j, it);
    struct flash_state<D> t;
    int block0 = j.step.seqs[it.seq].block0;
    load_queries<H, D>(j, it, n, &s);
    begin_state<D>(j, it, n, &t);
    for (int p = it.begin; p < it.end; p += POSITIONS) {
        float acc[SCORES][4];
        __syncthreads();
        load_positions<D>(j, it, block0, p, &s);
        __syncthreads();
        if (warp_id() * 16 >= n.n)
            continue;
        score<H, D>(s, acc);
        weigh<D>(j, p, acc, &t);
        mix<H, D>(s, acc, &t);
    }
    store<D>(j, it, n, t);
}

/* CTA: the parts of some rows for one kv head; a warp takes every fourth query. Limited by memory. */
static __global__ void fold_kernel(struct flash_job j)
{
    struct flash_fold f = j.folds[blockIdx.x];
    int head0 = j.first_head[blockIdx.y], heads = j.first_head[blockIdx.y + 1] - head0, dim = j.kv.head_dim;
    int64_t step = (int64_t)j.kv.n_heads * FLASH_QUERIES * (dim + 2);
    for (int query = warp_id(); query < f.n_rows * heads; query += FLASH_WARPS) {
        const float *part = j.parts + (((int64_t)f.part * j.kv.n_heads + blockIdx.y) * FLASH_QUERIES + query) * (dim + 2);
        float most = -INFINITY, sum = 0;
        for (int i = 0; i < f.n_parts; i++)
            most = fmaxf(most, part[i * step + dim]);
        for (int i = 0; i < f.n_parts; i++)
            sum += part[i * step + dim + 1] * exp2f(part[i * step + dim] - most);
        float *out = j.out + (int64_t)(f.row0 + query / heads) * j.ldo + (head0 + query % heads) * dim;
        for (int c = lane_id(); c < dim; c += WARP) {
            float o = 0;
            for (int i = 0; i < f.n_parts; i++)
                o += part[i * step + c] * exp2f(part[i * step + dim] - most);
            out[c] = o / sum;
        }
    }
}

template <half_type H, int D> static cudaError_t launch_size(cudaStream_t s, const struct flash_job *j)
{
    cudaError_t rc = cudaFuncSetAttribute(flash_kernel<H, D>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)sizeof(struct flash_space<D>));
    if (rc != cudaSuccess)
        return rc;
    return launch(flash_kernel<H, D>, dim3(j->n_items, j->kv.n_heads), dim3(FLASH_THREADS), sizeof(struct flash_space<D>), s, *j);
}

template <half_type H> static cudaError_t launch_half(cudaStream_t s, const struct flash_job *j)
{
    if (j->kv.head_dim <= 64)
        return launch_size<H, 64>(s, j);
    return j->kv.head_dim <= 128 ? launch_size<H, 128>(s, j) : launch_size<H, 256>(s, j);
}

cudaError_t launch_flash(cudaStream_t s, const struct flash_job *j)
{
    cudaError_t rc = j->kv.type == DT_F16 ? launch_half<half_type::f16>(s, j) : launch_half<half_type::bf16>(s, j);
    if (rc != cudaSuccess || j->n_folds == 0)
        return rc;
    return launch(fold_kernel, dim3(j->n_folds, j->kv.n_heads), dim3(FLASH_THREADS), 0, s, *j);
}
