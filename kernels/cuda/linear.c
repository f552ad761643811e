/* Linear layers: prepares the inputs once (norm, SwiGLU, quantising or narrowing), then one launch for each output. Which kernel runs follows from the mode, the type of the
 * weights and the number of rows. */
#include "engine/base/check.h"
#include "kernels/cuda/device.h"

/* What keeps these arguments from running, or NULL. */
static const char *refusal(const struct linear_args *a)
{
    const struct wview *first = &a->out[0].w;
    int cols = cuda_window(first).cols;
    for (int i = 0; i < a->n_out; i++) {
        struct weight_window w = cuda_window(&a->out[i].w);
        ASSERT(w.cols == cols && cols == a->x.cols);
        if (w.col0 % LEAF_COLS || ((w.col0 + w.cols) % LEAF_COLS && w.col0 + w.cols != w.p.cols))
            return "a weight window starts or ends at a column that is not a multiple of 64";
        if (w.col0 != first->col0)
            return "weights that share an input must share their columns";
    }
    return NULL;
}

/* The inputs as the products read them. */
struct inputs {
    const float *x;
    int ldx;
    int8_t *q;
    struct quant_meta *meta;
};

static size_t aligned(size_t n)
{
    return (n + 255) / 256 * 256;
}

static void change_input(struct device *d, const struct linear_args *a, float *to)
{
    int cols = a->x.cols;
    if (a->in == LINEAR_NORM) {
        struct norm_job j = {.x = a->x.data, .gain = a->gain, .y = to, .ldx = a->x.ld, .ldy = cols, .rows = a->rows, .cols = cols, .eps = a->eps};
        gpu_ok(d, launch_norm(d->stream, &j), "norm");
    } else {
        struct swiglu_job j = {.x = a->x.data, .x2 = a->x2.data, .y = to, .ldx = a->x.ld, .ldx2 = a->x2.ld, .ldy = cols,
                               .rows = a->rows, .cols = cols};
        gpu_ok(d, launch_swiglu(d->stream, &j), "swiglu");
    }
}

static bool prepare(struct device *d, const struct linear_args *a, struct inputs *in)
{
    size_t rows = (size_t)a->rows, cols = (size_t)a->x.cols, x = 0, q = 0, meta = 0;
    bool quant = false;
    for (int i = 0; i < a->n_out; i++)
        quant = quant || cuda_window(&a->out[i].w).p.family > FAM_BF16;
    x = a->in != LINEAR_PLAIN ? aligned(rows * cols * sizeof(float)) : 0;
    q = quant ? aligned(rows * 2 * cols) : 0;
    meta = quant ? aligned(rows * (cols / BLOCK_COLS) * sizeof(struct quant_meta)) : 0;
    if (!gpu_grow(d, &d->inputs, x + q + meta))
        return false;
    char *p = d->inputs.data;
    *in = (struct inputs){a->x.data, a->x.ld, (int8_t *)(p + x), (struct quant_meta *)(p + x + q)};
    if (a->in != LINEAR_PLAIN) {
        change_input(d, a, (float *)p);
        in->x = (const float *)p;
        in->ldx = a->x.cols;
    }
    if (quant) {
        struct quantise_job j = {.x = in->x, .ldx = in->ldx, .rows = a->rows, .cols = a->x.cols, .q = in->q, .meta = in->meta};
        gpu_ok(d, launch_quantise(d->stream, &j), "quantise");
    }
    return !gpu_failed(d);
}

/* ---- the default mode */

/* Inputs in 16 bits, by whether they are f16; in f32 for F32 weights. */
struct narrowed {
    uint16_t *half[2];
    int ld;
    struct inputs plain;
};

static bool is_f16(const struct linear_out *o)
{
    return cuda_window(&o->w).p.family == FAM_F16;
}

static bool is_f32(const struct linear_out *o)
{
    return cuda_window(&o->w).p.family == FAM_F32;
}

static bool narrow(struct device *d, const struct linear_args *a, struct narrowed *in)
{
    size_t rows = (size_t)a->rows, bytes[3] = {0, 0, 0};
    in->ld = (a->x.cols + FAST_PAD - 1) / FAST_PAD * FAST_PAD;
    for (int i = 0; i < a->n_out; i++)
        if (!is_f32(&a->out[i]))
            bytes[is_f16(&a->out[i])] = aligned(rows * (size_t)in->ld * sizeof(uint16_t));
        else if (a->in != LINEAR_PLAIN)
            bytes[2] = aligned(rows * (size_t)a->x.cols * sizeof(float));
    if (!gpu_grow(d, &d->inputs, bytes[0] + bytes[1] + bytes[2]))
        return false;
    char *p = d->inputs.data;
    for (int k = 0; k < 2; p += bytes[k++]) {
        in->half[k] = (uint16_t *)p;
        struct narrow_job j = {.x = a->x.data, .x2 = a->in == LINEAR_SWIGLU ? a->x2.data : NULL, .gain = a->in == LINEAR_NORM ? a->gain : NULL,
                               .y = in->half[k], .ldx = a->x.ld, .ldx2 = a->x2.ld, .ldy = in->ld, .rows = a->rows, .cols = a->x.cols, .eps = a->eps,
                               .f16 = k == 1};
        if (bytes[k])
            gpu_ok(d, launch_narrow(d->stream, &j), "narrow");
    }
    in->plain = (struct inputs){.x = bytes[2] ? (const float *)p : a->x.data, .ldx = bytes[2] ? a->x.cols : a->x.ld};
    if (bytes[2])
        change_input(d, a, (float *)p);
    return !gpu_failed(d);
}

/* By the library, the weights widened first where they are quantised. False: it is not here, or does not want to; nothing was written. */
static bool multiply_lt(struct device *d, const struct fast_job *j)
{
    enum { WIDEN_ROWS = 256 }; /* from so many rows on a second pass over the weights costs little */
    bool quant = j->w.p.family > FAM_BF16;
    if (!d->lt || (quant && j->rows < WIDEN_ROWS) || !gpu_grow(d, &d->workspace, lt_workspace()))
        return false;
    const uint16_t *w = (const uint16_t *)j->w.p.q + (size_t)j->w.row0 * (size_t)j->w.p.stride + j->w.col0;
    if (quant) {
        if (!gpu_grow(d, &d->wide, (size_t)j->w.rows * (size_t)j->w.cols * sizeof *w))
            return false;
        struct widen_job wide = {.w = j->w, .to = d->wide.data};
        w = d->wide.data;
        gpu_ok(d, launch_widen(d->stream, &wide), "widen");
    }
    struct lt_product p = {.w = w, .x = j->x, .bias = j->bias, .y = j->y, .outs = j->w.rows, .cols = j->w.cols, .rows = j->rows,
                           .ldw = quant ? j->w.cols : j->w.p.stride, .ldx = j->ldx, .ldy = j->ldy, .f16 = j->w.p.family == FAM_F16,
                           .accumulate = j->accumulate};
    return !gpu_failed(d) && lt_multiply(d->lt, d->stream, &p, d->workspace.data);
}

static void multiply_half(struct device *d, const struct fast_job *j)
{
    if (j->rows <= SKINNY_ROWS)
        gpu_ok(d, launch_skinny(d->stream, j), "linear");
    else if (!multiply_lt(d, j) && !gpu_failed(d))
        gpu_ok(d, launch_tile(d->stream, j), "linear");
}

static void multiply_fast(struct device *d, const struct linear_args *a)
{
    struct narrowed in;
    if (!narrow(d, a, &in))
        return;
    for (int i = 0; i < a->n_out; i++) {
        const struct linear_out *o = &a->out[i];
        struct fast_job j = {.w = cuda_window(&o->w), .x = in.half[is_f16(o)], .ldx = in.ld, .bias = o->bias, .y = o->y.data, .ldy = o->y.ld,
                             .rows = a->rows, .accumulate = a->accumulate};
        struct linear_job plain = {.w = j.w, .x = in.plain.x, .ldx = in.plain.ldx, .bias = o->bias, .y = j.y, .ldy = j.ldy, .rows = j.rows,
                                   .accumulate = j.accumulate};
        if (is_f32(o))
            gpu_ok(d, launch_linear(d->stream, &plain), "linear");
        else
            multiply_half(d, &j);
    }
}

/* ---- invariant mode */

static void multiply_invariant(struct device *d, const struct linear_args *a)
{
    struct inputs in;
    if (!prepare(d, a, &in))
        return;
    for (int i = 0; i < a->n_out; i++) {
        const struct linear_out *o = &a->out[i];
        struct linear_job j = {.w = cuda_window(&o->w), .x = in.x, .ldx = in.ldx, .q = in.q, .meta = in.meta, .bias = o->bias,
                               .y = o->y.data, .ldy = o->y.ld, .rows = a->rows, .accumulate = a->accumulate};
        gpu_ok(d, launch_linear(d->stream, &j), "linear");
    }
}

void cuda_linear(struct device *d, const struct linear_args *a)
{
    if (gpu_failed(d) || a->rows <= 0)
        return;
    const char *why = refusal(a);
    if (why)
        gpu_fail(d, E_UNSUPPORTED, why);
    else if (d->opts.invariant)
        multiply_invariant(d, a);
    else
        multiply_fast(d, a);
}
