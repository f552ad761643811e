#include "engine/world/plan.h"

#include <math.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/world/route.h"

void plan_init(struct plan *p, struct world *w)
{
    memset(p, 0, sizeof *p);
    p->world = w;
    arena_init(&p->arena);
}

void plan_free(struct plan *p)
{
    arena_free(&p->arena);
}

void plan_begin(struct plan *p, int64_t now_ns)
{
    struct world *w = p->world;
    arena_reset(&p->arena);
    p->now_ns = now_ns;
    p->serial++;
    p->n_batches = p->n_verbs = p->cap_verbs = p->n_logs = 0;
    p->verbs = NULL;
    p->pressed = false;
    p->blocks_free = arena_new(&p->arena, (size_t)w->kv.n_ranks * sizeof *p->blocks_free);
    for (int r = 0; r < w->kv.n_ranks; r++)
        p->blocks_free[r] = w->kv.ranks[r].n_free + w->kv.ranks[r].n_cached;
    p->n_running = w->running.n;
    route_count(w);
    p->wake_ns = 0;
    p->reason = NULL;
}

static bool refuse(struct plan *p, const char *why)
{
    p->reason = why;
    return false;
}

static bool touched(const struct plan *p, const struct request *r)
{
    return r->plan_serial == p->serial;
}

/* Room for one more element in an arena array: the old copy stays behind, the arena dies with the step. */
static void *grown(struct plan *p, void *old, int n, int *cap, size_t size)
{
    if (n < *cap)
        return old;
    *cap = *cap ? *cap * 2 : 16;
    void *bigger = arena_new(&p->arena, (size_t)*cap * size);
    if (n)
        memcpy(bigger, old, (size_t)n * size);
    return bigger;
}

static struct plan_verb *add_verb(struct plan *p, enum plan_verb_kind kind, struct request *r)
{
    p->verbs = grown(p, p->verbs, p->n_verbs, &p->cap_verbs, sizeof *p->verbs);
    struct plan_verb *v = &p->verbs[p->n_verbs++];
    memset(v, 0, sizeof *v);
    v->kind = kind;
    v->request = r;
    if (r)
        r->plan_serial = p->serial;
    return v;
}

/* Blocks that come back when r lets go of its own: those nobody else holds. */
static int own_blocks(const struct plan *p, const struct request *r)
{
    int n = 0;
    if (r->n_blocks)
        for (int i = 0; i < r->n_blocks; i++)
            n += kv_place(&p->world->kv, r->place)->blocks[r->blocks[i]].refs == 1;
    return n;
}

/* What the plan may still take of a place's blocks. */
static int available(const struct plan *p, int place)
{
    const struct kv_place *l = kv_place(&p->world->kv, place);
    int least = p->blocks_free[l->ranks[0]];
    for (int i = 1; i < l->n; i++)
        least = p->blocks_free[l->ranks[i]] < least ? p->blocks_free[l->ranks[i]] : least;
    return least;
}

static void take(struct plan *p, int place, int blocks)
{
    const struct kv_place *l = kv_place(&p->world->kv, place);
    for (int i = 0; i < l->n; i++)
        p->blocks_free[l->ranks[i]] -= blocks;
}

int plan_blocks(const struct plan *p, int group)
{
    const struct group *g = partition_find(&p->world->partition, group);
    return g ? available(p, g->place) : 0;
}

static void do_preempt(struct plan *p, struct request *r, enum preempt_how how)
{
    struct plan_verb *v = add_verb(p, PLAN_PREEMPT, r);
    v->how = how;
    if (r->state == REQ_RUNNING)
        p->n_running--;
    if (how == PREEMPT_RECOMPUTE && r->n_blocks)
        take(p, r->place, -own_blocks(p, r));
}

bool plan_preempt(struct plan *p, req_id id, enum preempt_how how)
{
    struct request *r = request_find(&p->world->requests, id);
    if (!r)
        return refuse(p, "no such request");
    if (touched(p, r))
        return refuse(p, "this plan has already used the request");
    if (r->busy)
        return refuse(p, "the request is in the step that runs now");
    if (r->state != REQ_RUNNING && !(r->paused && how == PREEMPT_RECOMPUTE))
        return refuse(p, "the request is not running");
    do_preempt(p, r, how);
    return true;
}

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

/* Who gives way to r, which wants so many blocks of a place: a parked request first (its KV serves nobody now), then the last running one; only those behind r in the order. */
static struct request *find_victim(const struct plan *p, const struct request *r, int place, int blocks)
{
    const struct req_queue *queues[] = {&p->world->waiting, &p->world->running};
    for (int q = 0; q < 2; q++)
        for (int i = queues[q]->n - 1; i >= 0; i--) {
            struct request *v = queues[q]->items[i];
            if (request_compare(v, r) <= 0)
                break;
            if (!v->busy && v->n_blocks && !touched(p, v) && lies_on_scarce(p, v, place, blocks))
                return v;
        }
    return NULL;
}

static bool make_room(struct plan *p, const struct request *r, int place, int blocks)
{
    while (available(p, place) < blocks) {
        struct request *v = find_victim(p, r, place, blocks);
        if (!v)
            return refuse(p, "the KV cache is full");
        p->pressed |= v->state == REQ_RUNNING;
        do_preempt(p, v, PREEMPT_RECOMPUTE);
    }
    return true;
}

/* ---- batches */

struct plan_batch *plan_batch(struct plan *p, int group)
{
    struct group *g = partition_find(&p->world->partition, group);
    p->reason = NULL;
    if (!g)
        p->reason = "no such group (any more)";
    else if (!g->idle)
        p->reason = "the group is running a step";
    else if (g->held)
        p->reason = "the group is held: an order waits for its ranks";
    for (int i = 0; i < p->n_batches; i++)
        if (p->batches[i]->group == group)
            p->reason = "this plan has a batch for the group already";
    if (p->reason)
        return NULL;
    struct plan_batch *b = arena_new(&p->arena, sizeof *b);
    b->plan = p;
    b->group = group;
    b->site = g;
    p->batches[p->n_batches++] = b;
    return b;
}

static void add_item(struct plan_batch *b, struct request *r, int n_tokens, int n_prefix)
{
    b->items = grown(b->plan, b->items, b->n_items, &b->cap_items, sizeof *b->items);
    bool starts = r->state == REQ_WAITING;
    b->items[b->n_items++] = (struct plan_item){.request = r, .n_tokens = n_tokens, .n_prefix = n_prefix, .starts = starts};
    b->n_tokens += n_tokens;
    b->plan->n_running += starts;
    r->plan_serial = b->plan->serial;
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
    int need = lacking(p, r, want);
    if (need > 0 && !make_room(p, r, r->place, need)) {
        /* what fits into the blocks at hand still moves it on */
        want = (r->n_blocks + available(p, r->place)) * kv_place(&p->world->kv, r->place)->tokens_per_block - r->n_computed;
        if (want <= 0)
            return 0;
        need = lacking(p, r, want);
    }
    take(p, r->place, need > 0 ? need : 0);
    add_item(b, r, want, 0);
    return want;
}

/* What holding n cached blocks of a place costs: those that count as available now and will not any more. A block held once may belong to a request that
 * this plan preempts, and was then counted as coming back. */
static int hold_cost(struct plan *p, struct request *r, int place, int n)
{
    int cost = 0, at_most = p->n_verbs ? 1 : 0, units = kv_place(&p->world->kv, place)->tokens_per_block / KV_UNIT;
    for (int i = 0; i < n; i++) {
        int32_t block = kv_lookup(&p->world->kv, place, r->keys[(i + 1) * units - 1]);
        cost += kv_place(&p->world->kv, place)->blocks[block].refs <= at_most;
    }
    return cost;
}

/* What a waiting request would find and need in a group. */
struct entry {
    int done;               /* tokens it need not compute */
    int hits, hit_cost;     /* blocks of the group's place, and what holding them takes */
    int from_place, n_from, from_cost; /* the same of another place, to be copied; n_from 0: none */
    int whole;              /* blocks of the group's place that its whole timeline takes from those available */
};

/* Is it cheaper to copy so many cached tokens from another place than to compute them? */
static bool worth_copying(const struct world *w, int tokens)
{
    return tokens * w->cost.move_ns_per_token + w->cost.move_ns_fixed < tokens * w->cost.prefill_ns_per_token;
}

static struct entry look_at(struct plan_batch *b, struct request *r)
{
    struct plan *p = b->plan;
    const struct world *w = p->world;
    int place = b->site->place, tpb = kv_place(&w->kv, place)->tokens_per_block;
    struct entry e = {.done = r->n_computed};
    if (!r->paused) {
        e.hits = world_prefix(w, r, place);
        e.hit_cost = hold_cost(p, r, place, e.hits);
        e.done = e.hits * tpb;
        if (w->kv.n_places > 1)
            e.from_place = world_prefix_elsewhere(w, r, place, e.done, &e.n_from);
    }
    if (e.n_from) {
        int more = e.n_from * kv_place(&w->kv, e.from_place)->tokens_per_block - e.done;
        e.from_cost = hold_cost(p, r, e.from_place, e.n_from);
        if (!worth_copying(w, more) || available(p, e.from_place) < e.from_cost)
            e.n_from = 0;
        else
            e.done += more;
    }
    e.whole = kv_blocks_for(&w->kv, place, r->n_tokens) - r->n_blocks - e.hits + e.hit_cost;
    return e;
}

static const char *why_not_here(const struct plan_batch *b, const struct request *r)
{
    const struct plan *p = b->plan;
    const struct world *w = p->world;
    if (p->n_running >= w->limits.max_num_seqs)
        return "max_num_seqs requests are running";
    if (!world_eligible(w, r))
        return "it waits for the prompt it shares with a sibling";
    if (r->paused && r->place != b->site->place)
        return "its KV lies in another placement: remap it, or wait until its time to be parked is up";
    if (r->n_moving)
        return "its KV is being copied";
    if (!partition_admits(&w->partition, b->site, r))
        return "the group admits nobody: an order waits for it";
    return NULL;
}

/* Takes a waiting request into the batch. It starts only when its whole timeline finds room, so that a started prefill can end. */
static int add_waiting(struct plan_batch *b, struct request *r, int n)
{
    struct plan *p = b->plan;
    const struct world *w = p->world;
    int place = b->site->place;
    p->reason = why_not_here(b, r);
    if (p->reason)
        return 0;
    struct entry e = look_at(b, r);
    int spare = p->n_running ? w->kv.n_blocks / 100 : 0; /* room for those that already decode */
    while (available(p, place) < e.whole + spare) {
        struct request *v = find_victim(p, r, place, e.whole + spare);
        if (!v || v->state != REQ_WAITING) /* a parked one behind it gives way, running ones do not */
            return refuse(p, "the KV cache has no room for its prompt");
        do_preempt(p, v, PREEMPT_RECOMPUTE);
        e = look_at(b, r);
    }
    int want = r->n_tokens - e.done < n ? r->n_tokens - e.done : n;
    if (e.n_from)
        take(p, e.from_place, e.from_cost);
    int blocks = kv_blocks_for(&w->kv, place, e.done + want) - r->n_blocks - e.hits + e.hit_cost;
    if (e.n_from && available(p, place) < blocks) {
        take(p, e.from_place, -e.from_cost); /* both placements share ranks that have no room for the copy */
        return refuse(p, "the KV cache has no room to copy its prefix");
    }
    take(p, place, blocks > 0 ? blocks : 0);
    add_item(b, r, want, e.done);
    b->items[b->n_items - 1].from_place = e.from_place;
    b->items[b->n_items - 1].n_from = e.n_from;
    return want;
}

int plan_add(struct plan_batch *b, req_id id, int n)
{
    struct plan *p = b->plan;
    struct request *r = request_find(&p->world->requests, id);
    if (!r)
        return refuse(p, "no such request");
    if (touched(p, r))
        return refuse(p, "this plan has already used the request");
    if (r->busy)
        return refuse(p, "the request is in the step that runs now");
    if (b->forwarded)
        return refuse(p, "the batch was already forwarded");
    int room = rows_left(b, b->plan->world->limits.max_num_batched_tokens);
    if (room <= 0)
        return refuse(p, "the step is full (max_num_batched_tokens)");
    if (n <= 0 || n > room)
        n = room;
    if (r->state == REQ_RUNNING && r->group != b->group)
        return refuse(p, "the request runs in another group: remap it first");
    return r->state == REQ_RUNNING ? add_running(b, r, n) : add_waiting(b, r, n);
}

int plan_decodes(struct plan_batch *b)
{
    struct plan *p = b->plan;
    const struct req_queue *q = &p->world->running;
    int before = b->n_items;
    if (b->forwarded)
        return refuse(p, "the batch was already forwarded");
    for (int i = 0; i < q->n && rows_left(b, b->n_tokens + 1) > 0; i++) {
        struct request *r = q->items[i];
        if (r->group != b->group || touched(p, r) || r->busy || !request_decoding(r))
            continue;
        if (!add_running(b, r, 1) && !touched(p, r)) {
            do_preempt(p, r, PREEMPT_RECOMPUTE); /* nobody behind it holds KV: it gives way itself */
            p->pressed = true;
        }
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
        if (r->group == b->group && !touched(b->plan, r) && !r->busy && !request_decoding(r))
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
        return refuse(p, "the batch was already forwarded");
    continue_prefills(b, budget);
    if (!list)
        n = w->waiting.n;
    for (int i = 0; i < n && !p->pressed && rows_left(b, budget) > 0; i++) {
        struct request *r = list ? request_find(&w->requests, list[i]) : w->waiting.items[i];
        if (!r || r->state != REQ_WAITING || touched(p, r) || !world_eligible(w, r))
            continue; /* gone, or already used, or waiting for a sibling: that is nobody's fault */
        if (r->n_moving || (r->paused && r->place != b->site->place) || !partition_admits(&w->partition, b->site, r))
            continue; /* it is not for this group now: those behind it may well be */
        if (!b->anybody && !route_here(b, r))
            continue;
        if (!add_waiting(b, r, rows_left(b, budget)))
            break;
    }
    return b->n_tokens - before;
}

bool plan_forward(struct plan_batch *b, struct layout l)
{
    const struct group *g = b->site;
    if (b->forwarded)
        return refuse(b->plan, "the batch was already forwarded");
    if (b->n_tokens == 0)
        return refuse(b->plan, "the batch is empty");
    if (l.sp < 1 || l.tp < 1 || l.pp < 1 || l.sp > MAX_RANKS || l.tp > MAX_RANKS || l.pp > MAX_RANKS)
        return refuse(b->plan, "sp, tp and pp must be from 1 to 64");
    if (l.pp > 1)
        return refuse(b->plan, "pipeline parallelism (pp > 1) is not supported by this build");
    if (layout_size(l) != g->n_ranks)
        return refuse(b->plan, "sp * tp * pp is not the number of ranks of the group");
    if (b->plan->world->shape.refusals[g->n_ranks][l.tp])
        return refuse(b->plan, b->plan->world->shape.refusals[g->n_ranks][l.tp]);
    for (int i = 0; i < b->plan->n_verbs; i++) {
        const struct switch_order *o = b->plan->verbs[i].order;
        if (o && o->when == WHEN_HARD && o->mask & g->mask)
            return refuse(b->plan, "this plan has ordered the group's ranks elsewhere");
    }
    b->layout = l;
    b->forwarded = true;
    return true;
}

/* ---- the partition */

bool plan_switch(struct plan *p, const struct switch_order *o)
{
    const char *why = partition_refusal(p->world, o);
    if (why)
        return refuse(p, why);
    for (int i = 0; i < p->n_verbs; i++)
        if (p->verbs[i].order && p->verbs[i].order->mask & o->mask)
            return refuse(p, "this plan has an order for one of these ranks already");
    for (int i = 0; i < p->n_batches; i++)
        if (p->batches[i]->forwarded && o->when == WHEN_HARD && p->batches[i]->site->mask & o->mask)
            return refuse(p, "this plan forwards a batch on one of these ranks");
    struct switch_order *copy = arena_new(&p->arena, sizeof *copy);
    *copy = *o;
    add_verb(p, PLAN_SWITCH, NULL)->order = copy;
    return true;
}

bool plan_remap(struct plan *p, req_id id, int group, enum kv_fate fate)
{
    struct request *r = request_find(&p->world->requests, id);
    struct group *g = partition_find(&p->world->partition, group);
    if (!r)
        return refuse(p, "no such request");
    if (touched(p, r))
        return refuse(p, "this plan has already used the request");
    if (r->busy || r->n_moving)
        return refuse(p, r->busy ? "the request is in the step that runs now" : "its KV is being copied");
    if (r->state != REQ_RUNNING && !r->paused)
        return refuse(p, "the request is not running");
    if (fate == FATE_PARK || fate == FATE_RECOMPUTE)
        return plan_preempt(p, id, fate == FATE_PARK ? PREEMPT_HARD : PREEMPT_RECOMPUTE);
    if (!g)
        return refuse(p, "no such group (any more)");
    if (!partition_admits(&p->world->partition, g, r))
        return refuse(p, "the group admits nobody: an order waits for it");
    if (fate == FATE_KEEP && r->place != g->place)
        return refuse(p, "its KV does not lie as the group's does: migrate it");
    if (r->group == g->id || (r->paused && r->place == g->place))
        return true;
    int need = kv_blocks_for(&p->world->kv, g->place, r->n_computed);
    if (r->place != g->place && available(p, g->place) < need)
        return refuse(p, "the group has no room for its KV");
    if (r->place != g->place)
        take(p, g->place, need);
    struct plan_verb *v = add_verb(p, PLAN_REMAP, r);
    v->group = group;
    v->fate = fate;
    return true;
}

bool plan_preempt_group(struct plan *p, int group, enum switch_when how)
{
    struct world *w = p->world;
    struct group *g = partition_find(&w->partition, group);
    if (!g)
        return refuse(p, "no such group (any more)");
    if (how == WHEN_HARD && !g->idle)
        return refuse(p, "the group is running a step: a hard preempt takes effect at its end");
    if (how != WHEN_HARD) {
        struct plan_verb *v = add_verb(p, PLAN_CLOSE, NULL);
        v->group = group;
        v->closed = true;
        return true;
    }
    for (int i = 0; i < w->running.n; i++) {
        struct request *r = w->running.items[i];
        if (r->group == group && !touched(p, r))
            do_preempt(p, r, PREEMPT_HARD);
    }
    return true;
}

bool plan_open_group(struct plan *p, int group)
{
    if (!partition_find(&p->world->partition, group))
        return refuse(p, "no such group (any more)");
    add_verb(p, PLAN_CLOSE, NULL)->group = group;
    return true;
}

bool plan_comm(struct plan *p, uint64_t ranks, int algorithm)
{
    const struct node_shape *s = &p->world->shape;
    for (int i = 0; i < s->n_sets; i++)
        if (s->sets[i] == ranks) {
            struct plan_verb *v = add_verb(p, PLAN_COMM, NULL);
            v->ranks = ranks;
            v->algorithm = algorithm;
            return true;
        }
    return refuse(p, "no communicator for these ranks: aligned power-of-two ranges and the whole node have one (--comm-sets adds more)");
}

struct step_size plan_size(const struct plan_batch *b)
{
    struct step_size s = {.rows = b->n_tokens};
    for (int i = 0; i < b->n_items; i++) {
        const struct plan_item *it = &b->items[i];
        double before = it->starts && !it->request->paused ? it->n_prefix : it->request->n_computed;
        s.looked_at += it->n_tokens * (before + 0.5 * (it->n_tokens + 1));
    }
    return s;
}

static const char *keep_text(struct plan *p, const char *text, size_t n, size_t max)
{
    n = n < max ? n : max;
    char *copy = arena_new(&p->arena, n + 1);
    memcpy(copy, text, n);
    return copy;
}

bool plan_refuse(struct plan *p, req_id id, int code, int retry_after_s, const char *why)
{
    struct request *r = request_find(&p->world->requests, id);
    if (!r)
        return refuse(p, "no such request");
    if (touched(p, r))
        return refuse(p, "this plan has already used the request");
    if (r->state != REQ_WAITING || r->paused || request_output(r) > 0)
        return refuse(p, "only a request that has not begun can be refused");
    if (code < 400 || code > 599)
        return refuse(p, "the code must be from 400 to 599");
    if (retry_after_s < -1 || retry_after_s > 86400)
        return refuse(p, "retry_after must be from 0 to 86400 seconds");
    struct plan_verb *v = add_verb(p, PLAN_REFUSE, r);
    v->code = code;
    v->retry_after_s = retry_after_s;
    v->text = keep_text(p, why ? why : "", why ? strlen(why) : 0, 199);
    return true;
}

bool plan_wake(struct plan *p, double after_ms)
{
    if (!(after_ms > 0 && after_ms <= 60000))
        return refuse(p, "wake takes more than 0 and at most 60000 ms");
    int64_t at = p->now_ns + (int64_t)(after_ms * 1e6);
    if (!p->wake_ns || at < p->wake_ns)
        p->wake_ns = at;
    return true;
}

bool plan_log(struct plan *p, const char *text, size_t n)
{
    if (p->n_logs >= 8)
        return refuse(p, "at most 8 log lines a step");
    p->n_logs++;
    add_verb(p, PLAN_LOG, NULL)->text = keep_text(p, text, n, 500);
    return true;
}

bool plan_is_empty(const struct plan *p)
{
    for (int i = 0; i < p->n_batches; i++)
        if (p->batches[i]->forwarded)
            return false;
    return true;
}

static void apply_verb(struct plan *p, const struct plan_verb *v)
{
    struct world *w = p->world;
    struct group *g = v->group ? partition_find(&w->partition, v->group) : NULL;
    switch (v->kind) {
    case PLAN_PREEMPT: world_preempt(w, v->request, v->how == PREEMPT_HARD, p->now_ns); break;
    case PLAN_REMAP: world_regroup(w, v->request, g); break;
    case PLAN_CLOSE: g->shut = v->closed; break;
    default: break; /* orders follow the batches; the rest is the caller's */
    }
}

static void start_items(struct plan *p, const struct plan_batch *b)
{
    for (int k = 0; k < b->n_items; k++) {
        struct plan_item *it = &b->items[k];
        if (!it->starts)
            continue;
        world_start(p->world, it->request, b->site, p->now_ns);
        if (it->n_from)
            it->move = world_hold_prefix(p->world, it->request, it->from_place, it->n_from);
    }
}

static void reserve_items(struct plan *p, const struct plan_batch *b)
{
    for (int k = 0; k < b->n_items; k++) {
        struct plan_item *it = &b->items[k];
        bool ok = world_reserve(p->world, it->request, it->request->n_computed + it->n_tokens);
        ASSERT(ok);
        if (it->move)
            world_aim_move(p->world, it->move, it->request);
    }
}

void plan_apply(struct plan *p)
{
    struct world *w = p->world;
    for (int i = 0; i < p->n_verbs; i++)
        if (p->verbs[i].kind == PLAN_PREEMPT)
            apply_verb(p, &p->verbs[i]);
    /* all prefixes are held before any block is taken: taking may evict what a later item counts on */
    for (int i = 0; i < p->n_batches; i++)
        if (p->batches[i]->forwarded)
            start_items(p, p->batches[i]);
    for (int i = 0; i < p->n_verbs; i++)
        if (p->verbs[i].kind != PLAN_PREEMPT)
            apply_verb(p, &p->verbs[i]);
    for (int i = 0; i < p->n_batches; i++)
        if (p->batches[i]->forwarded)
            reserve_items(p, p->batches[i]);
    for (int i = 0; i < p->n_verbs; i++)
        if (p->verbs[i].kind == PLAN_SWITCH)
            partition_ask(w, p->verbs[i].order, p->now_ns);
}
