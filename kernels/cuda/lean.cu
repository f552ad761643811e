/* Linear layers for up to 8 rows of weights of 8 bits and fewer, where reading the weights should be all the work, and
 * widening them is most of it: so integers are multiplied as such. A row's inputs are made once for each CTA, in blocks
 * of 32 columns: two planes of int8, 256 high + low, or for fp8 weights f16, and a power of two (the largest keeps 14
 * bits, where bf16 has 8). Products with integer weights are exact; each block's is multiplied with both scales and
 * added in f32.
 *
 * A CTA fills a multiprocessor: sixteen warps, which share the columns of a tile of 16 outputs, or of several tiles
 * where there are few columns and many outputs. A warp takes a slab at a time, 128 bytes of each of 16 rows, which it
 * has copied into shared memory itself, some slabs ahead and across the ends of tiles; scales and high bits come in
 * registers, one slab ahead. Copies go past the L1, so the kernel may begin early (slim.cu says why others may not).
 * Columns whose inputs would not fit, were there 8 rows, are cut into parts: CTAs with the same tiles have one each,
 * and the last of them to finish adds up what all have left, in order. Bound by memory bandwidth. A row's bits do not
 * depend on the number of rows. */
#include "kernels/cuda/lean.h"

/* ---- weights */

/* Which piece of a row of a slab lies where the first should: so that rows that are read together lie in different
 * banks. */
template <enum family F> __device__ static inline int swizzle(int row)
{
    return bits_of(F) == 8 ? row % 4 * 2 : row % 8;
}

/* The lane's four pieces of a slab: piece lane % 8 of rows lane / 8, + 4, ... Past the end of a row its last piece:
 * inputs are 0 there. */
template <enum family F>
__device__ static inline void fetch_slab(const struct skinny_job &j, const struct lean_cursor<4> &k, uint4 *to)
{
    constexpr int OF_BLOCK = bits_of(F) == 8 ? 2 : 1;
    const struct weight_window &w = j.out[k.out].w;
    int piece = lane_id() % ROW_PIECES, row = lane_id() / ROW_PIECES;
    int at = (w.col0 + k.c) / BLOCK_COLS * OF_BLOCK + piece, last = w.p.blocks * OF_BLOCK - 1;
    at = at < last ? at : last;
#pragma unroll
    for (int i = 0; i < 4; i++)
        cp_async(&to[(row + 4 * i) * ROW_PIECES + (piece ^ swizzle<F>(row + 4 * i))],
                 (const uint4 *)w.p.q + (k.row[i] * OF_BLOCK + (uint32_t)at), true);
}

/* Scales and high bits of blocks t, t + 4 of rows g and g + 8, as they are loaded. */
template <enum family F> struct lean_raw {
    static constexpr int N = lean_blocks<F> / 4;
    uint32_t s[2][N], d[2][N], h[2][N], h2[2][N];
};

template <enum family F>
__device__ static inline void load_raw(const struct skinny_job &j, const struct lean_cursor<2> &k,
                                       struct lean_raw<F> *to)
{
    const struct weight_planes &p = j.out[k.out].w.p;
    int first = (j.out[k.out].w.col0 + k.c) / BLOCK_COLS + lane_id() % 4;
#pragma unroll
    for (int r = 0; r < 2; r++)
#pragma unroll
        for (int n = 0; n < lean_raw<F>::N; n++) {
            int b = first + 4 * n < p.blocks ? first + 4 * n : p.blocks - 1;
            uint32_t i = k.row[r] + (uint32_t)b;
            if constexpr (F == FAM_F8)
                to->s[r][n] = ((const uint32_t *)p.s)[i / 2];
            else if constexpr (has_min(F) && !is_k(F))
                to->s[r][n] = ((const uint32_t *)p.s)[i];
            else
                to->s[r][n] = ((const uint16_t *)p.s)[i];
            if constexpr (is_k(F)) {
                uint32_t super = k.row[r] / 8 + (uint32_t)b / 8; /* rows of K types have whole blocks of 256 */
                to->d[r][n] = F == FAM_K6 ? ((const uint16_t *)p.d)[super] : ((const uint32_t *)p.d)[super];
            }
            if constexpr (bits_of(F) == 5)
                to->h[r][n] = ((const uint32_t *)p.h)[i];
            if constexpr (bits_of(F) == 6) {
                uint2 h = ((const uint2 *)p.h)[i];
                to->h[r][n] = h.x, to->h2[r][n] = h.y;
            }
        }
}

/* The scales of a block (of its halves, 6 bits), and its min. */
struct lean_scale {
    float d[2], m;
};

template <enum family F> __device__ static inline struct lean_scale scale_of(uint32_t s, uint32_t d)
{
    if constexpr (F == FAM_F8)
        return {{__uint_as_float(s), 0}, 0};
    float first = f16_bits((uint16_t)(is_k(F) ? d : s));
    if constexpr (F == FAM_K6)
        return {{first * (float)(int8_t)s, first * (float)(int8_t)(s >> 8)}, 0};
    else if constexpr (is_k(F))
        return {{first * (float)(s & 255u), 0}, 0.0f - f16_bits((uint16_t)(d >> 16)) * (float)(s >> 8)};
    else
        return {{first, 0}, has_min(F) ? f16_bits((uint16_t)(s >> 16)) : 0};
}

/* Four bytes, none above 63, less the zero point, if that is not taken from the sum. */
template <enum family F> __device__ static inline uint32_t less_zero(uint32_t q)
{
    constexpr uint32_t zero = has_offset(F) ? 0 : (uint32_t)zero_of(F) * 0x01010101u;
    return zero ? ((q | 0x80808080u) - zero) ^ 0x80808080u : q;
}

/* Integers of fewer than 8 bits: the lane's first four of a block and its last four. */
template <enum family F> __device__ static inline uint2 widen(uint32_t q, uint32_t h, uint32_t h2)
{
    int t = lane_id() % 4;
    uint32_t first = q & 0x0f0f0f0fu, last = q >> 4 & 0x0f0f0f0fu;
    if constexpr (bits_of(F) == 5) {
        first |= spread_bits(h >> 4 * t, 4);
        last |= spread_bits(h >> (16 + 4 * t), 4);
    }
    if constexpr (bits_of(F) == 6) {
        first |= spread_pairs(h >> 8 * t, 4);
        last |= spread_pairs(h2 >> 8 * t, 4);
    }
    return {less_zero<F>(first), less_zero<F>(last)};
}

/* The lane's eight of block u of row g + 8 r; raw: of the slab. */
template <enum family F>
__device__ static inline uint2 take_weights(const uint4 *slab, int u, int r, const struct lean_raw<F> &raw)
{
    int g = lane_id() / 4, t = lane_id() % 4, quad = lane_id() - t;
    const uint4 *row = slab + (g + 8 * r) * ROW_PIECES;
    if constexpr (bits_of(F) == 8)
        return ((const uint2 *)&row[(2 * u + t / 2) ^ swizzle<F>(g)])[t % 2];
    uint32_t q = ((const uint32_t *)&row[u ^ swizzle<F>(g)])[t], h = 0, h2 = 0;
    if constexpr (bits_of(F) == 5 || bits_of(F) == 6)
        h = __shfl_sync(ALL_LANES, raw.h[r][u / 4], quad + u % 4);
    if constexpr (bits_of(F) == 6)
        h2 = __shfl_sync(ALL_LANES, raw.h2[r][u / 4], quad + u % 4);
    return widen<F>(q, h, h2);
}

/* ---- the product */

/* A lane's sums. PAIRED, up to 4 rows: both planes of a row are columns of one product, and the lane has outputs g and
 * g + 8 of row t. Else, or fp8: output g of rows 2t and 2t + 1, output g + 8 of the same. */
template <enum family F, bool PAIRED> static constexpr bool pairs = PAIRED &&F != FAM_F8;

struct lean_sums {
    float acc[4];
};

/* Integers of rows g, g + 8 (w) with those of a block (x), halves [from, from + n). */
template <bool PAIRED>
__device__ static inline void dot_bytes(int dot[4], const uint2 w[2], const uint4 &x, int from, int n)
{
    int low[4] = {};
    const uint32_t a[4] = {w[0].x, w[1].x, w[0].y, w[1].y}, high[2] = {x.x, x.y}, rest[2] = {x.z, x.w};
    if (n == 2)
        mma_s8(dot, a, high);
    else
        mma_s8_half(dot, a + 2 * from, high[from]);
    if constexpr (PAIRED) {
        dot[0] = dot[0] * 256 + dot[1];
        dot[1] = dot[2] * 256 + dot[3];
    } else {
        if (n == 2)
            mma_s8(low, a, rest);
        else
            mma_s8_half(low, a + 2 * from, rest[from]);
#pragma unroll
        for (int i = 0; i < 4; i++)
            dot[i] = dot[i] * 256 + low[i];
    }
}

/* What output i of the lane is: of which row of the two, and which of its two inputs. */
template <bool PAIRED> __device__ static constexpr int out_row(int i)
{
    return PAIRED ? i : i / 2;
}

template <enum family F, bool PAIRED>
__device__ static inline void multiply_block(const uint2 w[2], const uint4 &x, const struct lean_input in[2],
                                             const struct lean_scale scale[2], struct lean_sums *s)
{
    constexpr int OUTS = PAIRED ? 2 : 4;
    if constexpr (F == FAM_F8) {
        float dot[4] = {};
        uint32_t pair[2][4];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            f8_to_f16(w[r].x, &pair[r][0]);
            f8_to_f16(w[r].y, &pair[r][2]);
        }
        const uint32_t first[4] = {pair[0][0], pair[1][0], pair[0][1], pair[1][1]},
                       last[4] = {pair[0][2], pair[1][2], pair[0][3], pair[1][3]}, xs[4] = {x.x, x.y, x.z, x.w};
        mma_f16(dot, first, &xs[0]);
        mma_f16(dot, last, &xs[2]);
#pragma unroll
        for (int i = 0; i < 4; i++)
            s->acc[i] = fmaf(scale[i / 2].d[0] * in[i % 2].d, dot[i], s->acc[i]);
    } else {
#pragma unroll
        for (int half = 0; half < (F == FAM_K6 ? 2 : 1); half++) {
            int dot[4] = {};
            dot_bytes<PAIRED>(dot, w, x, half, F == FAM_K6 ? 1 : 2);
#pragma unroll
            for (int i = 0; i < OUTS; i++) {
                const struct lean_input &of = in[PAIRED ? 0 : i % 2];
                int value = has_offset(F) ? dot[i] - zero_of(F) * of.sum : dot[i];
                s->acc[i] = fmaf(scale[out_row<PAIRED>(i)].d[half] * of.d, (float)value, s->acc[i]);
                if constexpr (has_min(F))
                    s->acc[i] = fmaf(scale[out_row<PAIRED>(i)].m, __uint_as_float((uint32_t)of.sum), s->acc[i]);
            }
        }
    }
}

/* Block `block` of the CTA's: the lane's inputs and their scales. Lanes of rows that are not there repeat the last one;
 * nobody reads what they get. */
template <enum family F, bool PAIRED>
__device__ static inline uint4 take_inputs(const struct skinny_job &j, const struct lean_inputs &in, int block,
                                           struct lean_input scale[2])
{
    int g = lane_id() / 4, t = lane_id() % 4, last = j.rows - 1, n = PAIRED ? g / 2 : g;
    const uint4 *x = &in.x[(block * j.rows + (n < last ? n : last)) * 4 + t];
    const struct lean_input *of = &in.scale[block * j.rows];
    if constexpr (PAIRED) {
        scale[0] = of[t < last ? t : last];
        uint2 half = ((const uint2 *)x)[g % 2];
        return make_uint4(half.x, half.y, 0, 0);
    }
    scale[0] = of[2 * t < last ? 2 * t : last];
    scale[1] = of[2 * t + 1 < last ? 2 * t + 1 : last];
    return *x;
}

template <enum family F, bool PAIRED>
__device__ static inline void multiply_slab(const struct skinny_job &j, const struct lean_inputs &in, int block,
                                            const uint4 *slab, const struct lean_raw<F> &raw, struct lean_sums *s)
{
    int quad = lane_id() - lane_id() % 4;
    struct lean_scale own[2][lean_raw<F>::N];
#pragma unroll
    for (int r = 0; r < 2; r++)
#pragma unroll
        for (int n = 0; n < lean_raw<F>::N; n++)
            own[r][n] = scale_of<F>(raw.s[r][n], raw.d[r][n]);
#pragma unroll
    for (int u = 0; u < lean_blocks<F>; u++) {
        struct lean_input made[2];
        struct lean_scale scale[2];
        uint2 w[2];
        uint4 x = take_inputs<F, PAIRED>(j, in, block + u, made);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            w[r] = take_weights<F>(slab, u, r, raw);
            scale[r].d[0] = __shfl_sync(ALL_LANES, own[r][u / 4].d[0], quad + u % 4);
            scale[r].d[1] = F == FAM_K6 ? __shfl_sync(ALL_LANES, own[r][u / 4].d[1], quad + u % 4) : 0;
            scale[r].m = has_min(F) ? __shfl_sync(ALL_LANES, own[r][u / 4].m, quad + u % 4) : 0;
        }
        multiply_block<F, PAIRED>(w, x, made, scale, s);
    }
}

/* ---- the sum of the warps */

template <bool PAIRED> __device__ static inline void share_sums(struct lean_space *sp, int side, const lean_sums &s)
{
    int g = lane_id() / 4, t = lane_id() % 4, warp = warp_id();
#pragma unroll
    for (int i = 0; i < (PAIRED ? 2 : 4); i++)
        sp->part[side][warp][g + out_row<PAIRED>(i) * 8][PAIRED ? t : 2 * t + i % 2] = s.acc[i];
}

/* Of a row's inputs of the CTA. */
__device__ static inline float add_squares(const struct lean_space &sp, int row)
{
    float sum = 0;
    for (int w = 0; w < LEAN_WARPS; w++)
        sum += sp.squares[row][w];
    return sum;
}

__device__ static inline float row_scale(const struct skinny_job &j, float squares)
{
    return j.in == SKINNY_NORM ? 1.0f / sqrtf(squares / (float)j.out[0].w.cols + j.eps) : 1.0f;
}

__device__ static inline float add_warps(const float (*part)[TILE_OUTS][SKINNY_ROWS + 1], int n, int o, int row)
{
    float sum = 0;
    for (int w = 0; w < n; w++)
        sum += part[w][o][row];
    return sum;
}

/* Output o of a unit, of this row, from the sums of its tile, or of both. */
__device__ static inline void store_unit(const struct skinny_job &j, int unit, int o, int row, const float sums[2])
{
    struct tile_at f = tile_of(j, unit, 0);
    const struct skinny_out &to = j.out[f.out];
    int at = f.first + o;
    if (at >= to.w.rows)
        return;
    float value = with_bias(to, at, sums[0]);
    if (j.gated)
        value = silu(value) * with_bias(j.out[1], at, sums[1]);
    store_output(j, to, row, at, value);
}

/* Where a part's sums of a tile are left: float [TILE_SUMS]; and its squares: float [SKINNY_ROWS]. */
__device__ static inline float *part_sums(const struct skinny_job &j, const struct lean_cut &cut, int unit, int which,
                                          int part)
{
    return j.partial + (int64_t)((unit * (j.gated ? 2 : 1) + which) * cut.parts + part) * TILE_SUMS;
}

__device__ static inline float *part_squares(const struct skinny_job &j, const struct lean_cut &cut, int part)
{
    return part_sums(j, cut, cut.units, 0, 0) + (group_of(cut) * cut.parts + part) * SKINNY_ROWS;
}

/* The outputs of a turn, or what is left of them for the end; by other warps than those of the turn before. */
__device__ static void store_sums(const struct skinny_job &j, const struct lean_space &sp, const struct lean_order &o,
                                  const struct lean_cut &cut, int turn)
{
    int first = o.at - warp_id() / o.warps + (j.gated ? turn / 2 : turn) * o.step;
    int begin = ((int)threadIdx.x + turn * TILE_SUMS) % LEAN_THREADS;
    for (int i = begin; i < cut.together * TILE_SUMS; i += LEAN_THREADS) {
        int tile = i / TILE_SUMS, row = i % TILE_SUMS / TILE_OUTS, at = i % TILE_OUTS, unit = first + tile;
        if (row >= j.rows || unit >= o.end)
            continue;
        float sums[2];
        sums[0] = add_warps(&sp.part[j.gated ? 0 : turn % 2][tile * o.warps], o.warps, at, row);
        sums[1] = j.gated ? add_warps(&sp.part[1][tile * o.warps], o.warps, at, row) : 0;
        if (cut.parts > 1) {
            part_sums(j, cut, unit, 0, part_of(cut))[i % TILE_SUMS] = sums[0];
            if (j.gated)
                part_sums(j, cut, unit, 1, part_of(cut))[i % TILE_SUMS] = sums[1];
            continue;
        }
        float scale = row_scale(j, add_squares(sp, row));
        sums[0] *= scale, sums[1] *= scale;
        store_unit(j, unit, at, row, sums);
    }
}

/* ---- parts: other CTAs wrote them, so no L1 may answer */

__device__ static inline float add_parts(const struct skinny_job &j, const struct lean_cut &cut, int unit, int which,
                                         int i)
{
    float sum = 0;
#pragma unroll 4
    for (int p = 0; p < cut.parts; p++)
        sum += __ldcg(&part_sums(j, cut, unit, which, p)[i]);
    return sum;
}

/* Of its group's CTAs the last one stores all their outputs. */
__device__ static void end_parts(const struct skinny_job &j, const struct lean_cut &cut, struct lean_space *sp)
{
    int row = (int)threadIdx.x;
    if (row < j.rows)
        part_squares(j, cut, part_of(cut))[row] = add_squares(*sp, row);
    __syncthreads();
    if (threadIdx.x == 0) { /* its fences are those of all: a barrier is before the one and behind the other */
        __threadfence();
        sp->last = atomicAdd(&j.arrived[group_of(cut)], 1u) == (uint32_t)cut.parts - 1;
        __threadfence();
    }
    __syncthreads();
    if (!sp->last)
        return;
    int units = (cut.units - group_of(cut) + cut.groups - 1) / cut.groups;
    for (int i = (int)threadIdx.x; i < units * TILE_SUMS; i += LEAN_THREADS) {
        int unit = group_of(cut) + i / TILE_SUMS * cut.groups, at = i % TILE_SUMS;
        float squares = 0, sums[2];
        row = at / TILE_OUTS;
        if (row >= j.rows)
            continue;
        for (int p = 0; p < cut.parts && j.in == SKINNY_NORM; p++)
            squares += __ldcg(&part_squares(j, cut, p)[row]);
        float scale = row_scale(j, squares);
        sums[0] = add_parts(j, cut, unit, 0, at) * scale;
        sums[1] = j.gated ? add_parts(j, cut, unit, 1, at) * scale : 0;
        store_unit(j, unit, at % TILE_OUTS, row, sums);
    }
    if (threadIdx.x == 0)
        j.arrived[group_of(cut)] = 0;
}

/* ---- a CTA */

/* What a warp has under way. */
template <enum family F> struct lean_stream {
    struct lean_cursor<4> fetch; /* the slab to copy next */
    struct lean_cursor<2> scale; /* the slab whose scales are `raw` */
    struct lean_raw<F> raw;
    int stage;
};

template <enum family F>
__device__ static inline void fetch_next(const struct skinny_job &j, const struct lean_order &o,
                                         struct lean_stream<F> *s, uint4 *to)
{
    if (s->fetch.turn < o.turns) {
        fetch_slab<F>(j, s->fetch, to);
        cursor_next(j, o, &s->fetch);
    }
    cp_async_commit();
}

template <enum family F>
__device__ static inline void begin_stream(const struct skinny_job &j, const struct lean_order &o,
                                           struct lean_space *sp, struct lean_stream<F> *s)
{
    s->fetch = cursor_at<4>(j, o);
    s->scale = cursor_at<2>(j, o);
    s->stage = 0;
    for (int i = 0; i < LEAN_STAGES; i++)
        fetch_next<F>(j, o, s, sp->ring[warp_id()][i]);
    if (s->scale.turn < o.turns)
        load_raw<F>(j, s->scale, &s->raw);
}

/* The warp's columns of one tile. */
template <enum family F, bool PAIRED>
__device__ static inline struct lean_sums multiply_tile(const struct skinny_job &j, const struct lean_order &o,
                                                        int turn, const struct lean_inputs &in, struct lean_space *sp,
                                                        struct lean_stream<F> *s)
{
    struct lean_sums sums = {};
    for (int c = first_column(o, turn); c < o.end_c; c += o.warps * o.slab) {
        uint4 *slab = sp->ring[warp_id()][s->stage];
        struct lean_raw<F> raw = s->raw;
        cursor_next(j, o, &s->scale);
        if (s->scale.turn < o.turns)
            load_raw<F>(j, s->scale, &s->raw);
        cp_async_wait<LEAN_STAGES - 1>();
        __syncwarp(); /* what other lanes have copied */
        multiply_slab<F, PAIRED>(j, in, (c - o.c) / BLOCK_COLS, slab, raw, &sums);
        __syncwarp();
        fetch_next<F>(j, o, s, slab);
        s->stage = s->stage + 1 == LEAN_STAGES ? 0 : s->stage + 1;
    }
    return sums;
}

/* Units [begin, end). */
template <enum family F, bool PAIRED_INTEGERS>
__device__ static void multiply_units(const struct skinny_job &j, const struct lean_cut &cut, int begin, int end,
                                      struct lean_space *sp)
{
    constexpr bool PAIRED = pairs<F, PAIRED_INTEGERS>;
    struct lean_order o = order_of(j, cut, begin, end, lean_blocks<F> * BLOCK_COLS);
    struct lean_inputs in = find_space(j, cut, sp);
    struct lean_stream<F> s;
    begin_stream<F>(j, o, sp, &s);
    griddepcontrol_wait();
    make_inputs<F>(j, cut, sp);
    for (int turn = 0; turn < o.turns; turn++) {
        struct lean_sums sums = {};
        if (unit_of(j, o, turn) < o.end)
            sums = multiply_tile<F, PAIRED>(j, o, turn, in, sp, &s);
        share_sums<PAIRED>(sp, turn % 2, sums);
        if (j.gated && turn % 2 == 0)
            continue;
        __syncthreads();
        store_sums(j, *sp, o, cut, turn);
        if (j.gated)
            __syncthreads(); /* both sides are read */
    }
}

/* F: the family of the first outputs, units [0, cut.first); G: of the last. */
template <enum family F, enum family G, bool PAIRED>
__global__ void __launch_bounds__(LEAN_THREADS, 1)
    lean_kernel(const __grid_constant__ struct skinny_job j, const __grid_constant__ struct lean_cut cut)
{
    SHARED_BYTES(shared);
    griddepcontrol_launch_dependents();
    multiply_units<F, PAIRED>(j, cut, 0, cut.first, (struct lean_space *)shared);
    if constexpr (F != G)
        multiply_units<G, PAIRED>(j, cut, cut.first, cut.units, (struct lean_space *)shared);
    if (cut.parts > 1)
        end_parts(j, cut, (struct lean_space *)shared);
}

/* ---- launching */

static struct lean_cut cut_product(const struct skinny_job *j)
{
    struct lean_cut c = {};
    int most = j->places / SKINNY_CTAS > 1 ? j->places / SKINNY_CTAS : 1; /* CTAs */
    int blocks = ceil_div(j->out[0].w.cols, PADDED * BLOCK_COLS) * PADDED;
    c.units = j->gated ? ceil_div(j->out[0].w.rows, TILE_OUTS) : tiles_of(j, TILE_OUTS);
    c.first = c.units;
    for (int i = j->n_out - 1; i >= 0 && j->out[i].w.p.family != j->out[0].w.p.family; i--)
        c.first -= ceil_div(j->out[i].w.rows, TILE_OUTS);
    for (c.parts = 1, c.per_part = blocks; c.per_part * SKINNY_ROWS * INPUT_BYTES > j->shared - LEAN_FIXED;) {
        c.parts *= 2;
        c.per_part = ceil_div(blocks, c.parts * PADDED) * PADDED;
    }
    c.parts = ceil_div(blocks, c.per_part); /* none is empty */
    int slabs = blocks / (bits_of(j->out[0].w.p.family) == 8 ? PADDED / 2 : PADDED);
    /* More than one slab of a warp for the cost of a turn, and turns enough that the last one does not matter. */
    for (c.together = 1; c.parts == 1 && c.together < LEAN_WARPS && 4 * c.together * most <= c.units &&
                         c.together * slabs <= LEAN_WARPS;)
        c.together *= 2;
    int groups = ceil_div(c.units, c.together), room = most / c.parts > 1 ? most / c.parts : 1;
    c.groups = groups < room ? groups : room;
    return c;
}

bool lean_can(int shared)
{
    return shared >= LEAN_FIXED + LEAN_LEAST;
}

void lean_needs(const struct skinny_job *j, size_t *floats, size_t *counters)
{
    *floats = *counters = 0;
    if (!lean_can(j->shared))
        return;
    struct lean_cut c = cut_product(j);
    size_t tiles = (size_t)c.units * (j->gated ? 2 : 1);
    *floats = c.parts > 1 ? (size_t)c.parts * (tiles * TILE_SUMS + (size_t)c.groups * SKINNY_ROWS) : 0;
    *counters = c.parts > 1 ? (size_t)c.groups : 0;
}

template <typename W, bool PAIRED>
static cudaError_t launch_kernel(cudaStream_t s, const struct skinny_job *j, const struct lean_cut &cut)
{
    auto kernel = lean_kernel<W::first, W::last, PAIRED>;
    size_t bytes = LEAN_FIXED + (size_t)cut.per_part * (size_t)j->rows * INPUT_BYTES;
    dim3 grid((unsigned)(cut.groups * cut.parts));
    cudaError_t rc = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, j->shared);
    if (rc)
        return rc;
    if (j->pdl)
        return launch_pdl(kernel, grid, dim3(LEAN_THREADS), bytes, s, *j, cut);
    return launch(kernel, grid, dim3(LEAN_THREADS), bytes, s, *j, cut);
}

template <typename W> static cudaError_t launch_rows(cudaStream_t s, const struct skinny_job *j)
{
    if (!lean_can(j->shared))
        return cudaErrorInvalidValue;
    struct lean_cut cut = cut_product(j);
    if (cut.units == 0)
        return cudaSuccess;
    if (j->rows <= SKINNY_ROWS / 2 && W::first != FAM_F8)
        return launch_kernel<W, true>(s, j, cut);
    return launch_kernel<W, false>(s, j, cut);
}

cudaError_t launch_lean(cudaStream_t s, const struct skinny_job *j)
{
    return by_families(j, [&](auto of) -> cudaError_t {
        if constexpr (is_float(decltype(of)::first))
            return cudaErrorInvalidValue;
        else
            return launch_rows<decltype(of)>(s, j);
    });
}
