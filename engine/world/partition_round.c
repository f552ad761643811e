/* Orders that are ready, carried out together. */
#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "engine/world/partition_inner.h"

bool partition_weights_there(struct world *w, uint64_t serial)
{
    struct partition *p = &w->partition;
    for (int i = 0; i < p->n_pending; i++) {
        struct switch_pending *s = &p->pending[i];
        if (s->serial != serial)
            continue;
        s->weights = WEIGHTS_THERE;
        s->forced |= s->order.when == WHEN_READY;
        partition_mark(p);
        return true;
    }
    return false;
}

void partition_loaded(struct world *w, int group)
{
    struct group *g = partition_find_slot(&w->partition, group);
    ASSERT(g && g->loading && !g->idle);
    g->loading = 0;
    g->idle = true;
}

/* Does anything of this group keep the order waiting? */
static bool group_ready(const struct world *w, const struct group *g, const struct switch_pending *s)
{
    if (!g->idle)
        return false;
    for (int i = 0; i < w->running.n; i++) {
        const struct request *r = w->running.items[i];
        if (r->group == g->id && (r->busy || r->n_moving || (!s->forced && !partition_is_named(&s->order, r->id))))
            return false;
    }
    return true;
}

static bool is_ready(struct world *w, const struct switch_pending *s)
{
    struct partition *p = &w->partition;
    if (s->weights == WEIGHTS_COMING || (s->order.when == WHEN_READY && !s->forced))
        return false;
    for (int i = 0; i < p->n_groups; i++)
        if (partition_slot(p, i)->mask & s->order.mask && !group_ready(w, partition_slot(p, i), s))
            return false;
    return true;
}

/* One round of switches that are carried out together, so that sequences of a group that goes find all groups that
 * come. */
struct round {
    struct world *w;
    int64_t now_ns;
    struct switch_pending done[MAX_RANKS];
    int n_done;
    req_id *orphans;
    uint64_t *events; /* [n_orphans] of the switch that took its group */
    int n_orphans;
    int created[MAX_RANKS], n_created;
};

static void take_orphans(struct round *u, struct group *g, uint64_t event)
{
    struct world *w = u->w;
    for (int i = 0; i < w->running.n; i++) {
        struct request *r = w->running.items[i];
        if (r->group != g->id)
            continue;
        r->group = 0;
        u->orphans[u->n_orphans] = r->id;
        u->events[u->n_orphans++] = event;
    }
}

static void begin_switch(struct round *u, const struct switch_pending *s)
{
    struct partition *p = &u->w->partition;
    uint64_t event = partition_record(p, s, u->now_ns, false)->serial;
    for (int i = p->n_groups - 1; i >= 0; i--) {
        struct group *g = partition_slot(p, i);
        if (g->mask & s->order.mask) {
            take_orphans(u, g, event);
            p->left_out |= g->mask;
            partition_dissolve(p, g);
        }
    }
}

/* Where a sequence whose group went may run on: among the new groups (all, when there is none) the one that shares most
 * of its ranks, then the emptiest. */
static struct group *best_home(struct round *u, const struct request *r)
{
    struct world *w = u->w;
    struct partition *p = &w->partition;
    uint64_t from = kv_place(&w->kv, r->place)->mask;
    struct group *best = NULL;
    int best_shared = -1, n = u->n_created ? u->n_created : p->n_groups;
    for (int i = 0; i < n; i++) {
        struct group *g = u->n_created ? partition_find_slot(p, u->created[i]) : partition_slot(p, i);
        int shared = __builtin_popcountll(g->mask & from) > 0;
        if (g->held || g->closed || g->shut ||
            kv_available(&w->kv, g->place) < kv_blocks_for(&w->kv, g->place, r->n_computed + 1))
            continue;
        if (shared > best_shared || (shared == best_shared && g->n_running < best->n_running)) {
            best = g;
            best_shared = shared;
        }
    }
    return best;
}

static struct group *group_at(struct partition *p, int place)
{
    for (int i = 0; i < p->n_groups; i++)
        if (partition_slot(p, i)->place == place)
            return partition_slot(p, i);
    return NULL;
}

static void settle(struct round *u, struct request *r, struct switch_event *ev)
{
    struct world *w = u->w;
    bool for_it =
        ev && partition_is_named(&ev->order,
                                 r->id); /* a request that the switch is for moves to the group that was made for it */
    enum kv_fate fate = for_it ? FATE_MIGRATE : ev ? ev->order.fate : FATE_RECOMPUTE;
    struct group *same = r->n_blocks ? group_at(&w->partition, r->place) : NULL;
    struct group *home = !same && r->n_blocks && fate == FATE_MIGRATE ? best_home(u, r) : NULL;
    if (same) {
        r->group = same->id;
        same->n_running++;
    } else if (home) {
        bool moved = world_migrate(w, r, home, ev->serial);
        ASSERT(moved);
    } else if (fate != FATE_HOST || !r->n_blocks || r->n_moving || !world_swap_out(w, r, ev->serial, u->now_ns)) {
        world_preempt(w, r, fate != FATE_RECOMPUTE,
                      u->now_ns); /* no room to move: parked, until there is or its time is up */
    }
    if (!ev)
        return;
    ev->n_kept += same != NULL;
    ev->n_moved += home != NULL;
    ev->n_parked += !same && !home && r->parked;
    ev->n_recomputed += !same && !home && !r->parked;
    if (r->last_token_ns && !r->switched_by) {
        r->switched_by = ev->serial;
        ev->n_open++;
    }
}

static void finish_round(struct round *u)
{
    struct partition *p = &u->w->partition;
    for (int i = 0; i < u->n_done; i++) {
        const struct switch_order *o = &u->done[i].order;
        if (!o->release)
            u->created[u->n_created++] = partition_create(u->w, o->mask, o, u->now_ns)->id;
    }
    for (int i = 0; i < u->n_orphans; i++)
        settle(u, request_find(&u->w->requests, u->orphans[i]), partition_event_slot(p, u->events[i]));
    p->n_switches += (uint64_t)u->n_done;
    partition_mark(p);
}

int partition_advance(struct world *w, int64_t now_ns)
{
    struct partition *p = &w->partition;
    for (int i = p->n_pending - 1; i >= 0; i--)
        if (partition_has_no_request(w, &p->pending[i].order))
            partition_drop(p, i, now_ns);
    partition_mark(p);
    if (!p->n_pending)
        return 0;
    struct round *u = mem_new(sizeof *u);
    u->w = w;
    u->now_ns = now_ns;
    u->orphans = mem_new_array((size_t)w->running.n + 1, sizeof *u->orphans);
    u->events = mem_new_array((size_t)w->running.n + 1, sizeof *u->events);
    for (int i = 0; i < p->n_pending; i++)
        p->pending[i].forced |= now_ns >= p->pending[i].deadline_ns;
    partition_mark(p);
    for (int i = 0; i < p->n_pending; i++)
        if (is_ready(w, &p->pending[i]))
            u->done[u->n_done++] = p->pending[i];
    for (int i = p->n_pending - 1; i >= 0; i--)
        for (int k = 0; k < u->n_done; k++)
            if (p->pending[i].serial == u->done[k].serial) {
                partition_remove(p, i);
                break;
            }
    partition_mark(p);
    for (int i = 0; i < u->n_done; i++)
        begin_switch(u, &u->done[i]);
    int n = u->n_done;
    if (n)
        finish_round(u);
    mem_free(u->orphans);
    mem_free(u->events);
    mem_free(u);
    return n;
}
