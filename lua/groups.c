#include "lua/groups.h"

#include <lauxlib.h>
#include <string.h>

#include "engine/world/plan.h"
#include "lua/strict.h"

enum { TABLE_BYTES = 3 << 10 }; /* of one group, at most */

static const char *const fact_names[GROUP_FACT_COUNT] = {
    "n_running",    "load",     "kv_free",     "steps", "last_step_tokens",
    "last_step_ms", "since_ms", "mean_tokens", "idle",  "held",
    "closed",       "ffn",      "sp",          "tp",    "pp",
};

static bool is_flag(int fact)
{
    return fact >= GROUP_IDLE && fact <= GROUP_CLOSED;
}

static int keep(lua_State *L)
{
    return luaL_ref(L, LUA_REGISTRYINDEX);
}

static void push(lua_State *L, int ref)
{
    lua_rawgeti(L, LUA_REGISTRYINDEX, ref);
}

static void set_number(lua_State *L, const char *field, double v)
{
    lua_pushnumber(L, v);
    lua_setfield(L, -2, field);
}

void groups_push_ranks(lua_State *L, uint64_t mask)
{
    lua_createtable(L, __builtin_popcountll(mask), 0);
    for (int r = 0, n = 0; r < MAX_RANKS; r++)
        if (mask >> r & 1) {
            lua_pushnumber(L, r);
            lua_rawseti(L, -2, ++n);
        }
}

void groups_push_layout(lua_State *L, struct layout l)
{
    lua_createtable(L, 0, 4);
    set_number(L, "sp", l.sp);
    set_number(L, "tp", l.tp);
    set_number(L, "pp", l.pp);
}

/* ---- making */

static void make_lists(struct groups *g, lua_State *L)
{
    lua_newtable(L);
    g->list_ref = keep(L);
    lua_newtable(L);
    g->idle_ref = keep(L);
    g->n_listed = g->n_idle = 0;
}

void groups_hang(const struct groups *g, lua_State *L)
{
    push(L, g->list_ref);
    lua_setfield(L, -2, "groups");
    push(L, g->idle_ref);
    lua_setfield(L, -2, "idle");
}

void groups_create(struct groups *g, lua_State *L)
{
    memset(g, 0, sizeof *g);
    rng_init(&g->rng, 3);
    lua_createtable(L, GROUP_FACT_COUNT, 0);
    for (int i = 0; i < GROUP_FACT_COUNT; i++) {
        lua_pushstring(L, fact_names[i]);
        lua_rawseti(L, -2, i + 1);
    }
    g->keys_ref = keep(L);
    strict_push(L, "a group");
    g->meta_ref = keep(L);
    make_lists(g, L);
    groups_hang(g, L);
}

static void drop_table(struct group_table *t, lua_State *L)
{
    if (!t->id)
        return;
    luaL_unref(L, LUA_REGISTRYINDEX, t->ref);
    luaL_unref(L, LUA_REGISTRYINDEX, t->layout_ref);
    t->id = 0;
}

void groups_reset(struct groups *g, lua_State *L)
{
    for (int i = 0; i < MAX_RANKS; i++)
        drop_table(&g->tables[i], L);
    luaL_unref(L, LUA_REGISTRYINDEX, g->list_ref);
    luaL_unref(L, LUA_REGISTRYINDEX, g->idle_ref);
    make_lists(g, L);
}

size_t groups_reserve(struct groups *g, const struct world *w)
{
    size_t n = 0;
    for (int i = 0; i < w->partition.n_groups; i++) {
        struct group_table *t = &g->tables[w->partition.order[i]];
        n += t->counted ? 0 : TABLE_BYTES;
        t->counted = true;
    }
    return n;
}

/* ---- a group */

static void read_facts(const struct view *v, const struct group *g, double out[GROUP_FACT_COUNT])
{
    out[GROUP_N_RUNNING] = g->n_running;
    out[GROUP_LOAD] = (double)g->load;
    out[GROUP_KV_FREE] = kv_available(&v->world->kv, g->place);
    out[GROUP_STEPS] = (double)g->n_steps;
    out[GROUP_LAST_TOKENS] = g->last_step_tokens;
    out[GROUP_LAST_MS] = (double)g->last_step_ns * 1e-6;
    out[GROUP_SINCE_MS] = (double)(v->now_ns - g->bound_ns) * 1e-6;
    out[GROUP_MEAN_TOKENS] = g->mean_tokens;
    out[GROUP_IDLE] = g->idle;
    out[GROUP_HELD] = g->held;
    out[GROUP_CLOSED] = g->closed || g->shut;
    out[GROUP_FFN] = ffn_way(v->world, g);
    out[GROUP_SP] = g->layout.sp;
    out[GROUP_TP] = g->layout.tp;
    out[GROUP_PP] = g->layout.pp;
}

static void push_fact(lua_State *L, int fact, double v)
{
    if (fact == GROUP_FFN)
        lua_pushstring(L, ffn_way_name((int)v));
    else if (is_flag(fact))
        lua_pushboolean(L, v != 0);
    else
        lua_pushnumber(L, v);
}

/* Stack: keys at `keys`. */
static void write_facts(struct group_table *t, lua_State *L, int keys, const double now[GROUP_FACT_COUNT], bool all)
{
    int table = keys + 1;
    push(L, t->ref);
    push(L, t->layout_ref);
    for (int i = 0; i < GROUP_FACT_COUNT; i++) {
        if (!all && now[i] == t->facts[i])
            continue;
        t->facts[i] = now[i];
        lua_rawgeti(L, keys, i + 1);
        push_fact(L, i, now[i]);
        lua_rawset(L, i < GROUP_SP ? table : table + 1);
    }
    lua_settop(L, keys);
}

static void make_table(const struct groups *all, struct group_table *t, lua_State *L, const struct world *w,
                       const struct group *g)
{
    int tpb = kv_place(&w->kv, g->place)->tokens_per_block;
    drop_table(t, L);
    lua_createtable(L, 0, GROUP_FACT_COUNT + 9);
    set_number(L, "id", g->id);
    set_number(L, "size", g->n_ranks);
    set_number(L, "tokens_per_block", tpb);
    set_number(L, "capacity_tokens", (double)w->kv.n_blocks * tpb);
    groups_push_ranks(L, g->mask);
    lua_setfield(L, -2, "ranks");
    groups_push_layout(L, g->base);
    lua_setfield(L, -2, "base");
    if (g->weights.tp)
        groups_push_layout(L, g->weights);
    else
        lua_pushboolean(L, false); /* its ranks have all of them */
    lua_setfield(L, -2, "weights");
    lua_createtable(L, 0, 4);
    lua_pushvalue(L, -1);
    t->layout_ref = keep(L);
    lua_setfield(L, -2, "layout");
    push(L, all->meta_ref);
    lua_setmetatable(L, -2);
    t->ref = keep(L);
    t->id = g->id;
}

/* A fact of this table is what was written; -1: its id. */
static bool fact_stands(const struct group_table *t, lua_State *L, int keys, int i)
{
    push(L, i < GROUP_SP ? t->ref : t->layout_ref);
    bool good;
    if (i < 0) {
        lua_pushliteral(L, "id");
        lua_rawget(L, -2);
        good = lua_type(L, -1) == LUA_TNUMBER && lua_tonumber(L, -1) == t->id;
    } else {
        lua_rawgeti(L, keys, i + 1);
        lua_rawget(L, -2);
        push_fact(L, i, t->facts[i]);
        good = lua_rawequal(L, -1, -2);
    }
    lua_settop(L, keys);
    return good;
}

/* One fact, chosen at random. */
static bool check_table(struct groups *g, const struct group_table *t, lua_State *L, int keys)
{
    return fact_stands(t, L, keys, (int)rng_below(&g->rng, GROUP_FACT_COUNT + 1) - 1);
}

bool groups_untouched(const struct groups *g, lua_State *L)
{
    bool good = true;
    push(L, g->keys_ref);
    int keys = lua_gettop(L);
    for (int k = 0; k < MAX_RANKS; k++)
        for (int i = -1; i < GROUP_FACT_COUNT && g->tables[k].id && good; i++)
            good = fact_stands(&g->tables[k], L, keys, i);
    lua_settop(L, keys - 1);
    return good;
}

/* ---- the lists */

/* Fills the list on top of the stack, which had `had` entries, and pops it. */
static void set_list(lua_State *L, const struct groups *g, const int *slots, int n, int had)
{
    for (int i = had; i > n; i--) {
        lua_pushnil(L);
        lua_rawseti(L, -2, i);
    }
    for (int i = 0; i < n; i++) {
        push(L, g->tables[slots[i]].ref);
        lua_rawseti(L, -2, i + 1);
    }
    lua_pushnil(L);
    lua_rawseti(L, -2, n + 1);
    lua_pop(L, 1);
}

/* Slots of the groups of the view's side, by first rank. Returns how many. */
static int find_slots(const struct view *v, int slots[MAX_RANKS])
{
    const struct partition *p = &v->world->partition;
    int n = 0;
    for (int i = 0; i < p->n_groups; i++)
        if (side_has(v->side, partition_group(p, i)->canary))
            slots[n++] = p->order[i];
    return n;
}

static bool same_list(const struct groups *g, const struct partition *p, const int *slots, int n)
{
    bool same = g->n_listed == n;
    for (int i = 0; i < n && same; i++)
        same = g->listed[i] == p->groups[slots[i]].id;
    return same;
}

/* view.groups: when the partition has changed. Tables of groups that are gone are let go. */
static void sync_list(struct groups *g, lua_State *L, const struct partition *p, const int *slots, int n)
{
    if (same_list(g, p, slots, n))
        return;
    for (int i = 0; i < MAX_RANKS; i++)
        if (g->tables[i].id != p->groups[i].id)
            drop_table(&g->tables[i], L);
    push(L, g->list_ref);
    set_list(L, g, slots, n, g->n_listed);
    g->n_listed = n;
    for (int i = 0; i < n; i++)
        g->listed[i] = p->groups[slots[i]].id;
}

/* view.idle: written whole each time, since policies may well take elements out of it. */
static void sync_idle(struct groups *g, lua_State *L, const struct view *v)
{
    int slots[MAX_RANKS];
    for (int i = 0; i < v->n_idle; i++)
        slots[i] = (v->idle[i] - 1) % MAX_RANKS;
    push(L, g->idle_ref);
    set_list(L, g, slots, v->n_idle, g->n_idle);
    g->n_idle = v->n_idle;
}

bool groups_sync(struct groups *g, lua_State *L, const struct view *v)
{
    const struct partition *p = &v->world->partition;
    bool good = true;
    push(L, g->keys_ref);
    int slots[MAX_RANKS], n = find_slots(v, slots);
    int keys = lua_gettop(L), looked_at = n ? (int)rng_below(&g->rng, (uint64_t)n) : 0;
    for (int i = 0; i < n; i++) {
        const struct group *group = &p->groups[slots[i]];
        struct group_table *t = &g->tables[slots[i]];
        double now[GROUP_FACT_COUNT];
        bool fresh = t->id != group->id;
        read_facts(v, group, now);
        if (fresh)
            make_table(g, t, L, v->world, group);
        else if (i == looked_at)
            good = check_table(g, t, L, keys);
        write_facts(t, L, keys, now, fresh);
    }
    lua_settop(L, keys - 1);
    sync_list(g, L, p, slots, n);
    sync_idle(g, L, v);
    return good;
}
