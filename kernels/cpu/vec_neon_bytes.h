/* Quantised weights and inputs as the dots of vec_neon_*.h read them. 8-bit weights are multiplied as they are. */
#ifndef CPU_VEC_NEON_BYTES_H
#define CPU_VEC_NEON_BYTES_H

#include "kernels/cpu/vec_neon.h"

enum { S8_SHIFT = 0 };

/* Byte j of 64 as lane j % 16 of register j / 16; columns apart: as lane j / 4 of register j % 4. */
INLINE uint8x16x4_t load64(bool apart, const uint8_t *p)
{
    if (apart)
        return vld4q_u8(p);
    return (uint8x16x4_t){{vld1q_u8(p), vld1q_u8(p + 16), vld1q_u8(p + 32), vld1q_u8(p + 48)}};
}

INLINE void store64(uint8_t *p, uint8x16x4_t x)
{
    vst1q_u8(p, x.val[0]);
    vst1q_u8(p + 16, x.val[1]);
    vst1q_u8(p + 32, x.val[2]);
    vst1q_u8(p + 48, x.val[3]);
}

/* By so many bits to the left, or to the right where it is negative, and of that the bits of the mask. */
INLINE uint8x16_t shifted(uint8x16_t x, int by, uint8_t mask)
{
    return vandq_u8(vshlq_u8(x, vdupq_n_s8((int8_t)by)), vdupq_n_u8(mask));
}

/* Two or three bits of chunk c. */
INLINE uint8x16x4_t few_bits(int bits, bool apart, const uint8_t *w, int c)
{
    uint8x16x4_t x = load64(apart, w + 64 * (c / 4));
    UNROLL for (int i = 0; i < 4; i++) x.val[i] = shifted(x.val[i], -2 * (c % 4), 3);
    if (bits == 2)
        return x;
    uint8x16x4_t third = load64(apart, w + 128);
    UNROLL for (int i = 0; i < 4; i++) x.val[i] = vorrq_u8(x.val[i], shifted(third.val[i], 2 - c, 4));
    return x;
}

/* The bits above the nibble of chunk c, in place. */
INLINE uint8x16x4_t high_bits(int bits, bool apart, const uint8_t *w, int c)
{
    uint8x16x4_t x = load64(apart, w + 256 + (bits == 6 ? 64 * (c / 4) : 0));
    int up = bits == 6 ? 4 - 2 * (c % 4) : 4 - c;
    UNROLL for (int i = 0; i < 4; i++) x.val[i] = shifted(x.val[i], up, bits == 6 ? 0x30 : 0x10);
    return x;
}

/* Chunk c of a packed block, a byte for each weight. */
INLINE uint8x16x4_t chunk(int bits, bool apart, const uint8_t *w, int c)
{
    if (bits == 8)
        return load64(apart, w + 64 * c);
    if (bits < 4)
        return few_bits(bits, apart, w, c);
    uint8x16x4_t x = load64(apart, w + 64 * (c % 4));
    UNROLL for (int i = 0; i < 4; i++) x.val[i] = c < 4 ? vandq_u8(x.val[i], vdupq_n_u8(15)) : vshrq_n_u8(x.val[i], 4);
    if (bits == 4)
        return x;
    if (bits == CODED) {
        uint8x16_t codes = vreinterpretq_u8_s8(vld1q_s8(dtype_codes));
        UNROLL for (int i = 0; i < 4; i++) x.val[i] = vqtbl1q_u8(codes, x.val[i]);
        return x;
    }
    uint8x16x4_t high = high_bits(bits, apart, w, c);
    UNROLL for (int i = 0; i < 4; i++) x.val[i] = vorrq_u8(x.val[i], high.val[i]);
    return x;
}

/* 32 fast inputs, and the sums of both halves. */
INLINE void round32_fast(const float *x, float k, int8_t *to, int32_t sum[2])
{
    UNROLL for (int i = 0; i < 2; i++)
    {
        int16x8_t low = round8(x + 16 * i, k), high = round8(x + 16 * i + 8, k);
        vst1q_s8(to + 16 * i, vmovn_high_s16(vmovn_s16(low), high));
        sum[i] = vaddlvq_s16(low) + vaddlvq_s16(high);
    }
}

/* 32 inputs in two planes of bytes: q = 255 * high + low. Eight columns of the high one begin each `step` bytes, and
 * those of the low one `apart` bytes behind them. */
INLINE void round32_planes(const float *x, float k, int8_t *to, int32_t sum[2], int step, int apart)
{
    sum[0] = sum[1] = 0;
    UNROLL for (int i = 0; i < 4; i++)
    {
        int16x8_t q = round8(x + 8 * i, k);
        float32x4_t a = vcvtq_f32_s32(vmovl_s16(vget_low_s16(q))), b = vcvtq_f32_s32(vmovl_high_s16(q));
        int16x8_t high = nearest8(vmulq_n_f32(a, 1.0f / 255.0f), vmulq_n_f32(b, 1.0f / 255.0f));
        vst1_s8(to + step * i, vmovn_s16(high));
        vst1_s8(to + step * i + apart, vmovn_s16(vmlsq_n_s16(q, high, 255)));
        sum[i / 2] += vaddlvq_s16(q);
    }
}

INLINE vi join_planes(vi high, vi low)
{
    return (vi){vmlaq_n_s32(low.a, high.a, 255), vmlaq_n_s32(low.b, high.b, 255), vmlaq_n_s32(low.c, high.c, 255),
                vmlaq_n_s32(low.d, high.d, 255)};
}

/* A chunk as a panel has it. */
INLINE uint8x16x4_t panel_chunk(int bits, bool apart, const uint8_t *w, int c)
{
    uint8x16x4_t x = chunk(bits, apart, w, c);
    UNROLL for (int i = 0; i < 4 && bits == 3; i++) x.val[i] = vaddq_u8(x.val[i], vdupq_n_u8(THREE_AS_SIX));
    return x;
}

/* Four tiles, since unpacking is cheap beside products; of three, five and six bits, where it is not, one. */
INLINE int tiles_in_place(enum family f)
{
    int bits = family_bits(f);
    return bits == 3 || bits == 5 || bits == 6 ? 1 : 4;
}

#endif
