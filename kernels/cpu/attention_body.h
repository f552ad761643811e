/* Attention of a set of queries over cached positions, on the lanes of vec_*.h. Included once by each kernels_*.c. A
 * lane is a position while scores are computed (keys lie [element][position]) and an element of the head while outputs
 * are (values lie [position][element]). kernels.h states the order of every sum. */
#ifndef CPU_ATTENTION_BODY_H
#define CPU_ATTENTION_BODY_H

enum { SEGMENT = 16, LEAF_SEGMENTS = ATTN_LEAF / SEGMENT };

/* Keys and values of a leaf, by runs of 16 positions: in the cache, or in f32 tiles. */
struct leaf_kv {
    enum dtype dtype;
    const void *k[LEAF_SEGMENTS], *v[LEAF_SEGMENTS];
    size_t k_stride, v_stride; /* elements from one head element, one position, to the next */
};

/* One batch of up to TILE queries in a leaf; from and to are the positions seen, counted from the leaf's start. */
struct leaf_batch {
    int n, from[TILE], to[TILE];
    const float *q;
    float s[TILE][ATTN_LEAF];
    float m[TILE], l[TILE];
};

INLINE vf load_cached(enum dtype t, const void *p, size_t i)
{
    return t == DT_F32   ? vf_load((const float *)p + i)
           : t == DT_F16 ? vf_load_f16((const uint16_t *)p + i)
           : t == DT_F8  ? vf_load_f8((const uint8_t *)p + i)
                         : vf_load_bf16((const uint16_t *)p + i);
}

/* Scores of Q queries with G runs of 16 positions from run g on. */
INLINE void score_runs(enum dtype t, int Q, int G, const struct attend_job *j, const struct leaf_kv *kv,
                       struct leaf_batch *b, int g)
{
    vf acc[TILE];
    const float *q = b->q;
    UNROLL for (int i = 0; i < Q * G; i++) acc[i] = vf_set1(0);
    for (int d = 0; d < j->head_dim; d++) {
        UNROLL for (int k = 0; k < G; k++)
        {
            vf key = load_cached(t, kv->k[g + k], (size_t)d * kv->k_stride);
            UNROLL for (int i = 0; i < Q; i++) acc[i * G + k] =
                vf_fma(vf_load1(q + (size_t)i * (size_t)j->padded_dim + d), key, acc[i * G + k]);
        }
    }
    UNROLL for (int i = 0; i < Q; i++) UNROLL for (int k = 0; k < G; k++)
        vf_store(b->s[i] + SEGMENT * (g + k), acc[i * G + k]);
}

/* Runs of 16 that Q queries take side by side: enough sums in flight without running out of registers. */
INLINE int runs_of(int Q)
{
    return TILE / Q > 4 ? 4 : TILE / Q < 1 ? 1 : TILE / Q;
}

INLINE void score_queries(enum dtype t, int Q, const struct attend_job *j, const struct leaf_kv *kv,
                          struct leaf_batch *b, int g, int g1)
{
    if (runs_of(Q) > 1)
        for (; g + runs_of(Q) <= g1; g += runs_of(Q))
            score_runs(t, Q, runs_of(Q), j, kv, b, g);
    for (; g < g1; g++)
        score_runs(t, Q, 1, j, kv, b, g);
}

/* Scores of the batch over runs [g0, g1). */
INLINE void score(enum dtype t, const struct attend_job *j, const struct leaf_kv *kv, struct leaf_batch *b, int g0,
                  int g1)
{
    switch (b->n) {
    case 1:
        score_queries(t, 1, j, kv, b, g0, g1);
        break;
    case 2:
        score_queries(t, 2, j, kv, b, g0, g1);
        break;
    case 3:
        score_queries(t, 3, j, kv, b, g0, g1);
        break;
    case 4:
        score_queries(t, 4, j, kv, b, g0, g1);
        break;
    default:
        if (TILE > 4)
            score_queries(t, TILE, j, kv, b, g0, g1);
    }
}

/* Scores of query i into weights p, with their maximum and their sum. Positions outside [from, to) weigh 0. */
INLINE void weigh(struct leaf_batch *b, int i)
{
    float *s = b->s[i];
    int g0 = b->from[i] / SEGMENT, g1 = (b->to[i] + SEGMENT - 1) / SEGMENT;
    for (int p = g0 * SEGMENT; p < b->from[i]; p++)
        s[p] = -__builtin_inff();
    for (int p = b->to[i]; p < g1 * SEGMENT; p++)
        s[p] = -__builtin_inff();
    vf most = vf_load(s + SEGMENT * g0), sum = vf_set1(0);
    for (int g = g0 + 1; g < g1; g++)
        most = vf_max(most, vf_load(s + SEGMENT * g));
    b->m[i] = vf_max_lane(most);
    most = vf_set1(b->m[i]);
    for (int g = g0; g < g1; g++) {
        vf p = vf_exp2(vf_sub(vf_load(s + SEGMENT * g), most));
        vf_store(s + SEGMENT * g, p);
        sum = vf_add(sum, p);
    }
    b->l[i] = vf_sum(sum);
}

/* o of Q queries += weights * values of positions [from, to), for G runs of 16 elements from element d on. */
INLINE void mix_runs(enum dtype t, int Q, int G, const struct attend_job *j, const struct leaf_kv *kv,
                     const struct leaf_batch *b, int first, const int range[2], int d)
{
    vf acc[TILE];
    size_t ldo = (size_t)j->padded_dim + PARTIAL_EXTRA;
    float *o = j->leaf_o + (size_t)first * ldo + d;
    UNROLL for (int i = 0; i < Q; i++) UNROLL for (int k = 0; k < G; k++) acc[i * G + k] =
        vf_load(o + (size_t)i * ldo + SEGMENT * k);
    for (int p = range[0]; p < range[1];) {
        int stop = (p / SEGMENT + 1) * SEGMENT;
        stop = stop < range[1] ? stop : range[1];
        size_t at = (size_t)(p % SEGMENT) * kv->v_stride + (size_t)d;
        const void *v = kv->v[p / SEGMENT];
        for (; p < stop; p++, at += kv->v_stride) {
            UNROLL for (int k = 0; k < G; k++)
            {
                vf value = load_cached(t, v, at + (size_t)(SEGMENT * k));
                UNROLL for (int i = 0; i < Q; i++) acc[i * G + k] =
                    vf_fma(vf_load1(&b->s[first + i][p]), value, acc[i * G + k]);
            }
        }
    }
    UNROLL for (int i = 0; i < Q; i++) UNROLL for (int k = 0; k < G; k++)
        vf_store(o + (size_t)i * ldo + SEGMENT * k, acc[i * G + k]);
}

INLINE void mix_queries(enum dtype t, int Q, const struct attend_job *j, const struct leaf_kv *kv,
                        const struct leaf_batch *b, int first, const int range[2])
{
    int d = 0, n = runs_of(Q) * SEGMENT;
    if (runs_of(Q) > 1)
        for (; d + n <= j->padded_dim; d += n)
            mix_runs(t, Q, runs_of(Q), j, kv, b, first, range, d);
    for (; d < j->padded_dim; d += SEGMENT)
        mix_runs(t, Q, 1, j, kv, b, first, range, d);
}

INLINE void mix_one(enum dtype t, const struct attend_job *j, const struct leaf_kv *kv, const struct leaf_batch *b,
                    int i, int from, int to)
{
    const int range[2] = {from, to};
    if (from < to)
        mix_queries(t, 1, j, kv, b, i, range);
}

/* Each query adds its own positions in ascending order; those that all of the batch see are taken together. */
INLINE void mix(enum dtype t, const struct attend_job *j, const struct leaf_kv *kv, const struct leaf_batch *b)
{
    int from = 0, to = ATTN_LEAF;
    for (int i = 0; i < b->n; i++) {
        from = b->from[i] > from ? b->from[i] : from;
        to = b->to[i] < to ? b->to[i] : to;
    }
    memset(j->leaf_o, 0, (size_t)b->n * (size_t)(j->padded_dim + PARTIAL_EXTRA) * sizeof *j->leaf_o);
    if (from >= to) {
        for (int i = 0; i < b->n; i++)
            mix_one(t, j, kv, b, i, b->from[i], b->to[i]);
        return;
    }
    for (int i = 0; i < b->n; i++)
        mix_one(t, j, kv, b, i, b->from[i], from);
    const int range[2] = {from, to};
    switch (b->n) {
    case 1:
        mix_queries(t, 1, j, kv, b, 0, range);
        break;
    case 2:
        mix_queries(t, 2, j, kv, b, 0, range);
        break;
    case 3:
        mix_queries(t, 3, j, kv, b, 0, range);
        break;
    case 4:
        mix_queries(t, 4, j, kv, b, 0, range);
        break;
    default:
        if (TILE > 4)
            mix_queries(t, TILE, j, kv, b, 0, range);
    }
    for (int i = 0; i < b->n; i++)
        mix_one(t, j, kv, b, i, to, b->to[i]);
}

static void fold(const float *partial, int padded_dim, float *m, float *l, float *o)
{
    float pm = partial[padded_dim], pl = partial[padded_dim + 1];
    if (*m == -__builtin_inff()) { /* fresh */
        *m = pm;
        *l = pl;
        memcpy(o, partial, (size_t)padded_dim * sizeof *o);
        return;
    }
    float most = *m > pm ? *m : pm, lanes[16];
    vf_store(lanes, vf_exp2(vf_sub(vf_set1(*m), vf_set1(most))));
    float old = lanes[0];
    vf_store(lanes, vf_exp2(vf_sub(vf_set1(pm), vf_set1(most))));
    float new = lanes[0];
    *m = most;
    *l = *l * old + pl * new;
    for (int d = 0; d < padded_dim; d += 16) {
        vf x = vf_mul(vf_load(partial + d), vf_set1(new));
        vf_store(o + d, vf_fma(vf_load(o + d), vf_set1(old), x));
    }
}

/* What the batch found of the leaf: kept for a later fold, or folded now. */
INLINE void batch_out(const struct attend_job *j, const struct leaf_batch *b, int leaf, int first)
{
    size_t dim = (size_t)j->padded_dim, ldo = dim + PARTIAL_EXTRA;
    for (int i = 0; i < b->n; i++) {
        float *o = j->leaf_o + (size_t)i * ldo;
        size_t query = (size_t)(first + i);
        o[dim] = b->m[i];
        o[dim + 1] = b->l[i];
        if (j->partial)
            memcpy(j->partial + ((size_t)(leaf - j->leaf0) * (size_t)j->n_q + query) * ldo, o, ldo * sizeof *o);
        else
            fold(o, j->padded_dim, j->m + query, j->l + query, j->o + query * dim);
    }
}

/* Queries first .. of the leaf, as many as one batch takes; returns how many. Queries that see nothing of it are passed
 * over. */
INLINE int batch_run(enum dtype t, const struct attend_job *j, const struct leaf_kv *kv, int leaf, int first)
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
    score(t, j, kv, &b, low / SEGMENT, (high + SEGMENT - 1) / SEGMENT);
    for (int i = 0; i < b.n; i++)
        weigh(&b, i);
    mix(t, j, kv, &b);
    batch_out(j, &b, leaf, first + skip);
    return skip + b.n;
}

/* Finds positions [from, to) of the leaf; blocks outside may be gone. */
static void find_runs(const struct attend_job *j, int leaf, int from, int to, struct leaf_kv *kv)
{
    size_t size = (size_t)dtype_get(j->dtype)->bytes;
    kv->dtype = j->dtype;
    kv->k_stride = (size_t)j->tokens_per_block;
    kv->v_stride = (size_t)j->padded_dim;
    for (int s = from / SEGMENT; s * SEGMENT < to; s++) {
        int p = leaf * ATTN_LEAF + s * SEGMENT, at = p % j->tokens_per_block;
        const uint8_t *head = j->head + (size_t)j->blocks[p / j->tokens_per_block] * j->block_bytes;
        kv->k[s] = head + (size_t)at * size;
        kv->v[s] = head + j->v_bytes + (size_t)at * kv->v_stride * size;
    }
}

/* Widens the leaf into the job's tiles, where many queries will read it. */
INLINE void widen_leaf(enum dtype t, const struct attend_job *j, int from, int to, struct leaf_kv *kv)
{
    for (int s = from / SEGMENT; s * SEGMENT < to; s++) {
        float *k = j->k_tile + s * SEGMENT, *v = j->v_tile + (size_t)(s * SEGMENT) * kv->v_stride;
        for (int d = 0; d < j->head_dim; d++)
            vf_store(k + (size_t)d * ATTN_LEAF, load_cached(t, kv->k[s], (size_t)d * kv->k_stride));
        for (size_t i = 0; i < SEGMENT * kv->v_stride; i += 16)
            vf_store(v + i, load_cached(t, kv->v[s], i));
        kv->k[s] = k;
        kv->v[s] = v;
    }
    kv->k_stride = ATTN_LEAF;
    kv->dtype = DT_F32;
}

/* Puts what a path has in the leaf's positions below `to` into the tiles, in place of what is cached there. */
INLINE void graft_path(enum dtype t, const struct attend_job *j, int leaf, int to)
{
    size_t size = (size_t)dtype_get(t)->bytes, tokens = (size_t)j->tokens_per_block, dim = (size_t)j->padded_dim;
    int start = leaf * ATTN_LEAF, i = j->path0 < start ? start - j->path0 : 0;
    for (; i < j->n_path && j->path0 + i < start + to; i++) {
        size_t slot = (size_t)j->path[i], at = slot % tokens, run = at / SEGMENT * SEGMENT;
        const uint8_t *k = j->head + (size_t)j->blocks[slot / tokens] * j->block_bytes, *v = k + j->v_bytes;
        float *k_to = j->k_tile + (j->path0 + i - start), *v_to = j->v_tile + (size_t)(j->path0 + i - start) * dim,
              lanes[SEGMENT];
        if (j->path[i] == j->path0 + i)
            continue;
        for (int d = 0; d < j->head_dim; d++) {
            vf_store(lanes, load_cached(t, k + run * size, (size_t)d * tokens));
            k_to[(size_t)d * ATTN_LEAF] = lanes[at - run];
        }
        for (size_t d = 0; d < dim; d += SEGMENT)
            vf_store(v_to + d, load_cached(t, v + at * dim * size, d));
    }
}

INLINE void tile_leaf(enum dtype t, const struct attend_job *j, int leaf, const int range[2], struct leaf_kv *kv)
{
    widen_leaf(t, j, range[0], range[1], kv);
    if (j->path)
        graft_path(t, j, leaf, range[1]);
}

#define ATTEND_LEAF(name, type)                                                                                        \
    static void name(const struct attend_job *j, const struct leaf_kv *kv, int leaf)                                   \
    {                                                                                                                  \
        for (int i = 0; i < j->n_q;)                                                                                   \
            i += batch_run(type, j, kv, leaf, i);                                                                      \
    }
ATTEND_LEAF(attend_f32, DT_F32)
ATTEND_LEAF(attend_f16, DT_F16)
ATTEND_LEAF(attend_bf16, DT_BF16)
ATTEND_LEAF(attend_f8, DT_F8)

static void attend(const struct attend_job *j)
{
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
        from = from > 0 ? from : 0;
        to = to < ATTN_LEAF ? to : ATTN_LEAF;
        find_runs(j, leaf, from, to, &kv);
        const int range[2] = {from, to};
        if (j->k_tile && j->dtype == DT_F16)
            tile_leaf(DT_F16, j, leaf, range, &kv);
        else if (j->k_tile && j->dtype == DT_BF16)
            tile_leaf(DT_BF16, j, leaf, range, &kv);
        else if (j->k_tile && j->dtype == DT_F8)
            tile_leaf(DT_F8, j, leaf, range, &kv);
        else if (j->k_tile)
            tile_leaf(DT_F32, j, leaf, range, &kv);
        if (kv.dtype == DT_F32)
            attend_f32(j, &kv, leaf);
        else if (kv.dtype == DT_F16)
            attend_f16(j, &kv, leaf);
        else if (kv.dtype == DT_F8)
            attend_f8(j, &kv, leaf);
        else
            attend_bf16(j, &kv, leaf);
    }
}

static void attend_finish(const float *o, float l, int n, float *y)
{
    float inverse = 1.0f / l;
    for (int i = 0; i < n; i++)
        y[i] = o[i] * inverse;
}

#endif
