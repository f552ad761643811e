/* The communicator pool of a node: one set for every rank set that a group may have, with what its layouts need. All
 * are made at start, none while serving. Keyed by the set of ranks. What each set measured at start (latency, bandwidth
 * by size and algorithm) is kept with it. Owned by the engine; comm_pool_* run on the engine's thread, the comms inside
 * are used by the ranks' threads through kernels/backend.h. Invariant: a comm_set serves one step at a time. Source:
 * the pool of aligned power-of-two ranges is Flying Serving's. */
#ifndef EXEC_COMM_H
#define EXEC_COMM_H

#include "engine/exec/comm_measure.h"
#include "engine/world/headmap.h"
#include "kernels/backend.h"

struct comm_set;
struct comm_pool;

struct comm_pool_setup {
    const struct backend_ops *ops;
    struct device *const *devices; /* [n_ranks], not in use while the pool opens */
    int n_ranks;
    const uint64_t *extra; /* rank sets as bit masks beyond the aligned power-of-two ranges and the full set */
    int n_extra;
    bool measure; /* takes some ms a set; runs on threads of its own, before the ranks start */
};

/* E_INPUT for an extra set that names a rank which is not there. */
int comm_pool_open(struct comm_pool **out, const struct comm_pool_setup *s, struct err *e);
void comm_pool_close(struct comm_pool *p);      /* NULL is fine */
int comm_pool_count(const struct comm_pool *p); /* sets of two ranks and more, each once */
uint64_t comm_pool_mask(const struct comm_pool *p, int i);
/* NULL: not in the pool. A set of one rank needs no communicator and is never in it. */
struct comm_set *comm_find(const struct comm_pool *p, uint64_t ranks);
const struct comm_measure *comm_measured(const struct comm_set *c);
void comm_set_measured(struct comm_set *c, const struct comm_measure *m); /* of another machine that is played here */
/* The comms of one share of the set in a layout: of its stage its SP group (same t, member index s), its TP group (same
 * s, member index t), all (member index its share in the stage; NULL: the stage is one rank); and those to the same
 * share of the stage before (it is member 1) and of the next one (it is member 0), NULL where there is none. */
struct comm_seat {
    struct comm *sp, *tp, *all, *from, *to;
    size_t twoshot_bytes; /* all-reduces of so many bytes and more take two shots */
    size_t library_bytes; /* of so many and more, the library; 0: none do */
};
/* The layout has as many ranks as the set. how: auto picks by size from what was measured; all members of a step must
 * take the same. */
struct comm_seat comm_seat(const struct comm_set *c, struct layout l, int share, enum comm_algorithm how);
/* After a step failed in it: every comm inside is as new. Only while no step runs in it. */
void comm_reset(struct comm_set *c);
void comm_reset_within(struct comm_pool *p, uint64_t ranks); /* all sets inside this one */

#endif
