/* Linear layers: what is refused; in invariant mode the inputs, prepared once (norm, SwiGLU, quantising), and one
 * launch for each output. The default mode is product.c. */
#include "engine/base/check.h"
#include "kernels/cuda/device.h"

/* What keeps these arguments from running, or NULL. */
static const char *refusal(const struct linear_args *a)
{
    const struct wview *first = &a->out[0].w;
    for (int i = 0; i < a->n_out; i++)
        if (!a->out[i].w.w)
            return "these weights do not lie on this rank";
    for (int i = 0; i < a->n_out; i++)
        ASSERT(!a->out[i].y.half || (!a->out[i].bias && !a->accumulate));
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
        struct norm_job j = {.x = a->x.data,
                             .gain = a->gain,
                             .y = to,
                             .ldx = a->x.ld,
                             .ldy = cols,
                             .rows = a->rows,
                             .cols = cols,
                             .eps = a->eps};
        gpu_launched(d, launch_norm(d->stream, &j), "norm");
    } else {
        struct swiglu_job j = {.x = a->x.data,
                               .x2 = a->x2.data,
                               .y = to,
                               .ldx = a->x.ld,
                               .ldx2 = a->x2.ld,
                               .ldy = cols,
                               .rows = a->rows,
                               .cols = cols,
                               .half = a->x.half};
        gpu_launched(d, launch_swiglu(d->stream, &j), "swiglu");
    }
}

static bool prepare(struct device *d, const struct linear_args *a, struct inputs *in)
{
    size_t rows = (size_t)a->rows, cols = (size_t)a->x.cols, x = 0, q = 0, meta = 0;
    bool quant = false;
    for (int i = 0; i < a->n_out; i++)
        quant = quant || cuda_window(&a->out[i].w).p.family > FAM_F8;
    x = a->in != LINEAR_PLAIN ? aligned(rows * cols * sizeof(float)) : 0;
    q = quant ? aligned(rows * 2 * cols) : 0;
    meta = quant ? aligned(rows * (cols / BLOCK_COLS) * sizeof(struct quant_meta)) : 0;
    if (!gpu_grow(d, &d->work->inputs, x + q + meta))
        return false;
    char *p = d->work->inputs.data;
    *in = (struct inputs){a->x.data, a->x.ld, (int8_t *)(p + x), (struct quant_meta *)(p + x + q)};
    if (a->in != LINEAR_PLAIN) {
        change_input(d, a, (float *)p);
        in->x = (const float *)p;
        in->ldx = a->x.cols;
    }
    if (quant) {
        struct quantise_job j = {
            .x = in->x, .ldx = in->ldx, .rows = a->rows, .cols = a->x.cols, .q = in->q, .meta = in->meta};
        gpu_launched(d, launch_quantise(d->stream, &j), "quantise");
    }
    return !gpu_failed(d);
}

/* ---- invariant mode */

void cuda_exact_linear(struct device *d, const struct linear_args *a)
{
    struct inputs in;
    if (!prepare(d, a, &in))
        return;
    for (int i = 0; i < a->n_out; i++) {
        const struct linear_out *o = &a->out[i];
        struct linear_job j = {.w = cuda_window(&o->w),
                               .x = in.x,
                               .ldx = in.ldx,
                               .q = in.q,
                               .meta = in.meta,
                               .bias = o->bias,
                               .y = o->y.data,
                               .ldy = o->y.ld,
                               .rows = a->rows,
                               .accumulate = a->accumulate};
        gpu_launched(d, launch_linear(d->stream, &j), "linear");
    }
}

/* silu(first) * second of two outputs, in the first's place. */
void cuda_gate(struct device *d, const struct linear_args *a)
{
    struct act to = a->out[0].y, up = a->out[1].y;
    struct swiglu_job j = {.x = to.data,
                           .x2 = up.data,
                           .y = to.data,
                           .ldx = to.ld,
                           .ldx2 = up.ld,
                           .ldy = to.ld,
                           .rows = a->rows,
                           .cols = a->out[0].w.rows};
    gpu_launched(d, launch_swiglu(d->stream, &j), "swiglu");
}

void cuda_linear(struct device *d, const struct linear_args *a)
{
    if (gpu_failed(d) || a->rows <= 0)
        return;
    const char *why = refusal(a);
    ASSERT(!a->gated || (a->n_out == 2 && !a->accumulate && a->out[0].w.rows == a->out[1].w.rows));
    if (why)
        gpu_fail(d, E_UNSUPPORTED, why);
    else if (d->opts.invariant) {
        cuda_exact_linear(d, a);
        if (a->gated && !gpu_failed(d))
            cuda_gate(d, a);
    } else
        cuda_product(d, a);
}
