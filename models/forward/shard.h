/* What one share of a layout computes, as numbers: its heads, its part of the FFN and of the vocabulary, its nodes of
 * the summation trees. Plain values, made at start. Invariant: a shard depends on the model, the layout and the share
 * only, never on a batch. */
#ifndef MODELS_FORWARD_SHARD_H
#define MODELS_FORWARD_SHARD_H

#include "engine/world/headmap.h"
#include "models/load/model.h"
#include "models/forward/sum_tree.h"

/* Consecutive outputs or columns. */
struct span {
    int first, n;
};

struct shard {
    struct layout layout;
    int n, share, s, t; /* n ranks; (s, t): its place in the sp and tp groups */
    struct heads heads;
    struct head_span own, tp;  /* heads of the share; heads of its tp share, which it projects before the all-to-all */
    struct span ffn, vocab;    /* of the intermediate size (split by tp), of the vocabulary (split by all ranks) */
    struct leaf_range o, down; /* leaves of the tp share's columns */
};

/* The columns of these leaves, of so many: the last leaf may be short. */
struct span columns_of(struct leaf_range r, int cols);
struct heads shard_heads(const struct model_config *c);
/* The layout must be one that layout_refusal accepts. */
struct shard shard_of(const struct model_config *c, struct layout l, int share);

#endif
