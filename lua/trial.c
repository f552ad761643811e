#include "lua/trial.h"

#include <lauxlib.h>
#include <limits.h>
#include <math.h>
#include <string.h>

#include "lua/rehearse.h"
#include "lua/sandbox.h"
#include "lua/trial_plan.h"
#include "lua/value.h"
#include "lua/verbs.h"

enum { MAX_MADE = 1024 };

struct trial {
    struct script *script;
    const char *name;       /* of the test under way */
    struct rehearsal world; /* freed by trial_run, whatever the test does */
    struct view view;       /* of the hook under way */
    int n_ranks;            /* of the node on which the policy has started; 0: it has not */
    struct buf text;        /* freed by trial_run, too */
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

static bool flag(lua_State *L, int table, const char *field)
{
    lua_getfield(L, table, field);
    bool v = lua_toboolean(L, -1);
    if (!lua_isnil(L, -1) && lua_type(L, -1) != LUA_TBOOLEAN)
        luaL_error(L, "%s must be true or false", field);
    lua_pop(L, 1);
    return v;
}

/* A list of ranks as a mask. */
static uint64_t rank_list(lua_State *L, int index, const char *what)
{
    uint64_t mask = 0;
    if (lua_type(L, index) != LUA_TTABLE)
        luaL_error(L, "%s must be a list of ranks, not a %s", what, luaL_typename(L, index));
    int n = (int)lua_objlen(L, index);
    for (int i = 1; i <= n && i <= MAX_MADE_RANKS; i++) {
        lua_rawgeti(L, index, i);
        mask |= 1ull << (int)verb_whole_number(L, lua_gettop(L), "a rank", 0, MAX_MADE_RANKS - 1);
        lua_pop(L, 1);
    }
    return mask;
}

/* answers = { "42} I think", ... }: what its probes have said behind the opening brace, the last one last. */
static void make_answers(lua_State *L, struct trial *t, int table, struct request *r)
{
    lua_getfield(L, table, "answers");
    int list = lua_gettop(L), n = lua_type(L, list) == LUA_TTABLE ? (int)lua_objlen(L, list) : 0;
    if (!lua_isnil(L, list) && (lua_type(L, list) != LUA_TTABLE || !r->probes))
        luaL_error(L, "answers must be a list of texts, of a request with probe_every");
    for (int i = 1; i <= n; i++) {
        lua_rawgeti(L, list, i);
        if (lua_type(L, -1) != LUA_TSTRING)
            luaL_error(L, "answers must be a list of texts");
        rehearsal_answer(&t->world, r, lua_tostring(L, -1));
        lua_pop(L, 1);
    }
    lua_pop(L, 1);
    int at = (int)number(L, table, "probed_at", 0, 0, 1e9);
    if (r->probes)
        r->probes->asked_at = at;
}

static struct request *make_request(lua_State *L, struct trial *t, int table, bool running)
{
    static const char *const names[] = {"name",        "tenant",       "priority",    "prompt",   "max_tokens",
                                        "output",      "arrival",      "slo_ttft_ms", "group",    "parked",
                                        "in_host",     "open_ended",   "offline",     "accepted", "rejected",
                                        "probe_every", "probe_window", "probed_at",   "answers"};
    luaL_checktype(L, table, LUA_TTABLE);
    verb_check_fields(L, table, "a request of a test", names, sizeof names / sizeof *names);
    double order = (double)t->world.next_tag;
    struct made_request m = {.name = text(L, table, "name"),
                             .tenant = text(L, table, "tenant"),
                             .priority = (int)number(L, table, "priority", 0, INT_MIN, INT_MAX),
                             .n_prompt = (int)number(L, table, "prompt", 16, 1, 1 << 20),
                             .max_tokens = (int)number(L, table, "max_tokens", 16, 1, 1 << 20),
                             .n_output = (int)number(L, table, "output", running ? 1 : 0, 0, 1 << 20),
                             .arrival_s = number(L, table, "arrival", order * 1e-3, 0, 1e9),
                             .slo_ttft_ms = number(L, table, "slo_ttft_ms", 0, 0, 1e9),
                             .running = running,
                             .group = (int)number(L, table, "group", 0, 1, MAX_MADE_GROUPS),
                             .parked = flag(L, table, "parked"),
                             .in_host = flag(L, table, "in_host"),
                             .open_ended = flag(L, table, "open_ended"),
                             .offline = flag(L, table, "offline"),
                             .probe_every = (int)number(L, table, "probe_every", 0, 0, 1e6),
                             .probe_window = (int)number(L, table, "probe_window", 0, 0, PROBE_WINDOW)};
    struct request *r = rehearsal_add(&t->world, &m);
    if (!r)
        luaL_error(L, "a request of the test does not fit its world (raise kv_blocks)");
    r->drafts[0].accepted = (int64_t)number(L, table, "accepted", 0, 0, 1e9);
    r->drafts[0].rejected = (int64_t)number(L, table, "rejected", 0, 0, 1e9);
    make_answers(L, t, table, r);
    if (m.in_host && !world_in_host(&t->world.world, r))
        luaL_error(L, "a request of the test is not in host memory: raise host_kv_blocks, or kv_blocks");
    if (m.parked || m.in_host ? !r->parked : running && r->state != REQ_RUNNING)
        luaL_error(L, "a running request of the test finds no room (raise kv_blocks or max_num_seqs)");
    return r;
}

/* groups = { { 0, 1 }, { 2 } } */
static void read_groups(lua_State *L, int table, struct rehearsal_size *size)
{
    lua_getfield(L, table, "groups");
    int list = lua_gettop(L), n = lua_type(L, list) == LUA_TTABLE ? (int)lua_objlen(L, list) : 0;
    if (!lua_isnil(L, list) && lua_type(L, list) != LUA_TTABLE)
        luaL_error(L, "groups must be a list of lists of ranks, not a %s", luaL_typename(L, list));
    if (n > MAX_MADE_GROUPS)
        luaL_error(L, "groups: at most %d", MAX_MADE_GROUPS);
    for (int i = 0; i < n; i++) {
        lua_rawgeti(L, list, i + 1);
        size->groups[i] = rank_list(L, lua_gettop(L), "a group");
        lua_pop(L, 1);
    }
    if (lua_type(L, list) == LUA_TTABLE && !n)
        size->no_group = ~0ull;
    lua_pop(L, 1);
}

static void check_groups(lua_State *L, const struct trial *t, const struct rehearsal_size *size)
{
    const struct partition *p = &t->world.world.partition;
    for (int i = 0; i < MAX_MADE_GROUPS; i++)
        if (size->groups[i] && !partition_match(p, size->groups[i], (struct layout){1, 1, 1}))
            luaL_error(
                L,
                "groups: number %d cannot be: aligned power-of-two ranges of ranks and all ranks together can, each "
                "rank in one of them",
                i + 1);
}

/* pending = { { ranks = {...}, when = "drain" }, ... } and dead = { 3 }: what has happened before the step. */
static void make_history(lua_State *L, struct trial *t, int table)
{
    static const char *const names[] = {"ranks", "when"};
    lua_getfield(L, table, "pending");
    int n = lua_type(L, -1) == LUA_TTABLE ? (int)lua_objlen(L, -1) : 0, list = lua_gettop(L);
    for (int i = 1; i <= n; i++) {
        lua_rawgeti(L, list, i);
        luaL_checktype(L, list + 1, LUA_TTABLE);
        verb_check_fields(L, list + 1, "a pending order of a test", names, 2);
        const char *when = text(L, list + 1, "when");
        lua_getfield(L, list + 1, "ranks");
        uint64_t mask = rank_list(L, list + 2, "ranks");
        struct switch_order o = {.mask = mask,
                                 .base = {__builtin_popcountll(mask), 1, 1},
                                 .max_wait_ns = 10000000000,
                                 .when = when && *when == 's' ? WHEN_SOFT : WHEN_DRAIN,
                                 .fate = FATE_MIGRATE,
                                 .reason = "test"};
        rehearsal_order(&t->world, &o);
        lua_settop(L, list);
    }
    lua_pop(L, 1);
    lua_getfield(L, table, "dead");
    uint64_t dead = lua_isnil(L, -1) ? 0 : rank_list(L, lua_gettop(L), "dead");
    lua_pop(L, 1);
    for (int r = 0; r < t->world.world.shape.n_ranks; r++)
        if (dead >> r & 1)
            rehearsal_lose(&t->world, r);
}

/* fetch_ms, was_wait_ms: what fetching took; ffn = "cas": the way that all groups take; replicas: so many layers, the
 * first ones, lie on every rank. */
static void make_pool(lua_State *L, struct trial *t, int table)
{
    struct world *w = &t->world.world;
    const char *way = text(L, table, "ffn");
    w->ffn_measured = (struct ffn_measured){number(L, table, "fetch_ms", 0, 0, 1e6) * 1e6,
                                            number(L, table, "was_wait_ms", 0, 0, 1e6) * 1e6, 1};
    for (int i = 0; i < w->partition.n_groups && w->ffn && way; i++)
        ffn_set(&partition_slot(&w->partition, i)->ffn, 0, w->ffn->n_layers,
                strcmp(way, "cas") == 0 ? FFN_CAS : FFN_WAS);
    int n = (int)number(L, table, "replicas", 0, 0, w->ffn ? w->ffn->n_layers : 0);
    int need[MAX_RANKS];
    replica_needs(w, 0, n, need);
    const char *why = n ? replica_refusal(w, need) : NULL;
    if (why)
        luaL_error(L, "replicas = %d: %s", n, why);
    for (int l = 0; l < n; l++) {
        world_replicate(w, l);
        w->replicas.layers[l].posted = true;
        world_replica_done(w, l, true);
    }
}

/* measured = { { sp =, tp =, tokens =, ms =, n = }, ... }: what steps have taken so far. steps: of each group. */
static void make_measured(lua_State *L, struct trial *t, int table)
{
    static const char *const names[] = {"sp", "tp", "tokens", "ms", "n", "ffn"};
    struct world *w = &t->world.world;
    lua_getfield(L, table, "measured");
    int list = lua_gettop(L), n = lua_type(L, list) == LUA_TTABLE ? (int)lua_objlen(L, list) : 0;
    for (int i = 1; i <= n; i++) {
        lua_rawgeti(L, list, i);
        luaL_checktype(L, list + 1, LUA_TTABLE);
        verb_check_fields(L, list + 1, "a measurement of a test", names, 6);
        struct layout l = {(int)number(L, list + 1, "sp", 1, 1, MAX_RANKS),
                           (int)number(L, list + 1, "tp", 1, 1, MAX_RANKS), 1};
        const char *way = text(L, list + 1, "ffn");
        struct step_size size = {.rows = (int)number(L, list + 1, "tokens", 1, 1, 1 << 20),
                                 .cas_layers = way && !strcmp(way, "cas")};
        double ms = number(L, list + 1, "ms", 1, 0, 1e6), times = number(L, list + 1, "n", 1, 1, 1000);
        for (int k = 0; k < times; k++)
            estimator_learn(&w->estimate, l, size, ms * 1e6);
        lua_settop(L, list);
    }
    lua_pop(L, 1);
    double steps = number(L, table, "steps", 0, 0, 1e9), mean = number(L, table, "mean_tokens", 0, 0, 1e9);
    for (int i = 0; i < w->partition.n_groups; i++) {
        partition_slot(&w->partition, i)->n_steps = (uint64_t)steps;
        partition_slot(&w->partition, i)->mean_tokens = mean;
    }
    make_pool(L, t, table);
}

/* params = { ... }: what the policy finds in p from now on. The script is this test's alone. */
static void set_params(lua_State *L, struct trial *t, int table)
{
    struct script *s = t->script;
    struct err e = {0};
    lua_getfield(L, table, "params");
    if (lua_isnil(L, -1)) {
        lua_pop(L, 1);
        return;
    }
    luaL_checktype(L, -1, LUA_TTABLE);
    buf_clear(&t->text);
    value_write(L, lua_gettop(L), &t->text);
    lua_pop(L, 1);
    if (params_set(&s->params, t->text.data, t->text.len, &e))
        luaL_error(L, "%s", e.text);
    vm_host_enter(&s->vm);
    bind_write_params(&s->bind, L);
    vm_host_leave(&s->vm);
}

/* However many rows it has. */
static void learn_drafting(struct world *w, double ms)
{
    for (int i = 0; i < 40; i++)
        estimator_learn(&w->draft_estimate, (struct layout){1, 1, 1}, (struct step_size){.rows = 1 + i % 2 * 15},
                        ms * 1e6);
}

/* embed = { replicas =, texts =, tokens =, running = { by replica; -1: it has failed } }, or false: none is served */
static int encoder_replicas(lua_State *L, int table)
{
    static const char *const names[] = {"replicas", "texts", "tokens", "running"};
    int n = 0;
    lua_getfield(L, table, "embed");
    if (lua_type(L, -1) == LUA_TBOOLEAN && !lua_toboolean(L, -1))
        n = -1;
    else if (!lua_isnil(L, -1)) {
        luaL_checktype(L, -1, LUA_TTABLE);
        verb_check_fields(L, lua_gettop(L), "embed of a test", names, 4);
        n = (int)number(L, lua_gettop(L), "replicas", 3, 1, EMBED_MAX_REPLICAS);
    }
    lua_pop(L, 1);
    return n;
}

static void make_encoder(lua_State *L, struct trial *t, int table)
{
    struct embed_facts f = {0};
    lua_getfield(L, table, "embed");
    int at = lua_gettop(L);
    if (lua_istable(L, at)) {
        f.n_alive = t->world.embed.n_replicas;
        f.waiting_texts = (int64_t)number(L, at, "texts", 0, 0, 1e9);
        f.waiting_tokens = (int64_t)number(L, at, "tokens", 0, 0, 1e12);
        lua_getfield(L, at, "running");
        for (int i = 0; i < t->world.embed.n_replicas && lua_istable(L, -1); i++) {
            lua_rawgeti(L, -1, i + 1);
            f.running_tokens[i] = (int64_t)lua_tonumber(L, -1);
            f.n_alive -= f.running_tokens[i] < 0;
            lua_pop(L, 1);
        }
        embed_link_put(&t->world.embed, &f);
    }
    lua_settop(L, at - 1);
}

static void make_world(lua_State *L, struct trial *t, int table)
{
    double draft_ms = number(L, table, "draft_ms", -1, -1, 1e6);
    struct rehearsal_size size = {.kv_blocks = (int)number(L, table, "kv_blocks", 1024, 1, 1 << 20),
                                  .tokens_per_block = (int)number(L, table, "tokens_per_block", 16, 16, 1024),
                                  .max_num_seqs = (int)number(L, table, "max_num_seqs", 256, 1, 65536),
                                  .max_num_batched_tokens =
                                      (int)number(L, table, "max_num_batched_tokens", 2048, 1, 1 << 20),
                                  .n_ranks = (int)number(L, table, "ranks", 1, 1, MAX_MADE_RANKS),
                                  .n_pooled = (int)number(L, table, "pooled", 0, 0, FFN_MAX_LAYERS),
                                  .n_host = (int)number(L, table, "host_kv_blocks", 0, 0, 1 << 20),
                                  .drafter = draft_ms >= 0};
    if (size.tokens_per_block % KV_UNIT)
        luaL_error(L, "tokens_per_block must be a multiple of %d", KV_UNIT);
    read_groups(L, table, &size);
    size.n_embed = encoder_replicas(L, table);
    /* A policy may have kept its test's t and call it in a step: this would take that step's world away. */
    if (t->script->bind.plan || t->script->bind.admission)
        luaL_error(L, "t.start, t.step and t.admit are for tests, not for hooks");
    set_params(L, t, table);
    rehearsal_free(&t->world);
    rehearsal_init(&t->world, size, number(L, table, "now", 100, 0, 1e9));
    if (size.drafter)
        learn_drafting(&t->world.world, draft_ms);
    bind_forget(&t->script->bind, L);
    make_encoder(L, t, table);
    check_groups(L, t, &size);
}

/* ---- calling the policy from inside its own machine */

static void push_hook(lua_State *L, struct script *s, enum policy_hook h)
{
    lua_rawgeti(L, LUA_REGISTRYINDEX, s->hooks[h]);
}

/* What a call of a hook leaves behind, however it ended. */
static void leave(struct bind *b)
{
    b->hook = HOOK_COUNT;
    b->facts = NULL;
    b->plan = NULL;
    b->subject = NULL;
    b->admission = NULL;
}

static void enter(lua_State *L, struct bind *b, enum policy_hook h, const struct view *v)
{
    if (!bind_sync(b, L, v, h == HOOK_STEP ? FRESH_ALL : h == HOOK_START ? FRESH_GROUPS : FRESH_SCALARS))
        luaL_error(L, "%s", script_writes);
    b->hook = h;
    b->facts = v;
}

/* The policy takes over in this world; its orders are in the plan. */
static void call_start(lua_State *L, struct trial *t)
{
    struct script *s = t->script;
    struct bind *b = &s->bind;
    struct node_facts node = rehearsal_node(&t->world);
    t->view = rehearsal_view(&t->world);
    t->n_ranks = node.n_ranks;
    plan_begin(&t->world.plan, t->world.now_ns);
    if (s->hooks[HOOK_START] == LUA_NOREF)
        return;
    enter(L, b, HOOK_START, &t->view);
    b->plan = &t->world.plan;
    push_hook(L, s, HOOK_START);
    vm_host_enter(vm_of(L));
    bind_push_node(L, &node);
    vm_host_leave(vm_of(L));
    bind_push(b, L, b->act_ref);
    bind_push(b, L, b->params_ref);
    bind_push(b, L, b->view_ref);
    lua_call(L, 4, 0);
    leave(b);
}

/* A policy has started before anything else is asked of it: once a test, and again on another node. */
static void started(lua_State *L, struct trial *t)
{
    if (t->n_ranks != t->world.world.shape.n_ranks)
        call_start(L, t);
}

/* Asks for the key of r. Returns false when the policy turns it away; the answer is in a. */
static bool ask_admit(lua_State *L, struct trial *t, struct request *r, struct admission *a)
{
    struct script *s = t->script;
    struct bind *b = &s->bind;
    *a = (struct admission){.key = r->key, .retry_after_s = -1};
    if (s->hooks[HOOK_ADMIT] == LUA_NOREF)
        return true;
    t->view = rehearsal_view(&t->world);
    enter(L, b, HOOK_ADMIT, &t->view);
    b->subject = r;
    b->admission = a;
    push_hook(L, s, HOOK_ADMIT);
    bind_push_request(b, L, r, END_NONE);
    bind_push(b, L, b->view_ref);
    bind_push(b, L, b->act_ref);
    bind_push(b, L, b->params_ref);
    lua_call(L, 4, 1);
    leave(b);
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
    started(L, t);
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
            admission_obey(&a, &t->world.world, r, t->world.now_ns);
        else if (r->state == REQ_WAITING) {
            lua_pushnumber(L, a.code);
            lua_setfield(L, refused, r->spec->name);
            world_end(&t->world.world, r, END_REFUSED);
        }
        lua_settop(L, items);
    }
    lua_pop(L, 1);
}

/* t.start{ ranks =, groups =, ... }: what the policy orders when it takes over. */
static int t_start(lua_State *L)
{
    static const char *const names[] = {"ranks",  "groups",         "dead",  "now", "kv_blocks", "tokens_per_block",
                                        "pooled", "host_kv_blocks", "params"};
    struct trial *t = lua_touserdata(L, lua_upvalueindex(1));
    luaL_checktype(L, 1, LUA_TTABLE);
    lua_settop(L, 1);
    verb_check_fields(L, 1, "t.start", names, sizeof names / sizeof *names);
    make_world(L, t, 1);
    make_history(L, t, 1);
    call_start(L, t);
    lua_newtable(L);
    trial_push_plan(L, &t->world.plan, 2);
    return 1;
}

/* t.step{ waiting = {...}, running = {...}, now =, kv_blocks =, ranks =, groups =, ... }: the plan. */
static int t_step(lua_State *L)
{
    static const char *const names[] = {"waiting",
                                        "running",
                                        "now",
                                        "kv_blocks",
                                        "tokens_per_block",
                                        "max_num_seqs",
                                        "ranks",
                                        "groups",
                                        "pending",
                                        "dead",
                                        "measured",
                                        "steps",
                                        "max_num_batched_tokens",
                                        "pooled",
                                        "host_kv_blocks",
                                        "fetch_ms",
                                        "was_wait_ms",
                                        "replicas",
                                        "ffn",
                                        "mean_tokens",
                                        "params",
                                        "draft_ms",
                                        "embed"};
    struct trial *t = lua_touserdata(L, lua_upvalueindex(1));
    struct script *s = t->script;
    struct bind *b = &s->bind;
    luaL_checktype(L, 1, LUA_TTABLE);
    lua_settop(L, 1);
    verb_check_fields(L, 1, "t.step", names, sizeof names / sizeof *names);
    make_world(L, t, 1);
    started(L, t);
    lua_newtable(L);
    add_list(L, t, 1, "running", 2);
    add_list(L, t, 1, "waiting", 2);
    make_history(L, t, 1);
    make_measured(L, t, 1);
    t->view = rehearsal_view(&t->world);
    plan_begin(&t->world.plan, t->world.now_ns);
    enter(L, b, HOOK_STEP, &t->view);
    b->plan = &t->world.plan;
    push_hook(L, s, HOOK_STEP);
    bind_push(b, L, b->view_ref);
    bind_push(b, L, b->act_ref);
    bind_push(b, L, b->params_ref);
    lua_call(L, 3, 0);
    leave(b);
    trial_push_plan(L, &t->world.plan, 2);
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
    lua_pushcclosure(L, t_start, 1);
    lua_setfield(L, -2, "start");
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
    leave(&s->bind);
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
    buf_free(&t.text);
    s->bind.transcript = NULL;
    return rc;
}
