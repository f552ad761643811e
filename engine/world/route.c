#include "engine/world/route.h"

/* A decoding sequence delays a newcomer about as much as this many prompt tokens. */
enum { TOKENS_PER_DECODE = 8, TIE_TOKENS = 64 };

void route_count(struct world *w)
{
    struct partition *p = &w->partition;
    for (int i = 0; i < p->n_groups; i++)
        partition_slot(p, i)->load = 0;
    if (p->n_groups < 2)
        return;
    for (int i = 0; i < w->running.n; i++) {
        struct group *g = partition_find_slot(p, w->running.items[i]->group);
        int left = request_remaining(w->running.items[i]);
        g->load += left > TOKENS_PER_DECODE ? left : TOKENS_PER_DECODE;
    }
}

/* Tokens to compute for r in g and before it, per rank; INT64_MAX: it is not certain that it can start there. Cached
 * blocks that it would hold count as taken, as does the room that is kept for those who decode: who is left to a group
 * must find room in it. */
static int64_t cost_in(const struct plan *p, const struct group *g, struct request *r)
{
    const struct world *w = p->world;
    int place = g->place, tpb = kv_place(&w->kv, place)->tokens_per_block;
    if (g->held || !partition_admits(&w->partition, g, r) || (r->parked && r->place != place && !world_in_host(w, r)))
        return INT64_MAX;
    int hits = r->parked ? 0 : world_prefix(w, r, place);
    int64_t need = r->n_tokens - (r->parked ? r->n_computed : hits * tpb);
    int spare = p->n_running ? kv_reserve(&w->kv) : 0;
    int own = world_in_host(w, r) ? 0 : r->n_blocks;
    if (kv_blocks_for(&w->kv, place, r->n_tokens) - own + spare > plan_blocks(p, g->id))
        return INT64_MAX;
    for (int i = 0; i < p->n_batches; i++)
        if (p->batches[i]->group == g)
            need += p->batches[i]->n_tokens;
    return (need + g->load) / g->n_ranks;
}

/* For that part of the time after which it is late. The group that is soonest now may have no room, or longer prompts,
 * when its turn has come. */
static bool has_waited(const struct plan *p, const struct request *r, double part)
{
    int64_t starves_ns = p->world->limits.starvation_ns;
    return starves_ns && (double)(p->now_ns - r->progress_ns) > part * (double)starves_ns;
}

bool route_here(const struct plan_batch *b, struct request *r)
{
    struct partition *t = &b->plan->world->partition;
    if (t->n_groups == 1)
        return true;
    int64_t mine = cost_in(b->plan, b->group, r), other = INT64_MAX;
    if (has_waited(b->plan, r, mine < INT64_MAX ? 0.5 : 1))
        return true; /* late, without room: those behind it would take what comes, here and in the next group */
    for (int i = 0; i < t->n_groups; i++) {
        const struct group *g = partition_group(t, i);
        int64_t cost = g == b->group || g->canary != b->group->canary ? INT64_MAX : cost_in(b->plan, g, r);
        other = cost < other ? cost : other;
    }
    if (mine == INT64_MAX) /* no group is certain to have room: the one that asks may find that it has */
        return other == INT64_MAX;
    return other >= mine - TIE_TOKENS;
}
