/* Linear layers for up to 8 rows and weights of 16 bits, where reading the weights is all the work (smaller ones:
 * lean.cu): tensor cores multiply 16 outputs by 8 rows at a time (slab.h). A CTA takes one tile of 16 outputs after the
 * other (of two outputs that are gated, silu(gate) * up, the same 16 of both in turn); its eight warps share the
 * columns, 128 at a time, and their sums are added in order. The next slabs are on their way all the time, across the
 * ends of tiles: the memory does not wait for sums. They come by asynchronous copies, also while the kernel before
 * still runs. Bound by memory bandwidth: measured on an H100, with 1 to 8 rows of a large bf16 matrix 0.90 to 0.94 of
 * reading it. The bits do not depend on the number of rows or of CTAs. */
#include "kernels/cuda/slab.h"

enum { SKINNY_WARPS = SLAB_THREADS / WARP, SKINNY_THREADS = SLAB_THREADS, STEP = SKINNY_WARPS * SLAB };
/* What fits two CTAs of a multiprocessor: slabs of a warp that are on their way, and inputs. */
enum { STAGES = 2, INPUT_BYTES = 37 << 10 };
template <enum family F> using skinny_ring = struct slab_ring<F, STAGES>;
template <enum family F> static constexpr int ring_bytes = (int)sizeof(skinny_ring<F>);

/* ---- which tiles */

/* Units [at, end) in steps of the grid are a CTA's: a unit is a tile, or the two of gated outputs. */
struct skinny_units {
    int at, end, step;
};

__device__ static inline struct tile_at tile_of(const struct skinny_job &j, int unit, int which)
{
    return j.gated ? (struct tile_at){which, unit * TILE_OUTS} : find_tile(j, unit, TILE_OUTS);
}

/* Where a warp's next slab is. */
struct skinny_cursor {
    struct skinny_units units;
    struct tile_at tile;
    int which, c;
};

__device__ static inline struct skinny_cursor cursor_at(const struct skinny_job &j, const struct skinny_units &units)
{
    struct skinny_cursor k = {units, {0, 0}, 0, warp_id() * SLAB};
    if (k.c >= j.out[0].w.cols) /* this warp has no columns */
        k.units.at = k.units.end;
    if (k.units.at < k.units.end)
        k.tile = tile_of(j, k.units.at, 0);
    return k;
}

__device__ static inline void cursor_next(const struct skinny_job &j, struct skinny_cursor *k)
{
    k->c += STEP;
    if (k->c < j.out[0].w.cols)
        return;
    k->c = warp_id() * SLAB;
    k->which = j.gated ? k->which ^ 1 : 0;
    k->units.at += k->which ? 0 : k->units.step;
    if (k->units.at < k->units.end)
        k->tile = tile_of(j, k->units.at, k->which);
}

/* ---- the product */

/* What a lane keeps of a tile, and the squares of the row it saw. */
struct sums {
    float acc[4], squares;
};

/* x: of each block of the slab. */
template <enum family F>
__device__ static void multiply_slab(struct slab_row<F> slab[2], const uint4 made[SLAB_BLOCKS], struct sums *s)
{
#pragma unroll
    for (int u = 0; u < SLAB_BLOCKS; u++) {
        const uint32_t x[4] = {made[u].x, made[u].y, made[u].z, made[u].w};
        const float sum[2] = {};
        struct block_weights<F> b;
        prepare_block<F>(slab, u, &b);
        multiply_block<F>(b, x, sum, s->acc);
    }
}

/* ---- inputs */

/* Where they fit they are made once for all tiles of a CTA: of each block and row four uint4, and the squares of each.
 * Else (x NULL) each slab's are read and made when it is multiplied: its weights are there long before. */
struct skinny_inputs {
    uint4 *x;
    float *squares;
    float own; /* squares of what this lane would have made */
};

__host__ __device__ static inline int blocks_of(const struct skinny_job &j)
{
    return (j.out[0].w.cols + SLAB - 1) / SLAB * SLAB_BLOCKS;
}

template <enum family F> __device__ static void make_inputs(const struct skinny_job &j, struct skinny_inputs *in)
{
    int n = blocks_of(j) * j.rows * 4, g = lane_id() / 4;
#pragma unroll 4
    for (int i = (int)threadIdx.x; i < n; i += SKINNY_THREADS) {
        int c = i / 4 / j.rows * BLOCK_COLS;
        float squares = 0;
        in->x[i] = make_block<F>(j, load_block<F>(j, i / 4 % j.rows, c), load_gains<F>(j, c), c, &squares);
        in->squares[i] = squares;
    }
    __syncthreads();
    in->own = 0;
    for (int c = warp_id() * SLAB; c < j.out[0].w.cols && g < j.rows; c += STEP)
        for (int u = 0; u < SLAB_BLOCKS; u++)
            in->own += in->squares[(c / BLOCK_COLS + u) * j.rows * 4 + g * 4 + lane_id() % 4];
}

/* A lane's inputs of the slab at column c. */
template <enum family F>
__device__ static inline void find_inputs(const struct skinny_job &j, const struct skinny_inputs &in, int c,
                                          uint4 made[SLAB_BLOCKS], float *squares)
{
    int g = lane_id() / 4, t = lane_id() % 4;
    if (in.x) {
#pragma unroll
        for (int u = 0; u < SLAB_BLOCKS; u++)
            made[u] = g < j.rows ? in.x[((c / BLOCK_COLS + u) * j.rows + g) * 4 + t] : make_uint4(0, 0, 0, 0);
        return;
    }
    struct raw_input raw[SLAB_BLOCKS], gains[SLAB_BLOCKS];
#pragma unroll
    for (int u = 0; u < SLAB_BLOCKS; u++) {
        raw[u] = load_block<F>(j, g, c + u * BLOCK_COLS);
        gains[u] = load_gains<F>(j, c + u * BLOCK_COLS);
    }
#pragma unroll
    for (int u = 0; u < SLAB_BLOCKS; u++)
        made[u] = make_block<F>(j, raw[u], gains[u], c + u * BLOCK_COLS, squares);
}

/* ---- the sum of the warps */

/* Of a tile and of the one before, which others may still be storing; of a unit's two gated ones. */
struct skinny_space {
    float part[2][SKINNY_WARPS][TILE_OUTS][SKINNY_ROWS + 1];
    float squares[2][SKINNY_WARPS][SKINNY_ROWS];
};

__device__ static void share_sums(struct skinny_space *sp, int side, const struct sums &s)
{
    int lane = lane_id(), g = lane / 4, t = lane % 4, warp = warp_id();
    float q = s.squares;
#pragma unroll
    for (int k = 0; k < 4; k++)
        sp->part[side][warp][g + k / 2 * 8][2 * t + k % 2] = s.acc[k];
    q = q + __shfl_xor_sync(ALL_LANES, q, 1);
    q = q + __shfl_xor_sync(ALL_LANES, q, 2);
    if (t == 0)
        sp->squares[side][warp][g] = q;
}

__device__ static float row_scale(const struct skinny_job &j, const struct skinny_space &sp, int side, int row)
{
    if (j.in != SKINNY_NORM)
        return 1;
    float sum = 0;
    for (int w = 0; w < SKINNY_WARPS; w++)
        sum += sp.squares[side][w][row];
    return 1.0f / sqrtf(sum / (float)j.out[0].w.cols + j.eps);
}

/* The sum of all warps for output o of a tile. */
__device__ static float add_parts(const float (*part)[TILE_OUTS][SKINNY_ROWS + 1], int o, int row, float scale)
{
    float sum = 0;
    for (int w = 0; w < SKINNY_WARPS; w++)
        sum += part[w][o][row];
    return sum * scale;
}

/* A unit's outputs; those of a tile by other warps than those of the tile before, so that who waits for what it adds to
 * holds up nobody. */
__device__ static void store_sums(const struct skinny_job &j, const struct skinny_space &sp, int side, struct tile_at f,
                                  int turn)
{
    int i = ((int)threadIdx.x + turn % 2 * (SKINNY_THREADS / 2)) % SKINNY_THREADS, o = i % TILE_OUTS,
        row = i / TILE_OUTS, at = f.first + o;
    const struct skinny_out &to = j.out[f.out];
    if (row >= j.rows || at >= to.w.rows)
        return;
    float scale = row_scale(j, sp, side, row), sum = with_bias(to, at, add_parts(sp.part[side], o, row, scale));
    if (j.gated)
        sum = silu(sum) * with_bias(j.out[1], at, add_parts(sp.part[side ^ 1], o, row, scale));
    store_output(j, to, row, at, sum);
}
static_assert(TILE_OUTS * SKINNY_ROWS <= SKINNY_THREADS / 2, "each output of a tile has a thread of half a CTA");

/* ---- a CTA */

/* What a warp has under way, and where the slab behind it is. */
template <enum family F> struct skinny_stream {
    skinny_ring<F> *ring;
    int stage;
    struct skinny_cursor fetch;
};

/* Into a stage that is free. */
template <enum family F>
__device__ static inline void fetch_next(const struct skinny_job &j, struct skinny_stream<F> *s, int stage)
{
    if (s->fetch.units.at < s->fetch.units.end) {
        fetch_slab<F>(s->ring, stage, j.out[s->fetch.tile.out].w, s->fetch.tile.first, s->fetch.c);
        cursor_next(j, &s->fetch);
    }
    cp_async_commit();
}

template <enum family F>
__device__ static void multiply_tile(const struct skinny_job &j, struct skinny_stream<F> *s,
                                     const struct skinny_inputs &in, struct sums *sum)
{
    struct slab_row<F> slab[2];
    for (int c = warp_id() * SLAB; c < j.out[0].w.cols; c += STEP) {
        uint4 made[SLAB_BLOCKS];
        find_inputs<F>(j, in, c, made, &sum->squares);
        cp_async_wait<STAGES - 1>();
        take_slab<F>(*s->ring, s->stage, slab);
        multiply_slab<F>(slab, made, sum);
        fetch_next<F>(j, s, s->stage);
        s->stage = s->stage + 1 == STAGES ? 0 : s->stage + 1;
    }
}

/* A CTA's units. */
template <enum family F>
__device__ static void multiply_units(const struct skinny_job &j, struct skinny_units units, skinny_ring<F> *ring,
                                      struct skinny_inputs in, struct skinny_space *sp)
{
    int turn = 0;
    struct skinny_stream<F> s = {
        ring, 0, cursor_at(j, units)
    };
    for (int i = 0; i < STAGES; i++)
        fetch_next<F>(j, &s, i);
    griddepcontrol_wait();
    if (in.x && units.at < units.end)
        make_inputs<F>(j, &in);
    for (; units.at < units.end; units.at += units.step) {
        for (int which = 0; which <= (int)j.gated; which++, turn++) {
            struct sums sum = {{}, in.own};
            multiply_tile<F>(j, &s, in, &sum);
            share_sums(sp, turn % 2, sum);
        }
        __syncthreads();
        store_sums(j, *sp, j.gated ? 0 : (turn - 1) % 2, tile_of(j, units.at, 0), turn);
        if (j.gated)
            __syncthreads(); /* both sides are read */
    }
}

/* kept: inputs are made once. */
template <enum family F>
__global__ void __launch_bounds__(SKINNY_THREADS, SKINNY_CTAS)
    skinny_kernel(const __grid_constant__ struct skinny_job j, int units, bool kept)
{
    SHARED(space, struct skinny_space space);
    SHARED_BYTES(shared);
    struct skinny_inputs in = {kept ? (uint4 *)(shared + ring_bytes<F>) : NULL, NULL, 0};
    in.squares = (float *)(in.x + blocks_of(j) * j.rows * 4);
    griddepcontrol_launch_dependents();
    multiply_units<F>(j, {(int)blockIdx.x, units, (int)gridDim.x}, (skinny_ring<F> *)shared, in, &space);
}

/* ---- launching */

template <enum family F> static cudaError_t launch_units(cudaStream_t s, const struct skinny_job *j)
{
    auto kernel = skinny_kernel<F>;
    int units = j->gated ? ceil_div(j->out[0].w.rows, TILE_OUTS) : tiles_of(j, TILE_OUTS);
    int inputs = blocks_of(*j) * j->rows * 4 * (int)(sizeof(uint4) + sizeof(float));
    int most = ring_bytes<F> + INPUT_BYTES, room = j->shared - (int)sizeof(struct skinny_space);
    most = most < room ? most : room;
    bool kept = ring_bytes<F> + inputs <= most;
    if (units == 0)
        return cudaSuccess;
    dim3 grid(units < j->places ? units : j->places);
    size_t bytes = (size_t)(ring_bytes<F> + (kept ? inputs : 0));
    cudaError_t rc = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most);
    if (rc)
        return rc;
    if (j->pdl)
        return launch_pdl(kernel, grid, dim3(SKINNY_THREADS), bytes, s, *j, units, kept);
    return launch(kernel, grid, dim3(SKINNY_THREADS), bytes, s, *j, units, kept);
}

cudaError_t launch_skinny(cudaStream_t s, const struct skinny_job *j)
{
    enum family f = j->out[0].w.p.family;
    return f == FAM_F16    ? launch_units<FAM_F16>(s, j)
           : f == FAM_BF16 ? launch_units<FAM_BF16>(s, j)
                           : launch_lean(s, j);
}
