/* What the ranks of one reshard are told, as data (engine/world/residency.h says why): to bring what they lack of their
 * new cuts beside what they hold (stage), to change over (take), or to drop what was staged. Built by the engine,
 * posted to those ranks, handed back when the last has done, on whichever thread that is. To stage is done beside the
 * steps; to take and to drop between them. Invariants: a rank has at most one of them at a time; each rank counts it
 * down exactly once, unless the ranks are closed first. */
#ifndef EXEC_RESHARD_H
#define EXEC_RESHARD_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "engine/base/err.h"
#include "engine/world/residency.h"

enum reshard_kind { RESHARD_STAGE, RESHARD_TAKE, RESHARD_DROP };

struct reshard_task {
    enum reshard_kind kind;
    uint64_t order;           /* stage: the serial of the order that it is for */
    int group;                /* take: which takes no step until it is done */
    uint64_t ranks;           /* those that are told */
    struct cut to[MAX_RANKS]; /* by rank */
    size_t room;              /* as in struct residency_facts */
    size_t most;              /* bytes that the rank with most of them is expected to bring */
    size_t expected;          /* the same, of all ranks */
    atomic_bool stop;         /* stage: ends as soon as it can, with what has come */
    atomic_int left;          /* ranks yet to be done */
    atomic_int failed;        /* a rank that could not, plus one; 0: none */
    struct err err;           /* of the first that failed */
    atomic_llong bytes;       /* that have come, of all ranks */
    _Atomic int64_t ns;       /* on machines that know beforehand: of the rank that has most */
    int64_t posted_ns;
    /* On the thread of the rank that is done last; NULL: the poster looks at `left`. */
    void (*done)(void *ctx, struct reshard_task *t);
    void *ctx;
};

static inline void reshard_task_end(struct reshard_task *t, int rank, int rc, const struct err *e)
{
    int none = 0;
    if (rc && atomic_compare_exchange_strong(&t->failed, &none, rank + 1))
        t->err = *e;
    if (atomic_fetch_sub(&t->left, 1) == 1 && t->done)
        t->done(t->ctx, t);
}

#endif
