#ifdef __AVX2__
#include "kernels/cpu/vec_avx2.h"

#define ENC_ROWS_DEFINED 4 /* 8 registers of sums, 4 of weights and inputs */
enum { ENC_ROWS = ENC_ROWS_DEFINED, ENC_GROUPS = 1, ENC_WIDE = 1 };

INLINE vi vi_zero(void)
{
    return (vi){_mm256_setzero_si256(), _mm256_setzero_si256()};
}

INLINE vi vi_load(const int16_t *p)
{
    return (vi){_mm256_loadu_si256((const __m256i *)p), _mm256_loadu_si256((const __m256i *)(p + 16))};
}

INLINE vi vi_pair(const int16_t *p)
{
    int32_t two;
    memcpy(&two, p, sizeof two);
    __m256i x = _mm256_set1_epi32(two);
    return (vi){x, x};
}

INLINE vi enc_dot(vi acc, vi w, vi x)
{
    return (vi){_mm256_add_epi32(acc.a, _mm256_madd_epi16(w.a, x.a)),
                _mm256_add_epi32(acc.b, _mm256_madd_epi16(w.b, x.b))};
}

INLINE void enc_put16(int16_t *q, vf x)
{
    __m256i s = _mm256_packs_epi32(_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b));
    _mm256_storeu_si256((__m256i *)q, _mm256_permute4x64_epi64(s, 0xD8));
}

#include "kernels/cpu/encode_body.h"

const struct encode_kernels *encode_kernels_avx2(void)
{
    static const struct encode_kernels kernels = ENCODE_TABLE("avx2");
    return &kernels;
}
#else
#include "kernels/cpu/encode_kernels.h"

const struct encode_kernels *encode_kernels_avx2(void)
{
    return NULL;
}
#endif
