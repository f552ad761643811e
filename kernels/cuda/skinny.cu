/* Linear layers for up to 8 rows, where reading the weights is all the work: tensor cores multiply 16 outputs by 8 rows
 * at a time (slab.h). A CTA has 16 T outputs; its eight warps share the columns, 128 at a time, and their sums are
 * added in order. Of two outputs that are gated (silu(gate) * up) it has the same 16 of both. Bound by memory
 * bandwidth. The bits do not depend on the number of rows. */
#include "kernels/cuda/slab.h"

enum { SKINNY_WARPS = 8, SKINNY_THREADS = SKINNY_WARPS * WARP };

/* ---- the product */

/* What a lane keeps: sums of T tiles, squares of the row it saw. */
template <int T> struct sums {
    float acc[T][4], squares;
};

/* The sums of the block's inputs x, for the two columns of the lane's results. */
__device__ static void sum_inputs(const uint32_t x[4], float sum[2])
{
    const uint32_t ones[4] = {0x3f803f80u, 0x3f803f80u, 0x3f803f80u, 0x3f803f80u};
    float c[4] = {};
    mma_bf16(c, ones, &x[0]);
    mma_bf16(c, ones, &x[2]);
    sum[0] = c[0];
    sum[1] = c[1];
}

template <enum family F, int T>
__device__ static void multiply_slab(const struct skinny_job &j, struct slab_row<F> slab[T][2], int c,
                                     struct sums<T> *s)
{
    int g = lane_id() / 4, t = lane_id() % 4;
#pragma unroll
    for (int i = 0; i < T; i++) {
        arrange_slab<F>(&slab[i][0], t);
        arrange_slab<F>(&slab[i][1], t);
    }
#pragma unroll
    for (int u = 0; u < SLAB_BLOCKS; u++) {
        int at = c + u * BLOCK_COLS;
        uint4 made = make_block<F>(j, load_block<F>(j, g, at), at, &s->squares);
        const uint32_t x[4] = {made.x, made.y, made.z, made.w};
        float sum[2] = {};
        if constexpr (has_min(F))
            sum_inputs(x, sum);
#pragma unroll
        for (int i = 0; i < T; i++) {
            struct block_weights<F> b;
            prepare_block<F>(slab[i], u, &b);
            multiply_block<F>(b, x, sum, s->acc[i]);
        }
    }
}

/* The tiles of a CTA: neighbours, or of each of two gated outputs the same. */
template <int T> struct tiles_at {
    struct tile_at tile[T];
};

template <int T> __device__ static struct tiles_at<T> find_tiles(const struct skinny_job &j, int at) {
    struct tiles_at<T> f;
    struct tile_at first = find_tile(j, at, j.gated ? TILE_OUTS : TILE_OUTS *T);
#pragma unroll
    for (int i = 0; i < T; i++)
        f.tile[i] =
            j.gated ? (struct tile_at){i, first.first} : (struct tile_at){first.out, first.first + i *TILE_OUTS};
    return f;
}

template <enum family F, int T>
__device__ static void load_tiles(const struct skinny_job &j, const struct tiles_at<T> &f, int c,
                                  struct slab_row<F> slab[T][2])
{
#pragma unroll
    for (int i = 0; i < T; i++)
        load_tile<F>(j.out[f.tile[i].out].w, f.tile[i].first, c, slab[i]);
}

/* ---- the sum of the warps */

template <int T> struct skinny_space {
    float part[SKINNY_WARPS][T * TILE_OUTS][SKINNY_ROWS + 1];
    float squares[SKINNY_WARPS][SKINNY_ROWS];
};

template <int T> __device__ static void share_sums(struct skinny_space<T> *sp, const struct sums<T> &s)
{
    int lane = lane_id(), g = lane / 4, t = lane % 4, warp = warp_id();
    float q = s.squares;
#pragma unroll
    for (int i = 0; i < T; i++)
#pragma unroll
        for (int k = 0; k < 4; k++)
            sp->part[warp][i * TILE_OUTS + g + k / 2 * 8][2 * t + k % 2] = s.acc[i][k];
    q = q + __shfl_xor_sync(ALL_LANES, q, 1);
    q = q + __shfl_xor_sync(ALL_LANES, q, 2);
    if (t == 0)
        sp->squares[warp][g] = q;
}

template <int T>
__device__ static float row_scale(const struct skinny_job &j, const struct skinny_space<T> &sp, int row)
{
    if (j.in != SKINNY_NORM)
        return 1;
    float sum = 0;
    for (int w = 0; w < SKINNY_WARPS; w++)
        sum += sp.squares[w][row];
    return 1.0f / sqrtf(sum / (float)j.out[0].w.cols + j.eps);
}

/* The sum of all warps for output o of the CTA's. */
template <int T> __device__ static float add_parts(const struct skinny_space<T> &sp, int o, int row, float scale)
{
    float sum = 0;
    for (int w = 0; w < SKINNY_WARPS; w++)
        sum += sp.part[w][o][row];
    return sum * scale;
}

template <int T>
__device__ static void store_sums(const struct skinny_job &j, const struct skinny_space<T> &sp,
                                  const struct tiles_at<T> &f)
{
    int outs = j.gated ? TILE_OUTS : T * TILE_OUTS;
    for (int i = (int)threadIdx.x; i < outs * j.rows; i += SKINNY_THREADS) {
        int o = i % outs, row = i / outs, at = f.tile[0].first + o;
        const struct skinny_out &to = j.out[f.tile[0].out];
        if (at >= to.w.rows)
            continue;
        float scale = row_scale<T>(j, sp, row), sum = with_bias(to, at, add_parts<T>(sp, o, row, scale));
        if (j.gated)
            sum = silu(sum) * with_bias(j.out[1], at, add_parts<T>(sp, TILE_OUTS + o, row, scale));
        store_output(j, to, row, at, sum);
    }
}

template <enum family F, int T>
__device__ static void multiply_tiles(const struct skinny_job &j, const struct tiles_at<T> &f, struct sums<T> *s)
{
    struct slab_row<F> slab[T][2], next[T][2];
    int c = warp_id() * SLAB, cols = j.out[0].w.cols;
    if (c < cols)
        load_tiles<F, T>(j, f, c, next);
    griddepcontrol_wait();
    for (; c < cols; c += SKINNY_WARPS * SLAB) {
#pragma unroll
        for (int i = 0; i < T; i++)
            slab[i][0] = next[i][0], slab[i][1] = next[i][1];
        if (c + SKINNY_WARPS * SLAB < cols)
            load_tiles<F, T>(j, f, c + SKINNY_WARPS * SLAB, next);
        multiply_slab<F, T>(j, slab, c, s);
    }
}

/* F: the family of the first outputs, G: of the last; a CTA has outputs of one. */
template <enum family F, enum family G, int T>
__global__ void __launch_bounds__(SKINNY_THREADS, T == 1 ? 2 : 1)
    skinny_kernel(const __grid_constant__ struct skinny_job j)
{
    SHARED(space, struct skinny_space<T> space);
    struct tiles_at<T> f = find_tiles<T>(j, (int)blockIdx.x);
    struct sums<T> s = {};
    griddepcontrol_launch_dependents();
    if (F != G && j.out[f.tile[0].out].w.p.family == G)
        multiply_tiles<G, T>(j, f, &s);
    else
        multiply_tiles<F, T>(j, f, &s);
    share_sums<T>(&space, s);
    __syncthreads();
    store_sums<T>(j, space, f);
}

/* ---- launching */

template <typename W, int T> static cudaError_t launch_tiles(cudaStream_t s, const struct skinny_job *j)
{
    int tiles = j->gated ? ceil_div(j->out[0].w.rows, TILE_OUTS) : tiles_of(j, TILE_OUTS * T);
    if (tiles == 0)
        return cudaSuccess;
    if (j->pdl)
        return launch_pdl(skinny_kernel<W::first, W::last, T>, dim3(tiles), dim3(SKINNY_THREADS), 0, s, *j);
    return launch(skinny_kernel<W::first, W::last, T>, dim3(tiles), dim3(SKINNY_THREADS), 0, s, *j);
}

/* Two tiles a CTA where there are enough outputs to fill the device anyway: then the inputs are read half as often. */
template <typename W> static cudaError_t launch_rows(cudaStream_t s, const struct skinny_job *j)
{
    int outs = 0;
    for (int i = 0; i < j->n_out; i++)
        outs += j->out[i].w.rows;
    bool two = j->gated || (outs >= 8192 && j->rows > 2);
    return two ? launch_tiles<W, 2>(s, j) : launch_tiles<W, 1>(s, j);
}

cudaError_t launch_skinny(cudaStream_t s, const struct skinny_job *j)
{
    return by_families(j, [&](auto of) { return launch_rows<decltype(of)>(s, j); });
}
