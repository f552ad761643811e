/* The Lua module `moonshift`, for specs (busted): the real engine on the simulated device under a virtual
 * clock, so that a policy's spec asserts what really was scheduled. Built as moonshift.so, apart from the
 * server; one Lua state of a test process owns what it makes. local e = require("moonshift").engine { policy
 * = "policies/fcfs.lua", max_num_seqs = 4 } local id = e:submit { prompt = 100, max_tokens = 5, tenant = "a",
 * at = 0.5 } e:run() e:schedule()[1].items[1].name, e:result(id).ending, e:groups(), e:switches(), e:metrics(),
 * e:state(), e:load { trace = "poisson:rate=4,requests=100" }, e:swap { policy = ... }, e:set { param = value } Never
 * true: a spec that decides in place of the engine; a call, in whatever order and with whatever arguments, that ends
 * the process instead of raising. */
#include <lauxlib.h>
#include <limits.h>
#include <lua.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/file.h"
#include "engine/base/json.h"
#include "engine/base/mem.h"
#include "engine/base/places.h"
#include "engine/engine.h"
#include "engine/lab/arrivals.h"
#include "engine/lab/drafts.h"
#include "kernels/sim/machine.h"
#include "lua/groups.h"
#include "lua/host.h"
#include "lua/module/read.h"
#include "lua/value.h"

enum {
    MAX_RESULTS = 1 << 16,
    MAX_PROMPT = 1 << 20,
    MAX_PROMPT_TOKENS = 1 << 28, /* of all requests together: 1 GiB */
    MAX_BLOCKS = 1 << 22,        /* of all ranks together */
    MAX_OPEN = 48,               /* engines at once; each has a thread, and Lua does not know how large they are */
    MAX_FRUITLESS = 1000000,     /* scheduling points in a row that run nothing */
};
static const double MAX_SECONDS = 1e9;
static const int64_t START_NS = 1000000000; /* what a spec calls time 0: the engine takes 0 for "never" */

struct result {
    char name[NAME_BYTES];
    int32_t *tokens;
    int n_tokens, cap_tokens, n_prompt, n_cached, status, retry_after_s;
    enum ending ending;
    int64_t first_ns, end_ns;
    char why[200];
};

struct scheduled {
    uint64_t tag;
    int n_tokens, n_drafts;
    bool starts;
};

struct step_record {
    int64_t at_ns;
    int group;
    uint64_t ranks;
    struct layout layout;
    int n_items, n_tokens, first; /* items[first..) */
    int ffn;                      /* ffn_way */
};

struct pending {
    int64_t at_ns;
    struct engine_message message;
};

struct rig {
    struct lua_watchdog *dog;
    struct clock clock;
    struct model *model;
    struct sim_machine *machine; /* NULL: every step has a fixed cost */
    struct ffn_setup pool;
    struct modelled_drafts drafts;
    struct engine *engine;
    struct result *results; /* by tag - 1 */
    struct scheduled *items;
    struct step_record *steps;
    struct pending *pending; /* in order of time */
    int n_results, n_items, n_steps, n_pending, cap_items, cap_steps, cap_results;
    int64_t n_prompt_tokens; /* of all requests */
    uint64_t step_seen;
    int n_ranks;
    bool open;       /* it counts as one of MAX_OPEN */
    struct buf text; /* scratch that must outlive a raise */
    int reply_code;
    struct buf reply;
};

static struct rig *check_rig(lua_State *L)
{
    struct rig *r = luaL_checkudata(L, 1, "moonshift.engine");
    if (!r->engine)
        luaL_error(L, "the engine is closed");
    return r;
}

/* ---- reading tables */

/* The policy that a table names: policy = FILE or source = TEXT (and name), params = { ... }. 0, or a code
 * with e. Pushes nothing. */
static int load_policy(lua_State *L, struct rig *r, int table, struct policy *out, struct err *e)
{
    char path[512], name[NAME_BYTES], folder[512];
    read_text(L, table, "policy", path, sizeof path);
    read_text(L, table, "name", name, sizeof name);
    read_text(L, table, "folder", folder, sizeof folder);
    buf_clear(&r->text);
    lua_getfield(L, table, "params");
    if (!lua_isnil(L, -1) && lua_type(L, -1) != LUA_TTABLE)
        luaL_error(L, "params must be a table, not a %s", luaL_typename(L, -1));
    if (lua_type(L, -1) == LUA_TTABLE)
        value_write(L, lua_gettop(L), &r->text);
    lua_pop(L, 1);
    char *params = r->text.len ? lua_newuserdata(L, r->text.len + 1) : NULL; /* anchored on the stack */
    if (params)
        memcpy(params, r->text.data, r->text.len + 1);
    buf_clear(&r->text);
    lua_getfield(L, table, "source");
    size_t n;
    if (!lua_isnil(L, -1) && lua_type(L, -1) != LUA_TSTRING)
        luaL_error(L, "source must be a text, not a %s", luaL_typename(L, -1));
    const char *source = lua_tolstring(L, -1, &n);
    if (!source) {
        if (!*path)
            return err_set(e, E_INPUT, "which policy? policy = FILE, or source = TEXT");
        read_find_file(L, path, sizeof path);
        file_folder(path, folder, sizeof folder);
        TRY(file_read(&r->text, path, LUA_SOURCE_BYTES + 1, e));
        source = r->text.data ? r->text.data : "";
        n = r->text.len;
        const char *slash = strrchr(path, '/');
        if (!*name)
            snprintf(name, sizeof name, "%.60s", slash ? slash + 1 : path);
    }
    struct lua_opts o = {.watchdog = r->dog,
                         .hard_ns = 500000000,
                         .soft_ns = INT64_MAX / 4, /* what a call executes is judged, not how fast this machine is */
                         .quiet = true,
                         .n_ranks = r->n_ranks,
                         .folder = *folder ? folder : NULL};
    return lua_policy_load(out, *name ? name : "spec", source, n, &o, params, e);
}

/* ---- events */

static void take_token(struct rig *r, struct result *x, const struct engine_event *ev)
{
    if (x->n_tokens == x->cap_tokens) {
        x->cap_tokens = x->cap_tokens ? x->cap_tokens * 2 : 16;
        x->tokens = mem_resize(x->tokens, (size_t)x->cap_tokens, sizeof *x->tokens);
    }
    if (!x->n_tokens)
        x->first_ns = clock_now(&r->clock);
    x->tokens[x->n_tokens++] = ev->token;
}

static void take_event(struct rig *r, const struct engine_event *ev)
{
    struct result *x = ev->tag >= 1 && ev->tag <= (uint64_t)r->n_results ? &r->results[ev->tag - 1] : NULL;
    if (ev->kind == EV_TOKEN && x)
        take_token(r, x, ev);
    if (ev->kind == EV_END && x) {
        x->ending = (enum ending)ev->code;
        x->end_ns = clock_now(&r->clock);
        x->n_prompt = ev->n_prompt;
        x->n_cached = ev->n_cached;
        x->status = ev->http_status;
        x->retry_after_s = ev->retry_after_s;
        snprintf(x->why, sizeof x->why, "%s", ev->payload ? (const char *)ev->payload : "");
    }
    if (ev->kind == EV_REPLY) {
        r->reply_code = ev->code;
        buf_clear(&r->reply);
        buf_put(&r->reply, ev->payload, ev->n);
    }
    mem_free(ev->payload);
}

static void *grown(void *old, int n, int *cap, size_t size)
{
    if (n < *cap)
        return old;
    *cap = *cap ? *cap * 2 : 64;
    return mem_resize(old, (size_t)*cap, size);
}

/* What the last turn posted. Its requests live at least until the step is done. */
static void record_step(struct rig *r)
{
    const struct plan *p = engine_plan(r->engine);
    uint64_t step = engine_world(r->engine)->step;
    if (step == r->step_seen)
        return;
    r->step_seen = step;
    for (int b = 0; b < p->n_batches; b++) {
        const struct plan_batch *batch = p->batches[b];
        if (!batch->forwarded)
            continue;
        r->steps = grown(r->steps, r->n_steps, &r->cap_steps, sizeof *r->steps);
        r->steps[r->n_steps++] = (struct step_record){.at_ns = clock_now(&r->clock),
                                                      .group = batch->group_id,
                                                      .ranks = batch->group->mask,
                                                      .layout = batch->layout,
                                                      .n_items = batch->n_items,
                                                      .n_tokens = batch->n_tokens,
                                                      .first = r->n_items,
                                                      .ffn = ffn_way(engine_world(r->engine), batch->group)};
        for (int i = 0; i < batch->n_items; i++) {
            r->items = grown(r->items, r->n_items, &r->cap_items, sizeof *r->items);
            const struct plan_item *it = &batch->items[i];
            r->items[r->n_items++] = (struct scheduled){it->request->spec->tag, it->n_tokens, it->drafts.n, it->starts};
        }
    }
}

/* All that can be done now. A policy may find something new to ask for at every scheduling point, for ever: false then.
 */
static bool turn(struct rig *r)
{
    int n = 0, n_steps = r->n_steps;
    while (n < MAX_FRUITLESS && engine_turn(r->engine)) {
        record_step(r);
        n = r->n_steps == n_steps ? n + 1 : 0;
        n_steps = r->n_steps;
    }
    struct engine_event ev;
    while (queue_take(engine_outbox(r->engine), &ev))
        take_event(r, &ev);
    return n < MAX_FRUITLESS;
}

static void post(struct rig *r, const struct engine_message *m)
{
    queue_post(engine_inbox(r->engine), m);
}

/* Sends what is due. */
static void send_pending(struct rig *r)
{
    int n = 0;
    while (n < r->n_pending && r->pending[n].at_ns <= clock_now(&r->clock))
        post(r, &r->pending[n++].message);
    r->n_pending -= n;
    if (n && r->n_pending)
        memmove(r->pending, r->pending + n, (size_t)r->n_pending * sizeof *r->pending);
}

/* False: scheduling points followed one another without end and ran nothing. */
static bool run_until(struct rig *r, int64_t until)
{
    int n = 0, n_steps = r->n_steps;
    for (;;) {
        send_pending(r);
        bool live = turn(r);
        n = r->n_steps == n_steps ? n + 1 : 0;
        n_steps = r->n_steps;
        if (!live || n == MAX_FRUITLESS)
            return false;
        int64_t next = engine_next_ns(r->engine), now = clock_now(&r->clock);
        if (r->n_pending && r->pending[0].at_ns < next)
            next = r->pending[0].at_ns;
        if (next > until || next == INT64_MAX)
            break;
        clock_advance_to(&r->clock, next > now ? next : now);
    }
    if (until != INT64_MAX && until > clock_now(&r->clock))
        clock_advance_to(&r->clock, until);
    return true;
}

static int fruitless(lua_State *L, const struct rig *r)
{
    return luaL_error(L,
                      "%d scheduling points in a row ran nothing at %f s: the policy asks for something again and "
                      "again (use run_until, or let it end)",
                      MAX_FRUITLESS, (double)(clock_now(&r->clock) - START_NS) * 1e-9);
}

/* Posts a message that is answered, and waits for the answer: code in reply_code, text in reply. */
static void ask(lua_State *L, struct rig *r, enum engine_in kind, void *payload, size_t n)
{
    r->reply_code = 0;
    buf_clear(&r->reply);
    post(r, &(struct engine_message){.kind = kind, .payload = payload, .n = n});
    if (!turn(r))
        fruitless(L, r);
}

static int answer(lua_State *L, struct rig *r)
{
    if (r->reply_code) {
        lua_pushnil(L);
        lua_pushlstring(L, r->reply.data ? r->reply.data : "", r->reply.len);
        return 2;
    }
    lua_pushboolean(L, 1);
    return 1;
}

/* ---- methods */

static void put_pending(struct rig *r, int64_t at_ns, const struct engine_message *m)
{
    int i = r->n_pending++;
    r->pending = mem_resize(r->pending, (size_t)r->n_pending, sizeof *r->pending);
    for (; i > 0 && r->pending[i - 1].at_ns > at_ns; i--)
        r->pending[i] = r->pending[i - 1];
    r->pending[i] = (struct pending){at_ns, *m};
}

/* prompt: a number of tokens (a text of its own), or a list of token ids. How many there are; it has to be looked at
 * before anything is made that a raise would leave behind. */
static int check_prompt(lua_State *L, const struct rig *r)
{
    lua_getfield(L, 2, "prompt");
    bool is_list = lua_type(L, -1) == LUA_TTABLE;
    size_t n = is_list ? lua_objlen(L, -1) : 0;
    if (is_list && (n < 1 || n > MAX_PROMPT))
        luaL_error(L, "prompt must have 1 to %d tokens", MAX_PROMPT);
    for (int i = 1; i <= (int)n; i++) {
        lua_rawgeti(L, -1, i);
        double id = lua_type(L, -1) == LUA_TNUMBER ? lua_tonumber(L, -1) : -1;
        if (!(id >= 0 && id < model_config(r->model)->vocab) || id != floor(id))
            luaL_error(L, "prompt: entry %d is no token id: a whole number from 0 to %d", i,
                       model_config(r->model)->vocab - 1);
        lua_pop(L, 1);
    }
    lua_pop(L, 1);
    return is_list ? (int)n : (int)read_whole(L, 2, "prompt", 16, 1, MAX_PROMPT);
}

static void read_prompt(lua_State *L, struct request_spec *s, uint64_t tag, int n)
{
    lua_getfield(L, 2, "prompt");
    bool is_list = lua_type(L, -1) == LUA_TTABLE;
    s->n_prompt = n;
    s->prompt = mem_new_array((size_t)n, sizeof *s->prompt);
    for (int i = 0; i < n; i++) {
        if (is_list)
            lua_rawgeti(L, -1, i + 1);
        s->prompt[i] = is_list ? (int32_t)lua_tonumber(L, -1) : (int32_t)((tag * 7919 + (uint64_t)i * 31) % 1000);
        if (is_list)
            lua_pop(L, 1);
    }
    lua_pop(L, 1);
}

static void read_request(lua_State *L, struct request_spec *s, const struct rig *r)
{
    char at[32];
    read_text(L, 2, "name", s->name, sizeof s->name);
    read_text(L, 2, "tenant", s->tenant, sizeof s->tenant);
    snprintf(at, sizeof at, "r%d", r->n_results + 1);
    if (!*s->name)
        snprintf(s->name, sizeof s->name, "%s", at);
    s->priority = (int)read_whole(L, 2, "priority", 0, INT_MIN, INT_MAX);
    s->max_tokens = (int)read_whole(L, 2, "max_tokens", 16, 1, MAX_PROMPT);
    s->open_ended = read_flag(L, 2, "open_ended", false);
    s->offline = read_flag(L, 2, "offline", false);
    s->slo_ttft_ms = read_number(L, 2, "slo_ttft_ms", 0, 0, 1e9);
    s->slo_tpot_ms = read_number(L, 2, "slo_tpot_ms", 0, 0, 1e9);
    s->leader = (uint64_t)read_whole(L, 2, "leader", 0, 0, r->n_results);
    s->sampling = (struct sampling){.top_p = 1, .repetition_penalty = 1, .n_logprobs = -1, .n_prompt_logprobs = -1};
}

/* A place for the outcome of one more request; NULL: there are too many. */
static struct result *add_result(struct rig *r, const char *name, int n_prompt)
{
    if (r->n_results == MAX_RESULTS || r->n_prompt_tokens + n_prompt > MAX_PROMPT_TOKENS)
        return NULL;
    r->n_prompt_tokens += n_prompt;
    r->results = grown(r->results, r->n_results, &r->cap_results, sizeof *r->results);
    struct result *x = &r->results[r->n_results++];
    *x = (struct result){.retry_after_s = -1};
    snprintf(x->name, NAME_BYTES, "%s", name);
    return x;
}

static int m_submit(lua_State *L)
{
    struct rig *r = check_rig(L);
    luaL_checktype(L, 2, LUA_TTABLE);
    read_names(L, 2, " prompt max_tokens open_ended offline tenant priority at name slo_ttft_ms slo_tpot_ms leader ");
    struct request_spec fields = {0};
    double now = (double)(clock_now(&r->clock) - START_NS) * 1e-9, at = read_number(L, 2, "at", now, 0, MAX_SECONDS);
    int n_prompt = check_prompt(L, r);
    read_request(L, &fields, r);
    if (at < now)
        return luaL_error(L, "at = %f is in the past: it is %f now", at, now);
    if (!add_result(r, fields.name, n_prompt))
        return luaL_error(L, "too many requests for one engine: at most %d, of %d prompt tokens together", MAX_RESULTS,
                          MAX_PROMPT_TOKENS);
    struct request_spec *s = request_spec_new(); /* nothing raises from here on */
    *s = fields;
    s->tag = (uint64_t)r->n_results;
    read_prompt(L, s, s->tag, n_prompt);
    s->arrival_ns = START_NS + (int64_t)llround(at * 1e9);
    put_pending(r, s->arrival_ns, &(struct engine_message){.kind = IN_SUBMIT, .payload = s});
    lua_pushnumber(L, r->n_results);
    return 1;
}

static int m_cancel(lua_State *L)
{
    struct rig *r = check_rig(L);
    uint64_t tag = (uint64_t)read_whole_argument(L, 2, "a request's number", 1, r->n_results);
    send_pending(r);
    for (int i = 0; i < r->n_pending; i++)
        if (r->pending[i].message.kind == IN_SUBMIT &&
            ((struct request_spec *)r->pending[i].message.payload)->tag == tag)
            return luaL_error(L, "request %s has not arrived yet: run_until(%f) first", r->results[tag - 1].name,
                              (double)(r->pending[i].at_ns - START_NS) * 1e-9);
    post(r, &(struct engine_message){.kind = IN_CANCEL, .tag = tag, .code = END_ABORT});
    return turn(r) ? 0 : fruitless(L, r);
}

/* The rows of a trace, from now on. Nothing of it raises. */
static int load_rows(struct rig *r, struct arrivals *a, uint64_t seed, struct err *e)
{
    int64_t base = clock_now(&r->clock);
    struct trace_row row;
    bool end = false;
    for (;;) {
        int rc = arrivals_next(a, &row, &end, e);
        if (rc || end)
            return rc;
        char name[NAME_BYTES];
        snprintf(name, sizeof name, "row-%llu", (unsigned long long)row.index);
        if (!add_result(r, name, row.n_prompt))
            return err_set(e, E_FULL,
                           "too many requests for one engine: at most %d, of %d prompt tokens together (requests = N "
                           "takes the first N)",
                           MAX_RESULTS, MAX_PROMPT_TOKENS);
        struct request_spec *s = request_spec_new();
        s->tag = (uint64_t)r->n_results;
        snprintf(s->name, sizeof s->name, "%s", name);
        snprintf(s->tenant, sizeof s->tenant, "%s", row.tenant);
        snprintf(s->salt, sizeof s->salt, "%s", row.tenant);
        s->priority = row.priority;
        s->n_prompt = row.n_prompt;
        s->max_tokens = row.n_output;
        s->open_ended = row.open_ended;
        s->prompt = mem_new_array((size_t)row.n_prompt, sizeof *s->prompt);
        trace_prompt(&row, seed, model_config(r->model)->vocab, s->prompt);
        s->sampling = (struct sampling){.top_p = 1, .repetition_penalty = 1, .n_logprobs = -1, .n_prompt_logprobs = -1};
        s->slo_ttft_ms = row.slo_ttft_ms;
        s->slo_tpot_ms = row.slo_tpot_ms;
        s->arrival_ns = base + row.arrival_ns;
        uint64_t tag = s->tag;
        put_pending(r, s->arrival_ns, &(struct engine_message){.kind = IN_SUBMIT, .payload = s});
        if (row.cancel_ns)
            put_pending(r, base + row.cancel_ns,
                        &(struct engine_message){.kind = IN_CANCEL, .tag = tag, .code = END_ABORT});
    }
}

/* e:load { trace = FILE (a recording too) or GENERATOR, hashes = FILE, seed =, requests =, seconds = }: the first of
 * its requests and how many there are. */
static int m_load(lua_State *L)
{
    struct rig *r = check_rig(L);
    char spec[512], hashes[512];
    luaL_checktype(L, 2, LUA_TTABLE);
    read_names(L, 2, " trace hashes seed requests seconds ");
    read_text(L, 2, "trace", spec, sizeof spec);
    read_text(L, 2, "hashes", hashes, sizeof hashes);
    struct arrivals_setup s = {.spec = spec,
                               .hashes = *hashes ? hashes : NULL,
                               .seed = (uint64_t)read_whole(L, 2, "seed", 0, 0, INT64_C(1) << 53),
                               .max_requests = (uint64_t)read_whole(L, 2, "requests", 0, 0, INT64_C(1) << 53),
                               .max_seconds = read_number(L, 2, "seconds", 0, 0, MAX_SECONDS)};
    struct arrivals *a = NULL;
    struct err e = {0};
    int first = r->n_results + 1, rc = arrivals_open(&a, &s, &e);
    if (!rc)
        rc = load_rows(r, a, s.seed, &e);
    arrivals_close(a);
    if (rc)
        return luaL_error(L, "%s", e.text);
    lua_pushnumber(L, first);
    lua_pushnumber(L, r->n_results - first + 1);
    return 2;
}

static int m_run_until(lua_State *L)
{
    struct rig *r = check_rig(L);
    double until = read_number_argument(L, 2, "the time", -MAX_SECONDS, MAX_SECONDS);
    return run_until(r, START_NS + (int64_t)llround(until * 1e9)) ? 0 : fruitless(L, r);
}

static int m_run(lua_State *L)
{
    struct rig *r = check_rig(L);
    return run_until(r, INT64_MAX) ? 0 : fruitless(L, r);
}

static int m_now(lua_State *L)
{
    lua_pushnumber(L, (double)(clock_now(&check_rig(L)->clock) - START_NS) * 1e-9);
    return 1;
}

static void push_item(lua_State *L, const struct rig *r, const struct scheduled *s)
{
    lua_createtable(L, 0, 4);
    lua_pushnumber(L, (double)s->tag);
    lua_setfield(L, -2, "id");
    lua_pushstring(L, r->results[s->tag - 1].name);
    lua_setfield(L, -2, "name");
    lua_pushnumber(L, s->n_tokens);
    lua_setfield(L, -2, "tokens");
    lua_pushnumber(L, s->n_drafts);
    lua_setfield(L, -2, "drafts");
    lua_pushboolean(L, s->starts);
    lua_setfield(L, -2, "starts");
}

static void set_number(lua_State *L, const char *field, double v)
{
    lua_pushnumber(L, v);
    lua_setfield(L, -2, field);
}

static void set_text(lua_State *L, const char *field, const char *v)
{
    lua_pushstring(L, v);
    lua_setfield(L, -2, field);
}

static int m_schedule(lua_State *L)
{
    struct rig *r = check_rig(L);
    lua_createtable(L, r->n_steps, 0);
    for (int i = 0; i < r->n_steps; i++) {
        const struct step_record *s = &r->steps[i];
        lua_createtable(L, 0, 8);
        set_number(L, "at", (double)(s->at_ns - START_NS) * 1e-9);
        set_number(L, "tokens", s->n_tokens);
        set_number(L, "group", s->group);
        set_text(L, "ffn", ffn_way_name(s->ffn));
        set_number(L, "sp", s->layout.sp);
        set_number(L, "tp", s->layout.tp);
        set_number(L, "pp", s->layout.pp);
        groups_push_ranks(L, s->ranks);
        lua_setfield(L, -2, "ranks");
        lua_createtable(L, s->n_items, 0);
        for (int k = 0; k < s->n_items; k++) {
            push_item(L, r, &r->items[s->first + k]);
            lua_rawseti(L, -2, k + 1);
        }
        lua_setfield(L, -2, "items");
        lua_rawseti(L, -2, i + 1);
    }
    return 1;
}

static int m_result(lua_State *L)
{
    static const char *const endings[] = {"none", "stop", "length", "abort", "error", "refused"};
    struct rig *r = check_rig(L);
    const struct result *x = &r->results[read_whole_argument(L, 2, "a request's number", 1, r->n_results) - 1];
    lua_newtable(L);
    set_text(L, "name", x->name);
    set_text(L, "ending", endings[x->ending]);
    set_text(L, "why", x->why);
    set_number(L, "status", x->status);
    set_number(L, "retry_after", x->retry_after_s);
    set_number(L, "prompt", x->n_prompt);
    set_number(L, "cached", x->n_cached);
    if (x->first_ns)
        set_number(L, "first_token_at", (double)(x->first_ns - START_NS) * 1e-9);
    if (x->end_ns)
        set_number(L, "ended_at", (double)(x->end_ns - START_NS) * 1e-9);
    lua_createtable(L, x->n_tokens, 0);
    for (int i = 0; i < x->n_tokens; i++) {
        lua_pushnumber(L, x->tokens[i]);
        lua_rawseti(L, -2, i + 1);
    }
    lua_setfield(L, -2, "tokens");
    return 1;
}

static int m_groups(lua_State *L)
{
    const struct world *w = engine_world(check_rig(L)->engine);
    const struct partition *p = &w->partition;
    lua_newtable(L);
    for (int i = 0; i < p->n_groups; i++) {
        const struct group *g = partition_group(p, i);
        lua_createtable(L, 0, 6);
        set_number(L, "id", g->id);
        set_number(L, "running", g->n_running);
        set_text(L, "ffn", ffn_way_name(ffn_way(w, g)));
        set_number(L, "sp", g->layout.sp);
        set_number(L, "tp", g->layout.tp);
        set_number(L, "pp", g->base.pp);
        groups_push_ranks(L, g->mask);
        lua_setfield(L, -2, "ranks");
        lua_rawseti(L, -2, i + 1);
    }
    return 1;
}

static void push_switch(lua_State *L, const struct switch_event *e)
{
    lua_createtable(L, 0, 16);
    set_number(L, "at", (double)(e->done_ns - START_NS) * 1e-9);
    set_number(L, "waited", (double)(e->done_ns - e->asked_ns) * 1e-9);
    set_number(L, "kept", e->n_kept);
    set_number(L, "moved", e->n_moved);
    set_number(L, "parked", e->n_parked);
    set_number(L, "recomputed", e->n_recomputed);
    set_text(L, "when", switch_when_name(e->order.when));
    set_text(L, "kv", kv_fate_name(e->order.fate));
    set_text(L, "reason", e->order.reason);
    groups_push_ranks(L, e->order.mask);
    lua_setfield(L, -2, "ranks");
    lua_pushboolean(L, e->order.release);
    lua_setfield(L, -2, "release");
    lua_pushboolean(L, e->superseded);
    lua_setfield(L, -2, "superseded");
    lua_pushboolean(L, e->failure);
    lua_setfield(L, -2, "failure");
}

/* The last switches (SWITCH_EVENTS of them are remembered), in the order in which they were asked for. */
static int m_switches(lua_State *L)
{
    const struct partition *p = &engine_world(check_rig(L)->engine)->partition;
    uint64_t first = p->next_serial > SWITCH_EVENTS ? p->next_serial - SWITCH_EVENTS : 1;
    int n = 0;
    lua_newtable(L);
    for (uint64_t s = first; s < p->next_serial; s++) {
        const struct switch_event *e = partition_event(p, s);
        if (!e)
            continue;
        push_switch(L, e);
        lua_rawseti(L, -2, ++n);
    }
    return 1;
}

static int m_metrics(lua_State *L)
{
    struct rig *r = check_rig(L);
    ask(L, r, IN_METRICS, NULL, 0);
    lua_pushlstring(L, r->reply.data ? r->reply.data : "", r->reply.len);
    return 1;
}

/* The engine's state (GET /admin/state) as a table. */
static int m_state(lua_State *L)
{
    struct rig *r = check_rig(L);
    struct err e = {0};
    ask(L, r, IN_STATE, NULL, 0);
    struct json *j = json_parse(r->reply.data, r->reply.len, NULL, &e);
    if (!j)
        return luaL_error(L, "%s", e.text);
    value_push(L, j);
    json_free(j);
    return 1;
}

/* e:swap { policy = FILE | source = TEXT, params = {...} }: true, or nil and why. */
static int m_swap(lua_State *L)
{
    struct rig *r = check_rig(L);
    struct err e = {0};
    struct policy p;
    luaL_checktype(L, 2, LUA_TTABLE);
    read_names(L, 2, " policy source name folder params ");
    if (load_policy(L, r, 2, &p, &e)) {
        lua_pushnil(L);
        lua_pushstring(L, e.text);
        return 2;
    }
    struct policy *moved = mem_new(sizeof *moved);
    *moved = p;
    ask(L, r, IN_POLICY, moved, 0);
    return answer(L, r);
}

static int m_rollback(lua_State *L)
{
    struct rig *r = check_rig(L);
    ask(L, r, IN_ROLLBACK, NULL, 0);
    return answer(L, r);
}

/* e:set { param = value, ... }: true, or nil and why. */
static int m_set(lua_State *L)
{
    struct rig *r = check_rig(L);
    luaL_checktype(L, 2, LUA_TTABLE);
    buf_clear(&r->text);
    value_write(L, 2, &r->text);
    ask(L, r, IN_PARAMS, mem_strndup(r->text.data, r->text.len), r->text.len);
    return answer(L, r);
}

/* ---- functions */

/* The models of specs, as config.json has them: what a step of them costs is said apart. */
static const char model_of_one[] =
    "{\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\",\"hidden_size\":64,\"intermediate_size\":128,"
    "\"num_hidden_layers\":2,\"num_attention_heads\":4,\"num_key_value_heads\":2,\"vocab_size\":1024,\"max_position_"
    "embeddings\":8192,"
    "\"rms_norm_eps\":1e-5,\"rope_theta\":10000.0,\"tie_word_embeddings\":true,\"hidden_act\":\"silu\"}";
static const char model_of_ranks[] =
    "{\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\",\"hidden_size\":1024,\"intermediate_size\":"
    "1024,"
    "\"num_hidden_layers\":2,\"num_attention_heads\":16,\"num_key_value_heads\":8,\"vocab_size\":1024,\"max_position_"
    "embeddings\":131072,"
    "\"rms_norm_eps\":1e-5,\"rope_theta\":10000.0,\"tie_word_embeddings\":true,\"hidden_act\":\"silu\"}";

/* hardware = NAME, and model = NAME: a machine that is described, and a model of the catalog. */
static int open_machine(struct rig *r, const char *hardware, const char *model, struct err *e)
{
    char paths[2][PATH_MAX];
    TRY(places_description(hardware, "models/hardware", paths[0], e));
    TRY(places_description(model, "models/catalog", paths[1], e));
    TRY(sim_machine_open(&r->machine, paths[0], paths[1], e));
    return model_open_dummy(&r->model, sim_machine_config(r->machine), DT_BF16, 1, e);
}

static int open_model(lua_State *L, struct rig *r, struct err *e)
{
    char path[512], hardware[512];
    read_text(L, 1, "model", path, sizeof path);
    read_text(L, 1, "hardware", hardware, sizeof hardware);
    if (*hardware)
        return open_machine(r, hardware, path, e);
    if (!*path)
        return model_open_described(&r->model, r->n_ranks > 1 ? model_of_ranks : model_of_one, DT_BF16, e);
    read_find_file(L, path, sizeof path);
    return model_open_dummy(&r->model, path, DT_BF16, 1, e);
}

/* pooled = true, pool_slots =, link_gbps =: layer l lies on rank l mod ranks. */
static void read_pool(lua_State *L, struct rig *r, struct engine_setup *s)
{
    if (!read_flag(L, 1, "pooled", false))
        return;
    int n_layers = model_config(r->model)->n_layers;
    if (r->n_ranks < 2 || n_layers > FFN_MAX_LAYERS)
        luaL_error(L, "pooled weights are for 2 ranks and more, and at most %d layers", FFN_MAX_LAYERS);
    r->pool = (struct ffn_setup){.n_ranks = r->n_ranks,
                                 .n_layers = n_layers,
                                 .n_slots = (int)read_whole(L, 1, "pool_slots", r->n_ranks, 2, FFN_MAX_LAYERS),
                                 .tile_bytes = 1 << 20,
                                 .link_gbps = read_number(L, 1, "link_gbps", 0, 0, 1e6)};
    ffn_parse_owners(&r->pool, "layer-mod", NULL);
    s->ffn = s->device.pool = &r->pool;
}

/* sharded = true, shard_share =: ranks hold their share of the weights of a layout of all ranks with `start_tp` and
 * `start_pp`; shard_share is the room for such shares as a part of all layers. */
static void read_cuts(lua_State *L, struct engine_setup *s)
{
    int tp = (int)read_whole(L, 1, "start_tp", 1, 1, s->n_ranks),
        pp = (int)read_whole(L, 1, "start_pp", 1, 1, s->n_ranks);
    s->sharded = read_flag(L, 1, "sharded", false);
    s->shard_memory = (size_t)read_whole(L, 1, "shard_memory", 0, 0, INT64_C(1) << 50);
    if (!s->sharded)
        return;
    if (s->n_ranks % (tp * pp))
        luaL_error(L, "start_tp * start_pp does not divide the ranks");
    s->start = (struct layout){s->n_ranks / tp / pp, tp, pp};
}

static struct engine_setup read_setup(lua_State *L, struct rig *r)
{
    struct engine_setup s = {.ops = backend_sim(),
                             .model = r->model,
                             .kv_dtype = DT_F16,
                             .block_size = 16,
                             .n_ranks = r->n_ranks,
                             .fail_rank = (int)read_whole(L, 1, "fail_rank", 0, 0, r->n_ranks - 1),
                             .fail_at_step = (uint64_t)read_whole(L, 1, "fail_at_step", 0, 0, INT64_C(1) << 53),
                             .clock = &r->clock,
                             .quiet = true};
    int blocks = (int)read_whole(L, 1, "kv_blocks", 1024, 1, MAX_BLOCKS / r->n_ranks),
        size = (int)read_whole(L, 1, "group_size", 0, 0, r->n_ranks);
    const struct model_config *c = model_config(r->model);
    s.device.sim_step_ns = (int64_t)(read_number(L, 1, "step_us", 1000, 0, 1e9) * 1e3);
    s.device.sim_row_ns = (int64_t)(read_number(L, 1, "row_us", 10, 0, 1e6) * 1e3);
    s.limits =
        (struct limits){.max_num_seqs = (int)read_whole(L, 1, "max_num_seqs", 256, 1, 4096),
                        .max_num_batched_tokens = (int)read_whole(L, 1, "max_num_batched_tokens", 2048, 1, 1 << 20),
                        .max_num_queued_reqs = (int)read_whole(L, 1, "max_num_queued_reqs", 0, 0, 65536),
                        .max_num_queued_tokens = read_whole(L, 1, "max_num_queued_tokens", 0, 0, INT64_C(1) << 40),
                        .park_ns = (int64_t)(read_number(L, 1, "park_s", 10, 0, 86400) * 1e9),
                        .starvation_ns = (int64_t)(read_number(L, 1, "starvation_s", 0, 0, 86400) * 1e9),
                        .prefix_caching = read_flag(L, 1, "prefix_caching", false)};
    s.start = (struct layout){size ? size : 0, size ? 1 : 0,
                              1}; /* as many groups of so many ranks as there is room for; 0: one */
    s.kv_bytes = (size_t)blocks * (size_t)c->n_layers * s.ops->kv_block_bytes(DT_F16, 16, c->n_kv_heads, c->head_dim);
    snprintf(s.model_name, sizeof s.model_name, "sim");
    s.device.sim_machine = r->machine;
    s.host_kv_bytes = (size_t)read_whole(L, 1, "host_kv_blocks", 0, 0, MAX_BLOCKS) * (s.kv_bytes / (size_t)blocks);
    modelled_drafts_open(&r->drafts, &(struct modelled_drafts_setup){
                                         .chance = read_number(L, 1, "draft_acceptance", 0, 0, 1), .vocab = c->vocab});
    s.drafts = modelled_drafts_sources(&r->drafts);
    read_cuts(L, &s);
    read_pool(L, r, &s);
    return s;
}

/* How many engines of this Lua state are open, after this change. */
static int count_open(lua_State *L, int change)
{
    lua_getfield(L, LUA_REGISTRYINDEX, "moonshift.open");
    int n = (int)lua_tonumber(L, -1) + change;
    lua_pushnumber(L, n);
    lua_setfield(L, LUA_REGISTRYINDEX, "moonshift.open");
    lua_pop(L, 1);
    return n;
}

static int m_close(lua_State *L)
{
    struct rig *r = luaL_checkudata(L, 1, "moonshift.engine");
    for (int i = 0; i < r->n_pending; i++)
        request_spec_free(r->pending[i].message.payload);
    r->n_pending = 0; /* they never arrive */
    if (r->engine) {
        post(r, &(struct engine_message){.kind = IN_STOP});
        run_until(r, INT64_MAX);
    }
    engine_destroy(r->engine);
    modelled_drafts_close(&r->drafts);
    model_close(r->model);
    sim_machine_close(r->machine);
    lua_watchdog_stop(r->dog);
    for (int i = 0; i < r->n_results; i++)
        mem_free(r->results[i].tokens);
    mem_free(r->results);
    mem_free(r->items);
    mem_free(r->steps);
    mem_free(r->pending);
    buf_free(&r->text);
    buf_free(&r->reply);
    if (r->open)
        count_open(L, -1);
    memset(r, 0, sizeof *r);
    return 0;
}

/* An engine that is nothing yet; whatever becomes of it, m_close puts away. On top of the stack. */
static struct rig *new_rig(lua_State *L)
{
    if (count_open(L, 0) >= MAX_OPEN)
        lua_gc(L, LUA_GCCOLLECT, 0); /* those that cannot be reached any more */
    if (count_open(L, 0) >= MAX_OPEN)
        luaL_error(L, "%d engines are open: close those that are done (e:close())", MAX_OPEN);
    struct rig *r = lua_newuserdata(L, sizeof *r);
    memset(r, 0, sizeof *r);
    luaL_getmetatable(L, "moonshift.engine");
    lua_setmetatable(L, -2);
    count_open(L, 1);
    r->open = true;
    clock_init_virtual(&r->clock, START_NS);
    return r;
}

static int l_engine(lua_State *L)
{
    luaL_checktype(L, 1, LUA_TTABLE);
    lua_settop(L, 1);
    read_names(
        L, 1,
        " policy source name folder params max_num_seqs max_num_batched_tokens max_num_queued_reqs "
        "max_num_queued_tokens kv_blocks host_kv_blocks step_us "
        "row_us starvation_s prefix_caching model ranks group_size fail_rank fail_at_step park_s hardware pooled "
        "pool_slots link_gbps sharded shard_memory start_tp start_pp draft_acceptance ");
    struct rig *r = new_rig(L);
    struct err e = {0};
    r->n_ranks = (int)read_whole(L, 1, "ranks", 1, 1, MAX_RANKS);
    if (lua_watchdog_start(&r->dog, &e) || open_model(L, r, &e))
        return luaL_error(L, "%s", e.text);
    struct engine_setup s = read_setup(L, r);
    lua_getfield(L, 1, "params");
    lua_getfield(L, 1, "policy");
    lua_getfield(L, 1, "source");
    bool native = lua_isnil(L, -1) && lua_isnil(L, -2);
    if (native && !lua_isnil(L, -3))
        return luaL_error(L, "params are a policy's: name it, policy = FILE");
    lua_settop(L, 2);
    if (native)
        policy_fcfs(&s.policy);
    else if (load_policy(L, r, 1, &s.policy, &e))
        return luaL_error(L, "%s", e.text);
    if (engine_create(&r->engine, &s, &e))
        return luaL_error(L, "%s", e.text);
    lua_settop(L, 2);
    return 1;
}

/* moonshift.check(source [, name [, folder]]): the report of `moonshift policy check`, or nil and what is wrong. */
static int l_check(lua_State *L)
{
    size_t n;
    const char *source = luaL_checklstring(L, 1, &n), *name = luaL_optstring(L, 2, "spec"),
               *folder = luaL_optstring(L, 3, NULL);
    struct lua_watchdog *dog;
    struct buf report = {0};
    struct err e = {0};
    int rc = lua_watchdog_start(&dog, &e);
    if (!rc) {
        struct lua_opts o = {.watchdog = dog, .quiet = true, .folder = folder};
        rc = lua_policy_check(name, source, n, &o, NULL, &report, &e);
        lua_watchdog_stop(dog);
    }
    if (rc) {
        lua_pushnil(L);
        lua_pushstring(L, e.text);
    } else
        lua_pushlstring(L, report.data, report.len);
    buf_free(&report);
    return rc ? 2 : 1;
}

int luaopen_moonshift(lua_State *L);
int luaopen_moonshift(lua_State *L)
{
    static const luaL_Reg methods[] = {
        {"submit", m_submit}, {"load", m_load},         {"cancel", m_cancel},     {"run_until", m_run_until},
        {"run", m_run},       {"now", m_now},           {"schedule", m_schedule}, {"result", m_result},
        {"groups", m_groups}, {"switches", m_switches}, {"metrics", m_metrics},   {"state", m_state},
        {"swap", m_swap},     {"rollback", m_rollback}, {"set", m_set},           {"close", m_close},
        {NULL, NULL}};
    static const luaL_Reg functions[] = {{"engine", l_engine}, {"check", l_check}, {NULL, NULL}};
    luaL_newmetatable(L, "moonshift.engine");
    lua_pushcfunction(L, m_close);
    lua_setfield(L, -2, "__gc");
    lua_pushboolean(L, 0); /* a spec that asks for the metatable gets false, and so cannot put it on anything else */
    lua_setfield(L, -2, "__metatable");
    lua_newtable(L);
    luaL_register(L, NULL, methods);
    lua_setfield(L, -2, "__index");
    lua_pop(L, 1);
    lua_newtable(L);
    luaL_register(L, NULL, functions);
    return 1;
}
