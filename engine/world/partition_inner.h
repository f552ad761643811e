/* What the files of the partition share: partition.c (groups, orders that wait), partition_round.c (carrying them out),
 * partition_lose.c (ranks that fail, policies that go). Invariant: whoever changes groups or orders marks them. */
#ifndef WORLD_PARTITION_INNER_H
#define WORLD_PARTITION_INNER_H

#include "engine/world/partition.h"
#include "engine/world/world.h"

/* A group of these free ranks, with the base and the weights of the order. */
struct group *partition_create(struct world *w, uint64_t mask, const struct switch_order *o, int64_t now_ns);
void partition_dissolve(struct partition *p, struct group *g);
void partition_mark(struct partition *p); /* which groups wait for an order, and how */
bool partition_is_named(const struct switch_order *o, req_id id);
struct switch_event *partition_record(struct partition *p, const struct switch_pending *s, int64_t now_ns,
                                      bool superseded);
void partition_remove(struct partition *p, int i);                                  /* of those that wait */
void partition_drop(struct partition *p, int i, int64_t now_ns);                    /* nobody is left who wants it */
bool partition_has_no_request(const struct world *w, const struct switch_order *o); /* of those that it names */

#endif
