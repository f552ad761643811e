/* Linear layers: the inputs are prepared (norm, SwiGLU, quantising), once or by each thread, then pieces of the outputs
 * are handed out. */
#include <string.h>

#include "engine/base/check.h"
#include "kernels/cpu/coming.h"
#include "kernels/cpu/device.h"

enum { TILE_ROWS = 8 };
enum { LONG_ITEM_NS = 100000, MANY_GROUPS = 6, FEWEST_ROWS = 64, FEW_ROWS = 16 };
enum { LEAST_BAND = 16, FEWEST_OWN = 4 };

/* Inputs as they are multiplied. */
struct inputs {
    float *x;         /* [rows][cols], or NULL when only quantised ones are needed */
    struct qinput in; /* q: or NULL */
    uint16_t *half;   /* or NULL */
};

/* What the items of one call share. */
struct linear_call {
    struct device *d;
    const struct linear_args *a;
    int cols;
    size_t blocks; /* as in struct linear_job */
    struct inputs in;
    bool by_tiles;          /* quantised weights are multiplied by device.tiles */
    int tile_rows;          /* rows that are prepared by one thread: no line of prepared inputs is of two of them */
    size_t own;             /* bytes from one thread's inputs to the next one's; 0: all threads have the same */
    float *temp;            /* [n_threads][cols] */
    struct sum_step *steps; /* one window for all outputs: they share the input */
    struct linear_job job[LINEAR_MAX_OUT];
    int bands, rows_of_band;                      /* of the output phase: the most rows of a band */
    int groups_per_item, rows_of_item, row_items; /* a thread takes some groups for some rows of a band */
    int items[LINEAR_MAX_OUT + 1];                /* first item of each output in a band */
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

static void *moved(void *p, size_t by)
{
    return p ? (uint8_t *)p + by : NULL;
}

static struct inputs inputs_of(const struct linear_call *c, int thread)
{
    size_t by = (size_t)thread * c->own;
    struct inputs in = c->in;
    in.x = moved(in.x, by);
    in.half = moved(in.half, by);
    in.in = (struct qinput){moved(in.in.q, by), moved(in.in.meta, by), moved(in.in.half, by), in.in.tile};
    return in;
}

/* What lanes multiply of the rows that the last tile lacks: whatever lies there may be numbers so small that a product
 * with them takes a hundred cycles. */
static void clear_absent(const struct linear_call *c, struct qinput first)
{
    for (size_t r = (size_t)c->a->rows; r % first.tile; r++) {
        struct qinput in = qinput_at(&first, c->blocks, r, 0, true);
        for (size_t b = 0; b < c->blocks; b++, qinput_next(&in, true)) {
            in.meta[0].f = in.meta[in.tile].f = in.meta[2 * in.tile].f = 0;
            in.half[0] = in.half[in.tile] = 0;
        }
    }
}

static void prepare_rows(const struct linear_call *c, int first, int end, int thread)
{
    const struct linear_args *a = c->a;
    const struct inputs in = inputs_of(c, thread);
    for (int r = first; r < end; r++) {
        const float *x = act_row(a->x, r);
        if (a->in != LINEAR_PLAIN) {
            size_t cols = (size_t)c->cols;
            float *y = in.x ? in.x + (size_t)r * cols : c->temp + (size_t)thread * cols;
            plain_inputs(c, r, y);
            x = y;
        }
        size_t at = quant_at(c->blocks, in.in.tile, (size_t)r);
        bool fast = c->d->opts.fast;
        if (in.half)
            c->d->kernels->round_row(x, c->cols, in.half + at * BLOCK_COLS, in.in.tile);
        if (in.in.q)
            c->d->kernels->quantise_row(x, c->cols, qinput_at(&in.in, c->blocks, (size_t)r, 0, fast), fast);
    }
    if (c->by_tiles && in.in.q && end == a->rows)
        clear_absent(c, in.in);
}

static int tiles_of(const struct linear_call *c)
{
    return (c->a->rows + c->tile_rows - 1) / c->tile_rows;
}

static void input_item(void *ctx, int item, int thread)
{
    const struct linear_call *c = ctx;
    int first = item * c->tile_rows, end = first + c->tile_rows;
    prepare_rows(c, first, end < c->a->rows ? end : c->a->rows, thread);
}

/* The job of an output, with the inputs of this thread, which it may have to prepare: in `own`, or as all have it. */
static const struct linear_job *job_for(const struct linear_call *c, int o, int thread, struct linear_job *own)
{
    struct linear_scratch *s = &c->d->linear[thread];
    if (!c->own)
        return &c->job[o];
    if (s->prepared != c->d->n_linear) {
        prepare_rows(c, 0, c->a->rows, thread);
        s->prepared = c->d->n_linear;
    }
    const struct inputs in = inputs_of(c, thread);
    *own = c->job[o];
    own->in = in.in;
    own->half = in.half;
    own->x = in.x ? in.x : own->x;
    return own;
}

static int groups_of(const struct linear_out *o)
{
    return (o->w.rows + GROUP_ROWS - 1) / GROUP_ROWS;
}

/* Where a band of rows begins: where the lane of input items does, if there are as many. */
static int band_row(const struct linear_call *c, int band)
{
    int row = (int)((int64_t)tiles_of(c) * band / c->bands) * c->tile_rows;
    return row < c->a->rows ? row : c->a->rows;
}

/* Is a matrix multiplied by tiles? */
static bool takes_tiles(const struct linear_call *c, const struct weight *w)
{
    return w->family == FAM_PAIR ? c->d->tiles != NULL : c->by_tiles && !family_is_float(w->family);
}

/* Items lie in memory as the weights do, for one band of rows after another. */
static void output_item(void *ctx, int item, int thread)
{
    const struct linear_call *c = ctx;
    int o = 0, band = item / c->items[c->a->n_out], first = band_row(c, band), last = band_row(c, band + 1);
    item %= c->items[c->a->n_out];
    while (item >= c->items[o + 1])
        o++;
    item -= c->items[o];
    struct linear_job own;
    const struct linear_job *j = job_for(c, o, thread, &own);
    int g = item / c->row_items * c->groups_per_item, left = groups_of(&c->a->out[o]) - g;
    int row = first + item % c->row_items * c->rows_of_item, end = row + c->rows_of_item;
    end = end < last ? end : last;
    left = left < c->groups_per_item ? left : c->groups_per_item;
    linear_fn *linear = takes_tiles(c, j->w) ? c->d->tiles : c->d->kernels->linear;
    for (; row < end; row += ROW_BLOCK)
        linear(j, j->group0 + g, left, row, end - row < ROW_BLOCK ? end - row : ROW_BLOCK, &c->d->linear[thread]);
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
        ASSERT(a->out[i].y.data != a->x.data && (a->in != LINEAR_SWIGLU || a->out[i].y.data != a->x2.data));
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

/* What another thread has read takes as long to write as to compute, so threads share as little as they can. Of many
 * rows each has a band: it multiplies what it has itself prepared, and whatever comes next finds its outputs. That is
 * if there are as many as make up for reading all weights. True: of fewer each prepares all for itself, if that takes
 * at most twice as long as a share; but not of three and less, where others fetch weights while one prepares. */
static bool share_rows(struct linear_call *c)
{
    int threads = pool_threads(c->d->pool), rows = c->a->rows, tiles = tiles_of(c);
    int least = threads * c->tile_rows > LEAST_BAND ? threads * c->tile_rows : LEAST_BAND, bands = rows / least;
    bands = bands < 1 ? 1 : bands > threads ? threads : bands;
    while (threads % bands)
        bands--;
    c->bands = bands;
    c->rows_of_band = bands > 1 ? (tiles + bands - 1) / bands * c->tile_rows : rows;
    int share = (tiles + threads - 1) / threads * c->tile_rows;
    return threads > 1 && bands == 1 && rows >= FEWEST_OWN && rows <= 2 * share;
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
    c->by_tiles = c->d->tiles && c->d->opts.fast && rows >= AMX_ROWS;
    bool large = c->by_tiles || (c->d->tiles && half && !quant);
    c->tile_rows = large ? AMX_TILE : TILE_ROWS;
    size_t tile = large ? AMX_TILE : row_tile(c->d->opts.fast);
    tile = rows < tile ? rows : tile;
    size_t n_blocks = (rows + tile - 1) / tile * tile * c->blocks;
    size_t q = quant ? aligned(n_blocks * quant_block(c->d->opts.fast)) : 0;
    size_t meta = quant ? aligned(3 * n_blocks * sizeof(union qword)) : 0;
    size_t halves = quant ? aligned(2 * n_blocks * sizeof(int32_t)) : 0;
    size_t h = half ? aligned(n_blocks * BLOCK_COLS * sizeof(uint16_t)) : 0;
    size_t x = own_x ? aligned(rows * cols * sizeof(float)) : 0;
    size_t t = temp ? aligned((size_t)pool_threads(c->d->pool) * cols * sizeof(float)) : 0;
    size_t one = q + meta + halves + h + x;
    bool own = share_rows(c);
    c->own = own && quant ? one : 0; /* halves cost little to prepare */
    size_t all = c->own ? one * (size_t)pool_threads(c->d->pool) : one;
    if (!device_grow(c->d, &c->d->inputs, all + t + leaves * sizeof(struct sum_step)))
        return false;
    uint8_t *p = c->d->inputs.data;
    c->temp = (float *)(p + all);
    c->steps = (struct sum_step *)(p + all + t);
    c->in.in = (struct qinput){quant ? (int8_t *)p : NULL, (union qword *)(p + q), (int32_t *)(p + q + meta), tile};
    p += q + meta + halves;
    c->in.half = half ? (uint16_t *)p : NULL;
    c->in.x = own_x ? (float *)(p + h) : NULL;
    return true;
}

static void prepare_inputs(struct linear_call *c)
{
    const struct linear_args *a = c->a;
    c->d->n_linear++;
    if (c->own || (!c->in.in.q && !c->in.half && a->in == LINEAR_PLAIN))
        return;
    int64_t work_ns = (int64_t)a->rows * c->cols * (a->in == LINEAR_SWIGLU ? 3 : 2) / 4;
    device_run(c->d, tiles_of(c), work_ns, input_item, c);
}

static struct linear_job job_of(const struct linear_call *c, const struct linear_out *o)
{
    const struct linear_args *a = c->a;
    int end = o->w.col0 + o->w.cols;
    bool own = c->in.x != NULL;
    return (struct linear_job){
        .w = o->w.w,
        .leaf0 = o->w.col0 / LEAF_COLS,
        .leaf1 = (end + LEAF_COLS - 1) / LEAF_COLS,
        .col0 = o->w.col0,
        .col1 = end,
        .steps = c->steps,
        .in = c->in.in,
        .blocks = c->blocks,
        .fast = c->d->opts.fast,
        .half = c->in.half,
        .half_dots = c->d->half_dots == DOTS_EVERYWHERE || (c->d->half_dots == DOTS_OF_FEW_ROWS && a->rows < TILE_ROWS),
        .x = own ? c->in.x : a->x.data,
        .ldx = own ? (size_t)c->cols : (size_t)a->x.ld,
        .y = o->y.data,
        .ldy = (size_t)o->y.ld,
        .bias = o->bias,
        .group0 = o->w.row0 / GROUP_ROWS,
        .rows_out = o->w.rows,
        .accumulate = a->accumulate,
    };
}

/* So many groups, and multiples, are what a kernel may take at once: three of floats, two of others and by tiles. */
static int groups_at_once(const struct linear_call *c)
{
    const struct linear_args *a = c->a;
    bool floats = false, others = false, tiles = false;
    for (int i = 0; i < a->n_out; i++) {
        const struct weight *w = a->out[i].w.w;
        tiles = tiles || takes_tiles(c, w);
        *(family_is_float(w->family) && !takes_tiles(c, w) ? &floats : &others) = true;
    }
    return a->rows < MAX_TILE && !tiles ? 1 : floats && others ? MANY_GROUPS : floats ? 3 : 2;
}

/* Cuts the outputs into items of a few microseconds: long enough to claim, short enough that a thread which loses its
 * core in one delays the others little. Of many rows an item has as many as leave items enough, since each thread that
 * takes some of a group's rows reads its weights. */
static int64_t cut(struct linear_call *c)
{
    const struct linear_args *a = c->a;
    int rows = c->rows_of_band;
    int64_t groups = 0, wanted = 8 * pool_threads(c->d->pool) / c->bands;
    for (int i = 0; i < a->n_out; i++)
        groups += groups_of(&a->out[i]);
    int wide = groups_at_once(c), most = ROW_BLOCK;
    while (most > FEWEST_ROWS && groups / wide * ((rows + most - 1) / most) < wanted)
        most /= 2; /* many threads */
    int block = rows < most ? rows : most, blocks = (rows + most - 1) / most;
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
    return total_ns * c->bands;
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
    device_run(d, c.bands * c.items[a->n_out], total_ns, output_item, &c);
}
