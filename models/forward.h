/* One forward of one rank, written once over kernels/backend.h. The rank's thread calls it; it owns nothing but the scratch that
 * forward_scratch_init allocated on the device. Never true: a branch on the backend's or the family's name. */
#ifndef MODELS_FORWARD_H
#define MODELS_FORWARD_H

#include "engine/base/err.h"
#include "kernels/backend.h"
#include "models/model.h"

struct layer_weights {
    struct wview q, k, v, o, gate, up, down;
    const float *attn_norm, *ffn_norm;            /* device memory */
    const float *q_bias, *k_bias, *v_bias, *q_norm, *k_norm; /* or NULL */
};

/* What one rank multiplies with, as views. Made by engine/exec/weights.c. */
struct model_weights {
    struct wview embed, head;
    const float *out_norm;
    struct layer_weights *layers;                 /* [n_layers] */
};

struct forward_scratch {
    struct act x, q, k, v, attn, gate, up, last, logits;
    int max_rows, max_logits;
    int *kv_head;                                 /* host, [n_heads] */
};

struct forward {
    const struct backend_ops *ops;
    struct device *device;
    const struct model_config *config;
    const struct model_weights *weights;
    const struct kv_space *kv;
    int tokens_per_block;
    struct forward_scratch scratch;
};

/* Allocates the scratch for steps of max_rows rows; logits are taken max_logits rows at a time. E_FULL without memory. */
int forward_init(struct forward *f, int max_rows, int max_logits, struct err *e);
void forward_free(struct forward *f);
/* Bytes that forward_init will take, for the memory budget. */
size_t forward_scratch_bytes(const struct model_config *c, int max_rows, int max_logits, size_t act_bytes);
/* Runs the step: KV of all rows written, results of all logit rows filled. */
int forward_run(struct forward *f, const struct batch *b, struct step_time *t, struct err *e);

#endif
