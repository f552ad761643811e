#include "engine/world/view.h"

void view_init(struct view *v, const struct world *w, int64_t now_ns)
{
    view_init_of(v, w, world_live_side(w), now_ns);
}

void view_init_of(struct view *v, const struct world *w, enum side s, int64_t now_ns)
{
    const struct partition *p = &w->partition;
    v->world = w;
    v->side = s;
    v->now_ns = now_ns;
    v->n_idle = 0;
    v->kept = false;
    if (w->embed)
        embed_link_see(w->embed, &v->embed);
    for (int i = 0; i < p->n_groups; i++) {
        const struct group *g = partition_group(p, i);
        if (g->idle && !g->held && side_has(s, g->canary))
            v->idle[v->n_idle++] = g->id;
    }
}
