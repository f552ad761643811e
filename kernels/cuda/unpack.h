/* Reading weights out of their planes (weight.h), a block of 32 columns or one element at a time. CUDA C++ only,
 * inlined into kernels. Invariant: every value equals what dtype_to_f32 gives. */
#ifndef CUDA_UNPACK_H
#define CUDA_UNPACK_H

#include "kernels/cuda/prim.h"

__host__ __device__ static constexpr bool is_float(enum family f)
{
    return f <= FAM_BF16;
}
__host__ __device__ static constexpr bool is_k(enum family f)
{
    return f >= FAM_K4;
}
__host__ __device__ static constexpr bool has_min(enum family f)
{
    return f == FAM_U4M || f == FAM_U5M || f == FAM_K4 || f == FAM_K5;
}
__host__ __device__ static constexpr int bits_of(enum family f)
{
    return f == FAM_S8 || f == FAM_F8 ? 8 : f == FAM_K6 ? 6 : f == FAM_U5 || f == FAM_U5M || f == FAM_K5 ? 5 : 4;
}
__host__ __device__ static constexpr int zero_of(enum family f)
{
    return f == FAM_U4 ? 8 : f == FAM_U5 ? 16 : f == FAM_K6 ? 32 : 0;
}

/* The scale of one half of block i of a row (both the same but for 6 bits). */
__device__ static inline float block_scale(enum family f, const struct weight_planes &p, int64_t i, int64_t super,
                                           int half)
{
    if (f == FAM_F8)
        return ((const float *)p.s)[i / 2];
    if (!is_k(f))
        return f16_bits(((const uint16_t *)p.s)[has_min(f) ? 2 * i : i]);
    const uint8_t *s = (const uint8_t *)p.s + 2 * i;
    const uint16_t *d = (const uint16_t *)p.d;
    if (f == FAM_K6)
        return f16_bits(d[super]) * (float)(int8_t)s[half];
    return f16_bits(d[2 * super]) * (float)s[0];
}

__device__ static inline float block_min(enum family f, const struct weight_planes &p, int64_t i, int64_t super)
{
    if (!is_k(f))
        return f16_bits(((const uint16_t *)p.s)[2 * i + 1]);
    return 0.0f - f16_bits(((const uint16_t *)p.d)[2 * super + 1]) * (float)((const uint8_t *)p.s)[2 * i + 1];
}

/* The low four bits of x, each in bit `at` of a byte of its own: four copies, 7 bits apart, that do not overlap. */
__device__ static inline uint32_t spread_bits(uint32_t x, int at)
{
    return (x & 15u) * (0x00204081u << at) & 0x01010101u << at;
}

/* The same for four pairs of bits: even and odd pairs apart; where copies overlap, bits are not used. */
__device__ static inline uint32_t spread_pairs(uint32_t x, int at)
{
    return ((x & 0x33u) * (0x1001u << at) + (x & 0xccu) * (0x40040u << at)) & 0x03030303u << at;
}

/* Block i as eight words of four bytes: elements 4k .. 4k+3 in word k, unsigned with zero_of inside, 8 bits signed or a
 * code. */
template <enum family F>
__device__ static inline void unpack_block(const struct weight_planes &p, int64_t i, uint32_t w[8])
{
    const uint4 *q = (const uint4 *)p.q + (bits_of(F) == 8 ? 2 * i : i);
    uint4 a = q[0];
    if constexpr (bits_of(F) == 8) {
        uint4 b = q[1];
        w[0] = a.x, w[1] = a.y, w[2] = a.z, w[3] = a.w;
        w[4] = b.x, w[5] = b.y, w[6] = b.z, w[7] = b.w;
    } else {
        const uint32_t word[4] = {a.x, a.y, a.z, a.w};
#pragma unroll
        for (int k = 0; k < 4; k++) {
            w[k] = word[k] & 0x0f0f0f0fu;
            w[k + 4] = word[k] >> 4 & 0x0f0f0f0fu;
        }
    }
    if constexpr (bits_of(F) == 5) {
        uint32_t high = ((const uint32_t *)p.h)[i];
#pragma unroll
        for (int k = 0; k < 8; k++)
            w[k] |= spread_bits(high >> 4 * k, 4);
    }
    if constexpr (bits_of(F) == 6) {
        uint2 high = ((const uint2 *)p.h)[i];
#pragma unroll
        for (int k = 0; k < 4; k++) {
            w[k] |= spread_pairs(high.x >> 8 * k, 4);
            w[k + 4] |= spread_pairs(high.y >> 8 * k, 4);
        }
    }
}

/* Element e of block i, before its scale. */
__device__ static inline int element_at(const struct weight_planes &p, int64_t i, int e)
{
    if (p.family == FAM_S8)
        return ((const int8_t *)p.q)[32 * i + e];
    int q = ((const uint8_t *)p.q)[16 * i + e % 16] >> (e < 16 ? 0 : 4) & 15;
    if (bits_of(p.family) == 5)
        q |= (int)(((const uint32_t *)p.h)[i] >> e & 1u) << 4;
    if (bits_of(p.family) == 6)
        q |= (int)(((const uint32_t *)p.h)[2 * i + e / 16] >> 2 * (e % 16) & 3u) << 4;
    return q - zero_of(p.family);
}

/* One weight, in the operations of dtype_to_f32. */
__device__ static inline float weight_at(const struct weight_planes &p, int row, int col)
{
    if (p.family == FAM_F32)
        return ((const float *)p.q)[(int64_t)row * p.stride + col];
    if (is_float(p.family)) {
        uint16_t h = ((const uint16_t *)p.q)[(int64_t)row * p.stride + col];
        return p.family == FAM_F16 ? f16_bits(h) : bf16_bits(h);
    }
    int b = col / BLOCK_COLS, e = col % BLOCK_COLS;
    int64_t i = (int64_t)row * p.blocks + b, super = (int64_t)row * ((p.blocks + 7) / 8) + b / 8;
    if (p.family == FAM_F8)
        return block_scale(FAM_F8, p, i, super, 0) * f8_bits(((const uint8_t *)p.q)[32 * i + e]);
    float x = block_scale(p.family, p, i, super, e / 16) * (float)element_at(p, i, e);
    return has_min(p.family) ? x + block_min(p.family, p, i, super) : x;
}

#endif
