#include <lauxlib.h>
#include <string.h>

#include "lua/script.h"
#include "lua/verbs.h"

static const struct plan_batch *check_batch(lua_State *L, int arg)
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

/* act.batch(group) */
int act_batch(lua_State *L)
{
    struct bind *b = bind_of(L);
    int group = verb_group(L, 1);
    if (!verb_plan(L))
        return verb_not_now(L, "batch");
    struct verb_result r;
    verb_do(L, &(struct verb_call){.kind = CALL_BATCH, .group = group}, &r);
    if (!r.done)
        return verb_refused(L, r.reason);
    int *ref = &b->handle_refs[(group - 1) % MAX_RANKS];
    if (*ref == LUA_NOREF) {
        struct batch_handle *made = lua_newuserdata(L, sizeof *made);
        *made = (struct batch_handle){0};
        bind_push(b, L, b->batch_meta_ref);
        lua_setmetatable(L, -2);
        *ref = luaL_ref(L, LUA_REGISTRYINDEX);
    }
    bind_push(b, L, *ref);
    struct batch_handle *h = lua_touserdata(L, -1);
    h->serial = b->plan->serial;
    h->batch = b->plan->batches[b->plan->n_batches - 1];
    return 1;
}

static int batch_decodes(lua_State *L)
{
    struct verb_result r;
    verb_do(L, &(struct verb_call){.kind = CALL_DECODES, .group = check_batch(L, 1)->group_id}, &r);
    lua_pushnumber(L, r.n);
    return 1;
}

/* b:prefill([view.waiting | {id, ...}] [, budget [, "any"]]) */
static int batch_prefill(lua_State *L)
{
    struct bind *b = bind_of(L);
    const struct plan_batch *batch = check_batch(L, 1);
    lua_settop(L, 4);
    int budget = b->plan->world->limits.max_num_batched_tokens, n = 0;
    if (!lua_isnil(L, 3))
        budget = (int)verb_whole_number(L, 3, "the token budget", 0, 1 << 30);
    if (!lua_isnil(L, 4) && !(lua_type(L, 4) == LUA_TSTRING && strcmp(lua_tostring(L, 4), "any") == 0))
        luaL_error(
            L,
            "the last argument of prefill is \"any\" (whoever is next, wherever it would be served sooner) or nothing");
    const req_id *list = NULL;
    static const req_id none;
    if (lua_type(L, 2) == LUA_TTABLE && lua_topointer(L, 2) == b->running.view_pointer)
        list = &none; /* running requests go first in any case */
    else if (lua_type(L, 2) == LUA_TTABLE && lua_topointer(L, 2) != b->waiting.view_pointer)
        list = verb_request_list(L, 2, &n);
    else if (!lua_isnil(L, 2) && lua_type(L, 2) != LUA_TTABLE)
        luaL_error(L, "view.waiting or a list of request ids is expected, not a %s", luaL_typename(L, 2));
    struct verb_result r;
    verb_do(L,
            &(struct verb_call){.kind = CALL_PREFILL,
                                .group = batch->group_id,
                                .n = budget,
                                .listed = list != NULL,
                                .list = list,
                                .n_list = n,
                                .how = !lua_isnil(L, 4)},
            &r);
    lua_pushnumber(L, r.n);
    return 1;
}

/* b:add(id [, n]) */
static int batch_add(lua_State *L)
{
    const struct plan_batch *batch = check_batch(L, 1);
    req_id id = verb_request(L, 2);
    int n = lua_isnoneornil(L, 3) ? 0 : (int)verb_whole_number(L, 3, "the number of tokens", 1, 1 << 30);
    struct verb_result r;
    verb_do(L, &(struct verb_call){.kind = CALL_ADD, .group = batch->group_id, .id = id, .n = n}, &r);
    if (!r.done)
        return verb_refused(L, r.reason);
    lua_pushnumber(L, r.n);
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
        return luaL_error(L, "a batch has no '%s' (tokens, n, n_decodes, group, decodes, prefill, add)",
                          lua_type(L, 2) == LUA_TSTRING ? lua_tostring(L, 2) : "?");
    const struct plan_batch *batch = check_batch(L, 1);
    switch ((enum batch_fact)lua_tonumber(L, -1)) {
    case FACT_TOKENS:
        lua_pushnumber(L, batch->n_tokens);
        break;
    case FACT_N:
        lua_pushnumber(L, batch->n_items);
        break;
    case FACT_DECODES:
        lua_pushnumber(L, batch->n_decodes);
        break;
    case FACT_GROUP:
        lua_pushnumber(L, batch->group_id);
        break;
    }
    return 1;
}

static int batch_newindex(lua_State *L)
{
    return luaL_error(L, "a batch is changed by its verbs only");
}

void verbs_make_batches(struct bind *b, lua_State *L)
{
    static const luaL_Reg methods[] = {{"decodes", batch_decodes}, {"prefill", batch_prefill}, {"add", batch_add}};
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

/* ---- a step */

/* A field of the options; `none` where it is not there. */
enum { MOST_ESTIMATED_DRAFTS = 1 << 20 };

static int step_option(lua_State *L, int arg, const char *name, int most, int none)
{
    lua_pushstring(L, name);
    lua_rawget(L, arg);
    int v = lua_isnil(L, -1) ? none : (int)verb_whole_number(L, lua_gettop(L), name, 0, most);
    lua_pop(L, 1);
    return v;
}

/* { ahead = n, micro = n } */
static void check_step_options(lua_State *L, int arg, int *ahead, int *micro)
{
    static const char *const names[] = {"ahead", "micro"};
    *ahead = -1;
    *micro = 0;
    if (lua_isnil(L, arg))
        return;
    if (lua_type(L, arg) != LUA_TTABLE)
        luaL_error(L, "options like { ahead = 4 } are expected, not a %s", luaL_typename(L, arg));
    verb_check_fields(L, arg, "the options of act.forward", names, 2);
    *ahead = step_option(L, arg, "ahead", MOST_AHEAD, -1);
    *micro = step_option(L, arg, "micro", MOST_MICRO, 0);
}

/* act.forward(group, batch [, layout [, { ahead = n, micro = n }]]) */
int act_forward(lua_State *L)
{
    bool given;
    lua_settop(L, 4);
    int group = verb_group(L, 1);
    if (!verb_plan(L))
        return verb_not_now(L, "forward");
    const struct plan_batch *batch = check_batch(L, 2);
    struct layout layout = verb_layout(L, 3, &given);
    if (batch->group_id != group)
        return verb_refused(L, "the batch was made for another group");
    if (!given)
        layout = group_usual_layout(batch->plan->world, batch->group);
    struct verb_call c = {.kind = CALL_FORWARD, .group = group, .layout = layout};
    check_step_options(L, 4, &c.n, &c.more);
    return verb_done(L, &c);
}

/* { prompts = n, prompt = tokens, decodes = n, context = tokens } */
static struct step_size check_made_up(lua_State *L, int arg)
{
    enum { MOST_SEQS = 4096, MOST_TOKENS = 1 << 24 };
    static const char *const names[] = {"prompts", "prompt", "decodes", "context"};
    struct step_size s = {0};
    verb_check_fields(L, arg, "a made-up step", names, 4);
    int prompt = step_option(L, arg, "prompt", MOST_TOKENS, 0);
    for (int n = step_option(L, arg, "prompts", MOST_SEQS, 1); n > 0 && prompt && s.rows <= MOST_TOKENS; n--) {
        step_size_add(&s, prompt, 0);
        s.n_logits++;
    }
    step_size_decodes(&s, step_option(L, arg, "decodes", MOST_SEQS, 0), step_option(L, arg, "context", MOST_TOKENS, 0));
    return s;
}

/* What the step would look like: a batch, a made-up step, or a number of tokens with nothing cached before them. */
static struct step_size check_size(lua_State *L, int arg)
{
    if (lua_type(L, arg) == LUA_TTABLE)
        return check_made_up(L, arg);
    if (lua_type(L, arg) != LUA_TNUMBER)
        return plan_size(check_batch(L, arg));
    double n = verb_whole_number(L, arg, "the number of tokens", 0, 1 << 30);
    return (struct step_size){.rows = (int)n};
}

/* { ffn = "was" or "cas", micro = n, drafts = n }. NULL, or why it is refused. */
static const char *check_estimate_options(lua_State *L, int arg, const struct world *w, struct step_size *size)
{
    static const char *const names[] = {"ffn", "micro", "drafts"};
    if (lua_isnil(L, arg))
        return NULL;
    if (lua_type(L, arg) != LUA_TTABLE)
        luaL_error(L, "options like { ffn = \"cas\" } are expected, not a %s", luaL_typename(L, arg));
    verb_check_fields(L, arg, "the options of view.estimate", names, 3);
    size->n_micro = step_option(L, arg, "micro", MOST_MICRO, 0);
    int drafts = step_option(L, arg, "drafts", MOST_ESTIMATED_DRAFTS, 0);
    if (drafts && !w->drafts)
        return "nothing is drafted here";
    step_size_draft(size, drafts);
    return verb_ffn_option(L, arg, w, size);
}

/* view.estimate_draft(batch, source, n [, requests]): ms that it takes the step to guess n tokens for so many requests
 * (all that decode), and the forwards of a draft model that this rests on; or nil: there is no such source */
int view_estimate_draft(lua_State *L)
{
    const struct plan_batch *batch = check_batch(L, 1);
    const struct world *w = batch->plan->world;
    const char *name = luaL_checkstring(L, 2);
    int source = draft_source_named(w->drafts, name), n = (int)verb_whole_number(L, 3, "n", 0, MOST_DRAFTS);
    int requests = batch->n_decodes;
    if (!lua_isnoneornil(L, 4))
        requests = (int)verb_whole_number(L, 4, "the number of requests", 0, MAX_REQUESTS);
    uint64_t seen;
    if (!w->drafts)
        return verb_refused(L, "nothing is drafted here");
    if (source < 0)
        return verb_no_source(L, w, name);
    lua_pushnumber(L, plan_draft_ns(batch, source, n, requests, &seen) * 1e-6);
    lua_pushnumber(L, (double)seen);
    return 2;
}

/* view.estimate(group, layout, batch | tokens | made-up step [, { ffn =, micro =, drafts = }]): ms, and the number of
 * steps of the layout (that treat FFN layers so) that this rests on; or nil and why the layout cannot run, or no draft
 * token. */
int view_estimate(lua_State *L)
{
    struct layout l;
    lua_settop(L, 4);
    const struct bind *b = bind_of(L);
    const char *why = verb_layout_of_group(L, 1, &l);
    struct step_size size = check_size(L, 3);
    if (why)
        return verb_refused(L, why);
    const struct world *w = b->facts->world;
    plan_size_ffn(w, b->plan, view_group(b->facts, verb_group(L, 1)), l, &size);
    why = check_estimate_options(L, 4, w, &size);
    if (why)
        return verb_refused(L, why);
    uint64_t seen;
    lua_pushnumber(L, estimator_ns(&w->estimate, l, size, &seen) * 1e-6);
    lua_pushnumber(L, (double)seen);
    return 2;
}
