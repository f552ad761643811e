#include "lua/trial.h"

#include <lauxlib.h>
#include <limits.h>
#include <math.h>
#include <string.h>

#include "lua/nearest.h"
#include "lua/rehearse.h"
#include "lua/sandbox.h"

enum { MAX_MADE = 1024 };

struct trial {
    struct script *script;
    const char *name;           /* of the test under way */
    struct rehearsal world;     /* freed by trial_run, whatever the test does */
};

/* ---- reading the description of a world */

static double number(lua_State *L, int table, const char *field, double otherwise, double low, double high)
{
    lua_getfield(L, table, field);
    double v = otherwise;
    if (!lua_isnil(L, -1)) {
        if (lua_type(L, -1) != LUA_TNUMBER || !(lua_tonumber(L, -1) >= low && lua_tonumber(L, -1) <= high))
            luaL_error(L, "%s must be a number from %f to %f", field, low, high);
        v = lua_tonumber(L, -1);
    }
    lua_pop(L, 1);
    return v;
}

/* The text stays alive in its table. */
static const char *text(lua_State *L, int table, const char *field)
{
    lua_getfield(L, table, field);
    const char *v = lua_isnil(L, -1) ? NULL : lua_type(L, -1) == LUA_TSTRING ? lua_tostring(L, -1) : NULL;
    if (!v && !lua_isnil(L, -1))
        luaL_error(L, "%s must be a text", field);
    lua_pop(L, 1);
    return v;
}

static void check_names(lua_State *L, int table, const char *const *names, int n, const char *what)
{
    for (lua_pushnil(L); lua_next(L, table); lua_pop(L, 1)) {
        const char *key = lua_type(L, -2) == LUA_TSTRING ? lua_tostring(L, -2) : "(a number)";
        bool known = false;
        for (int i = 0; i < n; i++)
            known |= strcmp(names[i], key) == 0;
        if (known)
            continue;
        const char *near = nearest_word(key, names, n);
        luaL_error(L, "%s has no field '%s'%s%s%s", what, key, near ? "; did you mean '" : "",
                   near ? near : "", near ? "'?" : "");
    }
}

static struct request *make_request(lua_State *L, struct trial *t, int table, bool running)
{
    static const char *const names[] = {"name",       "tenant", "priority", "prompt",
                                        "max_tokens", "output", "arrival",  "slo_ttft_ms"};
    luaL_checktype(L, table, LUA_TTABLE);
    check_names(L, table, names, 8, "a request of a test");
    double order = (double)t->world.next_tag;
    struct made_request m = {.name = text(L, table, "name"), .tenant = text(L, table, "tenant"),
                             .priority = (int)number(L, table, "priority", 0, INT_MIN, INT_MAX),
                             .n_prompt = (int)number(L, table, "prompt", 16, 1, 1 << 20),
                             .max_tokens = (int)number(L, table, "max_tokens", 16, 1, 1 << 20),
                             .n_output = (int)number(L, table, "output", running ? 1 : 0, 0, 1 << 20),
                             .arrival_s = number(L, table, "arrival", order * 1e-3, 0, 1e9),
                             .slo_ttft_ms = number(L, table, "slo_ttft_ms", 0, 0, 1e9), .running = running};
    struct request *r = rehearsal_add(&t->world, &m);
    if (!r)
        luaL_error(L, "a request of the test does not fit its world (raise kv_blocks)");
    if (running && r->state != REQ_RUNNING)
        luaL_error(L, "a running request of the test finds no room (raise kv_blocks or max_num_seqs)");
    return r;
}

static void make_world(lua_State *L, struct trial *t, int table)
{
    struct rehearsal_size size = {.kv_blocks = (int)number(L, table, "kv_blocks", 1024, 1, 1 << 20),
                                  .tokens_per_block = (int)number(L, table, "tokens_per_block", 16, 1, 1024),
                                  .max_num_seqs = (int)number(L, table, "max_num_seqs", 256, 1, 65536),
                                  .max_num_batched_tokens =
                                      (int)number(L, table, "max_num_batched_tokens", 2048, 1, 1 << 20)};
    /* A policy may have kept its test's t and call it in a step: this would take that step's world away. */
    if (t->script->bind.plan || t->script->bind.admission)
        luaL_error(L, "t.step and t.admit are for tests, not for hooks");
    rehearsal_free(&t->world);
    rehearsal_init(&t->world, size, number(L, table, "now", 100, 0, 1e9));
    bind_forget(&t->script->bind, L);
}

/* ---- calling the policy from inside its own machine */

static void push_hook(lua_State *L, struct script *s, enum policy_hook h)
{
    lua_rawgeti(L, LUA_REGISTRYINDEX, s->hooks[h]);
}

/* Asks for the key of r. Returns false when the policy turns it away; the answer is in a. */
static bool ask_admit(lua_State *L, struct trial *t, struct request *r, struct admission *a)
{
    struct script *s = t->script;
    struct bind *b = &s->bind;
    struct view v = rehearsal_view(&t->world);
    *a = (struct admission){.key = r->key, .retry_after_s = -1};
    if (s->hooks[HOOK_ADMIT] == LUA_NOREF)
        return true;
    bind_sync(b, L, &v, false);
    b->subject = r;
    b->admission = a;
    push_hook(L, s, HOOK_ADMIT);
    bind_push_request(b, L, r, END_NONE);
    bind_push(b, L, b->view_ref);
    bind_push(b, L, b->act_ref);
    bind_push(b, L, b->params_ref);
    lua_call(L, 4, 1);
    b->subject = NULL;
    b->admission = NULL;
    if (!a->refused && !lua_isnil(L, -1)) {
        if (lua_type(L, -1) != LUA_TNUMBER || !isfinite(lua_tonumber(L, -1)))
            luaL_error(L, "admit returned a %s; a sort key is a finite number", luaL_typename(L, -1));
        a->key = lua_tonumber(L, -1);
    }
    lua_pop(L, 1);
    return !a->refused;
}

/* t.admit{...}: the key, or nil, code and retry_after. */
static int t_admit(lua_State *L)
{
    struct trial *t = lua_touserdata(L, lua_upvalueindex(1));
    luaL_checktype(L, 1, LUA_TTABLE);
    lua_settop(L, 1);
    lua_newtable(L);
    make_world(L, t, 2);
    struct admission a;
    if (ask_admit(L, t, make_request(L, t, 1, false), &a)) {
        lua_pushnumber(L, a.key);
        return 1;
    }
    lua_pushnil(L);
    lua_pushnumber(L, a.code);
    lua_pushnumber(L, a.retry_after_s);
    return 3;
}

/* Adds the requests of one list of the description; those turned away are noted in the table `refused`. */
static void add_list(lua_State *L, struct trial *t, int table, const char *list, int refused)
{
    lua_getfield(L, table, list);
    if (!lua_isnil(L, -1) && lua_type(L, -1) != LUA_TTABLE)
        luaL_error(L, "%s must be a list of requests, not a %s", list, luaL_typename(L, -1));
    int n = lua_isnil(L, -1) ? 0 : (int)lua_objlen(L, -1);
    if (n > MAX_MADE)
        luaL_error(L, "%s: at most %d requests", list, MAX_MADE);
    int items = lua_gettop(L);
    for (int i = 1; i <= n; i++) {
        lua_rawgeti(L, items, i);
        struct request *r = make_request(L, t, items + 1, *list == 'r');
        struct admission a;
        if (ask_admit(L, t, r, &a))
            world_rekey(&t->world.world, r, a.key);
        else if (r->state == REQ_WAITING) {
            lua_pushnumber(L, a.code);
            lua_setfield(L, refused, r->spec->name);
            world_end(&t->world.world, r, END_REFUSED);
        }
        lua_settop(L, items);
    }
    lua_pop(L, 1);
}

static void push_item(lua_State *L, const struct plan_item *it)
{
    lua_createtable(L, 0, 3);
    lua_pushstring(L, it->request->spec->name);
    lua_setfield(L, -2, "name");
    lua_pushnumber(L, it->n_tokens);
    lua_setfield(L, -2, "tokens");
    lua_pushboolean(L, it->starts);
    lua_setfield(L, -2, "starts");
}

static void push_verbs(lua_State *L, const struct plan *p, int result, int refused)
{
    lua_newtable(L);
    for (int i = 0, n = 0; i < p->n_verbs; i++) {
        const struct plan_verb *v = &p->verbs[i];
        if (v->kind == PLAN_PREEMPT) {
            lua_pushstring(L, v->request->spec->name);
            lua_rawseti(L, -2, ++n);
        } else if (v->kind == PLAN_REFUSE) {
            lua_pushnumber(L, v->code);
            lua_setfield(L, refused, v->request->spec->name);
        }
    }
    lua_setfield(L, result, "preempted");
}

/* The plan as a table: a list of {name, tokens, starts}, tokens in all, names preempted, codes refused by
 * name, wake in ms. */
static void push_plan(lua_State *L, const struct plan *p, int refused)
{
    lua_newtable(L);
    int result = lua_gettop(L), n = 0, tokens = 0;
    for (int b = 0; b < p->n_batches; b++)
        for (int i = 0; p->batches[b]->forwarded && i < p->batches[b]->n_items; i++) {
            push_item(L, &p->batches[b]->items[i]);
            lua_rawseti(L, result, ++n);
            tokens += p->batches[b]->items[i].n_tokens;
        }
    push_verbs(L, p, result, refused);
    lua_pushvalue(L, refused);
    lua_setfield(L, result, "refused");
    lua_pushnumber(L, tokens);
    lua_setfield(L, result, "tokens");
    if (p->wake_ns) {
        lua_pushnumber(L, (double)(p->wake_ns - p->now_ns) * 1e-6);
        lua_setfield(L, result, "wake");
    }
}

/* t.step{ waiting = {...}, running = {...}, now =, kv_blocks =, ... }: the plan. */
static int t_step(lua_State *L)
{
    static const char *const names[] = {"waiting",
                                        "running",
                                        "now",
                                        "kv_blocks",
                                        "tokens_per_block",
                                        "max_num_seqs",
                                        "max_num_batched_tokens"};
    struct trial *t = lua_touserdata(L, lua_upvalueindex(1));
    struct script *s = t->script;
    struct bind *b = &s->bind;
    luaL_checktype(L, 1, LUA_TTABLE);
    lua_settop(L, 1);
    check_names(L, 1, names, 7, "t.step");
    make_world(L, t, 1);
    lua_newtable(L);
    add_list(L, t, 1, "running", 2);
    add_list(L, t, 1, "waiting", 2);
    struct view v = rehearsal_view(&t->world);
    plan_begin(&t->world.plan, t->world.now_ns);
    if (!bind_sync(b, L, &v, true))
        luaL_error(L, "the policy writes into its view, which is read only");
    b->plan = &t->world.plan;
    push_hook(L, s, HOOK_STEP);
    bind_push(b, L, b->view_ref);
    bind_push(b, L, b->act_ref);
    bind_push(b, L, b->params_ref);
    lua_call(L, 3, 0);
    b->plan = NULL;
    push_plan(L, &t->world.plan, 2);
    return 1;
}

/* ---- the run */

static void body_list(lua_State *L, void *arg)
{
    struct trial *t = arg;
    lua_rawgeti(L, LUA_REGISTRYINDEX, t->script->tests_ref);
    sandbox_sorted_keys(L, lua_gettop(L));
    lua_pushliteral(L, "tests");
    lua_insert(L, -2);
    lua_rawset(L, LUA_REGISTRYINDEX);
}

struct nth {
    struct trial *t;
    int i;
    char name[100];
};

static void body_test(lua_State *L, void *arg)
{
    struct nth *x = arg;
    lua_getfield(L, LUA_REGISTRYINDEX, "tests");
    lua_rawgeti(L, -1, x->i);
    vm_escape(x->name, sizeof x->name, lua_tostring(L, -1), lua_objlen(L, -1));
    lua_rawgeti(L, LUA_REGISTRYINDEX, x->t->script->tests_ref);
    lua_pushvalue(L, -2);
    lua_rawget(L, -2);
    lua_newtable(L);
    lua_pushlightuserdata(L, x->t);
    lua_pushcclosure(L, t_step, 1);
    lua_setfield(L, -2, "step");
    lua_pushlightuserdata(L, x->t);
    lua_pushcclosure(L, t_admit, 1);
    lua_setfield(L, -2, "admit");
    lua_call(L, 1, 0);
}

static int run_one(struct trial *t, int i, struct buf *report, struct err *e)
{
    struct script *s = t->script;
    struct nth x = {.t = t, .i = i};
    struct vm_budget b = script_generous(s);
    struct err mine = {0};
    b.hard_ns *= 10;
    enum verdict v = vm_call(&s->vm, b, body_test, &x, &mine);
    s->bind.plan = NULL;
    s->bind.subject = NULL;
    s->bind.admission = NULL;
    if (report)
        buf_printf(report, "  %s %s\n", verdict_stands(v) ? "ok  " : "FAIL", x.name);
    return verdict_stands(v) ? 0 : err_set(e, E_POLICY, "test '%s' fails: %.250s", x.name, mine.text);
}

int trial_run(struct script *s, int i, struct buf *report, struct err *e)
{
    struct trial t = {.script = s};
    s->bind.transcript = report;
    int rc = verdict_stands(vm_call(&s->vm, script_generous(s), body_list, &t, e)) ? 0 : E_POLICY;
    if (!rc)
        rc = run_one(&t, i, report, e);
    rehearsal_free(&t.world);
    s->bind.transcript = NULL;
    return rc;
}
