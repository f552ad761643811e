/* The ops of an encoder on a CPU: cuts them into items for the pool. A thread takes a few rows through all of a layer
 * but its attention, so that what lies between two matrices never leaves its cache, and a layer has two hand-overs. */
#include <math.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "kernels/cpu/encode_pack.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/pool.h"

_Static_assert((int64_t)ENCODE_LEVELS *((int)ENCODE_INPUT_SUM + (int)ENCODE_LEAF / 2 + 16) <= INT32_MAX,
               "a leaf's sum fits");
_Static_assert((int)ENCODE_LEVELS + (int)ENCODE_INPUT_LEVELS <= INT16_MAX, "a folded input fits");
_Static_assert((int)ENCODE_KEYS <= (int)ENCODE_LEAF, "the weights of keys are one leaf");

/* A leaf of the inner rows of a feed-forward layer; a little more than that apart, so that they do not all lie in the
 * same lines of the cache. */
enum { INNER_LD = ENCODE_LEAF + 16 };

/* Of one thread. */
struct encode_thread {
    float *rows;                        /* [ENCODE_ROWS][INNER_LD] */
    float *more;                        /* [ENCODE_ROWS][ld of hidden] */
    struct encode_inputs inputs, inner; /* of hidden, of ffn columns */
    struct encode_head_room head;
    uint8_t *head_bytes;
};

struct encode_device {
    const struct isa *isa;
    const struct encode_kernels *kernels;
    struct pool *pool;
    struct encode_opts opts;
    size_t ld; /* of hidden */
    struct encode_thread *threads;
    int n_threads;
};

/* ---- opening ---- */

static bool inputs_open(struct encode_inputs *in, size_t ld)
{
    in->ldq = ld;
    in->ldd = encode_leaves((int)ld);
    in->q = mem_try_aligned(ENCODE_ROWS * in->ldq * sizeof *in->q, 64);
    in->d = mem_try_aligned(ENCODE_ROWS * in->ldd * sizeof *in->d, 64);
    in->fold = mem_try_aligned(ENCODE_ROWS * in->ldd * sizeof *in->fold, 64);
    return in->q && in->d && in->fold;
}

static void inputs_close(struct encode_inputs *in)
{
    mem_free(in->q);
    mem_free(in->d);
    mem_free(in->fold);
}

static bool thread_open(const struct encode_device *d, struct encode_thread *t)
{
    int dim = d->opts.hidden / d->opts.n_heads;
    t->rows = mem_try_aligned(ENCODE_ROWS * INNER_LD * sizeof *t->rows, 64);
    t->more = mem_try_aligned(ENCODE_ROWS * d->ld * sizeof *t->more, 64);
    bool ok = inputs_open(&t->inputs, d->ld) && inputs_open(&t->inner, ENCODE_LD(d->opts.ffn));
    t->head_bytes = mem_try_aligned(encode_head_room(&t->head, NULL, dim), 64);
    encode_head_room(&t->head, t->head_bytes, dim);
    return ok && t->rows && t->more && t->head_bytes;
}

static void device_close(struct encode_device *d)
{
    if (!d)
        return;
    for (int i = 0; i < d->n_threads && d->threads; i++) {
        struct encode_thread *t = &d->threads[i];
        mem_free(t->rows);
        mem_free(t->more);
        inputs_close(&t->inputs);
        inputs_close(&t->inner);
        mem_free(t->head_bytes);
    }
    mem_free(d->threads);
    pool_close(d->pool);
    mem_free(d);
}

static int open_threads(struct encode_device *d, struct err *e)
{
    TRY(pool_open(&d->pool, d->opts.n_threads, e));
    d->n_threads = pool_threads(d->pool);
    d->threads = mem_new_array((size_t)d->n_threads, sizeof *d->threads);
    for (int i = 0; i < d->n_threads; i++)
        if (!thread_open(d, &d->threads[i]))
            return err_set(e, E_FULL, "no memory for an encoder's %d threads", d->n_threads);
    return 0;
}

static int device_open(struct encode_device **out, const struct encode_opts *o, struct err *e)
{
    struct encode_device *d = mem_new(sizeof *d);
    ASSERT(o->hidden > 0 && o->n_heads > 0 && o->hidden % o->n_heads == 0);
    *out = NULL;
    d->opts = *o;
    d->ld = ENCODE_LD(o->hidden);
    int rc = isa_pick(o->isa, &d->isa, e);
    if (!rc)
        rc = open_threads(d, e);
    if (rc) {
        device_close(d);
        return rc;
    }
    d->kernels = d->isa->encode();
    *out = d;
    return 0;
}

static const char *device_isa(const struct encode_device *d)
{
    return d->isa->name;
}

/* ---- items of rows ---- */

/* Rows cut into equal items, at least two for each thread where there are so many. */
struct row_items {
    int rows, n;
};

static struct row_items cut_rows(const struct encode_device *d, int rows)
{
    int n = (rows + ENCODE_ROWS - 1) / ENCODE_ROWS, least = (rows + ENCODE_TILE - 1) / ENCODE_TILE;
    if (n < d->n_threads)
        n = d->n_threads < least ? d->n_threads : least;
    else if (n % d->n_threads && n < 8 * d->n_threads)
        n += d->n_threads - n % d->n_threads;
    return (struct row_items){rows, n};
}

static int item_begin(const struct row_items *r, int item)
{
    return (int)((int64_t)r->rows * item / r->n);
}

/* ---- embed ---- */

struct embed_call {
    const struct encode_device *d;
    const struct encode_embed *a;
    struct row_items items;
};

static void embed_item(void *ctx, int item, int thread)
{
    const struct embed_call *c = ctx;
    const struct encode_embed *a = c->a;
    int hidden = c->d->opts.hidden, end = item_begin(&c->items, item + 1);
    size_t ld = c->d->ld, row_bytes = dtype_row_bytes(a->word_type, hidden);
    float *sum = c->d->threads[thread].more;
    memset(sum, 0, ld * sizeof *sum);
    for (int r = item_begin(&c->items, item); r < end; r++) {
        const float *position = a->positions + (size_t)a->row_position[r] * ld,
                    *type = a->types + (size_t)a->row_type[r] * ld;
        dtype_to_f32(a->word_type, a->words + (size_t)a->ids[r] * row_bytes, sum, hidden);
        for (int i = 0; i < hidden; i++)
            sum[i] += type[i];
        c->d->kernels->norm(sum, position, &a->norm, hidden, c->d->opts.eps, a->x + (size_t)r * ld);
    }
}

static void embed(struct encode_device *d, const struct encode_embed *a)
{
    struct embed_call c = {d, a, cut_rows(d, a->rows)};
    pool_run(d->pool, c.items.n, embed_item, &c);
}

/* ---- linear ---- */

/* n <= ENCODE_ROWS rows of w's columns to inputs of the thread. */
static void round_rows(const struct encode_device *d, struct encode_thread *t, const struct encode_matrix *w,
                       const float *x, int n)
{
    for (int r = 0; r < n; r++)
        d->kernels->round(x + (size_t)r * (size_t)w->padded_cols, w->padded_cols, &t->inputs, r);
}

/* y = W x of such rows. */
static void multiply(const struct encode_device *d, struct encode_thread *t, const struct encode_matrix *w,
                     const float *x, float *y, int n)
{
    round_rows(d, t, w, x, n);
    d->kernels->linear(w, &t->inputs, n, y, ENCODE_LD(w->rows));
}

struct linear_call {
    const struct encode_device *d;
    const struct encode_matrix *w;
    const float *x;
    float *y;
    struct row_items items;
};

static void linear_item(void *ctx, int item, int thread)
{
    const struct linear_call *c = ctx;
    int first = item_begin(&c->items, item);
    size_t ldx = (size_t)c->w->padded_cols, ldy = ENCODE_LD(c->w->rows);
    multiply(c->d, &c->d->threads[thread], c->w, c->x + (size_t)first * ldx, c->y + (size_t)first * ldy,
             item_begin(&c->items, item + 1) - first);
}

static void linear(struct encode_device *d, const struct encode_matrix *w, const float *x, float *y, int rows)
{
    struct linear_call c = {d, w, x, y, cut_rows(d, rows)};
    ASSERT((size_t)w->padded_cols <= d->ld);
    pool_run(d->pool, c.items.n, linear_item, &c);
}

/* ---- attention ---- */

struct attend_call {
    const struct encode_device *d;
    const struct encode_attend *a;
    int chunks; /* of queries, of the longest sequence */
};

static void attend_item(void *ctx, int item, int thread)
{
    const struct attend_call *c = ctx;
    const struct encode_opts *o = &c->d->opts;
    int per_seq = o->n_heads * c->chunks, seq = item / per_seq, dim = o->hidden / o->n_heads;
    int head = item % per_seq / c->chunks, from = item % c->chunks * ENCODE_QUERIES;
    int row = c->a->row0[seq], n = c->a->row0[seq + 1] - row;
    if (from >= n)
        return;
    size_t ld = ENCODE_LD(3 * o->hidden), column = (size_t)head * (size_t)dim;
    const float *rows = c->a->qkv + (size_t)row * ld + column;
    struct encode_head h = {
        .q = rows + (size_t)from * ld,
        .k = rows + o->hidden,
        .v = rows + 2 * (size_t)o->hidden,
        .ld = ld,
        .o = c->a->o + (size_t)(row + from) * c->d->ld + column,
        .ldo = c->d->ld,
        .n_q = n - from < ENCODE_QUERIES ? n - from : ENCODE_QUERIES,
        .n_keys = n,
        .dim = dim,
        .room = &c->d->threads[thread].head,
    };
    c->d->kernels->head(&h);
}

static void attend(struct encode_device *d, const struct encode_attend *a)
{
    int longest = 0;
    for (int i = 0; i < a->n_seqs; i++)
        longest = a->row0[i + 1] - a->row0[i] > longest ? a->row0[i + 1] - a->row0[i] : longest;
    struct attend_call c = {d, a, (longest + ENCODE_QUERIES - 1) / ENCODE_QUERIES};
    pool_run(d->pool, a->n_seqs * d->opts.n_heads * c.chunks, attend_item, &c);
}

/* ---- the rest of a layer ---- */

struct block_call {
    const struct encode_device *d;
    const struct encode_block *a;
    struct row_items items;
};

static void norms(const struct encode_device *d, float *x, const float *more, const struct encode_norm *norm, int n)
{
    for (int r = 0; r < n; r++)
        d->kernels->norm(x + (size_t)r * d->ld, more + (size_t)r * d->ld, norm, d->opts.hidden, d->opts.eps,
                         x + (size_t)r * d->ld);
}

/* t->more = down gelu(up x), a leaf of the inner columns at a time: they are rounded while they lie in the cache. */
static void feed_forward(const struct encode_device *d, struct encode_thread *t, const struct encode_block *a,
                         const float *x, int n)
{
    int wide = (int)ENCODE_LD(a->up->rows), step = ENCODE_LEAF / ENCODE_GROUP;
    round_rows(d, t, a->up, x, n);
    for (int g = 0; g < a->up->groups; g += step) {
        int end = g + step < a->up->groups ? g + step : a->up->groups, have = (end - g) * ENCODE_GROUP;
        int left = wide - g * ENCODE_GROUP, columns = left < ENCODE_LEAF ? left : ENCODE_LEAF;
        struct encode_matrix part = encode_matrix_part(a->up, g, end);
        d->kernels->linear(&part, &t->inputs, n, t->rows, INNER_LD);
        for (int r = 0; r < n; r++) {
            float *row = t->rows + (size_t)r * INNER_LD;
            memset(row + have, 0, (size_t)(columns - have) * sizeof *row);
            d->kernels->gelu(row, columns, &t->inner, r, g / step);
        }
    }
    d->kernels->linear(a->down, &t->inner, n, t->more, d->ld);
}

static void block_item(void *ctx, int item, int thread)
{
    const struct block_call *c = ctx;
    const struct encode_device *d = c->d;
    const struct encode_block *a = c->a;
    struct encode_thread *t = &d->threads[thread];
    int first = item_begin(&c->items, item), n = item_begin(&c->items, item + 1) - first;
    size_t ld3 = ENCODE_LD(3 * d->opts.hidden);
    float *x = a->x + (size_t)first * d->ld;
    multiply(d, t, a->out, a->o + (size_t)first * d->ld, t->more, n);
    norms(d, x, t->more, &a->norm1, n);
    feed_forward(d, t, a, x, n);
    norms(d, x, t->more, &a->norm2, n);
    if (a->next)
        multiply(d, t, a->next, x, a->qkv + (size_t)first * ld3, n);
}

static void block(struct encode_device *d, const struct encode_block *a)
{
    struct block_call c = {d, a, cut_rows(d, a->rows)};
    pool_run(d->pool, c.items.n, block_item, &c);
}

const struct encode_ops *encode_cpu(void)
{
    static const struct encode_ops ops = {
        .matrix_new = encode_matrix_new,
        .matrix_free = encode_matrix_free,
        .open = device_open,
        .close = device_close,
        .isa = device_isa,
        .embed = embed,
        .linear = linear,
        .attend = attend,
        .block = block,
    };
    return &ops;
}
