#include "kernels/dtype.h"

#include <string.h>

#include "engine/base/check.h"

/* Names, block lengths and block bytes as the GGUF format fixes them. */
static const struct dtype_info infos[DT_COUNT] = {
    [DT_F32] = {"F32", 1, 4},         [DT_F16] = {"F16", 1, 2},
    [DT_BF16] = {"BF16", 1, 2},       [DT_Q4_0] = {"Q4_0", 32, 18},
    [DT_Q4_1] = {"Q4_1", 32, 20},     [DT_Q5_0] = {"Q5_0", 32, 22},
    [DT_Q5_1] = {"Q5_1", 32, 24},     [DT_Q8_0] = {"Q8_0", 32, 34},
    [DT_IQ4_NL] = {"IQ4_NL", 32, 18}, [DT_IQ4_XS] = {"IQ4_XS", 256, 136},
    [DT_Q2_K] = {"Q2_K", 256, 84},    [DT_Q3_K] = {"Q3_K", 256, 110},
    [DT_Q4_K] = {"Q4_K", 256, 144},   [DT_Q5_K] = {"Q5_K", 256, 176},
    [DT_Q6_K] = {"Q6_K", 256, 210},   [DT_F8_SCALED] = {"F8_SCALED", 64, 68},
    [DT_F8] = {"F8_E4M3", 1, 1},      [DT_I8] = {"I8", 1, 1},
};

const int8_t dtype_codes[DTYPE_CODES] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

const struct dtype_info *dtype_get(enum dtype t)
{
    ASSERT((unsigned)t < DT_COUNT);
    return &infos[t];
}

size_t dtype_row_bytes(enum dtype t, int64_t cols)
{
    const struct dtype_info *d = dtype_get(t);
    ASSERT(cols >= 0 && cols % d->block == 0);
    return (size_t)(cols / d->block) * (size_t)d->bytes;
}

static inline uint32_t bits_of(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static inline float float_of(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

float f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exponent = h >> 10 & 31u, mantissa = h & 0x3ffu;
    if (exponent == 31) /* infinity, or a NaN made quiet as the hardware does */
        return float_of(sign | 0x7f800000u | (mantissa ? 0x400000u | mantissa << 13 : 0));
    if (exponent == 0) { /* zero and subnormals: mantissa * 2^-24 is exact */
        float f = (float)mantissa * 0x1p-24f;
        return float_of(sign | bits_of(f));
    }
    return float_of(sign | (exponent + 112) << 23 | mantissa << 13);
}

uint16_t f32_to_f16(float f)
{
    uint32_t u = bits_of(f), sign = u >> 16 & 0x8000u, a = u & 0x7fffffffu;
    if (a > 0x7f800000u) /* NaN: quiet, top payload bits kept */
        return (uint16_t)(sign | 0x7e00u | (a >> 13 & 0x3ffu));
    if (a >= 0x477ff000u) /* 65520 and up round to infinity */
        return (uint16_t)(sign | 0x7c00u);
    if (a < 0x38800000u) { /* below 2^-14: adding 0.5 leaves the rounded multiple of 2^-24 in the low bits */
        return (uint16_t)(sign | (bits_of(float_of(a) + 0.5f) - 0x3f000000u));
    }
    uint32_t odd = a >> 13 & 1u;
    return (uint16_t)(sign | (a - 0x38000000u + 0xfffu + odd) >> 13);
}

uint16_t f32_to_bf16(float f)
{
    uint32_t u = bits_of(f);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(u >> 16 | 0x40u);
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}

float f8_to_f32(uint8_t code)
{
    uint32_t sign = (uint32_t)(code & 0x80u) << 24, a = code & 0x7fu;
    if (a == 0x7f)
        return float_of(sign | 0x7fc00000u);
    return float_of(sign | a << 20) * 0x1p120f; /* the same fields at another bias; exact, subnormals too */
}

uint8_t f32_to_f8(float f)
{
    uint32_t u = bits_of(f), sign = u >> 24 & 0x80u, a = u & 0x7fffffffu;
    if (a > 0x7f800000u)
        return (uint8_t)(sign | 0x7fu);
    if (a >= 0x43e00000u) /* 448 */
        return (uint8_t)(sign | 0x7eu);
    if (a < 0x3c800000u) /* below 2^-6: adding 2^14 leaves the rounded multiple of 2^-9 in the low bits */
        return (uint8_t)(sign | (bits_of(float_of(a) + 0x1p14f) - 0x46800000u));
    uint32_t odd = a >> 20 & 1u;
    return (uint8_t)(sign | (a - 0x3c000000u + 0x7ffffu + odd) >> 20);
}

static inline uint16_t u16_at(const uint8_t *p)
{
    return (uint16_t)(p[0] | p[1] << 8);
}

static inline float f16_at(const uint8_t *p)
{
    return f16_to_f32(u16_at(p));
}

static inline uint32_t u32_at(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

/* Q4_0: f16 d; 16 bytes, element i in the low nibble of byte i, element i+16 in the high one. x = d * (q - 8). */
static void block_q4_0(const uint8_t *b, float *y)
{
    float d = f16_at(b);
    for (int i = 0; i < 16; i++) {
        y[i] = d * (float)((b[2 + i] & 15) - 8);
        y[i + 16] = d * (float)((b[2 + i] >> 4) - 8);
    }
}

/* Q4_1: f16 d, f16 m; nibbles as Q4_0. x = d * q + m. */
static void block_q4_1(const uint8_t *b, float *y)
{
    float d = f16_at(b), m = f16_at(b + 2);
    for (int i = 0; i < 16; i++) {
        y[i] = d * (float)(b[4 + i] & 15) + m;
        y[i + 16] = d * (float)(b[4 + i] >> 4) + m;
    }
}

/* The fifth bits of Q5_0 and Q5_1: bit i of a 32-bit word belongs to element i. */
static inline int fifth(uint32_t high, int i)
{
    return (int)(high >> i & 1u) << 4;
}

/* Q5_0: f16 d; u32 fifth bits; nibbles. x = d * (q - 16). */
static void block_q5_0(const uint8_t *b, float *y)
{
    float d = f16_at(b);
    uint32_t high = u32_at(b + 2);
    for (int i = 0; i < 16; i++) {
        y[i] = d * (float)(((b[6 + i] & 15) | fifth(high, i)) - 16);
        y[i + 16] = d * (float)(((b[6 + i] >> 4) | fifth(high, i + 16)) - 16);
    }
}

/* Q5_1: f16 d, f16 m; u32 fifth bits; nibbles. x = d * q + m. */
static void block_q5_1(const uint8_t *b, float *y)
{
    float d = f16_at(b), m = f16_at(b + 2);
    uint32_t high = u32_at(b + 4);
    for (int i = 0; i < 16; i++) {
        y[i] = d * (float)((b[8 + i] & 15) | fifth(high, i)) + m;
        y[i + 16] = d * (float)((b[8 + i] >> 4) | fifth(high, i + 16)) + m;
    }
}

/* Q8_0: f16 d; 32 int8. x = d * q. */
static void block_q8_0(const uint8_t *b, float *y)
{
    float d = f16_at(b);
    for (int i = 0; i < 32; i++)
        y[i] = d * (float)(int8_t)b[2 + i];
}

/* IQ4_NL: f16 d; nibbles as Q4_0, which say where the value stands among dtype_codes. x = d * code. */
static void block_iq4_nl(const uint8_t *b, float *y)
{
    float d = f16_at(b);
    for (int i = 0; i < 16; i++) {
        y[i] = d * (float)dtype_codes[b[2 + i] & 15];
        y[i + 16] = d * (float)dtype_codes[b[2 + i] >> 4];
    }
}

/* IQ4_XS: f16 d; u16 upper two bits of the 6-bit scales; 4 bytes of their nibbles; 128 bytes, 16 for each 32 elements
 * as in IQ4_NL. x = d * (scale - 32) * code. */
static void block_iq4_xs(const uint8_t *b, float *y)
{
    float d = f16_at(b);
    uint16_t high = u16_at(b + 2);
    for (int j = 0; j < 8; j++) {
        int scale = ((b[4 + j / 2] >> 4 * (j % 2) & 15) | (high >> 2 * j & 3) << 4) - 32;
        const uint8_t *q = b + 8 + 16 * j;
        for (int i = 0; i < 16; i++) {
            y[j * 32 + i] = d * (float)scale * (float)dtype_codes[q[i] & 15];
            y[j * 32 + i + 16] = d * (float)scale * (float)dtype_codes[q[i] >> 4];
        }
    }
}

/* Element r*32+i (r = 0..3) of each 128 of Q2_K and Q3_K has its two bits at 2r of byte i of their 32. */
static inline int two_bits(const uint8_t *q, int i)
{
    return q[i / 128 * 32 + i % 32] >> 2 * (i / 32 % 4) & 3;
}

/* Q2_K: 16 bytes, a scale in the low nibble and a min in the high one for each 16 elements; 64 bytes; f16 d, f16 dmin.
 * x = d * scale * q - dmin * min. */
static void block_q2_k(const uint8_t *b, float *y)
{
    float d = f16_at(b + 80), dmin = f16_at(b + 82);
    for (int i = 0; i < 256; i++)
        y[i] = d * (float)(b[i / 16] & 15) * (float)two_bits(b + 16, i) - dmin * (float)(b[i / 16] >> 4);
}

/* Q3_K: 32 bytes of third bits, bit j of byte i of element 32*j+i; 64 bytes; 12 bytes of 6-bit scales, one for each 16
 * elements: nibbles in the first eight, upper bits in the last four; f16 d. x = d * (scale - 32) * (q - 4). */
static void block_q3_k(const uint8_t *b, float *y)
{
    const uint8_t *s = b + 96;
    float d = f16_at(b + 108);
    for (int i = 0; i < 256; i++) {
        int j = i / 16, scale = (s[j % 8] >> 4 * (j / 8) & 15) | (s[8 + j % 4] >> 2 * (j / 4) & 3) << 4;
        int q = two_bits(b + 32, i) | (b[i % 32] >> i / 32 & 1) << 2;
        y[i] = d * (float)(scale - 32) * (float)(q - 4);
    }
}

/* The 6-bit scale and min of sub-block j of Q4_K and Q5_K, out of 12 bytes. */
static void k_scale(const uint8_t *s, int j, int *scale, int *min)
{
    if (j < 4) {
        *scale = s[j] & 63;
        *min = s[j + 4] & 63;
    } else {
        *scale = (s[j + 4] & 15) | (s[j - 4] >> 6) << 4;
        *min = s[j + 4] >> 4 | (s[j] >> 6) << 4;
    }
}

/* Q4_K: f16 d, f16 dmin; 12 bytes of scales; 128 bytes. Sub-block j (32 elements): nibbles of bytes (j/2)*32 .., low
 * when j is even. x = d * scale * q - dmin * min. */
static void block_q4_k(const uint8_t *b, float *y)
{
    float d = f16_at(b), dmin = f16_at(b + 2);
    for (int j = 0; j < 8; j++) {
        int scale, min;
        k_scale(b + 4, j, &scale, &min);
        float ds = d * (float)scale, dm = dmin * (float)min;
        const uint8_t *q = b + 16 + (j / 2) * 32;
        for (int i = 0; i < 32; i++)
            y[j * 32 + i] = ds * (float)(j % 2 ? q[i] >> 4 : q[i] & 15) - dm;
    }
}

/* Q5_K: as Q4_K, with 32 bytes of fifth bits before the nibbles: bit j of byte i belongs to element i of sub-block j.
 */
static void block_q5_k(const uint8_t *b, float *y)
{
    float d = f16_at(b), dmin = f16_at(b + 2);
    const uint8_t *high = b + 16;
    for (int j = 0; j < 8; j++) {
        int scale, min;
        k_scale(b + 4, j, &scale, &min);
        float ds = d * (float)scale, dm = dmin * (float)min;
        const uint8_t *q = b + 48 + (j / 2) * 32;
        for (int i = 0; i < 32; i++)
            y[j * 32 + i] = ds * (float)((j % 2 ? q[i] >> 4 : q[i] & 15) | (high[i] >> j & 1) << 4) - dm;
    }
}

/* Q6_K: 128 bytes of low nibbles, 64 of high bit pairs, 16 int8 scales, f16 d. Each half of 128 elements uses 64 low
 * and 32 high bytes: element r*32+i (r = 0..3) has its nibble in low[(r%2)*32+i] (high nibble when r >= 2) and its two
 * bits at 2r of high[i]. Scales are per 16 elements. x = d * scale * (q - 32). */
static void block_q6_k(const uint8_t *b, float *y)
{
    float d = f16_at(b + 208);
    for (int half = 0; half < 2; half++) {
        const uint8_t *low = b + half * 64, *high = b + 128 + half * 32;
        const int8_t *scale = (const int8_t *)b + 192 + half * 8;
        for (int r = 0; r < 4; r++) {
            for (int i = 0; i < 32; i++) {
                int nibble = r < 2 ? low[(r % 2) * 32 + i] & 15 : low[(r % 2) * 32 + i] >> 4;
                int q = (nibble | (high[i] >> 2 * r & 3) << 4) - 32;
                y[half * 128 + r * 32 + i] = d * (float)scale[r * 2 + i / 16] * (float)q;
            }
        }
    }
}

/* F8_SCALED: f32 d; 64 codes. x = d * e4m3. */
static void block_f8(const uint8_t *b, float *y)
{
    float d = float_of(u32_at(b));
    for (int i = 0; i < 64; i++)
        y[i] = d * f8_to_f32(b[4 + i]);
}

static void plain_to_f32(enum dtype t, const uint8_t *src, float *dst, int64_t n)
{
    if (t == DT_F32) {
        memcpy(dst, src, (size_t)n * 4);
        return;
    }
    for (int64_t i = 0; i < n && t == DT_F8; i++)
        dst[i] = f8_to_f32(src[i]);
    for (int64_t i = 0; i < n && t == DT_I8; i++)
        dst[i] = (float)(int8_t)src[i];
    for (int64_t i = 0; i < n && t < DT_F8; i++)
        dst[i] = t == DT_F16 ? f16_at(src + 2 * i) : bf16_to_f32(u16_at(src + 2 * i));
}

void dtype_to_f32(enum dtype t, const void *src, float *dst, int64_t n)
{
    static void (*const blocks[DT_COUNT])(const uint8_t *, float *) = {
        [DT_Q4_0] = block_q4_0,    [DT_Q4_1] = block_q4_1, [DT_Q5_0] = block_q5_0,     [DT_Q5_1] = block_q5_1,
        [DT_Q8_0] = block_q8_0,    [DT_Q4_K] = block_q4_k, [DT_IQ4_NL] = block_iq4_nl, [DT_IQ4_XS] = block_iq4_xs,
        [DT_Q2_K] = block_q2_k,    [DT_Q3_K] = block_q3_k, [DT_Q5_K] = block_q5_k,     [DT_Q6_K] = block_q6_k,
        [DT_F8_SCALED] = block_f8,
    };
    const struct dtype_info *d = dtype_get(t);
    ASSERT(n >= 0 && n % d->block == 0);
    const uint8_t *p = src;
    if (!blocks[t]) {
        plain_to_f32(t, p, dst, n);
        return;
    }
    for (int64_t i = 0; i < n; i += d->block, p += d->bytes)
        blocks[t](p, dst + i);
}
