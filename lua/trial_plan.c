#include "lua/trial_plan.h"

#include "lua/groups.h"

static void put_number(lua_State *L, const char *field, double v)
{
    lua_pushnumber(L, v);
    lua_setfield(L, -2, field);
}

static void put_text(lua_State *L, const char *field, const char *v)
{
    lua_pushstring(L, v);
    lua_setfield(L, -2, field);
}

static void put_ranks(lua_State *L, const char *field, uint64_t mask)
{
    groups_push_ranks(L, mask);
    lua_setfield(L, -2, field);
}

/* Appends the value on top of the stack to the list below it. */
static void append(lua_State *L)
{
    lua_rawseti(L, -2, (int)lua_objlen(L, -2) + 1);
}

static void push_item(lua_State *L, const struct plan_item *it, const struct group *g)
{
    lua_createtable(L, 0, 6);
    put_text(L, "name", it->request->spec->name);
    put_number(L, "tokens", it->n_tokens);
    put_number(L, "drafts", it->drafts.n);
    put_number(L, "next", it->asks);
    lua_pushboolean(L, it->starts);
    lua_setfield(L, -2, "starts");
    put_ranks(L, "ranks", g->mask);
}

static void push_forward(lua_State *L, const struct plan_batch *b)
{
    lua_createtable(L, 0, 5);
    put_ranks(L, "ranks", b->group->mask);
    put_number(L, "sp", b->layout.sp);
    put_number(L, "tp", b->layout.tp);
    put_number(L, "tokens", b->n_tokens);
    put_number(L, "n", b->n_items);
    if (b->ahead >= 0)
        put_number(L, "ahead", b->ahead);
}

static void push_order(lua_State *L, const struct plan *p, const struct switch_order *o)
{
    lua_createtable(L, 0, 6);
    put_ranks(L, o->release ? "release" : "bind", o->mask);
    put_text(L, "when", switch_when_name(o->when));
    put_text(L, "kv", kv_fate_name(o->fate));
    put_text(L, "reason", o->reason);
    put_number(L, "max_wait_ms", (double)o->max_wait_ns * 1e-6);
    groups_push_layout(L, o->base);
    lua_setfield(L, -2, "base");
    lua_newtable(L);
    for (int i = 0; i < o->n_named; i++) {
        const struct request *r = request_find(&p->world->requests, o->named[i]);
        lua_pushstring(L, r ? r->spec->name : "(gone)");
        append(L);
    }
    lua_setfield(L, -2, "requests");
}

static void put_list(lua_State *L, int result, const char *field, const struct plan *p, enum plan_verb_kind kind,
                     bool closed)
{
    lua_newtable(L);
    for (int i = 0; i < p->n_verbs; i++) {
        const struct plan_verb *v = &p->verbs[i];
        if (v->kind != kind)
            continue;
        if (kind == PLAN_SWITCH)
            push_order(L, p, v->order);
        else if (kind == PLAN_PREEMPT || kind == PLAN_PROBE || kind == PLAN_CONCLUDE)
            lua_pushstring(L, v->request->spec->name);
        else if (kind == PLAN_CLOSE && v->closed == closed)
            groups_push_ranks(L, partition_find(&p->world->partition, v->group)->mask);
        else
            continue;
        append(L);
    }
    lua_setfield(L, result, field);
}

static void put_hold(lua_State *L, const struct request *r, int64_t until_ns, const char *why)
{
    if (until_ns) {
        lua_createtable(L, 0, 2);
        put_text(L, "reason", why);
        put_number(L, "until", (double)until_ns * 1e-9);
    } else {
        lua_pushnil(L);
    }
    lua_setfield(L, -2, r->spec->name);
}

/* { ranks or "all", mode, from, to }: which way FFN layers take from now on. */
static void put_ffn(lua_State *L, int result, const struct plan *p)
{
    lua_newtable(L);
    for (int i = 0; i < p->n_verbs; i++) {
        const struct plan_verb *v = &p->verbs[i];
        if (v->kind != PLAN_FFN)
            continue;
        lua_createtable(L, 0, 4);
        if (v->group == PLAN_ALL_GROUPS)
            put_text(L, "ranks", "all");
        else
            put_ranks(L, "ranks", partition_find(&p->world->partition, v->group)->mask);
        put_text(L, "mode", ffn_mode_name(v->mode));
        put_number(L, "from", v->from);
        put_number(L, "to", v->to - 1);
        append(L);
    }
    lua_setfield(L, result, "ffn");
}

/* { residency, from, to }: how FFN layers lie from now on. */
static void put_weights(lua_State *L, int result, const struct plan *p)
{
    lua_newtable(L);
    for (int i = 0; i < p->n_verbs; i++) {
        const struct plan_verb *v = &p->verbs[i];
        if (v->kind != PLAN_WEIGHTS)
            continue;
        lua_createtable(L, 0, 3);
        put_text(L, "residency", v->replicated ? "replicated" : "pooled");
        put_number(L, "from", v->from);
        put_number(L, "to", v->to - 1);
        append(L);
    }
    lua_setfield(L, result, "weights");
}

/* The rule of the encoder's replicas from now on; nil: as before. */
static void put_embed(lua_State *L, int result, const struct plan *p)
{
    for (int i = 0; i < p->n_verbs; i++) {
        const struct embed_rule *r = &p->verbs[i].embed;
        if (p->verbs[i].kind != PLAN_EMBED)
            continue;
        lua_createtable(L, 0, 4);
        put_text(L, "route", embed_way_name(r->way));
        put_number(L, "replicas", embed_rule_allowed(*r, p->world->embed->n_replicas));
        put_number(L, "short", r->short_tokens);
        put_number(L, "short_replicas", r->n_short);
        lua_setfield(L, result, "embed");
    }
}

/* Who is held after the plan, by name. */
static void put_held(lua_State *L, int result, const struct plan *p)
{
    const struct req_queue *waiting = &p->world->waiting;
    lua_newtable(L);
    for (int i = 0; i < waiting->n; i++)
        put_hold(L, waiting->items[i], waiting->items[i]->held_until_ns, waiting->items[i]->held_why);
    for (int i = 0; i < p->n_verbs; i++)
        if (p->verbs[i].kind == PLAN_HOLD)
            put_hold(L, p->verbs[i].request, p->verbs[i].until_ns, p->verbs[i].text);
    lua_setfield(L, result, "held");
}

/* What happens to requests by name. */
static void put_fates(lua_State *L, int result, const struct plan *p, int refused)
{
    lua_newtable(L);
    for (int i = 0; i < p->n_verbs; i++) {
        const struct plan_verb *v = &p->verbs[i];
        if (v->kind == PLAN_REMAP)
            put_text(L, v->request->spec->name, kv_fate_name(v->fate));
        if (v->kind == PLAN_REFUSE) {
            lua_pushnumber(L, v->code);
            lua_setfield(L, refused, v->request->spec->name);
        }
    }
    lua_setfield(L, result, "remapped");
    lua_pushvalue(L, refused);
    lua_setfield(L, result, "refused");
}

static void put_batches(lua_State *L, int result, const struct plan *p)
{
    int tokens = 0;
    lua_newtable(L);
    for (int b = 0; b < p->n_batches; b++) {
        const struct plan_batch *batch = p->batches[b];
        if (!batch->forwarded)
            continue;
        push_forward(L, batch);
        append(L);
        tokens += batch->n_tokens;
        for (int i = 0; i < batch->n_items; i++) {
            push_item(L, &batch->items[i], batch->group);
            lua_rawseti(L, result, (int)lua_objlen(L, result) + 1);
        }
    }
    lua_setfield(L, result, "forwards");
    lua_pushnumber(L, tokens);
    lua_setfield(L, result, "tokens");
}

void trial_push_plan(lua_State *L, const struct plan *p, int refused)
{
    lua_newtable(L);
    int result = lua_gettop(L);
    put_batches(L, result, p);
    put_list(L, result, "orders", p, PLAN_SWITCH, false);
    put_list(L, result, "preempted", p, PLAN_PREEMPT, false);
    put_list(L, result, "probed", p, PLAN_PROBE, false);
    put_list(L, result, "concluded", p, PLAN_CONCLUDE, false);
    put_list(L, result, "closed", p, PLAN_CLOSE, true);
    put_list(L, result, "opened", p, PLAN_CLOSE, false);
    put_ffn(L, result, p);
    put_weights(L, result, p);
    put_embed(L, result, p);
    put_fates(L, result, p, refused);
    put_held(L, result, p);
    if (p->wake_ns) {
        lua_pushnumber(L, (double)(p->wake_ns - p->now_ns) * 1e-6);
        lua_setfield(L, result, "wake");
    }
}
