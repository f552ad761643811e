/* Products of many rows by tiles: 128 rows by 128 outputs (64 by 64 where there are few), 64 columns at a time.
 * Weights are widened on their way into shared memory, so every type runs at the tensor cores' rate. While a tile is
 * multiplied the next one is being loaded into registers. */
#include "kernels/cuda/widen.h"

enum {
    TILE_K = 64,
    TILE_THREADS = 256,
    LD = TILE_K + 16
}; /* LD: eight rows of a quad's loads fall on different banks */

/* One tile of both operands, 16 bits an element. */
template <int TM, int TN> struct tile_space {
    alignas(16) uint16_t x[TM][LD], w[TN][LD];
};

/* What a thread carries of the next tile: 32 columns (half threadIdx.x % 2) of row threadIdx.x / 2. */
struct carried {
    uint32_t pair[16];
};

template <int TM> __device__ static void fetch_x(const struct fast_job &j, int row0, int k, struct carried *c)
{
    int col = k + 32 * ((int)threadIdx.x % 2), at = (int)threadIdx.x / 2;
#pragma unroll
    for (int i = 0; i < 16; i++)
        c->pair[i] = 0;
    if (at < TM && row0 + at < j.rows) {
        const uint4 *from = (const uint4 *)(j.x + (int64_t)(row0 + at) * j.ldx + col);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint4 v = from[i];
            c->pair[4 * i] = v.x, c->pair[4 * i + 1] = v.y, c->pair[4 * i + 2] = v.z, c->pair[4 * i + 3] = v.w;
        }
    }
}

template <int TN> __device__ static void fetch_w(const struct fast_job &j, int out0, int k, struct carried *c)
{
    int col = k + 32 * ((int)threadIdx.x % 2), at = (int)threadIdx.x / 2;
#pragma unroll
    for (int i = 0; i < 16; i++)
        c->pair[i] = 0;
    if (at < TN && out0 + at < j.w.rows && col < j.w.cols)
        widen_any(j.w.p, j.w.row0 + out0 + at, (j.w.col0 + col) / BLOCK_COLS, c->pair);
}

template <int T> __device__ static void put_tile(uint16_t (*to)[LD], const struct carried &c)
{
    int at = (int)threadIdx.x / 2, col = 32 * ((int)threadIdx.x % 2);
    if (at >= T)
        return;
#pragma unroll
    for (int i = 0; i < 4; i++)
        *(uint4 *)&to[at][col + 8 * i] = {c.pair[4 * i], c.pair[4 * i + 1], c.pair[4 * i + 2], c.pair[4 * i + 3]};
}

/* Four elements of a row from column k + 4q on: the instruction's k 2q, 2q+1 and 2q+8, 2q+9, in an order of our own
 * that both operands share. */
__device__ static uint2 four(const uint16_t *row, int k, int q)
{
    return *(const uint2 *)(row + k + 4 * q);
}

/* Warps stand 2 by 4; each has TM / 2 rows by TN / 4 outputs. */
template <half_type H, int TM, int TN>
__device__ static void multiply(const struct tile_space<TM, TN> &s, float (*acc)[TN / 32][4])
{
    int g = lane_id() / 4, q = lane_id() % 4, m0 = warp_id() / 4 * (TM / 2), n0 = warp_id() % 4 * (TN / 4);
#pragma unroll
    for (int k = 0; k < TILE_K; k += 16) {
        uint32_t b[TN / 32][2];
#pragma unroll
        for (int n = 0; n < TN / 32; n++) {
            uint2 v = four(s.w[n0 + 8 * n + g], k, q);
            b[n][0] = v.x, b[n][1] = v.y;
        }
#pragma unroll
        for (int m = 0; m < TM / 32; m++) {
            uint2 lo = four(s.x[m0 + 16 * m + g], k, q), hi = four(s.x[m0 + 16 * m + g + 8], k, q);
            const uint32_t a[4] = {lo.x, hi.x, lo.y, hi.y};
#pragma unroll
            for (int n = 0; n < TN / 32; n++)
                mma<H>(acc[m][n], a, b[n]);
        }
    }
}

/* Outputs `out` and out + 1 of a row, as far as there are any. */
__device__ static void store_pair(const struct fast_job &j, int row, int out, float2 v)
{
    int64_t at = (int64_t)row * j.ldy + out;
    bool first = row < j.rows && out < j.w.rows, both = first && out + 1 < j.w.rows;
    if (j.bias && first)
        v.x += j.bias[out];
    if (j.bias && both)
        v.y += j.bias[out + 1];
    if (j.half && both) {
        put_act_pair(j.y, true, at, v);
        return;
    }
    if (first)
        put_act(j.y, j.half, at, j.accumulate ? ((float *)j.y)[at] + v.x : v.x);
    if (both)
        put_act(j.y, false, at + 1, j.accumulate ? ((float *)j.y)[at + 1] + v.y : v.y);
}

template <half_type H, int TM, int TN>
static __global__ void __launch_bounds__(TILE_THREADS, TM == 128 ? 1 : 2) tile_kernel(struct fast_job j)
{
    SHARED(s, struct tile_space<TM, TN> s);
    int row0 = (int)blockIdx.y * TM, out0 = (int)blockIdx.x * TN;
    float acc[TM / 32][TN / 32][4] = {};
    struct carried x;
    struct carried w;
    fetch_x<TM>(j, row0, 0, &x);
    fetch_w<TN>(j, out0, 0, &w);
    for (int k = 0; k < j.w.cols; k += TILE_K) {
        __syncthreads();
        put_tile<TM>(s.x, x);
        put_tile<TN>(s.w, w);
        __syncthreads();
        if (k + TILE_K < j.w.cols) {
            fetch_x<TM>(j, row0, k + TILE_K, &x);
            fetch_w<TN>(j, out0, k + TILE_K, &w);
        }
        multiply<H, TM, TN>(s, acc);
    }
    int g = lane_id() / 4, q = lane_id() % 4, m0 = row0 + warp_id() / 4 * (TM / 2),
        n0 = out0 + warp_id() % 4 * (TN / 4);
#pragma unroll
    for (int m = 0; m < TM / 32; m++)
#pragma unroll
        for (int n = 0; n < TN / 32; n++)
            for (int i = 0; i < 2; i++)
                store_pair(j, m0 + 16 * m + g + 8 * i, n0 + 8 * n + 2 * q,
                           make_float2(acc[m][n][2 * i], acc[m][n][2 * i + 1]));
}

template <half_type H, int T> static cudaError_t launch_tiles(cudaStream_t s, const struct fast_job *j)
{
    return launch(tile_kernel<H, T, T>, dim3(ceil_div(j->w.rows, T), ceil_div(j->rows, T)), dim3(TILE_THREADS), 0, s,
                  *j);
}

cudaError_t launch_tile(cudaStream_t s, const struct fast_job *j)
{
    bool small = (int64_t)ceil_div(j->w.rows, 128) * ceil_div(j->rows, 128) <
                 132; /* of large tiles there would be fewer than a GPU has SMs */
    if (j->w.p.family == FAM_F16)
        return small ? launch_tiles<half_type::f16, 64>(s, j) : launch_tiles<half_type::f16, 128>(s, j);
    return small ? launch_tiles<half_type::bf16, 64>(s, j) : launch_tiles<half_type::bf16, 128>(s, j);
}
