/* What one share of a group has to do in one layout, as numbers: heads, rows of the FFN, part of the vocabulary, nodes
 * of the summing trees. Plain values, made at start. Never true: a shard that depends on the batch. */
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
    struct head_span own, tp;  /* heads of the share; of its tp share, which it computes before the all-to-all */
    struct span ffn, vocab;    /* of the intermediate size (by tp), of the vocabulary (by all ranks) */
    struct leaf_range o, down; /* leaves of the tp share's columns */
};

struct heads shard_heads(const struct model_config *c);
/* The layout must not be refused (layout_refusal). */
struct shard shard_of(const struct model_config *c, struct layout l, int share);

#endif
