/* Which group a waiting request is for, where there are several: the one that would serve it soonest, by what it would
 * have to compute there (its prompt less the prefix that lies there) and by what is ahead of it (prompt tokens and
 * decoding sequences of the group). Decided again at each scheduling point, from facts alone; so who has waited for
 * half of --starvation-seconds is for the first group with room that asks. A policy that adds requests by hand routes
 * as it likes. Invariant: a request is routed only to a group that can take it. */
#ifndef WORLD_ROUTE_H
#define WORLD_ROUTE_H

#include "engine/world/plan.h"

/* What is ahead of a newcomer in each group, before a plan begins. */
void route_count(struct world *w);
/* True when this batch's group is (one of) the best for the request. */
bool route_here(const struct plan_batch *b, struct request *r);

#endif
