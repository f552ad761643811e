/* The collectives of the CPU backend. Every member reads the buffers that the others publish where they lie; nothing is
 * copied to be sent. */
#include "kernels/cpu/collective.h"

#include <string.h>

#include "engine/base/check.h"

/* SEGMENT floats of a row are added up at a time: the stack of partial sums stays in the L1 cache. */
enum { SEGMENT = 256, MAX_STACK = 20, ROWS_PER_ITEM = 16, UNITS_PER_ITEM = 16, ONESHOT_MOST_BYTES = 32 << 10 };

/* Enters, or aborts on behalf of a device that has failed already. */
static bool enter(struct device *d, struct comm *c, int me, const struct published *s, int *slot)
{
    if (device_failed(d)) {
        rendezvous_abort(c);
        return false;
    }
    if (rendezvous_enter(c, me, s, slot))
        return true;
    device_fail(d, E_PEER, "another rank of the group failed");
    return false;
}

/* ---- exchange */

struct exchange_call {
    const struct exchange_args *a;
    int slot;
};

static int rect_items(const struct comm_rect *r)
{
    return (r->rows + ROWS_PER_ITEM - 1) / ROWS_PER_ITEM;
}

static void take_rows(const struct exchange_call *c, const struct comm_rect *r, int first, int end)
{
    struct act from = rendezvous_published(c->a->comm, r->peer, c->slot)->buffers[r->buffer], to = c->a->dst[r->buffer];
    ASSERT(r->src_col + r->cols <= from.cols && r->dst_col + r->cols <= to.cols);
    for (int i = first; i < end; i++)
        memcpy(act_row(to, r->dst_row + i) + r->dst_col, act_row(from, r->src_row + i) + r->src_col,
               (size_t)r->cols * sizeof(float));
}

static void exchange_item(void *ctx, int item, int thread)
{
    const struct exchange_call *c = ctx;
    const struct comm_rect *r = c->a->rects;
    (void)thread;
    for (; item >= rect_items(r); r++)
        item -= rect_items(r);
    int first = item * ROWS_PER_ITEM, end = first + ROWS_PER_ITEM;
    take_rows(c, r, first, end < r->rows ? end : r->rows);
}

void cpu_exchange(struct device *d, const struct exchange_args *a)
{
    struct published s = {.algorithm = COMM_AUTO};
    struct exchange_call c = {a, 0};
    memcpy(s.buffers, a->src, sizeof s.buffers);
    if (!enter(d, a->comm, a->me, &s, &c.slot))
        return;
    int items = 0;
    int64_t floats = 0;
    for (int i = 0; i < a->n_rects; i++) {
        items += rect_items(&a->rects[i]);
        floats += (int64_t)a->rects[i].rows * a->rects[i].cols;
    }
    device_run(d, items, floats / 4, exchange_item, &c);
}

/* ---- reduce */

struct reduce_call {
    const struct reduce_args *a;
    int slot, row_units; /* units of a row: SEGMENT columns each */
    int unit0, unit1;    /* of this phase */
    bool into_part;
};

static const float *plane_at(const struct reduce_call *c, int plane, int row, int col)
{
    const struct reduce_order *o = c->a->order;
    struct act planes = rendezvous_published(c->a->comm, o->member[plane], c->slot)->buffers[0];
    return act_row(planes, o->index[plane] * c->a->rows + row) + col;
}

static void add_to(float *restrict y, const float *a, const float *b, int n)
{
    for (int i = 0; i < n; i++)
        y[i] = a[i] + b[i];
}

static void put(const struct reduce_call *c, int row, int col, const float *sum, int n)
{
    float *y = act_row(c->into_part ? c->a->part : c->a->y, row) + col;
    if (c->into_part || !c->a->accumulate)
        memcpy(y, sum, (size_t)n * sizeof *y);
    else
        for (int i = 0; i < n; i++)
            y[i] = y[i] + sum[i];
}

/* The sum of one unit, in the order of the summation tree. */
static void sum_unit(const struct reduce_call *c, int unit)
{
    const struct reduce_order *o = c->a->order;
    int row = unit / c->row_units, col = unit % c->row_units * SEGMENT, n = c->a->y.cols - col, depth = 0;
    _Alignas(64) float sums[MAX_STACK][SEGMENT];
    const float *stack[MAX_STACK];
    n = n < SEGMENT ? n : SEGMENT;
    for (int p = 0; p < o->n_planes; p++) {
        ASSERT(depth < MAX_STACK);
        stack[depth++] = plane_at(c, p, row, col);
        for (int k = 0; k < o->adds[p]; k++, depth--) {
            float *to = sums[depth - 2];
            if (stack[depth - 2] == to)
                for (int i = 0; i < n; i++)
                    to[i] = to[i] + stack[depth - 1][i];
            else
                add_to(to, stack[depth - 2], stack[depth - 1], n);
            stack[depth - 2] = to;
        }
    }
    put(c, row, col, stack[0], n);
}

static void sum_item(void *ctx, int item, int thread)
{
    const struct reduce_call *c = ctx;
    int first = c->unit0 + item * UNITS_PER_ITEM, end = first + UNITS_PER_ITEM;
    (void)thread;
    for (int u = first; u < end && u < c->unit1; u++)
        sum_unit(c, u);
}

static int first_unit(int units, int n, int member)
{
    return (int)((int64_t)units * member / n);
}

/* Copies the sums that the members have left in their parts. */
static void take_item(void *ctx, int item, int thread)
{
    const struct reduce_call *c = ctx;
    int n = rendezvous_size(c->a->comm), units = c->unit1, first = item * UNITS_PER_ITEM, end = first + UNITS_PER_ITEM,
        owner = 0;
    (void)thread;
    for (int u = first; u < end && u < units; u++) {
        while (u >= first_unit(units, n, owner + 1))
            owner++;
        int row = u / c->row_units, col = u % c->row_units * SEGMENT, width = c->a->y.cols - col;
        struct act part = rendezvous_published(c->a->comm, owner, c->slot)->buffers[1];
        put(c, row, col, act_row(part, row) + col, width < SEGMENT ? width : SEGMENT);
    }
}

static void run_units(struct device *d, struct reduce_call *c, pool_fn *fn, int planes)
{
    int units = c->unit1 - c->unit0;
    device_run(d, (units + UNITS_PER_ITEM - 1) / UNITS_PER_ITEM, (int64_t)units * SEGMENT * planes / 8, fn, c);
}

void cpu_reduce(struct device *d, const struct reduce_args *a)
{
    struct reduce_call c = {.a = a, .row_units = (a->y.cols + SEGMENT - 1) / SEGMENT};
    struct published s = {.buffers = {a->planes, a->part}, .algorithm = a->algorithm};
    if (!enter(d, a->comm, a->me, &s, &c.slot))
        return;
    int units = a->rows * c.row_units, n = rendezvous_size(a->comm);
    enum comm_algorithm how = rendezvous_published(a->comm, 0, c.slot)->algorithm;
    if (how == COMM_AUTO || how == COMM_LIBRARY)
        how = (size_t)a->rows * (size_t)a->y.cols * sizeof(float) <= ONESHOT_MOST_BYTES ? COMM_ONESHOT : COMM_TWOSHOT;
    c.unit1 = units;
    if (how == COMM_ONESHOT) {
        run_units(d, &c, sum_item, a->order->n_planes);
        return;
    }
    c.into_part = true;
    c.unit0 = first_unit(units, n, a->me);
    c.unit1 = first_unit(units, n, a->me + 1);
    run_units(d, &c, sum_item, a->order->n_planes);
    if (!rendezvous_barrier(a->comm)) {
        device_fail(d, E_PEER, "another rank of the group failed");
        return;
    }
    c.into_part = false;
    c.unit0 = 0;
    c.unit1 = units;
    run_units(d, &c, take_item, 1);
}
