/* Sixteen rows of sixteen bytes side by side: element i of all rows, then element i + 1. That is how packed weights lie
 * (pack.h); a store for each element takes several times as long. `to` has 256 bytes, aligned to 16. */
#ifndef CPU_TRANSPOSE_H
#define CPU_TRANSPOSE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "kernels/cpu/inline.h"

enum { TILE_ROWS = 16, TILE_BYTES = 16 };

#ifdef __SSE2__

INLINE __m128i tile_row(const uint8_t *from, size_t pitch, int row)
{
    return _mm_loadu_si128((const __m128i *)(const void *)(from + (size_t)row * pitch));
}

INLINE void put_row(uint8_t *to, int i, __m128i v)
{
    _mm_store_si128((__m128i *)(void *)to + i, v);
}

/* Elements of 4 bytes: four rows make a quarter of each of the four results. */
INLINE void transpose_words(uint8_t *to, const uint8_t *from, size_t pitch)
{
    for (int k = 0; k < 4; k++) {
        __m128i a = tile_row(from, pitch, 4 * k), b = tile_row(from, pitch, 4 * k + 1),
                c = tile_row(from, pitch, 4 * k + 2), d = tile_row(from, pitch, 4 * k + 3);
        __m128i ab = _mm_unpacklo_epi32(a, b), cd = _mm_unpacklo_epi32(c, d);
        put_row(to, k, _mm_unpacklo_epi64(ab, cd));
        put_row(to, 4 + k, _mm_unpackhi_epi64(ab, cd));
        ab = _mm_unpackhi_epi32(a, b);
        cd = _mm_unpackhi_epi32(c, d);
        put_row(to, 8 + k, _mm_unpacklo_epi64(ab, cd));
        put_row(to, 12 + k, _mm_unpackhi_epi64(ab, cd));
    }
}

/* Elements of 2 bytes: eight rows make a half of each of the eight results. */
INLINE void transpose_halves(uint8_t *to, const uint8_t *from, size_t pitch)
{
    for (int k = 0; k < 2; k++) {
        __m128i v[8], w[8];
        for (int i = 0; i < 8; i++)
            v[i] = tile_row(from, pitch, 8 * k + i);
        for (int i = 0; i < 4; i++) {
            w[i] = _mm_unpacklo_epi16(v[2 * i], v[2 * i + 1]); /* elements 0 to 3 of rows 2i, 2i + 1 */
            w[4 + i] = _mm_unpackhi_epi16(v[2 * i], v[2 * i + 1]);
        }
        for (int half = 0; half < 2; half++) {
            const __m128i *x = w + 4 * half;
            __m128i low = _mm_unpacklo_epi32(x[0], x[1]), next = _mm_unpacklo_epi32(x[2], x[3]);
            uint8_t *at = to + 128 * half;
            put_row(at, k, _mm_unpacklo_epi64(low, next));
            put_row(at, 2 + k, _mm_unpackhi_epi64(low, next));
            low = _mm_unpackhi_epi32(x[0], x[1]);
            next = _mm_unpackhi_epi32(x[2], x[3]);
            put_row(at, 4 + k, _mm_unpacklo_epi64(low, next));
            put_row(at, 6 + k, _mm_unpackhi_epi64(low, next));
        }
    }
}

/* Elements of 1 byte. A round puts row i and row i + 8 byte by byte into one another; after four all are in place. */
INLINE void transpose_bytes(uint8_t *to, const uint8_t *from, size_t pitch)
{
    __m128i v[16], w[16];
    for (int i = 0; i < 16; i++)
        v[i] = tile_row(from, pitch, i);
    for (int round = 0; round < 4; round++) {
        for (int i = 0; i < 8; i++) {
            w[2 * i] = _mm_unpacklo_epi8(v[i], v[i + 8]);
            w[2 * i + 1] = _mm_unpackhi_epi8(v[i], v[i + 8]);
        }
        memcpy(v, w, sizeof v);
    }
    for (int i = 0; i < 16; i++)
        put_row(to, i, v[i]);
}

#else

INLINE void transpose_elements(uint8_t *to, const uint8_t *from, size_t pitch, int size)
{
    for (int i = 0; i < TILE_BYTES / size; i++)
        for (int row = 0; row < TILE_ROWS; row++)
            memcpy(to + (i * TILE_ROWS + row) * size, from + (size_t)row * pitch + (size_t)(i * size), (size_t)size);
}

INLINE void transpose_words(uint8_t *to, const uint8_t *from, size_t pitch)
{
    transpose_elements(to, from, pitch, 4);
}

INLINE void transpose_halves(uint8_t *to, const uint8_t *from, size_t pitch)
{
    transpose_elements(to, from, pitch, 2);
}

INLINE void transpose_bytes(uint8_t *to, const uint8_t *from, size_t pitch)
{
    transpose_elements(to, from, pitch, 1);
}

#endif
#endif
