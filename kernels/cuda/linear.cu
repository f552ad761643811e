/* Linear layers in the CPU backend's sums: leaves of 64 columns, each in one lane, then the binary tree over their
 * absolute index. A warp has one output for up to eight rows; lane i takes leaf i of every 32, so the tree's first
 * five levels are shuffles and its upper levels a short stack. Bound by loads: each lane reads 64 columns of its own.
 * Correct for any batch and made for proofs, not for speed; the bits depend on neither the rows nor the grid. */
#include "kernels/cuda/prim.h"
#include "kernels/cuda/unpack.h"

enum { LINEAR_WARPS = 4, LINEAR_ROWS = 8, UPPER_LEVELS = 13 };

/* Sums of one leaf, absent where this lane has none. */
template <int R> struct leaf_sums {
    float v[R];
    bool here;
};

template <enum family F, int R>
__device__ static void add_block(const struct linear_job &j, int row0, int64_t i, int64_t super, int b, float acc[R])
{
    uint32_t w[8];
    unpack_block<F>(j.w.p, i, w);
    float d0 = block_scale(F, j.w.p, i, super, 0), d1 = F == FAM_K6 ? block_scale(F, j.w.p, i, super, 1) : 0, m = 0;
    int blocks = j.w.cols / BLOCK_COLS;
    if constexpr (has_min(F))
        m = block_min(F, j.w.p, i, super);
#pragma unroll
    for (int r = 0; r < R; r++) {
        if (row0 + r >= j.rows)
            break;
        const int4 *high = (const int4 *)(j.q + (int64_t)(row0 + r) * 2 * j.w.cols + b * BLOCK_COLS);
        const int4 *low = (const int4 *)((const int8_t *)high + j.w.cols);
        int dot[2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int4 h = high[half], l = low[half];
            const int hw[4] = {h.x, h.y, h.z, h.w}, lw[4] = {l.x, l.y, l.z, l.w};
            int hs = 0, ls = 0;
#pragma unroll
            for (int k = 0; k < 4; k++) {
                hs = __dp4a((int)w[4 * half + k], hw[k], hs);
                ls = __dp4a((int)w[4 * half + k], lw[k], ls);
            }
            dot[half] = hs * 255 + ls;
        }
        const struct quant_meta meta = j.meta[(int64_t)(row0 + r) * blocks + b];
        if constexpr (F == FAM_K6) {
            acc[r] = fmaf(d0 * meta.d, (float)(dot[0] - meta.half[0] * zero_of(F)), acc[r]);
            acc[r] = fmaf(d1 * meta.d, (float)(dot[1] - meta.half[1] * zero_of(F)), acc[r]);
        } else {
            acc[r] = fmaf(d0 * meta.d, (float)(dot[0] + dot[1] - meta.sum * zero_of(F)), acc[r]);
        }
        if constexpr (has_min(F))
            acc[r] = fmaf(m, meta.s, acc[r]);
    }
}

/* Eight weights of a float type, or codes of fp8, from column c on, a multiple of 8. */
template <enum family F>
__device__ static void load_eight(const struct weight_planes &p, int64_t row, int c, float w[8])
{
    if constexpr (F == FAM_F32) {
        const float4 *from = (const float4 *)((const float *)p.q + row * p.stride + c);
        float4 a = from[0], b = from[1];
        w[0] = a.x, w[1] = a.y, w[2] = a.z, w[3] = a.w;
        w[4] = b.x, w[5] = b.y, w[6] = b.z, w[7] = b.w;
    } else if constexpr (F == FAM_F8) {
        uint2 a = *(const uint2 *)((const uint8_t *)p.q + row * p.blocks * BLOCK_COLS + c);
#pragma unroll
        for (int i = 0; i < 8; i++)
            w[i] = f8_bits((uint8_t)((i < 4 ? a.x : a.y) >> 8 * (i % 4)));
    } else {
        uint4 a = *(const uint4 *)((const uint16_t *)p.q + row * p.stride + c);
        const uint32_t word[4] = {a.x, a.y, a.z, a.w};
#pragma unroll
        for (int i = 0; i < 8; i++) {
            uint16_t h = (uint16_t)(word[i / 2] >> (i % 2 ? 16 : 0));
            w[i] = F == FAM_F16 ? f16_bits(h) : bf16_bits(h);
        }
    }
}

/* Columns [c, end) of a leaf. */
template <enum family F, int R>
__device__ static void add_floats(const struct linear_job &j, int64_t row, int row0, int c, int end, float acc[R])
{
    for (; c < end; c += 8) {
        float w[8];
        load_eight<F>(j.w.p, row, c, w);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            if (c + i >= end)
                break;
#pragma unroll
            for (int r = 0; r < R; r++)
                if (row0 + r < j.rows)
                    acc[r] = fmaf(w[i], j.x[(int64_t)(row0 + r) * j.ldx + (c + i - j.w.col0)], acc[r]);
        }
    }
}

template <enum family F, int R>
__device__ static struct leaf_sums<R> sum_leaf(const struct linear_job &j, int out, int row0, int leaf) {
    struct leaf_sums<R> s = {};
    int64_t row = j.w.row0 + out;
    int first = leaf * LEAF_COLS, end = first + LEAF_COLS, col1 = j.w.col0 + j.w.cols;
    end = end < col1 ? end : col1;
    s.here = first >= j.w.col0 && first < end;
    if (!s.here)
        return s;
    if constexpr (is_float(F)) {
        add_floats<F, R>(j, row, row0, first, end, s.v);
    } else if constexpr (F == FAM_F8) {
        float d = block_scale(F, j.w.p, row * j.w.p.blocks + first / BLOCK_COLS, 0, 0);
        add_floats<F, R>(j, row, row0, first, end, s.v);
#pragma unroll
        for (int r = 0; r < R; r++)
            s.v[r] = d * s.v[r];
    } else {
        for (int c = first; c < end; c += BLOCK_COLS) {
            int b = c / BLOCK_COLS;
            int64_t i = row * j.w.p.blocks + b, super = row * ((j.w.p.blocks + 7) / 8) + b / 8;
            add_block<F, R>(j, row0, i, super, b - j.w.col0 / BLOCK_COLS, s.v);
        }
    }
    return s;
}

/* The nodes of 32 lanes, joined; right in lane 0. What is absent is skipped. */
template <int R>
__device__ static void join_lanes(struct leaf_sums<R> *s)
{
    for (int k = 1; k < WARP; k *= 2) {
        bool there = __shfl_down_sync(ALL_LANES, (int)s->here, k) != 0;
#pragma unroll
        for (int r = 0; r < R; r++) {
            float other = __shfl_down_sync(ALL_LANES, s->v[r], k);
            if (there)
                s->v[r] = s->here ? s->v[r] + other : other;
        }
        s->here = s->here || there;
    }
}

/* The tree above spans of 32 leaves: what waits for its right sibling, by level. */
struct upper_tree {
    float waiting[UPPER_LEVELS];
};

/* Span `at` of [first, end) is summed: the whole sum once it is the last, else something between. */
__device__ static float join_span(struct upper_tree *t, float v, int at, int first, int end)
{
    for (int level = 0; level < UPPER_LEVELS; level++) {
        int node = at >> level;
        if (node % 2) {
            if (node << level > first)
                v = t->waiting[level] + v;
        } else if (at + 1 < end) {
            t->waiting[level] = v;
            break;
        }
    }
    return v;
}

template <enum family F, int R> __global__ void linear_kernel(struct linear_job j)
{
    int out = (int)blockIdx.x * LINEAR_WARPS + warp_id(), row0 = (int)blockIdx.y * R;
    if (out >= j.w.rows)
        return;
    int leaf1 = (j.w.col0 + j.w.cols + LEAF_COLS - 1) / LEAF_COLS;
    int first = j.w.col0 / LEAF_COLS / WARP, end = (leaf1 - 1) / WARP + 1;
    struct upper_tree tree;
    float sum = 0; /* of row lane_id */
    for (int span = first; span < end; span++) {
        struct leaf_sums<R> s = sum_leaf<F, R>(j, out, row0, span * WARP + lane_id());
        float mine = 0;
        join_lanes<R>(&s);
#pragma unroll
        for (int r = 0; r < R; r++) {
            float v = __shfl_sync(ALL_LANES, s.v[r], 0);
            mine = lane_id() == r ? v : mine;
        }
        sum = join_span(&tree, mine, span, first, end);
    }
    int row = row0 + lane_id();
    if (lane_id() >= R || row >= j.rows)
        return;
    float *y = j.y + (int64_t)row * j.ldy + out;
    if (j.bias)
        sum = sum + j.bias[out];
    *y = j.accumulate ? *y + sum : sum;
}

template <enum family F> static cudaError_t launch_family(cudaStream_t s, const struct linear_job *j)
{
    int outs = ceil_div(j->w.rows, LINEAR_WARPS);
    if (j->rows == 1)
        return launch(linear_kernel<F, 1>, dim3(outs), dim3(LINEAR_WARPS * WARP), 0, s, *j);
    return launch(linear_kernel<F, LINEAR_ROWS>, dim3(outs, ceil_div(j->rows, LINEAR_ROWS)), dim3(LINEAR_WARPS * WARP),
                  0, s, *j);
}

cudaError_t launch_linear(cudaStream_t s, const struct linear_job *j)
{
    switch (j->w.p.family) {
    case FAM_F32:
        return launch_family<FAM_F32>(s, j);
    case FAM_F16:
        return launch_family<FAM_F16>(s, j);
    case FAM_BF16:
        return launch_family<FAM_BF16>(s, j);
    case FAM_F8:
        return launch_family<FAM_F8>(s, j);
    case FAM_U4:
        return launch_family<FAM_U4>(s, j);
    case FAM_U4M:
        return launch_family<FAM_U4M>(s, j);
    case FAM_U5:
        return launch_family<FAM_U5>(s, j);
    case FAM_U5M:
        return launch_family<FAM_U5M>(s, j);
    case FAM_S8:
        return launch_family<FAM_S8>(s, j);
    case FAM_K4:
        return launch_family<FAM_K4>(s, j);
    case FAM_K5:
        return launch_family<FAM_K5>(s, j);
    case FAM_K6:
        return launch_family<FAM_K6>(s, j);
    }
    return cudaErrorInvalidValue;
}
