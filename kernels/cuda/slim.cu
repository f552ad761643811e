/* Linear layers for up to 64 rows (decodes of so many sequences), where every CTA of skinny.cu or lean.cu would make
 * all inputs, and not have room for them: here its eight warps have 16 outputs each and share the inputs, which are
 * made once for all of them, a slab of 128 columns at a time, while the slab before is multiplied. Too few outputs to
 * fill the device: a CTA has only some of the slabs, and the last one of a tile to finish adds up what the others have
 * left, in order. Of two gated outputs four warps have the one and four the same outputs of the other. It never begins
 * early: a multiprocessor divides L1 and shared memory anew only when nothing runs on it, and beside attention's shared
 * memory so little L1 would be left that fewer loads are under way (a step of an H100 took a third longer). Measured
 * there, of reading the weights: 0.86 with 16 rows and 0.82 with 32 of a large bf16 matrix, 0.65 to 0.75 of fp8 and 8
 * rows, half of it and less with 64 rows. */
#include "kernels/cuda/slab.h"

enum {
    SLIM_WARPS = SLAB_THREADS / WARP,
    SLIM_THREADS = SLAB_THREADS,
    SLIM_OUTS = SLIM_WARPS * TILE_OUTS,
    LEAST_SLABS = 4 /* of a part: fewer are not worth the sum */
};

/* N: eights of rows. */
template <int N> struct slim_space {
    uint4 x[2][SLAB_BLOCKS][N][WARP]; /* inputs of two slabs, as each lane wants them */
    float sum[2][SLAB_BLOCKS][N * 8]; /* of the blocks' inputs, where weights have a min */
    float squares[SLIM_WARPS][8], scale[N * 8];
    bool last;
};

/* What a lane keeps: its warp's outputs of all rows; squares of the inputs that it has made, all of one row. */
template <int N> struct slim_sums {
    float acc[N][4], squares;
};

/* What a CTA leaves of a part. */
template <int N> struct slim_part {
    float acc[SLIM_WARPS][N * 4][WARP], squares[SLIM_WARPS][8];
};

/* ---- inputs */

/* A warp makes the inputs of eight rows, warp % N, in each block that is its own: blocks u(0), u(1), ... */
template <int N> struct slim_share {
    static constexpr int UNITS = (SLAB_BLOCKS * N + SLIM_WARPS - 1) / SLIM_WARPS;
    __device__ static bool any() { return warp_id() < SLAB_BLOCKS * N; } /* one unit: not for every warp */
    __device__ static int block(int unit) { return (warp_id() + unit * SLIM_WARPS) / N; }
    __device__ static int rows() { return warp_id() % N; }
};

template <enum family F, int N>
__device__ static void load_inputs(const struct skinny_job &j, int c, struct raw_input *raw)
{
    int row = slim_share<N>::rows() * 8 + lane_id() / 4;
#pragma unroll
    for (int i = 0; i < slim_share<N>::UNITS; i++)
        raw[i] = load_block<F>(j, row, c + slim_share<N>::block(i) * BLOCK_COLS);
}

/* The sum of a row's inputs of a block, from the lane's eight, as rounded. */
__device__ static float add_inputs(const uint4 &x)
{
    float sum = 0;
#pragma unroll
    for (int k = 0; k < 4; k++) {
        uint32_t w = word_of(x, k);
        sum = sum + (bf16_bits((uint16_t)w) + bf16_bits((uint16_t)(w >> 16)));
    }
    sum = sum + __shfl_xor_sync(ALL_LANES, sum, 1);
    return sum + __shfl_xor_sync(ALL_LANES, sum, 2);
}

template <enum family F, int N>
__device__ static void make_inputs(const struct skinny_job &j, int c, const struct raw_input *raw, int side,
                                   struct slim_space<N> *sp, float *squares)
{
    int n = slim_share<N>::rows(), lane = lane_id();
#pragma unroll
    for (int i = 0; i < slim_share<N>::UNITS; i++) {
        int u = slim_share<N>::block(i);
        uint4 x = make_block<F>(j, raw[i], load_gains<F>(j, c + u * BLOCK_COLS), c + u * BLOCK_COLS, squares);
        sp->x[side][u][n][lane] = x;
        if constexpr (has_min(F)) {
            float sum = add_inputs(x);
            if (lane % 4 == 0)
                sp->sum[side][u][n * 8 + lane / 4] = sum;
        }
    }
}

/* ---- the product */

template <enum family F, int N>
__device__ static void multiply_slab(const struct slim_space<N> &sp, int side, struct slab_row<F> rows[2],
                                     float acc[N][4])
{
    int lane = lane_id(), t = lane % 4;
    arrange_slab<F>(&rows[0], t);
    arrange_slab<F>(&rows[1], t);
#pragma unroll
    for (int u = 0; u < SLAB_BLOCKS; u++) {
        struct block_weights<F> b;
        prepare_block<F>(rows, u, &b);
#pragma unroll
        for (int n = 0; n < N; n++) {
            uint4 v = sp.x[side][u][n][lane];
            const uint32_t x[4] = {v.x, v.y, v.z, v.w};
            float sum[2] = {};
            if constexpr (has_min(F)) {
                sum[0] = sp.sum[side][u][n * 8 + 2 * t];
                sum[1] = sp.sum[side][u][n * 8 + 2 * t + 1];
            }
            multiply_block<F>(b, x, sum, acc[n]);
        }
    }
}

/* The slabs of a part, one CTA's. */
struct slim_slabs {
    int first, end;
};

__device__ static struct slim_slabs find_slabs(int cols, int n_parts)
{
    int all = (cols + SLAB - 1) / SLAB, each = (all + n_parts - 1) / n_parts, first = each * (int)blockIdx.y;
    return {first, first + each < all ? first + each : all};
}

template <enum family F, int N>
__device__ static void multiply_part(const struct skinny_job &j, struct tile_at f, struct slim_slabs slabs,
                                     struct slim_space<N> *sp, struct slim_sums<N> *s)
{
    constexpr bool ALONE = N > 4; /* on its SM; else another CTA works while this one waits for inputs */
    const struct weight_window &w = j.out[f.out].w;
    bool live = f.first < w.rows, own = slim_share<N>::any();
    constexpr int AHEAD =
        N <= 2 && !is_float(F) ? 2 : 1; /* slabs that are on their way: small ones need more of them */
    struct slab_row<F> rows[2] = {}, next[AHEAD][2] = {};
    struct raw_input raw[slim_share<N>::UNITS];
#pragma unroll
    for (int i = 0; i < AHEAD; i++)
        if (live && slabs.first + i < slabs.end)
            load_tile<F>(w, f.first, (slabs.first + i) * SLAB, next[i]);
    if (own) {
        load_inputs<F, N>(j, slabs.first * SLAB, raw);
        make_inputs<F, N>(j, slabs.first * SLAB, raw, 0, sp, &s->squares);
    }
    __syncthreads();
    int side = 0;
    for (int at = slabs.first; at < slabs.end; at++, side ^= 1) {
        bool more = at + 1 < slabs.end;
        int c = (at + 1) * SLAB;
        rows[0] = next[0][0], rows[1] = next[0][1];
#pragma unroll
        for (int i = 1; i < AHEAD; i++)
            next[i - 1][0] = next[i][0], next[i - 1][1] = next[i][1];
        if (at + AHEAD < slabs.end && live)
            load_tile<F>(w, f.first, (at + AHEAD) * SLAB, next[AHEAD - 1]);
        if (more && ALONE && own)
            load_inputs<F, N>(j, c, raw);
        if (live)
            multiply_slab<F, N>(*sp, side, rows, s->acc);
        if (more && !ALONE && own)
            load_inputs<F, N>(j, c, raw);
        if (more && own)
            make_inputs<F, N>(j, c, raw, side ^ 1, sp, &s->squares);
        __syncthreads();
    }
}

/* ---- parts */

/* Leaves the CTA's sums where the others are. True: it is the last, and has the sums of all now. */
template <int N>
__device__ static bool add_parts(const struct slim_room &r, struct slim_space<N> *sp, struct slim_sums<N> *s)
{
    struct slim_part<N> *parts = (struct slim_part<N> *)r.partial + (int64_t)blockIdx.x * r.n_parts;
    int lane = lane_id(), warp = warp_id();
#pragma unroll
    for (int i = 0; i < N * 4; i++)
        parts[blockIdx.y].acc[warp][i][lane] = s->acc[i / 4][i % 4];
    if (lane < 8)
        parts[blockIdx.y].squares[warp][lane] = sp->squares[warp][lane];
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0)
        sp->last = atomicAdd(&r.arrived[blockIdx.x], 1u) == (uint32_t)r.n_parts - 1;
    __syncthreads();
    __threadfence();
    if (!sp->last)
        return false;
    float squares = 0;
    *s = {};
    for (int p = 0; p < r.n_parts; p++) {
#pragma unroll
        for (int i = 0; i < N * 4; i++)
            s->acc[i / 4][i % 4] = s->acc[i / 4][i % 4] + parts[p].acc[warp][i][lane];
        squares = squares + parts[p].squares[warp][lane % 8];
    }
    if (lane < 8)
        sp->squares[warp][lane] = squares;
    if (threadIdx.x == 0)
        r.arrived[blockIdx.x] = 0;
    return true;
}

/* ---- the end */

/* 1 / rms of each row: the warps that made its inputs have its squares. */
template <int N> __device__ static void make_scales(const struct skinny_job &j, struct slim_space<N> *sp)
{
    int row = (int)threadIdx.x;
    if (row >= N * 8)
        return;
    float sum = 0;
    for (int w = row / 8; w < SLIM_WARPS; w += N) /* 0 where a warp has made none */
        sum = sum + sp->squares[w][row % 8];
    sp->scale[row] = j.in == SKINNY_NORM ? 1.0f / sqrtf(sum / (float)j.out[0].w.cols + j.eps) : 1.0f;
}

/* Results go through the inputs' place, so that neighbours in a row are written together. */
template <int N>
__device__ static void store_sums(const struct skinny_job &j, struct tile_at f, struct slim_space<N> *sp,
                                  const struct slim_sums<N> &s)
{
    static_assert(sizeof sp->x >= sizeof(float) * N * 8 * SLIM_OUTS, "results lie where inputs did");
    float *to = (float *)sp->x;
    int g = lane_id() / 4, t = lane_id() % 4, outs = j.gated ? SLIM_OUTS / 2 : SLIM_OUTS;
#pragma unroll
    for (int i = 0; i < N * 4; i++)
        to[(i / 4 * 8 + 2 * t + i % 2) * SLIM_OUTS + warp_id() * TILE_OUTS + g + i % 4 / 2 * 8] = s.acc[i / 4][i % 4];
    __syncthreads();
    const struct skinny_out &first = j.out[f.out];
    for (int i = (int)threadIdx.x; i < outs * j.rows; i += SLIM_THREADS) {
        int row = i / outs, o = i % outs, at = f.first + o;
        const float *sums = &to[row * SLIM_OUTS + o];
        if (at >= first.w.rows)
            continue;
        float value = with_bias(first, at, sums[0] * sp->scale[row]);
        if (j.gated)
            value = silu(value) * with_bias(j.out[1], at, sums[SLIM_OUTS / 2] * sp->scale[row]);
        store_output(j, first, row, at, value);
    }
}

/* The outputs of the CTA, and which of them are this warp's. */
__device__ static struct tile_at find_outputs(const struct skinny_job &j)
{
    return j.gated ? (struct tile_at){0, (int)blockIdx.x * SLIM_OUTS / 2} : find_tile(j, (int)blockIdx.x, SLIM_OUTS);
}

__device__ static struct tile_at find_own(const struct skinny_job &j, struct tile_at f)
{
    int warp = warp_id(), half = SLIM_WARPS / 2;
    return j.gated ? (struct tile_at){warp / half, f.first + warp % half * TILE_OUTS}
                   : (struct tile_at){f.out, f.first + warp * TILE_OUTS};
}

/* F: the family of the first outputs, G: of the last; a CTA has outputs of one. */
template <enum family F, enum family G, int N>
__global__ void __launch_bounds__(SLIM_THREADS, N <= 4 ? 2 : 1)
    slim_kernel(const __grid_constant__ struct skinny_job j, const __grid_constant__ struct slim_room r)
{
    SHARED(sp, struct slim_space<N> sp);
    struct tile_at f = find_outputs(j);
    struct slim_sums<N> s = {};
    griddepcontrol_launch_dependents();
    if (F != G && j.out[f.out].w.p.family == G)
        multiply_part<G, N>(j, find_own(j, f), find_slabs(j.out[0].w.cols, r.n_parts), &sp, &s);
    else
        multiply_part<F, N>(j, find_own(j, f), find_slabs(j.out[0].w.cols, r.n_parts), &sp, &s);
    s.squares = s.squares + __shfl_xor_sync(ALL_LANES, s.squares, 1);
    s.squares = s.squares + __shfl_xor_sync(ALL_LANES, s.squares, 2);
    if (lane_id() % 4 == 0)
        sp.squares[warp_id()][lane_id() / 4] = s.squares;
    __syncthreads();
    if (r.n_parts > 1 && !add_parts<N>(r, &sp, &s))
        return;
    __syncthreads();
    make_scales<N>(j, &sp);
    __syncthreads();
    store_sums<N>(j, f, &sp, s);
}

/* ---- launching */

/* Eights of rows that a kernel is made for. */
static int eights_of(const struct skinny_job *j)
{
    return j->rows <= 8 ? 1 : j->rows <= 16 ? 2 : j->rows <= 32 ? 4 : 8;
}

void slim_cut(const struct skinny_job *j, int n_sms, struct slim_room *out)
{
    int outs = j->gated ? SLIM_OUTS / 2 : SLIM_OUTS, ctas = n_sms * (eights_of(j) <= 4 ? 2 : 1);
    int slabs = ceil_div(j->out[0].w.cols, SLAB), most = slabs / LEAST_SLABS > 1 ? slabs / LEAST_SLABS : 1;
    out->n_tiles = j->gated ? ceil_div(j->out[0].w.rows, outs) : tiles_of(j, outs);
    int parts = out->n_tiles > 0 && ctas > out->n_tiles ? ctas / out->n_tiles : 1;
    int each = ceil_div(slabs, parts < most ? parts : most);
    out->n_parts = ceil_div(slabs, each); /* none is empty */
}

void slim_needs(const struct skinny_job *j, int n_sms, size_t *floats, size_t *counters)
{
    const size_t one = sizeof(struct slim_part<1>), more = sizeof(struct slim_part<2>) - one; /* of eight rows more */
    *floats = *counters = 0;
    for (int eights = 1; eights <= SLIM_ROWS / 8; eights *= 2) {
        struct skinny_job of = *j;
        struct slim_room r;
        of.rows = eights * 8;
        slim_cut(&of, n_sms, &r);
        size_t parts = r.n_parts > 1 ? (size_t)r.n_tiles * (size_t)r.n_parts : 0;
        size_t n = parts * ((one + (size_t)(eights - 1) * more) / sizeof(float));
        *floats = n > *floats ? n : *floats;
        *counters = parts && (size_t)r.n_tiles > *counters ? (size_t)r.n_tiles : *counters;
    }
}

template <typename W, int N>
static cudaError_t launch_kernel(cudaStream_t s, const struct skinny_job *j, const struct slim_room *r)
{
    dim3 grid((unsigned)r->n_tiles, (unsigned)r->n_parts);
    return launch(slim_kernel<W::first, W::last, N>, grid, dim3(SLIM_THREADS), 0, s, *j, *r);
}

template <typename W>
static cudaError_t launch_rows(cudaStream_t s, const struct skinny_job *j, const struct slim_room *r)
{
    if (r->n_tiles == 0)
        return cudaSuccess;
    switch (eights_of(j)) {
    case 1:
        return launch_kernel<W, 1>(s, j, r);
    case 2:
        return launch_kernel<W, 2>(s, j, r);
    case 4:
        return launch_kernel<W, 4>(s, j, r);
    default:
        return launch_kernel<W, 8>(s, j, r);
    }
}

cudaError_t launch_slim(cudaStream_t s, const struct skinny_job *j, const struct slim_room *r)
{
    return by_families(j, [&](auto of) { return launch_rows<decltype(of)>(s, j, r); });
}
