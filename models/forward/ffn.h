/* The FFN of one layer, and where its matrices come from when they do not lie on the rank. forward_ffn multiplies rows
 * of one rank's share with matrices at hand: a rank that runs a step calls it, and so does the owner of a layer for the
 * rows of others. An ffn_source is what a step asks for the layers of pooled weights; engine/exec/ffn_pool.c makes
 * them. Where experts were pooled, it would be asked for (layer, expert), the unit of pooling then, once routing has
 * said which (engine/world/ffn.h). The rank's thread. Invariant: an output row depends on its own input row only, so
 * the same rows give the same bits wherever, with whatever other rows and from whichever copy of the matrices they are
 * computed. */
#ifndef MODELS_FORWARD_FFN_H
#define MODELS_FORWARD_FFN_H

#include "engine/world/ffn.h"
#include "kernels/backend.h"

/* In the order in which a layer's products need them. */
enum ffn_matrix { FFN_GATE, FFN_UP, FFN_DOWN, FFN_MATRICES };

struct ffn_source {
    void *ctx;
    enum ffn_mode (*mode)(void *ctx, int layer);
    /* FFN_WAS: returns when the first n matrices of the layer are here, as matrices[0 .. n); they stay until leave. */
    int (*take)(void *ctx, int layer, int n, const struct weight **matrices, struct err *e);
    void (*leave)(void *ctx, int layer); /* FFN_WAS, FFN_LOCAL: the layer's products are done */
    /* FFN_CAS: x becomes x + ffn(x) for `rows` rows of all columns. */
    int (*send)(void *ctx, int layer, struct act x, int rows, struct err *e);
};

/* x += down(swiglu(gate(norm(x)), up(norm(x)))) with whole matrices, as a rank of a layout with tp 1 has it. */
struct ffn_job {
    struct wview gate, up, down;
    const float *gain; /* of the norm, device memory */
    float eps;
    struct act x, gate_out, up_out; /* gate_out, up_out: working memory of `rows` rows */
    int rows;
};
void forward_ffn(const struct backend_ops *ops, struct device *d, const struct ffn_job *j);

#endif
