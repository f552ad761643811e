#ifdef __AVX2__
#include "kernels/cpu/vec_avx2.h"

#define ENC_ROWS_DEFINED 4 /* 8 registers of sums, 4 of weights, 4 of inputs and products */
#define ENC_FOLDED 1
enum { ENC_ROWS = ENC_ROWS_DEFINED, ENC_GROUPS = 1, ENC_LACE = 4 };

INLINE vi vi_zero(void)
{
    return (vi){_mm256_setzero_si256(), _mm256_setzero_si256()};
}

INLINE vi vi_load(const int16_t *p)
{
    return (vi){_mm256_loadu_si256((const __m256i *)p), _mm256_loadu_si256((const __m256i *)(p + 16))};
}

INLINE vi enc_dot(vi acc, vi w, vi x)
{
    return (vi){_mm256_add_epi32(acc.a, _mm256_madd_epi16(w.a, x.a)),
                _mm256_add_epi32(acc.b, _mm256_madd_epi16(w.b, x.b))};
}

INLINE void vi_store_negative(int32_t *p, vi x)
{
    _mm256_storeu_si256((__m256i *)p, _mm256_sub_epi32(_mm256_setzero_si256(), x.a));
    _mm256_storeu_si256((__m256i *)(p + 8), _mm256_sub_epi32(_mm256_setzero_si256(), x.b));
}

/* What a leaf's sum begins with. */
INLINE vi enc_unfold(const int32_t *w, const int32_t *x)
{
    __m256i row = _mm256_set1_epi32(*x);
    return (vi){_mm256_add_epi32(row, _mm256_loadu_si256((const __m256i *)w)),
                _mm256_add_epi32(row, _mm256_loadu_si256((const __m256i *)(w + 8)))};
}

/* Row r of a tile, four columns: inputs to ymm12 and ymm13, both plus the weights of the other two columns, products,
 * and those to the sums. In this order a Zen 3 keeps its four pipes 92 % busy; in that of compilers, 75 %. */
#define QUAD_ROW(at, a, b)                                                                                             \
    "vpbroadcastd " at "(%[x]), %%ymm12\n\t"                                                                           \
    "vpbroadcastd 4+" at "(%[x]), %%ymm13\n\t"                                                                         \
    "vpaddw %%ymm12, %%ymm10, %%ymm14\n\t"                                                                             \
    "vpaddw %%ymm12, %%ymm11, %%ymm12\n\t"                                                                             \
    "vpaddw %%ymm13, %%ymm8, %%ymm15\n\t"                                                                              \
    "vpaddw %%ymm13, %%ymm9, %%ymm13\n\t"                                                                              \
    "vpmaddwd %%ymm14, %%ymm15, %%ymm14\n\t"                                                                           \
    "vpmaddwd %%ymm12, %%ymm13, %%ymm12\n\t"                                                                           \
    "vpaddd %%ymm14, " a ", " a "\n\t"                                                                                 \
    "vpaddd %%ymm12, " b ", " b "\n\t"

/* Four columns of four laced rows by sixteen outputs. */
INLINE void enc_quad(vi *r0, vi *r1, vi *r2, vi *r3, const int16_t *w, const int16_t *x)
{
    __asm__("vmovdqu (%[w]), %%ymm8\n\t"
            "vmovdqu 32(%[w]), %%ymm9\n\t"
            "vmovdqu 64(%[w]), %%ymm10\n\t"
            "vmovdqu 96(%[w]), %%ymm11\n\t" QUAD_ROW("0", "%[a0]", "%[b0]") QUAD_ROW("8", "%[a1]", "%[b1]")
                QUAD_ROW("16", "%[a2]", "%[b2]") QUAD_ROW("24", "%[a3]", "%[b3]")
            : [a0] "+x"(r0->a), [b0] "+x"(r0->b), [a1] "+x"(r1->a), [b1] "+x"(r1->b), [a2] "+x"(r2->a),
              [b2] "+x"(r2->b), [a3] "+x"(r3->a), [b3] "+x"(r3->b)
            : [w] "r"(w), [x] "r"(x), "m"(*(const int16_t(*)[64])w), "m"(*(const int16_t(*)[16])x)
            : "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15");
}

INLINE __m256i words_of(vf x) /* of columns 0-3, 8-11, 4-7, 12-15 */
{
    return _mm256_packs_epi32(_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b));
}

INLINE void enc_put16(int16_t *q, vf x)
{
    _mm256_storeu_si256((__m256i *)q, _mm256_permute4x64_epi64(words_of(x), 0xD8));
}

INLINE void enc_put_laced(int16_t *q, vf x, vi *fold)
{
    __m256i s = words_of(x);
    __m128i low = _mm256_castsi256_si128(s), high = _mm256_extracti128_si256(s, 1);
    fold->a = _mm256_add_epi32(fold->a, _mm256_madd_epi16(s, _mm256_srli_epi64(s, 32)));
    _mm_storel_epi64((__m128i *)q, low);
    _mm_storel_epi64((__m128i *)(q + 4 * ENC_LACE), high);
    _mm_storeh_pd((double *)(q + 8 * ENC_LACE), _mm_castsi128_pd(low));
    _mm_storeh_pd((double *)(q + 12 * ENC_LACE), _mm_castsi128_pd(high));
}

INLINE int32_t enc_fold(vi x)
{
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(x.a), _mm256_extracti128_si256(x.a, 1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1));
    return (int32_t)(0 - (uint32_t)_mm_cvtsi128_si32(s));
}

INLINE __m256i pairs_of(__m256 x, __m256 y)
{
    return _mm256_blend_epi16(_mm256_cvtps_epi32(x), _mm256_slli_epi32(_mm256_cvtps_epi32(y), 16), 0xAA);
}

INLINE void enc_put_pairs(int16_t *q, vf x, vf y)
{
    _mm256_storeu_si256((__m256i *)q, pairs_of(x.a, y.a));
    _mm256_storeu_si256((__m256i *)(q + 16), pairs_of(x.b, y.b));
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
