/* Linear layers: prepares the inputs once (norm, SwiGLU, quantising), then hands out pieces of the outputs. */
#include <string.h>

#include "engine/base/check.h"
#include "kernels/cpu/coming.h"
#include "kernels/cpu/device.h"

enum { LONG_ITEM_NS = 100000, MANY_GROUPS = 6, FEWEST_ROWS = 64, FEW_ROWS = 16 };

/* What the items of one call share. */
struct linear_call {
    struct device *d;
    const struct linear_args *a;
    int cols, rows_per_item; /* of the input phase */
    float *x;                /* [rows][cols] inputs as floats, or NULL when only quantised ones are needed */
    size_t ldx;
    size_t blocks;          /* as in struct linear_job */
    struct qinput in;       /* q: or NULL */
    uint16_t *half;         /* or NULL */
    float *temp;            /* [n_threads][cols] */
    struct sum_step *steps; /* one window for all outputs: they share the input */
    struct linear_job job[LINEAR_MAX_OUT];
    int groups_per_item, rows_of_item, row_items; /* of the output phase: a thread takes some groups for some rows */
    int items[LINEAR_MAX_OUT + 1];                /* first item of each output */
};

/* The steps that add leaves [leaf0, leaf1) in the tree over absolute leaf indices. */
static void plan_sum(int leaf0, int leaf1, struct sum_step *steps)
{
    for (int i = leaf0; i < leaf1; i++) {
        struct sum_step s = {0, -1};
        for (int level = 0; level < MAX_LEVELS; level++) {
            int node = i >> level;
            if (node % 2) { /* a right child: its left sibling is stored, if the window has any of it */
                if (node << level > leaf0)
                    s.add |= 1u << level;
            } else if (i + 1 < leaf1) {
                s.level = level;
                break;
            }
        }
        steps[i - leaf0] = s;
    }
}

static void plain_inputs(const struct linear_call *c, int row, float *y)
{
    const struct linear_args *a = c->a;
    const struct cpu_kernels *k = c->d->kernels;
    if (a->in == LINEAR_NORM)
        k->norm_row(act_row(a->x, row), a->gain, c->cols, a->eps, y);
    else
        k->swiglu_row(act_row(a->x, row), act_row(a->x2, row), c->cols, y);
}

static void input_item(void *ctx, int item, int thread)
{
    const struct linear_call *c = ctx;
    const struct linear_args *a = c->a;
    int first = item * c->rows_per_item, end = first + c->rows_per_item;
    end = end < a->rows ? end : a->rows;
    for (int r = first; r < end; r++) {
        const float *x = act_row(a->x, r);
        if (a->in != LINEAR_PLAIN) {
            float *y = c->x ? c->x + (size_t)r * c->ldx : c->temp + (size_t)thread * (size_t)c->cols;
            plain_inputs(c, r, y);
            x = y;
        }
        size_t at = quant_at(c->blocks, c->in.tile, (size_t)r);
        bool fast = c->d->opts.fast;
        if (c->half)
            c->d->kernels->round_row(x, c->cols, c->half + at * BLOCK_COLS, c->in.tile);
        if (c->in.q)
            c->d->kernels->quantise_row(x, c->cols, qinput_at(&c->in, c->blocks, (size_t)r, 0, fast), fast);
    }
}

static int groups_of(const struct linear_out *o)
{
    return (o->w.rows + GROUP_ROWS - 1) / GROUP_ROWS;
}

/* Items lie in memory as the weights do. */
static void output_item(void *ctx, int item, int thread)
{
    const struct linear_call *c = ctx;
    int o = 0;
    while (item >= c->items[o + 1])
        o++;
    item -= c->items[o];
    const struct linear_job *j = &c->job[o];
    int g = item / c->row_items * c->groups_per_item, left = groups_of(&c->a->out[o]) - g;
    int row = item % c->row_items * c->rows_of_item, end = row + c->rows_of_item;
    end = end < c->a->rows ? end : c->a->rows;
    left = left < c->groups_per_item ? left : c->groups_per_item;
    for (; row < end; row += ROW_BLOCK)
        c->d->kernels->linear(j, j->group0 + g, left, row, end - row < ROW_BLOCK ? end - row : ROW_BLOCK,
                              &c->d->linear[thread]);
}

/* Why these arguments cannot run, or NULL. */
static const char *refusal(const struct linear_args *a)
{
    const struct wview *first = &a->out[0].w;
    for (int i = 0; i < a->n_out; i++) {
        const struct wview *v = &a->out[i].w;
        if (!v->w)
            return "these weights do not lie on this rank";
        ASSERT(v->row0 >= 0 && v->rows > 0 && v->row0 + v->rows <= v->w->rows);
        ASSERT(v->col0 >= 0 && v->cols > 0 && v->col0 + v->cols <= v->w->cols && v->cols == a->x.cols);
        if (v->row0 % GROUP_ROWS)
            return "a weight window starts at a row that is not a multiple of 16";
        if (v->col0 % LEAF_COLS || ((v->col0 + v->cols) % LEAF_COLS && v->col0 + v->cols != v->w->cols))
            return "a weight window starts or ends at a column that is not a multiple of 64";
        if (v->col0 != first->col0 || v->w->cols != first->w->cols)
            return "weights that share an input must share their columns";
    }
    return NULL;
}

static size_t aligned(size_t n)
{
    return (n + 63) & ~(size_t)63;
}

/* Lays the call's working memory out. */
static bool reserve(struct linear_call *c)
{
    const struct linear_args *a = c->a;
    bool quant = false, plain = false, half = false;
    for (int i = 0; i < a->n_out; i++) {
        enum family f = a->out[i].w.w->family;
        half = half || f == FAM_PAIR;
        plain = plain || (family_is_float(f) && f != FAM_PAIR);
        quant = quant || !family_is_float(f);
    }
    size_t rows = (size_t)a->rows, cols = (size_t)c->cols, leaves = cols / LEAF_COLS + 2;
    bool own_x = plain && a->in != LINEAR_PLAIN, temp = !plain && a->in != LINEAR_PLAIN;
    c->blocks = (cols + BLOCK_COLS - 1) / BLOCK_COLS;
    size_t tile = row_tile(c->d->opts.fast);
    tile = rows < tile ? rows : tile;
    size_t n_blocks = (rows + tile - 1) / tile * tile * c->blocks;
    size_t q = quant ? aligned(n_blocks * quant_block(c->d->opts.fast)) : 0;
    size_t meta = quant ? aligned(3 * n_blocks * sizeof(union qword)) : 0;
    size_t halves = quant ? aligned(2 * n_blocks * sizeof(int32_t)) : 0;
    size_t h = half ? aligned(n_blocks * BLOCK_COLS * sizeof(uint16_t)) : 0;
    size_t x = own_x ? aligned(rows * cols * sizeof(float)) : 0;
    size_t t = temp ? aligned((size_t)pool_threads(c->d->pool) * cols * sizeof(float)) : 0;
    if (!device_grow(c->d, &c->d->inputs, q + meta + halves + h + x + t + leaves * sizeof(struct sum_step)))
        return false;
    uint8_t *p = c->d->inputs.data;
    c->in = (struct qinput){quant ? (int8_t *)p : NULL, (union qword *)(p + q), (int32_t *)(p + q + meta), tile};
    p += q + meta + halves;
    c->half = half ? (uint16_t *)p : NULL;
    p += h;
    c->x = own_x ? (float *)p : NULL;
    c->temp = (float *)(p + x);
    c->steps = (struct sum_step *)(p + x + t);
    c->ldx = cols;
    return true;
}

static void prepare_inputs(struct linear_call *c)
{
    const struct linear_args *a = c->a;
    if (!c->in.q && !c->half && a->in == LINEAR_PLAIN)
        return;
    int64_t ns_per_row = c->cols / (a->in == LINEAR_SWIGLU ? 2 : 4);
    c->rows_per_item = (int)(20000 / (ns_per_row + 1)) + 1;
    if (c->rows_per_item > 16)
        c->rows_per_item = 16;
    int items = (a->rows + c->rows_per_item - 1) / c->rows_per_item;
    device_run(c->d, items, items > 1 ? ns_per_row * a->rows : 0, input_item, c);
}

static struct linear_job job_of(const struct linear_call *c, const struct linear_out *o)
{
    const struct linear_args *a = c->a;
    int end = o->w.col0 + o->w.cols;
    bool own = c->x != NULL;
    return (struct linear_job){
        .w = o->w.w,
        .leaf0 = o->w.col0 / LEAF_COLS,
        .leaf1 = (end + LEAF_COLS - 1) / LEAF_COLS,
        .col0 = o->w.col0,
        .col1 = end,
        .steps = c->steps,
        .in = c->in,
        .blocks = c->blocks,
        .fast = c->d->opts.fast,
        .half = c->half,
        .half_dots = c->d->half_dots,
        .x = own ? c->x : a->x.data,
        .ldx = own ? c->ldx : (size_t)a->x.ld,
        .y = o->y.data,
        .ldy = (size_t)o->y.ld,
        .bias = o->bias,
        .group0 = o->w.row0 / GROUP_ROWS,
        .rows_out = o->w.rows,
        .accumulate = a->accumulate,
    };
}

/* So many groups, and multiples, are what a kernel may take at once: three of floats, two of others. */
static int groups_at_once(const struct linear_args *a)
{
    bool floats = false, others = false;
    for (int i = 0; i < a->n_out; i++)
        *(family_is_float(a->out[i].w.w->family) ? &floats : &others) = true;
    return a->rows < MAX_TILE ? 1 : floats && others ? MANY_GROUPS : floats ? 3 : 2;
}

/* Cuts the outputs into items of a few microseconds: long enough to claim, short enough that a thread which loses its
 * core in one delays the others little. Of many rows an item has as many as leave items enough, since each thread that
 * takes some of a group's rows reads its weights. */
static int64_t cut(struct linear_call *c)
{
    const struct linear_args *a = c->a;
    int64_t groups = 0, wanted = 8 * pool_threads(c->d->pool);
    for (int i = 0; i < a->n_out; i++)
        groups += groups_of(&a->out[i]);
    int wide = groups_at_once(a), most = ROW_BLOCK;
    while (most > FEWEST_ROWS && groups / wide * ((a->rows + most - 1) / most) < wanted)
        most /= 2; /* many threads */
    int block = a->rows < most ? a->rows : most, blocks = (a->rows + most - 1) / most;
    int64_t group_ns = (int64_t)c->cols * GROUP_ROWS * (2 + block) / 120 + 1; /* one group, one row block */
    int64_t total_ns = groups * group_ns * blocks, target_ns = total_ns / wanted;
    target_ns = target_ns < 1000 ? 1000 : target_ns > 30000 ? 30000 : target_ns;
    if (wide > 1 && groups / MANY_GROUPS * blocks >= wanted) /* more of them read inputs that are in the cache */
        wide = MANY_GROUPS;
    c->groups_per_item = (int)(target_ns / group_ns) / wide * wide + wide;
    int together = (int)(LONG_ITEM_NS / (group_ns * c->groups_per_item)) + 1;
    while (together > 1 && groups / c->groups_per_item * ((blocks + together - 1) / together) < wanted)
        together = (together + 1) / 2;
    c->rows_of_item = together * most;
    c->row_items = (blocks + together - 1) / together;
    for (int i = 0; i < a->n_out; i++) {
        int items = (groups_of(&a->out[i]) + c->groups_per_item - 1) / c->groups_per_item;
        c->items[i + 1] = c->items[i] + items * c->row_items;
    }
    return total_ns;
}

/* What a thread reads first, where its groups lie one behind the other: of a view of all columns. */
static struct span span_of(const struct linear_call *c, int thread)
{
    int n = c->items[c->a->n_out], item = pool_lane(c->d->pool, n, thread), end = pool_lane(c->d->pool, n, thread + 1),
        o = 0;
    if (item == n)
        return (struct span){0};
    while (item >= c->items[o + 1])
        o++;
    const struct wview *v = &c->a->out[o].w;
    end = (end < c->items[o + 1] ? end : c->items[o + 1]) - c->items[o];
    int first = (item - c->items[o]) * c->groups_per_item, groups = groups_of(&c->a->out[o]);
    end = end * c->groups_per_item < groups ? end * c->groups_per_item : groups;
    size_t at = (size_t)(v->row0 / GROUP_ROWS + first) * v->w->group_bytes;
    return (struct span){v->w->data + at, v->cols == v->w->cols ? (size_t)(end - first) * v->w->group_bytes : 0};
}

/* Of few rows, whose time is that of their weights. */
static void note_coming(struct linear_call *c)
{
    struct span *spans = coming_spans(c->d->coming);
    bool few = c->a->rows <= FEW_ROWS;
    for (int t = 0; t < pool_threads(c->d->pool) && few; t++)
        spans[t] = span_of(c, t);
    coming_note(c->d->coming, few);
}

void cpu_linear(struct device *d, const struct linear_args *a)
{
    struct linear_call c = {.d = d, .a = a, .cols = a->x.cols};
    if (device_failed(d) || a->rows <= 0)
        return;
    const char *why = refusal(a);
    if (why) {
        device_fail(d, E_UNSUPPORTED, why);
        return;
    }
    if (!reserve(&c))
        return;
    for (int i = 0; i < a->n_out; i++)
        c.job[i] = job_of(&c, &a->out[i]);
    plan_sum(c.job[0].leaf0, c.job[0].leaf1, c.steps);
    prepare_inputs(&c);
    int64_t total_ns = cut(&c);
    note_coming(&c);
    device_run(d, c.items[a->n_out], total_ns, output_item, &c);
}
