/* A step in progress, as one member sees it: what the files of the forward share. run_layer is a whole layer, and
 * run_last_layer the last one of the model with the logits and what is sampled from them. Made anew for every step by
 * forward.c, on the rank's thread. */
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

/* Heads that sp member s of this tp share has after the all-to-all. */
struct head_span run_heads(const struct shard *sh, int s);
/* The two all-to-alls of a layer. They are the same in every layer of the step. */
void run_plan_all_to_alls(struct run *r);

/* The parts of a layer (layer.c), in the order in which they come. */
void run_qkv_proj(struct run *r, int layer);
void run_rows_to_heads(struct run *r);
void run_write_kv(struct run *r, int layer); /* RoPE on q and k; then k and v go into the cache */
void run_attend(struct run *r, int layer);   /* run_write_kv, then attention over the cache */
/* Takes attention of the given rows from the members that have the heads. It goes into q_in, which is free by now. */
void run_heads_to_rows(struct run *r, struct act shown, const struct comm_rect *rects, int n);
void run_add_o_proj(struct run *r, int layer, struct act attn, struct act x, int rows); /* x += o(attn) */
void run_add_ffn(struct run *r, int layer, struct act x, int rows);
void run_layer(struct run *r, int layer);

/* logits.c. A step without logits (the middle of a prompt) ends once the last layer's KV is cached. */
void run_last_layer(struct run *r);

#endif
