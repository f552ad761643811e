/* What a policy may know at a scheduling point: facts, read only, frozen for the step. Borrowed from the engine for the
 * length of one call; engine thread. Invariant: a policy changes nothing through it. */
#ifndef WORLD_VIEW_H
#define WORLD_VIEW_H

#include "engine/world/world.h"

struct view {
    const struct world *world; /* queues are in order: world->waiting, world->running */
    int64_t now_ns;
    int n_idle;
    int idle[MAX_RANKS];      /* ids of groups that may take a step: idle and not held */
    bool kept;                /* since the policy was called last nothing has changed but keys in the queue */
    struct embed_facts embed; /* where an encoder is served beside (world->embed); else nothing */
};

static inline const struct group *view_group(const struct view *v, int id) /* NULL: no such group */
{
    return partition_find(&v->world->partition, id);
}
/* The view at this time: which groups may take a step. */
void view_init(struct view *v, const struct world *w, int64_t now_ns);

#endif
