#include "lua/bind.h"

#include <lauxlib.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "lua/script.h"
#include "lua/strict.h"
#include "lua/verbs.h"

/* Fields of the request table, after the scalars in the list of keys. */
enum field {
    F_ID,
    F_NAME,
    F_TENANT,
    F_PRIORITY,
    F_PROMPT,
    F_MAX_TOKENS,
    F_OPEN_ENDED,
    F_OFFLINE,
    F_ARRIVAL,
    F_SLO_TTFT,
    F_SLO_TPOT,
    F_COMPUTED,
    F_OUTPUT,
    F_PREEMPTED,
    F_KEY,
    F_AGAIN,
    F_ENDING,
    F_CACHED,
    F_TTFT,
    F_FIELD_COUNT
};
static const char *const field_names[F_FIELD_COUNT] = {
    "id",      "name",    "tenant",      "priority",    "prompt",   "max_tokens", "open_ended",
    "offline", "arrival", "slo_ttft_ms", "slo_tpot_ms", "computed", "output",     "preempted",
    "key",     "again",   "ending",      "cached",      "ttft_ms",
};

struct bind *bind_of(lua_State *L)
{
    return &script_of(L)->bind;
}

void bind_push(const struct bind *b, lua_State *L, int ref)
{
    (void)b;
    lua_rawgeti(L, LUA_REGISTRYINDEX, ref);
}

const char *ending_name(enum ending how)
{
    static const char *const names[] = {"none", "stop", "length", "abort", "error", "refused"};
    return how >= END_NONE && how <= END_REFUSED ? names[how] : "unknown";
}

static int keep(lua_State *L)
{
    return luaL_ref(L, LUA_REGISTRYINDEX);
}

/* ---- making */

/* Interned once: pushing a kept string is a fifth of the cost of looking one up. */
static void make_keys(struct bind *b, lua_State *L)
{
    lua_createtable(L, SCALAR_COUNT + F_FIELD_COUNT, 0);
    for (int i = 0; i < SCALAR_COUNT; i++) {
        lua_pushstring(L, scalar_names[i]);
        lua_rawseti(L, -2, i + 1);
    }
    for (int i = 0; i < F_FIELD_COUNT; i++) {
        lua_pushstring(L, field_names[i]);
        lua_rawseti(L, -2, SCALAR_COUNT + i + 1);
    }
    b->keys_ref = keep(L);
}

static void make_view(struct bind *b, lua_State *L, int needs)
{
    lua_createtable(L, 0, SCALAR_COUNT + 8);
    int view = lua_gettop(L);
    columns_create(&b->waiting, L, columns_needed(L, needs, "waiting"));
    strict_guard_queue(L, "waiting");
    lua_setfield(L, view, "waiting");
    columns_create(&b->running, L, columns_needed(L, needs, "running"));
    strict_guard_queue(L, "running");
    lua_setfield(L, view, "running");
    groups_create(&b->groups, L);
    orders_create(&b->orders, L);
    verbs_add_queries(L);
    for (int i = 0; i < SCALAR_COUNT; i++) {
        b->scalars[i] = 0;
        lua_pushnumber(L, 0);
        lua_setfield(L, view, scalar_names[i]);
    }
    strict_guard(L, "view");
    b->view_ref = keep(L);
}

/* A field that the request table lacks: its name, for which few policies ask and which each time is a new text, or one
 * that there is not. */
static int read_missing(lua_State *L)
{
    struct bind *b = bind_of(L);
    lua_settop(L, 2);
    if (b->subject && !b->named) {
        b->named = true;
        vm_host_enter(vm_of(L));
        lua_pushstring(L, field_names[F_NAME]);
        lua_pushstring(L, b->subject->spec->name);
        lua_rawset(L, 1);
        vm_host_leave(vm_of(L));
        lua_gettable(L, 1); /* what is not there now either comes here again */
        return 1;
    }
    lua_pushvalue(L, lua_upvalueindex(1)); /* it says what is wrong, and what was meant */
    lua_insert(L, 1);
    lua_call(L, 2, 1);
    return 1;
}

static void make_request(struct bind *b, lua_State *L)
{
    lua_createtable(L, 0, F_FIELD_COUNT);
    strict_push(L, "a request");
    lua_getfield(L, -1, "__index");
    lua_pushcclosure(L, read_missing, 1);
    lua_setfield(L, -2, "__index");
    lua_setmetatable(L, -2);
    b->request_pointer = lua_topointer(L, -1);
    b->request_ref = keep(L);
    lua_pushstring(L, b->tenant);
    b->tenant_ref = keep(L);
}

void bind_create(struct bind *b, lua_State *L, struct script *s, int needs)
{
    memset(b, 0, sizeof *b);
    b->script = s;
    b->hook = HOOK_COUNT;
    rng_init(&b->rng, 2);
    for (int i = 0; i < MAX_RANKS; i++)
        b->handle_refs[i] = LUA_NOREF;
    luaL_checkstack(L, 16, NULL);
    make_keys(b, L);
    make_view(b, L, needs);
    make_request(b, L);
    lua_newtable(L);
    strict_guard(L, "p (the params)");
    b->params_ref = keep(L);
    bind_write_params(b, L);
}

void bind_free(struct bind *b)
{
    columns_free(&b->waiting);
    columns_free(&b->running);
    mem_free(b->admitted);
    mem_free(b->list);
}

void bind_write_params(struct bind *b, lua_State *L)
{
    bind_push(b, L, b->params_ref);
    params_push(&b->script->params, L, lua_gettop(L));
    lua_pop(L, 1);
}

/* ---- the view */

/* Stack: keys at `keys`, the view table on top. A scalar must be what was written. */
static bool check_scalar(const struct bind *b, lua_State *L, int keys, int i)
{
    lua_rawgeti(L, keys, i + 1);
    lua_rawget(L, -2);
    bool good = lua_type(L, -1) == LUA_TNUMBER && lua_tonumber(L, -1) == b->scalars[i];
    lua_pop(L, 1);
    return good;
}

static bool sync_scalars(struct bind *b, lua_State *L, const struct view *v, bool all)
{
    double now[SCALAR_COUNT];
    if (v->kept && !all && scalars_head_tokens(v) == b->scalars[S_HEAD_TOKENS])
        return true;
    scalars_read(v, now);
    bind_push(b, L, b->keys_ref);
    bind_push(b, L, b->view_ref);
    int view = lua_gettop(L), keys = view - 1;
    bool good = all || check_scalar(b, L, keys, (int)rng_below(&b->rng, SCALAR_COUNT));
    for (int i = 0; i < SCALAR_COUNT; i++) {
        if (!all && now[i] == b->scalars[i])
            continue;
        b->scalars[i] = now[i];
        lua_rawgeti(L, keys, i + 1);
        lua_pushnumber(L, now[i]);
        lua_rawset(L, view);
    }
    lua_settop(L, keys - 1);
    return good;
}

/* Puts every table in its place and starts the columns again. */
static void restore(struct bind *b, lua_State *L)
{
    columns_reset(&b->waiting, L);
    columns_reset(&b->running, L);
    groups_reset(&b->groups, L);
    bind_push(b, L, b->view_ref);
    bind_push(b, L, b->waiting.view_ref);
    lua_setfield(L, -2, "waiting");
    bind_push(b, L, b->running.view_ref);
    lua_setfield(L, -2, "running");
    groups_hang(&b->groups, L);
    orders_hang(&b->orders, L);
    lua_pop(L, 1);
}

void bind_forget(struct bind *b, lua_State *L)
{
    vm_host_enter(vm_of(L));
    restore(b, L);
    vm_host_leave(vm_of(L));
    /* Another world has another plan, whose serials start again: a batch kept from before must not pass for
     * one of it. */
    for (int i = 0; i < MAX_RANKS; i++) {
        if (b->handle_refs[i] == LUA_NOREF)
            continue;
        bind_push(b, L, b->handle_refs[i]);
        ((struct batch_handle *)lua_touserdata(L, -1))->batch = NULL;
        lua_pop(L, 1);
    }
    bind_forget_admitted(b);
}

static bool sync_columns(struct bind *b, lua_State *L, const struct view *v)
{
    struct vm *vm = vm_of(L);
    const struct world *w = v->world;
    /* What the engine's own growth takes is not the policy's debt. */
    vm->floor +=
        columns_reserve(&b->waiting, side_waiting(w, v->side)) + columns_reserve(&b->running, side_running(w, v->side));
    bool good = columns_sync(&b->waiting, L, v, &w->waiting);
    if (!columns_sync(&b->running, L, v, &w->running))
        good = false;
    return good;
}

static bool sync_groups(struct bind *b, lua_State *L, const struct view *v)
{
    vm_of(L)->floor += groups_reserve(&b->groups, v->world);
    orders_sync(&b->orders, L, v);
    return groups_sync(&b->groups, L, v);
}

bool bind_untouched(struct bind *b, lua_State *L)
{
    bool good = true;
    luaL_checkstack(L, 8, NULL);
    vm_host_enter(vm_of(L));
    bind_push(b, L, b->keys_ref);
    bind_push(b, L, b->view_ref);
    int keys = lua_gettop(L) - 1;
    for (int i = 0; i < SCALAR_COUNT && good; i++)
        good = check_scalar(b, L, keys, i);
    lua_settop(L, keys - 1);
    good = good && columns_untouched(&b->waiting, L) && columns_untouched(&b->running, L) &&
           groups_untouched(&b->groups, L);
    vm_host_leave(vm_of(L));
    return good;
}

enum { RESYNC_STEPS = 4096 };

bool bind_sync(struct bind *b, lua_State *L, const struct view *v, enum freshness how)
{
    struct vm *vm = vm_of(L);
    vm_host_enter(vm);
    bool good = !b->watched || bind_untouched(b, L);
    good &= sync_scalars(b, L, v, false);
    if (how == FRESH_ALL && v->world->step % RESYNC_STEPS == RESYNC_STEPS - 1)
        restore(b, L);
    if (how >= FRESH_GROUPS)
        good &= sync_groups(b, L, v);
    if (how == FRESH_ALL)
        good &= sync_columns(b, L, v);
    if (!good) {
        restore(b, L);
        sync_scalars(b, L, v, true);
        sync_groups(b, L, v);
        sync_columns(b, L, v);
    }
    vm_host_leave(vm);
    return good;
}

/* ---- a request */

static void put_number(lua_State *L, int keys, enum field f, double v)
{
    lua_rawgeti(L, keys, SCALAR_COUNT + (int)f + 1);
    lua_pushnumber(L, v);
    lua_rawset(L, keys + 1);
}

static void take_away(lua_State *L, int keys, enum field f)
{
    lua_rawgeti(L, keys, SCALAR_COUNT + (int)f + 1);
    lua_pushnil(L);
    lua_rawset(L, keys + 1);
}

/* Most have the same as the one before. */
static void put_tenant(struct bind *b, lua_State *L, int keys, const char *v)
{
    if (strcmp(v, b->tenant) != 0) {
        snprintf(b->tenant, sizeof b->tenant, "%s", v);
        lua_pushstring(L, v);
        lua_rawseti(L, LUA_REGISTRYINDEX, b->tenant_ref);
    }
    lua_rawgeti(L, keys, SCALAR_COUNT + F_TENANT + 1);
    bind_push(b, L, b->tenant_ref);
    lua_rawset(L, keys + 1);
}

/* What only finish knows. A policy can set no field that is not there, so none has to be taken away twice. */
static void put_end(struct bind *b, lua_State *L, int keys, const struct request *r, enum ending how)
{
    if (how == END_NONE) {
        for (int f = F_ENDING; b->told_end && f <= F_TTFT; f++)
            take_away(L, keys, (enum field)f);
    } else {
        lua_rawgeti(L, keys, SCALAR_COUNT + F_ENDING + 1);
        lua_pushstring(L, ending_name(how));
        lua_rawset(L, keys + 1);
        put_number(L, keys, F_CACHED, r->n_prefix_first);
        put_number(L, keys, F_TTFT, r->first_token_ns ? (double)(r->first_token_ns - r->spec->arrival_ns) * 1e-6 : -1);
    }
    b->told_end = how != END_NONE;
}

void bind_forget_admitted(struct bind *b)
{
    if (b->n_admitted)
        memset(b->admitted, 0, (size_t)b->n_admitted * sizeof *b->admitted);
}

static void put_flag(lua_State *L, int keys, enum field f, bool v)
{
    lua_rawgeti(L, keys, SCALAR_COUNT + (int)f + 1);
    lua_pushboolean(L, v);
    lua_rawset(L, keys + 1);
}

void bind_note_admitted(struct bind *b, const struct request *r)
{
    int slot = (int)(uint32_t)r->id;
    if (slot >= b->n_admitted) {
        int n = b->n_admitted ? b->n_admitted : 64;
        while (n <= slot)
            n *= 2;
        b->admitted = mem_resize(b->admitted, (size_t)n, sizeof *b->admitted);
        memset(b->admitted + b->n_admitted, 0, (size_t)(n - b->n_admitted) * sizeof *b->admitted);
        b->n_admitted = n;
    }
    b->admitted[slot] = r->id;
}

static bool admitted_before(const struct bind *b, const struct request *r)
{
    uint32_t slot = (uint32_t)r->id;
    return slot < (uint32_t)b->n_admitted && b->admitted[slot] == r->id;
}

void bind_push_request(struct bind *b, lua_State *L, const struct request *r, enum ending how)
{
    const struct request_spec *s = r->spec;
    vm_host_enter(vm_of(L));
    bind_push(b, L, b->keys_ref);
    bind_push(b, L, b->request_ref);
    int keys = lua_gettop(L) - 1;
    put_number(L, keys, F_ID, lua_req_id(r->id));
    put_tenant(b, L, keys, s->tenant);
    put_number(L, keys, F_PRIORITY, s->priority);
    put_number(L, keys, F_PROMPT, s->n_prompt);
    put_number(L, keys, F_MAX_TOKENS, s->max_tokens);
    put_number(L, keys, F_ARRIVAL, (double)s->arrival_ns * 1e-9);
    put_number(L, keys, F_SLO_TTFT, s->slo_ttft_ms);
    put_number(L, keys, F_SLO_TPOT, s->slo_tpot_ms);
    put_number(L, keys, F_COMPUTED, r->n_computed);
    put_number(L, keys, F_OUTPUT, request_output(r));
    put_number(L, keys, F_PREEMPTED, r->n_preempted);
    put_number(L, keys, F_KEY, r->key);
    put_flag(L, keys, F_AGAIN, admitted_before(b, r));
    put_flag(L, keys, F_OPEN_ENDED, s->open_ended);
    put_flag(L, keys, F_OFFLINE, s->offline);
    put_end(b, L, keys, r, how);
    if (b->named)
        take_away(L, keys, F_NAME);
    b->named = false;
    lua_remove(L, keys);
    vm_host_leave(vm_of(L));
}

/* ---- the node */

static void put_field(lua_State *L, const char *name, double v)
{
    lua_pushnumber(L, v);
    lua_setfield(L, -2, name);
}

/* The layouts that run on this many ranks, the least TP first. */
static void push_layouts(lua_State *L, const struct node_shape *s, int n)
{
    lua_newtable(L);
    for (int tp = 1, i = 0; tp <= n; tp++)
        if (n % tp == 0 && !s->refusals[n][tp]) {
            groups_push_layout(L, (struct layout){n / tp, tp, 1});
            lua_rawseti(L, -2, ++i);
        }
}

/* In how many stages a group of n ranks can keep its KV. */
static void push_stages(lua_State *L, const struct node_shape *s, int n)
{
    lua_newtable(L);
    for (int pp = 1, i = 0; pp <= n && pp <= s->n_layers; pp++)
        if (!shape_stages_refusal(s, n, pp) && shape_runs(s, n / pp)) {
            lua_pushnumber(L, pp);
            lua_rawseti(L, -2, ++i);
        }
}

/* Which groups there may be: `sets`, and by their size `layouts`, `tokens_per_block` and `stages`. */
static void put_shape(lua_State *L, const struct node_shape *s)
{
    bool sizes[MAX_RANKS + 1] = {false};
    lua_createtable(L, s->n_sets, 0);
    for (int i = 0; i < s->n_sets; i++) {
        sizes[__builtin_popcountll(s->sets[i])] = true;
        groups_push_ranks(L, s->sets[i]);
        lua_rawseti(L, -2, i + 1);
    }
    lua_setfield(L, -2, "sets");
    lua_newtable(L);
    lua_newtable(L);
    lua_newtable(L);
    for (int n = 1; n <= s->n_ranks; n++) {
        if (!sizes[n])
            continue;
        push_layouts(L, s, n);
        lua_rawseti(L, -4, n);
        lua_pushnumber(L, s->tokens_per_block[n]);
        lua_rawseti(L, -3, n);
        push_stages(L, s, n);
        lua_rawseti(L, -2, n);
    }
    lua_setfield(L, -4, "stages");
    lua_setfield(L, -3, "tokens_per_block");
    lua_setfield(L, -2, "layouts");
}

/* The rank of a layer, or a list of those that have its shares. */
static void push_owner(lua_State *L, const struct ffn_setup *f, int layer)
{
    int n = ffn_shares(f, layer);
    if (n == 1) {
        lua_pushnumber(L, ffn_owner(f, layer, 0));
        return;
    }
    lua_createtable(L, n, 0);
    for (int i = 0; i < n; i++) {
        lua_pushnumber(L, ffn_owner(f, layer, i));
        lua_rawseti(L, -2, i + 1);
    }
}

/* How FFN weights are pooled; false: they are not. */
static void push_ffn(lua_State *L, const struct node_facts *n)
{
    if (!n->ffn) {
        lua_pushboolean(L, 0);
        return;
    }
    lua_createtable(L, 0, 6);
    put_field(L, "layers", n->ffn->n_layers);
    put_field(L, "slots", n->ffn->n_slots);
    put_field(L, "layer_bytes", (double)n->ffn_layer_bytes);
    put_field(L, "freed_bytes", (double)n->ffn_freed_bytes);
    put_field(L, "replica_blocks", n->ffn_replica_blocks);
    lua_createtable(L, n->ffn->n_layers, 0);
    for (int l = 0; l < n->ffn->n_layers; l++) {
        push_owner(L, n->ffn, l);
        lua_rawseti(L, -2, l + 1);
    }
    lua_setfield(L, -2, "owners");
}

void bind_push_node(lua_State *L, const struct node_facts *n)
{
    const struct {
        const char *name;
        double value;
    } facts[] = {
        {"n_ranks", n->n_ranks},
        {"memory_bytes", (double)n->memory_bytes},
        {"weight_bytes", (double)n->weight_bytes},
        {"kv_bytes", (double)n->kv_bytes},
        {"kv_blocks", n->kv_blocks},
        {"host_kv_blocks", n->host_kv_blocks},
        {"shard_bytes", n->residency ? (double)n->residency->room : 0},
        {"max_num_seqs", n->limits.max_num_seqs},
        {"max_num_batched_tokens", n->limits.max_num_batched_tokens},
        {"max_model_len", n->limits.max_model_len},
    };
    lua_createtable(L, 0, 20);
    for (size_t i = 0; i < sizeof facts / sizeof *facts; i++)
        put_field(L, facts[i].name, facts[i].value);
    lua_pushstring(L, n->model);
    lua_setfield(L, -2, "model");
    lua_pushstring(L, n->device);
    lua_setfield(L, -2, "device");
    lua_pushstring(L, n->ffn ? "pooled" : n->residency ? "sharded" : "replicated");
    lua_setfield(L, -2, "residency");
    push_ffn(L, n);
    lua_setfield(L, -2, "ffn");
    groups_push_ranks(L, rank_range(0, n->n_ranks));
    lua_setfield(L, -2, "ranks");
    lua_createtable(L, 0, 4);
    put_field(L, "q", n->heads.n_q);
    put_field(L, "kv", n->heads.n_kv);
    put_field(L, "head_dim", n->heads.head_dim);
    lua_setfield(L, -2, "heads");
    put_shape(L, n->shape);
    strict_guard(L, "node");
}
