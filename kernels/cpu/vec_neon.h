/* Sixteen lanes as four NEON registers, for aarch64. Same names and same results, bit for bit, as vec_portable.h, but
 * for integer dots: vec_neon_wide.h, vec_neon_dotprod.h and vec_neon_i8mm.h have those, by what the CPU can. */
#ifndef CPU_VEC_NEON_H
#define CPU_VEC_NEON_H

#include <arm_neon.h>
#include <string.h>

#include "kernels/cpu/inline.h"
#include "kernels/cpu/kernels.h"

enum { TILE = 4 }; /* 4 rows x 16 outputs: 16 registers of sums, 4 of weights, 1 of an input */

typedef struct {
    float32x4_t a, b, c, d;
} vf;
typedef struct {
    int32x4_t a, b, c, d;
} vi;

INLINE vf vf_set1(float x)
{
    float32x4_t v = vdupq_n_f32(x);
    return (vf){v, v, v, v};
}

INLINE vf vf_load(const float *p)
{
    return (vf){vld1q_f32(p), vld1q_f32(p + 4), vld1q_f32(p + 8), vld1q_f32(p + 12)};
}

INLINE vf vf_load1(const float *p)
{
    float32x4_t v = vld1q_dup_f32(p);
    return (vf){v, v, v, v};
}

INLINE vf widen_f16(uint16x8_t low, uint16x8_t high)
{
    float16x8_t l = vreinterpretq_f16_u16(low), h = vreinterpretq_f16_u16(high);
    return (vf){vcvt_f32_f16(vget_low_f16(l)), vcvt_high_f32_f16(l), vcvt_f32_f16(vget_low_f16(h)),
                vcvt_high_f32_f16(h)};
}

INLINE vf vf_load_f16(const uint16_t *p)
{
    return widen_f16(vld1q_u16(p), vld1q_u16(p + 8));
}

INLINE vf vf_load_bf16(const uint16_t *p)
{
    uint16x8_t l = vld1q_u16(p), h = vld1q_u16(p + 8);
    return (vf){vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(l), 16)), vreinterpretq_f32_u32(vshll_high_n_u16(l, 16)),
                vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(h), 16)),
                vreinterpretq_f32_u32(vshll_high_n_u16(h, 16))};
}

/* 256ths of eight E4M3 codes, as f16: the same fields at another bias, NaN apart. */
INLINE uint16x8_t widen_f8(uint16x8_t x)
{
    uint16x8_t low = vdupq_n_u16(0x7f), a = vandq_u16(x, low), nan = vceqq_u16(a, low);
    a = vmaxq_u16(vshlq_n_u16(a, 7), vandq_u16(nan, vdupq_n_u16(0x7e00)));
    return vorrq_u16(a, vshlq_n_u16(vshrq_n_u16(x, 7), 15));
}

INLINE vf vf_mul(vf x, vf y)
{
    return (vf){vmulq_f32(x.a, y.a), vmulq_f32(x.b, y.b), vmulq_f32(x.c, y.c), vmulq_f32(x.d, y.d)};
}

INLINE vf vf_load_f8(const uint8_t *p)
{
    uint8x16_t x = vld1q_u8(p);
    uint16x8_t low = widen_f8(vmovl_u8(vget_low_u8(x))), high = widen_f8(vmovl_high_u8(x));
    return vf_mul(widen_f16(low, high), vf_set1(256));
}

INLINE vf vf_load_u8(const uint8_t *p)
{
    uint8x16_t x = vld1q_u8(p);
    uint16x8_t l = vmovl_u8(vget_low_u8(x)), h = vmovl_high_u8(x);
    return (vf){vcvtq_f32_u32(vmovl_u16(vget_low_u16(l))), vcvtq_f32_u32(vmovl_high_u16(l)),
                vcvtq_f32_u32(vmovl_u16(vget_low_u16(h))), vcvtq_f32_u32(vmovl_high_u16(h))};
}

INLINE vf vf_load_nibble(const uint8_t *p, bool high)
{
    uint8_t nibbles[16];
    uint8x16_t x = vld1q_u8(p);
    vst1q_u8(nibbles, high ? vshrq_n_u8(x, 4) : vandq_u8(x, vdupq_n_u8(15)));
    return vf_load_u8(nibbles);
}

INLINE vf vf_load_s8(const int8_t *p)
{
    int8x16_t x = vld1q_s8(p);
    int16x8_t l = vmovl_s8(vget_low_s8(x)), h = vmovl_high_s8(x);
    return (vf){vcvtq_f32_s32(vmovl_s16(vget_low_s16(l))), vcvtq_f32_s32(vmovl_high_s16(l)),
                vcvtq_f32_s32(vmovl_s16(vget_low_s16(h))), vcvtq_f32_s32(vmovl_high_s16(h))};
}

INLINE void vf_store(float *p, vf x)
{
    vst1q_f32(p, x.a);
    vst1q_f32(p + 4, x.b);
    vst1q_f32(p + 8, x.c);
    vst1q_f32(p + 12, x.d);
}

INLINE void vf_store_f16(uint16_t *p, vf x)
{
    vst1q_u16(p, vreinterpretq_u16_f16(vcvt_high_f16_f32(vcvt_f16_f32(x.a), x.b)));
    vst1q_u16(p + 8, vreinterpretq_u16_f16(vcvt_high_f16_f32(vcvt_f16_f32(x.c), x.d)));
}

/* As bfloat16, to nearest even, NaN kept, in the upper half of each lane; the lower one has anything. */
INLINE uint32x4_t round_bf16(float32x4_t x)
{
    uint32x4_t u = vreinterpretq_u32_f32(x), odd = vandq_u32(vshrq_n_u32(u, 16), vdupq_n_u32(1));
    uint32x4_t near = vaddq_u32(u, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
    return vbslq_u32(vceqq_f32(x, x), near, vorrq_u32(u, vdupq_n_u32(0x400000)));
}

INLINE float32x4_t round_half(float32x4_t x)
{
    return vreinterpretq_f32_u32(vandq_u32(round_bf16(x), vdupq_n_u32(0xffff0000u)));
}

INLINE vf vf_round_half(vf x)
{
    return (vf){round_half(x.a), round_half(x.b), round_half(x.c), round_half(x.d)};
}

INLINE void vf_store_bf16(uint16_t *p, vf x)
{
    vst1q_u16(p, vshrn_high_n_u32(vshrn_n_u32(round_bf16(x.a), 16), round_bf16(x.b), 16));
    vst1q_u16(p + 8, vshrn_high_n_u32(vshrn_n_u32(round_bf16(x.c), 16), round_bf16(x.d), 16));
}

INLINE void vf_store_f8(uint8_t *p, vf x)
{
    float t[16];
    vf_store(t, x);
    for (int i = 0; i < 16; i++)
        p[i] = f32_to_f8(t[i]);
}

INLINE void store_pairs(uint8_t *p, float32x4_t even, float32x4_t odd)
{
    vst1q_u32((uint32_t *)(void *)p, vsriq_n_u32(round_bf16(odd), round_bf16(even), 16));
}

/* Pairs of bfloat16, the even ones below. */
INLINE void vf_store_pairs(uint8_t *p, vf even, vf odd)
{
    store_pairs(p, even.a, odd.a);
    store_pairs(p + 16, even.b, odd.b);
    store_pairs(p + 32, even.c, odd.c);
    store_pairs(p + 48, even.d, odd.d);
}

INLINE uint32x4_t four_pairs(const uint8_t *p)
{
    return vld1q_u32((const uint32_t *)(const void *)p);
}

INLINE float32x4_t even_of(uint32x4_t pairs)
{
    return vreinterpretq_f32_u32(vshlq_n_u32(pairs, 16));
}

INLINE float32x4_t odd_of(uint32x4_t pairs)
{
    return vreinterpretq_f32_u32(vandq_u32(pairs, vdupq_n_u32(0xffff0000u)));
}

INLINE void vf_load_pairs(const uint8_t *p, vf *even, vf *odd)
{
    uint32x4_t a = four_pairs(p), b = four_pairs(p + 16), c = four_pairs(p + 32), d = four_pairs(p + 48);
    *even = (vf){even_of(a), even_of(b), even_of(c), even_of(d)};
    *odd = (vf){odd_of(a), odd_of(b), odd_of(c), odd_of(d)};
}

/* The larger, the second when they do not compare: vmaxq_f32 would take NaN and +0 first. */
INLINE float32x4_t larger(float32x4_t x, float32x4_t y)
{
    return vbslq_f32(vcgtq_f32(x, y), x, y);
}

INLINE float32x4_t smaller(float32x4_t x, float32x4_t y)
{
    return vbslq_f32(vcltq_f32(x, y), x, y);
}

INLINE float32x4_t drop_small(float32x4_t x)
{
    uint32x4_t small = vcaltq_f32(x, vdupq_n_f32(SMALLEST_HALF)); /* keeps NaN */
    return vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(x), small));
}

INLINE float32x4_t zero_below(float32x4_t x, float32x4_t floor, float32x4_t value)
{
    return vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(value), vcltq_f32(x, floor)));
}

INLINE float32x4_t add_exponent(float32x4_t p, float32x4_t t)
{
    int32x4_t n = vshlq_n_s32(vreinterpretq_s32_f32(t), 23);
    return vreinterpretq_f32_s32(vaddq_s32(vreinterpretq_s32_f32(p), n));
}

#define NEON_BINARY(name, op)                                                                                          \
    INLINE vf name(vf x, vf y)                                                                                         \
    {                                                                                                                  \
        return (vf){op(x.a, y.a), op(x.b, y.b), op(x.c, y.c), op(x.d, y.d)};                                           \
    }
NEON_BINARY(vf_add, vaddq_f32)
NEON_BINARY(vf_sub, vsubq_f32)
NEON_BINARY(vf_div, vdivq_f32)
NEON_BINARY(vf_max, larger)
NEON_BINARY(vf_min, smaller)
NEON_BINARY(vf_scale_pow2, add_exponent)

INLINE vf vf_drop_small(vf x)
{
    return (vf){drop_small(x.a), drop_small(x.b), drop_small(x.c), drop_small(x.d)};
}

INLINE vf vf_fma(vf x, vf y, vf z)
{
    return (vf){vfmaq_f32(z.a, x.a, y.a), vfmaq_f32(z.b, x.b, y.b), vfmaq_f32(z.c, x.c, y.c), vfmaq_f32(z.d, x.d, y.d)};
}

INLINE vf vf_zero_below(vf x, vf floor, vf value)
{
    return (vf){zero_below(x.a, floor.a, value.a), zero_below(x.b, floor.b, value.b), zero_below(x.c, floor.c, value.c),
                zero_below(x.d, floor.d, value.d)};
}

INLINE float vf_sum(vf x)
{
    float32x4_t s4 = vaddq_f32(vaddq_f32(x.a, x.c), vaddq_f32(x.b, x.d));
    float32x2_t s2 = vadd_f32(vget_low_f32(s4), vget_high_f32(s4));
    return vget_lane_f32(s2, 0) + vget_lane_f32(s2, 1);
}

INLINE float vf_max_lane(vf x)
{
    float32x4_t s4 = larger(larger(x.a, x.c), larger(x.b, x.d)), s2 = larger(s4, vextq_f32(s4, s4, 2));
    float a = vgetq_lane_f32(s2, 0), b = vgetq_lane_f32(s2, 1);
    return a > b ? a : b;
}

INLINE void prefetch(const void *p)
{
    __builtin_prefetch(p);
}

INLINE void prefetch_far(const void *p)
{
    __builtin_prefetch(p, 0, 2);
}

INLINE uint32_t amax_bits32(const float *x)
{
    const uint32x4_t mask = vdupq_n_u32(0x7fffffff);
    uint32x4_t most = vdupq_n_u32(0);
    for (int i = 0; i < 32; i += 4)
        most = vmaxq_u32(most, vandq_u32(mask, vreinterpretq_u32_f32(vld1q_f32(x + i))));
    return vmaxvq_u32(most);
}

/* Eight floats to the nearest integers, ties to even, of what 16 bits hold. */
INLINE int16x8_t nearest8(float32x4_t a, float32x4_t b)
{
    return vqmovn_high_s32(vqmovn_s32(vcvtnq_s32_f32(a)), vcvtnq_s32_f32(b));
}

INLINE int16x8_t round8(const float *x, float k)
{
    return nearest8(vmulq_n_f32(vld1q_f32(x), k), vmulq_n_f32(vld1q_f32(x + 4), k));
}

INLINE vi vi_load1(const int32_t *p)
{
    int32x4_t x = vld1q_dup_s32(p);
    return (vi){x, x, x, x};
}

INLINE vi vi_zero(void)
{
    int32x4_t x = vdupq_n_s32(0);
    return (vi){x, x, x, x};
}

INLINE vi vi_sub_shifted(vi x, vi y, int shift)
{
    int32x4_t s = vshlq_s32(y.a, vdupq_n_s32(shift)); /* y is one value in all lanes */
    return (vi){vsubq_s32(x.a, s), vsubq_s32(x.b, s), vsubq_s32(x.c, s), vsubq_s32(x.d, s)};
}

INLINE vf vi_to_f(vi x)
{
    return (vf){vcvtq_f32_s32(x.a), vcvtq_f32_s32(x.b), vcvtq_f32_s32(x.c), vcvtq_f32_s32(x.d)};
}

#endif
