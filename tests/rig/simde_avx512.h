/* AVX-512 emulated with SIMDe over AVX2, for the test that runs the AVX-512 kernels on any x86 machine. SIMDe 0.7.4
 * lacks a few conversions; they are made of their 256-bit halves here. Tests only. */
#ifndef RIG_SIMDE_AVX512_H
#define RIG_SIMDE_AVX512_H

#define SIMDE_ENABLE_NATIVE_ALIASES
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wshadow"
#include <simde/x86/f16c.h>
#include <simde/x86/fma.h>
#include <simde/x86/avx512.h>
#pragma GCC diagnostic pop

#define SIMDE_SHIM static inline __attribute__((always_inline))

SIMDE_SHIM simde__m512 shim_join_ps(__m256 a, __m256 b)
{
    simde__m512_private r;
    r.m256[0] = a;
    r.m256[1] = b;
    return simde__m512_from_private(r);
}

SIMDE_SHIM simde__m512i shim_join_epi32(__m256i a, __m256i b)
{
    simde__m512i_private r;
    r.m256i[0] = a;
    r.m256i[1] = b;
    return simde__m512i_from_private(r);
}

SIMDE_SHIM simde__m512i shim_cvtepu8_epi32(__m128i x)
{
    return shim_join_epi32(_mm256_cvtepu8_epi32(x), _mm256_cvtepu8_epi32(_mm_srli_si128(x, 8)));
}

SIMDE_SHIM simde__m512i shim_cvtepi8_epi32(__m128i x)
{
    return shim_join_epi32(_mm256_cvtepi8_epi32(x), _mm256_cvtepi8_epi32(_mm_srli_si128(x, 8)));
}

SIMDE_SHIM simde__m512i shim_cvtepu16_epi32(__m256i x)
{
    return shim_join_epi32(_mm256_cvtepu16_epi32(_mm256_castsi256_si128(x)),
                           _mm256_cvtepu16_epi32(_mm256_extracti128_si256(x, 1)));
}

SIMDE_SHIM simde__m512 shim_cvtepi32_ps(simde__m512i x)
{
    simde__m512i_private p = simde__m512i_to_private(x);
    return shim_join_ps(_mm256_cvtepi32_ps(p.m256i[0]), _mm256_cvtepi32_ps(p.m256i[1]));
}

SIMDE_SHIM simde__m512 shim_cvtph_ps(__m256i x)
{
    return shim_join_ps(_mm256_cvtph_ps(_mm256_castsi256_si128(x)), _mm256_cvtph_ps(_mm256_extracti128_si256(x, 1)));
}

SIMDE_SHIM __m256i shim_cvtps_ph(simde__m512 x)
{
    simde__m512_private p = simde__m512_to_private(x);
    __m128i a = _mm256_cvtps_ph(p.m256[0], 0), b = _mm256_cvtps_ph(p.m256[1], 0);
    return _mm256_inserti128_si256(_mm256_castsi128_si256(a), b, 1);
}

SIMDE_SHIM simde__m512i shim_cvtps_epi32(simde__m512 x)
{
    simde__m512_private p = simde__m512_to_private(x);
    return shim_join_epi32(_mm256_cvtps_epi32(p.m256[0]), _mm256_cvtps_epi32(p.m256[1]));
}

#undef _mm512_cvtps_epi32
#define _mm512_cvtps_epi32(x) shim_cvtps_epi32(x)
#define _mm512_cvtepu8_epi32(x) shim_cvtepu8_epi32(x)
#define _mm512_cvtepi8_epi32(x) shim_cvtepi8_epi32(x)
#define _mm512_cvtepu16_epi32(x) shim_cvtepu16_epi32(x)
#undef _mm512_cvtepi32_ps
#define _mm512_cvtepi32_ps(x) shim_cvtepi32_ps(x)
#define _mm512_cvtph_ps(x) shim_cvtph_ps(x)
#undef _mm512_cvtps_ph
#define _mm512_cvtps_ph(x, how) shim_cvtps_ph(x)

#endif
