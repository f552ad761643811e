#if defined(__AVX512VNNI__) || defined(CPU_INTRINSICS)
#include "kernels/cpu/vec_avx512.h"

#define ENC_ROWS_DEFINED 8 /* 24 registers of sums, 3 of weights */
#define ENC_FOLDED 0
enum { ENC_ROWS = ENC_ROWS_DEFINED, ENC_GROUPS = 3, ENC_LACE = 1 };

INLINE vi vi_zero(void)
{
    return _mm512_setzero_si512();
}

INLINE vi vi_load(const int16_t *p)
{
    return _mm512_loadu_si512(p);
}

INLINE vi vi_pair(const int16_t *p)
{
    int32_t two;
    memcpy(&two, p, sizeof two);
    return _mm512_set1_epi32(two);
}

INLINE vi enc_dot(vi acc, vi w, vi x)
{
#ifdef CPU_INTRINSICS
    return _mm512_dpwssd_epi32(acc, w, x);
#else
    /* gcc keeps a copy of every sum in memory where the intrinsic stands in a loop */
    __asm__("vpdpwssd %2, %1, %0" : "+v"(acc) : "v"(w), "v"(x));
    return acc;
#endif
}

INLINE void enc_put16(int16_t *q, vf x)
{
    _mm256_storeu_si256((__m256i *)q, _mm512_cvtsepi32_epi16(_mm512_cvtps_epi32(x)));
}

INLINE void enc_put_pairs(int16_t *q, vf x, vf y)
{
    __m512i b = _mm512_slli_epi32(_mm512_cvtps_epi32(y), 16);
    _mm512_storeu_si512(q, _mm512_mask_blend_epi16(0xAAAAAAAAu, _mm512_cvtps_epi32(x), b));
}

INLINE void enc_put_laced(int16_t *q, vf x, vi *fold)
{
    (void)fold;
    enc_put16(q, x);
}

INLINE int32_t enc_fold(vi x)
{
    (void)x;
    return 0;
}

#include "kernels/cpu/encode_body.h"

const struct encode_kernels *encode_kernels_avx512(void)
{
    static const struct encode_kernels kernels = ENCODE_TABLE("avx512");
    return &kernels;
}
#else
#include "kernels/cpu/encode_kernels.h"

const struct encode_kernels *encode_kernels_avx512(void)
{
    return NULL;
}
#endif
