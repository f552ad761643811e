#include "models/load/quantize.h"

#include <math.h>
#include <string.h>

#include "engine/base/check.h"

enum { SMALL = 32, LARGE = 256, LEAF = 64 }; /* elements of a block of the plain, of the K types, of scaled fp8 */

static int clamp(int v, int lo, int hi)
{
    return v < lo ? lo : v > hi ? hi : v;
}

/* x / d rounded to nearest, 0 for a block of zeros. */
static int steps(float x, float d)
{
    return d != 0 ? (int)lrintf(fminf(fmaxf(x / d, -1e6f), 1e6f)) : 0;
}

static float put_f16(uint8_t *dst, float f)
{
    uint16_t h = f32_to_f16(f);
    memcpy(dst, &h, 2);
    return f16_to_f32(h);
}

/* The element of the largest size, with its sign. */
static float peak(const float *x, int n)
{
    float best = 0;
    for (int i = 0; i < n; i++)
        if (fabsf(x[i]) > fabsf(best))
            best = x[i];
    return best;
}

static void range(const float *x, int n, float *lo, float *hi)
{
    *lo = *hi = x[0];
    for (int i = 1; i < n; i++) {
        *lo = fminf(*lo, x[i]);
        *hi = fmaxf(*hi, x[i]);
    }
}

static void put_q8_0(const float *x, uint8_t *dst)
{
    float d = put_f16(dst, fabsf(peak(x, SMALL)) / 127);
    for (int i = 0; i < SMALL; i++)
        dst[2 + i] = (uint8_t)clamp(steps(x[i], d), -127, 127);
}

/* Signed types: the peak lies on the end that has one step more. Unsigned ones: offset and step. q gets 0 .. 2^bits
 * - 1. */
static int steps_plain(const float *x, int bits, bool offset, uint8_t *dst, uint8_t *q)
{
    int half = 1 << (bits - 1), top = (1 << bits) - 1;
    float lo, hi, d;
    if (!offset) {
        d = put_f16(dst, peak(x, SMALL) / (float)-half);
        for (int i = 0; i < SMALL; i++)
            q[i] = (uint8_t)clamp(steps(x[i], d) + half, 0, top);
        return 2;
    }
    range(x, SMALL, &lo, &hi);
    d = put_f16(dst, (hi - lo) / (float)top);
    float m = put_f16(dst + 2, lo);
    for (int i = 0; i < SMALL; i++)
        q[i] = (uint8_t)clamp(steps(x[i] - m, d), 0, top);
    return 4;
}

static void put_nibbles(const uint8_t *q, uint8_t *dst, int half)
{
    for (int i = 0; i < half; i++)
        dst[i] = (uint8_t)((q[i] & 15) | (q[i + half] & 15) << 4);
}

static void put_q4(const float *x, bool offset, uint8_t *dst)
{
    uint8_t q[SMALL];
    int at = steps_plain(x, 4, offset, dst, q);
    put_nibbles(q, dst + at, SMALL / 2);
}

static void put_q5(const float *x, bool offset, uint8_t *dst)
{
    uint8_t q[SMALL];
    int at = steps_plain(x, 5, offset, dst, q);
    uint32_t high = 0;
    for (int i = 0; i < SMALL; i++)
        high |= (uint32_t)(q[i] >> 4) << i;
    memcpy(dst + at, &high, 4);
    put_nibbles(q, dst + at + 4, SMALL / 2);
}

/* Eight 6-bit scales and eight 6-bit offsets in 12 bytes. */
static void put_scales(const uint8_t *scale, const uint8_t *offset, uint8_t *dst)
{
    for (int j = 0; j < 4; j++) {
        dst[j] = (uint8_t)(scale[j] | (scale[j + 4] >> 4) << 6);
        dst[j + 4] = (uint8_t)(offset[j] | (offset[j + 4] >> 4) << 6);
        dst[j + 8] = (uint8_t)((scale[j + 4] & 15) | (offset[j + 4] & 15) << 4);
    }
}

/* Q4_K and Q5_K: eight runs of 32, each x = d * scale * q - dmin * offset. */
static void steps_k(const float *x, int bits, uint8_t *dst, uint8_t *q)
{
    int top = (1 << bits) - 1;
    float scale[8], offset[8], most_scale = 0, most_offset = 0;
    uint8_t s[8], o[8];
    for (int j = 0; j < 8; j++) {
        float lo, hi;
        range(x + 32 * j, 32, &lo, &hi);
        lo = fminf(lo, 0);
        scale[j] = (fmaxf(hi, 0) - lo) / (float)top;
        offset[j] = -lo;
        most_scale = fmaxf(most_scale, scale[j]);
        most_offset = fmaxf(most_offset, offset[j]);
    }
    float d = put_f16(dst, most_scale / 63), dmin = put_f16(dst + 2, most_offset / 63);
    for (int j = 0; j < 8; j++) {
        s[j] = (uint8_t)clamp(steps(scale[j], d), 0, 63);
        o[j] = (uint8_t)clamp(steps(offset[j], dmin), 0, 63);
        float step = d * s[j], low = dmin * o[j];
        for (int i = 32 * j; i < 32 * j + 32; i++)
            q[i] = (uint8_t)clamp(steps(x[i] + low, step), 0, top);
    }
    put_scales(s, o, dst + 4);
}

static void put_q4_k(const float *x, uint8_t *dst)
{
    uint8_t q[LARGE];
    steps_k(x, 4, dst, q);
    for (int i = 0; i < 4; i++)
        put_nibbles(q + 64 * i, dst + 16 + 32 * i, 32);
}

static void put_q5_k(const float *x, uint8_t *dst)
{
    uint8_t q[LARGE];
    steps_k(x, 5, dst, q);
    memset(dst + 16, 0, 32);
    for (int i = 0; i < LARGE; i++)
        dst[16 + i % 32] |= (uint8_t)((q[i] >> 4) << (i / 32));
    for (int i = 0; i < 4; i++)
        put_nibbles(q + 64 * i, dst + 48 + 32 * i, 32);
}

static void put_q6_k(const float *x, uint8_t *dst)
{
    uint8_t q[LARGE], *low = dst, *high = dst + 128, *scales = dst + 192;
    float most = 0;
    for (int j = 0; j < 16; j++) {
        float p = peak(x + 16 * j, 16);
        most = fabsf(p) > fabsf(most) ? p : most;
    }
    float d = put_f16(dst + 208, most / (-32.0f * -127));
    for (int j = 0; j < 16; j++) {
        int s = clamp(steps(peak(x + 16 * j, 16) / -32, d), -128, 127);
        scales[j] = (uint8_t)s;
        for (int i = 16 * j; i < 16 * j + 16; i++)
            q[i] = (uint8_t)(clamp(steps(x[i], d * (float)s), -32, 31) + 32);
    }
    for (int h = 0; h < 2; h++)
        for (int i = 0; i < 32; i++) {
            const uint8_t *p = q + 128 * h + i;
            low[64 * h + i] = (uint8_t)((p[0] & 15) | (p[64] & 15) << 4);
            low[64 * h + 32 + i] = (uint8_t)((p[32] & 15) | (p[96] & 15) << 4);
            high[32 * h + i] = (uint8_t)(p[0] >> 4 | (p[32] >> 4) << 2 | (p[64] >> 4) << 4 | (p[96] >> 4) << 6);
        }
}

/* The place among dtype_codes of the one next to v. */
static uint8_t nearest_code(float v)
{
    int best = 0;
    for (int i = 1; i < DTYPE_CODES; i++)
        if (fabsf(v - (float)dtype_codes[i]) < fabsf(v - (float)dtype_codes[best]))
            best = i;
    return (uint8_t)best;
}

/* 32 elements in steps of d, the peak of which lies on the code of the largest size. */
static void put_codes(const float *x, float d, uint8_t *dst)
{
    uint8_t q[SMALL];
    for (int i = 0; i < SMALL; i++)
        q[i] = nearest_code(d != 0 ? x[i] / d : 0);
    put_nibbles(q, dst, SMALL / 2);
}

static void put_iq4_nl(const float *x, uint8_t *dst)
{
    float d = put_f16(dst, peak(x, SMALL) / (float)dtype_codes[0]);
    put_codes(x, d, dst + 2);
}

/* Signed scales of runs of n elements, whose peaks are to be `low` steps: 6 bits each, and d. */
static float signed_scales(const float *x, int n, float low, uint8_t *dst, int *scale)
{
    float most = 0;
    for (int i = 0; i < LARGE; i += n) {
        float p = peak(x + i, n);
        most = fabsf(p) > fabsf(most) ? p : most;
    }
    float d = put_f16(dst, most / (low * -32));
    for (int i = 0; i < LARGE; i += n)
        scale[i / n] = clamp(steps(peak(x + i, n) / low, d), -32, 31);
    return d;
}

static void put_iq4_xs(const float *x, uint8_t *dst)
{
    int scale[LARGE / SMALL];
    float d = signed_scales(x, SMALL, (float)dtype_codes[0], dst, scale);
    memset(dst + 2, 0, 6);
    for (int j = 0; j < LARGE / SMALL; j++) {
        int s = scale[j] + 32;
        dst[4 + j / 2] |= (uint8_t)((s & 15) << 4 * (j % 2));
        dst[2 + j / 4] |= (uint8_t)((s >> 4) << 2 * (j % 4));
        put_codes(x + SMALL * j, d * (float)scale[j], dst + 8 + 16 * j);
    }
}

/* The lower two bits of each element, as dtype.c says. */
static void put_two_bits(const uint8_t *q, uint8_t *dst)
{
    memset(dst, 0, LARGE / 4);
    for (int i = 0; i < LARGE; i++)
        dst[i / 128 * 32 + i % 32] |= (uint8_t)((q[i] & 3) << 2 * (i / 32 % 4));
}

static void put_q3_k(const float *x, uint8_t *dst)
{
    int scale[LARGE / 16];
    uint8_t q[LARGE], *scales = dst + 96;
    float d = signed_scales(x, 16, -4, dst + 108, scale);
    memset(dst, 0, 32);
    memset(scales, 0, 12);
    for (int i = 0; i < LARGE; i++) {
        q[i] = (uint8_t)(clamp(steps(x[i], d * (float)scale[i / 16]), -4, 3) + 4);
        dst[i % 32] |= (uint8_t)((q[i] >> 2) << i / 32);
    }
    put_two_bits(q, dst + 32);
    for (int j = 0; j < LARGE / 16; j++) {
        int s = scale[j] + 32;
        scales[j % 8] |= (uint8_t)((s & 15) << 4 * (j / 8));
        scales[8 + j % 4] |= (uint8_t)((s >> 4) << 2 * (j / 4));
    }
}

static void put_q2_k(const float *x, uint8_t *dst)
{
    float scale[LARGE / 16], offset[LARGE / 16], most_scale = 0, most_offset = 0;
    uint8_t q[LARGE];
    for (int j = 0; j < LARGE / 16; j++) {
        float lo, hi;
        range(x + 16 * j, 16, &lo, &hi);
        lo = fminf(lo, 0);
        scale[j] = (fmaxf(hi, 0) - lo) / 3;
        offset[j] = -lo;
        most_scale = fmaxf(most_scale, scale[j]);
        most_offset = fmaxf(most_offset, offset[j]);
    }
    float d = put_f16(dst + 80, most_scale / 15), dmin = put_f16(dst + 82, most_offset / 15);
    for (int j = 0; j < LARGE / 16; j++) {
        int s = clamp(steps(scale[j], d), 0, 15), m = clamp(steps(offset[j], dmin), 0, 15);
        dst[j] = (uint8_t)(s | m << 4);
        for (int i = 16 * j; i < 16 * j + 16; i++)
            q[i] = (uint8_t)clamp(steps(x[i] + dmin * (float)m, d * (float)s), 0, 3);
    }
    put_two_bits(q, dst + 16);
}

static void put_f8(const float *x, uint8_t *dst)
{
    float d = fabsf(peak(x, LEAF)) / 448;
    memcpy(dst, &d, 4);
    for (int i = 0; i < LEAF; i++)
        dst[4 + i] = d != 0 ? f32_to_f8(x[i] / d) : 0;
}

static void put_block(enum dtype t, const float *x, uint8_t *dst)
{
    uint16_t h;
    switch (t) {
    case DT_F32:
        memcpy(dst, x, 4);
        return;
    case DT_F16:
        h = f32_to_f16(*x);
        memcpy(dst, &h, 2);
        return;
    case DT_BF16:
        h = f32_to_bf16(*x);
        memcpy(dst, &h, 2);
        return;
    case DT_Q8_0:
        put_q8_0(x, dst);
        return;
    case DT_Q4_0:
        put_q4(x, false, dst);
        return;
    case DT_Q4_1:
        put_q4(x, true, dst);
        return;
    case DT_Q5_0:
        put_q5(x, false, dst);
        return;
    case DT_Q5_1:
        put_q5(x, true, dst);
        return;
    case DT_IQ4_NL:
        put_iq4_nl(x, dst);
        return;
    case DT_IQ4_XS:
        put_iq4_xs(x, dst);
        return;
    case DT_Q2_K:
        put_q2_k(x, dst);
        return;
    case DT_Q3_K:
        put_q3_k(x, dst);
        return;
    case DT_Q4_K:
        put_q4_k(x, dst);
        return;
    case DT_Q5_K:
        put_q5_k(x, dst);
        return;
    case DT_Q6_K:
        put_q6_k(x, dst);
        return;
    case DT_F8_SCALED:
        put_f8(x, dst);
        return;
    case DT_F8:
    case DT_I8:
        *dst = f32_to_f8(*x);
        return;
    case DT_COUNT:
        break;
    }
    UNREACHABLE();
}

void quantize_row(enum dtype t, const float *src, void *dst, int64_t n)
{
    const struct dtype_info *info = dtype_get(t);
    ASSERT(n % info->block == 0);
    uint8_t *out = dst;
    for (int64_t i = 0; i < n; i += info->block, out += info->bytes)
        put_block(t, src + i, out);
}
