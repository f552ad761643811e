/* A step in progress, as one member sees it: what the files of the forward share. run_layer is a whole layer,
 * run_last_layer the last one of the model with the logits and what is sampled from them, run_swiftkv SwiftKV's later
 * layers with those. Made anew for every step by forward.c, on the rank's thread. */
#ifndef MODELS_FORWARD_RUN_H
#define MODELS_FORWARD_RUN_H

#include "models/forward/forward.h"
#include "models/forward/scratch.h"

struct run {
    struct forward *f;
    const struct forward_member *m;
    const struct model_weights *w;
    const struct shard *sh;
    const struct batch *b;
    struct forward_scratch s;
    struct layer_span layers; /* of the stage */
    struct err err;           /* of the pool: what is computed after it does not count */
    int row0, rows;           /* the member's slice of the rows */
    int n_to_heads, n_to_rows;
    struct comm_rect to_heads[EXCHANGE_BUFFERS * MAX_RANKS]; /* q, k and v of all rows for the member's own heads */
    struct comm_rect to_rows[MAX_RANKS]; /* attention of the member's rows for the heads of its tp share */
};

/* The residual of so many of the member's rows, from the stage before (me: 1) or to the next one (0). The giver goes on
 * when it has arrived. */
void run_pass_rows(struct run *r, struct comm *link, int me, struct act x, int rows);

/* Heads that sp member s of this tp share has after the all-to-all. */
struct head_span run_heads(const struct shard *sh, int s);
/* The two all-to-alls of a layer. They are the same in every layer of the step. */
void run_plan_all_to_alls(struct run *r);

/* The parts of a layer (layer.c), in the order in which they come. */
void run_qkv_proj(struct run *r, int layer);
void run_rows_to_heads(struct run *r);
struct rope_args run_rope_args(const struct run *r, int layer); /* of the step's rows */
struct attention_args run_attention_args(const struct run *r, int layer);
void run_write_kv(struct run *r, int layer); /* RoPE on q and k; then k and v go into the cache */
void run_attend(struct run *r, int layer);   /* run_write_kv, then attention over the cache */
/* Takes attention of the given rows from the members that have the heads. It goes into q_in, which is free by now, and
 * is returned. */
struct act run_heads_to_rows(struct run *r, struct act shown, const struct comm_rect *rects, int n);
void run_add_o_proj(struct run *r, int layer, struct act attn, struct act x, int rows); /* x += o(attn) */
void run_add_ffn(struct run *r, int layer, struct act x, int rows);
void run_layer(struct run *r, int layer);
/* From here on activations are what the machine has: layers of which only some rows go on give f32. */
void run_forget_halves(struct run *r);

/* logits.c. Logit rows are taken in chunks, of which each member has those that lie in its slice of the rows. */
struct span run_logits_of(const struct run *r, int s, struct span chunk); /* of sp member s */
struct span run_logit_chunk(const struct run *r, int first);              /* that begins with logit row `first` */
/* heads_to_rows for the rows of the chunk that lie in this member's slice. shown: attention of the chunk's rows. */
void run_chunk_to_rows(struct run *r, struct act shown, struct span chunk);
/* The head and what is sampled from it, once `last` is the residual of the chunk's rows of this member. Ends with a
 * barrier. */
void run_sample_chunk(struct run *r, struct span chunk);
void run_barrier(struct run *r); /* of all ranks */
/* A step without logits (the middle of a prompt) ends once the last layer's KV is cached. */
void run_last_layer(struct run *r);

/* swiftkv.c. The stage's layers from kv_layers on, and the logits or what the next stage needs. */
void run_swiftkv(struct run *r);

#endif
