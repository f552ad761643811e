/* What a policy may know at a scheduling point: facts, read only, frozen for the step. Borrowed from the engine for the length of one call; engine
 * thread. Never true: that a policy changes anything through it. */
#ifndef WORLD_VIEW_H
#define WORLD_VIEW_H

#include "engine/world/world.h"

struct view {
    const struct world *world;      /* queues are in order: world->waiting, world->running */
    int64_t now_ns;
    int n_idle;
    int idle[MAX_RANKS];            /* ids of idle groups */
};

static inline const struct group *view_group(const struct view *v, int id) /* NULL: no such group */
{
    return id >= 1 && id <= v->world->n_groups ? &v->world->groups[id - 1] : (const struct group *)0;
}

#endif
