/* 2^x and the ends of rows on the lanes of vec_*.h. Included after one of them. */
#ifndef CPU_EXP2_BODY_H
#define CPU_EXP2_BODY_H

/* 2^x to about 1 ulp; exactly 0 below -126, 2^127 and more all the same above 127, NaN stays. */
INLINE vf vf_exp2(vf x)
{
    vf c = vf_min(vf_set1(127.0f), vf_max(vf_set1(-127.0f), x));
    vf t = vf_add(c, vf_set1(12582912.0f)); /* 1.5 * 2^23: rounds to the nearest integer */
    vf r = vf_sub(c, vf_sub(t, vf_set1(12582912.0f)));
    vf p = vf_set1(0x1.41fbc2p-13f);
    p = vf_fma(p, r, vf_set1(0x1.5f3e52p-10f));
    p = vf_fma(p, r, vf_set1(0x1.3b2d4cp-7f));
    p = vf_fma(p, r, vf_set1(0x1.c6aee8p-5f));
    p = vf_fma(p, r, vf_set1(0x1.ebfbdcp-3f));
    p = vf_fma(p, r, vf_set1(0x1.62e430p-1f));
    p = vf_fma(p, r, vf_set1(1.0f));
    return vf_zero_below(x, vf_set1(-126.0f), vf_scale_pow2(p, t));
}

/* 2^x of x <= 0, to 3e-6; 0 from -127 on down, NaN stays. */
INLINE vf vf_exp2_rough(vf x)
{
    vf c = vf_max(vf_set1(-127.0f), x);
    vf t = vf_add(c, vf_set1(12582912.0f));
    vf r = vf_sub(c, vf_sub(t, vf_set1(12582912.0f)));
    vf p = vf_set1(0x1.3a02c2p-7f);
    p = vf_fma(p, r, vf_set1(0x1.c9fc4ap-5f));
    p = vf_fma(p, r, vf_set1(0x1.ec0378p-3f));
    p = vf_fma(p, r, vf_set1(0x1.62e12cp-1f));
    p = vf_fma(p, r, vf_set1(1.0f));
    return vf_scale_pow2(p, t);
}

/* The last n < 16 elements, the missing ones 0. */
static inline vf load_tail(const float *x, int n)
{
    float t[16] = {0};
    memcpy(t, x, (size_t)n * sizeof *t);
    return vf_load(t);
}

static inline void store_tail(float *y, int n, vf v)
{
    float t[16];
    vf_store(t, v);
    memcpy(y, t, (size_t)n * sizeof *t);
}

#endif
