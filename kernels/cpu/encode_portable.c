#include "kernels/cpu/vec_portable.h"

#define ENC_ROWS_DEFINED 4
#define ENC_FOLDED 0
enum { ENC_ROWS = ENC_ROWS_DEFINED, ENC_GROUPS = 1, ENC_LACE = 1 };

INLINE vi vi_zero(void)
{
    vi r = {{0}};
    return r;
}

/* A vi of sixteen pairs is kept as sixteen words. */
INLINE vi vi_load(const int16_t *p)
{
    vi r;
    memcpy(&r, p, sizeof r);
    return r;
}

INLINE vi vi_pair(const int16_t *p)
{
    int32_t two;
    memcpy(&two, p, sizeof two);
    return vi_load1(&two);
}

INLINE vi enc_dot(vi acc, vi w, vi x)
{
    int16_t a[32], b[32];
    memcpy(a, &w, sizeof a);
    memcpy(b, &x, sizeof b);
    LANES /* what a NaN was rounded to may wrap: its scale is NaN */
        acc.v[i] =
        (int32_t)((uint32_t)acc.v[i] + (uint32_t)(a[2 * i] * b[2 * i]) + (uint32_t)(a[2 * i + 1] * b[2 * i + 1]));
    return acc;
}

INLINE void enc_put16(int16_t *q, vf x)
{
    LANES q[i] = (int16_t)nearest(x.v[i]);
}

INLINE void enc_put_pairs(int16_t *q, vf x, vf y)
{
    LANES q[2 * i] = (int16_t)nearest(x.v[i]), q[2 * i + 1] = (int16_t)nearest(y.v[i]);
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

const struct encode_kernels *encode_kernels_portable(void)
{
    static const struct encode_kernels kernels = ENCODE_TABLE("portable");
    return &kernels;
}
