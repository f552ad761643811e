/* The ops that take a row, or an element, at a time. All are bound by memory bandwidth; their sums are those of
 * kernels/cpu/rows_body.h. */
#include "kernels/cuda/prim.h"
#include "kernels/cuda/unpack.h"

enum { ROW_THREADS = 256 };

/* Thread: one angle of one row. In double, as the CPU has it. */
static __global__ void angles_kernel(struct angles_job j)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    int half = j.dim / 2, row = (int)(i / half), k = (int)(i % half);
    if (row >= j.n_rows)
        return;
    double sine, cosine;
    sincos((double)j.positions[row] * (double)j.inv_freq[k], &sine, &cosine);
    float *out = j.out + (int64_t)row * j.dim;
    out[k] = (float)(cosine * (double)j.scale);
    out[half + k] = (float)(sine * (double)j.scale);
}

cudaError_t launch_angles(cudaStream_t s, const struct angles_job *j)
{
    return launch(angles_kernel, dim3(ceil_div((int64_t)j->n_rows * (j->dim / 2), ROW_THREADS)), dim3(ROW_THREADS), 0,
                  s, *j);
}

/* CTA: one row. */
static __global__ void embed_kernel(struct embed_job j)
{
    int row = (int)blockIdx.x, at = j.table.row0 + j.ids[row];
    for (int c = (int)threadIdx.x; c < j.table.cols; c += ROW_THREADS)
        j.y[(int64_t)row * j.ldy + c] = weight_at(j.table.p, at, j.table.col0 + c);
}

cudaError_t launch_embed(cudaStream_t s, const struct embed_job *j)
{
    return launch(embed_kernel, dim3(j->n), dim3(ROW_THREADS), 0, s, *j);
}

/* CTA: one row. Only sixteen lanes add, since the order of the sum is fixed. */
static __global__ void norm_kernel(struct norm_job j)
{
    SHARED(scale, float scale);
    const float *x = j.x + (int64_t)blockIdx.x * j.ldx;
    float *y = j.y + (int64_t)blockIdx.x * j.ldy;
    if (warp_id() == 0) {
        float inverse = rms_inverse([&](int i) { return x[i]; }, j.cols, j.eps);
        if (lane_id() == 0)
            scale = inverse;
    }
    __syncthreads();
    for (int c = (int)threadIdx.x; c < j.cols; c += ROW_THREADS)
        y[c] = (x[c] * scale) * j.gain[c];
}

cudaError_t launch_norm(cudaStream_t s, const struct norm_job *j)
{
    return launch(norm_kernel, dim3(j->rows), dim3(ROW_THREADS), 0, s, *j);
}

static __global__ void swiglu_kernel(struct swiglu_job j)
{
    int row = (int)blockIdx.y, c = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (c >= j.cols)
        return;
    float x = act_at(j.x, j.half, (int64_t)row * j.ldx + c), e = exp2_fixed(x * -1.44269504f);
    j.y[(int64_t)row * j.ldy + c] = (x / (1.0f + e)) * act_at(j.x2, j.half, (int64_t)row * j.ldx2 + c);
}

cudaError_t launch_swiglu(cudaStream_t s, const struct swiglu_job *j)
{
    return launch(swiglu_kernel, dim3(ceil_div(j->cols, ROW_THREADS), j->rows), dim3(ROW_THREADS), 0, s, *j);
}

__device__ static int32_t nearest(float x)
{
    return (int32_t)(__float_as_uint(x + 12582912.0f) -
                     0x4b400000u); /* 1.5 * 2^23: the low mantissa bits are the rounded integer */
}

/* Warp: 32 columns of one row, a lane each. */
static __global__ void quantise_kernel(struct quantise_job j)
{
    int row = (int)blockIdx.y, b = (int)blockIdx.x * (ROW_THREADS / WARP) + warp_id();
    if (b >= j.cols / BLOCK_COLS)
        return;
    float x = j.x[(int64_t)row * j.ldx + b * BLOCK_COLS + lane_id()];
    uint32_t most = __float_as_uint(x) & 0x7fffffffu;
    for (int k = WARP / 2; k; k /= 2) {
        uint32_t other = __shfl_xor_sync(ALL_LANES, most, k);
        most = other > most ? other : most;
    }
    float amax = __uint_as_float(most), inverse = 0, d = amax / 32512.0f;
    if (amax < 1e-30f)
        d = 0;
    else if (most >= 0x7f800000u)
        d = __uint_as_float(0x7fc00000u); /* a bad value must show */
    else
        inverse = 32512.0f / amax;
    int32_t q = inverse > 0 ? nearest(x * inverse) : 0, high = nearest((float)q * (1.0f / 255.0f)), half = q;
    int8_t *to = j.q + (int64_t)row * 2 * j.cols + b * BLOCK_COLS + lane_id();
    to[0] = (int8_t)high;
    to[j.cols] = (int8_t)(q - 255 * high);
    for (int k = 8; k; k /= 2)
        half += __shfl_xor_sync(ALL_LANES, half, k);
    int32_t second = __shfl_sync(ALL_LANES, half, 16);
    if (lane_id() == 0) {
        int32_t sum = half + second;
        j.meta[(int64_t)row * (j.cols / BLOCK_COLS) + b] = {d, d * (float)sum, sum, {half, second}};
    }
}

cudaError_t launch_quantise(cudaStream_t s, const struct quantise_job *j)
{
    dim3 grid(ceil_div(j->cols / BLOCK_COLS, ROW_THREADS / WARP), j->rows);
    return launch(quantise_kernel, grid, dim3(ROW_THREADS), 0, s, *j);
}

static __global__ void gather_kernel(struct gather_job j)
{
    int i = (int)blockIdx.y, c = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (c < j.cols)
        j.y[(int64_t)i * j.ldy + c] = j.x[(int64_t)(j.rows[i] - j.row0) * j.ldx + c];
}

cudaError_t launch_gather(cudaStream_t s, const struct gather_job *j)
{
    return launch(gather_kernel, dim3(ceil_div(j->cols, ROW_THREADS), j->n), dim3(ROW_THREADS), 0, s, *j);
}
