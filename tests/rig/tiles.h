/* The tiles of AMX in plain C, for the test that runs the kernels of linear_amx.c on any x86 machine. Of one thread;
 * what a program may not do with tiles fails an assertion. Tests only. */
#ifndef RIG_TILES_H
#define RIG_TILES_H

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "engine/base/check.h"
#include "kernels/dtype.h"

#undef _tile_loadconfig /* of a compiler, whose macros these may be */
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbssd
#undef _tile_dpbf16ps
#define _tile_loadconfig(from) tile_loadconfig(from)
#define _tile_release() tile_release()
#define _tile_zero(t) tile_zero(t)
#define _tile_loadd(t, from, stride) tile_loadd(t, from, stride)
#define _tile_stored(t, to, stride) tile_stored(t, to, stride)
#define _tile_dpbssd(sums, a, b) tile_dpbssd(sums, a, b)
#define _tile_dpbf16ps(sums, a, b) tile_dpbf16ps(sums, a, b)

static struct tile_file {
    bool configured;
    int rows[8], bytes[8];
    uint8_t of[8][16][64];
} tile_file;

static inline void tile_loadconfig(const void *from)
{
    const uint8_t *c = from;
    ASSERT(c[0] == 1); /* the palette; the other bytes of its head are zero */
    for (int i = 1; i < 16; i++)
        ASSERT(c[i] == 0);
    memset(&tile_file, 0, sizeof tile_file);
    tile_file.configured = true;
    for (int i = 0; i < 8; i++) {
        uint16_t bytes;
        memcpy(&bytes, c + 16 + 2 * i, sizeof bytes);
        tile_file.bytes[i] = bytes;
        tile_file.rows[i] = c[48 + i];
        ASSERT(bytes <= 64 && c[48 + i] <= 16);
    }
}

static inline void tile_release(void)
{
    memset(&tile_file, 0, sizeof tile_file);
}

static inline void tile_zero(int t)
{
    ASSERT(tile_file.configured && tile_file.rows[t]);
    memset(tile_file.of[t], 0, sizeof tile_file.of[t]);
}

static inline void tile_loadd(int t, const void *from, size_t stride)
{
    tile_zero(t);
    for (int r = 0; r < tile_file.rows[t]; r++)
        memcpy(tile_file.of[t][r], (const uint8_t *)from + (size_t)r * stride, (size_t)tile_file.bytes[t]);
}

static inline void tile_stored(int t, void *to, size_t stride)
{
    ASSERT(tile_file.configured && tile_file.rows[t]);
    for (int r = 0; r < tile_file.rows[t]; r++)
        memcpy((uint8_t *)to + (size_t)r * stride, tile_file.of[t][r], (size_t)tile_file.bytes[t]);
}

/* sums[m][n] += a[m] * b[.][n], four signed bytes at a time. */
static inline void tile_dpbssd(int sums, int a, int b)
{
    ASSERT(tile_file.rows[a] == tile_file.rows[sums] && tile_file.bytes[a] == 4 * tile_file.rows[b] &&
           tile_file.bytes[b] == tile_file.bytes[sums]);
    for (int m = 0; m < tile_file.rows[sums]; m++)
        for (int n = 0; n < tile_file.bytes[sums] / 4; n++) {
            int32_t sum;
            memcpy(&sum, tile_file.of[sums][m] + 4 * n, sizeof sum);
            for (int k = 0; k < tile_file.bytes[a]; k++)
                sum += (int8_t)tile_file.of[a][m][k] * (int8_t)tile_file.of[b][k / 4][4 * n + k % 4];
            memcpy(tile_file.of[sums][m] + 4 * n, &sum, sizeof sum);
        }
}

/* sums[m][n] += a[m] * b[.][n], of pairs of bfloat16: the even ones' products and the odd ones' by themselves. */
static inline void tile_dpbf16ps(int sums, int a, int b)
{
    ASSERT(tile_file.rows[a] == tile_file.rows[sums] && tile_file.bytes[a] == 4 * tile_file.rows[b] &&
           tile_file.bytes[b] == tile_file.bytes[sums]);
    for (int m = 0; m < tile_file.rows[sums]; m++)
        for (int n = 0; n < tile_file.bytes[sums] / 4; n++) {
            float sum, of[2] = {0, 0};
            for (int k = 0; k < tile_file.bytes[a] / 2; k++) {
                uint16_t x, w;
                memcpy(&x, tile_file.of[a][m] + 2 * k, sizeof x);
                memcpy(&w, tile_file.of[b][k / 2] + 4 * n + 2 * (k % 2), sizeof w);
                of[k % 2] = fmaf(bf16_to_f32(x), bf16_to_f32(w), of[k % 2]);
            }
            memcpy(&sum, tile_file.of[sums][m] + 4 * n, sizeof sum);
            sum += of[0] + of[1];
            memcpy(tile_file.of[sums][m] + 4 * n, &sum, sizeof sum);
        }
}

#endif
