/* Products of fp8 weights and inputs rounded to fp8, by the library (lt.c). The scales of the input follow those of
 * the weights: one for each row where the weights have one for each row (or one for all), and one for each 128 columns
 * of a row where they have one for each 128 x 128 elements. Weights are multiplied where they lie. Their scales, a few
 * KiB, are brought into the library's form every time, in the launch that makes the input.
 *
 * With scales by blocks the library asks for rows in multiples of ROWS_STEP. For other numbers of rows outputs go
 * through working memory and those that count are added from there: all rows where that moves fewer bytes than the
 * weights have, else only the last few, which are then a product of their own. Bias is added here, too: with fp8
 * factors and f32 outputs the library takes no bias but one of bf16. */
#include "engine/base/check.h"
#include "kernels/cuda/device.h"

enum {
    ROWS_STEP = 8,
    OUTS_STEP = 16,
    MOST_PARTS = 8,
    SUM_BYTES = 64 << 20
}; /* 4 is what the library's documentation asks for; other users of it found 8 to be needed */

static size_t aligned(size_t n)
{
    return (n + HEAP_ALIGN - 1) / HEAP_ALIGN * HEAP_ALIGN;
}

static int up_to(int n, int step)
{
    return (n + step - 1) / step * step;
}

static bool is_even(struct act a)
{
    return (uintptr_t)a.data % 16 == 0 && a.ld % (a.half ? 8 : 4) == 0;
}

enum f8_scales f8_input_scales(const struct device *d, const struct linear_args *a, int i)
{
    struct weight_window w = cuda_window(&a->out[i].w);
    bool inputs = is_even(a->x) && (a->in != LINEAR_SWIGLU || is_even(a->x2)) &&
                  (a->in != LINEAR_NORM || (uintptr_t)a->gain % 16 == 0);
    if (w.p.family != FAM_F8 || !lt_multiplies_f8(d->lt) || !inputs || !is_even(a->out[i].y) || w.rows % OUTS_STEP)
        return F8_BY_64;
    if (w.p.scales == F8_BY_BLOCK && (w.row0 % F8_SCALE_BLOCK || w.col0 % F8_SCALE_BLOCK))
        return F8_BY_64;
    return w.p.scales;
}

/* ---- working memory */

/* An input in fp8, and the weights' scales. */
struct input {
    struct f8_input_job job;
    float *sums; /* [padded - whole][outs of an output]; NULL: all rows are whole */
};

static int most_outs(const struct linear_args *a)
{
    int most = 0;
    for (int i = 0; i < a->n_out; i++)
        most = a->out[i].w.rows > most ? a->out[i].w.rows : most;
    return most;
}

/* So many rows at most have all their outputs pass through working memory: writing and reading them there moves eight
 * bytes each. */
static int most_sums(const struct linear_args *a)
{
    int by_weights = a->x.cols / (2 * (int)sizeof(float)),
        by_room = (int)(SUM_BYTES / ((size_t)most_outs(a) * sizeof(float)));
    return (by_weights < by_room ? by_weights : by_room) / ROWS_STEP * ROWS_STEP;
}

/* Rows from the first on whose outputs the library writes where they belong. */
static int whole_rows(const struct linear_args *a, bool groups)
{
    if (!groups || a->rows % ROWS_STEP == 0)
        return a->rows;
    return a->rows <= most_sums(a) ? 0 : a->rows / ROWS_STEP * ROWS_STEP;
}

/* The maximum over all smaller numbers of rows as well, so that the warm-up of the largest step allocates enough. */
static size_t sum_bytes(const struct linear_args *a)
{
    int rows = up_to(a->rows, ROWS_STEP), most = most_sums(a) > ROWS_STEP ? most_sums(a) : ROWS_STEP;
    return (size_t)(rows < most ? rows : most) * (size_t)most_outs(a) * sizeof(float);
}

/* Bytes of codes, of their scales, of the weights' scales of output i. */
static size_t code_bytes(const struct f8_input_job *j)
{
    return aligned((size_t)j->padded * (size_t)j->ld);
}

static size_t scale_bytes(const struct f8_input_job *j)
{
    return aligned((size_t)j->padded * (size_t)(j->groups ? j->ld / F8_GROUP : 1) * sizeof(float));
}

static size_t weight_bytes(const struct f8_input_job *j, int i)
{
    return aligned((size_t)j->out[i].n * sizeof(float));
}

/* Room for them, side by side. */
static bool place_input(struct device *d, struct f8_input_job *j)
{
    size_t bytes = code_bytes(j) + scale_bytes(j);
    for (int i = 0; i < j->n_out; i++)
        bytes += weight_bytes(j, i);
    if (!gpu_grow(d, &d->work->inputs, bytes))
        return false;
    char *at = d->work->inputs.data;
    j->codes = (uint8_t *)at;
    j->scales = (float *)(at += code_bytes(j));
    at += scale_bytes(j);
    for (int i = 0; i < j->n_out; at += weight_bytes(j, i++))
        j->out[i].to = (float *)at;
    return true;
}

static bool make_input(struct device *d, const struct linear_args *a, bool groups, struct input *in)
{
    int cols = a->x.cols, whole = whole_rows(a, groups), padded = groups ? up_to(a->rows, ROWS_STEP) : a->rows;
    struct f8_input_job *j = &in->job;
    *j = (struct f8_input_job){.x = a->x.data,
                               .x2 = a->in == LINEAR_SWIGLU ? a->x2.data : NULL,
                               .gain = a->in == LINEAR_NORM ? a->gain : NULL,
                               .ldx = a->x.ld,
                               .ldx2 = a->x2.ld,
                               .ld = up_to(cols, F8_GROUP),
                               .rows = a->rows,
                               .cols = cols,
                               .whole = whole,
                               .padded = padded,
                               .eps = a->eps,
                               .half = a->x.half,
                               .groups = groups,
                               .n_out = a->n_out};
    for (int i = 0; i < a->n_out; i++) {
        j->out[i].w = cuda_window(&a->out[i].w);
        j->out[i].n = f8_scales_count(&j->out[i].w);
    }
    if (!place_input(d, j) || !gpu_grow(d, &d->work->workspace, lt_workspace()))
        return false;
    if (groups && !gpu_grow(d, &d->work->wide, sum_bytes(a)))
        return false;
    in->sums = whole < padded ? d->work->wide.data : NULL;
    return gpu_launched(d, launch_f8_input(d->stream, j), "inputs in fp8");
}

/* ---- an output */

/* Its product for the whole rows, or for those behind them. */
static struct lt_product product_of(const struct linear_args *a, const struct input *in, int i, bool behind)
{
    const struct f8_input_job *j = &in->job;
    const struct weight_window *w = &j->out[i].w;
    const struct act *y = &a->out[i].y;
    int first = behind ? j->whole : 0, rows = behind ? j->padded - j->whole : j->whole;
    int64_t scales = !j->groups ? first : (int64_t)first * (j->ld / F8_GROUP);
    return (struct lt_product){.w = (const uint8_t *)w->p.q + (int64_t)w->row0 * w->p.cols + w->col0,
                               .x = j->codes + (int64_t)first * j->ld,
                               .w_scales = j->out[i].to,
                               .x_scales = j->scales + scales,
                               .y = behind ? (void *)in->sums : y->data,
                               .outs = w->rows,
                               .cols = w->cols,
                               .rows = rows,
                               .ldw = w->p.cols,
                               .ldx = j->ld,
                               .ldy = behind ? w->rows : y->ld,
                               .factors = j->groups ? LT_F8_BLOCKS : LT_F8_ROWS,
                               .accumulate = !behind && a->accumulate,
                               .half = !behind && y->half};
}

static void *row_at(struct act a, int row)
{
    return (char *)a.data + (size_t)row * (size_t)a.ld * (a.half ? sizeof(uint16_t) : sizeof(float));
}

static void settle(struct device *d, const struct linear_args *a, const struct input *in, int i)
{
    const struct linear_out *o = &a->out[i];
    int whole = in->job.whole;
    struct f8_epilogue_job add = {
        .bias = o->bias, .y = o->y.data, .ldy = o->y.ld, .rows = whole, .cols = o->w.rows, .accumulate = true};
    struct f8_epilogue_job rest = {.t = in->sums,
                                   .bias = o->bias,
                                   .y = row_at(o->y, whole),
                                   .ldt = o->w.rows,
                                   .ldy = o->y.ld,
                                   .rows = a->rows - whole,
                                   .cols = o->w.rows,
                                   .accumulate = a->accumulate,
                                   .half = o->y.half};
    if (whole && o->bias)
        gpu_launched(d, launch_f8_epilogue(d->stream, &add), "bias");
    if (in->sums)
        gpu_launched(d, launch_f8_epilogue(d->stream, &rest), "sums");
}

/* Columns of part `part` of n, which has some. */
static struct lt_product part_of(const struct lt_product *whole, int part, int n)
{
    struct lt_product p = *whole;
    int each = up_to((p.cols + n - 1) / n, F8_GROUP), first = part * each;
    p.w = (const uint8_t *)p.w + first;
    p.x = (const uint8_t *)p.x + first;
    p.cols = p.cols - first < each ? p.cols - first : each;
    p.accumulate = p.accumulate || part > 0;
    return p;
}

/* In how many parts the library takes it; 0: it does not. It has refused products of many columns and few rows with
 * scales by rows (9216 columns and up to 256 rows on an H100: issue 4582 of pytorch/ao). These scales are those of any
 * part of the columns, so such parts are products whose sums add up; where results are bf16 each is rounded so,
 * which is little beside inputs of fp8. */
static int parts_of(const struct device *d, const struct lt_product *p)
{
    int most = p->factors == LT_F8_ROWS ? MOST_PARTS : 1;
    for (int n = 1; n <= most && p->cols > (n - 1) * up_to((p->cols + n - 1) / n, F8_GROUP); n *= 2) {
        int taken = 0;
        for (struct lt_product part; taken < n; taken++) {
            part = part_of(p, taken, n);
            if (!lt_can(d->lt, &part))
                break;
        }
        if (taken == n)
            return n;
    }
    return 0;
}

/* False: nothing is done. */
static bool multiply_parts(struct device *d, const struct lt_product *p, int n)
{
    for (int i = 0; i < n; i++) {
        struct lt_product part = part_of(p, i, n);
        if (lt_multiply(d->lt, d->stream, &part, d->work->workspace.data))
            continue;
        if (i > 0)
            gpu_fail(d, E_DEVICE, "cuBLASLt took the first columns of a product and refused others");
        return i > 0;
    }
    return true;
}

/* False: the library refuses, and y is unchanged. */
static bool multiply(struct device *d, const struct linear_args *a, const struct input *in, int i)
{
    struct lt_product whole = product_of(a, in, i, false), behind = product_of(a, in, i, true);
    int parts = whole.rows ? parts_of(d, &whole) : 0;
    d->after_kernel = false; /* the library may do more than launch kernels */
    if ((whole.rows && !parts) || (behind.rows && !lt_can(d->lt, &behind)))
        return false;
    if (behind.rows && !lt_multiply(d->lt, d->stream, &behind, d->work->workspace.data))
        return false;
    if (!multiply_parts(d, &whole, parts))
        return false;
    settle(d, a, in, i);
    return true;
}

void cuda_f8_product(struct device *d, const struct linear_args *a, bool done[LINEAR_MAX_OUT])
{
    struct input in = {0};
    for (int i = 0; i < a->n_out; i++)
        done[i] = false;
    if (!make_input(d, a, f8_input_scales(d, a, 0) == F8_BY_BLOCK, &in))
        return;
    for (int i = 0; i < a->n_out && !gpu_failed(d); i++)
        done[i] = multiply(d, a, &in, i);
}
