/* Sixteen lanes as two AVX2 registers. Same names and same results, bit for bit, as vec_portable.h.
 * Included by kernels_avx2.c only. */
#ifndef CPU_VEC_AVX2_H
#define CPU_VEC_AVX2_H

#include "kernels/cpu/vec_ymm.h"

enum { TILE = 4, QUANT_TILE = 2 }; /* 4 rows (or 2 of two planes) x 16 outputs: 8 registers of sums, 4 of weights */

typedef struct {
    __m256 a, b;
} vf;
typedef struct {
    __m256i a, b;
} vi;

INLINE vf vf_set1(float x)
{
    return (vf){_mm256_set1_ps(x), _mm256_set1_ps(x)};
}

INLINE vf vf_load(const float *p)
{
    return (vf){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}

INLINE vf vf_load1(const float *p)
{
    __m256 x = _mm256_broadcast_ss(p);
    return (vf){x, x};
}

INLINE vf vf_load_f16(const uint16_t *p)
{
    return (vf){_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)),
                _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(p + 8)))};
}

INLINE vf vf_load_bf16(const uint16_t *p)
{
    return (vf){widen_bf16(p), widen_bf16(p + 8)};
}

INLINE vf vf_load_f8(const uint8_t *p)
{
    __m256i h = widen_f8(p);
    __m256 k = _mm256_set1_ps(256);
    return (vf){_mm256_mul_ps(_mm256_cvtph_ps(_mm256_castsi256_si128(h)), k),
                _mm256_mul_ps(_mm256_cvtph_ps(_mm256_extracti128_si256(h, 1)), k)};
}

INLINE vf vf_load_u8(const uint8_t *p)
{
    __m128i x = _mm_loadu_si128((const __m128i *)p);
    return (vf){_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(x)),
                _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_srli_si128(x, 8)))};
}

INLINE vf vf_load_s8(const int8_t *p)
{
    __m128i x = _mm_loadu_si128((const __m128i *)p);
    return (vf){_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(x)),
                _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(x, 8)))};
}

INLINE void vf_store(float *p, vf x)
{
    _mm256_storeu_ps(p, x.a);
    _mm256_storeu_ps(p + 8, x.b);
}

INLINE void vf_store_f16(uint16_t *p, vf x)
{
    _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(x.a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    _mm_storeu_si128((__m128i *)(p + 8), _mm256_cvtps_ph(x.b, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

INLINE void vf_store_bf16(uint16_t *p, vf x)
{
    float t[16];
    vf_store(t, x);
    for (int i = 0; i < 16; i++)
        p[i] = f32_to_bf16(t[i]);
}

INLINE void vf_store_f8(uint8_t *p, vf x)
{
    float t[16];
    vf_store(t, x);
    for (int i = 0; i < 16; i++)
        p[i] = f32_to_f8(t[i]);
}

#define AVX2_BINARY(name, op)                                                                                          \
    INLINE vf name(vf x, vf y)                                                                                         \
    {                                                                                                                  \
        return (vf){op(x.a, y.a), op(x.b, y.b)};                                                                       \
    }
AVX2_BINARY(vf_add, _mm256_add_ps)
AVX2_BINARY(vf_sub, _mm256_sub_ps)
AVX2_BINARY(vf_mul, _mm256_mul_ps)
AVX2_BINARY(vf_div, _mm256_div_ps)
AVX2_BINARY(vf_max, _mm256_max_ps)
AVX2_BINARY(vf_min, _mm256_min_ps)

INLINE vf vf_fma(vf x, vf y, vf z)
{
    return (vf){_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}

INLINE vf vf_zero_below(vf x, vf floor, vf value)
{
    return (vf){_mm256_andnot_ps(_mm256_cmp_ps(x.a, floor.a, _CMP_LT_OQ), value.a),
                _mm256_andnot_ps(_mm256_cmp_ps(x.b, floor.b, _CMP_LT_OQ), value.b)};
}

INLINE __m256 add_exponent(__m256 p, __m256 t)
{
    __m256i n = _mm256_slli_epi32(_mm256_castps_si256(t), 23);
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), n));
}

INLINE vf vf_scale_pow2(vf p, vf t)
{
    return (vf){add_exponent(p.a, t.a), add_exponent(p.b, t.b)};
}

INLINE float vf_sum(vf x)
{
    __m256 s8 = _mm256_add_ps(x.a, x.b);
    __m128 s4 = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
    __m128 s2 = _mm_add_ps(s4, _mm_movehl_ps(s4, s4));
    return _mm_cvtss_f32(_mm_add_ss(s2, _mm_movehdup_ps(s2)));
}

INLINE float vf_max_lane(vf x)
{
    __m256 s8 = _mm256_max_ps(x.a, x.b);
    __m128 s4 = _mm_max_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
    __m128 s2 = _mm_max_ps(s4, _mm_movehl_ps(s4, s4));
    return _mm_cvtss_f32(_mm_max_ss(s2, _mm_movehdup_ps(s2)));
}

INLINE vi vi_load1(const int32_t *p)
{
    __m256i x = _mm256_set1_epi32(*p);
    return (vi){x, x};
}

INLINE __m256i planes8(__m256i high, __m256i low)
{
    return _mm256_add_epi32(_mm256_sub_epi32(_mm256_slli_epi32(high, 8), high), low);
}

INLINE vi vi_planes(vi high, vi low)
{
    return (vi){planes8(high.a, low.a), planes8(high.b, low.b)};
}

INLINE vi vi_sub_shifted(vi x, vi y, int shift)
{
    __m256i s = _mm256_slli_epi32(y.a, shift); /* y is one value in all lanes */
    return (vi){_mm256_sub_epi32(x.a, s), _mm256_sub_epi32(x.b, s)};
}

INLINE vf vi_to_f(vi x)
{
    return (vf){_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)};
}

/* A panel of 8-bit weights holds two planes: the low and the high nibbles of w + 128, because pairs of 8-bit products
 * overflow the 16-bit sums of vpmaddubsw and pairs of 4-bit ones do not (8 * 2 * 15 * 127 = 30480). */
enum { PANEL_PLANES = 2 };
INLINE bool s8_biased(bool panel)
{
    return panel;
}

INLINE __m256i load32(const uint8_t *p)
{
    return _mm256_load_si256((const __m256i *)p);
}

INLINE __m256i four_of(const int8_t *a)
{
    int32_t x;
    memcpy(&x, a, 4);
    return _mm256_set1_epi32(x);
}

/* The bits above the nibble of chunk c, in place. h: which 32 of the chunk's 64 bytes. */
INLINE __m256i high_bits(int bits, const uint8_t *w, int c, int h)
{
    if (bits == 5) {
        __m256i p = load32(w + 256 + 32 * h);
        p = c < 4 ? _mm256_slli_epi16(p, 4 - c) : _mm256_srli_epi16(p, c - 4);
        return _mm256_and_si256(p, _mm256_set1_epi8(0x10));
    }
    __m256i p = load32(w + 256 + 64 * (c / 4) + 32 * h);
    p = c % 4 < 2 ? _mm256_slli_epi16(p, 4 - 2 * (c % 4)) : _mm256_srli_epi16(p, 2 * (c % 4) - 4);
    return _mm256_and_si256(p, _mm256_set1_epi8(0x30));
}

/* Half h of chunk c as 32 bytes. */
INLINE __m256i chunk(int bits, bool panel, const uint8_t *w, int c, int h)
{
    if (panel || bits == 8)
        return load32(w + 64 * c + 32 * h);
    __m256i x = load32(w + 64 * (c % 4) + 32 * h);
    x = _mm256_and_si256(c < 4 ? x : _mm256_srli_epi16(x, 4), _mm256_set1_epi8(15));
    return bits == 4 ? x : _mm256_or_si256(x, high_bits(bits, w, c, h));
}

/* Keeps the compiler from regrouping integer sums: it would hold all the products in registers that there are not. */
INLINE void in_order(__m256i *x)
{
    __asm__("" : "+x"(*x));
}

/* Adds the n chunks of a list of unsigned weights to s16[r]: few enough that 16 bits hold. */
INLINE void dot_chunks(int bits, bool panel, int R, const uint8_t *w, const int8_t *a, size_t lda, const int *list,
                       int n, __m256i s16[][2])
{
    UNROLL for (int i = 0; i < n; i++)
    {
        int c = list[i];
        __m256i w0 = chunk(bits, panel, w, c, 0), w1 = chunk(bits, panel, w, c, 1);
        UNROLL for (int r = 0; r < R; r++)
        {
            __m256i x = four_of(a + (size_t)r * lda + 4 * c);
            __m256i p0 = _mm256_maddubs_epi16(w0, x), p1 = _mm256_maddubs_epi16(w1, x);
            s16[r][0] = i ? _mm256_add_epi16(s16[r][0], p0) : p0;
            s16[r][1] = i ? _mm256_add_epi16(s16[r][1], p1) : p1;
            in_order(&s16[r][0]);
            in_order(&s16[r][1]);
        }
    }
}

INLINE void flush16(int R, __m256i s16[][2], int factor, bool first, int part, vi dot[][2])
{
    __m256i k = _mm256_set1_epi16((short)factor);
    UNROLL for (int r = 0; r < R; r++)
    {
        __m256i x = _mm256_madd_epi16(s16[r][0], k), y = _mm256_madd_epi16(s16[r][1], k);
        dot[r][part].a = first ? x : _mm256_add_epi32(dot[r][part].a, x);
        dot[r][part].b = first ? y : _mm256_add_epi32(dot[r][part].b, y);
    }
}

/* Signed 8-bit weights, exact: |w| * (a with w's sign); 2 * 128 * 127 fits 16 bits. */
INLINE void dot_s8(int R, const uint8_t *w, const int8_t *a, size_t lda, vi dot[][2])
{
    const __m256i ones = _mm256_set1_epi16(1);
    UNROLL for (int c = 0; c < 8; c++)
    {
        __m256i w0 = load32(w + 64 * c), w1 = load32(w + 64 * c + 32);
        __m256i m0 = _mm256_abs_epi8(w0), m1 = _mm256_abs_epi8(w1);
        UNROLL for (int r = 0; r < R; r++)
        {
            __m256i x = four_of(a + (size_t)r * lda + 4 * c);
            __m256i p0 = _mm256_madd_epi16(_mm256_maddubs_epi16(m0, _mm256_sign_epi8(x, w0)), ones);
            __m256i p1 = _mm256_madd_epi16(_mm256_maddubs_epi16(m1, _mm256_sign_epi8(x, w1)), ones);
            dot[r][0].a = c ? _mm256_add_epi32(dot[r][0].a, p0) : p0;
            dot[r][0].b = c ? _mm256_add_epi32(dot[r][0].b, p1) : p1;
            in_order(&dot[r][0].a);
            in_order(&dot[r][0].b);
        }
    }
}

INLINE void dot_block(int bits, bool panel, int R, const uint8_t *w, const int8_t *a, size_t lda, vi dot[][2])
{
    static const int order[8] = {0, 4, 1, 5, 2, 6, 3, 7}, line[8] = {0, 1, 2, 3, 4, 5, 6, 7};
    __m256i s16[PLANES * QUANT_TILE][2];
    if (bits == 8 && !panel) {
        dot_s8(R, w, a, lda, dot);
    } else if (bits == 8) {
        dot_chunks(4, true, R, w, a, lda, line, 8, s16);
        flush16(R, s16, 1, true, 0, dot);
        dot_chunks(4, true, R, w + 512, a, lda, line, 8, s16);
        flush16(R, s16, 16, false, 0, dot);
    } else if (bits == 4) {
        dot_chunks(4, panel, R, w, a, lda, panel ? line : order, 8, s16);
        flush16(R, s16, 1, true, 0, dot);
    } else if (bits == 5) { /* 4 * 2 * 31 * 127 = 31496 */
        dot_chunks(5, panel, R, w, a, lda, order, 4, s16);
        flush16(R, s16, 1, true, 0, dot);
        dot_chunks(5, panel, R, w, a, lda, order + 4, 4, s16);
        flush16(R, s16, 1, false, 0, dot);
    } else { /* 2 * 2 * 63 * 127 = 32004 */
        UNROLL for (int part = 0; part < 2; part++)
        {
            dot_chunks(6, panel, R, w, a, lda, line + 4 * part, 2, s16);
            flush16(R, s16, 1, true, part, dot);
            dot_chunks(6, panel, R, w, a, lda, line + 4 * part + 2, 2, s16);
            flush16(R, s16, 1, false, part, dot);
        }
    }
}

INLINE void panel_block(int bits, const uint8_t *w, uint8_t *out)
{
    const __m256i low = _mm256_set1_epi8(15), flip = _mm256_set1_epi8((char)0x80);
    UNROLL for (int c = 0; c < 8; c++)
    {
        UNROLL for (int h = 0; h < 2; h++)
        {
            __m256i x = chunk(bits, false, w, c, h), *to = (__m256i *)(out + 64 * c + 32 * h);
            if (bits == 8) {
                x = _mm256_xor_si256(x, flip);
                _mm256_store_si256(to + 16, _mm256_and_si256(_mm256_srli_epi16(x, 4), low));
                x = _mm256_and_si256(x, low);
            }
            _mm256_store_si256(to, x);
        }
    }
}

#endif
