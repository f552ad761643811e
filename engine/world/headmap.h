/* Which layers and which q and kv heads each share of a group holds, and in which order a group's ranks hold them. One
 * rule covers every layout: q heads are split into n contiguous shares, as even as possible (the first n_q % n have one
 * more); a share stores the kv heads that its q heads need, so GQA, KV replication and uneven counts need no special
 * case. A pipelined group (pp > 1) is cut into stages first: its shares 0 .. sp * tp - 1 are the first stage, which has
 * the first layers, and so on; within a stage the rule above holds. Pure arithmetic, any thread. Invariant: all layouts
 * of a group with the same pp keep each head of each layer on the same rank. Source: Shift Parallelism. */
#ifndef WORLD_HEADMAP_H
#define WORLD_HEADMAP_H

#include <stdbool.h>

#include "engine/world/ids.h"
#include "engine/world/layout.h"

struct heads {
    int n_q, n_kv, head_dim; /* of the model; n_q is a multiple of n_kv */
};

struct head_span {
    int q0, n_q, kv0, n_kv; /* contiguous, in the model's numbering */
};

/* Heads of shares [first, first + count) of n together: a rank's own (count 1), or those of its TP share (count sp,
 * before the all-to-all). */
struct head_span head_span(const struct heads *h, int n, int first, int count);
int head_max_kv(const struct heads *h,
                int n); /* most kv heads that one of n shares stores: what KV blocks are sized for */
/* Layers [first, first + n) of one stage: contiguous, as even as can be; the first n_layers % pp stages have one more.
 */
struct layer_span {
    int first, n;
};
struct layer_span stage_layers(int n_layers, int pp, int stage);
/* A rank of a stage caches fewer layers, so that a block of its constant bytes is worth so many blocks of a rank that
 * caches all layers: its pieces. */
int stage_pieces(int n_layers, int pp);
/* The layout of one stage by itself; which stage a share belongs to; its share in that stage. */
static inline struct layout layout_of_stage(struct layout l)
{
    return (struct layout){l.sp, l.tp, 1};
}
static inline int share_stage(struct layout l, int share)
{
    return share / (l.sp * l.tp);
}
static inline int share_in_stage(struct layout l, int share)
{
    return share % (l.sp * l.tp);
}
/* In layout {sp, tp} the rank with share i stands at (s, t) = (i mod sp, i div sp). */
static inline int share_s(struct layout l, int share)
{
    return share % l.sp;
}
static inline int share_t(struct layout l, int share)
{
    return share / l.sp;
}
/* share_of[r] of the r-th rank of a group whose base layout puts TP groups on adjacent ranks (the paper's order:
 * (0,3,1,4,2,5) for sp 3, tp 2), stage by stage. A base with sp or tp 1 gives the identity. */
void share_order(struct layout base, int *share_of);
/* Rows [*row0, *row0 + *n) of n_rows that member s of sp computes: slices of ceil(n_rows / sp), the last ones shorter
 * or empty, so nothing is computed for padding. */
void row_slice(int n_rows, int sp, int s, int *row0, int *n);
/* NULL when a model of these heads can run in this layout, else why not ("9 query heads cannot be shared by 16 ranks").
 */
const char *layout_refusal(const struct heads *h, struct layout l);

#endif
