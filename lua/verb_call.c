#include "lua/verb_call.h"

#include <string.h>

#include "lua/bind.h"
#include "lua/script.h"
#include "lua/verbs.h"

/* ---- carrying out */

static struct plan_batch *batch_of(const struct plan *p, int group)
{
    for (int i = 0; i < p->n_batches; i++)
        if (p->batches[i]->group_id == group)
            return p->batches[i];
    return NULL;
}

/* Those about a batch. False: there is none. */
static bool on_batch(struct plan_batch *b, const struct verb_call *c, struct verb_result *r)
{
    if (!b)
        return false;
    switch ((enum verb_call_kind)c->kind) {
    case CALL_DECODES:
        r->n = plan_decodes(b);
        return true;
    case CALL_PREFILL:
        b->anybody = c->how;
        r->n = plan_prefill(b, c->listed ? c->list : NULL, c->n_list, c->n);
        return true;
    case CALL_ADD:
        return (r->n = plan_add(b, c->id, c->n)) != 0;
    case CALL_FORWARD:
        b->ahead = c->n;
        b->n_micro = c->more;
        return plan_forward(b, c->layout);
    default:
        return false;
    }
}

static bool draft(struct plan *p, const struct verb_call *c, struct verb_result *r)
{
    struct draft_guess g;
    struct draft_wish w = {.most = c->n, .source = c->from, .tree = c->how, .next = c->more};
    if (!plan_draft(p, c->id, &w, &g))
        return false;
    r->n = g.n;
    r->match = g.match;
    r->score = g.score;
    r->source = g.source;
    return true;
}

static bool on_plan(struct plan *p, const struct verb_call *c, struct verb_result *r)
{
    switch ((enum verb_call_kind)c->kind) {
    case CALL_BATCH:
        return plan_batch(p, c->group) != NULL;
    case CALL_DECODES:
    case CALL_PREFILL:
    case CALL_ADD:
    case CALL_FORWARD:
        return on_batch(batch_of(p, c->group), c, r);
    case CALL_DRAFT:
        return draft(p, c, r);
    case CALL_PROBE:
        return plan_probe(p, c->id);
    case CALL_CONCLUDE:
        return plan_conclude(p, c->id);
    case CALL_PREEMPT:
        return plan_preempt(p, c->id, (enum preempt_how)c->how);
    case CALL_REMAP:
        return plan_remap(p, c->id, c->group, (enum kv_fate)c->how);
    case CALL_PREEMPT_GROUP:
        return plan_preempt_group(p, c->group, (enum switch_when)c->how);
    case CALL_OPEN:
        return plan_open_group(p, c->group);
    case CALL_REFUSE:
        return plan_refuse(p, c->id, c->n, c->more, c->text);
    case CALL_HOLD:
        return plan_hold(p, c->id, c->until_ns, c->text);
    case CALL_WAKE:
        return plan_wake(p, c->ms);
    case CALL_LOG:
        return plan_log(p, c->text, strlen(c->text));
    case CALL_SWITCH:
        return plan_switch(p, c->order);
    case CALL_COMM:
        return plan_comm(p, c->ranks, c->how);
    case CALL_FFN:
        return plan_ffn(p, c->group, c->from, c->more, (enum ffn_mode)c->how);
    case CALL_WEIGHTS:
        return plan_weights(p, c->from, c->more, c->how);
    case CALL_EVICT:
        return plan_evict(p, (enum draft_evict)c->how);
    case CALL_EMBED:
        return plan_embed(p, c->embed);
    default:
        return false;
    }
}

/* Cached tokens of a waiting request in the place of a group. */
static int cached(const struct world *w, const struct verb_call *c)
{
    struct request *r = request_find(&w->requests, c->id);
    const struct group *g = partition_find(&w->partition, c->group);
    return r && g && r->state == REQ_WAITING
               ? world_prefix(w, r, g->place) * kv_place(&w->kv, g->place)->tokens_per_block
               : 0;
}

static bool measured(const struct verb_scope *s, uint64_t ranks, struct comm_measure *out)
{
    struct comm_set *set = s->comms ? comm_find(s->comms, ranks) : NULL;
    if (set)
        *out = *comm_measured(set);
    return set != NULL;
}

void verb_carry_out(const struct verb_scope *s, const struct verb_call *c, struct verb_result *r)
{
    r->done = false;
    r->n = 0;
    r->reason = NULL;
    if (c->kind == CALL_CACHED) {
        r->n = s->view ? cached(s->view->world, c) : 0;
        r->done = true;
    } else if (c->kind == CALL_MEASURED) {
        r->done = measured(s, c->ranks, &r->measured);
    } else if (s->plan) {
        r->done = on_plan(s->plan, c, r);
        r->reason = s->plan->reason;
    }
}

void verb_do(lua_State *L, const struct verb_call *c, struct verb_result *r)
{
    const struct bind *b = bind_of(L);
    if (b->way.go)
        vm_of(L)->gauge.outside_ns += b->way.go(b->way.ctx, c, r);
    else
        verb_carry_out(&(struct verb_scope){b->hook, b->facts, b->plan, b->comms}, c, r);
}

int verb_done(lua_State *L, const struct verb_call *c)
{
    struct verb_result r;
    verb_do(L, c, &r);
    if (!r.done)
        return verb_refused(L, r.reason);
    lua_pushboolean(L, 1);
    return 1;
}

/* ---- what is lawful */

static bool within(int64_t v, int64_t low, int64_t high)
{
    return v >= low && v <= high;
}

static bool is_layout(struct layout l)
{
    return within(l.sp, 1, MAX_RANKS) && within(l.tp, 1, MAX_RANKS) && within(l.pp, 1, MAX_RANKS);
}

static bool is_order(const struct switch_order *o)
{
    bool none = !o->weights.sp && !o->weights.tp && !o->weights.pp;
    return o->mask && is_layout(o->base) && (none || is_layout(o->weights)) &&
           within((int)o->when, WHEN_HARD, WHEN_READY) && within((int)o->fate, FATE_KEEP, FATE_HOST) &&
           within(o->max_wait_ns, 1, INT64_C(3600000000000)) && within(o->n_named, 0, MAX_NAMED) &&
           memchr(o->reason, 0, sizeof o->reason);
}

static bool is_embed(const struct embed_rule *r)
{
    bool lengths = r->way == EMBED_BY_LENGTH;
    return within((int)r->way, 0, EMBED_WAYS - 1) && within(r->replicas, 0, EMBED_MAX_REPLICAS) &&
           within(r->short_tokens, lengths, lengths ? EMBED_MOST_SHORT : 0) &&
           within(r->n_short, lengths, lengths ? EMBED_MAX_REPLICAS : 0);
}

static bool fits_scope(const struct verb_scope *s, int kind)
{
    bool steps = s->plan && s->hook == HOOK_STEP, orders = steps || (s->plan && s->hook == HOOK_START);
    if (kind < CALL_SWITCH)
        return steps;
    if (kind < CALL_CACHED)
        return orders;
    return kind == CALL_SAY || s->view;
}

static bool is_group(int id)
{
    return id >= 1;
}

/* The arguments of those about groups and what is in them. */
static bool fits_batch(const struct verb_call *c)
{
    bool group = is_group(c->group);
    switch ((enum verb_call_kind)c->kind) {
    case CALL_PREFILL:
        return group && within(c->n, 0, 1 << 30) && within(c->n_list, 0, MAX_REQUESTS) && within(c->how, 0, 1) &&
               within(c->listed, 0, 1);
    case CALL_ADD:
        return group && within(c->n, 0, 1 << 30);
    case CALL_FORWARD:
        return group && within(c->n, -1, MOST_AHEAD) && within(c->more, 0, MOST_MICRO) && is_layout(c->layout);
    default:
        return group;
    }
}

static bool fits_layers(const struct verb_call *c)
{
    return within(c->from, 0, 1 << 20) && within(c->more, 0, (1 << 20) + 1);
}

static bool fits(const struct verb_call *c, const struct world *w)
{
    switch ((enum verb_call_kind)c->kind) {
    case CALL_DRAFT:
        return within(c->n, 0, MOST_DRAFTS) && within(c->more, -1, MOST_DRAFTS) && within(c->how, 0, 1) &&
               within(c->from, -1, w && w->drafts ? w->drafts->n - 1 : -1);
    case CALL_PREEMPT:
        return within(c->how, PREEMPT_RECOMPUTE, PREEMPT_HARD);
    case CALL_REMAP:
        return within(c->how, FATE_KEEP, FATE_HOST) && (is_group(c->group) || (!c->group && c->how >= FATE_PARK));
    case CALL_PREEMPT_GROUP:
        return is_group(c->group) && within(c->how, WHEN_HARD, WHEN_SOFT);
    case CALL_REFUSE:
    case CALL_HOLD:
    case CALL_LOG:
    case CALL_SAY:
        return c->text != NULL;
    case CALL_SWITCH:
        return c->order && is_order(c->order);
    case CALL_COMM:
        return within(c->how, COMM_AUTO, COMM_LIBRARY);
    case CALL_FFN:
        return (c->group == PLAN_ALL_GROUPS || is_group(c->group)) && fits_layers(c) &&
               within(c->how, FFN_LOCAL, FFN_CAS);
    case CALL_WEIGHTS:
        return fits_layers(c) && within(c->how, 0, 1);
    case CALL_EVICT:
        return within(c->how, 0, EVICT_RULES - 1);
    case CALL_EMBED:
        return is_embed(&c->embed);
    case CALL_PROBE:
    case CALL_CONCLUDE:
    case CALL_WAKE:
    case CALL_MEASURED:
        return true;
    default:
        return fits_batch(c);
    }
}

bool verb_is_lawful(const struct verb_scope *s, const struct verb_call *c)
{
    return within(c->kind, 0, CALL_KINDS - 1) && fits_scope(s, c->kind) && fits(c, s->view ? s->view->world : NULL);
}
