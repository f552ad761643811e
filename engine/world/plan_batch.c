#include <string.h>

#include "engine/base/check.h"
#include "engine/world/plan_inner.h"
#include "engine/world/route.h"

/* Does a block of this request lie on a rank of the place that has too few? */
static bool lies_on_scarce(const struct plan *p, const struct request *v, int place, int blocks)
{
    const struct kv_place *l = kv_place(&p->world->kv, place);
    uint64_t mask = kv_place(&p->world->kv, v->place)->mask;
    for (int i = 0; i < l->n; i++)
        if (p->blocks_free[l->ranks[i]] < blocks && mask >> l->ranks[i] & 1)
            return true;
    return false;
}

/* Probes give way to all others. */
static struct request *find_probe(const struct plan *p, int place, int blocks)
{
    const struct req_queue *q = &p->world->running;
    for (int i = q->n - 1; i >= 0 && p->world->n_probes_running; i--) {
        struct request *v = q->items[i];
        if (v->parent && side_has(p->side, v->canary) && !v->busy && !v->n_moving && v->n_blocks &&
            !plan_touched(p, v) && lies_on_scarce(p, v, place, blocks))
            return v;
    }
    return NULL;
}

/* Which request gives way to r, which wants that many blocks of a placement: a parked request first (its KV is not in
 * use now), then the last running one; only those behind r in the order. Before all of them probes do; to a
 * probe nobody does. */
static struct request *find_victim(const struct plan *p, const struct request *r, int place, int blocks)
{
    const struct req_queue *queues[] = {&p->world->waiting, &p->world->running};
    struct request *probe = r->parent ? NULL : find_probe(p, place, blocks);
    if (r->parent || probe)
        return probe;
    for (int q = p->world->n_parked ? 0 : 1; q < 2; q++) /* of the waiting, only parked ones have any blocks */
        for (int i = queues[q]->n - 1; i >= 0; i--) {
            struct request *v = queues[q]->items[i];
            if (request_compare(v, r) <= 0)
                break;
            if (v->n_moving || !side_has(p->side, v->canary))
                continue; /* what is on its way to its blocks holds them, too */
            if (!v->busy && v->n_blocks && !plan_touched(p, v) && lies_on_scarce(p, v, place, blocks))
                return v;
        }
    return NULL;
}

/* Those that are parked for a group that is not there give way whatever their order: to who runs, and where nobody runs
 * to who would start. They would hold their KV, and others would wait, until their time to be parked is up. The last of
 * them. */
static struct request *find_stranded(const struct plan *p, const struct request *r, int place, int blocks)
{
    const struct world *w = p->world;
    bool may = !r->parent && (r->state == REQ_RUNNING || !p->n_running); /* to a probe nobody gives way */
    for (int i = w->waiting.n - 1; i >= 0 && w->n_parked && may; i--) {
        struct request *v = w->waiting.items[i];
        if (world_strands(w, v) && side_has(p->side, v->canary) && !v->n_moving && !plan_touched(p, v) &&
            lies_on_scarce(p, v, place, blocks))
            return v;
    }
    return NULL;
}

/* Room is being made where this placement lies: nobody else gives way before that has ended. */
static bool is_coming(struct plan *p, int place)
{
    return p->leaving & kv_place(&p->world->kv, place)->mask &&
           !plan_no(p, "room in the KV cache is being made: some of it goes to host memory");
}

/* To host memory and back, or computed again: whichever costs less. A copy's blocks are to be had when it has ended. */
static void give_way(struct plan *p, struct request *v)
{
    const struct world_cost *c = &p->world->cost;
    double n = v->n_computed, copied = 2 * (c->move_ns_fixed + n * c->swap_ns_per_token);
    p->pressed |= v->state == REQ_RUNNING && !v->parent;
    if (v->parent || p->world->kv.host_place < 0 || v->n_moving || copied >= n * c->prefill_ns_per_token ||
        !plan_swap_out(p, v))
        plan_do_preempt(p, v, PREEMPT_RECOMPUTE);
}

static bool make_room(struct plan *p, const struct request *r, int place, int blocks)
{
    while (plan_available(p, place) < blocks) {
        if (is_coming(p, place))
            return false;
        struct request *v = find_victim(p, r, place, blocks);
        v = v ? v : find_stranded(p, r, place, blocks);
        if (!v)
            return plan_no(p, "the KV cache is full");
        give_way(p, v);
    }
    return true;
}

/* ---- batches */

struct plan_batch *plan_batch(struct plan *p, int group)
{
    struct group *g = partition_find_slot(&p->world->partition, group);
    p->reason = NULL;
    if (!g)
        p->reason = "no such group (any more)";
    else if (plan_is_others_group(p, g))
        return NULL;
    else if (!g->idle)
        p->reason = "the group is running a step";
    else if (g->held)
        p->reason = "the group is held: an order waits for its ranks";
    for (int i = 0; i < p->n_batches; i++)
        if (p->batches[i]->group_id == group)
            p->reason = "this plan has a batch for the group already";
    if (p->reason)
        return NULL;
    struct plan_batch *b = arena_new(&p->arena, sizeof *b);
    b->plan = p;
    b->group_id = group;
    b->group = g;
    b->ahead = -1;
    p->batches[p->n_batches++] = b;
    return b;
}

static void add_item(struct plan_batch *b, struct request *r, int n_tokens, int n_prefix)
{
    b->items = plan_grown(b->plan, b->items, b->n_items, &b->cap_items, sizeof *b->items);
    bool starts = r->state == REQ_WAITING;
    b->items[b->n_items++] =
        (struct plan_item){.request = r, .n_tokens = n_tokens, .n_prefix = n_prefix, .starts = starts};
    b->n_tokens += n_tokens;
    b->plan->n_running += starts;
    r->plan_serial = b->plan->serial;
    r->plan_item = b->n_items - 1;
}

/* Blocks that a running request lacks for n more tokens. */
static int lacking(const struct plan *p, const struct request *r, int n)
{
    return kv_blocks_for(&p->world->kv, r->place, r->n_computed + n) - r->n_blocks;
}

static int rows_left(const struct plan_batch *b, int budget)
{
    int limit = b->plan->world->limits.max_num_batched_tokens;
    return (budget < limit ? budget : limit) - b->n_tokens;
}

/* A running request goes on with up to n tokens. Returns how many; 0 with a reason. */
static int add_running(struct plan_batch *b, struct request *r, int n)
{
    struct plan *p = b->plan;
    int want = request_remaining(r) < n ? request_remaining(r) : n;
    int tpb = kv_place(&p->world->kv, r->place)->tokens_per_block;
    if (r->n_computed + want <= r->n_blocks * tpb) { /* what most decodes need: nothing */
        add_item(b, r, want, 0);
        return want;
    }
    int need = lacking(p, r, want);
    if (!make_room(p, r, r->place, need)) {
        /* what fits into the blocks at hand still moves it on */
        want = (r->n_blocks + plan_available(p, r->place)) * tpb - r->n_computed;
        if (want <= 0)
            return 0;
        need = lacking(p, r, want);
    }
    plan_take(p, r->place, need > 0 ? need : 0);
    add_item(b, r, want, 0);
    return want;
}

/* What holding cached blocks [first, n) of a place costs: those that count as available now and will not any more. A
 * block held once may belong to a request that this plan preempts, and was then counted as coming back. */
static int hold_cost(struct plan *p, struct request *r, int place, int first, int n)
{
    int cost = 0, at_most = p->n_verbs ? 1 : 0, units = kv_place(&p->world->kv, place)->tokens_per_block / KV_UNIT;
    for (int i = first; i < n; i++) {
        int32_t block = kv_lookup(&p->world->kv, place, r->keys[(i + 1) * units - 1]);
        cost += kv_place(&p->world->kv, place)->blocks[block].refs <= at_most;
    }
    return cost;
}

/* What a waiting request would find and need in a group. */
struct entry {
    int done;                          /* tokens it need not compute */
    int hits, hit_cost;                /* blocks of the group's place, and what holding them takes */
    int from_place, n_from, from_cost; /* the same of another place, to be copied; n_from 0: none */
    int own;                           /* blocks of the group's place that it has */
    int whole; /* blocks of the group's place that its whole timeline takes from those available */
};

/* Is it cheaper to copy this many cached tokens from another placement than to compute them? */
static bool worth_copying(const struct world *w, int place, int tokens)
{
    double each = place == w->kv.host_place ? w->cost.swap_ns_per_token : w->cost.move_ns_per_token;
    return tokens * each + w->cost.move_ns_fixed < tokens * w->cost.prefill_ns_per_token;
}

static struct entry look_at(struct plan_batch *b, struct request *r)
{
    struct plan *p = b->plan;
    const struct world *w = p->world;
    int place = b->group->place, tpb = kv_place(&w->kv, place)->tokens_per_block;
    struct entry e = {.done = r->n_computed};
    if (!r->parked) {
        e.hits = world_prefix(w, r, place);
        e.hit_cost = hold_cost(p, r, place, 0, e.hits);
        e.done = e.hits * tpb;
        if (w->kv.n_places > 1)
            e.from_place = world_prefix_elsewhere(w, r, place, e.done, &e.n_from);
    }
    if (e.n_from) {
        int each = kv_place(&w->kv, e.from_place)->tokens_per_block, more = e.n_from * each - e.done;
        e.from_cost = hold_cost(p, r, e.from_place, e.done / each, e.n_from);
        if (!worth_copying(w, e.from_place, more) || plan_available(p, e.from_place) < e.from_cost)
            e.n_from = 0;
        else
            e.done += more;
    }
    e.own = world_in_host(w, r) ? 0 : r->n_blocks;
    e.whole = kv_blocks_for(&w->kv, place, r->n_tokens) - e.own - e.hits + e.hit_cost;
    return e;
}

/* Would it find room in this group if the group were empty? */
static bool fits_empty(const struct plan_batch *b, const struct request *r)
{
    const struct kv_pool *kv = &b->plan->world->kv;
    return kv_blocks_for(kv, b->group->place, r->n_tokens) <= kv->n_blocks;
}

/* No probe, or one of a request that runs in this group. */
static bool is_probe_here(const struct plan_batch *b, const struct request *r)
{
    const struct request *parent = request_find(&b->plan->world->requests, r->parent);
    return !r->parent || (!probe_is_over(b->plan->world, r) && parent->group == b->group_id);
}

static const char *why_not_here(const struct plan_batch *b, const struct request *r)
{
    const struct plan *p = b->plan;
    const struct world *w = p->world;
    if (p->n_running >= p->seats)
        return p->side == SIDE_ALL ? "max_num_seqs requests are running"
                                   : "its side's share of max_num_seqs requests is running";
    if (!world_eligible(w, r))
        return r->held_until_ns ? "it is held: act.hold(id, nil) lets it go"
                                : "it waits for the prompt it shares with a sibling";
    if (r->parked && r->place != b->group->place && !world_in_host(w, r))
        return "its KV lies in another placement: remap it, or wait until its time to be parked is up";
    if (r->n_moving)
        return "its KV is being copied";
    if (!is_probe_here(b, r))
        return "a probe runs where its parent runs";
    if (!partition_admits(&w->partition, b->group, r))
        return "the group admits nobody: an order waits for it";
    if (!fits_empty(b, r))
        return "it needs more KV cache than the group has";
    return NULL;
}

/* Room for its whole timeline, so that a started prefill can end. */
static bool make_room_to_start(struct plan_batch *b, struct request *r, struct entry *e)
{
    struct plan *p = b->plan;
    int place = b->group->place, spare = p->n_running ? kv_reserve(&p->world->kv) : 0;
    while (plan_available(p, place) < e->whole + spare) {
        if (is_coming(p, place))
            return false;
        struct request *v = find_victim(p, r, place, e->whole + spare);
        if (v && v->state != REQ_WAITING && !v->parent)
            v = NULL; /* of running ones only probes give way to it */
        if (!v)
            v = find_stranded(p, r, place, e->whole + spare);
        if (!v)
            return plan_no(p, "the KV cache has no room for its prompt");
        give_way(p, v);
        *e = look_at(b, r);
    }
    return true;
}

/* What it starts with: up to n tokens. blocks: those that they take of the group's place. */
static int first_tokens(const struct plan_batch *b, const struct request *r, const struct entry *e, int n, int *blocks)
{
    int left = r->n_tokens - e->done, want = left < n ? left : n;
    *blocks = kv_blocks_for(&b->plan->world->kv, b->group->place, e->done + want) - e->own - e->hits + e->hit_cost;
    return want;
}

/* Takes a waiting request into the batch, when its whole timeline finds room. */
static int add_waiting(struct plan_batch *b, struct request *r, int n)
{
    struct plan *p = b->plan;
    const struct world *w = p->world;
    int place = b->group->place;
    p->reason = why_not_here(b, r);
    if (p->reason)
        return 0;
    struct entry e = look_at(b, r);
    if (!make_room_to_start(b, r, &e))
        return 0;
    int blocks, want = first_tokens(b, r, &e, n, &blocks);
    if (e.n_from)
        plan_take(p, e.from_place, e.from_cost);
    if (e.n_from && plan_available(p, place) < blocks) {
        /* Both placements share ranks that have no room for the copy: what would be copied is computed. */
        plan_take(p, e.from_place, -e.from_cost);
        e.n_from = 0;
        e.done = e.hits * kv_place(&w->kv, place)->tokens_per_block;
        want = first_tokens(b, r, &e, n, &blocks);
    }
    plan_take(p, place, blocks > 0 ? blocks : 0);
    add_item(b, r, want, e.done);
    b->items[b->n_items - 1].from_place = e.from_place;
    b->items[b->n_items - 1].n_from = e.n_from;
    b->items[b->n_items - 1].from_host = world_in_host(w, r);
    return want;
}

int plan_add(struct plan_batch *b, req_id id, int n)
{
    struct plan *p = b->plan;
    struct request *r = plan_usable(p, id);
    if (!r)
        return 0;
    if (b->forwarded)
        return plan_no(p, "the batch was already forwarded");
    int room = rows_left(b, b->plan->world->limits.max_num_batched_tokens);
    if (room <= 0)
        return plan_no(p, "the step is full (max_num_batched_tokens)");
    if (n <= 0 || n > room)
        n = room;
    if (r->state == REQ_RUNNING && r->group != b->group_id)
        return plan_no(p, "the request runs in another group: remap it first");
    return r->state == REQ_RUNNING ? add_running(b, r, n) : add_waiting(b, r, n);
}

int plan_decodes(struct plan_batch *b)
{
    struct plan *p = b->plan;
    const struct req_queue *q = &p->world->running;
    int before = b->n_items;
    if (b->forwarded)
        return plan_no(p, "the batch was already forwarded");
    for (int i = 0; i < q->n && rows_left(b, b->n_tokens + 1) > 0; i++) {
        struct request *r = q->items[i];
        if (r->group != b->group_id || plan_touched(p, r) || r->busy || !request_decoding(r))
            continue;
        if (add_running(b, r, 1) || plan_touched(p, r))
            continue;
        p->pressed |= !r->parent;
        if (!is_coming(p, r->place))
            give_way(p, r); /* no request behind it holds KV: it gives way itself */
    }
    b->n_decodes += b->n_items - before;
    return b->n_items - before;
}

/* Running requests whose prompt is not computed yet. */
static void continue_prefills(struct plan_batch *b, int budget)
{
    const struct req_queue *q = &b->plan->world->running;
    for (int i = 0; i < q->n && rows_left(b, budget) > 0; i++) {
        struct request *r = q->items[i];
        if (r->group == b->group_id && !plan_touched(b->plan, r) && !r->busy && !request_decoding(r))
            add_running(b, r, rows_left(b, budget));
    }
}

int plan_prefill(struct plan_batch *b, const req_id *list, int n, int budget)
{
    struct plan *p = b->plan;
    struct world *w = p->world;
    int before = b->n_tokens;
    p->reason = NULL;
    if (b->forwarded)
        return plan_no(p, "the batch was already forwarded");
    continue_prefills(b, budget);
    if (!list)
        n = w->waiting.n;
    for (int i = 0; i < n && !p->pressed && rows_left(b, budget) > 0; i++) {
        struct request *r = list ? request_find(&w->requests, list[i]) : w->waiting.items[i];
        if (!r || r->state != REQ_WAITING || !side_has(p->side, r->canary) || plan_touched(p, r) ||
            !world_eligible(w, r))
            continue; /* gone, or already used, or waiting for a sibling: that is not an error */
        bool fits = fits_empty(b, r) && (!r->parked || r->place == b->group->place || world_in_host(w, r));
        if (!fits || r->n_moving || !partition_admits(&w->partition, b->group, r))
            continue; /* it is not for this group now: those behind it may well be */
        if (!is_probe_here(b, r) || (!r->parent && !b->anybody && !route_here(b, r)))
            continue;
        if (!add_waiting(b, r, rows_left(b, budget)) && !r->parent)
            break;
    }
    return b->n_tokens - before;
}

bool plan_forward(struct plan_batch *b, struct layout l)
{
    const struct group *g = b->group;
    if (b->forwarded)
        return plan_no(b->plan, "the batch was already forwarded");
    if (b->n_tokens == 0)
        return plan_no(b->plan, "the batch is empty");
    const char *why = shape_refusal(&b->plan->world->shape, g->n_ranks, l);
    if (why)
        return plan_no(b->plan, why);
    why = residency_lacks(b->plan->world, g, l);
    if (why)
        return plan_no(b->plan, why);
    if (l.pp != g->base.pp)
        return plan_no(b->plan,
                       "the group keeps its KV in another number of stages: bind its ranks with a base of this pp");
    for (int i = 0; i < b->plan->n_verbs; i++) {
        const struct switch_order *o = b->plan->verbs[i].order;
        if (o && o->when == WHEN_HARD && o->mask & g->mask)
            return plan_no(b->plan, "this plan has ordered the group's ranks elsewhere");
    }
    b->layout = l;
    b->forwarded = true;
    if (l.pp > 1 && !b->n_micro)
        b->n_micro = estimator_micro(&b->plan->world->estimate, l, plan_size(b));
    return true;
}

struct step_size plan_size(const struct plan_batch *b)
{
    struct step_size s = {.n_micro = b->n_micro};
    for (int i = 0; i < b->n_items; i++) {
        const struct plan_item *it = &b->items[i];
        double before = it->starts && !it->request->parked ? it->n_prefix : it->request->n_computed;
        step_size_add(&s, it->n_tokens + it->drafts.n, before);
        s.n_logits += it->drafts.n;
        s.n_logits += before + it->n_tokens == it->request->n_tokens && it->request->spec->max_tokens > 0;
    }
    plan_size_ffn(b->plan->world, b->plan, b->group, b->layout, &s);
    return s;
}
