/* Which way pooled FFN weights take: the verb, and what a question about a step says of it. */
#include <lauxlib.h>
#include <string.h>

#include "lua/script.h"
#include "lua/verbs.h"

/* { layers = { from, to } }, to included; [*from, *to) afterwards. */
static void check_layers(lua_State *L, int opts, const char *whose, int *from, int *to)
{
    static const char *const names[] = {"layers"};
    if (lua_isnil(L, opts))
        return;
    if (lua_type(L, opts) != LUA_TTABLE)
        luaL_error(L, "options like { layers = { 0, 15 } } are expected, not a %s", luaL_typename(L, opts));
    verb_check_fields(L, opts, whose, names, 1);
    lua_pushliteral(L, "layers");
    lua_rawget(L, opts);
    int list = lua_gettop(L);
    if (lua_isnil(L, list))
        return;
    if (lua_type(L, list) != LUA_TTABLE || lua_objlen(L, list) != 2)
        luaL_error(L, "layers must be { from, to }, the numbers of the first and the last one");
    lua_rawgeti(L, list, 1);
    lua_rawgeti(L, list, 2);
    *from = (int)verb_whole_number(L, list + 1, "a layer", 0, 1 << 20);
    *to = (int)verb_whole_number(L, list + 2, "a layer", 0, 1 << 20) + 1;
    lua_settop(L, list - 1);
}

/* act.ffn(group or "all", "local" | "was" | "cas" [, { layers = { from, to } }]) */
int act_ffn(lua_State *L)
{
    static const char *const modes[] = {"local", "was", "cas"};
    lua_settop(L, 3);
    bool all = lua_type(L, 1) == LUA_TSTRING && !strcmp(lua_tostring(L, 1), "all");
    int group = all ? PLAN_ALL_GROUPS : verb_group(L, 1), mode = verb_choice(L, 2, "the way", modes, 3);
    const struct plan *p = verb_orders(L);
    int from = 0, to = p && p->world->ffn ? p->world->ffn->n_layers : 0;
    check_layers(L, 3, "the options of act.ffn", &from, &to);
    if (!p)
        return verb_refused(L, "act.ffn can be called in start and step only");
    return verb_done(L, &(struct verb_call){.kind = CALL_FFN, .group = group, .from = from, .more = to, .how = mode});
}

/* act.weights("all", "replicated" | "pooled" [, { layers = { from, to } }]) */
int verb_residency(lua_State *L)
{
    static const char *const residencies[] = {"pooled", "replicated"};
    lua_settop(L, 3);
    int residency = verb_choice(L, 2, "how weights lie", residencies, 2);
    const struct plan *p = verb_orders(L);
    int from = 0, to = p && p->world->ffn ? p->world->ffn->n_layers : 0;
    check_layers(L, 3, "the options of act.weights", &from, &to);
    if (!p)
        return verb_refused(L, "act.weights can say how weights lie in start and step only");
    return verb_done(L, &(struct verb_call){.kind = CALL_WEIGHTS, .from = from, .more = to, .how = residency == 1});
}

/* In the options of view.estimate: ffn = "was" or "cas" asks about a step that treats all layers so. NULL, or why it is
 * refused. */
const char *verb_ffn_option(lua_State *L, int opts, const struct world *w, struct step_size *size)
{
    static const char *const ways[] = {"was", "cas"};
    lua_pushliteral(L, "ffn");
    lua_rawget(L, opts);
    int way = lua_isnil(L, -1) ? -1 : verb_choice(L, lua_gettop(L), "ffn", ways, 2);
    lua_pop(L, 1);
    if (way >= 0 && !w->ffn)
        return "every rank has all weights: start with --weights pooled";
    if (way >= 0)
        size->cas_layers = way ? w->ffn->n_layers : 0;
    return NULL;
}
