/* Pairs of products of bfloat16 (AVX512-BF16): vdpbf16ps adds the product of the odd one and rounds, then that of the
 * even one and rounds, which is what half_tile of linear_body.h does; it takes subnormal numbers for zero, which
 * SMALLEST_HALF keeps from coming up. Included by kernels_avx512.c before the bodies. */
#ifndef CPU_VEC_PAIRS_H
#define CPU_VEC_PAIRS_H

#include "kernels/cpu/vec_avx512.h"

#define VEC_PAIRS

INLINE vi pair_load(const uint8_t *p)
{
    return _mm512_loadu_si512(p);
}

/* acc + w * the pair at x, lane by lane */
INLINE vf pair_add(vf acc, vi w, const uint16_t *x)
{
    int32_t two;
    memcpy(&two, x, sizeof two);
    return _mm512_dpbf16_ps(acc, (__m512bh)w, (__m512bh)_mm512_set1_epi32(two));
}

#endif
