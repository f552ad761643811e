#include "engine/world/plan_inner.h"

#include <math.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/world/route.h"

void plan_init(struct plan *p, struct world *w)
{
    memset(p, 0, sizeof *p);
    p->world = w;
    arena_init(&p->arena);
    p->arena.seen = true;
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
    p->n_batches = p->n_verbs = p->cap_verbs = 0;
    p->verbs = NULL;
    p->ffn = NULL;
    p->leaving = 0;
    for (int r = 0; r < w->kv.n_ranks; r++)
        p->leaving |= (uint64_t)(w->n_leaving[r] > 0) << r;
    p->blocks_free = arena_new(&p->arena, (size_t)w->kv.n_stores * sizeof *p->blocks_free);
    for (int r = 0; r < w->kv.n_stores; r++)
        p->blocks_free[r] = w->kv.ranks[r].n_free + w->kv.ranks[r].n_cached;
    p->mark = (struct plan_mark){0};
    plan_take_side(p, world_live_side(w));
    route_count(w);
}

bool plan_no(struct plan *p, const char *why)
{
    p->reason = why;
    return false;
}

bool plan_touched(const struct plan *p, const struct request *r)
{
    return r->plan_serial == p->serial;
}

/* Room for one more element in an arena array: the old copy stays behind, the arena dies with the step. */
void *plan_grown(struct plan *p, void *old, int n, int *cap, size_t size)
{
    if (n < *cap)
        return old;
    *cap = *cap ? *cap * 2 : 16;
    void *bigger = arena_new(&p->arena, (size_t)*cap * size);
    if (n)
        memcpy(bigger, old, (size_t)n * size);
    return bigger;
}

struct plan_verb *plan_add_verb(struct plan *p, enum plan_verb_kind kind, struct request *r)
{
    p->verbs = plan_grown(p, p->verbs, p->n_verbs, &p->cap_verbs, sizeof *p->verbs);
    struct plan_verb *v = &p->verbs[p->n_verbs++];
    memset(v, 0, sizeof *v);
    v->kind = kind;
    v->canary = p->side == SIDE_CANARY;
    v->request = r;
    if (r)
        r->plan_serial = p->serial;
    return v;
}

/* Does a request that this plan starts begin with the text of block i of a place, whose key this is? Then the block is
 * held again as soon as it is let go. */
static bool is_promised(const struct plan *p, int place, int i, struct kv_key key)
{
    int unit = (i + 1) * (kv_place(&p->world->kv, place)->tokens_per_block / KV_UNIT) - 1;
    for (int k = 0; k < p->n_batches; k++)
        for (int n = 0; n < p->batches[k]->n_items; n++) {
            const struct plan_item *it = &p->batches[k]->items[n];
            const struct request *x = it->request;
            if (it->starts && it->n_prefix && unit < x->n_keys && x->keys[unit].h[0] == key.h[0] &&
                x->keys[unit].h[1] == key.h[1])
                return true;
        }
    return false;
}

/* Blocks that come back when r lets go of its own: those that no other request holds, or will hold by this plan. */
static int own_blocks(const struct plan *p, const struct request *r)
{
    int n = 0;
    for (int i = 0; i < r->n_blocks; i++) {
        const struct kv_block *b = &kv_place(&p->world->kv, r->place)->blocks[r->blocks[i]];
        n += b->refs == 1 && !is_promised(p, r->place, i, b->key);
    }
    return n;
}

/* What the plan may still take of a place's blocks. */
int plan_available(const struct plan *p, int place)
{
    const struct kv_place *l = kv_place(&p->world->kv, place);
    int least = p->blocks_free[l->ranks[0]];
    for (int i = 1; i < l->n; i++)
        least = p->blocks_free[l->ranks[i]] < least ? p->blocks_free[l->ranks[i]] : least;
    return least;
}

void plan_take(struct plan *p, int place, int blocks)
{
    const struct kv_place *l = kv_place(&p->world->kv, place);
    for (int i = 0; i < l->n; i++)
        p->blocks_free[l->ranks[i]] -= blocks;
}

int plan_blocks(const struct plan *p, int group)
{
    const struct group *g = partition_find(&p->world->partition, group);
    return g ? plan_available(p, g->place) : 0;
}

void plan_do_preempt(struct plan *p, struct request *r, enum preempt_how how)
{
    struct plan_verb *v = plan_add_verb(p, PLAN_PREEMPT, r);
    v->how = how;
    v->unparks = r->parked && how == PREEMPT_RECOMPUTE;
    if (r->state == REQ_RUNNING)
        p->n_running--;
    if (how == PREEMPT_RECOMPUTE && r->n_blocks)
        plan_take(p, r->place, -own_blocks(p, r));
}

struct request *plan_usable(struct plan *p, req_id id)
{
    struct request *r = request_find(&p->world->requests, id);
    const char *why = !r                   ? "no such request"
                      : plan_touched(p, r) ? "this plan has already used the request"
                      : r->busy            ? "the request is in the step that runs now"
                                           : NULL;
    if (r && plan_is_others(p, r))
        return NULL;
    if (why)
        plan_no(p, why);
    return why ? NULL : r;
}

bool plan_preempt(struct plan *p, req_id id, enum preempt_how how)
{
    struct request *r = plan_usable(p, id);
    if (!r)
        return false;
    if (r->state != REQ_RUNNING && !(r->parked && how == PREEMPT_RECOMPUTE))
        return plan_no(p, "the request is not running");
    plan_do_preempt(p, r, how);
    return true;
}

/* ---- the partition */

bool plan_switch(struct plan *p, const struct switch_order *o)
{
    const char *why = partition_refusal(p->world, o);
    if (!why)
        why = plan_side_refusal(p, o);
    if (why)
        return plan_no(p, why);
    for (int i = 0; i < p->n_verbs; i++)
        if (p->verbs[i].order && p->verbs[i].order->mask & o->mask)
            return plan_no(p, "this plan has an order for one of these ranks already");
    for (int i = 0; i < p->n_batches; i++)
        if (p->batches[i]->forwarded && o->when == WHEN_HARD && p->batches[i]->group->mask & o->mask)
            return plan_no(p, "this plan forwards a batch on one of these ranks");
    if (partition_stands(&p->world->partition, o))
        return true;
    struct switch_order *copy = arena_new(&p->arena, sizeof *copy);
    *copy = *o;
    plan_add_verb(p, PLAN_SWITCH, NULL)->order = copy;
    return true;
}

/* The blocks that it leaves count when the copy has ended: not in this plan. */
bool plan_swap_out(struct plan *p, struct request *r)
{
    const struct kv_pool *kv = &p->world->kv;
    if (kv->host_place < 0)
        return plan_no(p, "there is no host memory for KV: --host-kv-memory gives some");
    if (r->place == kv->host_place)
        return true;
    if (!r->n_blocks || !r->n_computed)
        return plan_no(p, "it has no KV yet");
    int need = kv_blocks_for(kv, kv->host_place, r->n_computed);
    if (plan_available(p, kv->host_place) < need)
        return plan_no(p, "the host memory for KV is full");
    plan_take(p, kv->host_place, need);
    p->n_running -= r->state == REQ_RUNNING;
    plan_add_verb(p, PLAN_REMAP, r)->fate = FATE_HOST;
    p->leaving |= kv_place(kv, r->place)->mask;
    return true;
}

bool plan_remap(struct plan *p, req_id id, int group, enum kv_fate fate)
{
    struct request *r = plan_usable(p, id);
    struct group *g = partition_find_slot(&p->world->partition, group);
    if (!r)
        return false;
    if (r->n_moving)
        return plan_no(p, "its KV is being copied");
    if (r->state != REQ_RUNNING && !r->parked)
        return plan_no(p, "the request is not running");
    if (fate == FATE_PARK || fate == FATE_RECOMPUTE)
        return plan_preempt(p, id, fate == FATE_PARK ? PREEMPT_HARD : PREEMPT_RECOMPUTE);
    if (fate == FATE_HOST)
        return plan_swap_out(p, r);
    if (!g)
        return plan_no(p, "no such group (any more)");
    if (plan_is_others_group(p, g))
        return false;
    if (!partition_admits(&p->world->partition, g, r))
        return plan_no(p, "the group admits nobody: an order waits for it");
    if (fate == FATE_KEEP && r->place != g->place)
        return plan_no(p, "its KV does not lie as the group's does: migrate it");
    if (r->group == g->id || (r->parked && r->place == g->place))
        return true;
    int need = kv_blocks_for(&p->world->kv, g->place, r->n_computed);
    if (r->place != g->place && plan_available(p, g->place) < need)
        return plan_no(p, "the group has no room for its KV");
    if (r->place != g->place)
        plan_take(p, g->place, need);
    struct plan_verb *v = plan_add_verb(p, PLAN_REMAP, r);
    v->group = group;
    v->fate = fate;
    return true;
}

/* What is so already, with no verb before this one that says otherwise, is not said again. */
static void shut(struct plan *p, const struct group *g, bool closed)
{
    bool is = g->shut;
    for (int i = 0; i < p->n_verbs; i++)
        if (p->verbs[i].kind == PLAN_CLOSE && p->verbs[i].group == g->id)
            is = p->verbs[i].closed;
    if (is == closed)
        return;
    struct plan_verb *v = plan_add_verb(p, PLAN_CLOSE, NULL);
    v->group = g->id;
    v->closed = closed;
}

bool plan_preempt_group(struct plan *p, int group, enum switch_when how)
{
    struct world *w = p->world;
    struct group *g = partition_find_slot(&w->partition, group);
    if (!g)
        return plan_no(p, "no such group (any more)");
    if (plan_is_others_group(p, g))
        return false;
    if (how == WHEN_HARD && !g->idle)
        return plan_no(p, "the group is running a step: a hard preempt takes effect at its end");
    if (how != WHEN_HARD) {
        shut(p, g, true);
        return true;
    }
    for (int i = 0; i < w->running.n; i++) {
        struct request *r = w->running.items[i];
        if (r->group == group && !plan_touched(p, r))
            plan_do_preempt(p, r, PREEMPT_HARD);
    }
    return true;
}

bool plan_open_group(struct plan *p, int group)
{
    const struct group *g = partition_find(&p->world->partition, group);
    if (!g)
        return plan_no(p, "no such group (any more)");
    if (plan_is_others_group(p, g))
        return false;
    shut(p, g, false);
    return true;
}

bool plan_comm(struct plan *p, uint64_t ranks, int algorithm)
{
    const struct node_shape *s = &p->world->shape;
    if (plan_is_shared(p))
        return false;
    for (int i = 0; i < s->n_sets; i++)
        if (s->sets[i] == ranks) {
            struct plan_verb *v = plan_add_verb(p, PLAN_COMM, NULL);
            v->ranks = ranks;
            v->algorithm = algorithm;
            return true;
        }
    return plan_no(p, "no communicator for these ranks: aligned power-of-two ranges and the whole node have one "
                      "(--comm-sets adds more)");
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
        return plan_no(p, "no such request");
    if (plan_is_others(p, r))
        return false;
    if (plan_touched(p, r))
        return plan_no(p, "this plan has already used the request");
    if (r->state != REQ_WAITING || r->parked || request_output(r) > 0)
        return plan_no(p, "only a request that has not begun can be refused");
    if (code < 400 || code > 599)
        return plan_no(p, "the code must be from 400 to 599");
    if (retry_after_s < -1 || retry_after_s > 86400)
        return plan_no(p, "retry_after must be from 0 to 86400 seconds");
    struct plan_verb *v = plan_add_verb(p, PLAN_REFUSE, r);
    v->code = code;
    v->retry_after_s = retry_after_s;
    v->text = keep_text(p, why ? why : "", why ? strlen(why) : 0, 199);
    return true;
}

bool plan_hold(struct plan *p, req_id id, int64_t until_ns, const char *why)
{
    struct request *r = request_find(&p->world->requests, id);
    if (!r)
        return plan_no(p, "no such request");
    if (plan_is_others(p, r))
        return false;
    if (plan_touched(p, r))
        return plan_no(p, "this plan has already used the request");
    if (!until_ns && !r->held_until_ns)
        return true;
    if (r->state != REQ_WAITING)
        return plan_no(p, "only a request that waits can be held: preempt it first");
    const char *bad = until_ns ? hold_refusal(r, until_ns, p->now_ns) : NULL;
    if (bad)
        return plan_no(p, bad);
    struct plan_verb *v = plan_add_verb(p, PLAN_HOLD, r);
    v->until_ns = until_ns;
    v->text = keep_text(p, why, strlen(why), REASON_BYTES - 1);
    return true;
}

bool plan_deals_with(const struct plan *p, const struct request *r)
{
    for (int i = 0; i < p->n_batches && plan_touched(p, r); i++)
        for (int k = 0; p->batches[i]->forwarded && k < p->batches[i]->n_items; k++)
            if (p->batches[i]->items[k].request == r)
                return true;
    for (int i = 0; i < p->n_verbs && plan_touched(p, r); i++)
        if (p->verbs[i].request == r && p->verbs[i].kind != PLAN_PREEMPT && p->verbs[i].kind != PLAN_PROBE)
            return true;
    return false;
}

bool plan_opens_more(const struct plan_verb *v)
{
    return v->kind == PLAN_SWITCH || v->kind == PLAN_REMAP || v->kind == PLAN_CLOSE ||
           (v->kind == PLAN_HOLD && !v->until_ns) || (v->kind == PLAN_PREEMPT && v->unparks);
}

bool plan_wake(struct plan *p, double after_ms)
{
    if (!(after_ms > 0 && after_ms <= 60000))
        return plan_no(p, "wake takes more than 0 and at most 60000 ms");
    int64_t at = p->now_ns + (int64_t)(after_ms * 1e6);
    if (!p->wake_ns || at < p->wake_ns)
        p->wake_ns = at;
    return true;
}

bool plan_log(struct plan *p, const char *text, size_t n)
{
    if (p->n_logs >= 8)
        return plan_no(p, "at most 8 log lines a step");
    p->n_logs++;
    plan_add_verb(p, PLAN_LOG, NULL)->text = keep_text(p, text, n, 500);
    return true;
}

bool plan_is_empty(const struct plan *p)
{
    for (int i = 0; i < p->n_batches; i++)
        if (p->batches[i]->forwarded && side_has(p->side, p->batches[i]->group->canary))
            return false;
    return true;
}

static void apply_verb(struct plan *p, const struct plan_verb *v)
{
    struct world *w = p->world;
    struct group *g = v->group ? partition_find_slot(&w->partition, v->group) : NULL;
    switch (v->kind) {
    case PLAN_PREEMPT:
        world_preempt(w, v->request, v->how == PREEMPT_HARD, p->now_ns);
        break;
    case PLAN_REMAP:
        if (v->fate != FATE_HOST)
            world_regroup(w, v->request, g);
        else if (!world_swap_out(w, v->request, 0, p->now_ns)) /* what was there has been taken meanwhile */
            world_preempt(w, v->request, true, p->now_ns);
        break;
    case PLAN_CLOSE:
        g->shut = v->closed;
        break;
    case PLAN_COMM:
        partition_set_algorithm(w, v->ranks, v->algorithm);
        break;
    case PLAN_FFN:
        plan_apply_ffn(w, v);
        break;
    case PLAN_WEIGHTS:
        plan_apply_weights(w, v);
        break;
    case PLAN_EVICT:
        world_evict_drafts(w, v->evict);
        break;
    case PLAN_EMBED:
        w->embed_rule = v->embed;
        break;
    case PLAN_HOLD:
        world_hold(w, v->request, v->until_ns, v->text, p->now_ns);
        break;
    default:
        break; /* orders follow the batches; the rest is the caller's */
    }
}

static void start_items(struct plan *p, const struct plan_batch *b)
{
    for (int k = 0; k < b->n_items; k++) {
        struct plan_item *it = &b->items[k];
        if (!it->starts)
            continue;
        if (it->from_host)
            it->copy = world_swap_in(p->world, it->request, b->group);
        world_start(p->world, it->request, b->group, p->now_ns);
        if (it->n_from)
            it->copy = world_hold_prefix(p->world, it->request, it->from_place, it->n_from);
    }
}

static void reserve_items(struct plan *p, const struct plan_batch *b)
{
    for (int k = 0; k < b->n_items; k++) {
        struct plan_item *it = &b->items[k];
        bool ok = world_reserve(p->world, it->request, it->request->n_computed + it->n_tokens + it->drafts.n);
        ASSERT(ok);
        if (it->copy)
            world_aim_copy(p->world, it->copy, it->request);
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

const char *plan_verb_name(enum plan_verb_kind k)
{
    static const char *const names[] = {
        [PLAN_PREEMPT] = "preempt", [PLAN_REFUSE] = "refuse",    [PLAN_LOG] = "log",     [PLAN_SWITCH] = "switch",
        [PLAN_REMAP] = "remap",     [PLAN_CLOSE] = "close",      [PLAN_COMM] = "comm",   [PLAN_HOLD] = "hold",
        [PLAN_FFN] = "ffn",         [PLAN_WEIGHTS] = "weights",  [PLAN_EVICT] = "evict", [PLAN_EMBED] = "embed",
        [PLAN_PROBE] = "probe",     [PLAN_CONCLUDE] = "conclude"};
    return (int)k < PLAN_VERB_KINDS ? names[k] : "unknown";
}
