/* What never changes about the node: which rank sets may be groups, what a block of KV holds, which layouts run, in how
 * many stages. Made by the engine at start, read by everybody afterwards; plain values, any thread. Invariant: a layout
 * of several stages runs where its stage runs by itself, and the model has a layer for each stage. */
#ifndef WORLD_SHAPE_H
#define WORLD_SHAPE_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/world/headmap.h"
#include "engine/world/ids.h"
#include "engine/world/layout.h"

enum { MAX_SETS = 192 };

struct node_shape {
    int n_ranks, n_sets;
    uint64_t sets[MAX_SETS];
    int n_layers;
    int tokens_per_block[MAX_RANKS + 1];                /* by the number of ranks of a stage, of a piece */
    const char *refusals[MAX_RANKS + 1][MAX_RANKS + 1]; /* [ranks of a stage][tp]: why it cannot run, or NULL; sp =
                                                           ranks / tp */
    const char *no_stages;                              /* why no group can be pipelined; NULL: groups can */
    int weight_stages; /* a rank holds the layers of one of so many stages: all groups have as many; 0, 1: all layers */
};

/* Tokens of a block of a group of so many ranks in pp stages. */
int shape_tokens_per_block(const struct node_shape *s, int n_ranks, int pp);

/* Does any layout run on this many ranks? */
static inline bool shape_runs(const struct node_shape *s, int n_ranks)
{
    return !s->refusals[n_ranks][1] || !s->refusals[n_ranks][n_ranks];
}

/* Can a group of n ranks have its KV in pp stages? NULL, or why not. */
const char *shape_stages_refusal(const struct node_shape *s, int n_ranks, int pp);

/* The place of a set of ranks among those that may be groups; -1: it is none of them. */
int shape_find(const struct node_shape *s, uint64_t mask);
/* Why a group of n_ranks cannot run this layout; NULL: it can. */
const char *shape_refusal(const struct node_shape *s, int n_ranks, struct layout l);
/* The shape of n ranks of a model: the aligned power-of-two ranges and the full set; tokens_per_block: of a block that
 * holds all kv heads of all layers. */
void node_shape_uniform(struct node_shape *s, int n_ranks, const struct heads *h, int n_layers, int tokens_per_block);

#endif
