/* Attention of a set of queries over cached positions, on the lanes of vec_*.h. Included once by each kernels_*.c. A
 * lane is a position while scores are computed (keys lie [element][position]) and an element of the head while outputs
 * are (values lie [position][element]). Halves are taken in pairs: of elements of a key, of positions of a value; in a
 * laced tile the two of a pair lie side by side. kernels.h states the order of every sum. */
#ifndef CPU_ATTENTION_BODY_H
#define CPU_ATTENTION_BODY_H

enum { SEGMENT = 16, LEAF_SEGMENTS = ATTN_LEAF / SEGMENT, ATTN_SUMS = FLOAT_WIDE == 1 ? TILE : 2 * TILE, MAX_RUNS = 4 };
enum { LEAF_RUNS = 2 * LEAF_SEGMENTS };

/* How the keys and values of a leaf lie, and how they are multiplied: one after the other as they are cached, or halves
 * in pairs, whose products are added one by one or by the CPU's own dots: as they are cached, or as a tile has them,
 * f32 that was rounded or laced bfloat16. */
enum form {
    ONE_F32,
    ONE_F16,
    ONE_BF16,
    ONE_F8,
    ONE_I8,
    HALF_TILE,
    HALF_F32,
    HALF_F16,
    HALF_BF16,
    HALF_F8,
    HALF_I8,
    DOT_F32,
    DOT_F16,
    DOT_BF16,
    DOT_F8,
    DOT_I8,
    DOT_LACED
};

/* Keys and values of a leaf, by runs of 16 positions: in the cache, or in tiles. */
struct leaf_kv {
    enum form form;
    const void *k[LEAF_SEGMENTS], *v[LEAF_SEGMENTS];
    size_t k_stride, v_stride; /* elements from one head element, one position, to the next */
    bool scaled;               /* DT_I8: scores are multiplied by the scales of keys, weights by those of values */
    const float *k_scale[LEAF_SEGMENTS], *v_scale[LEAF_SEGMENTS];
    const uint8_t *ahead[LEAF_RUNS]; /* of each run of keys, then of values: what is fetched while it is read */
};

/* One batch of up to TILE queries in a leaf; from and to are the positions seen, counted from the leaf's start. */
struct leaf_batch {
    int n, from[TILE], to[TILE];
    const float *q;
    const uint16_t *q_half;
    float s[TILE][ATTN_LEAF];
    uint16_t p[TILE][ATTN_LEAF]; /* of dots: the weights once more */
    float m[TILE], l[TILE];
};

/* What leaves are folded into. */
struct fold_state {
    float *m, *l, *o;
};

INLINE bool is_one(enum form f)
{
    return f <= ONE_I8;
}

INLINE bool is_dot(enum form f)
{
    return f >= DOT_F32;
}

INLINE vf load_cached(enum dtype t, const void *p, size_t i)
{
    return t == DT_F32   ? vf_load((const float *)p + i)
           : t == DT_F16 ? vf_load_f16((const uint16_t *)p + i)
           : t == DT_F8  ? vf_load_f8((const uint8_t *)p + i)
           : t == DT_I8  ? vf_load_s8((const int8_t *)p + i)
                         : vf_load_bf16((const uint16_t *)p + i);
}

/* As which elements of this form lie; of no laced tile. */
INLINE enum dtype dtype_of(enum form f)
{
    return f == ONE_F32 || f == HALF_TILE || f == HALF_F32 || f == DOT_F32 ? DT_F32
           : f == ONE_F16 || f == HALF_F16 || f == DOT_F16                 ? DT_F16
           : f == ONE_F8 || f == HALF_F8 || f == DOT_F8                    ? DT_F8
           : f == ONE_I8 || f == HALF_I8 || f == DOT_I8                    ? DT_I8
                                                                           : DT_BF16;
}

INLINE size_t size_of(enum form f)
{
    enum dtype t = dtype_of(f);
    return t == DT_F32 ? 4 : t == DT_F8 || t == DT_I8 ? 1 : 2;
}

/* Sixteen elements from element i on; of no laced tile. */
INLINE vf load_form(enum form f, const void *p, size_t i)
{
    vf x = load_cached(dtype_of(f), p, i);
    if (f == HALF_F32 || f == DOT_F32)
        x = vf_drop_small(x);
    return f == HALF_F32 || f == DOT_F32 || f == HALF_F16 || f == DOT_F16 ? vf_round_half(x) : x;
}

#include "kernels/cpu/ahead_body.h"

/* acc[i * G + k] += x[k] * the float at w + i * step, for Q of them. */
INLINE void add_ones(int Q, int G, const vf x[], const float *w, size_t step, vf acc[])
{
    UNROLL for (int i = 0; i < Q; i++)
    {
        vf one = vf_load1(w + (size_t)i * step);
        UNROLL for (int k = 0; k < G; k++) acc[i * G + k] = vf_fma(one, x[k], acc[i * G + k]);
    }
}

#ifdef VEC_PAIRS
/* The pair at `even`, whose odd one lies `step` elements further on in the cache, or beside it in a laced tile. */
INLINE vi load_dot(enum form f, const void *p, size_t even, size_t step)
{
    const uint16_t *x = p;
    const int8_t *b = p;
    if (f == DOT_F32 || f == DOT_F16 || f == DOT_F8) {
        vf low = load_cached(dtype_of(f), p, even), high = load_cached(dtype_of(f), p, even + step);
        return f == DOT_F32 ? pair_of_floats(vf_drop_small(low), vf_drop_small(high)) : pair_of_floats(low, high);
    }
    return f == DOT_LACED ? pair_load((const uint8_t *)p + 2 * even)
           : f == DOT_I8  ? pair_of_bytes(b + even, b + even + step)
                          : pair_of(x + even, x + even + step);
}

INLINE void add_dots(int Q, int G, const vi x[], const uint16_t *w, size_t step, vf acc[])
{
    UNROLL for (int i = 0; i < Q; i++)
    {
        vi two = pair_load1(w + (size_t)i * step);
        UNROLL for (int k = 0; k < G; k++) acc[i * G + k] = pair_add(acc[i * G + k], x[k], two);
    }
}
#endif

/* Adds element d of the keys, or of halves that and the next one, the second one first. */
INLINE void score_element(enum form f, int Q, int G, const struct attend_job *j, const struct leaf_kv *kv,
                          const struct leaf_batch *b, int g, int d, vf acc[])
{
    size_t at = (size_t)d * kv->k_stride, step = (size_t)j->padded_dim;
    vf x[MAX_RUNS];
    UNROLL for (int k = 0; k < G; k++) fetch_keys(f, kv, g + k, d);
#ifdef VEC_PAIRS
    if (is_dot(f)) {
        vi two[MAX_RUNS];
        UNROLL for (int k = 0; k < G; k++) two[k] = load_dot(f, kv->k[g + k], at, kv->k_stride);
        add_dots(Q, G, two, b->q_half + d, (size_t)j->half_dim, acc);
        return;
    }
#endif
    if (!is_one(f)) {
        UNROLL for (int k = 0; k < G; k++) x[k] = load_form(f, kv->k[g + k], at + kv->k_stride);
        add_ones(Q, G, x, b->q + d + 1, step, acc);
    }
    UNROLL for (int k = 0; k < G; k++) x[k] = load_form(f, kv->k[g + k], at);
    add_ones(Q, G, x, b->q + d, step, acc);
}

/* Scores of Q queries with G runs of 16 positions from run g on. */
INLINE void score_runs(enum form f, int Q, int G, const struct attend_job *j, const struct leaf_kv *kv,
                       struct leaf_batch *b, int g)
{
    vf acc[MAX_SUMS];
    UNROLL_SUMS for (int i = 0; i < Q * G; i++) acc[i] = vf_set1(0);
    for (int d = 0; d < j->head_dim; d += is_one(f) ? 1 : 2)
        score_element(f, Q, G, j, kv, b, g, d, acc);
    UNROLL for (int i = 0; i < Q; i++) UNROLL for (int k = 0; k < G; k++)
        vf_store(b->s[i] + SEGMENT * (g + k), acc[i * G + k]);
}

/* Runs of 16 that Q queries take side by side: enough sums in flight without running out of registers. */
INLINE int runs_of(int Q)
{
    return ATTN_SUMS / Q > MAX_RUNS ? MAX_RUNS : ATTN_SUMS / Q < 1 ? 1 : ATTN_SUMS / Q;
}

INLINE void score_queries(enum form f, int Q, const struct attend_job *j, const struct leaf_kv *kv,
                          struct leaf_batch *b, int g, int g1)
{
    if (runs_of(Q) > 1)
        for (; g + runs_of(Q) <= g1; g += runs_of(Q))
            score_runs(f, Q, runs_of(Q), j, kv, b, g);
    for (; g < g1; g++)
        score_runs(f, Q, 1, j, kv, b, g);
}

/* Scores of the batch over runs [g0, g1). */
INLINE void score(enum form f, const struct attend_job *j, const struct leaf_kv *kv, struct leaf_batch *b, int g0,
                  int g1)
{
    switch (b->n) {
    case 1:
        score_queries(f, 1, j, kv, b, g0, g1);
        break;
    case 2:
        score_queries(f, 2, j, kv, b, g0, g1);
        break;
    case 3:
        score_queries(f, 3, j, kv, b, g0, g1);
        break;
    case 4:
        score_queries(f, 4, j, kv, b, g0, g1);
        break;
    default:
        if (TILE > 4)
            score_queries(f, TILE, j, kv, b, g0, g1);
    }
}

/* A weight as it is multiplied. */
INLINE vf put_weight(enum form f, vf p, float *s, uint16_t *half)
{
#ifdef VEC_PAIRS
    p = is_dot(f) ? half_store(half, p) : is_one(f) ? p : vf_round_half(p);
#else
    (void)half;
    p = is_one(f) ? p : vf_round_half(p);
#endif
    vf_store(s, p);
    return p;
}

/* Weights of 16 positions out of their scores, relative to the largest of the leaf. Returns what is summed: the weights
 * as they are multiplied, but without the scales of values. */
INLINE vf weigh_run(enum form f, const struct leaf_kv *kv, struct leaf_batch *b, int i, int g, vf most)
{
    float *s = b->s[i] + SEGMENT * g;
    uint16_t *half = b->p[i] + SEGMENT * g;
    vf x = vf_sub(vf_load(s), most), p = is_one(f) ? vf_exp2(x) : vf_zero_below(x, vf_set1(-50.0f), vf_exp2_rough(x));
    if (!kv->scaled)
        return put_weight(f, p, s, half);
    vf scaled = vf_mul(p, vf_load(kv->v_scale[g]));
    put_weight(f, is_one(f) ? scaled : vf_drop_small(scaled), s, half);
    return p;
}

/* Scores of query i into weights p, with their maximum and their sum. Positions outside [from, to) weigh 0. */
INLINE void weigh(enum form f, const struct leaf_kv *kv, struct leaf_batch *b, int i)
{
    float *s = b->s[i];
    int g0 = b->from[i] / SEGMENT, g1 = (b->to[i] + SEGMENT - 1) / SEGMENT;
    for (int g = g0; g < g1 && kv->scaled; g++)
        vf_store(s + SEGMENT * g, vf_mul(vf_load(s + SEGMENT * g), vf_load(kv->k_scale[g])));
    for (int p = g0 * SEGMENT; p < b->from[i]; p++)
        s[p] = -__builtin_inff();
    for (int p = b->to[i]; p < g1 * SEGMENT; p++)
        s[p] = -__builtin_inff();
    vf most = vf_load(s + SEGMENT * g0), sum = vf_set1(0);
    for (int g = g0 + 1; g < g1; g++)
        most = vf_max(most, vf_load(s + SEGMENT * g));
    b->m[i] = vf_max_lane(most);
    most = vf_set1(b->m[i]);
    for (int g = g0; g < g1; g++)
        sum = vf_add(sum, weigh_run(f, kv, b, i, g, most));
    b->l[i] = vf_sum(sum);
}

/* The value of position p, 16 elements from element d on. */
INLINE vf load_value(enum form f, const struct leaf_kv *kv, int p, int d)
{
    const void *v = kv->v[p / SEGMENT];
    size_t run = (size_t)(p % SEGMENT);
    vf even, odd;
    if (f != DOT_LACED)
        return load_form(f, v, run * kv->v_stride + (size_t)d);
    vf_load_pairs((const uint8_t *)v + 4 * (run / 2 * kv->v_stride + (size_t)d), &even, &odd);
    return p % 2 ? odd : even;
}

/* Weights * values of one position, for G runs of 16 elements from element d on. */
INLINE void mix_position(enum form f, int Q, int G, const struct leaf_kv *kv, const struct leaf_batch *b, int first,
                         int p, int d, vf acc[])
{
    vf x[MAX_RUNS];
    fetch_value(f, G, kv, p, d);
    UNROLL for (int k = 0; k < G; k++) x[k] = load_value(f, kv, p, d + SEGMENT * k);
    add_ones(Q, G, x, &b->s[first][p], ATTN_LEAF, acc);
}

/* Of a pair of positions, the odd one first. */
INLINE void mix_pair(enum form f, int Q, int G, const struct leaf_kv *kv, const struct leaf_batch *b, int first, int p,
                     int d, vf acc[])
{
#ifdef VEC_PAIRS
    if (is_dot(f)) {
        size_t wide = f == DOT_LACED ? 2 : 1, at = (size_t)(p % SEGMENT) * kv->v_stride + (size_t)d * wide;
        vi two[MAX_RUNS];
        fetch_value(f, G, kv, p, d);
        fetch_value(f, G, kv, p + 1, d);
        UNROLL for (int k = 0; k < G; k++) two[k] =
            load_dot(f, kv->v[p / SEGMENT], at + (size_t)(SEGMENT * k) * wide, kv->v_stride);
        add_dots(Q, G, two, &b->p[first][p], ATTN_LEAF, acc);
        return;
    }
#endif
    mix_position(f, Q, G, kv, b, first, p + 1, d, acc);
    mix_position(f, Q, G, kv, b, first, p, d, acc);
}

/* o of Q queries += weights * values of positions [from, to), for G runs of 16 elements from element d on. */
INLINE void mix_runs(enum form f, int Q, int G, const struct attend_job *j, const struct leaf_kv *kv,
                     const struct leaf_batch *b, int first, const int range[2], int d)
{
    vf acc[MAX_SUMS];
    size_t ldo = (size_t)j->padded_dim + PARTIAL_EXTRA;
    float *o = j->leaf_o + (size_t)first * ldo + d;
    int p = range[0];
    UNROLL for (int i = 0; i < Q; i++) UNROLL for (int k = 0; k < G; k++) acc[i * G + k] =
        vf_load(o + (size_t)i * ldo + SEGMENT * k);
    if (!is_one(f) && p % 2)
        mix_position(f, Q, G, kv, b, first, p++, d, acc);
    for (; !is_one(f) && p + 1 < range[1]; p += 2)
        mix_pair(f, Q, G, kv, b, first, p, d, acc);
    for (; p < range[1]; p++)
        mix_position(f, Q, G, kv, b, first, p, d, acc);
    UNROLL for (int i = 0; i < Q; i++) UNROLL for (int k = 0; k < G; k++)
        vf_store(o + (size_t)i * ldo + SEGMENT * k, acc[i * G + k]);
}

INLINE void mix_queries(enum form f, int Q, const struct attend_job *j, const struct leaf_kv *kv,
                        const struct leaf_batch *b, int first, const int range[2])
{
    int d = 0, n = runs_of(Q) * SEGMENT;
    if (runs_of(Q) > 1)
        for (; d + n <= j->padded_dim; d += n)
            mix_runs(f, Q, runs_of(Q), j, kv, b, first, range, d);
    for (; d < j->padded_dim; d += SEGMENT)
        mix_runs(f, Q, 1, j, kv, b, first, range, d);
}

INLINE void mix_one(enum form f, const struct attend_job *j, const struct leaf_kv *kv, const struct leaf_batch *b,
                    int i, int from, int to)
{
    const int range[2] = {from, to};
    if (from < to)
        mix_queries(f, 1, j, kv, b, i, range);
}

/* Each query adds its own positions in ascending order; those that all of the batch see are taken together, of halves
 * whole pairs. */
INLINE void mix(enum form f, const struct attend_job *j, const struct leaf_kv *kv, const struct leaf_batch *b)
{
    int from = 0, to = ATTN_LEAF;
    for (int i = 0; i < b->n; i++) {
        from = b->from[i] > from ? b->from[i] : from;
        to = b->to[i] < to ? b->to[i] : to;
    }
    if (!is_one(f)) {
        from = (from + 1) / 2 * 2;
        to = to / 2 * 2;
    }
    memset(j->leaf_o, 0, (size_t)b->n * (size_t)(j->padded_dim + PARTIAL_EXTRA) * sizeof *j->leaf_o);
    if (from >= to) {
        for (int i = 0; i < b->n; i++)
            mix_one(f, j, kv, b, i, b->from[i], b->to[i]);
        return;
    }
    for (int i = 0; i < b->n; i++)
        mix_one(f, j, kv, b, i, b->from[i], from);
    const int range[2] = {from, to};
    switch (b->n) {
    case 1:
        mix_queries(f, 1, j, kv, b, 0, range);
        break;
    case 2:
        mix_queries(f, 2, j, kv, b, 0, range);
        break;
    case 3:
        mix_queries(f, 3, j, kv, b, 0, range);
        break;
    case 4:
        mix_queries(f, 4, j, kv, b, 0, range);
        break;
    default:
        if (TILE > 4)
            mix_queries(f, TILE, j, kv, b, 0, range);
    }
    for (int i = 0; i < b->n; i++)
        mix_one(f, j, kv, b, i, to, b->to[i]);
}

/* by: what the state and the partial are multiplied by. A fresh state becomes the partial. */
INLINE void fold_by(const float *partial, int padded_dim, const float by[2], struct fold_state to)
{
    float pm = partial[padded_dim], pl = partial[padded_dim + 1];
    if (*to.m == -__builtin_inff()) {
        *to.m = pm;
        *to.l = pl;
        memcpy(to.o, partial, (size_t)padded_dim * sizeof *to.o);
        return;
    }
    *to.m = *to.m > pm ? *to.m : pm;
    *to.l = *to.l * by[0] + pl * by[1];
    for (int d = 0; d < padded_dim; d += 16) {
        vf x = vf_mul(vf_load(partial + d), vf_set1(by[1]));
        vf_store(to.o + d, vf_fma(vf_load(to.o + d), vf_set1(by[0]), x));
    }
}

/* How far two maxima lie below the larger of them. */
INLINE void below_most(float m, float pm, float x[2])
{
    float most = m > pm ? m : pm;
    x[0] = m - most;
    x[1] = pm - most;
}

static void fold(const float *partial, int padded_dim, float *m, float *l, float *o)
{
    float by[16] = {0};
    below_most(*m, partial[padded_dim], by);
    vf_store(by, vf_exp2(vf_load(by)));
    fold_by(partial, padded_dim, by, (struct fold_state){m, l, o});
}

/* What the batch found of the leaf: kept for a later fold, or folded now. */
INLINE void batch_out(const struct attend_job *j, const struct leaf_batch *b, int leaf, int first)
{
    size_t dim = (size_t)j->padded_dim, ldo = dim + PARTIAL_EXTRA;
    float by[2 * MAX_TILE] = {0};
    for (int i = 0; i < b->n; i++) {
        float *o = j->leaf_o + (size_t)i * ldo;
        o[dim] = b->m[i];
        o[dim + 1] = b->l[i];
        below_most(j->m[first + i], b->m[i], by + 2 * i);
    }
    vf_store(by, vf_exp2(vf_load(by)));
    for (int i = 0; i < b->n; i++) {
        const float *o = j->leaf_o + (size_t)i * ldo;
        size_t query = (size_t)(first + i);
        if (j->partial)
            memcpy(j->partial + ((size_t)(leaf - j->leaf0) * (size_t)j->n_q + query) * ldo, o, ldo * sizeof *o);
        else
            fold_by(o, j->padded_dim, by + 2 * i, (struct fold_state){j->m + query, j->l + query, j->o + query * dim});
    }
}

/* Queries first .. of the leaf, as many as one batch takes; returns how many. Queries that see nothing of it are passed
 * over. */
INLINE int batch_run(enum form f, const struct attend_job *j, const struct leaf_kv *kv, int leaf, int first)
{
    struct leaf_batch b;
    int low = ATTN_LEAF, high = 0, skip = 0;
    b.n = 0;
    for (int i = first; i < j->n_q && b.n < TILE; i++) {
        int from = j->lo[i] - leaf * ATTN_LEAF, to = j->hi[i] - leaf * ATTN_LEAF;
        from = from > 0 ? from : 0;
        to = to < ATTN_LEAF ? to : ATTN_LEAF;
        if (from >= to) {
            if (b.n)
                break;
            skip++;
            continue;
        }
        b.from[b.n] = from;
        b.to[b.n++] = to;
        low = from < low ? from : low;
        high = to > high ? to : high;
    }
    if (!b.n)
        return skip;
    if (b.n > 4 && b.n < TILE)
        b.n = 4;
    b.q = j->q + (size_t)(first + skip) * (size_t)j->padded_dim;
    b.q_half = is_dot(f) ? j->q_half + (size_t)(first + skip) * (size_t)j->half_dim : NULL;
    score(f, j, kv, &b, low / SEGMENT, (high + SEGMENT - 1) / SEGMENT);
    for (int i = 0; i < b.n; i++)
        weigh(f, kv, &b, i);
    mix(f, j, kv, &b);
    batch_out(j, &b, leaf, first + skip);
    return skip + b.n;
}

#include "kernels/cpu/tiles_body.h"

/* Finds positions [from, to) of the leaf; blocks outside may be gone. */
static void find_runs(const struct attend_job *j, int leaf, int from, int to, struct leaf_kv *kv)
{
    size_t size = (size_t)dtype_get(j->dtype)->bytes, tokens = (size_t)j->tokens_per_block;
    kv->k_stride = tokens;
    kv->v_stride = (size_t)j->padded_dim;
    kv->scaled = j->dtype == DT_I8;
    for (int s = from / SEGMENT; s * SEGMENT < to; s++) {
        int p = leaf * ATTN_LEAF + s * SEGMENT, at = p % j->tokens_per_block;
        const uint8_t *k = j->head + (size_t)j->blocks[p / j->tokens_per_block] * j->block_bytes, *v = k + j->v_bytes;
        kv->k[s] = k + (size_t)at * size;
        kv->v[s] = v + (size_t)at * kv->v_stride * size;
        kv->k_scale[s] = (const float *)(const void *)(k + tokens * (size_t)j->head_dim) + at;
        kv->v_scale[s] = (const float *)(const void *)(v + tokens * kv->v_stride) + at;
    }
}

#define ATTEND_LEAF(name, kind)                                                                                        \
    static void name(const struct attend_job *j, const struct leaf_kv *kv, int leaf)                                   \
    {                                                                                                                  \
        for (int i = 0; i < j->n_q;)                                                                                   \
            i += batch_run(kind, j, kv, leaf, i);                                                                      \
    }
ATTEND_LEAF(attend_f32, ONE_F32)
ATTEND_LEAF(attend_f16, ONE_F16)
ATTEND_LEAF(attend_bf16, ONE_BF16)
ATTEND_LEAF(attend_f8, ONE_F8)
ATTEND_LEAF(attend_i8, ONE_I8)
ATTEND_LEAF(attend_half_tile, HALF_TILE)
ATTEND_LEAF(attend_half_f32, HALF_F32)
ATTEND_LEAF(attend_half_f16, HALF_F16)
ATTEND_LEAF(attend_half_bf16, HALF_BF16)
ATTEND_LEAF(attend_half_f8, HALF_F8)
ATTEND_LEAF(attend_half_i8, HALF_I8)
#ifdef VEC_PAIRS
ATTEND_LEAF(attend_dot_f32, DOT_F32)
ATTEND_LEAF(attend_dot_f16, DOT_F16)
ATTEND_LEAF(attend_dot_bf16, DOT_BF16)
ATTEND_LEAF(attend_dot_f8, DOT_F8)
ATTEND_LEAF(attend_dot_i8, DOT_I8)
ATTEND_LEAF(attend_dot_laced, DOT_LACED)
#endif

static bool takes_dots(const struct attend_job *j)
{
#ifdef VEC_PAIRS
    return j->half_dots;
#else
    (void)j;
    return false;
#endif
}

static enum form form_of_cache(const struct attend_job *j)
{
    static const enum form ones[DT_COUNT] = {
        [DT_F32] = ONE_F32, [DT_F16] = ONE_F16, [DT_BF16] = ONE_BF16, [DT_F8] = ONE_F8, [DT_I8] = ONE_I8};
    static const enum form halves[DT_COUNT] = {
        [DT_F32] = HALF_F32, [DT_F16] = HALF_F16, [DT_BF16] = HALF_BF16, [DT_F8] = HALF_F8, [DT_I8] = HALF_I8};
    static const enum form dots[DT_COUNT] = {
        [DT_F32] = DOT_F32, [DT_F16] = DOT_F16, [DT_BF16] = DOT_BF16, [DT_F8] = DOT_F8, [DT_I8] = DOT_I8};
    return !j->half ? ones[j->dtype] : takes_dots(j) ? dots[j->dtype] : halves[j->dtype];
}

/* The form in which the leaf is read: as it is cached, or in tiles, which are made. */
static void prepare_leaf(const struct attend_job *j, int leaf, const int range[2], struct leaf_kv *kv)
{
    if (!j->k_tile)
        kv->form = form_of_cache(j);
    else if (!j->half)
        tile_ones(j, leaf, range, kv);
#ifdef VEC_PAIRS
    else if (takes_dots(j))
        tile_laced(j, leaf, range, kv);
#endif
    else
        tile_halves(j, leaf, range, kv);
}

static void attend(const struct attend_job *j)
{
    static void (*const forms[])(const struct attend_job *, const struct leaf_kv *, int) = {
        [ONE_F32] = attend_f32,       [ONE_F16] = attend_f16,       [ONE_BF16] = attend_bf16,
        [ONE_F8] = attend_f8,         [ONE_I8] = attend_i8,         [HALF_TILE] = attend_half_tile,
        [HALF_F32] = attend_half_f32, [HALF_F16] = attend_half_f16, [HALF_BF16] = attend_half_bf16,
        [HALF_F8] = attend_half_f8,   [HALF_I8] = attend_half_i8,
#ifdef VEC_PAIRS
        [DOT_F32] = attend_dot_f32,   [DOT_F16] = attend_dot_f16,   [DOT_BF16] = attend_dot_bf16,
        [DOT_F8] = attend_dot_f8,     [DOT_I8] = attend_dot_i8,     [DOT_LACED] = attend_dot_laced,
#endif
    };
    int most = 0, least = j->lo[0];
    for (int i = 0; i < j->n_q; i++) {
        most = j->hi[i] > most ? j->hi[i] : most;
        least = j->lo[i] < least ? j->lo[i] : least;
    }
    for (int leaf = j->leaf0; leaf < j->leaf1; leaf++) {
        struct leaf_kv kv;
        int from = least - leaf * ATTN_LEAF, to = most - leaf * ATTN_LEAF;
        if (to <= 0 || from >= ATTN_LEAF)
            continue;
        const int range[4] = {from > 0 ? from : 0, to < ATTN_LEAF ? to : ATTN_LEAF, 0,
                              leaf + 1 < j->leaf1 ? to - ATTN_LEAF : 0};
        find_runs(j, leaf, range[0], range[1], &kv);
        look_ahead(j, leaf, range, &kv);
        prepare_leaf(j, leaf, range, &kv);
        forms[kv.form](j, &kv, leaf);
    }
}

static void attend_finish(const float *o, float l, int n, float *y)
{
    float inverse = 1.0f / l;
    for (int i = 0; i < n; i++)
        y[i] = o[i] * inverse;
}

#endif
