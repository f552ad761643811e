/* The forward pass of one rank, written once over kernels/backend.h for every layout {sp, tp, pp} and every model
 * family. A single rank is the layout {1, 1, 1}. Called by the rank's thread; owns only the scratch memory that
 * forward_init allocated on the device. Invariant: differences between backends and families are data (ops, flags,
 * weights), and a member that fails aborts its communicators, so the others of its group never wait for it.
 *
 * A member computes its slice of the rows (sp) with its share of the weights' columns (tp). An all-to-all in the sp
 * group turns this into all rows for its own heads, whose KV it keeps. It computes attention, and a second all-to-all
 * returns to its slice of the rows. Row-parallel products end in an all-reduce over the tp group. The hidden rows whose
 * logits are wanted go to all ranks. Each rank has a part of the vocabulary, and each row of logits goes to the one
 * rank that samples it. (Algorithm 1 of the Shift Parallelism paper.)
 *
 * In a SwiftKV model (arXiv 2410.03960) all rows go through the first layers only. The later ones take their keys and
 * values from the residual between the two, and only rows whose logits are wanted go through them (swiftkv.c).
 *
 * With pp > 1 the member runs the layers of its stage only: it takes the residual of its rows from the same share of
 * the stage before, and gives it to the next one; the last stage samples. A stage is done with a batch when the next
 * one has taken it, so that several batches, one after another, keep all stages busy. */
#ifndef MODELS_FORWARD_FORWARD_H
#define MODELS_FORWARD_FORWARD_H

#include "engine/base/err.h"
#include "kernels/backend.h"
#include "models/forward/ffn.h"
#include "models/forward/heads.h"
#include "models/forward/shard.h"

struct layer_weights {
    struct wview q, k, v, gate, up;    /* of the tp share; 0 rows where it has none. gate, up and down without a weight:
                                          pooled, and on another rank */
    const struct wview *o, *down;      /* [n_o], [n_down]: one view for each node of the summation tree */
    const float *attn_norm, *ffn_norm; /* device memory */
    const float *q_bias, *k_bias, *v_bias, *q_norm, *k_norm; /* or NULL */
};

/* The weights of one share of one layout, as views. Made by engine/exec/weights.c. */
struct model_weights {
    struct shard shard;
    struct wview embed, head;                        /* head: the share's part of the vocabulary */
    const float *out_norm, *kv_norm;                 /* kv_norm: of SwiftKV models; else NULL */
    const struct layer_weights *layers;              /* [n_layers] */
    int n_o, n_down;                                 /* nodes of this share's window: 1 each when tp is 1 */
    const struct reduce_order *o_order, *down_order; /* of the whole tp group; NULL when tp is 1 */
};

/* One member of the group that runs a step: its weights, which say the layout of its stage and the share in it, and its
 * communicators. */
struct forward_member {
    const struct model_weights *weights;
    int stage, n_stages;        /* n_stages 0 or 1: all layers are its own */
    struct comm *sp, *tp, *all; /* the member's number is s in sp, t in tp, share in all; NULL where it is alone */
    struct comm *from, *to;     /* of two members: with the stage before (it is 1), with the next one (0); or NULL */
    const struct kv_space *kv; /* of its stage's layers; NULL: the forward's. One of a single layer serves them all, one
                                  after the other: for steps that hold whole sequences */
    size_t twoshot_bytes;      /* all-reduces of this size and more are done in two shots */
    size_t library_bytes;      /* all-reduces of this size and more are done by the machine's library; 0: never */
    int tokens_per_block;
    const struct ffn_source *ffn; /* pooled FFN weights; NULL: all of them lie here */
    struct heads_asks *asks;      /* what draft heads shall guess in this step; NULL: nothing */
    uint64_t group;               /* identifies the ranks and their order in the key of a graph (graph_key) */
};

struct forward_scratch {
    struct act x;                /* residual of the member's rows */
    struct act q_in, k_in, v_in; /* the member's rows, heads of the tp share; the same memory as q, k, v when sp is 1 */
    struct act q, k, v, attn;    /* all rows, own heads */
    struct act gate, up;
    struct act o_planes, down_planes, part; /* tp > 1: partial sums */
    struct act last, last_all, logits_part, logits;
};

struct forward {
    const struct backend_ops *ops;
    struct device *device;
    const struct model_config *config;
    const struct kv_space *kv; /* of all layers */
    struct heads *heads;       /* NULL: there are none, and nobody may ask */
    /* Of a model for embeddings (config->embeds; one rank): takes the residual behind the last layer of logit rows
     * [first, first + n), during the step; nothing is sampled. */
    void (*take)(void *taker, struct act rows, int first, int n);
    void *taker;
    /* set by forward_init */
    void *slab;
    size_t act_bytes;
    int max_rows, max_logits;
    int *kv_head;            /* host, [n_heads] */
    int32_t *part_positions; /* [logits taken at a time] SwiftKV: a part of the step's rows; else NULL */
    struct batch_seq *part_seqs;
    /* for tests: the logits that the last step sampled from last, of logit rows [first_logit, first_logit + n_logits)
     */
    struct act logits;
    int first_logit, n_logits;
};

/* Allocates the scratch for steps of max_rows rows in groups of up to n_ranks; logits are taken max_logits rows at a
 * time. E_FULL without memory. */
int forward_init(struct forward *f, int max_rows, int max_logits, int n_ranks, struct err *e);
void forward_free(struct forward *f);
/* Bytes that forward_init allocates, for the memory budget: the most that any share of any layout needs. */
size_t forward_scratch_bytes(const struct model_config *c, int max_rows, int max_logits, int n_ranks, size_t act_bytes);
/* Runs this member's part of the step: writes the KV of its heads and fills the results of the logit rows that it
 * samples. On failure the member's communicators are aborted; E_PEER: another member failed. */
int forward_run(struct forward *f, const struct forward_member *m, const struct batch *b, struct step_time *t,
                struct err *e);
/* Moves what this member has cached of a sequence, in the batch's blocks, to earlier positions (kv_pack), in all its
 * layers; after a step. */
void forward_pack(struct forward *f, const struct forward_member *m, const struct kv_pack *moves);
/* forward_run in two halves, for steps that have a graph; a pipelined one has none. forward_post launches the step and
 * sets *posted; where it cannot, it does nothing and *posted is false (use forward_run). forward_wait returns when the
 * step has ended. One more step may be posted before the wait for the one under way, and take its tokens from it
 * (batch.fed). forward_ended tells whether forward_wait would return at once. */
int forward_post(struct forward *f, const struct forward_member *m, const struct batch *b, bool *posted, struct err *e);
bool forward_ended(struct forward *f);
int forward_wait(struct forward *f, const struct forward_member *m, struct step_time *t, struct err *e);
/* Runs this member's part of a dummy step, a prompt of `rows` tokens, and drops the results. It writes to KV blocks 0,
 * 1, ..., which must not be in use. */
int forward_warm_up(struct forward *f, const struct forward_member *m, int rows, struct err *e);
/* Captures this member's part of the step in which each of `rows` sequences decodes one token. All members capture the
 * same steps in the same order. E_UNSUPPORTED: not possible on this machine. After any error such steps run op by op,
 * and the member's communicators are aborted. */
int forward_capture(struct forward *f, const struct forward_member *m, int rows, struct err *e);
/* Tells the other members that this one takes no part: aborts its communicators. */
void forward_abort(const struct backend_ops *ops, const struct forward_member *m);

#endif
