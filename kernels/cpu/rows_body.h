/* Row-wise kernels on the lanes of vec_*.h: RMSNorm, SwiGLU, quantisation. Included once by each kernels_*.c. */
#ifndef CPU_ROWS_BODY_H
#define CPU_ROWS_BODY_H

#include "kernels/cpu/exp2_body.h"

static void norm_row(const float *x, const float *gain, int n, float eps, float *y)
{
    vf sum = vf_set1(0);
    int i = 0;
    for (; i + 16 <= n; i += 16) {
        vf v = vf_load(x + i);
        sum = vf_fma(v, v, sum);
    }
    if (i < n) {
        vf v = load_tail(x + i, n - i);
        sum = vf_fma(v, v, sum);
    }
    vf scale = vf_set1(1.0f / __builtin_sqrtf(vf_sum(sum) / (float)n + eps));
    for (i = 0; i + 16 <= n; i += 16)
        vf_store(y + i, vf_mul(vf_mul(vf_load(x + i), scale), vf_load(gain + i)));
    if (i < n)
        store_tail(y + i, n - i, vf_mul(vf_mul(load_tail(x + i, n - i), scale), load_tail(gain + i, n - i)));
}

INLINE vf swiglu(vf x, vf x2)
{
    vf e = vf_exp2(vf_mul(x, vf_set1(-1.44269504f)));
    return vf_mul(vf_div(x, vf_add(vf_set1(1.0f), e)), x2);
}

static void swiglu_row(const float *x, const float *x2, int n, float *y)
{
    int i = 0;
    for (; i + 16 <= n; i += 16)
        vf_store(y + i, swiglu(vf_load(x + i), vf_load(x2 + i)));
    if (i < n)
        store_tail(y + i, n - i, swiglu(load_tail(x + i, n - i), load_tail(x2 + i, n - i)));
}

/* Rounds to nearest even at a scale of amax / 32512, or of amax / 127. A block that holds an infinity or a NaN becomes
 * all NaN: the bad value must show. */
INLINE void quantise(const float *x, int n, struct qinput out, bool fast)
{
    const float most = fast ? FAST_MAX : QUANT_MAX;
    for (const float *end = x + n; x < end; x += 32, qinput_next(&out, fast)) {
        uint32_t bits = amax_bits32(x);
        float amax, inverse = 0, d = 0;
        int32_t half[2] = {0, 0};
        memcpy(&amax, &bits, 4);
        if (bits >= 0x7f800000u)
            d = __builtin_nanf("");
        else if (amax >= 1e-30f) {
            d = amax / most;
            inverse = most / amax;
        }
        if (inverse > 0)
            round32(x, inverse, out.q, half, fast);
        else
            memset(out.q, 0, quant_block(fast));
        out.meta[0].i = half[0] + half[1];
        out.meta[out.tile].f = d;
        out.meta[2 * out.tile].f = d * (float)(half[0] + half[1]);
        out.half[0] = half[0];
        out.half[out.tile] = half[1];
    }
}

static void quantise_row(const float *x, int n, struct qinput out, bool fast)
{
    if (fast)
        quantise(x, n, out, true);
    else
        quantise(x, n, out, false);
}

static void round_row(const float *x, int n, uint16_t *h, size_t tile)
{
    for (int i = 0; i < n; i += BLOCK_COLS, h += tile * BLOCK_COLS)
        for (int k = i; k < i + BLOCK_COLS; k += 16) {
            vf v = k + 16 <= n ? vf_load(x + k) : k < n ? load_tail(x + k, n - k) : vf_set1(0);
            vf_store_bf16(h + (k - i), vf_drop_small(v));
        }
}

static void lace(enum family from, const uint8_t *w, int pairs, uint8_t *out)
{
    for (int i = 0; i < pairs; i++, w += 64, out += 64) {
        const uint16_t *even = (const uint16_t *)(const void *)w, *odd = even + GROUP_ROWS;
        if (from == FAM_F16)
            vf_store_pairs(out, vf_drop_small(vf_load_f16(even)), vf_drop_small(vf_load_f16(odd)));
        else
            vf_store_pairs(out, vf_drop_small(vf_load_bf16(even)), vf_drop_small(vf_load_bf16(odd)));
    }
}

static void to_cache(const float *x, int n, enum dtype t, void *dst)
{
    if (t == DT_F32) {
        memcpy(dst, x, (size_t)n * sizeof *x);
        return;
    }
    size_t size = t == DT_F8 ? 1 : 2;
    for (int i = 0; i < n; i += 16) {
        uint16_t part[16];
        vf v = n - i < 16 ? load_tail(x + i, n - i) : vf_load(x + i);
        if (t == DT_F8)
            vf_store_f8((uint8_t *)part, v);
        else if (t == DT_F16)
            vf_store_f16(part, v);
        else
            vf_store_bf16(part, vf_drop_small(v)); /* what attention of halves would have to drop */
        memcpy((uint8_t *)dst + (size_t)i * size, part, (size_t)(n - i < 16 ? n - i : 16) * size);
    }
}

#endif
