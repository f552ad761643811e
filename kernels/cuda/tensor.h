/* Tensor cores and 16-bit pairs: what the fast kernels are made of. A pair is two elements in 32 bits, the first in the low half. One warp computes
 * D += A B with A 16 x 16, B 16 x 8: lane l (g = l / 4, q = l % 4) holds of A rows g and g + 8, of B column g, of D rows g and g + 8, columns 2q
 * and 2q + 1. CUDA C++ only; tests/emulator has twins. Never true: a kernel that depends on the order in which a tensor core adds. */
#ifndef CUDA_TENSOR_H
#define CUDA_TENSOR_H

#include <cuda_bf16.h>

#include "kernels/cuda/prim.h"

enum class half_type { f16, bf16 };

/* What does not fit must not become infinite; NaN stays. */
__device__ static inline float f16_range(float x)
{
    return x > 65504.0f ? 65504.0f : x < -65504.0f ? -65504.0f : x;
}

template <half_type H> __device__ static inline uint32_t pair_of(float lo, float hi)
{
    if constexpr (H == half_type::f16) {
        return (uint32_t)to_f16_bits(f16_range(lo)) | (uint32_t)to_f16_bits(f16_range(hi)) << 16;
    } else {
        return (uint32_t)__bfloat16_as_ushort(__float2bfloat16_rn(lo)) | (uint32_t)__bfloat16_as_ushort(__float2bfloat16_rn(hi)) << 16;
    }
}

/* a[0]: row g, k 2q and 2q+1; a[1]: row g+8; a[2], a[3]: the same, k + 8. b[0]: k 2q and 2q+1; b[1]: k + 8. d[0], d[1]: row g; d[2], d[3]: row g+8. */
#ifndef TENSOR_TWINS
template <half_type H> __device__ static inline void mma(float d[4], const uint32_t a[4], const uint32_t b[2])
{
    if constexpr (H == half_type::f16)
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    else
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* Two 8 x 8 matrices of 16-bit elements out of shared memory, transposed: lanes 0..15 give the addresses of the 16 rows; d[i] holds rows 2q and 2q+1 of
 * column g of matrix i. */
__device__ static inline void load_transposed(uint32_t d[2], const void *row)
{
    unsigned at = (unsigned)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];" : "=r"(d[0]), "=r"(d[1]) : "r"(at) : "memory");
}
#endif

#endif
