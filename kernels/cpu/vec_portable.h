/* Sixteen lanes in plain C: the reference that the SIMD versions must equal bit for bit. A lane is one output of the
 * op (an output row of a linear layer, a cached position, an element of a head), so nothing here adds up lanes except
 * vf_sum, in one fixed tree. Included by kernels_portable.c only, before the bodies. Invariant: every operation says
 * how it rounds; nothing is left to the compiler. */
#ifndef CPU_VEC_PORTABLE_H
#define CPU_VEC_PORTABLE_H

#include <math.h>
#include <string.h>

#include "kernels/cpu/kernels.h"

#define INLINE static inline
#define UNROLL
#define UNROLL_SUMS
enum { TILE = 4, QUANT_TILE = 2, FAST_TILE = 2 };

#define LANES for (int i = 0; i < 16; i++)

typedef struct {
    float v[16];
} vf;
typedef struct {
    int32_t v[16];
} vi;

INLINE vf vf_set1(float x)
{
    vf r;
    LANES r.v[i] = x;
    return r;
}

INLINE vf vf_load(const float *p)
{
    vf r;
    memcpy(&r, p, sizeof r);
    return r;
}

INLINE vf vf_load1(const float *p)
{
    return vf_set1(*p);
}

INLINE vf vf_load_f16(const uint16_t *p)
{
    vf r;
    LANES r.v[i] = f16_to_f32(p[i]);
    return r;
}

INLINE vf vf_load_bf16(const uint16_t *p)
{
    vf r;
    LANES r.v[i] = bf16_to_f32(p[i]);
    return r;
}

INLINE vf vf_load_f8(const uint8_t *p)
{
    vf r;
    LANES r.v[i] = f8_to_f32(p[i]);
    return r;
}

INLINE vf vf_load_u8(const uint8_t *p)
{
    vf r;
    LANES r.v[i] = (float)p[i];
    return r;
}

INLINE vf vf_load_nibble(const uint8_t *p, bool high)
{
    vf r;
    LANES r.v[i] = (float)(high ? p[i] >> 4 : p[i] & 15);
    return r;
}

INLINE vf vf_load_s8(const int8_t *p)
{
    vf r;
    LANES r.v[i] = (float)p[i];
    return r;
}

INLINE void vf_store(float *p, vf a)
{
    memcpy(p, &a, sizeof a);
}

INLINE void vf_store_f16(uint16_t *p, vf a)
{
    LANES p[i] = f32_to_f16(a.v[i]);
}

INLINE void vf_store_f8(uint8_t *p, vf a)
{
    LANES p[i] = f32_to_f8(a.v[i]);
}

INLINE void vf_store_bf16(uint16_t *p, vf a)
{
    LANES p[i] = f32_to_bf16(a.v[i]);
}

/* Zero for what is so small that products of two such could be subnormal, which AVX512-BF16 takes for zero. */
INLINE vf vf_drop_small(vf x)
{
    LANES x.v[i] = fabsf(x.v[i]) < SMALLEST_HALF ? 0 : x.v[i];
    return x;
}

/* To the nearest bfloat16, NaN kept. */
INLINE vf vf_round_half(vf x)
{
    LANES x.v[i] = bf16_to_f32(f32_to_bf16(x.v[i]));
    return x;
}

/* Pairs of bfloat16, the even ones below. */
INLINE void vf_store_pairs(uint8_t *p, vf even, vf odd)
{
    LANES
    {
        uint16_t two[2] = {f32_to_bf16(even.v[i]), f32_to_bf16(odd.v[i])};
        memcpy(p + 4 * i, two, 4);
    }
}

INLINE void vf_load_pairs(const uint8_t *p, vf *even, vf *odd)
{
    LANES
    {
        uint16_t two[2];
        memcpy(two, p + 4 * i, 4);
        even->v[i] = bf16_to_f32(two[0]);
        odd->v[i] = bf16_to_f32(two[1]);
    }
}

#define PORTABLE_BINARY(name, expr)                                                                                    \
    INLINE vf name(vf a, vf b)                                                                                         \
    {                                                                                                                  \
        vf r;                                                                                                          \
        LANES r.v[i] = expr;                                                                                           \
        return r;                                                                                                      \
    }
PORTABLE_BINARY(vf_add, a.v[i] + b.v[i])
PORTABLE_BINARY(vf_sub, a.v[i] - b.v[i])
PORTABLE_BINARY(vf_mul, a.v[i] * b.v[i])
PORTABLE_BINARY(vf_div, a.v[i] / b.v[i])
PORTABLE_BINARY(vf_max, a.v[i] > b.v[i] ? a.v[i] : b.v[i]) /* as maxps: the second when they do not compare */
PORTABLE_BINARY(vf_min, a.v[i] < b.v[i] ? a.v[i] : b.v[i])

INLINE vf vf_fma(vf a, vf b, vf c)
{
    vf r;
    LANES r.v[i] = fmaf(a.v[i], b.v[i], c.v[i]);
    return r;
}

/* x where x >= floor or x is no number, else 0. */
INLINE vf vf_zero_below(vf x, vf floor, vf value)
{
    vf r;
    LANES r.v[i] = x.v[i] < floor.v[i] ? 0.0f : value.v[i];
    return r;
}

/* p * 2^n, n held in the low bits of t's mantissa (t = n + 1.5 * 2^23). */
INLINE vf vf_scale_pow2(vf p, vf t)
{
    vf r;
    LANES
    {
        uint32_t a, b;
        memcpy(&a, &p.v[i], 4);
        memcpy(&b, &t.v[i], 4);
        a += b << 23;
        memcpy(&r.v[i], &a, 4);
    }
    return r;
}

INLINE float vf_sum(vf a)
{
    for (int half = 8; half; half /= 2)
        for (int i = 0; i < half; i++)
            a.v[i] = a.v[i] + a.v[i + half];
    return a.v[0];
}

INLINE float vf_max_lane(vf a)
{
    for (int half = 8; half; half /= 2)
        for (int i = 0; i < half; i++)
            a.v[i] = a.v[i] > a.v[i + half] ? a.v[i] : a.v[i + half];
    return a.v[0];
}

/* The largest |x| of 32 floats as bits: ordered like the values, infinity and NaN above all. */
INLINE uint32_t amax_bits32(const float *x)
{
    uint32_t most = 0;
    for (int i = 0; i < 32; i++) {
        uint32_t u;
        memcpy(&u, x + i, 4);
        u &= 0x7fffffffu;
        most = u > most ? u : most;
    }
    return most;
}

INLINE int32_t nearest(float x)
{
    float t = x + 12582912.0f; /* 1.5 * 2^23: the low mantissa bits are the rounded integer */
    uint32_t u;
    memcpy(&u, &t, 4);
    return (int32_t)(u - 0x4b400000u);
}

/* q = round to nearest even of x[i] * k for 32 floats, |q| <= QUANT_MAX, as planes, the high one first; fast: |q| <=
 * FAST_MAX, one plane. The sums of the two halves. */
INLINE void round32(const float *x, float k, int8_t *to, int32_t sum[2], bool fast)
{
    sum[0] = sum[1] = 0;
    for (int i = 0; i < 32; i++) {
        int32_t q = nearest(x[i] * k), h = fast ? q : nearest((float)q * (1.0f / 255.0f));
        to[i] = (int8_t)h;
        if (!fast)
            to[32 + i] = (int8_t)(q - 255 * h);
        sum[i / 16] += q;
    }
}

INLINE vi vi_load1(const int32_t *p)
{
    vi r;
    LANES r.v[i] = *p;
    return r;
}

INLINE vi vi_sub_shifted(vi a, vi b, int shift)
{
    vi r;
    LANES r.v[i] = a.v[i] - b.v[i] * (1 << shift);
    return r;
}

INLINE vf vi_to_f(vi a)
{
    vf r;
    LANES r.v[i] = (float)a.v[i];
    return r;
}

INLINE void prefetch(const void *p)
{
    (void)p;
}

INLINE void prefetch_far(const void *p)
{
    (void)p;
}

/* 8-bit weights are multiplied as w + (1 << S8_SHIFT), or as they are where it is 0. Here a panel is the block with one
 * byte per weight. */
enum { S8_SHIFT = 0, PANEL_BLOCK = 512 };

INLINE int weight_at(int bits, bool panel, const uint8_t *w, int c, int j)
{
    if (bits == 8)
        return (int8_t)w[64 * c + j];
    if (panel)
        return w[64 * c + j]; /* never of coded ones, whose panel is that of 8 bits */
    if (bits < 4) {
        int two = w[64 * (c / 4) + j] >> 2 * (c % 4) & 3;
        return bits == 2 ? two : two | (w[128 + j] >> c & 1) << 2;
    }
    int low = c < 4 ? w[64 * c + j] & 15 : w[64 * (c - 4) + j] >> 4;
    if (bits == 5)
        return low | (w[256 + j] >> c & 1) << 4;
    if (bits == 6)
        return low | (w[256 + 64 * (c / 4) + j] >> 2 * (c % 4) & 3) << 4;
    return bits == CODED ? dtype_codes[low] : low;
}

/* Exact dots of one packed block (pack.h) with the inputs of R rows; of those in halves, of the part's
 * 16 columns. */
INLINE void dot_block(int bits, bool panel, bool fast, int part, int R, const uint8_t *w, const int8_t *q, vi dot[])
{
    memset(dot, 0, (size_t)R * sizeof dot[0]);
    for (int c = 4 * part, end = bits_in_halves(bits) ? c + 4 : 8; c < end; c++)
        for (int j = 0; j < 64; j++) {
            int x = weight_at(bits, panel, w, c, j);
            for (int r = 0; r < R; r++) {
                const int8_t *at = q + quant_block(fast) * (size_t)r + 4 * c + j % 4;
                dot[r].v[j / 4] += x * (fast ? at[0] : 255 * at[0] + at[32]);
            }
        }
}

/* Up to so many rows weights are multiplied from where they lie; more are worth a panel. */
INLINE int in_place_rows(enum family f, bool fast)
{
    (void)f;
    return fast ? FAST_TILE : QUANT_TILE;
}

/* One block's weights, a byte each, chunk after chunk. */
INLINE void panel_block(int bits, bool fast, const uint8_t *w, uint8_t *out)
{
    (void)fast;
    for (int c = 0; c < 8; c++)
        for (int j = 0; j < 64; j++)
            out[64 * c + j] = (uint8_t)(weight_at(bits, false, w, c, j) + (bits == 3 ? THREE_AS_SIX : 0));
}

#endif
