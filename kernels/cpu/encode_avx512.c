#if defined(__AVX512VNNI__)
#include "kernels/cpu/vec_avx512.h"

#define ENC_ROWS_DEFINED 8 /* 24 registers of sums, 3 of weights */
enum { ENC_ROWS = ENC_ROWS_DEFINED, ENC_GROUPS = 3, ENC_WIDE = 2 };

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
    /* gcc keeps a copy of every sum in memory where the intrinsic stands in a loop */
    __asm__("vpdpwssd %2, %1, %0" : "+v"(acc) : "v"(w), "v"(x));
    return acc;
}

INLINE void enc_put16(int16_t *q, vf x)
{
    _mm256_storeu_si256((__m256i *)q, _mm512_cvtsepi32_epi16(_mm512_cvtps_epi32(x)));
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
