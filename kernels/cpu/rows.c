/* The start of a step and the ops that take one row at a time: embed, rope, add, gather. */
#include <math.h>
#include <string.h>

#include "engine/base/check.h"
#include "kernels/cpu/device.h"

enum { ROWS_PER_ITEM = 8 };

/* Angles in double, once for all layers: cos and sin of position * frequency, scaled. */
static void angles_item(void *ctx, int item, int thread)
{
    struct device *d = ctx;
    const struct rope *rope = &d->rope;
    int half = rope->dim / 2, end = (item + 1) * ROWS_PER_ITEM;
    (void)thread;
    for (int r = item * ROWS_PER_ITEM; r < end && r < d->batch->n_rows; r++) {
        float *c = (float *)d->angles.data + (size_t)r * (size_t)rope->dim, *s = c + half;
        for (int i = 0; i < half; i++) {
            double angle = (double)d->batch->positions[r] * (double)rope->inv_freq[i], sine, cosine;
            sincos(angle, &sine, &cosine);
            c[i] = (float)(cosine * (double)rope->scale);
            s[i] = (float)(sine * (double)rope->scale);
        }
    }
}

static int items_of(int rows)
{
    return (rows + ROWS_PER_ITEM - 1) / ROWS_PER_ITEM;
}

/* Which sequence each row of the batch is of, and its angles. False: no memory. */
static bool begin_rows(struct device *d)
{
    const struct batch *b = d->batch;
    const struct rope *rope = &d->rope;
    for (int s = 0; s < b->n_seqs; s++) {
        ASSERT(b->seqs[s].row0 >= 0 && b->seqs[s].row0 + b->seqs[s].n_rows <= b->n_rows);
        for (int i = 0; i < b->seqs[s].n_rows; i++)
            d->row_seq[b->seqs[s].row0 + i] = s;
    }
    ASSERT(rope->dim >= 0 && rope->dim % 2 == 0);
    if (rope->dim == 0)
        return true;
    if (!device_grow(d, &d->angles, (size_t)b->n_rows * (size_t)rope->dim * sizeof(float)))
        return false;
    device_run(d, items_of(b->n_rows), (int64_t)b->n_rows * rope->dim * 20, angles_item, d);
    return true;
}

int cpu_begin(struct device *d, const struct batch *b, const struct rope *rope, struct err *e)
{
    memset(&d->error, 0, sizeof d->error);
    d->begun_ns = clock_now(&d->clock);
    if (b->n_rows > d->opts.max_rows)
        return err_set(e, E_FULL, "a step of %d rows on a device opened for %d", b->n_rows, d->opts.max_rows);
    d->batch = b;
    d->rope = rope ? *rope : (struct rope){0};
    return begin_rows(d) ? 0 : err_set(e, E_FULL, "no memory for the angles of %d rows", b->n_rows);
}

void cpu_begin_part(struct device *d, const struct batch_part *p)
{
    if (device_failed(d))
        return;
    ASSERT(p->n_rows > 0 && p->n_rows <= d->opts.max_rows);
    d->part = *d->batch; /* the step's, or a part's before, which has the same logit rows */
    d->part.n_rows = p->n_rows;
    d->part.ids = NULL;
    d->part.positions = p->positions;
    d->part.n_seqs = p->n_seqs;
    d->part.seqs = p->seqs;
    d->batch = &d->part;
    if (!begin_rows(d))
        device_fail(d, E_FULL, "no memory for the angles of a step");
}

struct embed_call {
    struct device *d;
    struct wview table;
    struct act y;
    int first, n;
};

static void embed_item(void *ctx, int item, int thread)
{
    const struct embed_call *c = ctx;
    const struct batch *b = c->d->batch;
    (void)thread;
    for (int r = item * ROWS_PER_ITEM; r < (item + 1) * ROWS_PER_ITEM && r < c->n; r++) {
        int32_t id = b->ids[c->first + r];
        ASSERT(id >= 0 && id < c->table.rows);
        pack_row_to_f32(c->table.w, c->table.row0 + id, c->table.col0, c->table.cols, act_row(c->y, r));
    }
}

void cpu_embed(struct device *d, struct wview table, struct act y, int first, int n)
{
    struct embed_call c = {d, table, y, first, n};
    if (device_failed(d))
        return;
    ASSERT(first >= 0 && n >= 0 && first + n <= d->batch->n_rows);
    device_run(d, items_of(n), (int64_t)n * table.cols * 2, embed_item, &c);
}

struct rope_call {
    struct device *d;
    const struct rope_args *a;
};

/* (x, y) by the angle: products and sums each rounded, so that no compiler can do otherwise. */
static void rotate(float *x, float *y, float c, float s)
{
    float x0 = *x, y0 = *y;
    *x = x0 * c - y0 * s;
    *y = x0 * s + y0 * c;
}

static void rope_heads(const struct rope_call *c, struct act a, int n_heads, const float *gain, int row)
{
    const struct rope *rope = &c->d->rope;
    int half = rope->dim / 2, dim = c->a->head_dim;
    const float *cosine = (const float *)c->d->angles.data + (size_t)row * (size_t)rope->dim, *sine = cosine + half;
    for (int h = 0; h < n_heads; h++) {
        float *x = act_row(a, row) + (size_t)h * (size_t)dim;
        if (gain)
            c->d->kernels->norm_row(x, gain, dim, c->a->eps, x);
        if (rope->halves)
            for (int i = 0; i < half; i++)
                rotate(x + i, x + half + i, cosine[i], sine[i]);
        else
            for (int i = 0; i < half; i++)
                rotate(x + 2 * i, x + 2 * i + 1, cosine[i], sine[i]);
    }
}

static void rope_item(void *ctx, int item, int thread)
{
    const struct rope_call *c = ctx;
    (void)thread;
    for (int r = item * ROWS_PER_ITEM; r < (item + 1) * ROWS_PER_ITEM && r < c->a->rows; r++) {
        rope_heads(c, c->a->q, c->a->n_heads, c->a->q_gain, r);
        rope_heads(c, c->a->k, c->a->n_kv_heads, c->a->k_gain, r);
    }
}

void cpu_rope(struct device *d, const struct rope_args *a)
{
    struct rope_call c = {d, a};
    if (device_failed(d))
        return;
    ASSERT(d->rope.dim <= a->head_dim && a->rows <= d->batch->n_rows);
    device_run(d, items_of(a->rows), (int64_t)a->rows * (a->n_heads + a->n_kv_heads) * a->head_dim / 2, rope_item, &c);
}

void cpu_gather(struct device *d, struct act x, int row0, struct act y, int first, int n)
{
    if (device_failed(d))
        return;
    ASSERT(first >= 0 && first + n <= d->batch->n_logits);
    for (int i = 0; i < n; i++)
        memcpy(act_row(y, i), act_row(x, d->batch->logit_rows[first + i] - row0), (size_t)x.cols * sizeof(float));
}
