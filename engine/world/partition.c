#include "engine/world/partition_inner.h"

#include <stdio.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "engine/world/world.h"

const char *switch_when_name(enum switch_when w)
{
    static const char *const names[] = {"hard", "drain", "soft", "ready"};
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
    p->start = (struct layout){0, 0, 1};
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

struct layout group_usual_layout(const struct world *w, const struct group *g)
{
    int pp = g->base.pp, width = g->n_ranks / pp;
    if (g->weights.tp > 1)
        return g->weights;
    for (int tp = width; tp > 1; tp--)
        if (width % tp == 0 && !w->shape.refusals[width][tp])
            return (struct layout){width / tp, tp, pp};
    return (struct layout){width, 1, pp};
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

int partition_ranks(uint64_t mask, struct layout base, int *ranks)
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

/* Where ranks hold cuts: what the ranks of a new group are to hold. */
static struct layout weights_of(const struct world *w, const struct group *g, struct layout asked)
{
    struct layout l = {0, 0, 0};
    if (!w->residency.facts || asked.tp)
        return asked;
    if (!residency_match(w, g->ranks, g->n_ranks, g->base.pp, &l))
        residency_usual(w, g->n_ranks, g->base.pp, &l);
    return l;
}

static void give_weights(struct world *w, struct group *g, struct layout asked)
{
    g->weights = weights_of(w, g, asked);
    if (g->weights.tp)
        g->loading = residency_take(w, g->ranks, g->n_ranks, g->weights);
    g->idle = !g->loading;
}

struct group *partition_create(struct world *w, uint64_t mask, const struct switch_order *o, int64_t now_ns)
{
    struct partition *p = &w->partition;
    struct group *g = free_slot(p);
    struct layout base = o->base;
    ASSERT((mask & ~p->free_ranks) == 0);
    memset(g, 0, sizeof *g);
    g->n_ranks = partition_ranks(mask, base, g->ranks);
    g->id = (int)(p->epoch++ % (INT32_MAX / MAX_RANKS - 1)) * MAX_RANKS + (int)(g - p->groups) + 1;
    g->mask = mask;
    g->base = is_identity(base) ? (struct layout){g->n_ranks / base.pp, 1, base.pp} : base;
    g->layout = g->base;
    give_weights(w, g, o->weights);
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

void partition_dissolve(struct partition *p, struct group *g)
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

bool partition_is_named(const struct switch_order *o, req_id id)
{
    for (int i = 0; i < o->n_named; i++)
        if (o->named[i] == id)
            return true;
    return false;
}

static bool same_named(const struct switch_order *a, const struct switch_order *b)
{
    for (int i = 0; i < a->n_named; i++)
        if (!partition_is_named(b, a->named[i]))
            return false;
    return a->n_named == b->n_named;
}

/* The same but for the words of its reason. */
static bool same_order_given(const struct switch_order *a, const struct switch_order *b)
{
    return a->release == b->release && a->mask == b->mask && a->when == b->when && a->fate == b->fate &&
           a->max_wait_ns == b->max_wait_ns && same_order(a->base, b->base) && layout_equal(a->weights, b->weights) &&
           same_named(a, b);
}

/* Is what the order asks for the case already? */
static bool is_done(const struct partition *p, const struct switch_order *o)
{
    if (o->release)
        return (o->mask & ~p->free_ranks) == 0;
    const struct group *g = partition_match(p, o->mask, o->base);
    bool whole = g && g->weights.tp == 1 && o->weights.tp == 1; /* whatever the sp is */
    return g && (!o->weights.tp || whole || layout_equal(g->weights, o->weights));
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

bool partition_has_no_request(const struct world *w, const struct switch_order *o)
{
    for (int i = 0; i < o->n_named; i++)
        if (request_find(&w->requests, o->named[i]))
            return false;
    return o->n_named > 0;
}

/* Ranks by share. */
static const char *weights_refusal(struct world *w, const struct switch_order *o, const int *ranks, int n)
{
    struct layout l = o->weights;
    if (!w->residency.facts)
        return l.tp ? "every rank has the weights of all layouts: nothing has to move" : NULL;
    if (!l.tp && residency_match(w, ranks, n, o->base.pp, &l))
        return NULL;
    if (!l.tp) {
        struct reshard_cost cost = {0};
        if (residency_usual(w, n, o->base.pp, &l))
            residency_cost(w, ranks, n, l, &cost);
        snprintf(w->residency.why, sizeof w->residency.why,
                 "these ranks do not hold the weights of a layout of %d stages: %.1f MiB would have to move "
                 "(act.reshard)",
                 o->base.pp, (double)cost.bytes / 0x1p20);
        return w->residency.why;
    }
    if (l.pp != o->base.pp)
        return "a reshard's base has as many stages as its layout";
    const char *why = shape_refusal(&w->shape, n, l);
    return why ? why : residency_refusal(w, n, l);
}

const char *partition_refusal(struct world *w, const struct switch_order *o)
{
    struct partition *p = &w->partition;
    int ranks[MAX_RANKS], n = __builtin_popcountll(o->mask);
    if (!o->mask || o->mask & ~rank_range(0, w->shape.n_ranks))
        return "no such ranks";
    if (o->mask & p->dead_ranks)
        return "one of these ranks has failed";
    if (partition_has_no_request(w, o))
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
    partition_ranks(o->mask, o->base, ranks);
    const char *why = weights_refusal(w, o, ranks, n);
    if (why)
        return why;
    if (kv_place_find(&w->kv, ranks, n, o->base.pp) < 0 && w->kv.n_places == MAX_PLACES)
        return "too many different rank orders have been used";
    return NULL;
}

struct switch_event *partition_record(struct partition *p, const struct switch_pending *s, int64_t now_ns,
                                      bool superseded)
{
    uint64_t serial = ++p->n_events;
    struct switch_event *e = &p->events[serial % SWITCH_EVENTS];
    *e = (struct switch_event){
        .order = s->order, .serial = serial, .asked_ns = s->since_ns, .done_ns = now_ns, .superseded = superseded};
    return e;
}

void partition_remove(struct partition *p, int i)
{
    p->n_pending--;
    memmove(&p->pending[i], &p->pending[i + 1], (size_t)(p->n_pending - i) * sizeof *p->pending);
}

/* Which groups wait for an order, and how. */
void partition_mark(struct partition *p)
{
    for (int i = 0; i < p->n_groups; i++) {
        struct group *g = partition_slot(p, i);
        g->held = g->closed = false;
        for (int k = 0; k < p->n_pending; k++) {
            if (!(p->pending[k].order.mask & g->mask) ||
                (p->pending[k].order.when == WHEN_READY && !p->pending[k].forced))
                continue;
            g->closed = true;
            g->held |= p->pending[k].forced;
        }
    }
}

/* Nobody is left who wants it. */
void partition_drop(struct partition *p, int i, int64_t now_ns)
{
    partition_record(p, &p->pending[i], now_ns, true)->dropped = true;
    partition_remove(p, i);
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
            partition_record(p, &p->pending[i], now_ns, true);
            partition_remove(p, i);
        }
    s.weights = o->weights.tp && !s.forced ? WEIGHTS_WANTED : WEIGHTS_THERE;
    if (!is_done(p, o)) {
        ASSERT(p->n_pending < MAX_RANKS);
        s.serial = p->next_serial++;
        p->pending[p->n_pending++] = s;
    }
    partition_mark(p);
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
    if (g->shut || !g->closed || g->canary != r->canary)
        return !g->shut && g->canary == r->canary;
    for (int i = 0; i < p->n_pending; i++) {
        const struct switch_pending *s = &p->pending[i];
        if (s->order.mask & g->mask)
            return s->order.when == WHEN_SOFT && !s->forced && partition_is_named(&s->order, r->id);
    }
    return false;
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
