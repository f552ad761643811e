/* Attention in the CPU backend's sums (kernels/cpu/kernels.h): leaves of 128 absolute positions, each with its own
 * maximum, sum and output, folded in ascending order. A CTA has up to eight queries of one kv head of one sequence: for
 * the scores a thread is a position, for the output an element of the head. Bound by loads of keys, which each thread
 * reads alone. Right for any mix of chunks and decodes; the bits depend on neither. */
#include "kernels/cuda/prim.h"

enum { LEAF = 128, QUERIES = 8, MOST_DIM = 256, DIM_PARTS = MOST_DIM / LEAF };

/* What a CTA shares. */
struct attend_space {
    float q[QUERIES][MOST_DIM];
    float p[QUERIES][LEAF]; /* scores, then weights */
    float leaf_m[QUERIES], leaf_l[QUERIES], m[QUERIES], l[QUERIES];
    int lo[QUERIES], hi[QUERIES]; /* positions seen: lo <= p < hi; hi 0: no query */
    int block[LEAF];              /* where each position of the leaf lies */
};

/* Where the CTA's kv head lies in block 0. */
struct attend_head {
    const uint8_t *keys;
    size_t row_bytes; /* of one position */
};

/* The state of one thread: its elements of every query's output. */
struct attend_state {
    float o[QUERIES][DIM_PARTS];
};

template <enum dtype T> __device__ static float cached(const uint8_t *row, int i)
{
    if constexpr (T == DT_F32)
        return ((const float *)row)[i];
    if constexpr (T == DT_F8)
        return f8_bits(row[i]);
    uint16_t h = ((const uint16_t *)row)[i];
    return T == DT_F16 ? f16_bits(h) : bf16_bits(h);
}

/* Queries n .. n + 7 of the item: query i is row i / heads, head i % heads of the kv head. */
__device__ static void load_queries(const struct attend_job &j, const struct attend_item &it, int first,
                                    struct attend_space *s)
{
    int head0 = j.first_head[blockIdx.y], heads = j.first_head[blockIdx.y + 1] - head0, dim = j.kv.head_dim;
    struct seq_at seq = j.step.seqs[it.seq];
    for (int k = 0; k < QUERIES; k++) {
        int i = first + k, row = it.row0 + i / heads;
        bool here = i < it.n_rows * heads;
        if (threadIdx.x == 0) {
            int position = seq.pos0 + row - seq.row0;
            s->hi[k] = here ? position + 1 : 0;
            s->lo[k] = here && j.window > 0 && position >= j.window ? position - j.window + 1 : 0;
            s->m[k] = -INFINITY;
            s->l[k] = 0;
        }
        int64_t q = (int64_t)row * j.ldq + (head0 + i % heads) * dim;
        for (int c = (int)threadIdx.x; c < dim && here; c += LEAF)
            s->q[k][c] = act_at(j.q, j.half_q, q + c) * j.scale;
    }
}

/* Bit k: query k sees something of the leaf. */
__device__ static unsigned seen_in(const struct attend_space *s, int leaf)
{
    unsigned seen = 0;
    for (int k = 0; k < QUERIES; k++)
        if (s->hi[k] > leaf * LEAF && s->lo[k] < (leaf + 1) * LEAF && s->lo[k] < s->hi[k])
            seen |= 1u << k;
    return seen;
}

template <enum dtype T>
__device__ static void score_leaf(const struct attend_job &j, struct attend_head head, int leaf, struct attend_space *s)
{
    int position = leaf * LEAF + (int)threadIdx.x, most = 0, least = 1 << 30;
    for (int k = 0; k < QUERIES; k++) {
        most = s->hi[k] > most ? s->hi[k] : most;
        least = s->hi[k] && s->lo[k] < least ? s->lo[k] : least;
    }
    float acc[QUERIES] = {};
    if (position >= least && position < most) {
        const uint8_t *row = head.keys + (size_t)s->block[threadIdx.x] * j.kv.block_bytes +
                             (size_t)(position % j.kv.tokens) * head.row_bytes;
        for (int c = 0; c < j.kv.head_dim; c++) {
            float key = cached<T>(row, c);
#pragma unroll
            for (int k = 0; k < QUERIES; k++)
                acc[k] = fmaf(s->q[k][c], key, acc[k]);
        }
    }
#pragma unroll
    for (int k = 0; k < QUERIES; k++)
        s->p[k][threadIdx.x] = position >= s->lo[k] && position < s->hi[k] ? acc[k] : -INFINITY;
}

/* Warp: every fourth query. Scores into weights, their maximum, their sum over 16 lanes (position mod 16). */
__device__ static void weigh_leaf(struct attend_space *s, unsigned seen)
{
    for (int k = warp_id(); k < QUERIES; k += LEAF / WARP) {
        if (!(seen >> k & 1))
            continue;
        float most = -INFINITY, sum = 0;
        for (int i = lane_id(); i < LEAF; i += WARP)
            most = s->p[k][i] > most ? s->p[k][i] : most;
        most = warp_max(most);
        for (int i = lane_id(); i < LEAF; i += WARP)
            s->p[k][i] = exp2_fixed(s->p[k][i] - most);
        __syncwarp();
        for (int i = lane_id(); i < LEAF && lane_id() < 16; i += 16)
            sum = sum + s->p[k][i];
        sum = sum_sixteen(sum);
        if (lane_id() == 0) {
            s->leaf_m[k] = most;
            s->leaf_l[k] = sum;
        }
    }
}

/* Thread: elements threadIdx.x and + 128 of the head. The leaf's output, positions ascending, then folded into the
 * state. */
template <enum dtype T>
__device__ static void mix_leaf(const struct attend_job &j, struct attend_head head, int leaf,
                                const struct attend_space *s, struct attend_state *state, unsigned seen)
{
#pragma unroll
    for (int part = 0; part < DIM_PARTS; part++) {
        int c = part * LEAF + (int)threadIdx.x;
        float acc[QUERIES] = {};
        if (c >= j.kv.head_dim)
            continue;
        for (int i = 0; i < LEAF; i++) {
            int position = leaf * LEAF + i;
            bool any = false;
            for (int k = 0; k < QUERIES; k++)
                any = any || (position >= s->lo[k] && position < s->hi[k]);
            if (!any)
                continue;
            const uint8_t *row = head.keys + j.kv.value_at + (size_t)s->block[i] * j.kv.block_bytes +
                                 (size_t)(position % j.kv.tokens) * head.row_bytes;
            float value = cached<T>(row, c);
#pragma unroll
            for (int k = 0; k < QUERIES; k++)
                if (position >= s->lo[k] && position < s->hi[k])
                    acc[k] = fmaf(s->p[k][i], value, acc[k]);
        }
#pragma unroll
        for (int k = 0; k < QUERIES; k++) {
            if (!(seen >> k & 1))
                continue;
            float m = s->m[k], pm = s->leaf_m[k], most = m > pm ? m : pm;
            if (m == -INFINITY)
                state->o[k][part] = acc[k];
            else
                state->o[k][part] = fmaf(state->o[k][part], exp2_fixed(m - most), acc[k] * exp2_fixed(pm - most));
        }
    }
}

/* After all threads have folded their elements. */
__device__ static void fold_sums(struct attend_space *s, unsigned seen)
{
    int k = (int)threadIdx.x;
    if (k >= QUERIES || !(seen >> k & 1))
        return;
    float m = s->m[k], pm = s->leaf_m[k], most = m > pm ? m : pm;
    s->l[k] = m == -INFINITY ? s->leaf_l[k] : s->l[k] * exp2_fixed(m - most) + s->leaf_l[k] * exp2_fixed(pm - most);
    s->m[k] = m == -INFINITY ? pm : most;
}

__device__ static void store_queries(const struct attend_job &j, const struct attend_item &it, int first,
                                     const struct attend_space *s, const struct attend_state *state)
{
    int head0 = j.first_head[blockIdx.y], heads = j.first_head[blockIdx.y + 1] - head0, dim = j.kv.head_dim;
#pragma unroll
    for (int k = 0; k < QUERIES; k++) {
        int i = first + k;
        if (i >= it.n_rows * heads)
            continue;
        float inverse = 1.0f / s->l[k];
        int64_t out = (int64_t)(it.row0 + i / heads) * j.ldo + (head0 + i % heads) * dim;
#pragma unroll
        for (int part = 0; part < DIM_PARTS; part++)
            if (part * LEAF + (int)threadIdx.x < dim)
                put_act(j.out, j.half_out, out + part * LEAF + threadIdx.x, state->o[k][part] * inverse);
    }
}

template <enum dtype T> static __global__ void attend_kernel(struct attend_job j)
{
    SHARED(s, struct attend_space s);
    struct attend_item it = j.items[blockIdx.x];
    struct seq_at seq = j.step.seqs[it.seq];
    int heads = j.first_head[blockIdx.y + 1] - j.first_head[blockIdx.y];
    int last = seq.pos0 + it.row0 + it.n_rows - 1 - seq.row0;
    struct attend_head head = {j.kv.base + (size_t)blockIdx.y * j.kv.head_bytes,
                               (size_t)j.kv.padded_dim * (T == DT_F32  ? 4
                                                          : T == DT_F8 ? 1
                                                                       : 2)};
    for (int first = 0; first < it.n_rows * heads; first += QUERIES) {
        struct attend_state state = {};
        __syncthreads();
        load_queries(j, it, first, &s);
        __syncthreads();
        for (int leaf = 0; leaf <= last / LEAF; leaf++) {
            unsigned seen = seen_in(&s, leaf);
            if (!seen)
                continue;
            int position = leaf * LEAF + (int)threadIdx.x;
            if (position <= last)
                s.block[threadIdx.x] = j.step.blocks[seq.block0 + position / j.kv.tokens];
            score_leaf<T>(j, head, leaf, &s);
            __syncthreads();
            weigh_leaf(&s, seen);
            __syncthreads();
            mix_leaf<T>(j, head, leaf, &s, &state, seen);
            __syncthreads();
            fold_sums(&s, seen);
            __syncthreads();
        }
        store_queries(j, it, first, &s, &state);
    }
}

cudaError_t launch_attend(cudaStream_t s, const struct attend_job *j)
{
    dim3 grid(j->n_items, j->kv.n_heads), block(LEAF);
    switch (j->kv.type) {
    case DT_F32:
        return launch(attend_kernel<DT_F32>, grid, block, 0, s, *j);
    case DT_F16:
        return launch(attend_kernel<DT_F16>, grid, block, 0, s, *j);
    case DT_BF16:
        return launch(attend_kernel<DT_BF16>, grid, block, 0, s, *j);
    case DT_F8:
        return launch(attend_kernel<DT_F8>, grid, block, 0, s, *j);
    default:
        return cudaErrorInvalidValue;
    }
}
