/* The kernels of an encoder on the lanes of vec_*.h. Included once by each encode_*.c, which defines before: ENC_ROWS,
 * ENC_GROUPS (the tile of a linear layer), enc_dot (two columns of sixteen outputs) and enc_put16 (sixteen floats to
 * the nearest integers). */
#ifndef CPU_ENCODE_BODY_H
#define CPU_ENCODE_BODY_H

#include <math.h>

#include "kernels/cpu/encode_kernels.h"
#include "kernels/cpu/exp2_body.h"

/* ---- rows ---- */

/* 1 in the first n lanes, 0 in the others. */
static inline vf first_lanes(int n)
{
    float t[16];
    for (int i = 0; i < 16; i++)
        t[i] = i < n ? 1.0f : 0.0f;
    return vf_load(t);
}

static void enc_norm(const float *a, const float *b, const struct encode_norm *norm, int n, float eps, float *y)
{
    vf sum = vf_set1(0), square = vf_set1(0), mask = first_lanes(n % 16);
    int end = n / 16 * 16, all = (n + 15) / 16 * 16;
    for (int i = 0; i < all; i += 16) { /* past the columns there are zeros */
        vf v = b ? vf_add(vf_load(a + i), vf_load(b + i)) : vf_load(a + i);
        sum = vf_add(sum, v);
        vf_store(y + i, v);
    }
    vf mean = vf_set1(vf_sum(sum) / (float)n);
    for (int i = 0; i < all; i += 16) {
        vf v = vf_sub(vf_load(y + i), mean);
        v = i < end ? v : vf_mul(v, mask);
        square = vf_fma(v, v, square);
        vf_store(y + i, v);
    }
    vf scale = vf_set1(1.0f / __builtin_sqrtf(vf_sum(square) / (float)n + eps));
    for (int i = 0; i < all; i += 16)
        vf_store(y + i, vf_fma(vf_mul(vf_load(y + i), scale), vf_load(norm->gain + i), vf_load(norm->bias + i)));
}

/* x (1 + erf(x / sqrt 2)) / 2 as max(x, 0) - |x| erfc(|x| / sqrt 2) / 2, with erfc of Abramowitz and Stegun 7.1.26
 * (error at most 1.5e-7). */
INLINE vf vf_gelu(vf x)
{
    vf size = vf_max(x, vf_sub(vf_set1(0), x)), a = vf_mul(size, vf_set1(0.70710678f));
    vf t = vf_div(vf_set1(1.0f), vf_fma(a, vf_set1(0.3275911f), vf_set1(1.0f)));
    vf p = vf_set1(1.061405429f);
    p = vf_fma(p, t, vf_set1(-1.453152027f));
    p = vf_fma(p, t, vf_set1(1.421413741f));
    p = vf_fma(p, t, vf_set1(-0.284496736f));
    p = vf_fma(p, t, vf_set1(0.254829592f));
    vf e = vf_exp2(vf_mul(vf_mul(a, a), vf_set1(-1.44269504f)));
    vf half = vf_mul(vf_mul(size, vf_set1(0.5f)), vf_mul(vf_mul(p, t), e));
    return vf_sub(vf_max(x, vf_set1(0)), half);
}

#if ENC_FOLDED
/* The folds of a matrix whose groups have their integers. */
static void enc_fold_matrix(struct encode_matrix *m)
{
    int32_t *to = m->fold;
    for (int g = 0; g < m->groups; g++)
        for (int at = 0; at < m->padded_cols; at += ENCODE_LEAF, to += ENCODE_GROUP) {
            const int16_t *q = m->data + ((size_t)g * (size_t)m->padded_cols + (size_t)at) * ENCODE_GROUP;
            vi sum = vi_zero();
            for (int i = 0; i < ENCODE_LEAF && at + i < m->padded_cols; i += 4, q += 4 * ENCODE_GROUP)
                sum = enc_dot(sum, vi_load(q), vi_load(q + 2 * ENCODE_GROUP));
            vi_store_negative(to, sum);
        }
}
#endif

/* The scale of n columns that are rounded to -levels .. levels, and its inverse: 0 where there is nothing to round. NaN
 * where the columns hold an infinity or a NaN: the bad value must show. */
static float scale_of(const float *x, int n, float levels, float *inverse)
{
    uint32_t bits = 0;
    float most;
    for (int i = 0; i < n; i += 32) {
        uint32_t b = amax_bits32(x + i);
        bits = b > bits ? b : bits;
    }
    memcpy(&most, &bits, 4);
    bool finite = bits < 0x7f800000u, nothing = most < 1e-30f;
    *inverse = finite && !nothing ? levels / most : 0;
    return !finite ? __builtin_nanf("") : nothing ? 0 : most / levels;
}

/* Levels of inputs whose largest is so much of the sum of their sizes; a whole number, as flat rows are frequent. */
INLINE float input_levels(float share)
{
    float levels = share * (float)ENCODE_INPUT_SUM;
    return levels < (float)ENCODE_INPUT_LEVELS ? (float)(int)levels : (float)ENCODE_INPUT_LEVELS;
}

/* The scale of a leaf of inputs. Few columns need no sum, and have levels enough without. */
static float input_scale(const float *x, int n, float *inverse)
{
    vf mosts = vf_set1(0), sums = vf_set1(0);
    if (n <= 128)
        return scale_of(x, n, input_levels(1.0f / (float)n), inverse);
    for (int i = 0; i < n; i += 16) {
        vf v = vf_load(x + i), size = vf_max(vf_sub(vf_set1(0), v), v);
        mosts = vf_max(mosts, size);
        sums = vf_add(sums, size);
    }
    float most = vf_max_lane(mosts), sum = vf_sum(sums), levels = input_levels(most / sum);
    bool finite = sum < INFINITY, nothing = most < 1e-30f;
    *inverse = finite && !nothing ? levels / most : 0;
    return !finite ? __builtin_nanf("") : nothing ? 0 : most / levels;
}

static int16_t *input_row(const struct encode_inputs *in, int row)
{
    return in->q + (size_t)(row / ENC_LACE) * ENC_LACE * in->ldq + (size_t)(row % ENC_LACE) * 4;
}

/* n columns of x to a leaf of row `row`. */
static void round_leaf(const float *x, int n, const struct encode_inputs *in, int row, int leaf)
{
    int16_t *q = input_row(in, row) + leaf * ENCODE_LEAF * ENC_LACE;
    size_t at = (size_t)row * in->ldd + (size_t)leaf;
    float inverse;
    vi fold = vi_zero();
    in->d[at] = input_scale(x, n, &inverse);
    for (int i = 0; i < n; i += 16)
        enc_put_laced(q + i * ENC_LACE, inverse > 0 ? vf_mul(vf_load(x + i), vf_set1(inverse)) : vf_set1(0), &fold);
    in->fold[at] = enc_fold(fold);
}

static void enc_round(const float *x, int n, const struct encode_inputs *in, int row)
{
    for (int at = 0, leaf = 0; at < n; at += ENCODE_LEAF, leaf++)
        round_leaf(x + at, n - at < ENCODE_LEAF ? n - at : ENCODE_LEAF, in, row, leaf);
}

static void enc_gelu(float *x, int n, const struct encode_inputs *in, int row, int leaf)
{
    for (int i = 0; i < n; i += 16)
        vf_store(x + i, vf_gelu(vf_load(x + i)));
    round_leaf(x, n, in, row, leaf);
}

/* ---- linear layers ---- */

/* What is done for each row of a tile. Sums are variables of their own: in arrays compilers store each of them after
 * every product. */
#define EACH_ROW(what) what(0) what(1) what(2) what(3) what(4) what(5) what(6) what(7)
#if ENC_FOLDED
#define DOT_BEGIN(r) vi a##r = r < R ? enc_unfold(w_fold, x_fold + r * ldd) : vi_zero(), b##r = a##r, c##r = a##r;
#else
#define DOT_BEGIN(r) vi a##r = vi_zero(), b##r = vi_zero(), c##r = vi_zero();
#define DOT_STEP(r)                                                                                                    \
    if (r < R) {                                                                                                       \
        vi pair = vi_pair(q + r * ldq + i);                                                                            \
        a##r = enc_dot(a##r, w0, pair);                                                                                \
        b##r = G > 1 ? enc_dot(b##r, w1, pair) : b##r;                                                                 \
        c##r = G > 2 ? enc_dot(c##r, w2, pair) : c##r;                                                                 \
    }
#endif
#define DOT_END(r)                                                                                                     \
    if (r < R) {                                                                                                       \
        vf scale = vf_load1(d + r * ldd);                                                                              \
        acc[0][r % ENC_ROWS] = leaf_end(first, a##r, scale, acc[0][r % ENC_ROWS]);                                     \
        if (G > 1)                                                                                                     \
            acc[1][r % ENC_ROWS] = leaf_end(first, b##r, scale, acc[1][r % ENC_ROWS]);                                 \
        if (G > 2)                                                                                                     \
            acc[2][r % ENC_ROWS] = leaf_end(first, c##r, scale, acc[2][r % ENC_ROWS]);                                 \
    }

/* The first leaf finds no sum. */
INLINE vf leaf_end(bool first, vi dot, vf scale, vf sum)
{
    return first ? vf_mul(vi_to_f(dot), scale) : vf_fma(vi_to_f(dot), scale, sum);
}

/* Where a leaf begins: weights of a group, its inputs, and the folds of both. */
struct leaf {
    const int16_t *data, *q;
    const float *d;
    const int32_t *w_fold, *x_fold;
};

/* Adds the dots of a leaf of n columns to the sums of G groups: acc[k][r]. */
INLINE void linear_leaf(int R, int G, bool first, struct leaf at, int n, const struct encode_matrix *w,
                        const struct encode_inputs *x, vf acc[3][ENC_ROWS])
{
    size_t group = (size_t)w->padded_cols * ENCODE_GROUP, ldq = x->ldq, ldd = x->ldd;
    const int16_t *q = at.q;
    const float *d = at.d;
    const int32_t *w_fold = at.w_fold, *x_fold = at.x_fold;
    EACH_ROW(DOT_BEGIN)
#if ENC_FOLDED
    (void)group, (void)ldq;
    for (int i = 0; i < n; i += 4) {
        enc_quad(&a0, &a1, &a2, &a3, at.data + (size_t)i * ENCODE_GROUP, q + i * ENC_LACE);
    }
#else
    (void)w_fold, (void)x_fold;
    for (int i = 0; i < n; i += 2) {
        const int16_t *p = at.data + (size_t)i * ENCODE_GROUP;
        vi w0 = vi_load(p), w1 = G > 1 ? vi_load(p + group) : w0, w2 = G > 2 ? vi_load(p + 2 * group) : w0;
        EACH_ROW(DOT_STEP)
    }
#endif
    EACH_ROW(DOT_END)
}

/* R rows by G groups of sixteen outputs. */
INLINE void linear_tile(int R, int G, const struct encode_matrix *w, int g, const struct encode_inputs *x, int row,
                        float *y, size_t ldy)
{
    size_t group = (size_t)w->padded_cols * ENCODE_GROUP, leaves = encode_leaves(w->padded_cols);
    struct leaf at = {w->data + (size_t)g * group, input_row(x, row), x->d + (size_t)row * x->ldd,
                      w->fold + (size_t)g * leaves * ENCODE_GROUP, x->fold + (size_t)row * x->ldd};
    vf acc[3][ENC_ROWS];
    int left = w->padded_cols;
    linear_leaf(R, G, true, at, left < ENCODE_LEAF ? left : ENCODE_LEAF, w, x, acc);
    while ((left -= ENCODE_LEAF) > 0) {
        at.data += ENCODE_LEAF * ENCODE_GROUP;
        at.q += ENCODE_LEAF * ENC_LACE;
        at.d++;
        at.w_fold += ENCODE_GROUP;
        at.x_fold++;
        linear_leaf(R, G, false, at, left < ENCODE_LEAF ? left : ENCODE_LEAF, w, x, acc);
    }
    UNROLL for (int k = 0; k < G; k++)
    {
        size_t out = (size_t)(g + k) * ENCODE_GROUP;
        vf scale = vf_load(w->scale + out), bias = vf_load(w->bias + out);
        UNROLL for (int r = 0; r < R; r++) vf_store(y + (size_t)(row + r) * ldy + out, vf_fma(acc[k][r], scale, bias));
    }
}

/* Rows of the next tile of n: tiles are as equal as can be, those of laced rows full. */
static inline int tile_rows(int n)
{
    int tiles = (n + ENC_ROWS - 1) / ENC_ROWS;
    return n <= ENC_ROWS ? n : ENC_LACE > 1 ? ENC_ROWS : (n + tiles - 1) / tiles;
}

#define LINEAR_CASE(rows)                                                                                              \
    case rows:                                                                                                         \
        linear_tile(rows, G, w, g, x, row, y, ldy);                                                                    \
        break;

INLINE void linear_rows(int G, const struct encode_matrix *w, int g, const struct encode_inputs *x, int n, float *y,
                        size_t ldy)
{
    for (int row = 0, R; row < n; row += R) {
        switch (R = tile_rows(n - row)) {
            LINEAR_CASE(1)
            LINEAR_CASE(2)
            LINEAR_CASE(3)
            LINEAR_CASE(4)
#if ENC_ROWS_DEFINED > 4
            LINEAR_CASE(5)
            LINEAR_CASE(6)
            LINEAR_CASE(7)
            LINEAR_CASE(8)
#endif
        default:
            break;
        }
    }
}

static void linear_wide(const struct encode_matrix *w, int g, const struct encode_inputs *x, int n, float *y,
                        size_t ldy)
{
    linear_rows(ENC_GROUPS, w, g, x, n, y, ldy);
}

static void linear_narrow(const struct encode_matrix *w, int g, const struct encode_inputs *x, int n, float *y,
                          size_t ldy)
{
    linear_rows(1, w, g, x, n, y, ldy);
}

static void enc_linear(const struct encode_matrix *w, const struct encode_inputs *x, int n, float *y, size_t ldy)
{
    int g = 0;
    for (; g + ENC_GROUPS <= w->groups; g += ENC_GROUPS)
        linear_wide(w, g, x, n, y, ldy);
    for (; g < w->groups; g++)
        linear_narrow(w, g, x, n, y, ldy);
}

#include "kernels/cpu/encode_head_body.h"

#define ENCODE_TABLE(name)                                                                                             \
    {                                                                                                                  \
        .isa = name, .norm = enc_norm, .gelu = enc_gelu, .round = enc_round, .linear = enc_linear, .head = enc_head    \
    }

#endif
