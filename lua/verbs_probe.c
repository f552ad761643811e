/* Early stopping: who is asked what it would answer by now, what was answered, and who stops thinking. */
#include <lauxlib.h>

#include "engine/world/probe.h"
#include "lua/verbs.h"

/* act.probe(id) */
int act_probe(lua_State *L)
{
    req_id id = verb_request(L, 1);
    if (!verb_plan(L))
        return verb_not_now(L, "probe");
    return verb_done(L, &(struct verb_call){.kind = CALL_PROBE, .id = id});
}

/* act.conclude(id) */
int act_conclude(lua_State *L)
{
    req_id id = verb_request(L, 1);
    if (!verb_plan(L))
        return verb_not_now(L, "conclude");
    return verb_done(L, &(struct verb_call){.kind = CALL_CONCLUDE, .id = id});
}

/* The request of argument 1; NULL with nil and why pushed. */
static const struct request *request_of(lua_State *L, const char *what)
{
    const struct view *v = bind_of(L)->facts;
    req_id id = verb_request(L, 1);
    const struct request *r = v ? request_find(&v->world->requests, id) : NULL;
    if (!v)
        luaL_error(L, "%s can be called in a hook only", what);
    if (!r)
        verb_refused(L, "the request has ended");
    else if (!side_has(v->side, r->canary)) {
        verb_refused(L, verb_others_request);
        return NULL;
    }
    return r;
}

/* What the probe of argument 2 said; NULL with nil and why pushed. */
static const struct probe_said *said_of(lua_State *L, const char *what)
{
    double k = verb_whole_number(L, 2, "which answer, 1 for the last,", 1, 1 << 30);
    const struct request *r = request_of(L, what);
    const struct probe_said *s = r ? probe_last(r, (int64_t)k) : NULL;
    if (r && !s)
        verb_refused(L, "there is no such answer, or it is not kept");
    return s;
}

/* view.early_stop(id): tokens between probes and answers that have to agree, as the request asked for; 0: it did not */
static int view_early_stop(lua_State *L)
{
    const struct request *r = request_of(L, "view.early_stop");
    if (!r)
        return 2;
    lua_pushnumber(L, r->spec->probe_every);
    lua_pushnumber(L, r->spec->probe_window);
    return 2;
}

/* view.probe(id, k): the k-th last answer without its white space; "": it is empty, or did not end */
static int view_probe(lua_State *L)
{
    char answer[PROBE_BYTES + 1];
    const struct probe_said *s = said_of(L, "view.probe");
    if (!s)
        return 2;
    int n = probe_answer(s, answer);
    lua_pushlstring(L, answer, (size_t)n);
    return 1;
}

/* view.says(id, k, words): do these words stand in what the k-th last probe said, as words? */
static int view_says(lua_State *L)
{
    size_t n;
    if (lua_type(L, 3) != LUA_TSTRING)
        return luaL_error(L, "view.says: words are expected, not a %s", luaL_typename(L, 3));
    const struct probe_said *s = said_of(L, "view.says");
    if (!s)
        return 2;
    const char *words = lua_tolstring(L, 3, &n);
    lua_pushboolean(L, probe_has_words(s, words, n));
    return 1;
}

void probes_add(lua_State *L)
{
    static const luaL_Reg questions[] = {{"early_stop", view_early_stop}, {"probe", view_probe}, {"says", view_says}};
    for (size_t i = 0; i < sizeof questions / sizeof *questions; i++) {
        lua_pushcfunction(L, questions[i].func);
        lua_setfield(L, -2, questions[i].name);
    }
}
