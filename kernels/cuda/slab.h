/* What the products of few rows share (skinny.cu, slim.cu, and but for the weights lean.cu): weights straight from
 * their planes as tensor cores want them, 128 columns of 16 outputs at a time, an f16 weight as two bf16, its rounded
 * value and the rest; inputs, made on the way; and the product of a block of 32 columns with eight rows. RMSNorm needs
 * no pass of its own, since sum(x gain w) / rms is sum(x gain w) times one number, known at the end. CUDA C++ only.
 * Invariant: a row's bits do not depend on the others. */
#ifndef CUDA_SLAB_H
#define CUDA_SLAB_H

#include "kernels/cuda/tensor.h"
#include "kernels/cuda/fast.h"
#include "kernels/cuda/unpack.h"

enum { SLAB = 128, SLAB_BLOCKS = SLAB / BLOCK_COLS, TILE_OUTS = 16, SLAB_THREADS = 256 /* of a CTA */ };

/* Which columns of a block of 32 lane t of four has: its first four elements at first(t), its last four at last(t). */
template <enum family F> struct block_order {
    static constexpr bool nibbles = bits_of(F) < 8 && !is_float(F);
    __device__ static int first(int t) { return nibbles ? 4 * t : 8 * t; }
    __device__ static int last(int t) { return nibbles ? 16 + 4 * t : 8 * t + 4; }
};

/* 16 bytes each: what a lane has of one row of a slab, without scales and high bits. */
template <enum family F> static constexpr int slab_pieces = is_float(F) ? 4 : bits_of(F) == 8 ? 2 : 1;

/* One lane's part of one row of a slab, as loaded. */
template <enum family F> struct slab_row {
    uint4 q[slab_pieces<F>];
    uint2 h;       /* of block t: high bits */
    float d[2], m; /* of block t: scales of its halves, min */
};

__device__ static inline float4 load_floats(const float *x)
{
    return *(const float4 *)x;
}

/* ---- weights */

/* Piece u of a row; false: it is past the end. col: the slab's first column in the matrix. */
template <enum family F>
__device__ static inline bool find_piece(const struct weight_planes &p, int64_t row, int col, int end_col, int u,
                                         const uint4 **at)
{
    int t = lane_id() % 4, b = col / BLOCK_COLS + t, c = col + u * BLOCK_COLS + 8 * t;
    bool here = is_float(F) ? c < end_col : b * BLOCK_COLS < end_col;
    *at = (const uint4 *)p.q;
    if (is_float(F))
        *at = here ? (const uint4 *)((const uint16_t *)p.q + row * p.stride + c) : *at;
    else
        *at += here ? (row * p.blocks + b) * slab_pieces<F> + u : 0;
    return here;
}

/* High bits and scales of a row. */
template <enum family F>
__device__ static inline void load_scales(struct slab_row<F> *s, const struct weight_planes &p, int64_t row, int col,
                                          int end_col)
{
    int b = col / BLOCK_COLS + lane_id() % 4;
    bool here = b * BLOCK_COLS < end_col;
    b = here ? b : col / BLOCK_COLS;
    int64_t i = row * p.blocks + b, super = row * ((p.blocks + 7) / 8) + b / 8;
    if constexpr (bits_of(F) == 5)
        s->h.x = ((const uint32_t *)p.h)[i];
    if constexpr (bits_of(F) == 6)
        s->h = ((const uint2 *)p.h)[i];
    s->d[0] = here ? block_scale(F, p, i, super, 0) : 0;
    s->d[1] = F != FAM_K6 ? s->d[0] : here ? block_scale(F, p, i, super, 1) : 0;
    if constexpr (has_min(F))
        s->m = here ? block_min(F, p, i, super) : 0;
}

/* Four lanes have four words each; afterwards word k of lane t is what was word t of lane k. */
__device__ static inline void transpose_words(uint32_t w[4], int t)
{
#pragma unroll
    for (int step = 1; step <= 2; step *= 2) {
        bool odd = (t & step) != 0;
#pragma unroll
        for (int k = 0; k < 4; k++) {
            if (k & step)
                continue;
            uint32_t send = odd ? w[k] : w[k | step];
            uint32_t got = __shfl_xor_sync(ALL_LANES, send, step);
            if (odd)
                w[k] = got;
            else
                w[k | step] = got;
        }
    }
}

template <enum family F> __device__ static inline void arrange_slab(struct slab_row<F> *s, int t)
{
    if constexpr (is_float(F)) {
        return;
    } else {
        uint32_t w[4] = {s->q[0].x, s->q[0].y, s->q[0].z, s->q[0].w};
        if constexpr (bits_of(F) == 8) {
            /* lane t of block u wants words 2t and 2t + 1: even and odd words are transposed apart */
            uint32_t even[4] = {s->q[0].x, s->q[0].z, s->q[1].x, s->q[1].z},
                     odd[4] = {s->q[0].y, s->q[0].w, s->q[1].y, s->q[1].w};
            transpose_words(even, t);
            transpose_words(odd, t);
            s->q[0] = make_uint4(even[0], odd[0], even[1], odd[1]);
            s->q[1] = make_uint4(even[2], odd[2], even[3], odd[3]);
        } else {
            transpose_words(w, t);
            s->q[0] = make_uint4(w[0], w[1], w[2], w[3]);
        }
    }
}

__device__ static inline uint32_t word_of(const uint4 &v, int k)
{
    return k == 0 ? v.x : k == 1 ? v.y : k == 2 ? v.z : v.w;
}

/* Four small unsigned integers, a byte each, less `zero`, as two pairs of bf16. 0x43 makes 128 + q of a byte. */
__device__ static inline void bytes_to_bf16(uint32_t bytes, int zero, uint32_t out[2])
{
    uint32_t minus = pack_bf16((float)(128 + zero), (float)(128 + zero));
    out[0] = sub_bf16x2(byte_perm(bytes, 0x43434343u, 0x4140), minus);
    out[1] = sub_bf16x2(byte_perm(bytes, 0x43434343u, 0x4342), minus);
}

__device__ static inline void signed_to_bf16(uint32_t bytes, uint32_t out[2])
{
    out[0] = pack_bf16((float)(int8_t)bytes, (float)(int8_t)(bytes >> 8));
    out[1] = pack_bf16((float)(int8_t)(bytes >> 16), (float)(int8_t)(bytes >> 24));
}

__device__ static inline float half_of(uint32_t w, int k)
{
    return f16_bits((uint16_t)(k ? w >> 16 : w));
}

/* The lane's eight weights of block u of the slab: pairs 0, 1 are its first four, 2, 3 its last four. low: what bf16
 * leaves of f16. */
template <enum family F>
__device__ static inline void block_pairs(const struct slab_row<F> &s, int u, int quad, int t, uint32_t w[4],
                                          uint32_t low[4])
{
    if constexpr (F == FAM_BF16) {
        w[0] = s.q[u].x, w[1] = s.q[u].y, w[2] = s.q[u].z, w[3] = s.q[u].w;
    } else if constexpr (is_float(F)) {
#pragma unroll
        for (int k = 0; k < 4; k++) {
            float a = half_of(word_of(s.q[u], k), 0), b = half_of(word_of(s.q[u], k), 1);
            w[k] = pack_bf16(a, b);
            low[k] = pack_bf16(a - bf16_bits((uint16_t)w[k]), b - bf16_bits((uint16_t)(w[k] >> 16)));
        }
    } else if constexpr (F == FAM_F8) {
        f8_to_bf16(u % 2 ? s.q[u / 2].z : s.q[u / 2].x, w);
        f8_to_bf16(u % 2 ? s.q[u / 2].w : s.q[u / 2].y, w + 2);
    } else if constexpr (F == FAM_S8) {
        signed_to_bf16(u % 2 ? s.q[u / 2].z : s.q[u / 2].x, w);
        signed_to_bf16(u % 2 ? s.q[u / 2].w : s.q[u / 2].y, w + 2);
    } else {
        uint32_t word = word_of(s.q[0], u), first = word & 0x0f0f0f0fu, last = word >> 4 & 0x0f0f0f0fu;
        if constexpr (bits_of(F) == 5) {
            uint32_t high = __shfl_sync(ALL_LANES, s.h.x, quad + u);
            first |= spread_bits(high >> 4 * t, 4);
            last |= spread_bits(high >> (16 + 4 * t), 4);
        }
        if constexpr (bits_of(F) == 6) {
            uint32_t x = __shfl_sync(ALL_LANES, s.h.x, quad + u), y = __shfl_sync(ALL_LANES, s.h.y, quad + u);
            first |= spread_pairs(x >> 8 * t, 4);
            last |= spread_pairs(y >> 8 * t, 4);
        }
        bytes_to_bf16(first, zero_of(F), w);
        bytes_to_bf16(last, zero_of(F), w + 2);
    }
}

/* The row of the matrix that a lane reads of a tile whose outputs begin at `first`: r 0: g, 1: g + 8. */
__device__ static inline int64_t tile_row(const struct weight_window &w, int first, int r)
{
    int row = first + lane_id() / 4 + 8 * r;
    return w.row0 + (row < w.rows ? row : w.rows - 1);
}

template <enum family F>
__device__ static inline void load_tile_scales(const struct weight_window &w, int first, int c,
                                               struct slab_row<F> slab[2])
{
    if constexpr (!is_float(F))
#pragma unroll
        for (int r = 0; r < 2; r++)
            load_scales<F>(&slab[r], w.p, tile_row(w, first, r), w.col0 + c, w.col0 + w.cols);
}

/* put(r, u, from, there) for the lane's pieces of the slab at column c of the window, of the outputs from `first` on.
 */
template <enum family F, typename Put>
__device__ static inline void each_piece(const struct weight_window &w, int first, int c, Put put)
{
#pragma unroll
    for (int r = 0; r < 2; r++)
#pragma unroll
        for (int u = 0; u < slab_pieces<F>; u++) {
            const uint4 *from;
            bool there = find_piece<F>(w.p, tile_row(w, first, r), w.col0 + c, w.col0 + w.cols, u, &from);
            put(r, u, from, there);
        }
}

/* All of a slab into registers. */
template <enum family F>
__device__ static inline void load_tile(const struct weight_window &w, int first, int c, struct slab_row<F> slab[2])
{
    each_piece<F>(w, first, c, [&](int r, int u, const uint4 *from, bool there) {
        slab[r].q[u] = there ? load_stream(from) : make_uint4(0, 0, 0, 0);
    });
    load_tile_scales<F>(w, first, c, slab);
}

/* Weights of 16 bits on their way: each lane's own pieces of the slabs that come next, in shared memory. Copies there
 * bypass the L1, whose size, small beside attention's shared memory, would bound how many bytes are under way. A lane
 * reads what it has copied itself: no barrier is needed, only the wait for the copies, one group a slab. */
template <enum family F, int STAGES> struct slab_ring {
    uint4 piece[STAGES][2 * slab_pieces<F>][SLAB_THREADS];
};

/* Begins to copy a slab. */
template <enum family F, int STAGES>
__device__ static inline void fetch_slab(struct slab_ring<F, STAGES> *ring, int stage, const struct weight_window &w,
                                         int first, int c)
{
    each_piece<F>(w, first, c, [&](int r, int u, const uint4 *from, bool there) {
        cp_async(&ring->piece[stage][r * slab_pieces<F> + u][threadIdx.x], from, there);
    });
}

/* What has arrived, after cp_async_wait. */
template <enum family F, int STAGES>
__device__ static inline void take_slab(const struct slab_ring<F, STAGES> &ring, int stage, struct slab_row<F> slab[2])
{
#pragma unroll
    for (int r = 0; r < 2; r++)
#pragma unroll
        for (int u = 0; u < slab_pieces<F>; u++)
            slab[r].q[u] = ring.piece[stage][r * slab_pieces<F> + u][threadIdx.x];
}

/* ---- input */

/* Four inputs as they lie, from column c of the window on; 0 past its end. Rows are padded to 16 elements, so this may
 * read past the last column. */
__device__ static inline float4 load_input(const struct skinny_job &j, int row, int c)
{
    return row < j.rows && c < j.out[0].w.cols ? load_floats(j.x + (int64_t)row * j.ldx + c) : make_float4(0, 0, 0, 0);
}

/* Of four columns from c on; 0 past the last one, where memory may hold anything. */
__device__ static inline float4 load_gain(const struct skinny_job &j, int c)
{
    int left = j.out[0].w.cols - c;
    if (left >= 4)
        return load_floats(j.gain + c);
    return make_float4(left > 0 ? j.gain[c] : 0, left > 1 ? j.gain[c + 1] : 0, left > 2 ? j.gain[c + 2] : 0, 0);
}

/* Made as `in` says, and their squares counted. */
__device__ static inline float4 make_input(const struct skinny_job &j, float4 a, float4 gain, int c, float *squares)
{
    int left = j.out[0].w.cols - c;
    if (left < 4) {
        a.w = 0;
        a.z = left < 3 ? 0 : a.z;
        a.y = left < 2 ? 0 : a.y;
    }
    if (j.in != SKINNY_NORM || left <= 0)
        return a;
    *squares = fmaf(a.x, a.x, fmaf(a.y, a.y, fmaf(a.z, a.z, fmaf(a.w, a.w, *squares))));
    return make_float4(a.x * gain.x, a.y * gain.y, a.z * gain.z, a.w * gain.w);
}

/* The lane's eight inputs of a block. */
struct raw_input {
    float4 first, last;
};

template <enum family F>
__device__ static inline struct raw_input load_block(const struct skinny_job &j, int row, int c)
{
    int t = lane_id() % 4;
    return {load_input(j, row, c + block_order<F>::first(t)), load_input(j, row, c + block_order<F>::last(t))};
}

template <enum family F> __device__ static inline struct raw_input load_gains(const struct skinny_job &j, int c)
{
    int t = lane_id() % 4;
    float4 none = make_float4(0, 0, 0, 0);
    if (j.in != SKINNY_NORM)
        return {none, none};
    return {load_gain(j, c + block_order<F>::first(t)), load_gain(j, c + block_order<F>::last(t))};
}

/* In pairs; squares: of this block are added to it. */
template <enum family F>
__device__ static inline uint4 make_block(const struct skinny_job &j, const struct raw_input &raw,
                                          const struct raw_input &gains, int c, float *squares)
{
    int t = lane_id() % 4;
    float own = 0;
    float4 a = make_input(j, raw.first, gains.first, c + block_order<F>::first(t), &own),
           b = make_input(j, raw.last, gains.last, c + block_order<F>::last(t), &own);
    *squares += own;
    return make_uint4(pack_bf16(a.x, a.y), pack_bf16(a.z, a.w), pack_bf16(b.x, b.y), pack_bf16(b.z, b.w));
}

__device__ static inline float silu(float x)
{
    return x / (1.0f + exp2_fast(-1.44269504f * x));
}

/* ---- the product */

/* Block u of a slab, for one tile: fragments of rows g and g + 8 (low: what bf16 leaves of f16), and their scales. */
template <enum family F> struct block_weights {
    uint32_t a[2][4], low[2][4];
    float d[2][2], m[2];
};

template <enum family F>
__device__ static inline void prepare_block(const struct slab_row<F> rows[2], int u, struct block_weights<F> *b)
{
    int t = lane_id() % 4, quad = lane_id() - t;
    uint32_t w[2][4], low[2][4];
    block_pairs<F>(rows[0], u, quad, t, w[0], low[0]);
    block_pairs<F>(rows[1], u, quad, t, w[1], low[1]);
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
        for (int k = 0; k < 4; k++) {
            b->a[half][k] = w[k % 2][2 * half + k / 2];
            if constexpr (F == FAM_F16)
                b->low[half][k] = low[k % 2][2 * half + k / 2];
        }
    if constexpr (!is_float(F)) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            b->d[r][0] = __shfl_sync(ALL_LANES, rows[r].d[0], quad + u);
            b->d[r][1] = F == FAM_K6 ? __shfl_sync(ALL_LANES, rows[r].d[1], quad + u) : b->d[r][0];
            b->m[r] = has_min(F) ? __shfl_sync(ALL_LANES, rows[r].m, quad + u) : 0;
        }
    }
}

/* Against eight rows of inputs: x, the lane's pairs; sum, those of the block's inputs for the two columns of the lane's
 * results (read where weights have a min). */
template <enum family F>
__device__ static inline void multiply_block(const struct block_weights<F> &b, const uint32_t x[4], const float sum[2],
                                             float acc[4])
{
    if constexpr (is_float(F)) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            mma_bf16(acc, b.a[half], &x[2 * half]);
            if constexpr (F == FAM_F16)
                mma_bf16(acc, b.low[half], &x[2 * half]);
        }
    } else {
        float dot[2][4] = {};
        mma_bf16(dot[0], b.a[0], &x[0]);
        mma_bf16(F == FAM_K6 ? dot[1] : dot[0], b.a[1], &x[2]);
#pragma unroll
        for (int k = 0; k < 4; k++) {
            acc[k] = fmaf(b.d[k / 2][0], dot[0][k], acc[k]);
            if constexpr (F == FAM_K6)
                acc[k] = fmaf(b.d[k / 2][1], dot[1][k], acc[k]);
            if constexpr (has_min(F))
                acc[k] = fmaf(b.m[k / 2], sum[k % 2], acc[k]);
        }
    }
}

/* ---- launching */

/* The family of the first outputs, and of the last ones: skinny_mixes. */
template <enum family F, enum family G = F> struct of_families {
    static constexpr enum family first = F, last = G;
};

template <typename L> static inline cudaError_t by_mixed(enum family f, enum family g, L launch)
{
    if (f == FAM_K4 && g == FAM_K6)
        return launch(of_families<FAM_K4, FAM_K6>());
    if (f == FAM_K4 && g == FAM_K5)
        return launch(of_families<FAM_K4, FAM_K5>());
    if (f == FAM_K5 && g == FAM_K6)
        return launch(of_families<FAM_K5, FAM_K6>());
    if (f == FAM_U5 && g == FAM_S8)
        return launch(of_families<FAM_U5, FAM_S8>());
    if (f == FAM_U5M && g == FAM_S8)
        return launch(of_families<FAM_U5M, FAM_S8>());
    return cudaErrorInvalidValue;
}

/* launch(of_families<f, g>) with those of the job's first output and its last one, where slabs are of such. */
template <typename L> static inline cudaError_t by_families(const struct skinny_job *j, L launch)
{
    enum family f = j->out[0].w.p.family, g = j->out[j->n_out - 1].w.p.family;
    if (f != g)
        return by_mixed(f, g, launch);
    switch (f) {
    case FAM_F32:
        break;
    case FAM_F16:
        return launch(of_families<FAM_F16>());
    case FAM_BF16:
        return launch(of_families<FAM_BF16>());
    case FAM_F8:
        return launch(of_families<FAM_F8>());
    case FAM_U4:
        return launch(of_families<FAM_U4>());
    case FAM_U4M:
        return launch(of_families<FAM_U4M>());
    case FAM_U5:
        return launch(of_families<FAM_U5>());
    case FAM_U5M:
        return launch(of_families<FAM_U5M>());
    case FAM_S8:
        return launch(of_families<FAM_S8>());
    case FAM_K4:
        return launch(of_families<FAM_K4>());
    case FAM_K5:
        return launch(of_families<FAM_K5>());
    case FAM_K6:
        return launch(of_families<FAM_K6>());
    }
    return cudaErrorInvalidValue;
}

/* ---- where outputs are */

/* The outputs of a tile. */
struct tile_at {
    int out, first; /* which output, its first row in it */
};

/* Tile `at` of all outputs, each of which has its rows rounded up to `outs`. */
__device__ static inline struct tile_at find_tile(const struct skinny_job &j, int at, int outs)
{
    struct tile_at f = {0, at * outs};
    while (f.first >= j.out[f.out].w.rows) {
        f.first -= (j.out[f.out].w.rows + outs - 1) / outs * outs;
        f.out++;
    }
    return f;
}

static inline int tiles_of(const struct skinny_job *j, int outs)
{
    int tiles = 0;
    for (int i = 0; i < j->n_out; i++)
        tiles += (j->out[i].w.rows + outs - 1) / outs;
    return tiles;
}

/* A sum, with its output's bias. */
__device__ static inline float with_bias(const struct skinny_out &to, int at, float sum)
{
    return to.bias ? sum + to.bias[at] : sum;
}

__device__ static inline void store_output(const struct skinny_job &j, const struct skinny_out &to, int row, int at,
                                           float value)
{
    float *y = to.y + (int64_t)row * to.ldy + at;
    *y = j.accumulate ? *y + value : value;
}

#endif
