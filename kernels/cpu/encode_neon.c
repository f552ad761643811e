#ifdef __aarch64__
#include "kernels/cpu/vec_neon.h"

#define ENC_ROWS_DEFINED 4 /* 16 registers of sums, 4 of weights, 2 of inputs */
#define ENC_FOLDED 0
enum { ENC_ROWS = ENC_ROWS_DEFINED, ENC_GROUPS = 1, ENC_LACE = 1 };

INLINE vi of_words(int16x8_t a, int16x8_t b, int16x8_t c, int16x8_t d)
{
    return (vi){vreinterpretq_s32_s16(a), vreinterpretq_s32_s16(b), vreinterpretq_s32_s16(c), vreinterpretq_s32_s16(d)};
}

/* A vi of sixteen pairs has the even column of eight outputs, their odd one, and those of the other eight. */
INLINE vi vi_load(const int16_t *p)
{
    int16x8x2_t x = vld2q_s16(p), y = vld2q_s16(p + 16);
    return of_words(x.val[0], x.val[1], y.val[0], y.val[1]);
}

INLINE vi vi_pair(const int16_t *p)
{
    int16x8x2_t x = vld2q_dup_s16(p);
    return of_words(x.val[0], x.val[1], x.val[0], x.val[1]);
}

INLINE int32x4_t low_dot(int32x4_t acc, int32x4_t w, int32x4_t x)
{
    return vmlal_s16(acc, vget_low_s16(vreinterpretq_s16_s32(w)), vget_low_s16(vreinterpretq_s16_s32(x)));
}

INLINE int32x4_t high_dot(int32x4_t acc, int32x4_t w, int32x4_t x)
{
    return vmlal_high_s16(acc, vreinterpretq_s16_s32(w), vreinterpretq_s16_s32(x));
}

INLINE vi enc_dot(vi acc, vi w, vi x)
{
    return (vi){low_dot(low_dot(acc.a, w.a, x.a), w.b, x.b), high_dot(high_dot(acc.b, w.a, x.a), w.b, x.b),
                low_dot(low_dot(acc.c, w.c, x.c), w.d, x.d), high_dot(high_dot(acc.d, w.c, x.c), w.d, x.d)};
}

INLINE void enc_put16(int16_t *q, vf x)
{
    vst1q_s16(q, nearest8(x.a, x.b));
    vst1q_s16(q + 8, nearest8(x.c, x.d));
}

INLINE void enc_put_pairs(int16_t *q, vf x, vf y)
{
    vst2q_s16(q, (int16x8x2_t){{nearest8(x.a, x.b), nearest8(y.a, y.b)}});
    vst2q_s16(q + 16, (int16x8x2_t){{nearest8(x.c, x.d), nearest8(y.c, y.d)}});
}

INLINE void enc_put_laced(int16_t *q, vf x, vi *fold)
{
    (void)fold;
    enc_put16(q, x);
}

INLINE int32_t enc_fold(vi x)
{
    (void)x;
    return 0;
}

#include "kernels/cpu/encode_body.h"

const struct encode_kernels *encode_kernels_neon(void)
{
    static const struct encode_kernels kernels = ENCODE_TABLE("neon");
    return &kernels;
}
#else
#include "kernels/cpu/encode_kernels.h"

const struct encode_kernels *encode_kernels_neon(void)
{
    return NULL;
}
#endif
