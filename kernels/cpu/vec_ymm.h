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

/* 256ths of sixteen E4M3 codes, as f16: the same fields at another bias, NaN apart. */
INLINE __m256i widen_f8(const uint8_t *p)
{
    __m256i x = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)p)), low = _mm256_set1_epi16(0x7f);
    __m256i a = _mm256_and_si256(x, low), nan = _mm256_cmpeq_epi16(a, low),
            sign = _mm256_slli_epi16(_mm256_srli_epi16(x, 7), 15);
    a = _mm256_max_epu16(_mm256_slli_epi16(a, 7), _mm256_and_si256(nan, _mm256_set1_epi16(0x7e00)));
    return _mm256_or_si256(a, sign);
}

INLINE void prefetch(const void *p)
{
    _mm_prefetch((const char *)p, _MM_HINT_T0);
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

INLINE __m256 nearest8(__m256 x)
{
    return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

#endif
