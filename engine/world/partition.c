#include "engine/world/partition.h"

#include <stdio.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "engine/world/world.h"

const char *switch_when_name(enum switch_when w)
{
    static const char *const names[] = {"hard", "drain", "soft"};
    return names[w];
}

const char *kv_fate_name(enum kv_fate f)
{
    static const char *const names[] = {"keep", "migrate", "park", "recompute", "host"};
    return names[f];
}

void partition_init(struct partition *p, int n_ranks)
{
    memset(p, 0, sizeof *p);
    p->free_ranks = rank_range(0, n_ranks);
    p->next_serial = 1;
    p->start_stages = 1;
}

/* The slot that this id would have, or -1: it has gone. */
static int slot_of(const struct partition *p, int id)
{
    int i = id > 0 ? (id - 1) % MAX_RANKS : -1;
    return i >= 0 && p->groups[i].id == id ? i : -1;
}

const struct group *partition_find(const struct partition *p, int id)
{
    int i = slot_of(p, id);
    return i < 0 ? NULL : &p->groups[i];
}

struct group *partition_find_slot(struct partition *p, int id)
{
    int i = slot_of(p, id);
    return i < 0 ? NULL : &p->groups[i];
}

static bool is_identity(struct layout base)
{
    return base.sp <= 1 || base.tp <= 1;
}

static bool same_order(struct layout a, struct layout b)
{
    if (a.pp != b.pp || is_identity(a) != is_identity(b))
        return false;
    return is_identity(a) || (a.sp == b.sp && a.tp == b.tp);
}

const struct group *partition_match(const struct partition *p, uint64_t mask, struct layout base)
{
    for (int i = 0; i < p->n_groups; i++) {
        const struct group *g = partition_group(p, i);
        if (g->mask == mask && same_order(g->base, base))
            return g;
    }
    return NULL;
}

void group_note_step(struct group *g, int n_tokens, int64_t ns)
{
    g->mean_tokens += (n_tokens - g->mean_tokens) / (g->n_steps ? 16 : 1);
    g->last_step_tokens = n_tokens;
    g->last_step_ns = ns;
    g->n_steps++;
}

const struct switch_event *partition_event(const struct partition *p, uint64_t serial)
{
    const struct switch_event *e = &p->events[serial % SWITCH_EVENTS];
    return serial && e->serial == serial ? e : NULL;
}

struct switch_event *partition_event_slot(struct partition *p, uint64_t serial)
{
    struct switch_event *e = &p->events[serial % SWITCH_EVENTS];
    return serial && e->serial == serial ? e : NULL;
}

/* ---- groups come and go */

static int first_rank(const struct group *g)
{
    return __builtin_ctzll(g->mask);
}

static struct group *free_slot(struct partition *p)
{
    for (int i = 0; i < MAX_RANKS; i++)
        if (!p->groups[i].id)
            return &p->groups[i];
    ASSERT(!"more groups than ranks");
    return NULL;
}

/* The ranks of the mask by share, in the order that the base layout asks for. */
static int ranks_by_share(uint64_t mask, struct layout base, int *ranks)
{
    int n = 0, share[MAX_RANKS], ascending[MAX_RANKS];
    for (int r = 0; r < MAX_RANKS; r++)
        if (mask >> r & 1)
            ascending[n++] = r;
    if (is_identity(base))
        base = (struct layout){n / base.pp, 1, base.pp};
    share_order(base, share);
    for (int i = 0; i < n; i++)
        ranks[share[i]] = ascending[i];
    return n;
}

static struct group *create(struct world *w, uint64_t mask, struct layout base, int64_t now_ns)
{
    struct partition *p = &w->partition;
    struct group *g = free_slot(p);
    ASSERT((mask & ~p->free_ranks) == 0);
    memset(g, 0, sizeof *g);
    g->n_ranks = ranks_by_share(mask, base, g->ranks);
    g->id = (int)(p->epoch++ % (INT32_MAX / MAX_RANKS - 1)) * MAX_RANKS + (int)(g - p->groups) + 1;
    g->mask = mask;
    g->base = is_identity(base) ? (struct layout){g->n_ranks / base.pp, 1, base.pp} : base;
    g->layout = g->base;
    g->idle = true;
    g->bound_ns = now_ns;
    g->ffn = w->ffn_usual;
    g->place = kv_place_open(
        &w->kv, &(struct kv_place_setup){.ranks = g->ranks,
                                         .n = g->n_ranks,
                                         .stages = base.pp,
                                         .pieces = base.pp > 1 ? stage_pieces(w->shape.n_layers, base.pp) : 1,
                                         .tokens_per_block = shape_tokens_per_block(&w->shape, g->n_ranks, base.pp)});
    ASSERT(g->place >= 0);
    p->free_ranks &= ~mask;
    p->left_out &= ~mask;
    int at = p->n_groups++;
    for (; at > 0 && first_rank(partition_slot(p, at - 1)) > first_rank(g); at--)
        p->order[at] = p->order[at - 1];
    p->order[at] = (int)(g - p->groups);
    return g;
}

static void dissolve(struct partition *p, struct group *g)
{
    int i = 0, slot = (int)(g - p->groups);
    while (p->order[i] != slot)
        i++;
    p->n_groups--;
    memmove(&p->order[i], &p->order[i + 1], (size_t)(p->n_groups - i) * sizeof *p->order);
    p->free_ranks |= g->mask & ~p->dead_ranks;
    memset(g, 0, sizeof *g);
}

/* ---- orders */

static bool is_named(const struct switch_order *o, req_id id)
{
    for (int i = 0; i < o->n_named; i++)
        if (o->named[i] == id)
            return true;
    return false;
}

static bool same_named(const struct switch_order *a, const struct switch_order *b)
{
    for (int i = 0; i < a->n_named; i++)
        if (!is_named(b, a->named[i]))
            return false;
    return a->n_named == b->n_named;
}

/* The same but for the words of its reason. */
static bool same_order_given(const struct switch_order *a, const struct switch_order *b)
{
    return a->release == b->release && a->mask == b->mask && a->when == b->when && a->fate == b->fate &&
           a->max_wait_ns == b->max_wait_ns && same_order(a->base, b->base) && same_named(a, b);
}

/* Is what the order asks for the case already? */
static bool is_done(const struct partition *p, const struct switch_order *o)
{
    return o->release ? (o->mask & ~p->free_ranks) == 0 : partition_match(p, o->mask, o->base) != NULL;
}

bool partition_stands(const struct partition *p, const struct switch_order *o)
{
    bool overlaps = false;
    for (int i = 0; i < p->n_pending; i++) {
        if (same_order_given(&p->pending[i].order, o))
            return true;
        overlaps |= (p->pending[i].order.mask & o->mask) != 0;
    }
    return !overlaps && is_done(p, o);
}

int partition_algorithm(const struct world *w, uint64_t ranks)
{
    int i = shape_find(&w->shape, ranks);
    return i < 0 ? 0 : w->partition.algorithms[i];
}

void partition_set_algorithm(struct world *w, uint64_t ranks, int algorithm)
{
    int i = shape_find(&w->shape, ranks);
    ASSERT(i >= 0);
    w->partition.algorithms[i] = algorithm;
}

static bool has_no_request(const struct world *w, const struct switch_order *o)
{
    for (int i = 0; i < o->n_named; i++)
        if (request_find(&w->requests, o->named[i]))
            return false;
    return o->n_named > 0;
}

const char *partition_refusal(struct world *w, const struct switch_order *o)
{
    struct partition *p = &w->partition;
    int ranks[MAX_RANKS], n = __builtin_popcountll(o->mask);
    if (!o->mask || o->mask & ~rank_range(0, w->shape.n_ranks))
        return "no such ranks";
    if (o->mask & p->dead_ranks)
        return "one of these ranks has failed";
    if (has_no_request(w, o))
        return "none of the requests that the order is for is here (any more)";
    if (o->release)
        return NULL;
    if (shape_find(&w->shape, o->mask) < 0)
        return "no communicator for these ranks: aligned power-of-two ranges and the whole node have one (--comm-sets "
               "adds more)";
    if (o->base.pp < 1 || n % o->base.pp || (!is_identity(o->base) && layout_size(o->base) != n))
        return "base: sp * tp * pp is not the number of ranks";
    if (shape_stages_refusal(&w->shape, n, o->base.pp))
        return shape_stages_refusal(&w->shape, n, o->base.pp);
    if (!shape_runs(&w->shape, n / o->base.pp))
        return w->shape.refusals[n / o->base.pp][n / o->base.pp];
    ranks_by_share(o->mask, o->base, ranks);
    if (kv_place_find(&w->kv, ranks, n, o->base.pp) < 0 && w->kv.n_places == MAX_PLACES)
        return "too many different rank orders have been used";
    return NULL;
}

static void record(struct partition *p, const struct switch_pending *s, int64_t now_ns, bool superseded)
{
    p->events[s->serial % SWITCH_EVENTS] = (struct switch_event){
        .order = s->order, .serial = s->serial, .asked_ns = s->since_ns, .done_ns = now_ns, .superseded = superseded};
}

static void remove_pending(struct partition *p, int i)
{
    p->n_pending--;
    memmove(&p->pending[i], &p->pending[i + 1], (size_t)(p->n_pending - i) * sizeof *p->pending);
}

/* Which groups wait for an order, and how. */
static void mark_groups(struct partition *p)
{
    for (int i = 0; i < p->n_groups; i++) {
        struct group *g = partition_slot(p, i);
        g->held = g->closed = false;
        for (int k = 0; k < p->n_pending; k++) {
            if (!(p->pending[k].order.mask & g->mask))
                continue;
            g->closed = true;
            g->held |= p->pending[k].forced;
        }
    }
}

/* Nobody is left who wants it. */
static void drop_order(struct partition *p, int i, int64_t now_ns)
{
    uint64_t serial = p->pending[i].serial;
    record(p, &p->pending[i], now_ns, true);
    partition_event_slot(p, serial)->dropped = true;
    remove_pending(p, i);
}

void partition_ask(struct world *w, const struct switch_order *o, int64_t now_ns)
{
    struct partition *p = &w->partition;
    struct switch_pending s = {
        .order = *o, .since_ns = now_ns, .deadline_ns = now_ns + o->max_wait_ns, .forced = o->when == WHEN_HARD};
    if (partition_stands(p, o))
        return;
    for (int i = p->n_pending - 1; i >= 0; i--)
        if (p->pending[i].order.mask &
            o->mask) { /* a request that waits for these ranks does not wait longer because the order changes */
            s.deadline_ns = p->pending[i].deadline_ns < s.deadline_ns ? p->pending[i].deadline_ns : s.deadline_ns;
            record(p, &p->pending[i], now_ns, true);
            remove_pending(p, i);
        }
    if (!is_done(p, o)) {
        ASSERT(p->n_pending < MAX_RANKS);
        s.serial = p->next_serial++;
        p->pending[p->n_pending++] = s;
    }
    mark_groups(p);
}

int64_t partition_next_ns(const struct partition *p)
{
    int64_t next = INT64_MAX;
    for (int i = 0; i < p->n_pending; i++)
        if (!p->pending[i].forced && p->pending[i].deadline_ns < next)
            next = p->pending[i].deadline_ns;
    return next;
}

bool partition_admits(const struct partition *p, const struct group *g, const struct request *r)
{
    if (g->shut || !g->closed)
        return !g->shut;
    for (int i = 0; i < p->n_pending; i++) {
        const struct switch_pending *s = &p->pending[i];
        if (s->order.mask & g->mask)
            return s->order.when == WHEN_SOFT && !s->forced && is_named(&s->order, r->id);
    }
    return false;
}

/* ---- carrying out */

/* Does anything of this group keep the order waiting? */
static bool group_ready(const struct world *w, const struct group *g, const struct switch_pending *s)
{
    if (!g->idle)
        return false;
    for (int i = 0; i < w->running.n; i++) {
        const struct request *r = w->running.items[i];
        if (r->group == g->id && (r->busy || r->n_moving || (!s->forced && !is_named(&s->order, r->id))))
            return false;
    }
    return true;
}

static bool is_ready(struct world *w, const struct switch_pending *s)
{
    struct partition *p = &w->partition;
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

static void take_orphans(struct round *u, struct group *g, uint64_t serial)
{
    struct world *w = u->w;
    for (int i = 0; i < w->running.n; i++) {
        struct request *r = w->running.items[i];
        if (r->group != g->id)
            continue;
        r->group = 0;
        u->orphans[u->n_orphans] = r->id;
        u->events[u->n_orphans++] = serial;
    }
}

static void begin_switch(struct round *u, const struct switch_pending *s)
{
    struct partition *p = &u->w->partition;
    record(p, s, u->now_ns, false);
    for (int i = p->n_groups - 1; i >= 0; i--) {
        struct group *g = partition_slot(p, i);
        if (g->mask & s->order.mask) {
            take_orphans(u, g, s->serial);
            p->left_out |= g->mask;
            dissolve(p, g);
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
    bool for_it = ev && is_named(&ev->order,
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
            u->created[u->n_created++] = create(u->w, o->mask, o->base, u->now_ns)->id;
    }
    for (int i = 0; i < u->n_orphans; i++)
        settle(u, request_find(&u->w->requests, u->orphans[i]), partition_event_slot(p, u->events[i]));
    p->n_switches += (uint64_t)u->n_done;
    mark_groups(p);
}

int partition_advance(struct world *w, int64_t now_ns)
{
    struct partition *p = &w->partition;
    for (int i = p->n_pending - 1; i >= 0; i--)
        if (has_no_request(w, &p->pending[i].order))
            drop_order(p, i, now_ns);
    mark_groups(p);
    if (!p->n_pending)
        return 0;
    struct round *u = mem_new(sizeof *u);
    u->w = w;
    u->now_ns = now_ns;
    u->orphans = mem_new_array((size_t)w->running.n + 1, sizeof *u->orphans);
    u->events = mem_new_array((size_t)w->running.n + 1, sizeof *u->events);
    for (int i = 0; i < p->n_pending; i++)
        p->pending[i].forced |= now_ns >= p->pending[i].deadline_ns;
    mark_groups(p);
    for (int i = 0; i < p->n_pending; i++)
        if (is_ready(w, &p->pending[i]))
            u->done[u->n_done++] = p->pending[i];
    for (int i = p->n_pending - 1; i >= 0; i--)
        for (int k = 0; k < u->n_done; k++)
            if (p->pending[i].serial == u->done[k].serial) {
                remove_pending(p, i);
                break;
            }
    mark_groups(p);
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

/* ---- a rank fails */

/* Everybody whose KV lay on the rank begins again. */
static void lose_kv(struct world *w, int rank, int64_t now_ns)
{
    for (int i = 0; i < w->requests.n_slots; i++) {
        struct request *r = w->requests.slots[i];
        if (!r)
            continue;
        bool copied = r->n_moving && r->moving_from >> rank & 1; /* a copy may have read what was lost */
        bool touched = copied || (r->n_blocks && kv_place(&w->kv, r->place)->mask >> rank & 1);
        if (r->busy)
            r->lost |= copied;
        else if (touched || (r->state == REQ_RUNNING && !r->group))
            world_preempt(w, r, false, now_ns);
    }
}

/* These free ranks, of a lost group or left out, form the largest groups there may be. */
static void regroup(struct world *w, uint64_t ranks, int64_t now_ns)
{
    while (ranks) {
        uint64_t best = 0;
        for (int i = 0; i < w->shape.n_sets; i++) {
            uint64_t s = w->shape.sets[i];
            int n = __builtin_popcountll(s);
            if ((s & ~ranks) == 0 && shape_runs(&w->shape, n) && n > __builtin_popcountll(best))
                best = s;
        }
        if (!best)
            return;
        create(w, best, (struct layout){1, 1, 1}, now_ns);
        ranks &= ~best;
    }
}

void partition_lose(struct world *w, int rank, int64_t now_ns)
{
    struct partition *p = &w->partition;
    uint64_t living = 0, bit = 1ull << rank;
    p->dead_ranks |= bit;
    p->free_ranks &= ~bit;
    p->left_out &= ~bit;
    for (int i = p->n_pending - 1; i >= 0; i--)
        if (p->pending[i].order.mask & bit) {
            record(p, &p->pending[i], now_ns, true);
            remove_pending(p, i);
        }
    for (int i = 0; i < p->n_groups; i++) {
        struct group *g = partition_slot(p, i);
        if (!(g->mask & bit))
            continue;
        ASSERT(g->idle);
        living = g->mask & ~bit;
        for (int k = 0; k < w->running.n; k++)
            if (w->running.items[k]->group == g->id)
                w->running.items[k]->group = 0;
        dissolve(p, g);
        break;
    }
    lose_kv(w, rank, now_ns);
    kv_forget_rank(&w->kv, rank);
    regroup(w, living, now_ns);
    mark_groups(p);
    struct switch_pending s = {.order = {.mask = bit, .release = true, .fate = FATE_RECOMPUTE},
                               .serial = p->next_serial++,
                               .since_ns = now_ns};
    snprintf(s.order.reason, sizeof s.order.reason, "rank %d failed", rank);
    record(p, &s, now_ns, false);
    p->events[s.serial % SWITCH_EVENTS].failure = true;
}

/* ---- a policy goes */

/* A layout runs on any base of its number of stages only, and few policies know of stages. */
static void order_back(struct world *w, const struct group *g, int64_t now_ns)
{
    int pp = g->n_ranks % w->partition.start_stages ? 1 : w->partition.start_stages;
    struct switch_order o = {
        .mask = g->mask, .base = {g->n_ranks / pp, 1, pp}, .when = WHEN_HARD, .fate = FATE_MIGRATE};
    snprintf(o.reason, sizeof o.reason, "the policy that asked for %d stages has gone", g->base.pp);
    if (g->base.pp != pp && !partition_refusal(w, &o))
        partition_ask(w, &o, now_ns);
}

void partition_let_go(struct world *w, int64_t now_ns)
{
    struct partition *p = &w->partition;
    for (int i = p->n_pending - 1; i >= 0; i--)
        drop_order(p, i, now_ns);
    for (int i = 0; i < p->n_groups; i++)
        partition_slot(p, i)->shut = false;
    memset(p->algorithms, 0, sizeof p->algorithms);
    regroup(w, p->left_out, now_ns);
    p->left_out = 0;
    for (int i = 0; i < p->n_groups; i++)
        order_back(w, partition_group(p, i), now_ns);
    mark_groups(p);
}

void partition_note_token(struct partition *p, struct request *r, int64_t gap_ns)
{
    struct switch_event *e = partition_event_slot(p, r->switched_by);
    if (e) {
        e->n_open--;
        e->worst_stall_ns = gap_ns > e->worst_stall_ns ? gap_ns : e->worst_stall_ns;
    }
    r->switched_by = 0;
}

bool partition_check(const struct world *w)
{
    const struct partition *p = &w->partition;
    uint64_t seen = p->free_ranks | p->dead_ranks;
    int running = 0;
    if (p->free_ranks & p->dead_ranks || p->left_out & ~p->free_ranks)
        return false;
    for (int i = 0; i < p->n_groups; i++) {
        const struct group *g = partition_group(p, i);
        if (g->mask & seen || __builtin_popcountll(g->mask) != g->n_ranks || g->n_running < 0)
            return false;
        seen |= g->mask;
        running += g->n_running;
    }
    for (int i = 0; i < w->running.n; i++) {
        const struct request *r = w->running.items[i];
        const struct group *g = partition_find(p, r->group);
        if (!g || (r->n_blocks && r->place != g->place))
            return false;
    }
    return seen == rank_range(0, w->shape.n_ranks) && running == w->running.n;
}
