/* The encoder that is served beside the model: by which rule its replicas take texts, and what waits for them. */
#include <lauxlib.h>

#include "lua/verbs.h"

static int count(lua_State *L, int table, const char *field, int low, int high)
{
    lua_getfield(L, table, field);
    int n = lua_isnil(L, -1) ? 0 : (int)verb_whole_number(L, lua_gettop(L), field, low, high);
    lua_pop(L, 1);
    return n;
}

static struct embed_rule rule_of(lua_State *L, int table)
{
    static const char *const names[] = {"route", "replicas", "short", "short_replicas"};
    static const char *const ways[EMBED_WAYS] = {"least_loaded", "round_robin", "by_length"};
    struct embed_rule r = {0};
    if (lua_isnil(L, table))
        return r;
    luaL_checktype(L, table, LUA_TTABLE);
    verb_check_fields(L, table, "the rule of act.embed", names, 4);
    lua_getfield(L, table, "route");
    if (!lua_isnil(L, -1))
        r.way = (enum embed_way)verb_choice(L, lua_gettop(L), "the route", ways, EMBED_WAYS);
    lua_pop(L, 1);
    r.replicas = count(L, table, "replicas", 1, EMBED_MAX_REPLICAS);
    r.short_tokens = count(L, table, "short", 1, EMBED_MOST_SHORT);
    r.n_short = count(L, table, "short_replicas", 1, EMBED_MAX_REPLICAS);
    bool lengths = r.way == EMBED_BY_LENGTH;
    if (lengths != (r.short_tokens > 0) || lengths != (r.n_short > 0))
        luaL_error(L, "route = \"by_length\" goes with short (tokens) and short_replicas, and they with it");
    return r;
}

/* act.embed([{ route =, replicas =, short =, short_replicas = }]) */
int act_embed(lua_State *L)
{
    lua_settop(L, 1);
    struct embed_rule r = rule_of(L, 1);
    if (!verb_orders(L))
        return verb_refused(L, "act.embed can be called in start and step only");
    return verb_done(L, &(struct verb_call){.kind = CALL_EMBED, .embed = r});
}

static void put(lua_State *L, const char *field, double v)
{
    lua_pushnumber(L, v);
    lua_setfield(L, -2, field);
}

/* view.embed(): what waits for the encoder and what runs, and how many replicas may take it */
int view_embed(lua_State *L)
{
    const struct view *v = bind_of(L)->facts;
    if (!v)
        return luaL_error(L, "view.embed can be called in a hook only");
    if (!v->world->embed)
        return verb_refused(L, "no encoder is served beside this model, or the server records");
    const struct embed_facts *f = &v->embed;
    lua_createtable(L, 0, 6);
    put(L, "replicas", f->n_replicas);
    put(L, "alive", f->n_alive);
    put(L, "allowed", embed_rule_allowed(v->world->embed_rule, f->n_alive));
    put(L, "texts", (double)f->waiting_texts);
    put(L, "tokens", (double)f->waiting_tokens);
    lua_createtable(L, f->n_replicas, 0);
    for (int i = 0; i < f->n_replicas; i++) {
        lua_pushnumber(L, (double)f->running_tokens[i]);
        lua_rawseti(L, -2, i + 1);
    }
    lua_setfield(L, -2, "running");
    return 1;
}
