/* Products of two fp8 factors: the input is computed, scaled and rounded to E4M3 in one pass, while other CTAs bring
 * the weights' scales into the library's form; an epilogue adds what the library cannot. Bound by memory bandwidth.
 *
 * A scale is the largest magnitude / 448, but at least SMALLEST, so no scale is denormal and zeros stay zeros. NaN
 * stays NaN; infinity becomes NaN. */
#include "kernels/cuda/prim.h"

enum { F8_THREADS = 256, F8_WARPS = F8_THREADS / WARP, STEP = 4 * F8_THREADS, KEPT_COLS = 32768 };
static const float SMALLEST = 0x1p-100f, LARGEST_CODE = 448.0f;

struct four {
    float v[4];
};

__device__ static struct four load_four(const float *p)
{
    float4 v = *(const float4 *)p;
    return {{v.x, v.y, v.z, v.w}};
}

/* Activations c .. c + 3 of a row. */
__device__ static struct four load_acts(const void *row, bool half, int c)
{
    if (!half)
        return load_four((const float *)row + c);
    uint2 w = *(const uint2 *)((const uint16_t *)row + c);
    return {{bf16_bits((uint16_t)w.x), bf16_bits((uint16_t)(w.x >> 16)), bf16_bits((uint16_t)w.y),
             bf16_bits((uint16_t)(w.y >> 16))}};
}

/* Rows of the input, as they lie. */
struct rows_at {
    const void *x, *x2; /* x2: or NULL */
};

__device__ static struct rows_at rows_of(const struct f8_input_job &j, int row)
{
    size_t bytes = j.half ? sizeof(uint16_t) : sizeof(float);
    const uint8_t *x2 = (const uint8_t *)j.x2;
    return {(const uint8_t *)j.x + (size_t)row * (size_t)j.ldx * bytes,
            x2 ? x2 + (size_t)row * (size_t)j.ldx2 * bytes : nullptr};
}

/* Columns c .. c + 3 of the input; past the last: zeros. */
__device__ static struct four made(const struct f8_input_job &j, const struct rows_at &r, int c, float scale)
{
    if (c >= j.cols)
        return {};
    struct four v = load_acts(r.x, j.half, c);
    if (j.gain) {
        struct four g = load_four(j.gain + c);
        for (int i = 0; i < 4; i++)
            v.v[i] = v.v[i] * scale * g.v[i];
    } else if (r.x2) {
        struct four u = load_acts(r.x2, j.half, c);
        for (int i = 0; i < 4; i++)
            v.v[i] = v.v[i] / (1.0f + expf(-v.v[i])) * u.v[i];
    }
    return v;
}

/* NaN is no magnitude. */
__device__ static float largest(const struct four &v, float m)
{
    for (int i = 0; i < 4; i++)
        m = fabsf(v.v[i]) > m ? fabsf(v.v[i]) : m;
    return m;
}

__device__ static float scale_for(float m)
{
    float s = m / LARGEST_CODE;
    return s > SMALLEST ? s : SMALLEST;
}

__device__ static uint32_t codes_of(const struct four &v, float inverse)
{
    uint32_t w = 0;
    for (int i = 0; i < 4; i++)
        w |= (uint32_t)to_f8_bits(v.v[i] * inverse) << 8 * i;
    return w;
}

__device__ static float cta_max(float v)
{
    SHARED(part, float part[F8_WARPS]);
    v = warp_max(v);
    if (lane_id() == 0)
        part[warp_id()] = v;
    __syncthreads();
    for (int w = 0; w < F8_WARPS; w++)
        v = part[w] > v ? part[w] : v;
    return v;
}

/* 1 / rms of the row, where there is a gain. */
__device__ static float norm_scale(const struct f8_input_job &j, const void *x)
{
    float sum = 0;
    if (!j.gain)
        return 1;
    for (int c = 4 * (int)threadIdx.x; c < j.cols; c += STEP) {
        struct four v = load_acts(x, j.half, c);
        for (int i = 0; i < 4; i++)
            sum = fmaf(v.v[i], v.v[i], sum);
    }
    return 1.0f / sqrtf(cta_sum<F8_WARPS>(sum) / (float)j.cols + j.eps);
}

/* One scale for the row. Every thread meets the same columns twice, and keeps what it made of them where there is room.
 */
__device__ static void whole_row(const struct f8_input_job &j, int row, float *kept)
{
    struct rows_at r = rows_of(j, row);
    uint32_t *to = (uint32_t *)(j.codes + (int64_t)row * j.ld);
    float norm = norm_scale(j, r.x), m = 0;
    bool keep = j.ld <= KEPT_COLS;
    for (int c = 4 * (int)threadIdx.x; c < j.ld; c += STEP) {
        struct four v = made(j, r, c, norm);
        m = largest(v, m);
        if (keep)
            *(float4 *)(kept + c) = make_float4(v.v[0], v.v[1], v.v[2], v.v[3]);
    }
    float scale = scale_for(cta_max(m)), inverse = 1.0f / scale;
    for (int c = 4 * (int)threadIdx.x; c < j.ld; c += STEP)
        to[c / 4] = codes_of(keep ? load_four(kept + c) : made(j, r, c, norm), inverse);
    if (threadIdx.x == 0)
        j.scales[row] = scale;
}

/* Where the scale of a group of columns of a row goes. */
__device__ static int64_t place_of(const struct f8_input_job &j, int row, int group)
{
    if (row < j.whole)
        return (int64_t)group * j.whole + row;
    return (int64_t)(j.ld / F8_GROUP) * j.whole + (int64_t)group * (j.padded - j.whole) + row - j.whole;
}

/* A scale for each 128 columns, a warp for each. */
__device__ static void row_in_groups(const struct f8_input_job &j, int row)
{
    struct rows_at r = rows_of(j, row);
    uint32_t *to = (uint32_t *)(j.codes + (int64_t)row * j.ld);
    float norm = norm_scale(j, r.x);
    for (int g = warp_id(); g < j.ld / F8_GROUP; g += F8_WARPS) {
        int c = g * F8_GROUP + 4 * lane_id();
        struct four v = made(j, r, c, norm);
        float scale = scale_for(warp_max(largest(v, 0)));
        to[c / 4] = codes_of(v, 1.0f / scale);
        if (lane_id() == 0)
            j.scales[place_of(j, row, g)] = scale;
    }
}

__device__ static void empty_row(const struct f8_input_job &j, int row)
{
    uint32_t *to = (uint32_t *)(j.codes + (int64_t)row * j.ld);
    for (int i = (int)threadIdx.x; i < j.ld / 4; i += F8_THREADS)
        to[i] = 0;
    for (int g = (int)threadIdx.x; g < (j.groups ? j.ld / F8_GROUP : 1); g += F8_THREADS)
        j.scales[j.groups ? place_of(j, row, g) : row] = 0;
}

/* Blocks of 128 columns of a window, as the library counts them: to a multiple of four. */
__host__ __device__ static int column_blocks(int cols)
{
    return ((cols + F8_SCALE_BLOCK - 1) / F8_SCALE_BLOCK + 3) / 4 * 4;
}

int f8_scales_count(const struct weight_window *w)
{
    if (w->p.scales != F8_BY_BLOCK)
        return w->rows;
    return ceil_div(w->rows, F8_SCALE_BLOCK) * column_blocks(w->cols);
}

/* Scale i of the library's form of a window. */
__device__ static float scale_at(const struct weight_window &w, int i)
{
    const float *s = (const float *)w.p.s;
    int64_t pairs = w.p.blocks / 2; /* of blocks: they share a scale */
    if (w.p.scales != F8_BY_BLOCK)
        return s[(w.row0 + i) * pairs + w.col0 / (2 * BLOCK_COLS)];
    int wide = column_blocks(w.cols), row = i / wide * F8_SCALE_BLOCK, col = i % wide * F8_SCALE_BLOCK;
    return col < w.cols ? s[(w.row0 + row) * pairs + (w.col0 + col) / (2 * BLOCK_COLS)] : 0;
}

__device__ static void bring_scales(const struct f8_input_job &j, int at)
{
    for (int o = 0; o < j.n_out; o++) {
        int i = at * F8_THREADS + (int)threadIdx.x, ctas = (j.out[o].n + F8_THREADS - 1) / F8_THREADS;
        if (at >= 0 && at < ctas && i < j.out[o].n)
            j.out[o].to[i] = scale_at(j.out[o].w, i);
        at -= ctas;
    }
}

/* CTA: one row, or 256 of the weights' scales. */
static __global__ void f8_input_kernel(struct f8_input_job j)
{
    SHARED_BYTES(bytes);
    int row = (int)blockIdx.x;
    if (row >= j.padded)
        bring_scales(j, row - j.padded);
    else if (row >= j.rows)
        empty_row(j, row);
    else if (j.groups)
        row_in_groups(j, row);
    else
        whole_row(j, row, (float *)bytes);
}

static __global__ void f8_epilogue_kernel(struct f8_epilogue_job j)
{
    int c = (int)(blockIdx.x * blockDim.x + threadIdx.x), row = (int)blockIdx.y;
    if (c >= j.cols)
        return;
    int64_t at = (int64_t)row * j.ldy + c;
    float v = j.accumulate ? act_at(j.y, j.half, at) : 0;
    if (j.t)
        v += j.t[(int64_t)row * j.ldt + c];
    if (j.bias)
        v += j.bias[c];
    put_act(j.y, j.half, at, v);
}

cudaError_t f8_prepare(void)
{
    return cudaFuncSetAttribute(f8_input_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                KEPT_COLS * (int)sizeof(float));
}

cudaError_t launch_f8_input(cudaStream_t s, const struct f8_input_job *j)
{
    size_t kept = j->groups || j->ld > KEPT_COLS ? 0 : (size_t)j->ld * sizeof(float);
    int ctas = j->padded;
    for (int o = 0; o < j->n_out; o++)
        ctas += ceil_div(j->out[o].n, F8_THREADS);
    return launch(f8_input_kernel, dim3(ctas), dim3(F8_THREADS), kept, s, *j);
}

cudaError_t launch_f8_epilogue(cudaStream_t s, const struct f8_epilogue_job *j)
{
    return launch(f8_epilogue_kernel, dim3(ceil_div(j->cols, F8_THREADS), j->rows), dim3(F8_THREADS), 0, s, *j);
}
