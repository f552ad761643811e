/* What lean.cu's kernel has in shared memory, how it makes its inputs, and in which order it goes through the weights.
 * CUDA C++ only. Invariant: what is made of a row does not depend on the others. */
#ifndef CUDA_LEAN_H
#define CUDA_LEAN_H

#include "kernels/cuda/slab.h"

enum {
    LEAN_WARPS = 16,
    LEAN_THREADS = LEAN_WARPS * WARP,
    LEAN_STAGES = 3,
    ROW_BYTES = 128, /* of a slab */
    ROW_PIECES = ROW_BYTES / 16,
    PADDED = 8, /* blocks: made inputs are a multiple, whatever a slab has */
    MADE = 4,   /* pieces of inputs that a thread makes at once */
    TILE_SUMS = TILE_OUTS * SKINNY_ROWS,
};
template <enum family F> static constexpr int lean_blocks = bits_of(F) == 8 ? 4 : 8; /* of a slab */

/* ---- shared memory */

/* A block of a row: x is about d times its integers. */
struct lean_input {
    float d;
    int32_t sum; /* of the integers, where weights have a zero point; where they have a min the bits of d times it */
};

struct lean_space {
    uint4 ring[LEAN_WARPS][LEAN_STAGES][TILE_OUTS * ROW_PIECES];
    float part[2][LEAN_WARPS][TILE_OUTS][SKINNY_ROWS + 1]; /* of a tile, and of the one before or the other of two */
    float squares[SKINNY_ROWS][LEAN_WARPS];
    alignas(16) bool last;     /* of its group's CTAs */
    alignas(16) uint4 rest[1]; /* inputs: uint4 [blocks][rows][4]; then their scales */
};
enum {
    LEAN_FIXED = offsetof(struct lean_space, rest),
    LEAN_LEAST = 32 << 10,                                 /* for inputs */
    INPUT_BYTES = 4 * 16 + (int)sizeof(struct lean_input), /* of a block of a row */
};

/* Is the zero point taken from a block's sum? Not where its halves have scales of their own. */
__host__ __device__ static constexpr bool has_offset(enum family f)
{
    return zero_of(f) != 0 && f != FAM_K6;
}

/* How a product is cut: by the host. */
struct lean_cut {
    int units, first;    /* tiles, or pairs of gated ones; those of the first family */
    int together;        /* tiles of a CTA at a time */
    int parts, per_part; /* of the columns; blocks of each but the last */
    int groups;          /* of CTAs that share their tiles: one of each part */
};

/* What a CTA is: the part, and the group, of its columns. */
__device__ static inline int part_of(const struct lean_cut &cut)
{
    return (int)blockIdx.x % cut.parts;
}

__device__ static inline int group_of(const struct lean_cut &cut)
{
    return (int)blockIdx.x / cut.parts;
}

struct lean_inputs {
    uint4 *x;
    struct lean_input *scale;
};

__device__ static inline struct lean_inputs find_space(const struct skinny_job &j, const struct lean_cut &cut,
                                                       struct lean_space *sp)
{
    return {sp->rest, (struct lean_input *)(sp->rest + cut.per_part * j.rows * 4)};
}

/* ---- inputs */

/* A quad's largest, and NaN where an input is not finite. */
__device__ static inline float block_max(float4 a, float4 b, float *poison)
{
    float most = 0, none = 0;
    const float x[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#pragma unroll
    for (int k = 0; k < 8; k++) {
        most = fmaxf(most, fabsf(x[k]));
        none = fmaf(x[k], 0.0f, none);
    }
#pragma unroll
    for (int k = 1; k <= 2; k *= 2) {
        most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, k));
        none = none + __shfl_xor_sync(ALL_LANES, none, k);
    }
    *poison = none;
    return most;
}

/* Four integers in two planes of bytes. */
__device__ static inline int split_bytes(float4 v, float inverse, uint32_t *high, uint32_t *low)
{
    const float x[4] = {v.x, v.y, v.z, v.w};
    int sum = 0;
    *high = *low = 0;
#pragma unroll
    for (int k = 0; k < 4; k++) {
        int q = (int)rintf(fmaxf(-16384, fminf(x[k] * inverse, 16384))), h = (q + 128) >> 8; /* NaN: any */
        *high |= ((uint32_t)h & 255u) << 8 * k;
        *low |= ((uint32_t)q & 255u) << 8 * k; /* q - 256 h, as a signed byte */
        sum += q;
    }
    return sum;
}

/* The lane's eight inputs of a block as they are multiplied. d is a power of two, so that what fits is exact. */
template <enum family F> __device__ static inline uint4 split_block(float4 a, float4 b, struct lean_input *to)
{
    enum { EXPONENT = 13 }; /* the largest becomes 2^13 and more, but less than 2^14 */
    float poison, d = 0, inverse = 0;
    uint32_t field = __float_as_uint(block_max(a, b, &poison)) >> 23;
    if (field > EXPONENT && field < 255) {
        d = __uint_as_float((field - EXPONENT) << 23);
        inverse = __uint_as_float((254 + EXPONENT - field) << 23);
    }
    d = d + poison;
    if constexpr (F == FAM_F8) {
        *to = {d, 0};
        return make_uint4(pack_f16(a.x * inverse, a.y * inverse), pack_f16(a.z * inverse, a.w * inverse),
                          pack_f16(b.x * inverse, b.y * inverse), pack_f16(b.z * inverse, b.w * inverse));
    } else {
        uint4 x;
        int sum = split_bytes(a, inverse, &x.x, &x.z);
        sum += split_bytes(b, inverse, &x.y, &x.w);
        if constexpr (has_min(F) || has_offset(F)) {
            sum += __shfl_xor_sync(ALL_LANES, sum, 1);
            sum += __shfl_xor_sync(ALL_LANES, sum, 2);
        }
        *to = {d, has_min(F) ? (int32_t)__float_as_uint(d * (float)sum) : sum};
        return x;
    }
}

/* Pieces of 8 elements of one lane. */
struct lean_pieces {
    int first_c; /* where piece 0 begins */
    int i, row, n;
};

/* MADE of them, so that all their loads are under way together: piece i of n rows from `row` on (ACROSS false), or of
 * one row n pieces LEAN_THREADS apart. squares: of each row. */
template <enum family F, bool ACROSS>
__device__ static inline void make_pieces(const struct skinny_job &j, const struct lean_inputs &in,
                                          const struct lean_pieces &p, float squares[MADE])
{
    int first_c = p.first_c, i = p.i, row = p.row, n = p.n;
    struct raw_input raw[MADE], gains[MADE];
    int t = lane_id() % 4;
#pragma unroll
    for (int k = 0; k < MADE; k++) {
        int c = first_c + (i + (ACROSS && k < n ? k * LEAN_THREADS : 0)) / 4 * BLOCK_COLS;
        raw[k] = load_block<F>(j, k < n ? row + (ACROSS ? 0 : k) : j.rows, c); /* past the last row: 0 */
        gains[k] = ACROSS || k == 0 ? load_gains<F>(j, c) : gains[0];
    }
#pragma unroll
    for (int k = 0; k < MADE; k++) {
        int block = (i + (ACROSS ? k * LEAN_THREADS : 0)) / 4, c = first_c + block * BLOCK_COLS;
        int to = block * j.rows + row + (ACROSS ? 0 : k);
        float *own = &squares[ACROSS ? 0 : k];
        if (k >= n)
            return;
        float4 a = make_input(j, raw[k].first, gains[k].first, c + block_order<F>::first(t), own),
               b = make_input(j, raw[k].last, gains[k].last, c + block_order<F>::last(t), own);
        struct lean_input scale;
        in.x[to * 4 + t] = split_block<F>(a, b, &scale);
        if (t == 0)
            in.scale[to] = scale;
    }
}

/* Those of the CTA's columns, in all rows, and their squares. */
template <enum family F>
__device__ static void make_inputs(const struct skinny_job &j, const struct lean_cut &cut, struct lean_space *sp)
{
    struct lean_inputs in = find_space(j, cut, sp);
    int first = part_of(cut) * cut.per_part, own = (int)threadIdx.x;
    int left = (j.out[0].w.cols + BLOCK_COLS - 1) / BLOCK_COLS - first;
    int n = 4 * (left < cut.per_part ? (left + PADDED - 1) / PADDED * PADDED : cut.per_part);
    __syncthreads(); /* nobody reads those of another family any more */
    for (int row = 0; row < j.rows; row += MADE) {
        float squares[MADE] = {};
        if (j.rows == 1)
            for (int i = own; i < n; i += MADE * LEAN_THREADS)
                make_pieces<F, true>(j, in, {first * BLOCK_COLS, i, 0, (n - i + LEAN_THREADS - 1) / LEAN_THREADS},
                                     squares);
        else
            for (int i = own; i < n; i += LEAN_THREADS)
                make_pieces<F, false>(j, in, {first * BLOCK_COLS, i, row, j.rows - row}, squares);
#pragma unroll
        for (int r = 0; r < MADE; r++) {
            for (int k = WARP / 2; k; k /= 2)
                squares[r] = squares[r] + __shfl_xor_sync(ALL_LANES, squares[r], k);
            if (lane_id() == 0 && row + r < j.rows)
                sp->squares[row + r][warp_id()] = squares[r];
        }
    }
    __syncthreads();
}

/* ---- the order of slabs, of one warp */

struct lean_order {
    int at, end, step; /* units of this warp */
    int turns;         /* of all tiles */
    int c, end_c;      /* columns of the CTA */
    int warp, warps;   /* that share a tile */
    int slab, left;    /* columns; slabs of a tile that do not go round all warps */
};

__device__ static inline struct lean_order order_of(const struct skinny_job &j, const struct lean_cut &cut, int begin,
                                                    int end, int slab)
{
    int warps = LEAN_WARPS / cut.together, all = cut.groups * cut.together,
        own = group_of(cut) * cut.together + warp_id() / warps;
    int c = part_of(cut) * cut.per_part * BLOCK_COLS, end_c = c + cut.per_part * BLOCK_COLS;
    end_c = end_c < j.out[0].w.cols ? end_c : j.out[0].w.cols;
    return {begin + (own + all - begin % all) % all,
            end,
            all,
            (end - begin + all - 1) / all * (j.gated ? 2 : 1),
            c,
            end_c,
            warp_id() % warps,
            warps,
            slab,
            (end_c - c + slab - 1) / slab % warps};
}

/* The warp's first column of a tile: from turn to turn others have the slabs that are left. */
__device__ static inline int first_column(const struct lean_order &o, int turn)
{
    return o.c + (o.warp + turn * (o.warps - o.left)) % o.warps * o.slab;
}

__device__ static inline int unit_of(const struct skinny_job &j, const struct lean_order &o, int turn)
{
    return o.at + (j.gated ? turn / 2 : turn) * o.step;
}

__device__ static inline struct tile_at tile_of(const struct skinny_job &j, int unit, int which)
{
    return j.gated ? (struct tile_at){which, unit * TILE_OUTS} : find_tile(j, unit, TILE_OUTS);
}

/* A slab, and the lane's N rows of it: the blocks before each in its matrix. */
template <int N> struct lean_cursor {
    int turn, c, out;
    uint32_t row[N];
};

/* The first slab from this turn on; turn is o.turns when there is none. */
template <int N>
__device__ static inline void settle(const struct skinny_job &j, const struct lean_order &o, struct lean_cursor<N> *k)
{
    constexpr int APART = TILE_OUTS / N;
    for (; k->turn < o.turns; k->turn++) {
        int unit = unit_of(j, o, k->turn);
        k->c = first_column(o, k->turn);
        if (k->c >= o.end_c || unit >= o.end)
            continue;
        struct tile_at tile = tile_of(j, unit, k->turn % 2);
        const struct weight_window &w = j.out[tile.out].w;
        k->out = tile.out;
#pragma unroll
        for (int i = 0; i < N; i++) {
            int row = tile.first + lane_id() / (WARP / APART) + APART * i;
            k->row[i] = (uint32_t)(w.row0 + (row < w.rows ? row : w.rows - 1)) * (uint32_t)w.p.blocks;
        }
        return;
    }
}

template <int N>
__device__ static inline struct lean_cursor<N> cursor_at(const struct skinny_job &j, const struct lean_order &o) {
    struct lean_cursor<N> k = {};
    settle(j, o, &k);
    return k;
}

template <int N>
__device__ static inline void cursor_next(const struct skinny_job &j, const struct lean_order &o,
                                          struct lean_cursor<N> *k)
{
    k->c += o.warps * o.slab;
    if (k->c < o.end_c)
        return;
    k->turn++;
    settle(j, o, k);
}

#endif
