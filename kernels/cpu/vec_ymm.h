/* What the AVX2 and AVX-512 kernels share: what they do with no more than 256 bits. A test may bring its own intrinsics
 * (CPU_INTRINSICS), to run the AVX-512 kernels emulated where the CPU lacks them. */
#ifndef CPU_VEC_YMM_H
#define CPU_VEC_YMM_H

#ifndef CPU_INTRINSICS
#include <immintrin.h>
#endif
#include <string.h>

#include "kernels/cpu/inline.h"
#include "kernels/cpu/kernels.h"

INLINE __m256 widen_bf16(const uint16_t *p)
{
    __m256i x = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(x, 16));
}

INLINE __m256 drop_small(__m256 x)
{
    __m256 size = _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x);
    return _mm256_and_ps(x, _mm256_cmp_ps(size, _mm256_set1_ps(SMALLEST_HALF), _CMP_NLT_UQ)); /* keeps NaN */
}

/* As bfloat16, to nearest even, in the upper half of each lane. */
INLINE __m256i round_bf16(__m256 x)
{
    __m256i u = _mm256_castps_si256(x), odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    __m256i near = _mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    near = _mm256_blendv_epi8(near, _mm256_or_si256(u, _mm256_set1_epi32(0x400000)), nan);
    return _mm256_and_si256(near, _mm256_set1_epi32((int)0xffff0000));
}

INLINE void store_bf16(uint16_t *p, __m256 low, __m256 high)
{
    __m256i x = _mm256_packus_epi32(_mm256_srli_epi32(round_bf16(low), 16), _mm256_srli_epi32(round_bf16(high), 16));
    _mm256_storeu_si256((__m256i *)(void *)p, _mm256_permute4x64_epi64(x, 0xd8));
}

/* Pairs of bfloat16, the even ones below. */
INLINE void store_pairs(uint8_t *p, __m256 even, __m256 odd)
{
    __m256i low = _mm256_srli_epi32(round_bf16(even), 16);
    _mm256_storeu_si256((__m256i *)(void *)p, _mm256_or_si256(low, round_bf16(odd)));
}

INLINE __m256 even_of(const uint8_t *p)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_loadu_si256((const __m256i *)(const void *)p), 16));
}

INLINE __m256 odd_of(const uint8_t *p)
{
    __m256i x = _mm256_loadu_si256((const __m256i *)(const void *)p);
    return _mm256_castsi256_ps(_mm256_and_si256(x, _mm256_set1_epi32((int)0xffff0000)));
}

/* 256ths of sixteen E4M3 codes, as f16: the same fields at another bias, NaN apart. */
INLINE __m256i widen_f8(const uint8_t *p)
{
    __m256i x = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)p)), low = _mm256_set1_epi16(0x7f);
    __m256i a = _mm256_and_si256(x, low), nan = _mm256_cmpeq_epi16(a, low),
            sign = _mm256_slli_epi16(_mm256_srli_epi16(x, 7), 15);
    a = _mm256_max_epu16(_mm256_slli_epi16(a, 7), _mm256_and_si256(nan, _mm256_set1_epi16(0x7e00)));
    return _mm256_or_si256(a, sign);
}

/* The low or the high nibbles of 16 bytes. */
INLINE __m128i load_nibbles(const uint8_t *p, bool high)
{
    __m128i x = _mm_loadu_si128((const __m128i *)(const void *)p);
    return _mm_and_si128(high ? _mm_srli_epi16(x, 4) : x, _mm_set1_epi8(15));
}

INLINE void prefetch(const void *p)
{
    _mm_prefetch((const char *)p, _MM_HINT_T0);
}

INLINE void prefetch_far(const void *p)
{
    _mm_prefetch((const char *)p, _MM_HINT_T1);
}

INLINE uint32_t amax_bits32(const float *x)
{
    const __m256i mask = _mm256_set1_epi32(0x7fffffff);
    __m256i m = _mm256_and_si256(mask, _mm256_loadu_si256((const __m256i *)x));
    for (int i = 1; i < 4; i++)
        m = _mm256_max_epu32(m, _mm256_and_si256(mask, _mm256_loadu_si256((const __m256i *)(x + 8 * i))));
    __m128i s = _mm_max_epu32(_mm256_castsi256_si128(m), _mm256_extracti128_si256(m, 1));
    s = _mm_max_epu32(s, _mm_shuffle_epi32(s, 0x4e));
    s = _mm_max_epu32(s, _mm_shuffle_epi32(s, 0xb1));
    return (uint32_t)_mm_cvtsi128_si32(s);
}

INLINE int32_t sum16(__m128i q)
{
    __m128i s = _mm_sad_epu8(_mm_xor_si128(q, _mm_set1_epi8((char)0x80)), _mm_setzero_si128());
    return _mm_cvtsi128_si32(s) + _mm_extract_epi16(s, 4) - 16 * 128;
}

/* Packs 32 integers of -127 .. 127 into bytes; the sums of the two halves, times `weight`, are added. */
INLINE void put_plane(const __m256 v[4], int8_t *plane, int32_t weight, int32_t sum[2])
{
    __m256i lo = _mm256_packs_epi32(_mm256_cvtps_epi32(v[0]), _mm256_cvtps_epi32(v[1]));
    __m256i hi = _mm256_packs_epi32(_mm256_cvtps_epi32(v[2]), _mm256_cvtps_epi32(v[3]));
    __m256i all = _mm256_packs_epi16(lo, hi); /* dwords 0,2,4,6 of lane order 0 4 1 5 2 6 3 7 */
    all = _mm256_permutevar8x32_epi32(all, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    _mm256_storeu_si256((__m256i *)plane, all);
    sum[0] += weight * sum16(_mm256_castsi256_si128(all));
    sum[1] += weight * sum16(_mm256_extracti128_si256(all, 1));
}

INLINE __m256 nearest8(__m256 x)
{
    return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

#endif
