/* Tensor cores and asynchronous copies, as the kernels of the default mode use them: mma of 16x8x16 in bf16 or f16
 * with f32 sums and of 16x8x32 bytes, ldmatrix, cp.async of 16 bytes, and programmatic dependent launch. CUDA C++ only.
 * Invariant: every name here has a host twin in tests/emulator/tensor_twins.h.
 *
 * Fragments, for lane = 4 g + t: a[0] is row g, k 2t and 2t+1; a[1] is row g+8; a[2] and a[3] are the same at k+8.
 * b[0] is column g, k 2t and 2t+1; b[1] is the same at k+8. c[0] and c[1] are row g, columns 2t and 2t+1; c[2] and
 * c[3] are row g+8. The order of k within a product is free as long as a and b agree. */
#ifndef CUDA_TENSOR_H
#define CUDA_TENSOR_H

#include "kernels/cuda/prim.h"

#ifdef __CUDACC__

__device__ static inline void mma_bf16(float c[4], const uint32_t a[4], const uint32_t b[2])
{
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

__device__ static inline void mma_f16(float c[4], const uint32_t a[4], const uint32_t b[2])
{
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* 16x8x32 of signed bytes, exactly: the fragments of 16 bits, with two bytes of k in each element's place: a[0] is row
 * g, k 4t .. 4t+3; a[2] and b[1] are at k+16. */
__device__ static inline void mma_s8(int c[4], const uint32_t a[4], const uint32_t b[2])
{
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* The first 16 of k alone. */
__device__ static inline void mma_s8_half(int c[4], const uint32_t a[2], uint32_t b)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
                 : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(b));
}

/* Two floats to nearest, the first in the low half. */
__device__ static inline uint32_t pack_bf16(float low, float high)
{
    uint32_t d;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
    return d;
}

__device__ static inline uint32_t pack_f16(float low, float high)
{
    uint32_t d;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
    return d;
}

/* a - b of two pairs of bf16; exact for the small integers it is used on. */
__device__ static inline uint32_t sub_bf16x2(uint32_t a, uint32_t b)
{
    uint32_t d, one = 0x3f803f80u, minus;
    minus = b ^ 0x80008000u;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(one), "r"(minus));
    return d;
}

/* a * b of two pairs of f16, to nearest. */
__device__ static inline uint32_t mul_f16x2(uint32_t a, uint32_t b)
{
    uint32_t d;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
}

/* a * b of two pairs of bf16, to nearest; subnormals are kept. */
__device__ static inline uint32_t mul_bf16x2(uint32_t a, uint32_t b)
{
    uint32_t d, zero = 0x80008000u;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(zero));
    return d;
}

/* Bytes 0 .. 3 of a and 4 .. 7 of b, picked by the four digits of `pick`, lowest first. */
__device__ static inline uint32_t byte_perm(uint32_t a, uint32_t b, uint32_t pick)
{
    return __byte_perm(a, b, pick);
}

__device__ static inline float exp2_fast(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Four 8x8 matrices of 16-bit elements; lane 8i + r has the address of row r of matrix i. d[i]: of matrix i row lane /
 * 4, elements 2 (lane % 4) and the next; transposed: column lane / 4, rows 2 (lane % 4) and the next. */
__device__ static inline void ldmatrix(uint32_t d[4], const void *row)
{
    uint32_t at = (uint32_t)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
                 : "r"(at)
                 : "memory");
}

__device__ static inline void ldmatrix_trans(uint32_t d[4], const void *row)
{
    uint32_t at = (uint32_t)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
                 : "r"(at)
                 : "memory");
}

/* 16 bytes to shared memory, zeros when !there (from is not read then, but must be an address). */
__device__ static inline void cp_async(void *to, const void *from, bool there)
{
    uint32_t at = (uint32_t)__cvta_generic_to_shared(to);
    int bytes = there ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(from), "r"(bytes) : "memory");
}

__device__ static inline void cp_async_commit(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Waits until at most the latest N committed groups of copies are pending. */
template <int N> __device__ static inline void cp_async_wait(void)
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

/* A weight is read once a step: it should not push out what is read again. */
__device__ static inline uint4 load_stream(const uint4 *p)
{
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
}

/* Waits for all earlier kernels of the stream. Before it a kernel may read only what no kernel writes (weights), or
 * what was written before the last one that began when all was done, as every step's first kernels do. */
__device__ static inline void griddepcontrol_wait(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* Lets the next kernel of the stream begin, as far as its griddepcontrol_wait. */
__device__ static inline void griddepcontrol_launch_dependents(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

#else
#include <tensor_twins.h>
#endif

enum class half_type { f16, bf16 };

/* Four codes of E4M3, none of them NaN, as two pairs of bf16, exactly: their fields at another bias, and the difference
 * of the two, 2^120. */
__device__ static inline void f8_to_bf16(uint32_t codes, uint32_t out[2])
{
#pragma unroll
    for (int k = 0; k < 2; k++) {
        uint32_t w = byte_perm(codes, 0, k ? 0x3424 : 0x1404); /* each in the upper byte of a half */
        out[k] = mul_bf16x2((w & 0x80008000u) | (w >> 4 & 0x07f007f0u), 0x7b807b80u);
    }
}

/* Four codes as two pairs of f16, exactly; NaN stays. */
__device__ static inline void f8_to_f16(uint32_t codes, uint32_t out[2])
{
#if __CUDA_ARCH__ >= 890
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(out[0]) : "h"((uint16_t)codes));
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(out[1]) : "h"((uint16_t)(codes >> 16)));
#else
#pragma unroll
    for (int k = 0; k < 2; k++) {
        uint32_t w = byte_perm(codes, 0, k ? 0x3424 : 0x1404), size = w & 0x7f007f00u;
        uint32_t nan = (size + 0x01000100u) & 0x80008000u; /* 0x7f and one carries into the upper bit */
        out[k] = mul_f16x2((w & 0x80008000u) | size >> 1 | nan >> 1, 0x5c005c00u); /* 256 */
    }
#endif
}

/* What does not fit f16 must not become infinite; NaN stays. */
__device__ static inline float f16_range(float x)
{
    return x > 65504.0f ? 65504.0f : x < -65504.0f ? -65504.0f : x;
}

template <half_type H> __device__ static inline uint32_t pair_of(float low, float high)
{
    if constexpr (H == half_type::f16)
        return pack_f16(f16_range(low), f16_range(high));
    else
        return pack_bf16(low, high);
}

template <half_type H> __device__ static inline void mma(float c[4], const uint32_t a[4], const uint32_t b[2])
{
    if constexpr (H == half_type::f16)
        mma_f16(c, a, b);
    else
        mma_bf16(c, a, b);
}

/* Programmatic dependent launch of a kernel that calls griddepcontrol_wait before it reads what earlier kernels wrote.
 * Needs compute capability 9 or higher; elsewhere use launch. */
template <typename... P, typename... A>
static inline cudaError_t launch_pdl(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared, cudaStream_t s,
                                     A &&...args)
{
    cudaLaunchConfig_t c = {};
    cudaLaunchAttribute pdl = {};
    pdl.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    pdl.val.programmaticStreamSerializationAllowed = 1;
    c.gridDim = grid;
    c.blockDim = block;
    c.dynamicSmemBytes = shared;
    c.stream = s;
    c.attrs = &pdl;
    c.numAttrs = 1;
    return cudaLaunchKernelEx(&c, kernel, std::forward<A>(args)...);
}

#endif
