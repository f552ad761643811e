/* What every kernel file shares: launching, element types, the CPU backend's 2^x, warp helpers. CUDA C++ only.
 * tests/emulator has host twins of the few names of the CUDA runtime that are used here, so that the same kernels run
 * as plain C++ in a test. Invariant: every operation says how it rounds; these files are compiled without contraction.
 */
#ifndef CUDA_PRIM_H
#define CUDA_PRIM_H

#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <utility>

#include "kernels/cuda/job.h"

enum { WARP = 32 };
static const unsigned ALL_LANES = 0xffffffffu;

/* A CTA's static shared memory, by name and declaration: SHARED(s, struct space s). */
#ifndef SHARED
#define SHARED(name, ...) __shared__ __VA_ARGS__
#endif

/* A CTA's dynamic shared memory. */
#ifndef SHARED_BYTES
#define SHARED_BYTES(name) extern __shared__ __align__(16) unsigned char name[]
#endif

template <typename... P, typename... A>
static inline cudaError_t launch(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared, cudaStream_t s,
                                 A &&...args)
{
    cudaLaunchConfig_t c = {};
    c.gridDim = grid;
    c.blockDim = block;
    c.dynamicSmemBytes = shared;
    c.stream = s;
    return cudaLaunchKernelEx(&c, kernel, std::forward<A>(args)...);
}

static inline int ceil_div(int64_t a, int64_t b)
{
    return (int)((a + b - 1) / b);
}

__device__ static inline int lane_id()
{
    return (int)threadIdx.x % WARP;
}

__device__ static inline int warp_id()
{
    return (int)threadIdx.x / WARP;
}

__device__ static inline float f16_bits(uint16_t h)
{
    return __half2float(__ushort_as_half(h));
}

__device__ static inline float bf16_bits(uint16_t h)
{
    return __uint_as_float((uint32_t)h << 16);
}

__device__ static inline uint16_t to_f16_bits(float f)
{
    return __half_as_ushort(__float2half_rn(f));
}

/* To nearest even, NaN kept. */
__device__ static inline uint16_t to_bf16_bits(float f)
{
    uint32_t u = __float_as_uint(f);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(u >> 16 | 0x40u);
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}

/* Element i of activations in f32, or (half) in bf16. */
__device__ static inline float act_at(const void *p, bool half, int64_t i)
{
    return half ? bf16_bits(((const uint16_t *)p)[i]) : ((const float *)p)[i];
}

__device__ static inline void put_act(void *p, bool half, int64_t i, float v)
{
    if (half)
        ((uint16_t *)p)[i] = to_bf16_bits(v);
    else
        ((float *)p)[i] = v;
}

/* Elements i and i + 1; i is even. */
__device__ static inline float2 act_pair(const void *p, bool half, int64_t i)
{
    if (!half)
        return *(const float2 *)((const float *)p + i);
    uint32_t w = ((const uint32_t *)p)[i / 2];
    return make_float2(bf16_bits((uint16_t)w), bf16_bits((uint16_t)(w >> 16)));
}

__device__ static inline void put_act_pair(void *p, bool half, int64_t i, float2 v)
{
    if (half)
        ((uint32_t *)p)[i / 2] = (uint32_t)to_bf16_bits(v.x) | (uint32_t)to_bf16_bits(v.y) << 16;
    else
        *(float2 *)((float *)p + i) = v;
}

/* E4M3 as kernels/dtype.c has it, the same operations on every architecture. */
__device__ static inline float f8_bits(uint8_t code)
{
    uint32_t sign = (uint32_t)(code & 0x80u) << 24, a = code & 0x7fu;
    if (a == 0x7f)
        return __uint_as_float(sign | 0x7fc00000u);
    return __uint_as_float(sign | a << 20) * 0x1p120f;
}

/* To nearest even; what is larger than 448 becomes 448, NaN stays. */
__device__ static inline uint8_t to_f8_bits(float f)
{
    uint32_t u = __float_as_uint(f), sign = u >> 24 & 0x80u, a = u & 0x7fffffffu;
    if (a > 0x7f800000u)
        return (uint8_t)(sign | 0x7fu);
    if (a >= 0x43e00000u)
        return (uint8_t)(sign | 0x7eu);
    if (a < 0x3c800000u)
        return (uint8_t)(sign | (__float_as_uint(__uint_as_float(a) + 0x1p14f) - 0x46800000u));
    return (uint8_t)(sign | (a - 0x3c000000u + 0x7ffffu + (a >> 20 & 1u)) >> 20);
}

/* 2^x as the CPU backend has it (kernels/cpu/rows_body.h): 0 below -126, NaN stays. */
__device__ static inline float exp2_fixed(float x)
{
    float c = -127.0f > x ? -127.0f : x;
    c = 127.0f < c ? 127.0f : c;
    float t = c + 12582912.0f;
    float r = c - (t - 12582912.0f);
    float p = 0x1.41fbc2p-13f;
    p = fmaf(p, r, 0x1.5f3e52p-10f);
    p = fmaf(p, r, 0x1.3b2d4cp-7f);
    p = fmaf(p, r, 0x1.c6aee8p-5f);
    p = fmaf(p, r, 0x1.ebfbdcp-3f);
    p = fmaf(p, r, 0x1.62e430p-1f);
    p = fmaf(p, r, 1.0f);
    return x < -126.0f ? 0.0f : __uint_as_float(__float_as_uint(p) + (__float_as_uint(t) << 23));
}

/* The sum of the first 16 lanes in the tree of the CPU's vf_sum; right in lane 0. All lanes of the warp take part. */
__device__ static inline float sum_sixteen(float v)
{
    for (int half = 8; half; half /= 2)
        v = v + __shfl_down_sync(ALL_LANES, v, half);
    return v;
}

__device__ static inline float warp_max(float v)
{
    for (int k = WARP / 2; k; k /= 2) {
        float other = __shfl_xor_sync(ALL_LANES, v, k);
        v = v > other ? v : other;
    }
    return v;
}

/* The sum over a CTA of WARPS warps, the same in all its threads; once in a kernel, or with a barrier between. */
template <int WARPS> __device__ static inline float cta_sum(float v)
{
    SHARED(part, float part[WARPS]);
    for (int k = WARP / 2; k; k /= 2)
        v += __shfl_xor_sync(ALL_LANES, v, k);
    if (lane_id() == 0)
        part[warp_id()] = v;
    __syncthreads();
    v = 0;
    for (int w = 0; w < WARPS; w++)
        v += part[w];
    return v;
}

/* 1 / rms of n elements, the same in all lanes of the warp; lanes 0..15 have the sums. */
template <typename At> __device__ static inline float rms_inverse(At x, int n, float eps)
{
    enum { AT_ONCE = 8 };
    float sum = 0;
    for (int first = lane_id(); first < n && lane_id() < 16; first += AT_ONCE * 16) {
        float v[AT_ONCE];
        for (int k = 0; k < AT_ONCE; k++) /* all loads are under way at once */
            v[k] = first + 16 * k < n ? x(first + 16 * k) : 0;
        for (int k = 0; k < AT_ONCE; k++)
            sum = fmaf(v[k], v[k], sum);
    }
    sum = sum_sixteen(sum);
    sum = __shfl_sync(ALL_LANES, sum, 0);
    return 1.0f / sqrtf(sum / (float)n + eps);
}

#endif
