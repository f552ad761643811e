/* Dots by SMMLA: eight columns of two outputs times the same of two inputs, which are both planes of one row, or two
 * rows in one plane. Included by kernels_i8mm.c only. */
#ifndef CPU_VEC_NEON_I8MM_H
#define CPU_VEC_NEON_I8MM_H

#include "kernels/cpu/vec_neon_bytes.h"

/* 16 registers of sums; a panel has the eight registers of two chunks, and then those of the next two */
enum { QUANT_TILE = 2, FAST_TILE = 4, PANEL_BLOCK = 512 };

/* Two chunks: register i has eight columns of output 2i, then of output 2i + 1. Sums: for each of both outputs what
 * the first input gives, then what the second one gives. */
struct eight {
    int8x16_t v[8];
};
struct sums {
    int32x4_t v[8];
};

INLINE void round32(const float *x, float k, int8_t *to, int32_t sum[2], bool fast)
{
    if (fast)
        round32_fast(x, k, to, sum);
    else
        round32_planes(x, k, to, sum, 16, 8);
}

/* Two chunks, side by side. */
INLINE struct eight two_chunks(uint8x16x4_t x, uint8x16x4_t y)
{
    struct eight to;
    UNROLL for (int i = 0; i < 4; i++)
    {
        int32x4_t a = vreinterpretq_s32_u8(x.val[i]), b = vreinterpretq_s32_u8(y.val[i]);
        to.v[2 * i] = vreinterpretq_s8_s32(vzip1q_s32(a, b));
        to.v[2 * i + 1] = vreinterpretq_s8_s32(vzip2q_s32(a, b));
    }
    return to;
}

INLINE struct eight load_panel(const uint8_t *p)
{
    struct eight to;
    UNROLL for (int i = 0; i < 8; i++) to.v[i] = vld1q_s8((const int8_t *)p + 16 * i);
    return to;
}

/* The inputs of row r: both planes; fast: those of the next row, too, or of the same where there is none. */
INLINE int8x16_t two_inputs(bool fast, int R, int r, const int8_t *q, int column)
{
    const int8_t *at = q + quant_block(fast) * (size_t)r;
    if (!fast)
        return vld1q_s8(at + 2 * column);
    return vcombine_s8(vld1_s8(at + column), vld1_s8(at + (r + 1 < R ? FAST_BLOCK : 0) + column));
}

/* What the first (second) input gives, in the order of outputs. */
INLINE vi of_first(const struct sums *s)
{
    return (vi){vuzp1q_s32(s->v[0], s->v[1]), vuzp1q_s32(s->v[2], s->v[3]), vuzp1q_s32(s->v[4], s->v[5]),
                vuzp1q_s32(s->v[6], s->v[7])};
}

INLINE vi of_second(const struct sums *s)
{
    return (vi){vuzp2q_s32(s->v[0], s->v[1]), vuzp2q_s32(s->v[2], s->v[3]), vuzp2q_s32(s->v[4], s->v[5]),
                vuzp2q_s32(s->v[6], s->v[7])};
}

INLINE void dot_block(int bits, bool panel, bool fast, int part, int R, const uint8_t *w, const int8_t *q, vi dot[])
{
    struct sums sum[2];
    int n = bits_in_halves(bits) ? 2 : 4, step = fast ? 2 : 1;
    UNROLL for (int i = 0; i < n; i++)
    {
        int c = 4 * part + 2 * i;
        struct eight x =
            panel ? load_panel(w + 64 * c) : two_chunks(chunk(bits, false, w, c), chunk(bits, false, w, c + 1));
        UNROLL for (int r = 0; r < R; r += step)
        {
            int8x16_t y = two_inputs(fast, R, r, q, 4 * c);
            struct sums *s = &sum[r / step];
            UNROLL for (int k = 0; k < 8; k++) s->v[k] = vmmlaq_s32(i ? s->v[k] : vdupq_n_s32(0), x.v[k], y);
        }
    }
    UNROLL for (int r = 0; r < R; r++)
    {
        const struct sums *s = &sum[r / step];
        dot[r] = !fast ? join_planes(of_first(s), of_second(s)) : r % 2 ? of_second(s) : of_first(s);
    }
}

INLINE int in_place_rows(enum family f, bool fast)
{
    return tiles_in_place(f) * (fast ? FAST_TILE : QUANT_TILE);
}

INLINE void panel_block(int bits, bool fast, const uint8_t *w, uint8_t *out)
{
    (void)fast;
    UNROLL for (int c = 0; c < 8; c += 2)
    {
        struct eight x = two_chunks(panel_chunk(bits, false, w, c), panel_chunk(bits, false, w, c + 1));
        UNROLL for (int i = 0; i < 8; i++) vst1q_s8((int8_t *)out + 64 * c + 16 * i, x.v[i]);
    }
}

#endif
