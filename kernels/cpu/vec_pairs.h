/* Pairs of products of bfloat16 (AVX512-BF16): vdpbf16ps adds the product of the odd one and rounds, then that of the
 * even one and rounds, which is what half_tile of linear_float_body.h does; it takes subnormal numbers for zero, which
 * SMALLEST_HALF keeps from coming up. Included by kernels_avx512.c before the bodies. */
#ifndef CPU_VEC_PAIRS_H
#define CPU_VEC_PAIRS_H

#include "kernels/cpu/vec_avx512.h"

#define VEC_PAIRS

INLINE vi pair_load(const uint8_t *p)
{
    return _mm512_loadu_si512(p);
}

/* The pair at x in each lane. */
INLINE vi pair_load1(const uint16_t *x)
{
    int32_t two;
    memcpy(&two, x, sizeof two);
    return _mm512_set1_epi32(two);
}

/* acc + w * x, lane by lane */
INLINE vf pair_add(vf acc, vi w, vi x)
{
    return _mm512_dpbf16_ps(acc, (__m512bh)w, (__m512bh)x);
}

/* What makes sixteen pairs of two rows side by side. */
static const uint16_t pair_order[32] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                        8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};

/* Sixteen pairs out of two rows. */
INLINE vi pair_of(const uint16_t *even, const uint16_t *odd)
{
    __m512i rows = _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *)even));
    rows = _mm512_inserti64x4(rows, _mm256_loadu_si256((const __m256i *)odd), 1);
    return _mm512_permutexvar_epi16(_mm512_loadu_si512(pair_order), rows);
}

/* Of integers, which bfloat16 holds as they are. */
INLINE vi pair_of_bytes(const int8_t *even, const int8_t *odd)
{
    __m512i below = _mm512_srli_epi32(_mm512_castps_si512(vf_load_s8(even)), 16);
    return _mm512_or_si512(_mm512_castps_si512(vf_load_s8(odd)), below);
}

/* To the nearest; neither is smaller than SMALLEST_HALF, but 0. */
INLINE vi pair_of_floats(vf even, vf odd)
{
    __m512i near = (__m512i)_mm512_cvtne2ps_pbh(odd, even);
    return _mm512_permutexvar_epi16(_mm512_loadu_si512(pair_order), near);
}

INLINE void pair_store(uint8_t *p, vi x)
{
    _mm512_storeu_si512(p, x);
}

/* Stores x to the nearest bfloat16, as which it is returned. */
INLINE vf half_store(uint16_t *p, vf x)
{
    __m256i half = (__m256i)_mm512_cvtneps_pbh(x);
    _mm256_storeu_si256((__m256i *)p, half);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

#endif
