/* The devices of the node: its ranks, their communicators, and what never changes about them (shape, sizes). Opened by
 * the engine before it serves; the ranks' own threads start in node_open. Engine thread. Invariant: all ranks have the
 * same number of KV blocks, of the same size. */
#ifndef ENGINE_NODE_H
#define ENGINE_NODE_H

#include "engine/engine.h"
#include "engine/exec/rank.h"
#include "kernels/profile.h"

struct tuning;
struct tuning_ops;

struct node {
    struct rank *ranks[MAX_RANKS];
    int n_ranks;
    struct comm_pool *comms;
    struct drafter *drafter; /* a draft model; NULL: there is none */
    struct ffn_pool *pool;   /* of FFN weights; NULL: none, or nothing is computed here */
    struct node_shape shape;
    struct heads heads;
    size_t kv_block_bytes;                   /* of a physical block, over all layers */
    int n_blocks;                            /* of each rank */
    const struct residency_facts *residency; /* where ranks hold cuts of the weights; NULL: they do not */
    struct residency_facts measured;         /* what that points to, unless it was recorded */
    struct cut cuts[MAX_RANKS];              /* what they hold at first */
    int64_t load_ns;                         /* what the ranks took to load that */
    struct kv_space host;                    /* memory of the machine for KV of all ranks; n_blocks 0: none */
    const struct tuning_ops *tuning_ops;
    struct tuning *tuning; /* which way products take; NULL: the machine has no choice */
};

struct node_callbacks {
    void (*step_done)(void *ctx, struct step *s);
    void (*move_done)(void *ctx, struct move *m);
    void *ctx;
};

/* limits->max_model_len 0 becomes what fits. E_INPUT/E_FULL say what would fit. On failure everything is closed. */
int node_open(struct node *n, const struct engine_setup *s, struct limits *limits, const struct node_callbacks *c,
              struct err *e);
void node_close(struct node *n); /* does what was posted first; a zeroed node is fine */
/* Its memory for KV of all ranks; NULL: there is none, or nothing is computed here. */
const struct kv_space *node_host_kv(const struct node *n);
void node_facts(const struct node *n, const struct engine_setup *s, struct node_facts *out);
/* What its ranks can do at most, for the profile, measured while nothing runs; nothing where ops are not watched. */
int node_probe(const struct node *n, struct err *e);
/* What its ranks have counted of their steps. False: their ops are not watched. */
bool node_profile(const struct node *n, struct profile *out);

#endif
