/* Sixteen lanes as two AVX2 registers. Same names and same results, bit for bit, as vec_portable.h.
 * Included by kernels_avx2.c only. */
#ifndef CPU_VEC_AVX2_H
#define CPU_VEC_AVX2_H

#include "kernels/cpu/vec_ymm.h"

enum { TILE = 4, QUANT_TILE = 4, FAST_TILE = 4 }; /* 4 rows x 16 outputs: 8 registers of sums, 2 of weights */

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

INLINE vf vf_load_nibble(const uint8_t *p, bool high)
{
    __m128i x = load_nibbles(p, high);
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
    store_bf16(p, x.a, x.b);
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

INLINE vf vf_drop_small(vf x)
{
    return (vf){drop_small(x.a), drop_small(x.b)};
}

INLINE vf vf_round_half(vf x)
{
    return (vf){_mm256_castsi256_ps(round_bf16(x.a)), _mm256_castsi256_ps(round_bf16(x.b))};
}

INLINE void vf_store_pairs(uint8_t *p, vf even, vf odd)
{
    store_pairs(p, even.a, odd.a);
    store_pairs(p + 32, even.b, odd.b);
}

INLINE void vf_load_pairs(const uint8_t *p, vf *even, vf *odd)
{
    *even = (vf){even_of(p), even_of(p + 32)};
    *odd = (vf){odd_of(p), odd_of(p + 32)};
}

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

/* Sixteen integers of 16 bits, the columns of every four in the order 0, 2, 1, 3: that of pairs (widened()). Adds their
 * sum to none. */
INLINE int32_t put16(const float *x, __m256 k, int8_t *to)
{
    __m256i a = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x), k));
    __m256i b = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8), k));
    __m256i q = _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xd8);
    q = _mm256_shufflehi_epi16(_mm256_shufflelo_epi16(q, 0xd8), 0xd8);
    _mm256_storeu_si256((__m256i *)to, q);
    a = _mm256_madd_epi16(q, _mm256_set1_epi16(1));
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1));
    return _mm_cvtsi128_si32(s);
}

INLINE void round32(const float *x, float k, int8_t *q, int32_t sum[2], bool fast)
{
    if (fast) {
        __m256 v[4];
        for (int i = 0; i < 4; i++)
            v[i] = nearest8(_mm256_mul_ps(_mm256_loadu_ps(x + 8 * i), _mm256_set1_ps(k)));
        sum[0] = sum[1] = 0;
        put_plane(v, q, 1, sum);
        return;
    }
    sum[0] = put16(x, _mm256_set1_ps(k), q);
    sum[1] = put16(x + 16, _mm256_set1_ps(k), q + 32);
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

enum { S8_SHIFT = 0, PANEL_BLOCK = 1024 };

INLINE __m256i load32(const uint8_t *p)
{
    return _mm256_load_si256((const __m256i *)p);
}

INLINE __m256i two_of(const int8_t *q)
{
    int32_t x;
    memcpy(&x, q, 4);
    return _mm256_set1_epi32(x);
}

/* By so many bits to the left, or to the right where it is negative; what crosses a byte is the caller's to drop. */
INLINE __m256i shifted(__m256i x, int by)
{
    return by < 0 ? _mm256_srli_epi16(x, -by) : by ? _mm256_slli_epi16(x, by) : x;
}

/* Two or three bits of half h of chunk c. */
INLINE __m256i few_bits(int bits, const uint8_t *w, int c, int h)
{
    __m256i x = _mm256_and_si256(shifted(load32(w + 64 * (c / 4) + 32 * h), -2 * (c % 4)), _mm256_set1_epi8(3));
    if (bits == 2)
        return x;
    return _mm256_or_si256(x, _mm256_and_si256(shifted(load32(w + 128 + 32 * h), 2 - c), _mm256_set1_epi8(4)));
}

/* What the codes in the bytes of x stand for. */
INLINE __m256i decoded(__m256i x)
{
    __m128i codes = _mm_loadu_si128((const __m128i *)(const void *)dtype_codes);
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(codes), x);
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
INLINE __m256i chunk(int bits, const uint8_t *w, int c, int h)
{
    if (bits == 8)
        return load32(w + 64 * c + 32 * h);
    if (bits < 4)
        return few_bits(bits, w, c, h);
    __m256i x = load32(w + 64 * (c % 4) + 32 * h);
    x = _mm256_and_si256(c < 4 ? x : _mm256_srli_epi16(x, 4), _mm256_set1_epi8(15));
    if (bits == CODED)
        return decoded(x);
    return bits == 4 ? x : _mm256_or_si256(x, high_bits(bits, w, c, h));
}

INLINE bool is_signed(int bits)
{
    return bits == 8 || bits == CODED;
}

/* Half h of two of a chunk's four columns, the even or the odd ones, as 16-bit integers. */
INLINE __m256i two_columns(int bits, bool panel, const uint8_t *w, int c, int odd, int h)
{
    if (panel)
        return load32(w + 128 * c + 64 * odd + 32 * h);
    if (bits == 4) {
        __m256i x = load32(w + 64 * (c % 4) + 32 * h);
        int shift = 8 * odd + 4 * (c / 4);
        x = shift ? _mm256_srli_epi16(x, shift) : x;
        return shift == 12 ? x : _mm256_and_si256(x, _mm256_set1_epi16(15));
    }
    __m256i x = chunk(bits, w, c, h);
    if (is_signed(bits))
        return _mm256_srai_epi16(odd ? x : _mm256_slli_epi16(x, 8), 8);
    return odd ? _mm256_srli_epi16(x, 8) : _mm256_and_si256(x, _mm256_set1_epi16(255));
}

/* Keeps the compiler from regrouping integer sums: it would hold all the products in registers that there are not. Two
 * products and then two sums also keep the ports busier than a product and a sum in turn. */
INLINE void in_order(__m256i *a, __m256i *b)
{
    __asm__("" : "+x"(*a), "+x"(*b));
}

/* sum[r] += pairs of columns w of 16 outputs * the pair of row r. */
INLINE void dot_pairs(int R, const __m256i w[2], const int8_t *q, bool first, vi sum[])
{
    UNROLL for (int r = 0; r < R; r++)
    {
        __m256i x = two_of(q + QUANT_BLOCK * r);
        __m256i a = _mm256_madd_epi16(w[0], x), b = _mm256_madd_epi16(w[1], x);
        in_order(&a, &b);
        sum[r].a = first ? a : _mm256_add_epi32(sum[r].a, a);
        sum[r].b = first ? b : _mm256_add_epi32(sum[r].b, b);
        in_order(&sum[r].a, &sum[r].b);
    }
}

INLINE void dot_block_high(int bits, bool panel, int part, int R, const uint8_t *w, const int8_t *q, vi dot[])
{
    int n = bits_in_halves(bits) ? 4 : 8;
    bool in_turn = panel || n == 4 || bits == 8;
    UNROLL for (int i = 0; i < n; i++)
    {
        int c = in_turn ? 4 * part + i : i / 2 + 4 * (i % 2); /* chunks whose nibbles share bytes together */
        UNROLL for (int odd = 0; odd < 2; odd++)
        {
            __m256i two[2] = {two_columns(bits, panel, w, c, odd, 0), two_columns(bits, panel, w, c, odd, 1)};
            dot_pairs(R, two, q + 8 * c + 4 * odd, i + odd == 0, dot);
        }
    }
}

/* Products of pairs of columns are added in 16 bits for so many chunks (of those of a dot): twice 127 times the largest
 * weight fits as often. */
INLINE int chunks_in_16_bits(int bits)
{
    return is_signed(bits) ? 1 : bits == 4 ? 8 : bits == 6 ? 2 : 4;
}

/* w times the signed bytes y, pairs of columns added. Signed weights are multiplied by their size, and y has their
 * signs. */
INLINE __m256i pair_products(int bits, __m256i w, __m256i y)
{
    return is_signed(bits) ? _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(y, w))
                           : _mm256_maddubs_epi16(w, y);
}

INLINE void add_in_order(__m256i *to, __m256i x, bool first, bool wide)
{
    *to = first ? x : wide ? _mm256_add_epi32(*to, x) : _mm256_add_epi16(*to, x);
    __asm__("" : "+x"(*to)); /* see in_order */
}

/* R rows, as many as there are registers for. */
INLINE void dot_few(int bits, bool panel, int part, int R, const uint8_t *w, const int8_t *q, vi dot[])
{
    __m256i few[FAST_TILE][2];
    int n = bits_in_halves(bits) ? 4 : 8, most = chunks_in_16_bits(bits);
    __asm__("" : "+r"(w)); /* each time it is read again */
    UNROLL for (int i = 0; i < n; i++)
    {
        int c = 4 * part + i;
        __m256i x[2];
        UNROLL for (int h = 0; h < 2; h++) x[h] = panel ? load32(w + 64 * c + 32 * h) : chunk(bits, w, c, h);
        UNROLL for (int r = 0; r < R; r++)
        {
            __m256i y = two_of(q + FAST_BLOCK * r + 4 * c);
            add_in_order(&few[r][0], pair_products(bits, x[0], y), i % most == 0, false);
            add_in_order(&few[r][1], pair_products(bits, x[1], y), i % most == 0, false);
            if (i % most == most - 1) {
                __m256i one = _mm256_set1_epi16(1);
                add_in_order(&dot[r].a, _mm256_madd_epi16(few[r][0], one), i < most, true);
                add_in_order(&dot[r].b, _mm256_madd_epi16(few[r][1], one), i < most, true);
            }
        }
    }
}

INLINE void dot_block(int bits, bool panel, bool fast, int part, int R, const uint8_t *w, const int8_t *q, vi dot[])
{
    if (!fast) {
        dot_block_high(bits, panel, part, R, w, q, dot);
        return;
    }
    int most = bits == 2 || bits == 4 || bits == 8 ? 4 : 2;
    UNROLL for (int r = 0; r < R; r += most)
        dot_few(bits, panel, part, R - r < most ? R - r : most, w, q + FAST_BLOCK * r, dot + r);
}

/* Weights that take long to unpack are kept in a panel from fewer rows on. */
INLINE int in_place_rows(enum family f, bool fast)
{
    (void)fast;
    int bits = family_bits(f);
    if (bits == 3 || bits == 6)
        return QUANT_TILE;
    return family_is_k(f) || bits == 5 || bits == CODED ? 2 * QUANT_TILE : 4 * QUANT_TILE;
}

INLINE void panel_block(int bits, bool fast, const uint8_t *w, uint8_t *out)
{
    UNROLL for (int c = 0; c < 8; c++)
    {
        if (fast) {
            UNROLL for (int h = 0; h < 2; h++)
            {
                __m256i x = chunk(bits, w, c, h);
                x = bits == 3 ? _mm256_add_epi8(x, _mm256_set1_epi8(THREE_AS_SIX)) : x;
                _mm256_store_si256((__m256i *)(out + 64 * c + 32 * h), x);
            }
            continue;
        }
        UNROLL for (int i = 0; i < 4; i++)
        {
            __m256i x = two_columns(bits, false, w, c, i / 2, i % 2);
            x = bits == 3 ? _mm256_add_epi16(x, _mm256_set1_epi16(THREE_AS_SIX)) : x;
            _mm256_store_si256((__m256i *)(out + 128 * c + 32 * i), x);
        }
    }
}

#endif
