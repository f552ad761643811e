#include "lua/orders.h"

#include <lauxlib.h>
#include <math.h>

#include "lua/groups.h"

static int make_list(lua_State *L)
{
    lua_newtable(L);
    return luaL_ref(L, LUA_REGISTRYINDEX);
}

void orders_create(struct orders *o, lua_State *L)
{
    *o = (struct orders){.free_ref = make_list(L), .dead_ref = make_list(L), .pending_ref = make_list(L)};
    orders_hang(o, L);
}

void orders_hang(const struct orders *o, lua_State *L)
{
    lua_rawgeti(L, LUA_REGISTRYINDEX, o->free_ref);
    lua_setfield(L, -2, "free_ranks");
    lua_rawgeti(L, LUA_REGISTRYINDEX, o->dead_ref);
    lua_setfield(L, -2, "dead_ranks");
    lua_rawgeti(L, LUA_REGISTRYINDEX, o->pending_ref);
    lua_setfield(L, -2, "pending");
}

/* Takes the entries after the n-th out of the list on top of the stack, which had `had`. */
static void cut(lua_State *L, int n, int had)
{
    for (int i = had; i > n; i--) {
        lua_pushnil(L);
        lua_rawseti(L, -2, i);
    }
}

static void sync_ranks(lua_State *L, int ref, uint64_t mask, int *had)
{
    int n = 0;
    if (!mask && !*had)
        return;
    lua_rawgeti(L, LUA_REGISTRYINDEX, ref);
    for (int r = 0; r < MAX_RANKS; r++)
        if (mask >> r & 1) {
            lua_pushnumber(L, r);
            lua_rawseti(L, -2, ++n);
        }
    cut(L, n, *had);
    lua_pop(L, 1);
    *had = n;
}

static void push_pending(lua_State *L, const struct switch_pending *s, int64_t now_ns)
{
    lua_createtable(L, 0, 7);
    groups_push_ranks(L, s->order.mask);
    lua_setfield(L, -2, "ranks");
    lua_pushstring(L, s->forced ? "hard" : switch_when_name(s->order.when));
    lua_setfield(L, -2, "when");
    lua_pushboolean(L, s->order.release);
    lua_setfield(L, -2, "release");
    lua_pushnumber(L, (double)(now_ns - s->since_ns) * 1e-6);
    lua_setfield(L, -2, "age_ms");
    if (s->order.weights.tp) {
        groups_push_layout(L, s->order.weights);
        lua_setfield(L, -2, "weights");
    }
    lua_pushstring(L, s->order.reason);
    lua_setfield(L, -2, "reason");
}

void orders_sync(struct orders *o, lua_State *L, const struct view *v)
{
    const struct partition *p = &v->world->partition;
    sync_ranks(L, o->free_ref, p->free_ranks & side_ranks(v->world, v->side), &o->n_free);
    sync_ranks(L, o->dead_ref, p->dead_ranks, &o->n_dead);
    if (!p->n_pending && !o->n_pending)
        return;
    lua_rawgeti(L, LUA_REGISTRYINDEX, o->pending_ref);
    for (int i = 0; i < p->n_pending; i++) {
        push_pending(L, &p->pending[i], v->now_ns);
        lua_rawseti(L, -2, i + 1);
    }
    cut(L, p->n_pending, o->n_pending);
    lua_pop(L, 1);
    o->n_pending = p->n_pending;
}

double orders_last_switch_ms(const struct view *v)
{
    const struct partition *p = &v->world->partition;
    for (uint64_t s = p->next_serial - 1; s && s + SWITCH_EVENTS >= p->next_serial; s--) {
        const struct switch_event *e = partition_event(p, s);
        if (e && !e->superseded)
            return (double)(v->now_ns - e->done_ns) * 1e-6;
    }
    return HUGE_VAL;
}
