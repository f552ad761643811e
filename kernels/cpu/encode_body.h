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

static void enc_gelu(float *x, int n)
{
    for (int i = 0; i < n; i += 16)
        vf_store(x + i, vf_gelu(vf_load(x + i)));
}

/* A leaf that holds an infinity or a NaN becomes all NaN: the bad value must show. */
static void enc_round(const float *x, int n, int16_t *q, float *d)
{
    for (int at = 0; at < n; at += ENCODE_LEAF) {
        int end = at + ENCODE_LEAF < n ? at + ENCODE_LEAF : n;
        uint32_t bits = 0;
        float most, inverse = 0;
        for (int i = at; i < end; i += 32) {
            uint32_t b = amax_bits32(x + i);
            bits = b > bits ? b : bits;
        }
        memcpy(&most, &bits, 4);
        bool finite = bits < 0x7f800000u, nothing = most < 1e-30f;
        *d++ = !finite ? __builtin_nanf("") : nothing ? 0 : most / (float)ENCODE_LEVELS;
        if (finite && !nothing)
            inverse = (float)ENCODE_LEVELS / most;
        for (int i = at; i < end; i += 16)
            enc_put16(q + i, inverse > 0 ? vf_mul(vf_load(x + i), vf_set1(inverse)) : vf_set1(0));
    }
}

/* ---- linear layers ---- */

/* What is done for each row of a tile. Sums are variables of their own: in arrays compilers store each of them after
 * every product. */
#define EACH_ROW(what) what(0) what(1) what(2) what(3) what(4) what(5) what(6) what(7)
#define DOT_BEGIN(r) vi a##r = vi_zero(), b##r = vi_zero(), c##r = vi_zero();
#define DOT_STEP(r)                                                                                                    \
    if (r < R) {                                                                                                       \
        vi pair = vi_pair(q + r * ldq + i);                                                                            \
        a##r = enc_dot(a##r, w0, pair);                                                                                \
        b##r = G > 1 ? enc_dot(b##r, w1, pair) : b##r;                                                                 \
        c##r = G > 2 ? enc_dot(c##r, w2, pair) : c##r;                                                                 \
    }
#define DOT_END(r)                                                                                                     \
    if (r < R) {                                                                                                       \
        vf scale = vf_load1(d + r * ldd);                                                                              \
        acc[0][r % ENC_ROWS] = vf_fma(vi_to_f(a##r), scale, acc[0][r % ENC_ROWS]);                                     \
        if (G > 1)                                                                                                     \
            acc[1][r % ENC_ROWS] = vf_fma(vi_to_f(b##r), scale, acc[1][r % ENC_ROWS]);                                 \
        if (G > 2)                                                                                                     \
            acc[2][r % ENC_ROWS] = vf_fma(vi_to_f(c##r), scale, acc[2][r % ENC_ROWS]);                                 \
    }

/* Adds the dots of a leaf, from column `at` on, to the sums of G groups: acc[k][r]. */
INLINE void linear_leaf(int R, int G, const struct encode_matrix *w, const int16_t *data, const int16_t *q, size_t ldq,
                        const float *d, size_t ldd, int at, vf acc[3][ENC_ROWS])
{
    size_t group = (size_t)w->padded_cols * ENCODE_GROUP;
    int end = at + ENCODE_LEAF < w->padded_cols ? at + ENCODE_LEAF : w->padded_cols;
    EACH_ROW(DOT_BEGIN)
    for (int i = at; i < end; i += 2) {
        const int16_t *p = data + (size_t)i * ENCODE_GROUP;
        vi w0 = vi_load(p), w1 = G > 1 ? vi_load(p + group) : w0, w2 = G > 2 ? vi_load(p + 2 * group) : w0;
        EACH_ROW(DOT_STEP)
    }
    EACH_ROW(DOT_END)
}

/* R rows by G groups of sixteen outputs. */
INLINE void linear_tile(int R, int G, const struct encode_matrix *w, int g, const struct encode_inputs *x, int row,
                        float *y, size_t ldy)
{
    const int16_t *data = w->data + (size_t)g * (size_t)w->padded_cols * ENCODE_GROUP;
    const float *d = x->d + (size_t)row * x->ldd;
    vf acc[3][ENC_ROWS];
    for (int r = 0; r < R; r++)
        acc[0][r] = acc[1][r] = acc[2][r] = vf_set1(0);
    for (int at = 0; at < w->padded_cols; at += ENCODE_LEAF, d++)
        linear_leaf(R, G, w, data, x->q + (size_t)row * x->ldq, x->ldq, d, x->ldd, at, acc);
    for (int r = 0; r < R; r++)
        for (int k = 0; k < G; k++) {
            int out = (g + k) * ENCODE_GROUP;
            vf_store(y + (size_t)(row + r) * ldy + out,
                     vf_fma(acc[k][r], vf_load(w->scale + out), vf_load(w->bias + out)));
        }
}

/* The rows of n that lie in tile i of `tiles` equal ones. */
static inline int tile_begin(int n, int i, int tiles)
{
    return (int)((int64_t)n * i / tiles);
}

#define LINEAR_CASE(rows)                                                                                              \
    case rows:                                                                                                         \
        linear_tile(rows, G, w, g, x, row, y, ldy);                                                                    \
        break;

INLINE void linear_rows(int G, const struct encode_matrix *w, int g, const struct encode_inputs *x, int n, float *y,
                        size_t ldy)
{
    int tiles = (n + ENC_ROWS - 1) / ENC_ROWS;
    for (int i = 0; i < tiles; i++) {
        int row = tile_begin(n, i, tiles);
        switch (tile_begin(n, i + 1, tiles) - row) {
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

/* ---- attention ---- */

/* y[R][16 G] = (add ? y : 0) + a[R][n] b[n][16 G], G at most 2 */
INLINE void product_tile(int R, int G, bool add, const float *a, size_t lda, const float *b, size_t ldb, int n,
                         float *y, size_t ldy)
{
    vf s0[ENC_ROWS], s1[ENC_ROWS];
    UNROLL for (int r = 0; r < R; r++)
    {
        s0[r] = add ? vf_load(y + (size_t)r * ldy) : vf_set1(0);
        s1[r] = add && G > 1 ? vf_load(y + (size_t)r * ldy + 16) : vf_set1(0);
    }
    for (int i = 0; i < n; i++) {
        vf w0 = vf_load(b + (size_t)i * ldb), w1 = G > 1 ? vf_load(b + (size_t)i * ldb + 16) : w0;
        UNROLL for (int r = 0; r < R; r++)
        {
            vf x = vf_load1(a + (size_t)r * lda + i);
            s0[r] = vf_fma(x, w0, s0[r]);
            s1[r] = G > 1 ? vf_fma(x, w1, s1[r]) : s1[r];
        }
    }
    UNROLL for (int r = 0; r < R; r++)
    {
        vf_store(y + (size_t)r * ldy, s0[r]);
        if (G > 1)
            vf_store(y + (size_t)r * ldy + 16, s1[r]);
    }
}

#define PRODUCT_CASE(rows)                                                                                             \
    case rows:                                                                                                         \
        product_tile(rows, G, add, a, lda, b, ldb, n, y, ldy);                                                         \
        break;

INLINE void product_columns(int R, int G, bool add, const float *a, size_t lda, const float *b, size_t ldb, int n,
                            float *y, size_t ldy)
{
    switch (R) {
        PRODUCT_CASE(1)
        PRODUCT_CASE(2)
        PRODUCT_CASE(3)
        PRODUCT_CASE(4)
#if ENC_ROWS_DEFINED > 4
        PRODUCT_CASE(5)
        PRODUCT_CASE(6)
        PRODUCT_CASE(7)
        PRODUCT_CASE(8)
#endif
    default:
        break;
    }
}

/* The same for any number of columns, a multiple of 16; R at most ENC_ROWS. */
static void product(int R, bool add, const float *a, size_t lda, const float *b, size_t ldb, int n, float *y,
                    size_t ldy, int columns)
{
    int at = 0;
    for (; at + 16 * ENC_WIDE <= columns; at += 16 * ENC_WIDE)
        product_columns(R, ENC_WIDE, add, a, lda, b + at, ldb, n, y + at, ldy);
    for (; at < columns; at += 16)
        product_columns(R, 1, add, a, lda, b + at, ldb, n, y + at, ldy);
}

/* A head's working memory. */
struct head_room {
    float *keys, *values, *scores, *queries, *o, *m, *l;
    size_t dim;
};

static struct head_room head_room_of(const struct encode_head *h)
{
    struct head_room r = {.dim = encode_padded_dim(h->dim), .keys = h->room};
    r.values = r.keys + ENCODE_KEY_LD * r.dim;
    r.scores = r.values + ENCODE_KEY_LD * r.dim;
    r.queries = r.scores + ENCODE_KEY_LD * ENCODE_TILE;
    r.o = r.queries + ENCODE_QUERIES * r.dim;
    r.m = r.o + ENCODE_QUERIES * r.dim;
    r.l = r.m + ENCODE_QUERIES;
    return r;
}

/* Keys [key0, key0 + n): turned, so that a lane is a key; values as they are; up to sixteens with zeros. */
static void load_keys(const struct encode_head *h, const struct head_room *r, int key0, int n)
{
    int padded = (n + 15) / 16 * 16;
    for (int i = 0; i < n; i++) {
        const float *k = h->k + (size_t)(key0 + i) * h->ld, *v = h->v + (size_t)(key0 + i) * h->ld;
        float *to = r->values + (size_t)i * r->dim;
        for (int c = 0; c < h->dim; c++)
            r->keys[(size_t)c * ENCODE_KEY_LD + (size_t)i] = k[c];
        memcpy(to, v, (size_t)h->dim * sizeof *to);
        memset(to + h->dim, 0, (r->dim - (size_t)h->dim) * sizeof *to);
    }
    for (int i = n; i < padded; i++)
        for (int c = 0; c < h->dim; c++)
            r->keys[(size_t)c * ENCODE_KEY_LD + (size_t)i] = 0;
}

/* Queries times log2(e) / sqrt(dim): scores are exponents of 2. */
static void load_queries(const struct encode_head *h, const struct head_room *r)
{
    float scale = 1.44269504f / __builtin_sqrtf((float)h->dim);
    for (int i = 0; i < h->n_q; i++) {
        for (int c = 0; c < h->dim; c++)
            r->queries[(size_t)i * r->dim + (size_t)c] = h->q[(size_t)i * h->ld + (size_t)c] * scale;
        r->m[i] = -INFINITY;
        r->l[i] = 0;
    }
}

/* Scores of one query to weights 2^(score - m); its state goes on from what it has. */
static void soften(const struct head_room *r, float *s, int n, int query)
{
    int padded = (n + 15) / 16 * 16;
    for (int i = n; i < padded; i++)
        s[i] = -INFINITY;
    vf most = vf_load(s), sum = vf_set1(0);
    for (int i = 16; i < padded; i += 16)
        most = vf_max(most, vf_load(s + i));
    float old = r->m[query], m = vf_max_lane(most), *o = r->o + (size_t)query * r->dim;
    m = m > old ? m : old;
    for (int i = 0; i < padded; i += 16) {
        vf p = vf_exp2(vf_sub(vf_load(s + i), vf_set1(m)));
        sum = vf_add(sum, p);
        vf_store(s + i, p);
    }
    if (r->l[query] > 0) {
        vf keep = vf_exp2(vf_sub(vf_set1(old), vf_set1(m)));
        float t[16];
        vf_store(t, keep);
        r->l[query] *= t[0];
        for (size_t c = 0; c < r->dim; c += 16)
            vf_store(o + c, vf_mul(vf_load(o + c), keep));
    }
    r->l[query] += vf_sum(sum);
    r->m[query] = m;
}

static void enc_head(const struct encode_head *h)
{
    struct head_room r = head_room_of(h);
    int tiles = (h->n_q + ENC_ROWS - 1) / ENC_ROWS;
    load_queries(h, &r);
    for (int key0 = 0; key0 < h->n_keys; key0 += ENCODE_KEYS) {
        int n = h->n_keys - key0 < ENCODE_KEYS ? h->n_keys - key0 : ENCODE_KEYS, padded = (n + 15) / 16 * 16;
        load_keys(h, &r, key0, n);
        for (int i = 0; i < tiles; i++) {
            int q = tile_begin(h->n_q, i, tiles), R = tile_begin(h->n_q, i + 1, tiles) - q;
            product(R, false, r.queries + (size_t)q * r.dim, r.dim, r.keys, ENCODE_KEY_LD, h->dim, r.scores,
                    ENCODE_KEY_LD, padded);
            for (int k = 0; k < R; k++)
                soften(&r, r.scores + (size_t)k * ENCODE_KEY_LD, n, q + k);
            product(R, key0 > 0, r.scores, ENCODE_KEY_LD, r.values, r.dim, n, r.o + (size_t)q * r.dim, r.dim,
                    (int)r.dim);
        }
    }
    for (int i = 0; i < h->n_q; i++) {
        float inverse = 1.0f / r.l[i];
        for (int c = 0; c < h->dim; c++)
            h->o[(size_t)i * h->ldo + (size_t)c] = r.o[(size_t)i * r.dim + (size_t)c] * inverse;
    }
}

#define ENCODE_TABLE(name)                                                                                             \
    {                                                                                                                  \
        .isa = name, .norm = enc_norm, .gelu = enc_gelu, .round = enc_round, .linear = enc_linear, .head = enc_head    \
    }

#endif
