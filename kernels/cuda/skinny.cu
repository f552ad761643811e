/* Linear layers for a few rows, where reading the weights is all the work: tensor cores multiply 16 outputs by 8 rows
 * at a time. Weights come straight from their planes, 16 bytes per lane; an f16 weight becomes two bf16, its rounded
 * value and the rest. A CTA has 16 T outputs; its eight warps share the columns, 128 at a time, and their sums are
 * added in order. The input is computed on the way: RMSNorm needs no pass of its own, since sum(x gain w) / rms is
 * sum(x gain w) times one number, known at the end. Bound by memory bandwidth. The bits do not depend on the number of
 * rows. */
#include "kernels/cuda/tensor.h"
#include "kernels/cuda/fast.h"
#include "kernels/cuda/unpack.h"

enum {
    SKINNY_WARPS = 8,
    SKINNY_THREADS = SKINNY_WARPS * WARP,
    SLAB = 128,
    SLAB_BLOCKS = SLAB / BLOCK_COLS,
    TILE_OUTS = 16
};

/* Which columns of a block of 32 lane t of four has: its first four elements at first(t), its last four at last(t). */
template <enum family F> struct block_order {
    static constexpr bool nibbles = bits_of(F) < 8 && !is_float(F);
    __device__ static int first(int t) { return nibbles ? 4 * t : 8 * t; }
    __device__ static int last(int t) { return nibbles ? 16 + 4 * t : 8 * t + 4; }
};

/* One lane's part of one row of a slab, as loaded. */
template <enum family F> struct slab_row {
    uint4 q[is_float(F) ? 4 : bits_of(F) == 8 ? 2 : 1];
    uint2 h;       /* of block t: high bits */
    float d[2], m; /* of block t: scales of its halves, min */
};

__device__ static inline float4 load_floats(const float *x)
{
    return *(const float4 *)x;
}

/* ---- weights */

/* Blocks [b, end) of this slab are there; col: its first column in the matrix. */
template <enum family F>
__device__ static void load_slab(struct slab_row<F> *s, const struct weight_planes &p, int64_t row, int col,
                                 int end_col, int t)
{
    const uint4 none = {};
    if constexpr (is_float(F)) {
#pragma unroll
        for (int u = 0; u < 4; u++) {
            int c = col + u * BLOCK_COLS + 8 * t;
            s->q[u] = c < end_col ? load_stream((const uint4 *)((const uint16_t *)p.q + row * p.stride + c)) : none;
        }
    } else {
        int b = col / BLOCK_COLS + t;
        bool here = b * BLOCK_COLS < end_col;
        int64_t i = row * p.blocks + (here ? b : col / BLOCK_COLS),
                super = row * ((p.blocks + 7) / 8) + (here ? b : col / BLOCK_COLS) / 8;
        s->q[0] = here ? load_stream((const uint4 *)p.q + (bits_of(F) == 8 ? 2 * i : i)) : none;
        if constexpr (bits_of(F) == 8)
            s->q[1] = here ? load_stream((const uint4 *)p.q + 2 * i + 1) : none;
        if constexpr (bits_of(F) == 5)
            s->h.x = ((const uint32_t *)p.h)[i];
        if constexpr (bits_of(F) == 6)
            s->h = ((const uint2 *)p.h)[i];
        s->d[0] = here ? block_scale(F, p, i, super, 0) : 0;
        s->d[1] = F != FAM_K6 ? s->d[0] : here ? block_scale(F, p, i, super, 1) : 0;
        if constexpr (has_min(F))
            s->m = here ? block_min(F, p, i, super) : 0;
    }
}

/* Four lanes have four words each; afterwards word k of lane t is what was word t of lane k. */
__device__ static void transpose_words(uint32_t w[4], int t)
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

template <enum family F> __device__ static void arrange_slab(struct slab_row<F> *s, int t)
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
__device__ static void block_pairs(const struct slab_row<F> &s, int u, int quad, int t, uint32_t w[4], uint32_t low[4])
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

/* ---- input */

__device__ static inline float silu(float x)
{
    return x / (1.0f + exp2_fast(-1.44269504f * x));
}

/* Four inputs of a row from column c of the window on, made as `in` says; what lies past the last column is 0. */
__device__ static float4 input_at(const struct skinny_job &j, int row, int c, float *squares)
{
    float4 a = {};
    int left = j.out[0].w.cols - c;
    if (row >= j.rows || left <= 0)
        return a;
    a = load_floats(j.x + (int64_t)row * j.ldx +
                    c); /* rows are padded to 16 elements, so this may read past the last one */
    if (left < 4) {
        a.w = 0;
        a.z = left < 3 ? 0 : a.z;
        a.y = left < 2 ? 0 : a.y;
    }
    if (j.in == SKINNY_NORM) {
        float4 gain = left < 4 ? make_float4(j.gain[c], left > 1 ? j.gain[c + 1] : 0, left > 2 ? j.gain[c + 2] : 0, 0)
                               : load_floats(j.gain + c);
        *squares = fmaf(a.x, a.x, fmaf(a.y, a.y, fmaf(a.z, a.z, fmaf(a.w, a.w, *squares))));
        return make_float4(a.x * gain.x, a.y * gain.y, a.z * gain.z, a.w * gain.w);
    }
    if (j.in == SKINNY_SWIGLU) {
        float4 up = load_floats(j.x2 + (int64_t)row * j.ldx2 + c);
        if (left < 4)
            up = make_float4(up.x, left < 2 ? 0 : up.y, left < 3 ? 0 : up.z, 0);
        return make_float4(silu(a.x) * up.x, silu(a.y) * up.y, silu(a.z) * up.z, silu(a.w) * up.w);
    }
    return a;
}

/* The lane's eight inputs of a block, in pairs. */
template <enum family F>
__device__ static void input_pairs(const struct skinny_job &j, int row, int c, uint32_t (*x)[4], float *squares)
{
    int t = lane_id() % 4;
    float4 a = input_at(j, row, c + block_order<F>::first(t), squares),
           b = input_at(j, row, c + block_order<F>::last(t), squares);
    (*x)[0] = pack_bf16(a.x, a.y), (*x)[1] = pack_bf16(a.z, a.w);
    (*x)[2] = pack_bf16(b.x, b.y), (*x)[3] = pack_bf16(b.z, b.w);
}

/* ---- the product */

/* Where a tile's outputs come from. */
struct tile_at {
    int out, first; /* which output, its first row in it */
};

/* What a lane keeps: sums of T tiles for N times 8 rows, squares of the rows it saw. */
template <int T, int N> struct sums {
    float acc[T][N][4], squares[N];
};

__device__ static inline void mma_both(float c[4], const uint32_t a[4], const uint32_t b[2], const uint32_t *low)
{
    mma_bf16(c, a, b);
    if (low)
        mma_bf16(c, low, b);
}

/* The lane's inputs of a block, and of the two columns of its results the sums. */
template <int N> struct block_inputs {
    uint32_t x[N][4];
    float sum[N][2];
};

/* Block u of a slab, for one tile: w of rows g and g + 8 against N groups of eight inputs. */
template <enum family F, int N>
__device__ static void multiply_block(const struct slab_row<F> rows[2], int u, const struct block_inputs<N> &in,
                                      float acc[N][4])
{
    int t = lane_id() % 4, quad = lane_id() - t;
    constexpr bool split = F == FAM_F16;
    uint32_t w[2][4], low[2][4];
    block_pairs<F>(rows[0], u, quad, t, w[0], low[0]);
    block_pairs<F>(rows[1], u, quad, t, w[1], low[1]);
    const uint32_t a[2][4] = {{w[0][0], w[1][0], w[0][1], w[1][1]}, {w[0][2], w[1][2], w[0][3], w[1][3]}};
    if constexpr (is_float(F)) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            uint32_t rest[4];
            if constexpr (split)
                rest[0] = low[0][2 * half], rest[1] = low[1][2 * half], rest[2] = low[0][2 * half + 1],
                rest[3] = low[1][2 * half + 1];
#pragma unroll
            for (int n = 0; n < N; n++)
                mma_both(acc[n], a[half], &in.x[n][2 * half], split ? rest : NULL);
        }
    } else {
        float d[2][2], m[2];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            d[r][0] = __shfl_sync(ALL_LANES, rows[r].d[0], quad + u);
            d[r][1] = F == FAM_K6 ? __shfl_sync(ALL_LANES, rows[r].d[1], quad + u) : d[r][0];
            m[r] = has_min(F) ? __shfl_sync(ALL_LANES, rows[r].m, quad + u) : 0;
        }
#pragma unroll
        for (int n = 0; n < N; n++) {
            float dot[2][4] = {};
            mma_bf16(dot[0], a[0], &in.x[n][0]);
            mma_bf16(F == FAM_K6 ? dot[1] : dot[0], a[1], &in.x[n][2]);
#pragma unroll
            for (int k = 0; k < 4; k++) {
                acc[n][k] = fmaf(d[k / 2][0], dot[0][k], acc[n][k]);
                if constexpr (F == FAM_K6)
                    acc[n][k] = fmaf(d[k / 2][1], dot[1][k], acc[n][k]);
                if constexpr (has_min(F))
                    acc[n][k] = fmaf(m[k / 2], in.sum[n][k % 2], acc[n][k]);
            }
        }
    }
}

/* The sums of the block's inputs, for the two columns of the lane's results. */
template <int N> __device__ static void sum_inputs(struct block_inputs<N> *in)
{
    const uint32_t ones[4] = {0x3f803f80u, 0x3f803f80u, 0x3f803f80u, 0x3f803f80u};
#pragma unroll
    for (int n = 0; n < N; n++) {
        float c[4] = {};
        mma_bf16(c, ones, &in->x[n][0]);
        mma_bf16(c, ones, &in->x[n][2]);
        in->sum[n][0] = c[0];
        in->sum[n][1] = c[1];
    }
}

template <enum family F, int T, int N>
__device__ static void multiply_slab(const struct skinny_job &j, struct slab_row<F> slab[T][2], int c,
                                     struct sums<T, N> *s)
{
    int g = lane_id() / 4, t = lane_id() % 4;
#pragma unroll
    for (int i = 0; i < T; i++) {
        arrange_slab<F>(&slab[i][0], t);
        arrange_slab<F>(&slab[i][1], t);
    }
#pragma unroll
    for (int u = 0; u < SLAB_BLOCKS; u++) {
        struct block_inputs<N> in;
#pragma unroll
        for (int n = 0; n < N; n++)
            input_pairs<F>(j, 8 * n + g, c + u * BLOCK_COLS, &in.x[n], &s->squares[n]);
        if constexpr (has_min(F))
            sum_inputs<N>(&in);
#pragma unroll
        for (int i = 0; i < T; i++)
            multiply_block<F, N>(slab[i], u, in, s->acc[i]);
    }
}

/* Tile `at` of all outputs, each of which has its rows rounded up to 16 T. */
template <int T> __device__ static struct tile_at find_tile(const struct skinny_job &j, int at)
{
    struct tile_at f = {0, at * TILE_OUTS * T};
    while (f.first >= j.out[f.out].w.rows) {
        f.first -= (j.out[f.out].w.rows + TILE_OUTS * T - 1) / (TILE_OUTS * T) * (TILE_OUTS * T);
        f.out++;
    }
    return f;
}

template <enum family F, int T>
__device__ static void load_tiles(const struct weight_window &w, int first, int c, struct slab_row<F> slab[T][2])
{
    int g = lane_id() / 4, t = lane_id() % 4;
#pragma unroll
    for (int i = 0; i < T; i++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int row = first + i * TILE_OUTS + g + 8 * r;
            row = row < w.rows ? row : w.rows - 1;
            load_slab<F>(&slab[i][r], w.p, w.row0 + row, w.col0 + c, w.col0 + w.cols, t);
        }
}

/* ---- the sum of the warps */

template <int T, int N> struct skinny_space {
    float part[SKINNY_WARPS][T * TILE_OUTS][N * 8 + 1];
    float squares[SKINNY_WARPS][N * 8];
};

template <int T, int N> __device__ static void share_sums(struct skinny_space<T, N> *sp, const struct sums<T, N> &s)
{
    int lane = lane_id(), g = lane / 4, t = lane % 4, warp = warp_id();
#pragma unroll
    for (int i = 0; i < T; i++)
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int k = 0; k < 4; k++)
                sp->part[warp][i * TILE_OUTS + g + k / 2 * 8][n * 8 + 2 * t + k % 2] = s.acc[i][n][k];
#pragma unroll
    for (int n = 0; n < N; n++) {
        float q = s.squares[n];
        q = q + __shfl_xor_sync(ALL_LANES, q, 1);
        q = q + __shfl_xor_sync(ALL_LANES, q, 2);
        if (t == 0)
            sp->squares[warp][n * 8 + g] = q;
    }
}

template <int T, int N>
__device__ static float row_scale(const struct skinny_job &j, const struct skinny_space<T, N> &sp, int row)
{
    if (j.in != SKINNY_NORM)
        return 1;
    float sum = 0;
    for (int w = 0; w < SKINNY_WARPS; w++)
        sum += sp.squares[w][row];
    return 1.0f / sqrtf(sum / (float)j.out[0].w.cols + j.eps);
}

template <int T, int N>
__device__ static void store_sums(const struct skinny_job &j, const struct skinny_space<T, N> &sp, struct tile_at f)
{
    const struct skinny_out &to = j.out[f.out];
    for (int i = (int)threadIdx.x; i < T * TILE_OUTS * j.rows; i += SKINNY_THREADS) {
        int o = i % (T * TILE_OUTS), row = i / (T * TILE_OUTS), at = f.first + o;
        float sum = 0;
        if (at >= to.w.rows)
            continue;
        for (int w = 0; w < SKINNY_WARPS; w++)
            sum += sp.part[w][o][row];
        sum *= row_scale<T, N>(j, sp, row);
        if (to.bias)
            sum += to.bias[at];
        float *y = to.y + (int64_t)row * to.ldy + at;
        *y = j.accumulate ? *y + sum : sum;
    }
}

template <enum family F, int T, int N>
__global__ void __launch_bounds__(SKINNY_THREADS, T == 1 ? 2 : 1)
    skinny_kernel(const __grid_constant__ struct skinny_job j)
{
    SHARED(space, struct skinny_space<T, N> space);
    struct tile_at f = find_tile<T>(j, (int)blockIdx.x);
    const struct weight_window &w = j.out[f.out].w;
    struct sums<T, N> s = {};
    struct slab_row<F> slab[T][2], next[T][2];
    int c = warp_id() * SLAB;
    griddepcontrol_launch_dependents();
    if (c < w.cols)
        load_tiles<F, T>(w, f.first, c, next);
    griddepcontrol_wait();
    for (; c < w.cols; c += SKINNY_WARPS * SLAB) {
#pragma unroll
        for (int i = 0; i < T; i++)
            slab[i][0] = next[i][0], slab[i][1] = next[i][1];
        if (c + SKINNY_WARPS * SLAB < w.cols)
            load_tiles<F, T>(w, f.first, c + SKINNY_WARPS * SLAB, next);
        multiply_slab<F, T, N>(j, slab, c, &s);
    }
    share_sums<T, N>(&space, s);
    __syncthreads();
    store_sums<T, N>(j, space, f);
}

/* ---- launching */

template <enum family F, int T, int N> static cudaError_t launch_tiles(cudaStream_t s, const struct skinny_job *j)
{
    int tiles = 0;
    for (int i = 0; i < j->n_out; i++)
        tiles += ceil_div(j->out[i].w.rows, TILE_OUTS * T);
    if (tiles == 0)
        return cudaSuccess;
    if (j->pdl)
        return launch_pdl(skinny_kernel<F, T, N>, dim3(tiles), dim3(SKINNY_THREADS), 0, s, *j);
    return launch(skinny_kernel<F, T, N>, dim3(tiles), dim3(SKINNY_THREADS), 0, s, *j);
}

/* Two tiles a CTA where there are enough outputs to fill the device anyway: then the inputs are read half as often. */
template <enum family F> static cudaError_t launch_rows(cudaStream_t s, const struct skinny_job *j)
{
    int outs = 0;
    for (int i = 0; i < j->n_out; i++)
        outs += j->out[i].w.rows;
    bool two = outs >= 8192 && j->rows > 2;
    if (j->rows <= 8)
        return two ? launch_tiles<F, 2, 1>(s, j) : launch_tiles<F, 1, 1>(s, j);
    return two ? launch_tiles<F, 2, 2>(s, j) : launch_tiles<F, 1, 2>(s, j);
}

cudaError_t launch_skinny(cudaStream_t s, const struct skinny_job *j)
{
    switch (j->out[0].w.p.family) {
    case FAM_F32:
        break;
    case FAM_F16:
        return launch_rows<FAM_F16>(s, j);
    case FAM_BF16:
        return launch_rows<FAM_BF16>(s, j);
    case FAM_F8:
        return launch_rows<FAM_F8>(s, j);
    case FAM_U4:
        return launch_rows<FAM_U4>(s, j);
    case FAM_U4M:
        return launch_rows<FAM_U4M>(s, j);
    case FAM_U5:
        return launch_rows<FAM_U5>(s, j);
    case FAM_U5M:
        return launch_rows<FAM_U5M>(s, j);
    case FAM_S8:
        return launch_rows<FAM_S8>(s, j);
    case FAM_K4:
        return launch_rows<FAM_K4>(s, j);
    case FAM_K5:
        return launch_rows<FAM_K5>(s, j);
    case FAM_K6:
        return launch_rows<FAM_K6>(s, j);
    }
    return cudaErrorInvalidValue;
}
