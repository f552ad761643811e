#include <lauxlib.h>
#include <math.h>
#include <string.h>

#include "engine/base/log.h"
#include "lua/nearest.h"
#include "lua/sandbox.h"
#include "lua/script.h"

/* ---- answers and arguments */

static int refused(lua_State *L, const char *why)
{
    lua_pushnil(L);
    lua_pushstring(L, why ? why : "refused");
    return 2;
}

static int answer(lua_State *L, bool done)
{
    if (!done)
        return refused(L, bind_of(L)->plan->reason);
    lua_pushboolean(L, 1);
    return 1;
}

/* The plan of the step under way; NULL outside of one. */
static struct plan *plan_now(lua_State *L)
{
    return bind_of(L)->plan;
}

static int not_now(lua_State *L, const char *verb)
{
    lua_pushnil(L);
    lua_pushfstring(L, "act.%s can be called in step only", verb);
    return 2;
}

static double whole_number(lua_State *L, int arg, const char *what, double low, double high)
{
    if (lua_type(L, arg) != LUA_TNUMBER)
        luaL_error(L, "%s must be a number, not a %s", what, luaL_typename(L, arg));
    double v = lua_tonumber(L, arg);
    if (!(v >= low && v <= high) || v != floor(v))
        luaL_error(L, "%s must be a whole number from %f to %f", what, low, high);
    return v;
}

/* A request: its id, or the table that admit was given. */
static req_id check_request(lua_State *L, int arg)
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

/* A group: a table of view.idle, or its number. */
static int check_group(lua_State *L, int arg)
{
    if (lua_type(L, arg) == LUA_TTABLE) {
        lua_pushliteral(L, "id");
        lua_rawget(L, arg);
        lua_replace(L, arg);
    }
    if (lua_type(L, arg) != LUA_TNUMBER)
        luaL_error(L, "a group of view.idle is expected, not a %s", luaL_typename(L, arg));
    return (int)whole_number(L, arg, "a group's id", 1, MAX_RANKS);
}

static struct plan_batch *check_batch(lua_State *L, int arg)
{
    struct bind *b = bind_of(L);
    struct batch_handle *h = lua_touserdata(L, arg);
    bool mine = false;
    if (h && lua_getmetatable(L, arg)) {
        bind_push(b, L, b->batch_meta_ref);
        mine = lua_rawequal(L, -1, -2);
        lua_pop(L, 2);
    }
    if (!mine)
        luaL_error(L, "a batch is expected, not a %s", luaL_typename(L, arg));
    if (!b->plan || h->serial != b->plan->serial || !h->batch)
        luaL_error(L, "the batch belongs to an earlier step");
    return h->batch;
}

/* ---- batches */

static int act_batch(lua_State *L)
{
    struct bind *b = bind_of(L);
    int group = check_group(L, 1);
    if (!b->plan)
        return not_now(L, "batch");
    struct plan_batch *batch = plan_batch(b->plan, group);
    if (!batch)
        return refused(L, b->plan->reason);
    int *ref = &b->handle_refs[group - 1];
    if (*ref == LUA_NOREF) {
        struct batch_handle *made = lua_newuserdata(L, sizeof *made);
        *made = (struct batch_handle){.group = group};
        bind_push(b, L, b->batch_meta_ref);
        lua_setmetatable(L, -2);
        *ref = luaL_ref(L, LUA_REGISTRYINDEX);
    }
    bind_push(b, L, *ref);
    struct batch_handle *h = lua_touserdata(L, -1);
    h->serial = b->plan->serial;
    h->batch = batch;
    return 1;
}

static int batch_decodes(lua_State *L)
{
    lua_pushnumber(L, plan_decodes(check_batch(L, 1)));
    return 1;
}

/* The ids of a Lua list, in the plan's arena. */
static req_id *read_ids(lua_State *L, int arg, struct plan *p, int *n)
{
    size_t len = lua_objlen(L, arg);
    if (len > MAX_REQUESTS)
        luaL_error(L, "the list has more than %d requests", MAX_REQUESTS);
    req_id *ids = arena_new(&p->arena, (len ? len : 1) * sizeof *ids);
    for (size_t i = 0; i < len; i++) {
        lua_rawgeti(L, arg, (int)i + 1);
        ids[i] = check_request(L, lua_gettop(L));
        lua_pop(L, 1);
    }
    *n = (int)len;
    return ids;
}

/* b:prefill([view.waiting | {id, ...}] [, budget]) */
static int batch_prefill(lua_State *L)
{
    struct bind *b = bind_of(L);
    struct plan_batch *batch = check_batch(L, 1);
    lua_settop(L, 3);
    int budget = b->plan->world->limits.max_num_batched_tokens, n = 0;
    if (!lua_isnil(L, 3))
        budget = (int)whole_number(L, 3, "the token budget", 0, 1 << 30);
    const req_id *list = NULL;
    static const req_id none;
    if (lua_type(L, 2) == LUA_TTABLE && lua_topointer(L, 2) == b->running.view_pointer)
        list = &none; /* running requests go first in any case */
    else if (lua_type(L, 2) == LUA_TTABLE && lua_topointer(L, 2) != b->waiting.view_pointer)
        list = read_ids(L, 2, b->plan, &n);
    else if (!lua_isnil(L, 2) && lua_type(L, 2) != LUA_TTABLE)
        luaL_error(L, "view.waiting or a list of request ids is expected, not a %s", luaL_typename(L, 2));
    lua_pushnumber(L, plan_prefill(batch, list, n, budget));
    return 1;
}

/* b:add(id [, n]) */
static int batch_add(lua_State *L)
{
    struct plan_batch *batch = check_batch(L, 1);
    req_id id = check_request(L, 2);
    int n = lua_isnoneornil(L, 3) ? 0 : (int)whole_number(L, 3, "the number of tokens", 1, 1 << 30);
    int added = plan_add(batch, id, n);
    if (!added)
        return refused(L, batch->plan->reason);
    lua_pushnumber(L, added);
    return 1;
}

enum batch_fact { FACT_TOKENS = 1, FACT_N, FACT_DECODES, FACT_GROUP };

/* __index: upvalue 1 holds the methods, and a number for each fact. */
static int batch_index(lua_State *L)
{
    lua_pushvalue(L, 2);
    lua_rawget(L, lua_upvalueindex(1));
    int type = lua_type(L, -1);
    if (type == LUA_TFUNCTION)
        return 1;
    if (type != LUA_TNUMBER)
        return luaL_error(L, "a batch has no '%s' (tokens, n, n_decodes, decodes, prefill, add)",
                          lua_type(L, 2) == LUA_TSTRING ? lua_tostring(L, 2) : "?");
    const struct plan_batch *batch = check_batch(L, 1);
    switch ((enum batch_fact)lua_tonumber(L, -1)) {
    case FACT_TOKENS: lua_pushnumber(L, batch->n_tokens); break;
    case FACT_N: lua_pushnumber(L, batch->n_items); break;
    case FACT_DECODES: lua_pushnumber(L, batch->n_decodes); break;
    case FACT_GROUP: lua_pushnumber(L, batch->group); break;
    }
    return 1;
}

static int batch_newindex(lua_State *L)
{
    return luaL_error(L, "a batch is changed by its verbs only");
}

/* ---- forward */

static int width(lua_State *L, int layout, const char *name)
{
    lua_pushstring(L, name);
    lua_rawget(L, layout);
    int v = lua_isnil(L, -1) ? 1 : (int)whole_number(L, lua_gettop(L), name, 1, MAX_RANKS);
    lua_pop(L, 1);
    return v;
}

static struct layout read_layout(lua_State *L, int arg)
{
    static const char *const names[] = {"sp", "tp", "pp"};
    if (lua_isnoneornil(L, arg))
        return (struct layout){1, 1, 1};
    if (lua_type(L, arg) != LUA_TTABLE)
        luaL_error(L, "a layout like { tp = 1 } is expected, not a %s", luaL_typename(L, arg));
    for (lua_pushnil(L); lua_next(L, arg); lua_pop(L, 1)) {
        bool known = false;
        for (int i = 0; i < 3 && lua_type(L, -2) == LUA_TSTRING; i++)
            known |= strcmp(lua_tostring(L, -2), names[i]) == 0;
        if (!known)
            luaL_error(L, "a layout has the fields sp, tp and pp only");
    }
    return (struct layout){.sp = width(L, arg, "sp"), .tp = width(L, arg, "tp"), .pp = width(L, arg, "pp")};
}

/* act.forward(group, batch [, layout]) */
static int act_forward(lua_State *L)
{
    lua_settop(L, 4);
    int group = check_group(L, 1);
    if (!plan_now(L))
        return not_now(L, "forward");
    struct plan_batch *batch = check_batch(L, 2);
    struct layout layout = read_layout(L, 3);
    if (!lua_isnil(L, 4))
        return refused(L, "act.forward: weights and comm are not offered by this build");
    if (batch->group != group)
        return refused(L, "the batch was made for another group");
    return answer(L, plan_forward(batch, layout));
}

/* ---- the other verbs */

/* act.preempt(id, how) */
static int act_preempt(lua_State *L)
{
    if (!plan_now(L))
        return not_now(L, "preempt");
    if (lua_type(L, 2) != LUA_TSTRING)
        return luaL_error(L, "act.preempt: how must be \"recompute\" or \"hard\"");
    const char *how = lua_tostring(L, 2);
    bool recompute = strcmp(how, "recompute") == 0, hard = strcmp(how, "hard") == 0;
    if (strcmp(how, "drain") == 0 || strcmp(how, "soft") == 0)
        return refused(
            L,
            "act.preempt: \"drain\" and \"soft\" are about groups of several ranks; this build has one rank");
    if (!recompute && !hard)
        return luaL_error(L, "act.preempt: how must be \"recompute\" or \"hard\"");
    if (lua_type(L, 1) == LUA_TTABLE)
        return refused(
            L,
            "act.preempt: whole groups are not offered by this build, which has one rank; preempt requests");
    return answer(
        L, plan_preempt(plan_now(L), check_request(L, 1), recompute ? PREEMPT_RECOMPUTE : PREEMPT_HARD));
}

static int refuse_now(lua_State *L, req_id id, int code, int retry_after)
{
    struct bind *b = bind_of(L);
    const char *why = lua_tostring(L, 4);
    if (b->plan)
        return answer(L, plan_refuse(b->plan, id, code, retry_after, why));
    if (id != b->subject->id)
        return refused(L, "in admit, only the request that arrives can be refused");
    struct admission *a = b->admission;
    a->refused = true;
    a->code = code;
    a->retry_after_s = retry_after;
    vm_escape(a->why, sizeof a->why, why ? why : "", why ? lua_objlen(L, 4) : 0);
    lua_pushboolean(L, 1);
    return 1;
}

/* act.refuse(request [, code [, retry_after [, why]]]) */
static int act_refuse(lua_State *L)
{
    struct bind *b = bind_of(L);
    lua_settop(L, 4);
    if (!b->plan && !b->admission)
        return refused(L, "act.refuse can be called in admit and step only");
    req_id id = check_request(L, 1);
    int code = lua_isnil(L, 2) ? 429 : (int)whole_number(L, 2, "the code", 400, 599);
    int retry_after = lua_isnil(L, 3) ? -1 : (int)whole_number(L, 3, "retry_after (seconds)", 0, 86400);
    if (!lua_isnil(L, 4) && lua_type(L, 4) != LUA_TSTRING)
        luaL_error(L, "act.refuse: the reason must be a text");
    return refuse_now(L, id, code, retry_after);
}

/* act.wake(ms) */
static int act_wake(lua_State *L)
{
    if (lua_type(L, 1) != LUA_TNUMBER)
        return luaL_error(L, "act.wake: milliseconds are expected");
    if (!plan_now(L))
        return not_now(L, "wake");
    return answer(L, plan_wake(plan_now(L), lua_tonumber(L, 1)));
}

/* Outside a step there is no plan to carry the line: at most MAX_LOGS a second, and none while the engine is
 * quiet. */
static bool log_directly(struct bind *b, const char *text)
{
    if (b->transcript) {
        if (b->transcript->len < 64 << 10)
            buf_printf(b->transcript, "    log: %s\n", text);
        return true;
    }
    int64_t second = clock_now(&b->script->vm.clock) / 1000000000;
    if (second != b->log_second) {
        b->log_second = second;
        b->n_logs = 0;
    }
    if (++b->n_logs > MAX_LOGS)
        return false;
    if (!b->script->opts.quiet)
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
    if (b->plan && !b->transcript)
        return answer(L, plan_log(b->plan, text, strlen(text)));
    if (!log_directly(b, text))
        return refused(L, "too many log lines");
    lua_pushboolean(L, 1);
    return 1;
}

/* act.bind(ranks): the partition into groups. One rank makes one group, which is there already. */
static int act_bind(lua_State *L)
{
    luaL_checktype(L, 1, LUA_TTABLE);
    if (!lua_isnoneornil(L, 2))
        luaL_checktype(L, 2, LUA_TTABLE);
    lua_rawgeti(L, 1, 1);
    if (lua_objlen(L, 1) != 1 || lua_type(L, -1) != LUA_TNUMBER || lua_tonumber(L, -1) != 0)
        return refused(L, "act.bind: this build has one rank, number 0");
    lua_pushboolean(L, 1);
    return 1;
}

/* Upvalue 1: the verb's name. */
static int not_offered(lua_State *L)
{
    lua_pushnil(L);
    lua_pushfstring(L, "act.%s is not offered by this build, which has one rank",
                    lua_tostring(L, lua_upvalueindex(1)));
    return 2;
}

/* ---- the tables */

static void make_batches(struct bind *b, lua_State *L)
{
    static const luaL_Reg methods[] = {
        {"decodes", batch_decodes}, {"prefill", batch_prefill}, {"add", batch_add}};
    static const char *const facts[] = {"tokens", "n", "n_decodes", "group"};
    lua_newtable(L);
    lua_newtable(L);
    for (int i = 0; i < 3; i++) {
        lua_pushcfunction(L, methods[i].func);
        lua_setfield(L, -2, methods[i].name);
    }
    for (int i = 0; i < 4; i++) {
        lua_pushnumber(L, i + 1);
        lua_setfield(L, -2, facts[i]);
    }
    lua_pushcclosure(L, batch_index, 1);
    lua_setfield(L, -2, "__index");
    lua_pushcfunction(L, batch_newindex);
    lua_setfield(L, -2, "__newindex");
    b->batch_meta_ref = luaL_ref(L, LUA_REGISTRYINDEX);
}

void verbs_create(struct bind *b, lua_State *L)
{
    static const luaL_Reg verbs[] = {
        {"batch", act_batch}, {"forward", act_forward}, {"preempt", act_preempt}, {"refuse", act_refuse},
        {"wake", act_wake},   {"log", act_log},         {"bind", act_bind}};
    static const char *const absent[] = {"release", "remap",   "swap_out", "swap_in", "weights",
                                         "comm",    "reshard", "ffn",      "draft"};
    make_batches(b, L);
    lua_newtable(L);
    for (size_t i = 0; i < sizeof verbs / sizeof *verbs; i++) {
        lua_pushcfunction(L, verbs[i].func);
        lua_setfield(L, -2, verbs[i].name);
    }
    for (size_t i = 0; i < sizeof absent / sizeof *absent; i++) {
        lua_pushstring(L, absent[i]);
        lua_pushcclosure(L, not_offered, 1);
        lua_setfield(L, -2, absent[i]);
    }
    b->act_ref = luaL_ref(L, LUA_REGISTRYINDEX);
    lua_pushcfunction(L, act_log);
    sandbox_add(L, "log");
}
