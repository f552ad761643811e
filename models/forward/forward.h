/* One forward of one rank, written once over kernels/backend.h: Algorithm 1 of Shift Parallelism for any layout {sp,
 * tp}, of which a single rank is the plain case. The rank's thread calls it; it owns nothing but the scratch that
 * forward_init allocated on the device. Never true: a branch on the backend's or the family's name; a member of a group
 * that leaves the others waiting.
 *
 * A member computes its slice of the rows (sp) with its share of the columns (tp); one exchange in the sp group turns
 * that into all rows of its own heads, of which it keeps the KV; attention; an exchange back. Products whose columns
 * are shared end in a reduce over the tp group. The rows whose logits are wanted go to all ranks, each of which has a
 * part of the vocabulary, and the logits of each row to the one rank that samples it. */
#ifndef MODELS_FORWARD_FORWARD_H
#define MODELS_FORWARD_FORWARD_H

#include "engine/base/err.h"
#include "kernels/backend.h"
#include "models/forward/shard.h"

struct layer_weights {
    struct wview q, k, v, gate, up;    /* of the tp share; 0 rows where it has none */
    const struct wview *o, *down;      /* [n_o], [n_down]: a product for each node of the summing tree */
    const float *attn_norm, *ffn_norm; /* device memory */
    const float *q_bias, *k_bias, *v_bias, *q_norm, *k_norm; /* or NULL */
};

/* What one share of one layout multiplies with, as views. Made by engine/exec/weights.c. */
struct model_weights {
    struct shard shard;
    struct wview embed, head; /* head: the share's part of the vocabulary */
    const float *out_norm;
    const struct layer_weights *layers;              /* [n_layers] */
    int n_o, n_down;                                 /* nodes of this share's window: 1 each when tp is 1 */
    const struct reduce_order *o_order, *down_order; /* of the whole tp group; NULL when tp is 1 */
};

/* Where a step runs: the layout and share are those of the weights. */
struct forward_site {
    const struct model_weights *weights;
    struct comm *sp, *tp, *all; /* this share's: member s of sp, t of tp, share of all; NULL in a group of one */
    size_t twoshot_bytes;       /* all-reduces of so many bytes and more are done in two shots */
    size_t library_bytes;       /* of so many and more, by the machine's library; 0: none */
    int tokens_per_block;
    uint64_t group; /* which ranks in what order, for graphs: graph_key */
};

struct forward_scratch {
    struct act x;                /* the slice's residual */
    struct act q_in, k_in, v_in; /* of the slice, heads of the tp share; with sp 1 the same as q, k, v */
    struct act q, k, v, attn;    /* of all rows, own heads */
    struct act gate, up;
    struct act o_planes, down_planes, part; /* tp > 1: partial sums */
    struct act last, last_all, logits_part, logits;
};

struct forward {
    const struct backend_ops *ops;
    struct device *device;
    const struct model_config *config;
    const struct kv_space *kv;
    /* set by forward_init */
    void *slab;
    size_t act_bytes;
    int max_rows, max_logits;
    int *kv_head; /* host, [n_heads] */
    /* for tests: the logits that the last step sampled from last, of logit rows [first_logit, first_logit + n_logits)
     */
    struct act logits;
    int first_logit, n_logits;
};

/* Allocates the scratch for steps of max_rows rows in groups of up to n_ranks; logits are taken max_logits rows at a
 * time. E_FULL without memory. */
int forward_init(struct forward *f, int max_rows, int max_logits, int n_ranks, struct err *e);
void forward_free(struct forward *f);
/* Bytes that forward_init will take, for the memory budget: the most that any share of any layout needs. */
size_t forward_scratch_bytes(const struct model_config *c, int max_rows, int max_logits, int n_ranks, size_t act_bytes);
/* Runs this member's part of the step: KV of its heads written, results filled of the logit rows that it samples. On
 * failure the comms of the site are aborted; E_PEER: another member failed. */
int forward_run(struct forward *f, const struct forward_site *at, const struct batch *b, struct step_time *t,
                struct err *e);
/* The same in two: post returns once the step is on its way, if it can be posted (*posted; false: nothing was done,
 * forward_run does it), wait when it has ended. The next may be posted before the wait for the one under way (never a
 * third), and be fed by it (batch.fed). ended: would wait return at once? */
int forward_post(struct forward *f, const struct forward_site *at, const struct batch *b, bool *posted, struct err *e);
bool forward_ended(struct forward *f);
int forward_wait(struct forward *f, const struct forward_site *at, struct step_time *t, struct err *e);
/* Runs this member's part of a made-up step and forgets what comes out: a prompt of `rows` tokens in blocks 0, 1, ...,
 * which nobody may use meanwhile. */
int forward_rehearse(struct forward *f, const struct forward_site *at, int rows, struct err *e);
/* Records this member's part of steps in which each of `rows` sequences decodes one token; all members record the same
 * in the same order. E_UNSUPPORTED: not on this machine. Any error: such steps are made of ops, and the comms of the
 * site are aborted. */
int forward_record(struct forward *f, const struct forward_site *at, int rows, struct err *e);
/* Tells the other members that this one takes no part. */
void forward_abandon(const struct backend_ops *ops, const struct forward_site *at);

#endif
