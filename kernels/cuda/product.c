/* Linear layers of the default mode.
 *
 * - Few rows: one launch for all outputs that share the input and the type, or skinny_mixes (skinny.cu up to 8 rows,
 *   by lean.cu those of 8 bits and fewer, slim.cu up to 64), which also gates the two of an FFN.
 * - Many rows: the input is rounded to 16 bits once, then the library multiplies (lt.c).
 * - Many rows, quantised weights: tiles that widen the weights on the way (tile.cu). With so many rows that the
 *   library's rate makes up for it, weights are widened a piece at a time for the library instead (widen.cu).
 * - Many rows, fp8 weights: multiplied with fp8 inputs where the library can (product_f8.c).
 *
 * Without the library tiles do it all. F32 weights go through the invariant kernels, which are slow enough for a rare
 * case only.
 *
 * How many rows are few and many is a rule by estimate, which trials at start correct for each shape (tuning.c). What
 * is rounded does not depend on it: fp8 inputs are for F8_ROWS and more, outputs in bf16 for more than SLIM_ROWS,
 * whatever is faster. (lean.cu keeps more bits of an input than slim.cu: where kernels begin early only lean.cu has up
 * to 8 rows.)
 * Where weights are f16 nothing between two products is bf16, which is coarser. */
#include "engine/base/check.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/fast.h"
#include "kernels/cuda/trial.h"

enum {
    LIBRARY_ROWS = 17, /* from here on the library multiplies weights of 16 bits faster than slim.cu (H100) */
    F8_ROWS = 33,      /* from here on inputs of fp8 weights are rounded to fp8 */
    WIDEN_ROWS = 128,  /* from here on widening (4.6 bytes a weight) costs less than the tiles' lower rate (H100) */
    WIDEN_BYTES = 64 << 20,
};

static size_t aligned(size_t n)
{
    return (n + HEAP_ALIGN - 1) / HEAP_ALIGN * HEAP_ALIGN;
}

static enum family family_of(const struct linear_args *a, int i)
{
    return cuda_window(&a->out[i].w).p.family;
}

/* As f8_input_scales, but few rows never are. */
static enum f8_scales way_of(const struct device *d, const struct linear_args *a, int i)
{
    return a->rows >= F8_ROWS ? f8_input_scales(d, a, i) : F8_BY_64;
}

/* ---- few rows */

/* silu(x) * x2 of the input, by itself. */
static bool make_swiglu(struct device *d, const struct linear_args *a, struct act *x)
{
    int cols = a->x.cols, ld = (cols + 15) / 16 * 16;
    if (!gpu_grow(d, &d->work->inputs, (size_t)a->rows * (size_t)ld * sizeof(float)))
        return false;
    struct swiglu_job j = {.x = a->x.data,
                           .x2 = a->x2.data,
                           .y = d->work->inputs.data,
                           .ldx = a->x.ld,
                           .ldx2 = a->x2.ld,
                           .ldy = ld,
                           .rows = a->rows,
                           .cols = cols,
                           .half = a->x.half};
    *x = (struct act){d->work->inputs.data, cols, ld, false};
    return gpu_launched(d, launch_swiglu(d->stream, &j), "swiglu");
}

/* fills: how many parts there are for each place on the device. */
static void multiply_slim(struct device *d, const struct skinny_job *j, int fills)
{
    struct slim_room r;
    size_t floats, counters;
    slim_cut(j, fills * d->n_sms, &r);
    slim_needs(j, fills * d->n_sms, &floats, &counters);
    if (!gpu_grow(d, &d->work->partial, floats * sizeof(float)) || !gpu_counters(d, counters))
        return;
    r.partial = d->work->partial.data;
    r.arrived = d->work->arrived.data;
    gpu_launched(d, launch_slim(d->stream, j, &r), "linear");
}

static struct skinny_job few_job(const struct device *d, const struct linear_args *a, struct act x)
{
    struct skinny_job j = {.in = a->in == LINEAR_NORM ? SKINNY_NORM : SKINNY_PLAIN,
                           .x = x.data,
                           .ldx = x.ld,
                           .gain = a->gain,
                           .eps = a->eps,
                           .rows = a->rows,
                           .n_out = a->n_out,
                           .places = SKINNY_CTAS * d->n_sms,
                           .shared = d->cta_shared,
                           .accumulate = a->accumulate,
                           .gated = a->gated};
    for (int i = 0; i < a->n_out; i++) {
        const struct linear_out *o = &a->out[i];
        j.out[i] = (struct skinny_out){.w = cuda_window(&o->w), .bias = o->bias, .y = o->y.data, .ldy = o->y.ld};
    }
    return j;
}

/* Where parts of the columns leave their sums. */
static bool find_lean_room(struct device *d, struct skinny_job *j)
{
    size_t floats = 0, counters = 0;
    if (j->out[0].w.p.family > FAM_BF16)
        lean_needs(j, &floats, &counters);
    if (counters && (!gpu_grow(d, &d->work->partial, floats * sizeof(float)) || !gpu_counters(d, counters)))
        return false;
    j->partial = d->work->partial.data;
    j->arrived = d->work->arrived.data;
    return true;
}

/* Does filling the device twice cut the columns into more parts? */
static bool cuts_finer(const struct device *d, const struct linear_args *a)
{
    struct skinny_job j = few_job(d, a, a->x);
    struct slim_room once, twice;
    slim_cut(&j, d->n_sms, &once);
    slim_cut(&j, 2 * d->n_sms, &twice);
    return twice.n_parts > once.n_parts;
}

static void multiply_few(struct device *d, const struct linear_args *a, enum product_way way)
{
    struct act x = a->x;
    if (a->in == LINEAR_SWIGLU && !make_swiglu(d, a, &x))
        return;
    struct skinny_job j = few_job(d, a, x);
    if (way != WAY_SKINNY) {
        multiply_slim(d, &j, way == WAY_SLIM_FINER ? 2 : 1);
        return;
    }
    if (!find_lean_room(d, &j))
        return;
    j.pdl = gpu_begins_early(d);
    gpu_launched(d, launch_skinny(d->stream, &j), "linear");
}

/* ---- many rows */

static int narrow_ld(const struct linear_args *a)
{
    return (a->x.cols + FAST_PAD - 1) / FAST_PAD * FAST_PAD;
}

static bool narrow_room(struct device *d, const struct linear_args *a)
{
    return gpu_grow(d, &d->work->inputs, aligned((size_t)a->rows * (size_t)narrow_ld(a) * sizeof(uint16_t)));
}

/* Inputs that are in 16 bits already, as tiles read them. */
static bool is_narrow(const struct linear_args *a, bool f16)
{
    return a->x.half && a->in == LINEAR_PLAIN && !f16 && a->x.cols % LEAF_COLS == 0 && a->x.ld % 8 == 0;
}

/* Inputs in 16 bits. */
static bool narrow(struct device *d, const struct linear_args *a, bool f16, struct fast_job *to)
{
    int ld = narrow_ld(a);
    if (is_narrow(a, f16)) {
        to->x = a->x.data;
        to->ldx = a->x.ld;
        return true;
    }
    if (!narrow_room(d, a))
        return false;
    to->x = d->work->inputs.data;
    to->ldx = ld;
    struct narrow_job j = {.x = a->x.data,
                           .x2 = a->in == LINEAR_SWIGLU ? a->x2.data : NULL,
                           .gain = a->in == LINEAR_NORM ? a->gain : NULL,
                           .y = d->work->inputs.data,
                           .ldx = a->x.ld,
                           .ldx2 = a->x2.ld,
                           .ldy = ld,
                           .rows = a->rows,
                           .cols = a->x.cols,
                           .eps = a->eps,
                           .half = a->x.half,
                           .f16 = f16};
    return gpu_launched(d, launch_narrow(d->stream, &j), "narrow");
}

/* A matrix in 16 bits, for the library's proposal of that number. */
struct wide {
    const uint16_t *w; /* NULL: tiles */
    int ld, proposal;
};

/* By the library, or by tiles when it is absent or refuses. */
static void multiply_wide(struct device *d, const struct fast_job *j, const struct wide *by)
{
    struct lt_product p = {.w = by->w,
                           .x = j->x,
                           .bias = j->bias,
                           .y = j->y,
                           .outs = j->w.rows,
                           .cols = j->w.cols,
                           .rows = j->rows,
                           .ldw = by->ld,
                           .ldx = j->ldx,
                           .ldy = j->ldy,
                           .factors = j->w.p.family == FAM_F16 ? LT_F16 : LT_BF16,
                           .accumulate = j->accumulate,
                           .half = j->half,
                           .proposal = by->proposal};
    d->after_kernel = false; /* the library may do more than launch kernels */
    if (by->w && d->lt && gpu_grow(d, &d->work->workspace, lt_workspace()) &&
        lt_multiply(d->lt, d->stream, &p, d->work->workspace.data))
        return;
    if (!gpu_failed(d))
        gpu_launched(d, launch_tile(d->stream, j), "linear");
}

static void multiply_widened(struct device *d, const struct fast_job *all)
{
    int most = (int)(WIDEN_BYTES / ((size_t)all->w.cols * sizeof(uint16_t))) / LEAF_COLS * LEAF_COLS;
    if (!gpu_grow(d, &d->work->wide, WIDEN_BYTES))
        return;
    for (int first = 0; first < all->w.rows && !gpu_failed(d); first += most) {
        struct fast_job j = *all;
        j.w.row0 += first;
        j.w.rows = all->w.rows - first < most ? all->w.rows - first : most;
        j.y = (char *)all->y + (size_t)first * (all->half ? sizeof(uint16_t) : sizeof(float));
        j.bias = all->bias ? all->bias + first : NULL;
        struct widen_job wide = {.w = j.w, .to = d->work->wide.data};
        if (gpu_launched(d, launch_widen(d->stream, &wide), "widening weights"))
            multiply_wide(d, &j, &(struct wide){d->work->wide.data, j.w.cols, 0});
    }
}

static struct fast_job wide_job(const struct linear_args *a, int i, const struct fast_job *in)
{
    const struct linear_out *o = &a->out[i];
    return (struct fast_job){.w = cuda_window(&o->w),
                             .x = in->x,
                             .ldx = in->ldx,
                             .bias = o->bias,
                             .y = o->y.data,
                             .ldy = o->y.ld,
                             .rows = a->rows,
                             .accumulate = a->accumulate,
                             .half = o->y.half};
}

static void multiply_many(struct device *d, const struct linear_args *a, int way)
{
    struct fast_job in = {0};
    enum family f = family_of(a, 0);
    if (!narrow(d, a, f == FAM_F16, &in))
        return;
    for (int i = 0; i < a->n_out && !gpu_failed(d); i++) {
        struct fast_job j = wide_job(a, i, &in);
        struct wide by = {.ld = j.w.p.stride, .proposal = way / WAY_KINDS};
        if (f <= FAM_BF16)
            by.w = (const uint16_t *)j.w.p.q + (int64_t)j.w.row0 * j.w.p.stride + j.w.col0;
        if (way == WAY_WIDENED)
            multiply_widened(d, &j);
        else
            multiply_wide(d, &j, &by);
    }
}

/* Both factors in fp8, or in 16 bits where the library refuses. The memory for 16 bits is taken in any case, since the
 * library may refuse fewer rows than the warm-up had. */
static void multiply_f8(struct device *d, const struct linear_args *a)
{
    bool done[LINEAR_MAX_OUT];
    struct linear_args rest = *a;
    rest.n_out = 0;
    if (!narrow_room(d, a) || (a->rows >= WIDEN_ROWS && !gpu_grow(d, &d->work->wide, WIDEN_BYTES)))
        return;
    cuda_f8_product(d, a, done);
    for (int i = 0; i < a->n_out; i++)
        if (!done[i])
            rest.out[rest.n_out++] = a->out[i];
    if (rest.n_out && !gpu_failed(d))
        multiply_many(d, &rest, d->lt && a->rows >= WIDEN_ROWS ? WAY_WIDENED : WAY_WIDE);
}

/* ---- the way */

/* All that this device has for such a product, the rule's first. Where kernels begin early the one for fewest rows is
 * alone: a trial would not see what it gains by that. */
static int list_ways(const struct device *d, const struct linear_args *a, int ways[TUNING_WAYS])
{
    enum family f = family_of(a, 0);
    int n = 0, rows = a->rows;
    bool plain = f <= FAM_BF16, works = plain ? !d->no_skinny : !d->no_lean && lean_can(d->cta_shared),
         skinny = works && rows <= SKINNY_ROWS, slim = !d->no_slim && rows <= SLIM_ROWS && !(skinny && d->pdl),
         widens = !plain && d->lt && rows > SLIM_ROWS, library = plain && d->lt && rows >= LIBRARY_ROWS;
    if (library)
        ways[n++] = WAY_WIDE;
    if (skinny)
        ways[n++] = WAY_SKINNY;
    if (slim)
        ways[n++] = WAY_SLIM;
    if (slim && d->opts.tuning && cuts_finer(d, a))
        ways[n++] = WAY_SLIM_FINER;
    if (widens && rows >= WIDEN_ROWS)
        ways[n++] = WAY_WIDENED;
    if (!library && (rows > SKINNY_ROWS || !n))
        ways[n++] = WAY_WIDE;
    if (widens && rows < WIDEN_ROWS)
        ways[n++] = WAY_WIDENED;
    for (int i = 1; plain && d->lt && rows > SLIM_ROWS && i < LT_PROPOSALS; i++)
        ways[n++] = WAY_WIDE + WAY_KINDS * i;
    return n;
}

/* What the library proposes is for this number of rows alone. */
static struct tuning_key key_of(const struct linear_args *a)
{
    bool exact = family_of(a, 0) <= FAM_BF16 && a->rows > SLIM_ROWS;
    struct tuning_key k = {.family = (int32_t)family_of(a, 0),
                           .rows = exact ? a->rows : tuning_round(a->rows),
                           .cols = a->x.cols,
                           .n_out = a->n_out,
                           .flags = (a->gated ? TUNING_GATED : 0) | (a->accumulate ? TUNING_ADDED : 0)};
    for (int i = 0; i < a->n_out; i++)
        k.outs += a->out[i].w.rows;
    if (family_of(a, a->n_out - 1) != family_of(a, 0))
        k.flags |= TUNING_MIXED;
    return k;
}

static void multiply_by(struct device *d, const struct linear_args *a, int way)
{
    if (way == WAY_SKINNY || way == WAY_SLIM || way == WAY_SLIM_FINER) {
        multiply_few(d, a, (enum product_way)way);
        return;
    }
    multiply_many(d, a, way);
    if (a->gated && !gpu_failed(d))
        cuda_gate(d, a);
}

/* What a way needs that the rule's may not: memory that is not there is no error then. */
static bool has_room(struct device *d, const struct linear_args *a, int way)
{
    bool wide = way % WAY_KINDS == WAY_WIDE || way == WAY_WIDENED;
    if (way == WAY_SLIM_FINER) {
        struct skinny_job j = few_job(d, a, a->x);
        size_t floats, counters;
        slim_needs(&j, 2 * d->n_sms, &floats, &counters);
        return gpu_try_grow(d, &d->work->partial, floats * sizeof(float));
    }
    return (!wide || !d->lt || gpu_try_grow(d, &d->work->workspace, lt_workspace())) &&
           (way != WAY_WIDENED || gpu_try_grow(d, &d->work->wide, WIDEN_BYTES));
}

/* By the way that was chosen, or in a step that tries them by the next one. */
static void multiply_best(struct device *d, const struct linear_args *a)
{
    int ways[TUNING_WAYS], n = list_ways(d, a, ways), way = ways[0];
    struct tuning *t = n > 1 ? d->opts.tuning : NULL;
    struct tuning_key k = key_of(a);
    bool tries = t && !d->graph && tuning_next(t, &k, ways, n, &way);
    if (t && !tries)
        way = tuning_choice(t, &k, ways, n);
    if (way != ways[0] && !has_room(d, a, way)) {
        tries = false;
        way = ways[0];
    }
    tries = tries && trial_begin(d, &k, way);
    multiply_by(d, a, way);
    if (tries)
        trial_end(d);
}

/* ---- the op */

/* Outputs of one type, or which skinny_mixes, all of which the library can multiply in fp8, or none. */
static void multiply(struct device *d, const struct linear_args *a)
{
    if (family_of(a, 0) == FAM_F32)
        cuda_exact_linear(d, a);
    else if (way_of(d, a, 0) != F8_BY_64)
        multiply_f8(d, a);
    else
        multiply_best(d, a);
}

int cuda_gates(const struct device *d)
{
    return d->opts.invariant ? 0 : !d->no_slim ? SLIM_ROWS : !d->no_skinny ? SKINNY_ROWS : 0;
}

bool cuda_narrows(const struct device *d, struct wview w, int rows)
{
    bool any = w.w && w.rows > 0 && w.cols > 0; /* a share may have nothing of a matrix */
    enum family f = any ? cuda_window(&w).p.family : FAM_F32;
    return !d->opts.invariant && !d->no_narrow && rows > SLIM_ROWS && f != FAM_F32 && f != FAM_F16;
}

/* May output i be multiplied with those from `first` on, which all may be? */
static bool joins(const struct device *d, const struct linear_args *a, int first, int i)
{
    enum family f = family_of(a, first), before = family_of(a, i - 1), own = family_of(a, i);
    bool mixed = before == f && a->rows <= SLIM_ROWS && skinny_mixes(f, own);
    return (own == before || mixed) && way_of(d, a, i) == way_of(d, a, first);
}

/* Gated outputs whose types differ, or which no kernel here can gate, are gated after their products. */
void cuda_product(struct device *d, const struct linear_args *a)
{
    struct linear_args part = *a;
    if (a->gated && a->rows <= cuda_gates(d) && family_of(a, 0) == family_of(a, 1) && family_of(a, 0) != FAM_F32 &&
        way_of(d, a, 0) == F8_BY_64) {
        multiply_best(d, a);
        return;
    }
    part.gated = false;
    for (int first = 0; first < a->n_out && !gpu_failed(d); first += part.n_out) {
        part.out[0] = a->out[first];
        for (part.n_out = 1; first + part.n_out < a->n_out && joins(d, a, first, first + part.n_out); part.n_out++)
            part.out[part.n_out] = a->out[first + part.n_out];
        multiply(d, &part);
    }
    if (a->gated && !gpu_failed(d))
        cuda_gate(d, a);
}
