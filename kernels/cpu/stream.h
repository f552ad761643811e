/* Copies past the caches, of what nobody reads soon: a plain store would read what it writes over first, and would put
 * other things out of the caches. Other threads see such a copy after stream_fence. */
#ifndef CPU_STREAM_H
#define CPU_STREAM_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "kernels/cpu/inline.h"

/* Whole sixteens, `to` aligned to 16. */
INLINE void stream_row(uint8_t *to, const uint8_t *from, size_t bytes)
{
#ifdef __SSE2__
    for (size_t i = 0; i < bytes; i += 16)
        _mm_stream_si128((__m128i *)(void *)(to + i), _mm_loadu_si128((const __m128i *)(const void *)(from + i)));
#else
    memcpy(to, from, bytes);
#endif
}

/* Anything; past the caches where `to` is aligned to 16. */
INLINE void stream_copy(uint8_t *to, const uint8_t *from, size_t bytes)
{
    size_t whole = (uintptr_t)to % 16 == 0 ? bytes & ~(size_t)15 : 0, lines = whole & ~(size_t)63;
    for (size_t i = 0; i < lines; i += 64)
        stream_row(to + i, from + i, 64);
    stream_row(to + lines, from + lines, whole - lines);
    memcpy(to + whole, from + whole, bytes - whole);
}

INLINE void stream_fence(void)
{
#ifdef __SSE2__
    _mm_sfence();
#endif
}

#endif
