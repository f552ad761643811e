/* The ops of draft heads on a CPU: one row is one item. Plain C without twins, so every machine of a kind does the
 * same. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "engine/base/check.h"
#include "kernels/cpu/device.h"

static bool well(const struct device *d)
{
    return !device_failed(d);
}

static void norm(struct device *d, struct act x, const float *gain, float eps, struct act y, int rows)
{
    for (int r = 0; r < rows && !device_failed(d); r++)
        d->kernels->norm_row(act_row(x, r), gain, x.cols, eps, act_row(y, r));
}

/* ---- the cell */

static float gelu(float x)
{
    return 0.5f * x * (1 + erff(x * 0.70710678f));
}

static float sigmoid(float x)
{
    return 1 / (1 + expf(-x));
}

/* y = gelu(x / rms(x) * gain + bias); y may be x. */
static void gelu_norm(const float *x, const struct draft_gain *g, int n, float eps, float *y)
{
    double squares = 0;
    for (int i = 0; i < n; i++)
        squares += (double)x[i] * (double)x[i];
    float scale = (float)(1 / sqrt(squares / n + (double)eps));
    for (int i = 0; i < n; i++)
        y[i] = gelu(x[i] * scale * g->gain[i] + g->bias[i]);
}

struct cell_call {
    struct device *d;
    const struct draft_cell_args *a;
    float *room; /* [rows][n] */
};

/* z += weight * the token's row */
static void add_token(const struct cell_call *c, int gate, int row)
{
    const struct draft_cell_args *a = c->a;
    float *z = act_row(a->z[gate], row), *e = c->room + (size_t)row * (size_t)a->n;
    size_t bytes = dtype_row_bytes(a->types[gate], a->n);
    dtype_to_f32(a->types[gate], (const uint8_t *)a->tables[gate] + (size_t)a->ids[row] * bytes, e, a->n);
    for (int i = 0; i < a->n; i++)
        z[i] += a->weight * e[i];
}

static void cell_item(void *ctx, int row, int thread)
{
    const struct cell_call *call = ctx;
    const struct draft_cell_args *a = call->a;
    float *h = act_row(a->h, row);
    (void)thread;
    for (int g = 0; g < a->n_gates; g++)
        add_token(call, g, row);
    if (a->n_gates == 1) {
        gelu_norm(act_row(a->z[0], row), &a->norm, a->n, a->eps, h);
        return;
    }
    const float *forget = act_row(a->z[0], row), *input = act_row(a->z[1], row), *output = act_row(a->z[2], row);
    float *next = act_row(a->z[3], row), *c = act_row(a->c, row);
    gelu_norm(next, &a->norm, a->n, a->eps, next);
    for (int i = 0; i < a->n; i++)
        c[i] = c[i] * sigmoid(forget[i]) + next[i] * sigmoid(input[i]);
    gelu_norm(c, &a->state_norm, a->n, a->eps, h);
    for (int i = 0; i < a->n; i++)
        h[i] *= sigmoid(output[i]);
}

static void cell(struct device *d, const struct draft_cell_args *a)
{
    struct cell_call c = {.d = d, .a = a};
    if (device_failed(d) || !device_grow(d, &d->inputs, (size_t)a->rows * (size_t)a->n * sizeof(float)))
        return;
    ASSERT(a->n_gates == 1 || a->n_gates == DRAFT_GATES);
    c.room = d->inputs.data;
    device_run(d, a->rows, (int64_t)a->rows * a->n * a->n_gates * 10, cell_item, &c);
}

/* ---- the guess */

struct top_call {
    struct act logits;
    int vocab;
    int32_t *ids;
    float *shares;
};

static void top_item(void *ctx, int row, int thread)
{
    const struct top_call *c = ctx;
    const float *x = act_row(c->logits, row);
    double sum = 0;
    int best = -1;
    (void)thread;
    for (int i = 0; i < c->vocab; i++) /* no comparison with NaN is true */
        if (best < 0 ? x[i] > -INFINITY : x[i] > x[best])
            best = i;
    c->ids[row] = best;
    c->shares[row] = 0;
    if (best < 0)
        return;
    float most = fminf(x[best], FLT_MAX);
    for (int i = 0; i < c->vocab; i++)
        if (x[i] > -INFINITY)
            sum += (double)expf(fminf(x[i], FLT_MAX) - most);
    c->shares[row] = (float)(1 / sum);
}

static void top(struct device *d, struct act logits, int vocab, int rows, int32_t *ids, float *shares)
{
    struct top_call c = {logits, vocab, ids, shares};
    if (!device_failed(d))
        device_run(d, rows, (int64_t)rows * vocab * 3, top_item, &c);
}

const struct draft_ops *cpu_draft(void)
{
    static const struct draft_ops ops = {.well = well, .norm = norm, .cell = cell, .top = top};
    return &ops;
}
