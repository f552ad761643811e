/* What the requests that are here would take in another partition. */
#include <lauxlib.h>

#include "engine/world/forecast.h"
#include "lua/verbs.h"

enum { MOST_OUTPUT = 1 << 30 };

/* The sizes of the groups that there are, or that view.cover(wide, narrow) would make. */
static void read_sizes(lua_State *L, const struct view *v, struct forecast_ask *ask)
{
    const struct partition *p = &v->world->partition;
    uint64_t sets[MAX_RANKS];
    if (lua_isnil(L, 1) && lua_isnil(L, 2)) {
        for (int i = 0; i < p->n_groups; i++)
            if (side_has(v->side, partition_group(p, i)->canary))
                ask->sizes[ask->n++] = partition_group(p, i)->n_ranks;
        return;
    }
    int wide = (int)verb_whole_number(L, 1, "the wide group's ranks", 1, MAX_RANKS);
    int narrow = (int)verb_whole_number(L, 2, "a narrow group's ranks", 1, MAX_RANKS);
    ask->moves = true;
    ask->n = verb_cover(v, wide, narrow, sets);
    for (int i = 0; i < ask->n; i++)
        ask->sizes[i] = __builtin_popcountll(sets[i]);
}

static double option(lua_State *L, const char *name, double most, double none)
{
    lua_pushstring(L, name);
    lua_rawget(L, 3);
    double v = none;
    if (!lua_isnil(L, -1) && (lua_type(L, -1) != LUA_TNUMBER || !((v = lua_tonumber(L, -1)) >= 1 && v <= most)))
        luaL_error(L, "%s has to be a number from 1 to %d", name, (int)most);
    lua_pop(L, 1);
    return v;
}

static bool is_set(lua_State *L, const char *name)
{
    lua_pushstring(L, name);
    lua_rawget(L, 3);
    bool set = lua_toboolean(L, -1);
    if (!lua_isnil(L, -1) && !lua_isboolean(L, -1))
        luaL_error(L, "%s has to be true or false", name);
    lua_pop(L, 1);
    return set;
}

/* view.forecast([wide, narrow [, { output =, most =, prompt =, ahead =, tpot =, settles = }]]): the ms until each of
 * the requests has ended, in all; until the last of those that wait has its first token; the tokens of a step of the
 * widest group, and of the narrowest. Or nil and why. */
int view_forecast(lua_State *L)
{
    static const char *const names[] = {"output", "most", "prompt", "ahead", "tpot", "settles"};
    lua_settop(L, 3);
    const struct view *v = bind_of(L)->facts;
    if (!v)
        return verb_refused(L, "view.forecast can be called in a hook only");
    struct forecast_ask ask = {.side = v->side, .most = v->world->limits.max_num_batched_tokens, .now_ns = v->now_ns};
    struct forecast f;
    read_sizes(L, v, &ask);
    if (!lua_isnil(L, 3)) {
        if (lua_type(L, 3) != LUA_TTABLE)
            luaL_error(L, "options like { output = 200 } are expected, not a %s", luaL_typename(L, 3));
        verb_check_fields(L, 3, "the options of view.forecast", names, 6);
        ask.output = option(L, "output", MOST_OUTPUT, 0);
        ask.prompt = option(L, "prompt", MOST_OUTPUT, 0);
        ask.ahead_ns = option(L, "ahead", 3600, 0) * 1e9;
        ask.tpot = option(L, "tpot", MOST_OUTPUT, 0);
        ask.settles = is_set(L, "settles");
        double most = option(L, "most", MOST_OUTPUT, ask.most);
        ask.most = most < ask.most ? (int)most : ask.most;
    }
    const char *why = ask.n ? forecast_make(v->world, &ask, &f) : "there is no group";
    if (why)
        return verb_refused(L, why);
    int wide = 0, narrow = 0;
    for (int i = 1; i < ask.n; i++) {
        wide = ask.sizes[i] > ask.sizes[wide] ? i : wide;
        narrow = ask.sizes[i] < ask.sizes[narrow] ? i : narrow;
    }
    lua_pushnumber(L, f.sum_ns * 1e-6);
    lua_pushnumber(L, f.queue_ns * 1e-6);
    lua_pushnumber(L, f.step_tokens[wide]);
    lua_pushnumber(L, f.step_tokens[narrow]);
    return 4;
}
