/* Dots by SDOT: four columns of four outputs at once. Included by kernels_dotprod.c only. */
#ifndef CPU_VEC_NEON_DOTPROD_H
#define CPU_VEC_NEON_DOTPROD_H

#include "kernels/cpu/vec_neon_bytes.h"

/* 16 registers of sums, of two rows in two planes or of four in one; a panel has chunk after chunk */
enum { QUANT_TILE = 2, FAST_TILE = 4, PANEL_BLOCK = 512 };

INLINE void round32(const float *x, float k, int8_t *to, int32_t sum[2], bool fast)
{
    if (fast)
        round32_fast(x, k, to, sum);
    else
        round32_planes(x, k, to, sum, 8, 32);
}

/* A chunk's four columns of sixteen outputs. */
INLINE vi add_chunk(vi sum, uint8x16x4_t w, const int8_t *q)
{
    int32_t four;
    memcpy(&four, q, sizeof four);
    int8x16_t x = vreinterpretq_s8_s32(vdupq_n_s32(four));
    return (vi){vdotq_s32(sum.a, vreinterpretq_s8_u8(w.val[0]), x), vdotq_s32(sum.b, vreinterpretq_s8_u8(w.val[1]), x),
                vdotq_s32(sum.c, vreinterpretq_s8_u8(w.val[2]), x), vdotq_s32(sum.d, vreinterpretq_s8_u8(w.val[3]), x)};
}

INLINE void dot_block(int bits, bool panel, bool fast, int part, int R, const uint8_t *w, const int8_t *q, vi dot[])
{
    vi high[FAST_TILE], low[FAST_TILE];
    UNROLL for (int r = 0; r < R; r++) high[r] = low[r] = vi_zero();
    int n = bits_in_halves(bits) ? 4 : 8;
    UNROLL for (int i = 0; i < n; i++)
    {
        int c = 4 * part + i;
        uint8x16x4_t x = panel ? load64(false, w + 64 * c) : chunk(bits, false, w, c);
        UNROLL for (int r = 0; r < R; r++)
        {
            const int8_t *at = q + quant_block(fast) * (size_t)r + 4 * c;
            high[r] = add_chunk(high[r], x, at);
            if (!fast)
                low[r] = add_chunk(low[r], x, at + 32);
        }
    }
    UNROLL for (int r = 0; r < R; r++) dot[r] = fast ? high[r] : join_planes(high[r], low[r]);
}

INLINE int in_place_rows(enum family f, bool fast)
{
    return tiles_in_place(f) * (fast ? FAST_TILE : QUANT_TILE);
}

INLINE void panel_block(int bits, bool fast, const uint8_t *w, uint8_t *out)
{
    (void)fast;
    UNROLL for (int c = 0; c < 8; c++) store64(out + 64 * c, panel_chunk(bits, false, w, c));
}

#endif
