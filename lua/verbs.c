#include "lua/verbs.h"

#include <lauxlib.h>
#include <math.h>
#include <string.h>

#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/base/nearest.h"
#include "engine/world/draft.h"
#include "lua/queries.h"
#include "lua/sandbox.h"
#include "lua/script.h"
#include "lua/strict.h"

static const int64_t HOLD_DEFAULT_NS = INT64_C(60000000000);

/* ---- answers and arguments */

const char verb_others_request[] = "another policy decides for this request while a canary runs";

int verb_refused(lua_State *L, const char *why)
{
    lua_pushnil(L);
    lua_pushstring(L, why ? why : "refused");
    return 2;
}

const struct plan *verb_plan(lua_State *L)
{
    const struct bind *b = bind_of(L);
    return b->hook == HOOK_STEP ? b->plan : NULL;
}

const struct plan *verb_orders(lua_State *L)
{
    return bind_of(L)->plan;
}

int verb_not_now(lua_State *L, const char *verb)
{
    lua_pushnil(L);
    lua_pushfstring(L, "act.%s can be called in step only", verb);
    return 2;
}

double verb_whole_number(lua_State *L, int arg, const char *what, double low, double high)
{
    if (lua_type(L, arg) != LUA_TNUMBER)
        luaL_error(L, "%s must be a number, not a %s", what, luaL_typename(L, arg));
    double v = lua_tonumber(L, arg);
    if (!(v >= low && v <= high) || v != floor(v))
        luaL_error(L, "%s must be a whole number from %f to %f", what, low, high);
    return v;
}

/* A request: its id, or the table that admit was given. */
req_id verb_request(lua_State *L, int arg)
{
    struct bind *b = bind_of(L);
    if (lua_type(L, arg) == LUA_TTABLE && lua_topointer(L, arg) == b->request_pointer && b->subject)
        return b->subject->id;
    if (lua_type(L, arg) != LUA_TNUMBER)
        luaL_error(L, "a request id is expected, not a %s", luaL_typename(L, arg));
    req_id id = lua_req_id_back(lua_tonumber(L, arg));
    if (!id)
        luaL_error(L, "%f is not a request id", lua_tonumber(L, arg));
    return id;
}

const req_id *verb_request_list(lua_State *L, int arg, int *n)
{
    struct bind *b = bind_of(L);
    size_t len = lua_objlen(L, arg);
    if (len > MAX_REQUESTS)
        luaL_error(L, "the list has more than %d requests", MAX_REQUESTS);
    if (!b->list || len > b->cap_list) {
        b->cap_list = len < 256 ? 256 : len;
        b->list = mem_resize(b->list, b->cap_list, sizeof *b->list);
    }
    for (size_t i = 0; i < len; i++) {
        lua_rawgeti(L, arg, (int)i + 1);
        b->list[i] = verb_request(L, lua_gettop(L));
        lua_pop(L, 1);
    }
    *n = (int)len;
    return b->list;
}

int verb_group(lua_State *L, int arg)
{
    if (lua_type(L, arg) == LUA_TTABLE) {
        lua_pushliteral(L, "id");
        lua_rawget(L, arg);
        lua_replace(L, arg);
    }
    if (lua_type(L, arg) != LUA_TNUMBER)
        luaL_error(L, "a group of view.groups is expected, not a %s", luaL_typename(L, arg));
    return (int)verb_whole_number(L, arg, "a group's id", 1, INT32_MAX);
}

void verb_check_fields(lua_State *L, int table, const char *what, const char *const *names, int n)
{
    for (lua_pushnil(L); lua_next(L, table); lua_pop(L, 1)) {
        char field[80] = "(not a name)";
        bool known = false;
        if (lua_type(L, -2) == LUA_TSTRING)
            vm_escape(field, sizeof field, lua_tostring(L, -2), lua_objlen(L, -2));
        for (int i = 0; i < n; i++)
            known |= strcmp(field, names[i]) == 0;
        if (known)
            continue;
        const char *near = nearest_word(field, names, n);
        luaL_error(L, "%s has no field '%s'%s%s%s", what, field, near ? "; did you mean '" : "", near ? near : "",
                   near ? "'?" : "");
    }
}

int verb_choice(lua_State *L, int arg, const char *what, const char *const *choices, int n)
{
    if (lua_type(L, arg) == LUA_TSTRING)
        for (int i = 0; i < n; i++)
            if (strcmp(lua_tostring(L, arg), choices[i]) == 0)
                return i;
    lua_pushfstring(L, "%s must be", what);
    for (int i = 0; i < n; i++)
        lua_pushfstring(L, "%s \"%s\"", i == 0 ? "" : i == n - 1 ? " or" : ",", choices[i]);
    lua_concat(L, n + 1);
    return luaL_error(L, "%s", lua_tostring(L, -1));
}

static int width(lua_State *L, int layout, const char *name)
{
    lua_pushstring(L, name);
    lua_rawget(L, layout);
    int v = lua_isnil(L, -1) ? 1 : (int)verb_whole_number(L, lua_gettop(L), name, 1, MAX_RANKS);
    lua_pop(L, 1);
    return v;
}

struct layout verb_layout(lua_State *L, int arg, bool *given)
{
    static const char *const names[] = {"sp", "tp", "pp"};
    *given = !lua_isnoneornil(L, arg);
    if (!*given)
        return (struct layout){1, 1, 1};
    if (lua_type(L, arg) != LUA_TTABLE)
        luaL_error(L, "a layout like { tp = 1 } is expected, not a %s", luaL_typename(L, arg));
    verb_check_fields(L, arg, "a layout", names, 3);
    return (struct layout){.sp = width(L, arg, "sp"), .tp = width(L, arg, "tp"), .pp = width(L, arg, "pp")};
}

const char *verb_layout_of_group(lua_State *L, int arg, struct layout *out)
{
    bool given;
    int group = verb_group(L, arg);
    *out = verb_layout(L, arg + 1, &given);
    const struct view *v = bind_of(L)->facts;
    const struct group *g = v ? view_group(v, group) : NULL;
    if (!g)
        return v ? "no such group (any more)" : "this can be asked in step, admit and finish only";
    if (!given)
        *out = group_usual_layout(v->world, g);
    return shape_refusal(&v->world->shape, g->n_ranks, *out);
}

/* ---- requests and time */

/* act.preempt(id, "recompute" | "hard"), act.preempt(group, "hard" | "drain" | "soft") */
static int act_preempt(lua_State *L)
{
    static const char *const hows[] = {"recompute", "hard", "drain", "soft"};
    int how = 0;
    lua_settop(L, 2);
    if (!verb_plan(L))
        return verb_not_now(L, "preempt");
    while (how < 4 && !(lua_type(L, 2) == LUA_TSTRING && strcmp(lua_tostring(L, 2), hows[how]) == 0))
        how++;
    if (how == 4)
        return luaL_error(L, "act.preempt: how must be \"recompute\" or \"hard\", and of a group \"hard\", "
                             "\"drain\" or \"soft\"");
    if (lua_type(L, 1) == LUA_TTABLE)
        return act_preempt_group(L);
    req_id id = verb_request(L, 1);
    if (how > 1)
        return verb_refused(L, "act.preempt: \"drain\" and \"soft\" are about groups, which are named by their tables");
    return verb_done(
        L, &(struct verb_call){.kind = CALL_PREEMPT, .id = id, .how = how ? PREEMPT_HARD : PREEMPT_RECOMPUTE});
}

static int refuse_now(lua_State *L, req_id id, int code, int retry_after)
{
    struct bind *b = bind_of(L);
    char why[sizeof b->admission->why] = "";
    if (lua_type(L, 4) == LUA_TSTRING)
        vm_escape(why, sizeof why, lua_tostring(L, 4), lua_objlen(L, 4));
    if (b->plan)
        return verb_done(
            L, &(struct verb_call){.kind = CALL_REFUSE, .id = id, .n = code, .more = retry_after, .text = why});
    if (id != b->subject->id)
        return verb_refused(L, "in admit, only the request that arrives can be refused");
    struct admission *a = b->admission;
    a->refused = true;
    a->code = code;
    a->retry_after_s = retry_after;
    memcpy(a->why, why, sizeof a->why);
    lua_pushboolean(L, 1);
    return 1;
}

/* act.refuse(request [, code [, retry_after [, why]]]) */
static int act_refuse(lua_State *L)
{
    struct bind *b = bind_of(L);
    lua_settop(L, 4);
    if (!verb_plan(L) && !b->admission)
        return verb_refused(L, "act.refuse can be called in admit and step only");
    req_id id = verb_request(L, 1);
    int code = lua_isnil(L, 2) ? 429 : (int)verb_whole_number(L, 2, "the code", 400, 599);
    int retry_after = lua_isnil(L, 3) ? -1 : (int)verb_whole_number(L, 3, "retry_after (seconds)", 0, 86400);
    if (!lua_isnil(L, 4) && lua_type(L, 4) != LUA_TSTRING)
        luaL_error(L, "act.refuse: the reason must be a text");
    return refuse_now(L, id, code, retry_after);
}

/* act.hold(request, reason [, until]): it is not started before then. act.hold(request, nil) lets it go. */
static int act_hold(lua_State *L)
{
    struct bind *b = bind_of(L);
    char why[REASON_BYTES];
    lua_settop(L, 3);
    if (!verb_plan(L) && !b->admission)
        return verb_refused(L, "act.hold can be called in admit and step only");
    req_id id = verb_request(L, 1);
    bool holds = !lua_isnil(L, 2);
    if (holds && lua_type(L, 2) != LUA_TSTRING)
        return luaL_error(L, "act.hold: a reason in words is expected, not a %s", luaL_typename(L, 2));
    if (!lua_isnil(L, 3) && lua_type(L, 3) != LUA_TNUMBER)
        return luaL_error(L, "act.hold: until must be a time like view.now, not a %s", luaL_typename(L, 3));
    vm_escape(why, sizeof why, holds ? lua_tostring(L, 2) : "", holds ? lua_objlen(L, 2) : 0);
    int64_t now = b->facts->now_ns, until = now + HOLD_DEFAULT_NS;
    if (!lua_isnil(L, 3) && !(fabs(lua_tonumber(L, 3)) < 9e9))
        return verb_refused(L, "until must be a time like view.now, in seconds");
    if (!lua_isnil(L, 3))
        until = (int64_t)(lua_tonumber(L, 3) * 1e9);
    if (b->plan)
        return verb_done(L,
                         &(struct verb_call){.kind = CALL_HOLD, .id = id, .until_ns = holds ? until : 0, .text = why});
    const char *bad = id != b->subject->id ? "in admit, only the request that arrives can be held"
                      : holds              ? hold_refusal(b->subject, until, now)
                                           : NULL;
    if (bad)
        return verb_refused(L, bad);
    b->admission->hold_until_ns = holds ? until : 0;
    memcpy(b->admission->why, why, sizeof why);
    lua_pushboolean(L, 1);
    return 1;
}

/* act.wake(ms) */
static int act_wake(lua_State *L)
{
    if (lua_type(L, 1) != LUA_TNUMBER)
        return luaL_error(L, "act.wake: milliseconds are expected");
    if (!verb_plan(L))
        return verb_not_now(L, "wake");
    return verb_done(L, &(struct verb_call){.kind = CALL_WAKE, .ms = lua_tonumber(L, 1)});
}

/* Outside a step there is no plan to carry the line: at most MAX_LOGS a second, and none while the engine is
 * quiet. */
static bool log_directly(lua_State *L, const char *text)
{
    struct bind *b = bind_of(L);
    if (b->transcript) {
        if (b->transcript->len < 64 << 10)
            buf_printf(b->transcript, "    log: %s\n", text);
        return true;
    }
    int64_t second = b->facts ? b->facts->now_ns / 1000000000
                              : 0; /* the engine's: what a policy is told must come out again in a replay */
    if (second != b->log_second) {
        b->log_second = second;
        b->n_logs = 0;
    }
    if (++b->n_logs > MAX_LOGS)
        return false;
    if (b->way.go)
        verb_do(L, &(struct verb_call){.kind = CALL_SAY, .text = text}, &(struct verb_result){0});
    else if (!b->script->opts.quiet)
        log_info("policy", "%s: %s", b->script->name, text);
    return true;
}

/* act.log(text), log(text) */
static int act_log(lua_State *L)
{
    struct bind *b = bind_of(L);
    luaL_checkany(L, 1);
    lua_settop(L, 1);
    sandbox_tostring(L, 1);
    char text[501];
    vm_escape(text, sizeof text, lua_tostring(L, -1), lua_objlen(L, -1));
    if (verb_plan(L) && !b->transcript)
        return verb_done(L, &(struct verb_call){.kind = CALL_LOG, .text = text});
    if (!log_directly(L, text))
        return verb_refused(L, "too many log lines");
    lua_pushboolean(L, 1);
    return 1;
}

int verb_no_source(lua_State *L, const struct world *w, const char *name)
{
    lua_pushnil(L);
    lua_pushfstring(L, "there is no source \"%s\" of draft tokens here; there is", name);
    for (int i = 0; i < w->drafts->n; i++) {
        lua_pushfstring(L, "%s \"%s\"", i ? " and" : "", w->drafts->items[i].name);
        lua_concat(L, 2);
    }
    return 2;
}

/* act.draft(id, n [, source [, shape [, next]]]): how many draft tokens its step verifies, on how many tokens the guess
 * rests, how many of them its source expects to be right, and which source it is. shape: "chain", or "tree"; next:
 * tokens that the step guesses for the next one, where a source's guesses are steps' */
static int act_draft(lua_State *L)
{
    static const char *const shapes[] = {"chain", "tree"};
    const struct plan *p = verb_plan(L);
    req_id id = verb_request(L, 1);
    int n = (int)verb_whole_number(L, 2, "the number of draft tokens", 0, MOST_DRAFTS);
    const char *name = luaL_optstring(L, 3, NULL);
    bool tree = !lua_isnoneornil(L, 4) && verb_choice(L, 4, "the shape of the draft", shapes, 2) == 1;
    int next =
        lua_isnoneornil(L, 5) ? 0 : (int)verb_whole_number(L, 5, "the number of the next tokens", 0, MOST_DRAFTS);
    if (!p)
        return verb_not_now(L, "draft");
    if (!next && !lua_isnoneornil(L, 5))
        next = -1;
    int source = name ? draft_source_named(p->world->drafts, name) : -1;
    struct verb_result g;
    if (name && source < 0 && p->world->drafts)
        return verb_no_source(L, p->world, name);
    verb_do(L, &(struct verb_call){.kind = CALL_DRAFT, .id = id, .n = n, .from = source, .how = tree, .more = next},
            &g);
    if (!g.done)
        return verb_refused(L, g.reason);
    lua_pushnumber(L, g.n);
    lua_pushnumber(L, g.match);
    lua_pushnumber(L, (double)g.score);
    if (!g.n)
        return 3;
    lua_pushstring(L, p->world->drafts->items[g.source].name);
    return 4;
}

/* act.evict_drafts("oldest" | "unused" | "largest") */
static int act_evict_drafts(lua_State *L)
{
    static const char *const rules[] = {"oldest", "unused", "largest"};
    int rule = verb_choice(L, 1, "what goes first", rules, EVICT_RULES);
    if (!verb_orders(L))
        return verb_refused(L, "act.evict_drafts can be called in start and step only");
    return verb_done(L, &(struct verb_call){.kind = CALL_EVICT, .how = rule});
}

/* view.drafted(id, source): of this source, how many draft tokens steps have verified for the request, how many of them
 * were right, and how often one was wrong. view.drafted(id, source, depth): of those at this depth of a guess, the
 * first one being at 1, how many were judged, as all before them were right, and how many of these were right */
static int view_drafted(lua_State *L)
{
    const struct view *v = bind_of(L)->facts;
    req_id id = verb_request(L, 1);
    int depth = lua_isnoneornil(L, 3) ? 0 : (int)verb_whole_number(L, 3, "the depth", 1, DRAFT_DEPTHS);
    int source = v ? draft_source_named(v->world->drafts, luaL_checkstring(L, 2)) : 0;
    const struct request *r = v ? request_find(&v->world->requests, id) : NULL;
    if (!v)
        return verb_refused(L, "view.drafted can be called in a hook only");
    if (!r)
        return verb_refused(L, "the request has ended");
    if (!side_has(v->side, r->canary))
        return verb_refused(L, verb_others_request);
    if (source < 0 && v->world->drafts)
        return verb_no_source(L, v->world, lua_tostring(L, 2));
    struct draft_counts none = {0}, c = source < 0 ? none : r->drafts[source];
    if (depth) {
        lua_pushnumber(L, c.judged_at[depth - 1]);
        lua_pushnumber(L, c.right_at[depth - 1]);
        return 2;
    }
    lua_pushnumber(L, (double)c.drafted);
    lua_pushnumber(L, (double)c.accepted);
    lua_pushnumber(L, (double)c.rejected);
    return 3;
}

/* ---- the tables */

void verbs_add_queries(lua_State *L)
{
    lua_pushcfunction(L, view_drafted);
    lua_setfield(L, -2, "drafted");
    lua_pushcfunction(L, view_embed);
    lua_setfield(L, -2, "embed");
    lua_pushcfunction(L, view_estimate);
    lua_setfield(L, -2, "estimate");
    lua_pushcfunction(L, view_estimate_draft);
    lua_setfield(L, -2, "estimate_draft");
    lua_pushcfunction(L, view_estimate_reshard);
    lua_setfield(L, -2, "estimate_reshard");
    lua_pushcfunction(L, view_estimate_move);
    lua_setfield(L, -2, "estimate_move");
    lua_pushcfunction(L, view_narrowest);
    lua_setfield(L, -2, "narrowest");
    lua_pushcfunction(L, view_cover);
    lua_setfield(L, -2, "cover");
    lua_pushcfunction(L, view_forecast);
    lua_setfield(L, -2, "forecast");
    queries_add(L);
    probes_add(L);
}

void verbs_create(struct bind *b, lua_State *L)
{
    static const luaL_Reg verbs[] = {{"batch", act_batch},     {"forward", act_forward},
                                     {"preempt", act_preempt}, {"refuse", act_refuse},
                                     {"hold", act_hold},       {"wake", act_wake},
                                     {"log", act_log},         {"bind", act_bind},
                                     {"release", act_release}, {"remap", act_remap},
                                     {"open", act_open},       {"comm", act_comm},
                                     {"weights", act_weights}, {"widen", act_widen},
                                     {"ffn", act_ffn},         {"swap_out", act_swap_out},
                                     {"swap_in", act_swap_in}, {"reshard", act_reshard},
                                     {"draft", act_draft},     {"evict_drafts", act_evict_drafts},
                                     {"probe", act_probe},     {"conclude", act_conclude},
                                     {"embed", act_embed}};
    verbs_make_batches(b, L);
    lua_newtable(L);
    for (size_t i = 0; i < sizeof verbs / sizeof *verbs; i++) {
        lua_pushcfunction(L, verbs[i].func);
        lua_setfield(L, -2, verbs[i].name);
    }
    strict_guard(L, "act");
    b->act_ref = luaL_ref(L, LUA_REGISTRYINDEX);
    lua_pushcfunction(L, act_log);
    sandbox_add(L, "log");
}
