/* The facts of the view that are one number each: view.now, view.n_waiting and so on, computed from the world. Owned by
 * nobody; any thread that may read the view. Invariant: nothing here is written, so that the same view gives the same
 * numbers wherever a policy runs. */
#ifndef LUA_SCALARS_H
#define LUA_SCALARS_H

#include "engine/world/view.h"

enum scalar {
    S_NOW,
    S_STEP,
    S_WAITING,
    S_RUNNING,
    S_WAITING_TOKENS,
    S_KV_FREE,
    S_KV_TOTAL,
    S_TOKENS_PER_BLOCK,
    S_ARRIVAL_RATE,
    S_MAX_SEQS,
    S_MAX_TOKENS,
    S_LAST_TOKENS,
    S_LAST_MS,
    S_LAST_SWITCH_MS,
    S_HEAD_TOKENS,
    S_GROUP_CAPACITY,
    S_FETCH_MS,
    S_WAS_WAIT_MS,
    S_REPLICAS,
    S_HOST_FREE,
    S_HOST_TOTAL,
    S_COPIES,
    S_STARVATION_S,
    SCALAR_COUNT
};

extern const char *const scalar_names[SCALAR_COUNT]; /* as policies read them */

/* What the view says now; of a side, where it is of one. */
void scalars_read(const struct view *v, double out[SCALAR_COUNT]);
double scalars_head_tokens(const struct view *v); /* S_HEAD_TOKENS alone: it changes with the keys of requests */

#endif
