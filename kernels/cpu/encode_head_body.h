/* Attention of one head: its keys and values become matrices of 13-bit integers, as kernels/encode.h says, and are
 * multiplied like those of linear layers. Part of encode_body.h. */
#ifndef CPU_ENCODE_HEAD_BODY_H
#define CPU_ENCODE_HEAD_BODY_H

static inline int padded_to(int n, int step)
{
    return (n + step - 1) / step * step;
}

/* Sixteen floats, of which n are there. */
INLINE vf load_some(const float *x, int n)
{
    return n >= 16 ? vf_load(x) : load_tail(x, n);
}

/* A row of dim floats and zeros up to ENCODE_LD(dim): itself, where there is nothing to add. */
static const float *padded_row(const struct encode_head *h, const float *x)
{
    float *to = h->room->row;
    int i = 0;
    if (h->dim % ENCODE_PAD == 0)
        return x;
    for (; i < h->dim; i += 16)
        vf_store(to + i, load_some(x + i, h->dim - i));
    for (; i < padded_to(h->dim, ENCODE_PAD); i += 16)
        vf_store(to + i, vf_set1(0));
    return to;
}

/* Queries times log2(e) / sqrt(dim): scores are exponents of 2. */
static void load_queries(const struct encode_head *h)
{
    struct encode_inputs *in = &h->room->queries;
    float scale = 1.44269504f / __builtin_sqrtf((float)h->dim);
    for (int i = 0; i < h->n_q; i++) {
        enc_round(padded_row(h, h->q + (size_t)i * h->ld), padded_to(h->dim, ENCODE_PAD), in, i);
        for (size_t leaf = 0; leaf < in->ldd; leaf++)
            in->d[(size_t)i * in->ldd + leaf] *= scale;
        h->room->m[i] = -INFINITY;
        h->room->l[i] = 0;
    }
}

/* All columns of a key at one scale, which it returns. */
static float round_key(const float *x, int n, int16_t *q)
{
    float inverse, scale = scale_of(x, n, (float)ENCODE_LEVELS, &inverse);
    for (int i = 0; i < n; i += 16)
        enc_put16(q + i, inverse > 0 ? vf_mul(vf_load(x + i), vf_set1(inverse)) : vf_set1(0));
    return scale;
}

/* Group g of the keys at hand; there are n of them from key0 on. The others have no scores: the bias is -infinity. */
static void load_key_group(const struct encode_head *h, int key0, int n, int g)
{
    struct encode_head_room *r = h->room;
    struct encode_matrix *m = &r->keys;
    int cols = m->padded_cols;
    for (int i = 0; i < ENCODE_GROUP; i++) {
        int key = g * ENCODE_GROUP + i;
        int16_t *q = r->group + (size_t)i * (size_t)cols;
        if (key < n) {
            m->scale[key] = round_key(padded_row(h, h->k + (size_t)(key0 + key) * h->ld), cols, q);
        } else {
            memset(q, 0, (size_t)cols * sizeof *q);
            m->scale[key] = 0;
        }
        m->bias[key] = key < n ? 0 : -INFINITY;
    }
    encode_put_group(m->data + (size_t)g * (size_t)cols * ENCODE_GROUP, r->group, cols);
}

static void load_keys(const struct encode_head *h, int key0, int n)
{
    struct encode_matrix *m = &h->room->keys;
    m->rows = n;
    m->cols = h->dim;
    m->padded_cols = padded_to(h->dim, ENCODE_PAD);
    m->groups = padded_to(n, ENCODE_PAD) / ENCODE_GROUP;
    for (int g = 0; g < m->groups; g++)
        load_key_group(h, key0, n, g);
}

/* Sixteen columns of the values, from c on, as group g: each at the scale of its largest. */
static void load_value_group(const struct encode_head *h, int key0, int n, int g)
{
    struct encode_matrix *m = &h->room->values;
    int c = g * ENCODE_GROUP, left = h->dim - c;
    const float *v = h->v + (size_t)key0 * h->ld + c;
    vf most = vf_set1(1e-30f), bad = vf_set1(0), zero = vf_set1(0);
    for (int i = 0; i < n; i++) {
        vf x = load_some(v + (size_t)i * h->ld, left);
        most = vf_max(most, vf_max(x, vf_sub(zero, x)));
        bad = vf_fma(x, zero, bad); /* 0, or NaN from the first value on that is no finite number */
    }
    vf inverse = vf_div(vf_set1((float)ENCODE_LEVELS), most);
    inverse = vf_fma(bad, zero, inverse);
    vf_store(m->scale + c, vf_add(vf_div(most, vf_set1((float)ENCODE_LEVELS)), bad));
    vf_store(m->bias + c, zero);
    for (int i = 0; i < m->padded_cols; i += 2) {
        vf a = i < n ? vf_mul(load_some(v + (size_t)i * h->ld, left), inverse) : zero;
        vf b = i + 1 < n ? vf_mul(load_some(v + (size_t)(i + 1) * h->ld, left), inverse) : zero;
        enc_put_pairs(m->data + ((size_t)g * (size_t)m->padded_cols + (size_t)i) * ENCODE_GROUP, a, b);
    }
}

static void load_values(const struct encode_head *h, int key0, int n)
{
    struct encode_matrix *m = &h->room->values;
    m->rows = h->dim;
    m->cols = n;
    m->padded_cols = padded_to(n, ENCODE_PAD);
    m->groups = padded_to(h->dim, ENCODE_GROUP) / ENCODE_GROUP;
    for (int g = 0; g < m->groups; g++)
        load_value_group(h, key0, n, g);
}

/* The largest score of a row so far. */
static float most_of(const struct encode_head *h, const float *s, int query)
{
    int n = h->room->values.padded_cols;
    vf most = vf_load(s);
    for (int i = 16; i < n; i += 16)
        most = vf_max(most, vf_load(s + i));
    float old = h->room->m[query], m = vf_max_lane(most);
    return m > old ? m : old;
}

/* Scores to weights 2^(score - m), and their sum. */
static float soften(float *s, int n, float m)
{
    vf sum = vf_set1(0);
    for (int i = 0; i < n; i += 16) {
        vf p = vf_exp2_rough(vf_sub(vf_load(s + i), vf_set1(m)));
        sum = vf_add(sum, p);
        vf_store(s + i, p);
    }
    return vf_sum(sum);
}

/* A row of weights, at most 1, to inputs of the product with the values. */
static void round_weights(const struct encode_inputs *in, int row, const float *p, int n, float sum)
{
    int16_t *q = input_row(in, row);
    float levels = sum > 0 ? input_levels(1.0f / sum) : 0;
    vi fold = vi_zero();
    for (int i = 0; i < n; i += 16)
        enc_put_laced(q + i * ENC_LACE, vf_mul(vf_load(p + i), vf_set1(levels)), &fold);
    in->d[(size_t)row * in->ldd] = sum > 0 ? 1.0f / levels : sum;
    in->fold[(size_t)row * in->ldd] = enc_fold(fold);
}

/* Rows of scores to weights of keys, pass by pass, since what ends a row takes long and rows need not wait for one
 * another; keep: what the sums so far of each query are to be multiplied with. */
static void soften_tile(const struct encode_head *h, int query, int rows, float *keep)
{
    struct encode_head_room *r = h->room;
    int n = r->values.padded_cols;
    float sums[ENCODE_TILE], m[ENCODE_TILE], room[16];
    for (int i = 0; i < rows; i++)
        m[i] = most_of(h, r->scores + (size_t)i * ENCODE_KEY_LD, query + i);
    for (int i = 0; i < rows; i++)
        sums[i] = soften(r->scores + (size_t)i * ENCODE_KEY_LD, n, m[i]);
    for (int i = 0; i < rows; i++) {
        round_weights(&r->weights, i, r->scores + (size_t)i * ENCODE_KEY_LD, n, sums[i]);
        vf_store(room, vf_exp2_rough(vf_set1(r->m[query + i] - m[i])));
        keep[i] = room[0];
        r->l[query + i] = r->l[query + i] * keep[i] + sums[i];
        r->m[query + i] = m[i];
    }
}

/* Queries [q, q + n), n at most ENCODE_TILE, over the keys at hand. */
static void attend_tile(const struct encode_head *h, int q, int n, bool first)
{
    struct encode_head_room *r = h->room;
    float keep[ENCODE_TILE];
    size_t ld = ENCODE_LD(h->dim);
    struct encode_inputs in = {r->queries.q + (size_t)q * r->queries.ldq, r->queries.d + (size_t)q * r->queries.ldd,
                               r->queries.fold + (size_t)q * r->queries.ldd, r->queries.ldq, r->queries.ldd};
    float *o = r->o + (size_t)q * ld;
    enc_linear(&r->keys, &in, n, r->scores, ENCODE_KEY_LD);
    soften_tile(h, q, n, keep);
    enc_linear(&r->values, &r->weights, n, first ? o : r->part, ld);
    for (int i = 0; i < n && !first; i++)
        for (int c = 0; c < h->dim; c += 16) {
            float *to = o + (size_t)i * ld + c;
            vf_store(to, vf_fma(vf_load(to), vf_set1(keep[i]), vf_load(r->part + (size_t)i * ld + c)));
        }
}

static void enc_head(const struct encode_head *h)
{
    struct encode_head_room *r = h->room;
    load_queries(h);
    for (int key0 = 0; key0 < h->n_keys; key0 += ENCODE_KEYS) {
        int n = h->n_keys - key0 < ENCODE_KEYS ? h->n_keys - key0 : ENCODE_KEYS;
        load_keys(h, key0, n);
        load_values(h, key0, n);
#if ENC_FOLDED
        enc_fold_matrix(&r->keys);
        enc_fold_matrix(&r->values);
#endif
        for (int q = 0; q < h->n_q; q += ENCODE_TILE)
            attend_tile(h, q, h->n_q - q < ENCODE_TILE ? h->n_q - q : ENCODE_TILE, key0 == 0);
    }
    for (int i = 0; i < h->n_q; i++) {
        vf inverse = vf_set1(1.0f / r->l[i]);
        for (int c = 0; c < h->dim; c += 16) {
            vf y = vf_mul(vf_load(r->o + (size_t)i * ENCODE_LD(h->dim) + c), inverse);
            float *to = h->o + (size_t)i * h->ldo + c;
            if (c + 16 <= h->dim)
                vf_store(to, y);
            else
                store_tail(to, h->dim - c, y);
        }
    }
}

#endif
