/* What a policy may know at a scheduling point: facts, read only, frozen for the step. Borrowed from the engine for the
 * length of one call; engine thread. Invariant: a policy changes nothing through it. */
#ifndef WORLD_VIEW_H
#define WORLD_VIEW_H

#include "engine/world/world.h"

struct view {
    const struct world *world; /* queues are in order: world->waiting, world->running */
    enum side side;            /* of which groups and requests it is; nothing of the other is in it */
    int64_t now_ns;
    int n_idle;
    int idle[MAX_RANKS];      /* ids of groups of the side that may take a step: idle and not held */
    bool kept;                /* since the policy was called last nothing has changed but keys in the queue */
    struct embed_facts embed; /* where an encoder is served beside (world->embed); else nothing */
};

static inline const struct group *view_group(const struct view *v, int id) /* NULL: no such group on its side */
{
    const struct group *g = partition_find(&v->world->partition, id);
    return g && side_has(v->side, g->canary) ? g : NULL;
}
/* The live policy's view at this time: which groups may take a step; and that of a side. */
void view_init(struct view *v, const struct world *w, int64_t now_ns);
void view_init_of(struct view *v, const struct world *w, enum side s, int64_t now_ns);

#endif
