#include "kernels/cpu/vec_portable.h"

#define ENC_ROWS_DEFINED 4
enum { ENC_ROWS = ENC_ROWS_DEFINED, ENC_GROUPS = 1, ENC_WIDE = 1 };

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
    LANES acc.v[i] += (int32_t)a[2 * i] * b[2 * i] + (int32_t)a[2 * i + 1] * b[2 * i + 1];
    return acc;
}

INLINE void enc_put16(int16_t *q, vf x)
{
    LANES q[i] = (int16_t)nearest(x.v[i]);
}

#include "kernels/cpu/encode_body.h"

const struct encode_kernels *encode_kernels_portable(void)
{
    static const struct encode_kernels kernels = ENCODE_TABLE("portable");
    return &kernels;
}
