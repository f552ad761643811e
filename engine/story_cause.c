/* Why a request is not run by a plan: found from what the world lacked before the plan and lacks after it, and from
 * whom the plan runs instead. What only the policy knows is taken from what it said (the words of a hold). The plan is
 * not carried out yet: the world is as the policy saw it. */
#include <string.h>

#include "engine/story.h"
#include "engine/world/route.h"

/* Of a queue longer than this, so many of the first are looked at in each decision, and as many of the others in turn:
 * their causes may be some decisions old. */
enum { LOOKED_AT = 64 };

/* A group that may take a step. */
struct usable {
    const struct group *group;
    const struct plan_batch *batch; /* NULL: the plan forwards nothing there */
    int before, after;              /* blocks that could be taken, before the plan and after it */
    uint64_t most;                  /* whose chunk in the batch is the largest, tag; 0: nobody's */
};

/* Of a side (engine/world/side.h): without a canary only the first is of use. */
struct side_facts {
    int seats_before, seats_after;
    const struct request *latest;  /* the latest arrival that the plan starts; NULL: it starts none */
    const struct request *blocked; /* the first of the queue that has no room in the KV cache; NULL: none so far */
};

struct facts {
    struct world *world;
    const struct plan *plan; /* NULL: none was made */
    int64_t now_ns;
    struct usable usable[MAX_RANKS];
    int n_usable;
    struct side_facts sides[2]; /* by whether a canary decides */
    bool any_held;              /* some group takes no step because of an order, or of weights to come */
};

/* Did x come after r? Not: into the queue, which is as the front got ready with them. */
static bool came_later(const struct request *x, const struct request *r)
{
    int64_t a = x->spec->arrival_ns, b = r->spec->arrival_ns;
    return a != b ? a > b : x->order > r->order;
}

static uint64_t largest_chunk(const struct plan_batch *b)
{
    const struct plan_item *best = NULL;
    for (int i = 0; i < b->n_items; i++)
        if (!b->items[i].request->parent && (!best || b->items[i].n_tokens > best->n_tokens))
            best = &b->items[i];
    return best ? best->request->spec->tag : 0;
}

static const struct plan_batch *batch_of(const struct plan *p, int group)
{
    for (int i = 0; p && i < p->n_batches; i++)
        if (p->batches[i]->group_id == group && p->batches[i]->forwarded)
            return p->batches[i];
    return NULL;
}

static void look_at_groups(struct facts *f)
{
    const struct partition *t = &f->world->partition;
    f->any_held = t->n_pending > 0 || t->free_ranks & ~t->dead_ranks;
    for (int i = 0; i < t->n_groups; i++) {
        const struct group *g = partition_group(t, i);
        f->any_held |= g->held || g->loading;
        if (!g->idle || g->held)
            continue;
        struct usable *u = &f->usable[f->n_usable++];
        u->group = g;
        u->batch = batch_of(f->plan, g->id);
        u->before = kv_available(&f->world->kv, g->place);
        u->after = f->plan ? plan_blocks(f->plan, g->id) : u->before;
        u->most = u->batch ? largest_chunk(u->batch) : 0;
    }
}

static void look_at_seats(struct facts *f)
{
    const struct world *w = f->world;
    const struct plan *p = f->plan;
    bool two = w->sides.ranks;
    for (int i = 0; i < 1 + two; i++) {
        enum side side = i ? SIDE_CANARY : world_live_side(w);
        int most = side_seats(w, side), running = side_running(w, side), after = running;
        if (p && two && p->mark.set)
            after = i ? p->n_running - p->mark.n_running : p->mark.n_running;
        else if (p)
            after = p->n_running;
        f->sides[i].seats_before = most - running;
        f->sides[i].seats_after = most - after;
    }
}

static void look_at_plan(struct facts *f)
{
    const struct plan *p = f->plan;
    look_at_seats(f);
    for (int i = 0; p && i < p->n_batches; i++)
        for (int k = 0; p->batches[i]->forwarded && k < p->batches[i]->n_items; k++) {
            const struct plan_item *it = &p->batches[i]->items[k];
            struct side_facts *s = &f->sides[it->request->canary];
            if (it->starts && !it->request->parent && (!s->latest || came_later(it->request, s->latest)))
                s->latest = it->request;
        }
}

/* ---- a request that waits */

static struct story_now passed(uint64_t behind)
{
    return (struct story_now){.part = PART_PASSED, .behind = behind};
}

/* The plan has used up what was there: for somebody who came later, or before? */
static struct story_now taken_or(const struct facts *f, const struct request *r, enum story_part lacks)
{
    const struct request *latest = f->sides[r->canary].latest;
    if (latest && came_later(latest, r))
        return passed(latest->spec->tag);
    return (struct story_now){.part = lacks, .behind = latest ? latest->spec->tag : 0};
}

/* Of the blocks that the cache was found to have of it when it was last looked for, those that somebody holds: they
 * are taken already, and are for nothing. */
static int held_prefix(const struct world *w, const struct request *r, const struct group *g)
{
    const struct kv_place *l = kv_place(&w->kv, g->place);
    int n = !r->parked && g->place < r->n_seen ? r->seen[g->place].n_blocks : 0, held = 0;
    int units = l->tokens_per_block / KV_UNIT;
    for (int i = 0; i < n && (i + 1) * units <= r->n_keys; i++) {
        int32_t block = kv_lookup(&w->kv, g->place, r->keys[(i + 1) * units - 1]);
        if (block < 0)
            break;
        held += l->blocks[block].refs > 0;
    }
    return held;
}

/* Has the group so many blocks for its whole timeline? */
static bool finds_room(const struct facts *f, const struct request *r, const struct group *g, int blocks)
{
    const struct world *w = f->world;
    int own = world_in_host(w, r) ? 0 : r->n_blocks;
    int need = kv_blocks_for(&w->kv, g->place, r->n_tokens) - own + (w->running.n ? kv_reserve(&w->kv) : 0);
    int cached = !r->parked && g->place < r->n_seen ? r->seen[g->place].n_blocks : 0;
    if (need <= blocks || need - cached > blocks)
        return need <= blocks;
    return need - held_prefix(w, r, g) <= blocks;
}

static bool holds_empty(const struct world *w, const struct request *r, const struct group *g)
{
    return kv_blocks_for(&w->kv, g->place, r->n_tokens) <= w->kv.n_blocks;
}

static bool may_take(const struct facts *f, const struct request *r, const struct group *g)
{
    bool lies_well = !r->parked || r->place == g->place || world_in_host(f->world, r);
    return lies_well && partition_admits(&f->world->partition, g, r) && holds_empty(f->world, r, g);
}

/* No group that may take a step now is one for it. */
static enum story_part no_group_now(const struct facts *f, const struct request *r)
{
    const struct partition *t = &f->world->partition;
    bool in_step = false, closed = false, held = false, fits = false;
    for (int i = 0; i < t->n_groups; i++) {
        const struct group *g = partition_group(t, i);
        if (g->canary != r->canary || !holds_empty(f->world, r, g))
            continue;
        fits = true;
        held |= g->held || g->loading || g->closed || (r->parked && r->place != g->place);
        in_step |= !g->idle && may_take(f, r, g);
        closed |= g->shut;
    }
    if (in_step)
        return PART_STEP;
    if (held || (f->any_held && !closed))
        return PART_SWITCH;
    return closed ? PART_CLOSED : fits || !t->n_groups ? PART_UNEXPLAINED : PART_NO_GROUP;
}

/* There is room in this group after the plan. */
static struct story_now despite_room(const struct facts *f, struct request *r, const struct usable *u)
{
    const struct plan *p = f->plan;
    const struct partition *t = &f->world->partition;
    const struct side_facts *s = &f->sides[r->canary];
    if (s->latest && came_later(s->latest, r))
        return passed(s->latest->spec->tag);
    if (s->blocked && s->blocked != r)
        return (struct story_now){.part = PART_BEHIND, .behind = s->blocked->spec->tag};
    for (int i = 0; i < p->n_batches && t->n_groups > 1; i++)
        if (p->batches[i]->group == u->group && !p->batches[i]->anybody && !route_here(p->batches[i], r))
            return (struct story_now){.part = PART_ROUTED};
    if (u->batch && u->most)
        return passed(u->most);
    return (struct story_now){.part = p->wake_ns ? PART_IDLE : PART_UNEXPLAINED};
}

/* Some groups may take it: what do they lack? The one that lacks least says. */
static struct story_now what_lacks(const struct facts *f, struct request *r, const struct usable *const *us, int n)
{
    const struct usable *room = NULL, *rows = NULL;
    bool had_blocks = false, full = false;
    const struct side_facts *s = &f->sides[r->canary];
    if (s->seats_after <= 0)
        return s->seats_before <= 0 ? (struct story_now){.part = PART_SEAT} : taken_or(f, r, PART_SEAT);
    for (int i = 0; i < n; i++) {
        const struct usable *u = us[i];
        had_blocks |= finds_room(f, r, u->group, u->before);
        if (!finds_room(f, r, u->group, u->after))
            continue;
        room = u;
        if (u->batch && u->batch->n_tokens >= f->world->limits.max_num_batched_tokens)
            full = true;
        else
            rows = u;
    }
    if (!room)
        return had_blocks ? taken_or(f, r, PART_KV) : (struct story_now){.part = PART_KV};
    if (!rows && full)
        return taken_or(f, r, PART_BUDGET);
    if (!f->plan)
        return (struct story_now){.part = PART_ENGINE};
    if (f->plan->pressed || f->plan->leaving)
        return (struct story_now){.part = PART_KV};
    return despite_room(f, r, rows);
}

static struct story_now why_waits(const struct facts *f, struct request *r)
{
    const struct usable *us[MAX_RANKS];
    int n = 0;
    if (r->held_until_ns)
        return (struct story_now){.part = PART_HELD, .words = r->held_why};
    if (!world_eligible(f->world, r))
        return (struct story_now){.part = PART_SIBLING, .behind = r->spec->leader};
    if (r->n_moving)
        return (struct story_now){.part = world_in_host(f->world, r) || r->sought ? PART_SWAP : PART_MOVE};
    if (world_strands(f->world, r))
        return (struct story_now){.part = PART_SWITCH};
    for (int i = 0; i < f->n_usable; i++)
        if (may_take(f, r, f->usable[i].group))
            us[n++] = &f->usable[i];
    return n ? what_lacks(f, r, us, n) : (struct story_now){.part = no_group_now(f, r)};
}

/* ---- one that runs, and is not in the plan */

static struct story_now why_left_out(const struct facts *f, const struct request *r)
{
    const struct group *g = partition_find(&f->world->partition, r->group);
    const struct usable *u = NULL;
    if (r->n_moving)
        return (struct story_now){.part = PART_MOVE};
    if (!g || g->held || g->loading)
        return (struct story_now){.part = PART_SWITCH};
    for (int i = 0; i < f->n_usable; i++)
        if (f->usable[i].group == g)
            u = &f->usable[i];
    if (!u)
        return (struct story_now){.part = PART_STEP};
    if (!f->plan)
        return (struct story_now){.part = PART_ENGINE};
    if (u->batch && u->batch->n_tokens >= f->world->limits.max_num_batched_tokens)
        return (struct story_now){.part = PART_BUDGET, .behind = u->most};
    int need = kv_blocks_for(&f->world->kv, r->place, r->n_computed + 1) - r->n_blocks;
    if (need > u->after)
        return (struct story_now){.part = PART_KV};
    if (u->batch && u->most)
        return passed(u->most);
    return (struct story_now){.part = f->plan->wake_ns ? PART_IDLE : PART_UNEXPLAINED};
}

/* ---- all of them */

/* Nothing is known yet of what it waits for. */
static bool is_between(const struct story *t)
{
    return t->now.part == PART_ENGINE || t->between_ns;
}

static void tell(struct stories *s, struct facts *f, struct request *r)
{
    struct story *t = r->story;
    bool waits = r->state == REQ_WAITING;
    if (!t || r->busy || (f->plan && t->mark == f->plan->serial))
        return;
    if (!waits && !f->plan && !is_between(t))
        return;
    struct story_now is = waits ? why_waits(f, r) : why_left_out(f, r);
    if (is.part == PART_KV && waits && !f->sides[r->canary].blocked)
        f->sides[r->canary].blocked = r;
    /* Its group is in a step, from which a decision has left it out: that one said why. */
    if (is.part == PART_STEP && !waits && !is_between(t))
        return;
    is.again = r->n_preempted > 0;
    is.step = f->world->step;
    story_turn(s, t, &is, f->now_ns);
}

/* Does the plan run all who run? Then nobody of them waits. */
static bool runs_all(const struct plan *p)
{
    int n = 0;
    for (int i = 0; p && i < p->n_batches; i++)
        for (int k = 0; p->batches[i]->forwarded && k < p->batches[i]->n_items; k++)
            n += !p->batches[i]->items[k].starts;
    return p && n == p->world->running.n;
}

static void tell_all(struct stories *s, struct facts *f)
{
    const struct req_queue *q = &f->world->waiting;
    int head = q->n < LOOKED_AT ? q->n : LOOKED_AT, rest = q->n - head;
    look_at_groups(f);
    look_at_plan(f);
    bool all = runs_all(f->plan);
    for (int i = 0; i < f->world->running.n && !all; i++)
        tell(s, f, f->world->running.items[i]);
    for (int i = 0; i < head; i++)
        tell(s, f, q->items[i]);
    for (int i = 0; i < rest && i < LOOKED_AT; i++) {
        s->next_look = s->next_look + 1 < rest ? s->next_look + 1 : 0;
        tell(s, f, q->items[head + s->next_look]);
    }
    s->stale = false;
}

static void tell_runs(struct stories *s, const struct plan *p, const struct plan_batch *b)
{
    for (int i = 0; i < b->n_items; i++) {
        const struct plan_item *it = &b->items[i];
        struct request *r = it->request;
        if (!r->story)
            continue;
        bool decodes = request_output(r) > 0 && request_decoding(r) && !it->starts;
        struct story_now is = {.part = decodes ? PART_DECODE : PART_PREFILL,
                               .step = p->world->step,
                               .tokens = it->n_tokens,
                               .group = b->group_id,
                               .layout = b->layout,
                               .again = r->n_preempted > 0};
        r->story->mark = p->serial;
        story_turn(s, r->story, &is, p->now_ns);
    }
}

static uint64_t anybody_run(const struct plan *p, bool canary)
{
    for (int i = 0; i < p->n_batches; i++)
        if (p->batches[i]->forwarded && p->batches[i]->group->canary == canary && largest_chunk(p->batches[i]))
            return largest_chunk(p->batches[i]);
    return 0;
}

static void tell_verb(struct stories *s, const struct plan *p, const struct plan_verb *v)
{
    struct request *r = v->request;
    struct story_now is = {.step = p->world->step};
    if (!r || !r->story)
        return;
    if (v->kind == PLAN_HOLD && v->until_ns)
        is = (struct story_now){.part = PART_HELD, .words = v->text, .again = r->n_preempted > 0};
    else if (v->kind == PLAN_PREEMPT)
        is = (struct story_now){.part = PART_PREEMPTED, .behind = anybody_run(p, r->canary), .again = true};
    else if (v->kind == PLAN_REMAP)
        is = (struct story_now){.part = v->fate == FATE_HOST || world_in_host(p->world, r) ? PART_SWAP : PART_MOVE,
                                .again = v->fate == FATE_HOST || r->n_preempted > 0};
    else
        return;
    is.step = p->world->step;
    r->story->mark = p->serial;
    story_turn(s, r->story, &is, p->now_ns);
}

void stories_decided(struct stories *s, const struct plan *p)
{
    struct facts f = {.world = p->world, .plan = p, .now_ns = p->now_ns};
    if (!s->n_open)
        return;
    for (int i = 0; i < p->n_batches; i++)
        if (p->batches[i]->forwarded)
            tell_runs(s, p, p->batches[i]);
    for (int i = 0; i < p->n_verbs; i++)
        tell_verb(s, p, &p->verbs[i]);
    tell_all(s, &f);
}

void stories_look(struct stories *s, struct world *w, int64_t now_ns)
{
    struct facts f = {.world = w, .now_ns = now_ns};
    if (s->n_open && (s->n_between || s->stale))
        tell_all(s, &f);
}
