/* Pooling on demand: where FFN weights are pooled, some layers may lie on every rank for a while. Each rank that does
 * not own such a layer has a copy, a replica, in memory that was KV cache before: it lends the blocks. A policy asks
 * for it and takes it back (plan_weights); the engine has the ranks make the copies and give them up
 * (engine/replicate.c). A layer that is on its way counts as pooled until every copy is whole, and copies are given up
 * once no step that began with them is under way. Part of the world, engine thread. Invariants: the blocks that a rank
 * lends are those of its replicas, exactly; no request waits for ever, or gives way, for blocks that are lent: whoever
 * would takes them back. None of SiDP's papers has this. */
#ifndef WORLD_REPLICA_H
#define WORLD_REPLICA_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/world/ffn.h"

enum replica_state {
    REPLICA_NONE,   /* pooled: on its owner only */
    REPLICA_COMING, /* the blocks are lent, the copies are being made */
    REPLICA_HERE,   /* on every living rank */
    REPLICA_GOING,  /* steps no longer count on it; the copies are being given up */
};

struct replica {
    enum replica_state state;
    bool posted;    /* the ranks have been told of this state */
    uint64_t ranks; /* those that lend blocks for a copy */
    int32_t *lent;  /* [ranks in the mask][blocks], physical blocks by rank ascending; NULL in REPLICA_NONE */
};

struct replicas {
    int blocks;                           /* KV blocks that a rank lends for one layer; 0: none can be copied */
    uint64_t wanted[FFN_MAX_LAYERS / 64]; /* layers that shall lie everywhere */
    struct replica layers[FFN_MAX_LAYERS];
};

struct world;
struct request;

static inline bool replica_is_wanted(const struct replicas *r, int layer)
{
    return r->wanted[layer / 64] >> (layer % 64) & 1;
}

/* What the ranks have to lend for those of the layers [from, to) that are pooled: need[r] blocks of rank r. */
void replica_needs(const struct world *w, int from, int to, int need[MAX_RANKS]);
/* Why the ranks could not do without so many blocks more, whoever leaves; NULL: they could. */
const char *replica_refusal(const struct world *w, const int need[MAX_RANKS]);
/* A request has come: where it would not fit a rank any more for blocks that are lent, all layers shall be pooled. */
void replica_make_room(struct world *w, const struct request *r);
/* Ranks that need a copy of the layer: the living ones that do not own it. */
uint64_t replica_ranks(const struct world *w, int layer);
/* A pooled layer shall lie on every rank: they lend the blocks, which must be there (kv_lend). */
void world_replicate(struct world *w, int layer);
/* Layers [from, to) shall be pooled again. */
void world_pool(struct world *w, int from, int to);
/* The copies of a layer that was on its way in are whole (ok), or those of one on its way out are gone and the blocks
 * come back. Copies that could not be made (!ok) go again. */
void world_replica_done(struct world *w, int layer, bool ok);
/* The next state of a layer that nobody works on: one that is no longer wanted goes. True: the ranks have to be told.
 */
bool world_replica_due(struct world *w, int layer);
int world_count_replicas(const struct world *w, enum replica_state state);
void world_free_replicas(struct world *w);

#endif
