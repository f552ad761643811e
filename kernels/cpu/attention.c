/* Attention of a step: cut into items of one kv head and a few rows of one sequence, all leaves; or, when that gives
 * the threads too little to share, of a few leaves, whose results are kept apart and folded in order by the last. The
 * sums are the same either way. Rows of a tree share what stands before it; the leaves in which it stands each of them
 * reads alone, with its own path in place of what is cached there. */
#include <stdatomic.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/world/draft.h"
#include "kernels/cpu/device.h"

enum { TILE_QUERIES = 96, WIDEN_QUERIES = 12 };

struct attn_item {
    int seq, kv_head, first_head, n_heads; /* q heads of the kv head: entries of heads[] */
    int row0, n_rows;                      /* of the batch */
    int leaf0, leaf1;
    size_t partial;   /* floats into the partial results; SIZE_MAX: folds by itself */
    int first;        /* the item with the first leaves of the same queries */
    _Atomic int left; /* of the first: items whose leaves are not done */
};

struct attn_call {
    struct device *d;
    const struct attention_args *a;
    struct attn_item *items;
    int n_items;
    int *heads; /* q heads ordered by kv head */
    float *partials;
    size_t dim, ldo; /* padded head_dim; floats of one partial result */
    size_t thread_floats;
    int64_t work_ns;
};

/* Working memory of an item, in floats from the thread's base. */
struct attn_space {
    float *q, *o, *m, *l, *leaf_o, *k_tile, *v_tile;
    uint16_t *q_half;
    float *scales;
    int32_t *lo, *hi;
};

static size_t half_dim(size_t dim)
{
    return (dim + 31) & ~(size_t)31;
}

static struct attn_space space_of(const struct attn_call *c, int thread)
{
    float *p = (float *)c->d->attention_thread.data + (size_t)thread * c->thread_floats;
    struct attn_space s;
    s.q = p;
    s.o = s.q + TILE_QUERIES * c->dim;
    s.leaf_o = s.o + TILE_QUERIES * c->dim;
    s.k_tile = s.leaf_o + MAX_TILE * c->ldo;
    s.v_tile = s.k_tile + ATTN_LEAF * c->dim;
    s.q_half = (uint16_t *)(s.v_tile + ATTN_LEAF * c->dim);
    s.scales = s.v_tile + ATTN_LEAF * c->dim + TILE_QUERIES * half_dim(c->dim) / 2;
    s.m = s.scales + 2 * ATTN_LEAF;
    s.l = s.m + TILE_QUERIES;
    s.lo = (int32_t *)(s.l + TILE_QUERIES);
    s.hi = s.lo + TILE_QUERIES;
    return s;
}

static size_t space_floats(size_t dim, size_t ldo)
{
    size_t n = 2 * TILE_QUERIES * dim + MAX_TILE * ldo + 2 * ATTN_LEAF * dim + TILE_QUERIES * half_dim(dim) / 2 +
               2 * ATTN_LEAF + 4 * TILE_QUERIES;
    return (n + 15) & ~(size_t)15;
}

/* What row i of the tree follows, and itself, as slots; returns how many. NULL: none are written. */
static int path_of(const struct row_tree *t, int i, int32_t *path)
{
    int n = 0;
    for (int k = i; k >= 0; k = t->parents[k])
        n++;
    for (int k = i, at = n; k >= 0 && path; k = t->parents[k])
        path[--at] = t->first + k;
    return n;
}

/* Of a row among its tree's; negative: it stands before them, or there is no tree. */
static int place_in_tree(const struct batch_seq *s, int row)
{
    return s->tree ? s->pos0 + row - s->row0 - s->tree->first : -1;
}

int cpu_row_position(const struct batch_seq *s, int row)
{
    int at = place_in_tree(s, row);
    return at < 0 ? s->pos0 + row - s->row0 : s->tree->first + path_of(s->tree, at, NULL) - 1;
}

int cpu_first_seen(const struct attention_args *a, int position)
{
    return a->window > 0 && position >= a->window ? position - a->window + 1 : 0;
}

static void round_query(const struct attn_call *c, float *q, uint16_t *half)
{
    size_t n = (size_t)c->a->kv.head_dim;
    c->d->kernels->round_row(q, (int)n, half, 1);
    for (size_t i = 0; i < c->dim; i++)
        q[i] = bf16_to_f32(half[i]);
}

/* Copies the item's queries, scaled, row after row, the heads of a row together. */
static void load_queries(const struct attn_call *c, const struct attn_item *it, const struct attn_space *s)
{
    const struct attention_args *a = c->a;
    const struct batch_seq *seq = &c->d->batch->seqs[it->seq];
    float scale = a->scale * 1.44269504f;
    int n = 0, dim = a->kv.head_dim;
    for (int r = it->row0; r < it->row0 + it->n_rows; r++)
        for (int h = 0; h < it->n_heads; h++, n++) {
            const float *q = act_row(a->q, r) + (size_t)c->heads[it->first_head + h] * (size_t)dim;
            float *to = s->q + (size_t)n * c->dim;
            for (int i = 0; i < dim; i++)
                to[i] = q[i] * scale;
            if (c->d->opts.fast)
                round_query(c, to, s->q_half + (size_t)n * half_dim(c->dim));
            s->hi[n] = cpu_row_position(seq, r) + 1;
            s->lo[n] = cpu_first_seen(a, s->hi[n] - 1);
            s->m[n] = -__builtin_inff();
            s->l[n] = 0;
        }
}

static void finish_query(const struct attn_call *c, int row, int head, const float *o, float l)
{
    float *y = act_row(c->a->out, row) + (size_t)head * (size_t)c->a->kv.head_dim;
    c->d->kernels->attend_finish(o, l, c->a->kv.head_dim, y);
}

/* The row's path in place of what is cached at its positions; nothing, where that is the same. */
static void take_path(struct attend_job *j, const struct batch_seq *seq, int row, int32_t path[MOST_DRAFTS])
{
    const struct row_tree *t = seq->tree;
    int at = place_in_tree(seq, row), n = at < 0 ? 0 : path_of(t, at, path);
    if (n == at + 1)
        return;
    j->path = path;
    j->path0 = t->first;
    j->n_path = n;
}

/* Rows of a sequence with a tree: together before the leaf in which the tree begins, one by one from there on. */
static void attend_tree(const struct attn_call *c, const struct attn_item *it, const struct attn_space *s,
                        const struct attend_job *all)
{
    const struct batch_seq *seq = &c->d->batch->seqs[it->seq];
    int own = seq->tree->first / ATTN_LEAF, n = it->n_heads;
    int32_t path[MOST_DRAFTS];
    struct attend_job j = *all;
    j.leaf1 = own < it->leaf1 ? own : it->leaf1;
    if (j.leaf0 < j.leaf1)
        c->d->kernels->attend(&j);
    for (int r = 0; r < it->n_rows; r++) {
        j = *all;
        j.leaf0 = own > it->leaf0 ? own : it->leaf0;
        j.n_q = n;
        j.q += (size_t)(r * n) * c->dim;
        j.q_half += (size_t)(r * n) * half_dim(c->dim);
        j.o += (size_t)(r * n) * c->dim;
        j.lo += r * n;
        j.hi += r * n;
        j.m += r * n;
        j.l += r * n;
        if (j.partial) /* of one row */
            j.partial += (size_t)(j.leaf0 - it->leaf0) * (size_t)n * c->ldo;
        take_path(&j, seq, it->row0 + r, path);
        j.k_tile = j.path ? s->k_tile : all->k_tile;
        j.v_tile = j.path ? s->v_tile : all->v_tile;
        if (j.leaf0 < j.leaf1)
            c->d->kernels->attend(&j);
    }
}

/* One query's result of one leaf, of an item whose results are kept apart. */
static float *partial_of(const struct attn_call *c, const struct attn_item *it, int leaf, int query)
{
    size_t n_q = (size_t)(it->n_rows * it->n_heads);
    return c->partials + it->partial + ((size_t)leaf * n_q + (size_t)query) * c->ldo;
}

/* Not every row sees every leaf of its item: a sum of weights of 0, which no leaf that is seen has, says so. */
static void clear_partials(const struct attn_call *c, const struct attn_item *it)
{
    if (it->partial == SIZE_MAX)
        return;
    for (int leaf = 0; leaf < it->leaf1 - it->leaf0; leaf++)
        for (int q = 0; q < it->n_rows * it->n_heads; q++)
            partial_of(c, it, leaf, q)[c->dim + 1] = 0;
}

/* Folds what was found of an item's queries in all leaves, for which further items stand behind it. */
static void fold_item(const struct attn_call *c, int first, float *o)
{
    const struct attn_item *it = &c->items[first];
    int end = first + 1;
    while (end < c->n_items && c->items[end].first == first)
        end++;
    int n_q = it->n_rows * it->n_heads, leaves = c->items[end - 1].leaf1 - it->leaf0;
    for (int q = 0; q < n_q; q++) {
        float m = -__builtin_inff(), l = 0;
        for (int leaf = 0; leaf < leaves; leaf++) {
            const float *partial = partial_of(c, it, leaf, q);
            if (partial[c->dim + 1] != 0)
                c->d->kernels->fold(partial, (int)c->dim, &m, &l, o);
        }
        finish_query(c, it->row0 + q / it->n_heads, c->heads[it->first_head + q % it->n_heads], o, l);
    }
}

static struct attend_job job_of(const struct attn_call *c, const struct attn_item *it, const struct attn_space *s)
{
    const struct kv_view *kv = &c->a->kv;
    enum dtype t = kv->space->dtype;
    size_t k_bytes = kv_key_bytes(t, kv->tokens_per_block, kv->head_dim);
    size_t v_bytes = kv_value_bytes(t, kv->tokens_per_block, kv->head_dim);
    int n_q = it->n_rows * it->n_heads;
    bool half = c->d->opts.fast, widen = (half || t != DT_F32) && n_q >= WIDEN_QUERIES;
    widen = widen || (half && kv->head_dim % 2); /* the last element has no other to be a pair with */
    return (struct attend_job){
        .n_q = n_q,
        .head_dim = kv->head_dim,
        .padded_dim = (int)c->dim,
        .q = s->q,
        .half = half,
        .half_dots = c->d->half_dots == DOTS_EVERYWHERE,
        .q_half = s->q_half,
        .half_dim = (int)half_dim(c->dim),
        .lo = s->lo,
        .hi = s->hi,
        .dtype = t,
        .head = (const uint8_t *)kv->space->base +
                (size_t)kv->layer * (size_t)kv->space->n_blocks * kv->space->block_bytes +
                (size_t)it->kv_head * (k_bytes + v_bytes),
        .block_bytes = kv->space->block_bytes,
        .v_bytes = k_bytes,
        .blocks = c->d->batch->seqs[it->seq].blocks,
        .tokens_per_block = kv->tokens_per_block,
        .leaf0 = it->leaf0,
        .leaf1 = it->leaf1,
        .k_tile = widen ? s->k_tile : NULL,
        .v_tile = widen ? s->v_tile : NULL,
        .scales = s->scales,
        .leaf_o = s->leaf_o,
        .m = s->m,
        .l = s->l,
        .o = s->o,
        .partial = it->partial == SIZE_MAX ? NULL : c->partials + it->partial,
    };
}

static void attend_item(void *ctx, int item, int thread)
{
    const struct attn_call *c = ctx;
    const struct attn_item *it = &c->items[item];
    struct attn_space s = space_of(c, thread);
    struct attend_job j = job_of(c, it, &s);
    load_queries(c, it, &s);
    clear_partials(c, it);
    if (c->d->batch->seqs[it->seq].tree)
        attend_tree(c, it, &s, &j);
    else
        c->d->kernels->attend(&j);
    if (it->partial != SIZE_MAX) {
        if (atomic_fetch_sub(&c->items[it->first].left, 1) == 1)
            fold_item(c, it->first, s.o);
        return;
    }
    for (int q = 0; q < j.n_q; q++)
        finish_query(c, it->row0 + q / it->n_heads, c->heads[it->first_head + q % it->n_heads],
                     s.o + (size_t)q * c->dim, s.l[q]);
}

/* Orders the q heads by kv head: heads[start[k]] .. heads[start[k+1]-1] belong to kv head k. */
static void order_heads(const struct attention_args *a, int *heads, int *start)
{
    int n = 0;
    for (int k = 0; k < a->kv.n_kv_heads; k++) {
        start[k] = n;
        for (int h = 0; h < a->n_heads; h++)
            if (a->kv_head[h] == k)
                heads[n++] = h;
    }
    start[a->kv.n_kv_heads] = n;
    ASSERT(n == a->n_heads);
}

/* How many leaves one item takes, and how many items and partial floats the step then has; fills items when there is
 * room. */
struct cutting {
    int leaves_per_item; /* 0: all */
    const int *start;
};

static void cut_rows(struct attn_call *c, struct attn_item it, const struct cutting *cut, size_t *floats, bool fill)
{
    const struct batch_seq *seq = &c->d->batch->seqs[it.seq];
    int first = cpu_row_position(seq, it.row0), last = cpu_row_position(seq, it.row0 + it.n_rows - 1);
    for (int i = 0; i < it.n_rows && seq->tree; i++) {
        int p = cpu_row_position(seq, it.row0 + i);
        first = p < first ? p : first;
        last = p > last ? p : last;
    }
    int leaf0 = cpu_first_seen(c->a, first) / ATTN_LEAF, leaf1 = last / ATTN_LEAF + 1;
    size_t n_q = (size_t)(it.n_rows * it.n_heads);
    bool together = it.n_rows == 1 || !seq->tree; /* of a tree's rows each lays its results out by itself */
    bool split = cut->leaves_per_item > 0 && together && leaf1 - leaf0 > cut->leaves_per_item;
    int step = split ? cut->leaves_per_item : leaf1 - leaf0;
    c->work_ns += (int64_t)n_q * (int64_t)c->dim * (leaf1 - leaf0) * ATTN_LEAF / 12;
    it.first = c->n_items;
    for (int leaf = leaf0; leaf < leaf1; leaf += step) {
        it.leaf0 = leaf;
        it.leaf1 = leaf + step < leaf1 ? leaf + step : leaf1;
        it.partial = SIZE_MAX;
        if (split) {
            it.partial = *floats;
            *floats += (size_t)(it.leaf1 - leaf) * n_q * c->ldo;
        }
        if (fill) {
            c->items[c->n_items] = it;
            c->items[it.first].left = c->n_items - it.first + 1;
        }
        c->n_items++;
    }
}

static size_t cut_all(struct attn_call *c, const struct cutting *cut, bool fill)
{
    const struct batch *b = c->d->batch;
    size_t floats = 0;
    c->n_items = 0;
    c->work_ns = 0;
    for (int s = 0; s < b->n_seqs; s++)
        for (int k = 0; k < c->a->kv.n_kv_heads; k++)
            for (int h = cut->start[k]; h < cut->start[k + 1]; h += TILE_QUERIES) {
                struct attn_item it = {.seq = s, .kv_head = k, .first_head = h, .n_heads = cut->start[k + 1] - h};
                it.n_heads = it.n_heads < TILE_QUERIES ? it.n_heads : TILE_QUERIES;
                int rows = TILE_QUERIES / it.n_heads, end = b->seqs[s].row0 + b->seqs[s].n_rows;
                rows = rows < 32 ? rows : 32;
                for (int r = b->seqs[s].row0; r < end; r += rows) {
                    it.row0 = r;
                    it.n_rows = end - r < rows ? end - r : rows;
                    cut_rows(c, it, cut, &floats, fill);
                }
            }
    return floats;
}

/* So many that the threads end at about the same time, and that within an item most leaves are asked for ahead. */
static int leaves_each(const struct attn_call *c, int threads)
{
    int leaves = 0;
    for (int s = 0; s < c->d->batch->n_seqs; s++) {
        const struct batch_seq *seq = &c->d->batch->seqs[s];
        int last = cpu_row_position(seq, seq->row0 + seq->n_rows - 1), first = cpu_first_seen(c->a, seq->pos0);
        leaves += (last / ATTN_LEAF - first / ATTN_LEAF + 1) * c->a->kv.n_kv_heads;
    }
    int each = (leaves + 4 * threads) / (8 * threads);
    return each > 1 ? each : 1;
}

/* Chooses the cut and lays the working memory out. */
static bool plan(struct attn_call *c)
{
    const struct attention_args *a = c->a;
    int threads = pool_threads(c->d->pool);
    size_t heads = (size_t)(a->n_heads + a->kv.n_kv_heads + 1) * sizeof(int);
    heads = (heads + 63) & ~(size_t)63;
    if (!device_grow(c->d, &c->d->attention, heads))
        return false;
    c->heads = c->d->attention.data;
    struct cutting cut = {0, c->heads + a->n_heads};
    order_heads(a, c->heads, c->heads + a->n_heads);
    cut_all(c, &cut, false);
    if (threads > 1 && c->n_items < 4 * threads)
        cut.leaves_per_item = leaves_each(c, threads);
    size_t floats = cut_all(c, &cut, false);
    size_t items = ((size_t)c->n_items * sizeof *c->items + 63) & ~(size_t)63;
    c->thread_floats = space_floats(c->dim, c->ldo);
    if (!device_grow(c->d, &c->d->attention, heads + items + floats * sizeof(float)) ||
        !device_grow(c->d, &c->d->attention_thread, (size_t)threads * c->thread_floats * sizeof(float)))
        return false;
    c->heads = c->d->attention.data; /* it may have moved */
    c->items = (struct attn_item *)((uint8_t *)c->heads + heads);
    c->partials = (float *)((uint8_t *)c->items + items);
    cut.start = c->heads + a->n_heads;
    order_heads(a, c->heads, c->heads + a->n_heads);
    cut_all(c, &cut, true);
    return true;
}

void cpu_attention(struct device *d, const struct attention_args *a)
{
    struct attn_call c = {.d = d, .a = a, .dim = (size_t)kv_padded_dim(a->kv.head_dim)};
    c.ldo = c.dim + PARTIAL_EXTRA;
    if (device_failed(d) || !plan(&c))
        return;
    device_run(d, c.n_items, c.work_ns, attend_item, &c);
}
