/* Dots on any aarch64 CPU: weights and inputs as 16-bit integers, column by column. Included by kernels_neon.c only. */
#ifndef CPU_VEC_NEON_WIDE_H
#define CPU_VEC_NEON_WIDE_H

#include "kernels/cpu/vec_neon_bytes.h"

enum { QUANT_TILE = 4, FAST_TILE = 4, PANEL_BLOCK = 512 }; /* a panel has a chunk's columns apart */

INLINE void round32(const float *x, float k, int8_t *to, int32_t sum[2], bool fast)
{
    if (fast) {
        round32_fast(x, k, to, sum);
        return;
    }
    UNROLL for (int i = 0; i < 2; i++)
    {
        int16x8_t low = round8(x + 16 * i, k), high = round8(x + 16 * i + 8, k);
        vst1q_s16((int16_t *)(void *)to + 16 * i, low);
        vst1q_s16((int16_t *)(void *)to + 16 * i + 8, high);
        sum[i] = vaddlvq_s16(low) + vaddlvq_s16(high);
    }
}

INLINE int16_t input_at(bool fast, const int8_t *q, int column)
{
    return fast ? q[column] : ((const int16_t *)(const void *)q)[column];
}

/* One column of sixteen outputs. */
INLINE vi add_column(vi sum, int8x16_t w, int16_t x)
{
    int16x8_t low = vmovl_s8(vget_low_s8(w)), high = vmovl_high_s8(w);
    return (vi){vmlal_n_s16(sum.a, vget_low_s16(low), x), vmlal_high_n_s16(sum.b, low, x),
                vmlal_n_s16(sum.c, vget_low_s16(high), x), vmlal_high_n_s16(sum.d, high, x)};
}

INLINE void dot_block(int bits, bool panel, bool fast, int part, int R, const uint8_t *w, const int8_t *q, vi dot[])
{
    UNROLL for (int r = 0; r < R; r++) dot[r] = vi_zero();
    for (int c = 4 * part, end = bits_in_halves(bits) ? c + 4 : 8; c < end; c++) {
        uint8x16x4_t x = panel ? load64(false, w + 64 * c) : chunk(bits, true, w, c);
        UNROLL for (int k = 0; k < 4; k++) UNROLL for (int r = 0; r < R; r++) dot[r] = add_column(
            dot[r], vreinterpretq_s8_u8(x.val[k]), input_at(fast, q + quant_block(fast) * (size_t)r, 4 * c + k));
    }
}

INLINE int in_place_rows(enum family f, bool fast)
{
    return tiles_in_place(f) * (fast ? FAST_TILE : QUANT_TILE);
}

INLINE void panel_block(int bits, bool fast, const uint8_t *w, uint8_t *out)
{
    (void)fast;
    UNROLL for (int c = 0; c < 8; c++) store64(out + 64 * c, panel_chunk(bits, true, w, c));
}

#endif
