#include "engine/starve.h"

enum { MAX_UPSETS = 8, LOOK_NS = 100000000 };

/* Could the plan run more of those who run already? */
static bool has_rows(const struct plan *p)
{
    int rows = 0;
    for (int i = p->mark.n_batches; i < p->n_batches; i++)
        rows += p->batches[i]->n_tokens;
    return rows < p->world->limits.max_num_batched_tokens && !p->pressed;
}

/* Could one more request start beside what it does already? */
static bool has_room(const struct plan *p)
{
    return p->n_running < p->seats && has_rows(p);
}

/* Has the group room for the whole of it? One that the policy has closed, or has drained for an order, counts: it is by
 * the policy that it takes none. */
static bool has_room_for(const struct plan *p, const struct group *g, const struct request *r)
{
    int need = kv_blocks_for(&p->world->kv, g->place, r->n_tokens) + kv_reserve(&p->world->kv);
    bool lies_well = !r->parked || r->place == g->place || world_in_host(p->world, r);
    return !g->held && g->canary == r->canary && lies_well && need <= plan_blocks(p, g->id);
}

static bool fits_somewhere(const struct plan *p, const struct request *r)
{
    struct partition *t = &p->world->partition;
    for (int i = 0; i < t->n_groups; i++)
        if (has_room_for(p, partition_group(t, i), r))
            return true;
    return false;
}

/* Is no group large enough for it, whoever leaves, and none asked for that would be? */
static bool fits_no_group(const struct world *w, const struct request *r)
{
    const struct partition *t = &w->partition;
    for (int i = 0; i < t->n_groups; i++)
        if (partition_group(t, i)->canary == r->canary &&
            kv_blocks_for(&w->kv, partition_group(t, i)->place, r->n_tokens) <= w->kv.n_blocks)
            return false;
    for (int i = 0; i < t->n_pending; i++) {
        const struct switch_order *o = &t->pending[i].order;
        if (!o->release &&
            r->n_tokens <=
                (int64_t)w->kv.n_blocks * shape_tokens_per_block(&w->shape, __builtin_popcountll(o->mask), o->base.pp))
            return false;
    }
    return true;
}

/* Can any request be so? Not while one group holds the longest that there may be. */
static bool can_be_homeless(const struct world *w, enum side s)
{
    const struct partition *t = &w->partition;
    for (int i = 0; i < t->n_groups; i++)
        if (side_has(s, partition_group(t, i)->canary) &&
            kv_blocks_for(&w->kv, partition_group(t, i)->place, w->limits.max_model_len) <= w->kv.n_blocks)
            return false;
    return true;
}

/* Has a request that ranks after r begun since then? */
static bool is_overtaken(const struct world *w, const struct request *r, int64_t since_ns)
{
    for (int i = 0; i < w->running.n; i++) {
        const struct request *x = w->running.items[i];
        if (!x->parent && x->canary == r->canary && x->key > r->key && x->first_scheduled_ns > since_ns)
            return true;
    }
    return false;
}

static bool is_late(const struct world *w, const struct request *r, int64_t now_ns)
{
    return now_ns - r->progress_ns >= w->limits.starvation_ns;
}

/* One prompt that ranks after it is no habit: it may be long, of somebody whom no other group was for. A second one is,
 * unless much later. */
static bool is_the_one(struct starve_watch *s, const struct world *w, const struct request *x, int64_t now_ns)
{
    if (!s->late.one || now_ns - s->late.one_ns >= w->limits.starvation_ns) {
        s->late.one = x->id;
        s->late.one_ns = now_ns;
    }
    return x->id == s->late.one;
}

/* Does the plan begin one that ranks before it, in this group or (NULL) in any? */
static bool begins_another(const struct plan *p, const struct group *g, const struct request *r)
{
    for (int i = p->mark.n_batches; i < p->n_batches; i++) {
        const struct plan_batch *b = p->batches[i];
        for (int k = 0; (!g || b->group == g) && b->forwarded && k < b->n_items; k++)
            if (b->items[k].starts && b->items[k].request->key < r->key)
                return true;
    }
    return false;
}

/* Does the group compute a prompt whose turn it was, or make tokens for one that has begun since then? */
static bool is_others_turn(struct starve_watch *s, const struct plan *p, const struct group *g, const struct request *r)
{
    const struct world *w = p->world;
    const struct request *later = NULL;
    if (begins_another(p, g, r))
        return true;
    for (int k = 0; k < w->running.n; k++) {
        const struct request *x = w->running.items[k];
        if (x->group != g->id)
            continue;
        if (x->key < r->key && x->first_scheduled_ns > s->late.since_ns)
            return true;
        if (request_decoding(x))
            continue;
        if (x->key <= r->key || x->first_scheduled_ns <= s->late.since_ns)
            return true;
        later = x;
    }
    return later && is_the_one(s, w, later, p->now_ns);
}

/* Does every group that has room for it compute such a prompt? */
static bool waits_its_turn(struct starve_watch *s, const struct plan *p, const struct request *r)
{
    const struct partition *t = &p->world->partition;
    for (int i = 0; i < t->n_groups; i++)
        if (has_room_for(p, partition_group(t, i), r) && !is_others_turn(s, p, partition_group(t, i), r))
            return false;
    return true;
}

/* Not only for a moment: where a long queue is served in order, whoever is first in it waits late until the group that
 * it is meant for ends its step, and the prompts of those before it. Who stands behind one without room waits for that
 * one, unless others do not. */
static bool is_passed_over(struct starve_watch *s, const struct plan *p, const struct request *r, bool behind)
{
    const struct world *w = p->world;
    int64_t moment = w->limits.starvation_ns / 5, now = p->now_ns;
    if (s->late.id != r->id) {
        s->late.id = r->id;
        s->late.since_ns = now;
        s->late.one = 0;
    }
    if (waits_its_turn(s, p, r))
        s->late.since_ns = now;
    return now - s->late.since_ns >= moment && (!behind || is_overtaken(w, r, s->late.since_ns));
}

/* Where prompts begin now and then only, looks fall between them: a plan that begins others is looked at, too. */
static void note_turn(struct starve_watch *s, const struct plan *p)
{
    const struct request *r = s->late.id ? request_find(&p->world->requests, s->late.id) : NULL;
    if (r && begins_another(p, NULL, r) && waits_its_turn(s, p, r))
        s->late.since_ns = p->now_ns;
}

/* A plan without room for one more: others have their turn, as long as none of them came later. */
static void wait_on(struct starve_watch *s, const struct plan *p)
{
    const struct request *r = request_find(&p->world->requests, s->late.id);
    if (r && !is_overtaken(p->world, r, s->late.since_ns))
        s->late.since_ns = p->now_ns;
}

/* Has x begun since then in r's stead? It ranks after r, runs where r could, and came later by the time for which one
 * may wait: a policy may have an order of its own within that. */
static bool overtakes(const struct world *w, const struct request *x, const struct request *r, int64_t since_ns)
{
    const struct group *g = partition_find(&w->partition, x->group);
    bool after = x->key > r->key && x->spec->arrival_ns - r->spec->arrival_ns >= w->limits.starvation_ns;
    if (x->parent || x->canary != r->canary || !after || x->first_scheduled_ns <= since_ns || !g)
        return false;
    bool tied = r->n_blocks > 0 && !world_in_host(w, r) && r->place != g->place;
    return !tied && kv_blocks_for(&w->kv, g->place, r->n_tokens) <= w->kv.n_blocks;
}

/* The first in order of those that wait late, whatever room there is. */
static struct request *first_late(const struct plan *p)
{
    const struct world *w = p->world;
    for (int i = 0; i < w->waiting.n; i++) {
        struct request *r = w->waiting.items[i];
        if (side_has(p->side, r->canary) && !r->parent && is_late(w, r, p->now_ns) && world_eligible(w, r) &&
            !world_strands(w, r) && !plan_deals_with(p, r))
            return r;
    }
    return NULL;
}

/* One that stays the first of those that wait late, for as long again, while at least two that rank after it begin
 * where it could: by whatever order it is served, that is not the one of the keys. */
static struct request *find_overtaken(struct starve_watch *s, const struct plan *p, const char **how)
{
    const struct world *w = p->world;
    struct request *r = first_late(p);
    if (!r || r->id != s->passed.id) {
        s->passed.id = r ? r->id : 0;
        s->passed.since_ns = s->passed.last_ns = p->now_ns;
        s->passed.n = 0;
    }
    int64_t last = s->passed.last_ns;
    for (int i = 0; i < w->running.n && r; i++)
        if (overtakes(w, w->running.items[i], r, s->passed.last_ns)) {
            s->passed.n++;
            last = w->running.items[i]->first_scheduled_ns > last ? w->running.items[i]->first_scheduled_ns : last;
        }
    s->passed.last_ns = last;
    *how = "has waited, and those that rank after it begin before it, for";
    return r && s->passed.n >= 2 && p->now_ns - s->passed.since_ns >= w->limits.starvation_ns ? r : NULL;
}

/* The first of the queue that waits too long although there is room, or could be. */
static struct request *find_starved_waiting(struct starve_watch *s, const struct plan *p, const char **how)
{
    struct world *w = p->world;
    bool room = has_room(p), behind = false; /* one that has no room */
    if (!room)
        wait_on(s, p);
    if (!room && !can_be_homeless(w, p->side))
        return NULL;
    for (int i = 0; i < w->waiting.n; i++) {
        struct request *r = w->waiting.items[i];
        if (!side_has(p->side, r->canary) || r->parent || !world_eligible(w, r) || world_strands(w, r) ||
            plan_deals_with(p, r))
            continue;
        bool homeless = fits_no_group(w, r);
        if (!homeless && !room)
            continue;
        if (!homeless && !fits_somewhere(p, r)) {
            behind = true;
            if (!is_overtaken(w, r, r->progress_ns))
                break;
            continue;
        }
        *how = homeless ? "has waited, and fits no group (view.narrowest says which would hold it), for"
                        : "has waited, with room for it, for";
        if (is_late(w, r, p->now_ns))
            return homeless || is_passed_over(s, p, r, behind) ? r : NULL;
    }
    if (room)
        s->late.id = 0;
    return NULL;
}

/* Has its group begun others that rank after it since it got further? */
static bool is_passed_in(const struct world *w, const struct group *g, const struct request *r)
{
    int n = 0;
    for (int i = 0; i < w->running.n; i++)
        n += w->running.items[i]->group == g->id && overtakes(w, w->running.items[i], r, r->progress_ns);
    return n >= 2;
}

/* One that runs and does not get on: left out of the steps of its group, or made to give way again and again. */
static struct request *find_starved_running(const struct plan *p, int64_t now_ns, const char **how)
{
    struct world *w = p->world;
    bool rows = has_rows(p);
    *how = "runs and has got no further for";
    for (int i = 0; i < w->running.n; i++) {
        struct request *r = w->running.items[i];
        const struct group *g = partition_find(&w->partition, r->group);
        bool could = side_has(p->side, r->canary) && !r->busy && !r->n_moving && !r->parent && g && g->idle && !g->held;
        if (could && is_late(w, r, now_ns) && !plan_deals_with(p, r) && (rows || is_passed_in(w, g, r)))
            return r;
    }
    return NULL;
}

/* Does the plan run a request that is late? The next plan shows what comes of it: it may take it back. */
static bool runs_late(const struct plan *p, int64_t now_ns)
{
    for (int i = p->mark.n_batches; i < p->n_batches; i++)
        for (int k = 0; p->batches[i]->forwarded && k < p->batches[i]->n_items; k++)
            if (is_late(p->world, p->batches[i]->items[k].request, now_ns))
                return true;
    return false;
}

/* Has nobody of the side got further for so long, whatever was computed? */
static bool all_are_late(const struct plan *p)
{
    const struct world *w = p->world;
    int64_t since = p->now_ns - w->limits.starvation_ns;
    return (p->side == SIDE_CANARY || w->progress_ns[0] <= since) &&
           (p->side == SIDE_LIVE || w->progress_ns[1] <= since);
}

/* One that is moved from place to place instead of run, by verbs about it or by orders: most looks find it on its way,
 * or a plan that deals with it. And one that has to give way each time before it gets further, if that is of no use to
 * anybody that it should give way to. */
static struct request *find_harried(const struct plan *p, int64_t now_ns, const char **how)
{
    const struct world *w = p->world;
    bool useless = all_are_late(p);
    for (int i = 0; i < w->running.n + w->waiting.n; i++) {
        struct request *r = i < w->running.n ? w->running.items[i] : w->waiting.items[i - w->running.n];
        bool counts = side_has(p->side, r->canary) && !r->parent && !r->held_until_ns && is_late(w, r, now_ns);
        *how = "has been moved time and again, and has got no further for";
        if (counts && r->n_moves > MAX_UPSETS)
            return r;
        *how = "has given way time and again, and has got no further for";
        if (counts && r->n_stops > MAX_UPSETS && (useless || is_overtaken(w, r, r->progress_ns)))
            return r;
    }
    return NULL;
}

struct request *starve_find(struct starve_watch *s, struct plan *p, struct err *e)
{
    struct world *w = p->world;
    const char *how = "";
    int64_t now = p->now_ns, *next = &s->next_ns[has_room(p)];
    if (!w->limits.starvation_ns)
        return NULL;
    note_turn(s, p);
    if (now < *next)
        return NULL;
    *next = now + LOOK_NS;
    if (runs_late(p, now))
        s->next_ns[0] = s->next_ns[1] = now;
    struct request *r = find_harried(p, now, &how);
    if (!r)
        r = find_starved_waiting(s, p, &how);
    if (!r)
        r = find_overtaken(s, p, &how);
    if (!r)
        r = find_starved_running(p, now, &how);
    if (!r)
        return NULL;
    err_set(e, E_POLICY, "request %.40s %s %.1f s", r->spec->name, how, (double)(now - r->progress_ns) * 1e-9);
    r->n_moves = r->n_stops = 0;
    world_rekey(w, r, -1e300);
    return r;
}
