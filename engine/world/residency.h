/* Residency `sharded`: a rank holds only its cut of the layers (those of its stage, of each matrix the share of its
 * place in tensor parallelism), so that a group runs the layout whose cuts its ranks hold, and no other; embedding,
 * head and norms lie on every rank. Another layout needs a reshard: an order (partition.h) that names it. Its cuts are
 * streamed from the machine's memory while the group goes on, as far as the ranks have room for old and new; the rest
 * comes when the order is carried out, and the new group takes no step until it is all there. Part of the world, engine
 * thread; the bytes are the engine's affair (engine/reshard.c). Invariants: what a rank holds, or is loading, is in
 * `held`; the cuts of a group's ranks are those of its layout `weights`. Source: Seesaw re-shards so between prefill
 * and decode; a cost beforehand, the overlap, a bound of memory and a cancel are not in its paper. */
#ifndef WORLD_RESIDENCY_H
#define WORLD_RESIDENCY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/world/headmap.h"
#include "engine/world/ids.h"

/* What a rank holds of the layers' matrices. sp counts where tp > 1: uneven heads are cut by both. */
struct cut {
    struct layout layout; /* pp 0: nothing; sp is 1 where tp is */
    int stage, t;
};

/* Of the share of a layout. */
struct cut cut_of(struct layout l, int share);
bool cut_equal(const struct cut *a, const struct cut *b);
struct layer_span cut_layers(const struct cut *c, int n_layers);
/* Do the matrices of one lie in the other, layer by layer, where both have the layer? */
bool cut_shares_layers(const struct cut *a, const struct cut *b);

/* What never changes: made by the node. */
struct residency_facts {
    struct layout start;     /* which the ranks hold first, group by group */
    double load_ns_per_byte; /* as ranks loaded them, all at the same time */
    size_t room;             /* bytes of cuts that a rank may hold at once, old and new */
    int n_layers, n_sizes;
    struct cut_size {
        int sp, tp, t;
        size_t *layers; /* [n_layers] bytes of a layer, cut so */
    } * sizes;
};

struct residency {
    const struct residency_facts *facts; /* NULL: every rank has all weights, or they are pooled */
    struct cut held[MAX_RANKS];
    char why[200]; /* of the last refusal */
};

struct world;
struct group;

/* What a reshard of some ranks moves. */
struct reshard_cost {
    size_t bytes;      /* into all of them */
    size_t most;       /* into the one that takes most: all take theirs at the same time */
    size_t before;     /* of these, what it has room for beside what it holds: comes while the group goes on */
    size_t before_all; /* the same, of all ranks */
    double ns; /* that `most` takes, at the rate of the last ones; of that the part that nothing hides is `stop_ns` */
    double stop_ns;
};

size_t residency_bytes(const struct residency_facts *f, const struct cut *c);
/* What `to` needs that does not lie in `from`. */
size_t residency_missing(const struct residency_facts *f, const struct cut *from, const struct cut *to);
/* Ranks by share. */
void residency_cost(const struct world *w, const int *ranks, int n, struct layout l, struct reshard_cost *out);
/* The layout of so many stages whose cuts these ranks hold, by share. False: there is none. */
bool residency_match(const struct world *w, const int *ranks, int n, int pp, struct layout *out);
/* The layout of so many stages that a group of n ranks takes when nobody says which: the widest tp that a rank has room
 * for. False: none fits. */
bool residency_usual(const struct world *w, int n, int pp, struct layout *out);
/* Why these ranks cannot hold the layout; NULL: they can. */
const char *residency_refusal(struct world *w, int n, struct layout l);
/* Can the group run the layout with what its ranks hold? */
bool residency_runs(const struct world *w, const struct group *g, struct layout l);
/* Why the group cannot run the layout with what its ranks hold, with the bytes that would have to move; NULL: it can.
 * Valid until the next call. */
const char *residency_lacks(struct world *w, const struct group *g, struct layout l);
/* The ranks are to hold this. Returns those of them that do not yet. */
uint64_t residency_take(struct world *w, const int *ranks, int n, struct layout l);

#endif
