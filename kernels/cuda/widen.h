/* Blocks of weights as pairs of 16-bit values for the tensor cores: 16-bit types as they are, quantised ones widened
 * to bf16. CUDA C++ only. Invariant: the caller's half_type fits the weights (f16 for f16 weights, bf16 for all
 * others). */
#ifndef CUDA_WIDEN_H
#define CUDA_WIDEN_H

#include "kernels/cuda/tensor.h"
#include "kernels/cuda/unpack.h"

/* Elements 2i and 2i+1 of a block in pair i. */
template <enum family F>
__device__ static inline void widen_quantised(const struct weight_planes &p, int64_t row, int b, uint32_t pair[16])
{
    int64_t i = row * p.blocks + b, super = row * ((p.blocks + 7) / 8) + b / 8;
    uint32_t w[8];
    float d0 = block_scale(F, p, i, super, 0), d1 = F == FAM_K6 ? block_scale(F, p, i, super, 1) : d0, m = 0;
    unpack_block<F>(p, i, w);
    if constexpr (has_min(F))
        m = block_min(F, p, i, super);
#pragma unroll
    for (int k = 0; k < 16; k++) {
        float x[2];
#pragma unroll
        for (int e = 0; e < 2; e++) {
            uint32_t byte = w[k / 2] >> (16 * (k % 2) + 8 * e);
            if constexpr (F == FAM_F8)
                x[e] = f8_bits((uint8_t)byte);
            else
                x[e] = (float)(F == FAM_S8 ? (int)(int8_t)byte : (int)(byte & 255u) - zero_of(F));
        }
        float d = k < 8 ? d0 : d1;
        pair[k] = pair_of<half_type::bf16>(fmaf(d, x[0], m), fmaf(d, x[1], m));
    }
}

/* Columns 32b .. 32b+31 of a row. */
template <enum family F>
__device__ static inline void widen_block(const struct weight_planes &p, int64_t row, int b, uint32_t pair[16])
{
    if constexpr (is_float(F)) {
        const uint4 *from = (const uint4 *)((const uint16_t *)p.q + row * p.stride + 32 * b);
#pragma unroll
        for (int k = 0; k < 4; k++) {
            uint4 v = from[k];
            pair[4 * k] = v.x, pair[4 * k + 1] = v.y, pair[4 * k + 2] = v.z, pair[4 * k + 3] = v.w;
        }
    } else {
        widen_quantised<F>(p, row, b, pair);
    }
}

/* The same for a family known at run time. */
__device__ static inline void widen_any(const struct weight_planes &p, int64_t row, int b, uint32_t pair[16])
{
    switch (p.family) {
    case FAM_U4:
        widen_block<FAM_U4>(p, row, b, pair);
        break;
    case FAM_U4M:
        widen_block<FAM_U4M>(p, row, b, pair);
        break;
    case FAM_U5:
        widen_block<FAM_U5>(p, row, b, pair);
        break;
    case FAM_U5M:
        widen_block<FAM_U5M>(p, row, b, pair);
        break;
    case FAM_S8:
        widen_block<FAM_S8>(p, row, b, pair);
        break;
    case FAM_F8:
        widen_block<FAM_F8>(p, row, b, pair);
        break;
    case FAM_K4:
        widen_block<FAM_K4>(p, row, b, pair);
        break;
    case FAM_K5:
        widen_block<FAM_K5>(p, row, b, pair);
        break;
    case FAM_K6:
        widen_block<FAM_K6>(p, row, b, pair);
        break;
    default:
        widen_block<FAM_BF16>(p, row, b, pair);
        break; /* f16 too: bits are bits */
    }
}

#endif
