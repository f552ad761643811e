/* Sixteen lanes as one AVX-512 register, dots by VNNI. Same names and same results, bit for bit, as vec_portable.h.
 * Included by kernels_avx512.c, and by a test that emulates the instructions. */
#ifndef CPU_VEC_AVX512_H
#define CPU_VEC_AVX512_H

#include "kernels/cpu/vec_ymm.h"

/* 8 sums of 16 outputs, of four rows in two planes or of eight in one: enough in flight for the latency of vpdpbusd */
enum { TILE = 8, QUANT_TILE = 4, FAST_TILE = 8 };

/* Several groups at once, quantised ones in a panel: for 8 dots 6 registers are loaded where one group takes 9, and the
 * sums of two leaves fit in registers; of floats 24 sums are in flight, which pairs need (two a cycle that take six
 * each). From so many rows on what unpacking costs is less than that. */
#define VEC_WIDE
enum { FLOAT_WIDE = 3, QUANT_WIDE = 2, WIDE_FAST = 4, WIDE_QUANT = 2 };

INLINE int wide_from(bool floats, bool fast)
{
    return floats ? TILE : fast ? 48 : 16;
}

typedef __m512 vf;
typedef __m512i vi;

INLINE vf vf_set1(float x)
{
    return _mm512_set1_ps(x);
}

INLINE vf vf_load(const float *p)
{
    return _mm512_loadu_ps(p);
}

INLINE vf vf_load1(const float *p)
{
    return _mm512_set1_ps(*p);
}

INLINE vf vf_load_f16(const uint16_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}

INLINE vf vf_load_bf16(const uint16_t *p)
{
    __m512i x = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(x, 16));
}

INLINE vf vf_load_f8(const uint8_t *p)
{
    return _mm512_mul_ps(_mm512_cvtph_ps(widen_f8(p)), _mm512_set1_ps(256));
}

INLINE vf vf_load_u8(const uint8_t *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p)));
}

INLINE vf vf_load_nibble(const uint8_t *p, bool high)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(load_nibbles(p, high)));
}

INLINE vf vf_load_s8(const int8_t *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
}

INLINE void vf_store(float *p, vf x)
{
    _mm512_storeu_ps(p, x);
}

INLINE void vf_store_f16(uint16_t *p, vf x)
{
    __m256i h = _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    _mm256_storeu_si256((__m256i *)p, h);
}

INLINE __m256 lower_half(vf x)
{
    return _mm512_castps512_ps256(x);
}

INLINE __m256 upper_half(vf x)
{
    return _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(x), 1));
}

INLINE void vf_store_bf16(uint16_t *p, vf x)
{
    store_bf16(p, lower_half(x), upper_half(x));
}

INLINE void vf_store_f8(uint8_t *p, vf x)
{
    float t[16];
    vf_store(t, x);
    for (int i = 0; i < 16; i++)
        p[i] = f32_to_f8(t[i]);
}

INLINE vf vf_add(vf x, vf y)
{
    return _mm512_add_ps(x, y);
}

INLINE vf vf_sub(vf x, vf y)
{
    return _mm512_sub_ps(x, y);
}

INLINE vf vf_mul(vf x, vf y)
{
    return _mm512_mul_ps(x, y);
}

INLINE vf vf_div(vf x, vf y)
{
    return _mm512_div_ps(x, y);
}

INLINE vf vf_max(vf x, vf y)
{
    return _mm512_max_ps(x, y);
}

INLINE vf vf_min(vf x, vf y)
{
    return _mm512_min_ps(x, y);
}

INLINE vf of_halves(__m256 low, __m256 high)
{
    __m512d x = _mm512_castps_pd(_mm512_castps256_ps512(low));
    return _mm512_castpd_ps(_mm512_insertf64x4(x, _mm256_castps_pd(high), 1));
}

INLINE vf vf_drop_small(vf x)
{
    __mmask16 keep = _mm512_cmp_ps_mask(_mm512_abs_ps(x), _mm512_set1_ps(SMALLEST_HALF), _CMP_NLT_UQ); /* NaN, too */
    return _mm512_maskz_mov_ps(keep, x);
}

INLINE vf vf_round_half(vf x)
{
    __m512i u = _mm512_castps_si512(x), odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    __m512i near = _mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    near = _mm512_mask_mov_epi32(near, nan, _mm512_or_si512(u, _mm512_set1_epi32(0x400000)));
    return _mm512_castsi512_ps(_mm512_and_si512(near, _mm512_set1_epi32((int)0xffff0000)));
}

INLINE void vf_store_pairs(uint8_t *p, vf even, vf odd)
{
    store_pairs(p, lower_half(even), lower_half(odd));
    store_pairs(p + 32, upper_half(even), upper_half(odd));
}

INLINE void vf_load_pairs(const uint8_t *p, vf *even, vf *odd)
{
    __m512i x = _mm512_loadu_si512(p);
    *even = _mm512_castsi512_ps(_mm512_slli_epi32(x, 16));
    *odd = _mm512_castsi512_ps(_mm512_and_si512(x, _mm512_set1_epi32((int)0xffff0000)));
}

INLINE vf vf_fma(vf x, vf y, vf z)
{
    return _mm512_fmadd_ps(x, y, z);
}

INLINE vf vf_zero_below(vf x, vf floor, vf value)
{
    return _mm512_mask_mov_ps(value, _mm512_cmp_ps_mask(x, floor, _CMP_LT_OQ), _mm512_setzero_ps());
}

INLINE vf vf_scale_pow2(vf p, vf t)
{
    __m512i n = _mm512_slli_epi32(_mm512_castps_si512(t), 23);
    return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(p), n));
}

INLINE float vf_sum(vf x)
{
    __m256 s8 = _mm256_add_ps(lower_half(x), upper_half(x));
    __m128 s4 = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
    __m128 s2 = _mm_add_ps(s4, _mm_movehl_ps(s4, s4));
    return _mm_cvtss_f32(_mm_add_ss(s2, _mm_movehdup_ps(s2)));
}

INLINE float vf_max_lane(vf x)
{
    __m256 s8 = _mm256_max_ps(lower_half(x), upper_half(x));
    __m128 s4 = _mm_max_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
    __m128 s2 = _mm_max_ps(s4, _mm_movehl_ps(s4, s4));
    return _mm_cvtss_f32(_mm_max_ss(s2, _mm_movehdup_ps(s2)));
}

INLINE void round32(const float *x, float k, int8_t *q, int32_t sum[2], bool fast)
{
    __m256 h[4], l[4];
    for (int i = 0; i < 4; i++) {
        __m256 n = nearest8(_mm256_mul_ps(_mm256_loadu_ps(x + 8 * i), _mm256_set1_ps(k)));
        h[i] = fast ? n : nearest8(_mm256_mul_ps(n, _mm256_set1_ps(1.0f / 255.0f)));
        l[i] = _mm256_sub_ps(n, _mm256_mul_ps(h[i], _mm256_set1_ps(255.0f))); /* exact: small integers */
    }
    sum[0] = sum[1] = 0;
    put_plane(h, q, fast ? 1 : 255, sum);
    if (!fast)
        put_plane(l, q + 32, 1, sum);
}

INLINE vi vi_load1(const int32_t *p)
{
    return _mm512_set1_epi32(*p);
}

INLINE vi vi_sub_shifted(vi x, vi y, int shift)
{
    return _mm512_sub_epi32(x, _mm512_slli_epi32(y, (unsigned)shift));
}

INLINE vf vi_to_f(vi x)
{
    return _mm512_cvtepi32_ps(x);
}

/* 8-bit weights are multiplied as w + 128, since vpdpbusd takes its first factor unsigned; it never saturates. */
enum { S8_SHIFT = 7, PANEL_BLOCK = 512 };

/* By so many bits to the left, or to the right where it is negative; what crosses a byte is the caller's to drop. */
INLINE __m512i shifted(__m512i x, int by)
{
    return by < 0 ? _mm512_srli_epi16(x, (unsigned)-by) : by ? _mm512_slli_epi16(x, (unsigned)by) : x;
}

/* Two or three bits of chunk c. */
INLINE __m512i few_bits(int bits, const uint8_t *w, int c)
{
    __m512i x = _mm512_and_si512(shifted(_mm512_loadu_si512(w + 64 * (c / 4)), -2 * (c % 4)), _mm512_set1_epi8(3));
    if (bits == 2)
        return x;
    __m512i third = shifted(_mm512_loadu_si512(w + 128), 2 - c);
    return _mm512_or_si512(x, _mm512_and_si512(third, _mm512_set1_epi8(4)));
}

/* What the codes in the bytes of x stand for, and 128. */
INLINE __m512i decoded(__m512i x)
{
    __m128i codes = _mm_loadu_si128((const __m128i *)(const void *)dtype_codes);
    codes = _mm_xor_si128(codes, _mm_set1_epi8((char)0x80));
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(codes), x);
}

/* The bits above the nibble of chunk c, in place. */
INLINE __m512i high_bits(int bits, const uint8_t *w, int c)
{
    if (bits == 5) {
        __m512i p = _mm512_loadu_si512(w + 256);
        p = c < 4 ? _mm512_slli_epi16(p, (unsigned)(4 - c)) : _mm512_srli_epi16(p, (unsigned)(c - 4));
        return _mm512_and_si512(p, _mm512_set1_epi8(0x10));
    }
    __m512i p = _mm512_loadu_si512(w + 256 + 64 * (c / 4));
    p = c % 4 < 2 ? _mm512_slli_epi16(p, (unsigned)(4 - 2 * (c % 4)))
                  : _mm512_srli_epi16(p, (unsigned)(2 * (c % 4) - 4));
    return _mm512_and_si512(p, _mm512_set1_epi8(0x30));
}

/* Chunk c as 64 unsigned bytes. */
INLINE __m512i chunk(int bits, bool panel, const uint8_t *w, int c)
{
    if (panel)
        return _mm512_loadu_si512(w + 64 * c);
    if (bits == 8)
        return _mm512_xor_si512(_mm512_loadu_si512(w + 64 * c), _mm512_set1_epi8((char)0x80));
    if (bits < 4)
        return few_bits(bits, w, c);
    __m512i x = _mm512_loadu_si512(w + 64 * (c % 4));
    x = _mm512_and_si512(c < 4 ? x : _mm512_srli_epi16(x, 4), _mm512_set1_epi8(15));
    if (bits == CODED)
        return decoded(x);
    return bits == 4 ? x : _mm512_or_si512(x, high_bits(bits, w, c));
}

INLINE __m512i four_of(const int8_t *q)
{
    int32_t four;
    memcpy(&four, q, 4);
    return _mm512_set1_epi32(four);
}

INLINE __m512i both_planes(__m512i high, __m512i low)
{
    return _mm512_add_epi32(_mm512_sub_epi32(_mm512_slli_epi32(high, 8), high), low);
}

INLINE void dot_block(int bits, bool panel, bool fast, int part, int R, const uint8_t *w, const int8_t *q, vi dot[])
{
    __m512i high[MAX_TILE], low[MAX_TILE];
    int n = bits_in_halves(bits) ? 4 : 8;
    UNROLL for (int i = 0; i < n; i++)
    {
        int c = 4 * part + i;
        __m512i x = chunk(bits, panel, w, c);
        UNROLL for (int r = 0; r < R; r++)
        {
            const int8_t *at = q + quant_block(fast) * (size_t)r + 4 * c;
            high[r] = _mm512_dpbusd_epi32(i ? high[r] : _mm512_setzero_si512(), x, four_of(at));
            if (!fast)
                low[r] = _mm512_dpbusd_epi32(i ? low[r] : _mm512_setzero_si512(), x, four_of(at + 32));
        }
    }
    UNROLL for (int r = 0; r < R; r++) dot[r] = fast ? high[r] : both_planes(high[r], low[r]);
}

/* x, which the compiler would load again for each use, if that is all it takes. */
INLINE __m512i in_register(__m512i x)
{
#ifndef CPU_INTRINSICS
    __asm__("" : "+v"(x));
#endif
    return x;
}

/* The dots of a panel's block of QUANT_WIDE groups, [group][row]. */
INLINE void dot_wide(int bits, bool fast, int part, int R, const uint8_t *w, const int8_t *q, vi dot[])
{
    __m512i high[MAX_SUMS], low[MAX_SUMS], x[QUANT_WIDE];
    int n = bits_in_halves(bits) ? 4 : 8;
    UNROLL for (int i = 0; i < n; i++)
    {
        int c = 4 * part + i;
        UNROLL for (int g = 0; g < QUANT_WIDE; g++) x[g] = in_register(chunk(bits, true, w + g * PANEL_BLOCK, c));
        UNROLL for (int r = 0; r < R; r++)
        {
            const int8_t *at = q + quant_block(fast) * (size_t)r + 4 * c;
            __m512i in = four_of(at);
            UNROLL for (int g = 0; g < QUANT_WIDE; g++) high[g * R + r] =
                _mm512_dpbusd_epi32(i ? high[g * R + r] : _mm512_setzero_si512(), x[g], in);
            if (fast)
                continue;
            in = four_of(at + 32);
            UNROLL for (int g = 0; g < QUANT_WIDE; g++) low[g * R + r] =
                _mm512_dpbusd_epi32(i ? low[g * R + r] : _mm512_setzero_si512(), x[g], in);
        }
    }
    UNROLL_SUMS for (int i = 0; i < QUANT_WIDE * R; i++) dot[i] = fast ? high[i] : both_planes(high[i], low[i]);
}

INLINE void panel_block(int bits, bool fast, const uint8_t *w, uint8_t *out)
{
    (void)fast;
    UNROLL for (int c = 0; c < 8; c++)
    {
        __m512i x = chunk(bits, false, w, c);
        _mm512_storeu_si512(out + 64 * c, bits == 3 ? _mm512_add_epi8(x, _mm512_set1_epi8(THREE_AS_SIX)) : x);
    }
}

#endif
