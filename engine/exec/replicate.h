/* A copy of one pooled FFN layer, on every rank that does not own it: what the ranks are told to make, or to give up,
 * as data (engine/world/replica.h says why). Built by the engine, posted to the inboxes of those ranks. A rank that
 * makes one gives the memory of the lent KV blocks back and takes as much for the copy; its fetcher then brings the
 * layer, behind what steps need. One that gives a copy up does so after the steps that it was given before. Handed back
 * when the last rank is done, on whichever thread that is. Invariant: whoever was told of one counts it down exactly
 * once, unless the ranks are closed first. */
#ifndef EXEC_REPLICATE_H
#define EXEC_REPLICATE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "engine/base/err.h"
#include "engine/world/ids.h"

struct replica_task {
    int layer;
    bool gives_up;       /* or makes */
    uint64_t ranks;      /* those that are told */
    int n_blocks;        /* KV blocks that each has lent */
    const int32_t *lent; /* [ranks in the mask][n_blocks], by rank ascending; the world's, which has them until then */
    atomic_int left;     /* ranks yet to be done */
    atomic_int rc;       /* of one that failed */
    _Atomic int64_t ns;  /* on machines that know beforehand */
    int64_t posted_ns;
    /* On the thread of the rank, or of its fetcher, that is done last; NULL: the poster looks at `left`. */
    void (*done)(void *ctx, struct replica_task *t);
    void *ctx;
};

static inline void replica_task_end(struct replica_task *t, int rc)
{
    if (rc)
        atomic_store(&t->rc, rc);
    if (atomic_fetch_sub(&t->left, 1) == 1 && t->done)
        t->done(t->ctx, t);
}

#endif
