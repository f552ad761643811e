#include <lauxlib.h>
#include <stdio.h>
#include <string.h>

#include "engine/exec/comm.h"
#include "lua/script.h"
#include "lua/verbs.h"

enum { DEFAULT_WAIT_MS = 10000, MAX_WAIT_MS = 3600000 };

/* ---- arguments */

/* The ranks of a list as a mask; 0 with a reason when one is named twice or there are none. */
static uint64_t check_ranks(lua_State *L, int arg, const char **why)
{
    uint64_t mask = 0;
    if (lua_type(L, arg) != LUA_TTABLE)
        luaL_error(L, "a list of ranks is expected, not a %s", luaL_typename(L, arg));
    int n = (int)lua_objlen(L, arg);
    *why = n ? NULL : "the list of ranks is empty";
    for (int i = 1; i <= n && i <= MAX_RANKS + 1; i++) {
        lua_rawgeti(L, arg, i);
        uint64_t bit = 1ull << (int)verb_whole_number(L, lua_gettop(L), "a rank", 0, MAX_RANKS - 1);
        lua_pop(L, 1);
        if (mask & bit)
            *why = "a rank is named twice";
        mask |= bit;
    }
    return *why ? 0 : mask;
}

/* A kv fate by its name. false: one that this build does not have. */
/* NULL, or why it cannot be. */
static const char *check_fate(lua_State *L, int arg, enum kv_fate *out)
{
    static const char *const names[] = {"keep", "migrate", "park", "recompute", "host"};
    *out = (enum kv_fate)verb_choice(L, arg, "kv", names, 5);
    const struct plan *p = verb_orders(L);
    bool none = p && p->world->kv.host_place < 0;
    return *out == FATE_HOST && none ? "there is no host memory for KV: --host-kv-memory gives some" : NULL;
}

/* ---- options of an order */

/* Pushes the field; false (nothing pushed) when it is not there. */
static bool option(lua_State *L, int opts, const char *name)
{
    lua_pushstring(L, name);
    lua_rawget(L, opts);
    if (!lua_isnil(L, -1))
        return true;
    lua_pop(L, 1);
    return false;
}

static const char *read_base(lua_State *L, int opts, int n_ranks, struct layout *out)
{
    bool given;
    if (!option(L, opts, "base"))
        return NULL;
    *out = verb_layout(L, lua_gettop(L), &given);
    lua_pop(L, 1);
    return layout_size(*out) == n_ranks ? NULL : "base: sp * tp is not the number of ranks";
}

static const char *read_named(lua_State *L, int opts, struct switch_order *o)
{
    if (!option(L, opts, "requests"))
        return NULL;
    if (lua_type(L, -1) != LUA_TTABLE)
        luaL_error(L, "requests must be a list of request ids, not a %s", luaL_typename(L, -1));
    int n = (int)lua_objlen(L, -1);
    if (n > MAX_NAMED)
        return "an order can be for 16 requests at most";
    for (int i = 1; i <= n; i++) {
        lua_rawgeti(L, -1, i);
        o->named[o->n_named++] = verb_request(L, lua_gettop(L));
        lua_pop(L, 1);
    }
    lua_pop(L, 1);
    return NULL;
}

static void read_reason(lua_State *L, int opts, struct switch_order *o)
{
    if (!option(L, opts, "reason"))
        return;
    if (lua_type(L, -1) != LUA_TSTRING)
        luaL_error(L, "reason must be a text, not a %s", luaL_typename(L, -1));
    vm_escape(o->reason, sizeof o->reason, lua_tostring(L, -1), lua_objlen(L, -1));
    lua_pop(L, 1);
}

enum order_verb { ORDER_BIND, ORDER_RELEASE, ORDER_RESHARD };

static const char *read_weights(lua_State *L, int opts, struct switch_order *o)
{
    bool given;
    if (option(L, opts, "weights")) {
        o->weights = verb_layout(L, lua_gettop(L), &given);
        lua_pop(L, 1);
    }
    bool ready = o->when == WHEN_READY && !o->weights.tp;
    return ready ? "when = \"ready\" is for orders that move weights" : NULL;
}

/* What bind, release and reshard have in common. NULL, or why it is refused. */
static const char *read_order(lua_State *L, int opts, enum order_verb verb, struct switch_order *o)
{
    static const char *const names[] = {"when", "kv", "max_wait_ms", "requests", "reason", "base", "weights"};
    static const char *const whens[] = {"hard", "drain", "soft", "ready"};
    static const char *const what[] = {"the options of act.bind", "the options of act.release",
                                       "the options of act.reshard"};
    const char *why = NULL;
    if (lua_isnoneornil(L, opts))
        return NULL;
    if (lua_type(L, opts) != LUA_TTABLE)
        luaL_error(L, "options like { when = \"drain\" } are expected, not a %s", luaL_typename(L, opts));
    verb_check_fields(L, opts, what[verb], names, verb == ORDER_BIND ? 7 : verb == ORDER_RESHARD ? 6 : 5);
    if (option(L, opts, "when")) {
        o->when = (enum switch_when)verb_choice(L, lua_gettop(L), "when", whens, verb == ORDER_RELEASE ? 3 : 4);
        lua_pop(L, 1);
    }
    if (option(L, opts, "kv")) {
        why = check_fate(L, lua_gettop(L), &o->fate);
        lua_pop(L, 1);
    }
    if (option(L, opts, "max_wait_ms")) {
        o->max_wait_ns = (int64_t)verb_whole_number(L, lua_gettop(L), "max_wait_ms", 1, MAX_WAIT_MS) * 1000000;
        lua_pop(L, 1);
    }
    read_reason(L, opts, o);
    const char *base = read_base(L, opts, __builtin_popcountll(o->mask), &o->base);
    const char *named = read_named(L, opts, o), *weights = read_weights(L, opts, o);
    return why ? why : base ? base : named ? named : weights;
}

static int give(lua_State *L, const struct switch_order *o)
{
    lua_settop(L, 0);
    return verb_done(L, &(struct verb_call){.kind = CALL_SWITCH, .order = o});
}

static struct switch_order new_order(bool release, uint64_t mask)
{
    return (struct switch_order){.release = release,
                                 .mask = mask,
                                 .base = {__builtin_popcountll(mask), 1, 1},
                                 .when = WHEN_HARD,
                                 .fate = FATE_MIGRATE,
                                 .max_wait_ns = DEFAULT_WAIT_MS * 1000000ll};
}

static int not_an_order_time(lua_State *L, const char *verb)
{
    lua_pushnil(L);
    lua_pushfstring(L, "act.%s can be called in start and step only", verb);
    return 2;
}

/* ---- the verbs */

/* act.bind(ranks [, { when =, kv =, base =, weights =, max_wait_ms =, requests =, reason = }]) */
int act_bind(lua_State *L)
{
    const char *why;
    lua_settop(L, 2);
    uint64_t mask = check_ranks(L, 1, &why);
    struct switch_order o = new_order(false, mask);
    const char *bad = read_order(L, 2, ORDER_BIND, &o);
    if (why || bad)
        return verb_refused(L, why ? why : bad);
    if (!verb_orders(L))
        return not_an_order_time(L, "bind");
    return give(L, &o);
}

/* act.release(group [, kv | { when =, kv =, max_wait_ms =, reason = }]) */
int act_release(lua_State *L)
{
    const char *why = NULL;
    lua_settop(L, 2);
    int id = verb_group(L, 1);
    struct switch_order o = new_order(true, 0);
    if (lua_type(L, 2) == LUA_TSTRING)
        why = check_fate(L, 2, &o.fate);
    else
        why = read_order(L, 2, ORDER_RELEASE, &o);
    if (!verb_orders(L))
        return not_an_order_time(L, "release");
    const struct group *g = partition_find(&verb_orders(L)->world->partition, id);
    if (!g || why)
        return verb_refused(L, why ? why : "no such group (any more)");
    o.mask = g->mask;
    o.base = (struct layout){g->n_ranks, 1, 1};
    return give(L, &o);
}

/* act.reshard(group, layout [, { when =, kv =, base =, max_wait_ms =, requests =, reason = }]): its ranks are to hold
 * the weights of this layout. */
int act_reshard(lua_State *L)
{
    bool given;
    lua_settop(L, 3);
    int id = verb_group(L, 1);
    struct layout l = verb_layout(L, 2, &given);
    const struct plan *p = verb_orders(L);
    const struct group *g = p ? partition_find(&p->world->partition, id) : NULL;
    if (!given)
        return luaL_error(L, "act.reshard(group, layout): a layout like { tp = 4 } is expected");
    struct switch_order o = new_order(false, g ? g->mask : 1);
    o.weights = l;
    o.when = WHEN_READY;
    if (g)
        o.base = (struct layout){g->n_ranks / (g->n_ranks % l.pp ? 1 : l.pp), 1, l.pp};
    const char *why = read_order(L, 3, ORDER_RESHARD, &o);
    if (!p)
        return not_an_order_time(L, "reshard");
    if (!g || why)
        return verb_refused(L, why ? why : "no such group (any more)");
    return give(L, &o);
}

/* view.estimate_reshard(group, layout): what it would move, and how long that takes, as the last ones did. */
int view_estimate_reshard(lua_State *L)
{
    bool given;
    lua_settop(L, 2);
    const struct view *v = bind_of(L)->facts;
    const struct group *g = v ? view_group(v, verb_group(L, 1)) : NULL;
    struct layout l = verb_layout(L, 2, &given);
    if (!g)
        return verb_refused(L, v ? "no such group (any more)" : "view.estimate_reshard can be called in a hook only");
    if (!v->world->residency.facts)
        return verb_refused(L, "every rank has the weights of all layouts: nothing has to move");
    const char *why = shape_refusal(&v->world->shape, g->n_ranks, l);
    int ranks[MAX_RANKS];
    if (why)
        return verb_refused(L, why);
    struct layout base = l.pp == g->base.pp ? g->base : (struct layout){g->n_ranks / l.pp, 1, l.pp};
    int n = partition_ranks(g->mask, base, ranks);
    struct reshard_cost cost;
    residency_cost(v->world, ranks, n, l, &cost);
    lua_createtable(L, 0, 4);
    lua_pushnumber(L, (double)cost.bytes);
    lua_setfield(L, -2, "bytes");
    lua_pushnumber(L, cost.ns * 1e-6);
    lua_setfield(L, -2, "ms");
    lua_pushnumber(L, cost.stop_ns * 1e-6);
    lua_setfield(L, -2, "stop_ms");
    return 1;
}

/* view.estimate_move(tokens [, "host"]): what KV of so many tokens takes from ranks to others, or to host memory, in
 * ms, as the last ones did. */
int view_estimate_move(lua_State *L)
{
    static const char *const places[] = {"host"};
    lua_settop(L, 2);
    const struct view *v = bind_of(L)->facts;
    double n = verb_whole_number(L, 1, "the number of tokens", 0, 1 << 30);
    bool host = !lua_isnil(L, 2) && !verb_choice(L, 2, "the place", places, 1);
    if (!v)
        return verb_refused(L, "view.estimate_move can be called in a hook only");
    const struct world_cost *c = &v->world->cost;
    double each = host ? c->swap_ns_per_token : c->move_ns_per_token;
    lua_pushnumber(L, (c->move_ns_fixed + n * each) * 1e-6);
    return 1;
}

/* act.remap(id, group, "keep" | "migrate" | "park" | "recompute" | "host"); the group may be nil for the last three. */
int act_remap(lua_State *L)
{
    enum kv_fate fate = FATE_MIGRATE;
    lua_settop(L, 3);
    req_id id = verb_request(L, 1);
    const char *why = lua_isnil(L, 3) ? NULL : check_fate(L, 3, &fate);
    bool stays = fate >= FATE_PARK;
    int group = stays && lua_isnil(L, 2) ? 0 : verb_group(L, 2);
    if (!verb_plan(L))
        return verb_not_now(L, "remap");
    if (why)
        return verb_refused(L, why);
    return verb_done(L, &(struct verb_call){.kind = CALL_REMAP, .id = id, .group = group, .how = fate});
}

/* act.swap_out(id): its KV goes to host memory, and it waits there until a group takes it. */
int act_swap_out(lua_State *L)
{
    lua_settop(L, 1);
    req_id id = verb_request(L, 1);
    if (!verb_plan(L))
        return verb_not_now(L, "swap_out");
    return verb_done(L, &(struct verb_call){.kind = CALL_REMAP, .id = id, .how = FATE_HOST});
}

/* act.swap_in(id, group): the KV of a request that waits in host memory moves to the group, where it starts when its
 * turn comes. */
int act_swap_in(lua_State *L)
{
    lua_settop(L, 2);
    req_id id = verb_request(L, 1);
    int group = verb_group(L, 2);
    if (!verb_plan(L))
        return verb_not_now(L, "swap_in");
    const struct world *w = verb_plan(L)->world;
    const struct request *r = request_find(&w->requests, id);
    if (r && !world_in_host(w, r))
        return verb_refused(L, "its KV does not lie in host memory");
    return verb_done(L, &(struct verb_call){.kind = CALL_REMAP, .id = id, .group = group, .how = FATE_MIGRATE});
}

/* From act.preempt: a group's table and how. */
int act_preempt_group(lua_State *L)
{
    const char *how = lua_tostring(L, 2);
    int group = verb_group(L, 1);
    if (strcmp(how, "recompute") == 0)
        return verb_refused(
            L, "act.preempt: a group is preempted \"hard\", \"drain\" or \"soft\"; recompute is for requests");
    enum switch_when when = *how == 'h' ? WHEN_HARD : *how == 'd' ? WHEN_DRAIN : WHEN_SOFT;
    return verb_done(L, &(struct verb_call){.kind = CALL_PREEMPT_GROUP, .group = group, .how = when});
}

/* act.open(group) */
int act_open(lua_State *L)
{
    int group = verb_group(L, 1);
    if (!verb_plan(L))
        return verb_not_now(L, "open");
    return verb_done(L, &(struct verb_call){.kind = CALL_OPEN, .group = group});
}

/* A list of microseconds by size, into the table on top of the stack. */
static void put_measured(lua_State *L, const char *field, const int64_t ns[COMM_SIZES])
{
    lua_createtable(L, COMM_SIZES, 0);
    for (int i = 0; i < COMM_SIZES; i++) {
        lua_pushnumber(L, (double)ns[i] * 1e-3);
        lua_rawseti(L, -2, i + 1);
    }
    lua_setfield(L, -2, field);
}

/* What was measured at start, where it was. */
static void put_measures(lua_State *L, const struct comm_measure *m)
{
    if (!m->oneshot_ns[0])
        return;
    lua_pushnumber(L, (double)m->meet_ns * 1e-3);
    lua_setfield(L, -2, "meet_us");
    lua_createtable(L, COMM_SIZES, 0);
    for (int i = 0; i < COMM_SIZES; i++) {
        lua_pushnumber(L, (double)m->bytes[i]);
        lua_rawseti(L, -2, i + 1);
    }
    lua_setfield(L, -2, "bytes");
    put_measured(L, "oneshot_us", m->oneshot_ns);
    put_measured(L, "twoshot_us", m->twoshot_ns);
    if (m->library_bytes) {
        lua_pushnumber(L, (double)m->library_bytes);
        lua_setfield(L, -2, "library_bytes");
    }
}

/* act.comm(ranks [, "auto" | "oneshot" | "twoshot" | "library"]): what is known of their communicator; with an
 * algorithm, what its all-reduces use from now on. */
int act_comm(lua_State *L)
{
    static const char *const algorithms[] = {"auto", "oneshot", "twoshot", "library"};
    const struct bind *b = bind_of(L);
    const char *why;
    lua_settop(L, 2);
    uint64_t mask = check_ranks(L, 1, &why);
    int algorithm = lua_isnil(L, 2) ? -1 : verb_choice(L, 2, "the algorithm", algorithms, 4);
    if (!b->plan)
        return not_an_order_time(L, "comm");
    if (why)
        return verb_refused(L, why);
    if (shape_find(&b->plan->world->shape, mask) < 0)
        return verb_refused(L, "no communicator for these ranks: aligned power-of-two ranges and the whole node have "
                               "one (--comm-sets adds more)");
    struct verb_result known, chosen;
    verb_do(L, &(struct verb_call){.kind = CALL_MEASURED, .ranks = mask}, &known);
    if (algorithm == COMM_LIBRARY && (!known.done || !known.measured.library_bytes))
        return verb_refused(L, "no library reduces among these ranks: it takes ranks on different GPUs, the default "
                               "mode, and NCCL on this machine");
    bool alone = (mask & (mask - 1)) == 0; /* one rank has no peers */
    if (algorithm >= 0 && !alone) {
        verb_do(L, &(struct verb_call){.kind = CALL_COMM, .ranks = mask, .how = algorithm}, &chosen);
        if (!chosen.done)
            return verb_refused(L, chosen.reason);
    }
    lua_createtable(L, 0, 8);
    groups_push_ranks(L, mask);
    lua_setfield(L, -2, "ranks");
    lua_pushstring(L, algorithms[algorithm >= 0 ? algorithm : partition_algorithm(b->plan->world, mask)]);
    lua_setfield(L, -2, "algorithm");
    if (known.done)
        put_measures(L, &known.measured);
    return 1;
}

/* act.weights(group, layout): what the view of the weights costs; nil and why when the layout cannot run. */
int act_weights(lua_State *L)
{
    struct layout l;
    if (lua_type(L, 1) == LUA_TSTRING && !strcmp(lua_tostring(L, 1), "all"))
        return verb_residency(L);
    lua_settop(L, 2);
    const char *why = verb_layout_of_group(L, 1, &l);
    if (why)
        return verb_refused(L, why);
    const struct view *v = bind_of(L)->facts;
    const struct group *g = view_group(v, verb_group(L, 1));
    struct reshard_cost cost = {0};
    bool here = residency_runs(v->world, g, l);
    if (!here)
        residency_cost(v->world, g->ranks, g->n_ranks, l, &cost);
    lua_createtable(L, 0, 4);
    lua_pushnumber(L, (double)cost.bytes);
    lua_setfield(L, -2, "bytes");
    lua_pushboolean(L, here); /* a layout is a view of what the ranks hold */
    lua_setfield(L, -2, "zero_copy");
    lua_pushboolean(L, here && !g->loading);
    lua_setfield(L, -2, "ready");
    return 1;
}

/* What binding this set would disturb: requests that run there; less than nothing when it is a group, or asked for,
 * already, so that an answer stays what it is. */
static int disturbs(const struct partition *p, uint64_t set)
{
    int n = 0;
    for (int i = 0; i < p->n_pending; i++)
        if (p->pending[i].order.mask == set && !p->pending[i].order.release)
            return -2;
    for (int i = 0; i < p->n_groups; i++) {
        const struct group *g = &p->groups[p->order[i]];
        if (g->mask == set)
            return -1;
        n += g->mask & set ? g->n_running : 0;
    }
    return n;
}

/* What no group of this side can have. */
static uint64_t others(const struct world *w, enum side s)
{
    return ~side_ranks(w, s);
}

/* The ranks of this set live, none of them is taken, and some layout runs on that many. */
static bool may_be(const struct world *w, uint64_t set, uint64_t taken)
{
    int n = __builtin_popcountll(set);
    return !(set & (w->partition.dead_ranks | taken)) && shape_runs(&w->shape, n);
}

static const char no_group_caches[] = "no group that this node can form caches so many tokens";

/* The narrowest set that caches this many tokens; among equals the one that disturbs the fewest, then the first. 0:
 * there is none. */
static uint64_t narrowest(const struct world *w, enum side side, double tokens)
{
    uint64_t best = 0;
    for (int i = 0; i < w->shape.n_sets; i++) {
        uint64_t s = w->shape.sets[i];
        int n = __builtin_popcountll(s), found = __builtin_popcountll(best);
        if (!may_be(w, s, others(w, side)) || (double)w->kv.n_blocks * w->shape.tokens_per_block[n] < tokens)
            continue;
        if (!best || n < found || (n == found && disturbs(&w->partition, s) < disturbs(&w->partition, best)))
            best = s;
    }
    return best;
}

/* The widest set of at most this many ranks, of those that are not taken. */
static uint64_t widest(const struct world *w, int most, uint64_t taken)
{
    uint64_t best = 0;
    for (int i = 0; i < w->shape.n_sets; i++) {
        uint64_t s = w->shape.sets[i];
        int n = __builtin_popcountll(s), found = __builtin_popcountll(best);
        if (n > most || !may_be(w, s, taken))
            continue;
        if (n > found || (n == found && disturbs(&w->partition, s) < disturbs(&w->partition, best)))
            best = s;
    }
    return best;
}

/* act.widen(): where no group can hold the first of the waiting, orders the narrowest that can; false: it is not
 * needed, some group can or nobody waits. */
int act_widen(lua_State *L)
{
    const struct plan *p = verb_orders(L);
    if (!p)
        return not_an_order_time(L, "widen");
    const struct request *head = world_head_of(p->world, p->side);
    if (!head || head->n_tokens <= world_group_capacity(p->world, p->side)) {
        lua_pushboolean(L, false);
        return 1;
    }
    uint64_t ranks = narrowest(p->world, p->side, head->n_tokens);
    if (!ranks)
        return verb_refused(L, no_group_caches);
    struct switch_order o = new_order(false, ranks);
    if (p->world->residency.facts)
        residency_usual(p->world, o.base.sp, 1, &o.weights);
    snprintf(o.reason, sizeof o.reason, "no group can hold the first request");
    return give(L, &o);
}

/* view.narrowest(tokens): the ranks of the narrowest group that there may be and that can cache this many tokens; nil:
 * there is none. */
int view_narrowest(lua_State *L)
{
    struct bind *b = bind_of(L);
    double tokens = verb_whole_number(L, 1, "the number of tokens", 0, 9007199254740992.0);
    if (!b->facts)
        return verb_refused(L, "view.narrowest can be called in a hook only");
    uint64_t best = narrowest(b->facts->world, b->facts->side, tokens);
    if (!best)
        return verb_refused(L, no_group_caches);
    groups_push_ranks(L, best);
    return 1;
}

int verb_cover(const struct view *v, int wide, int narrow, uint64_t sets[MAX_RANKS])
{
    const struct world *w = v->world;
    uint64_t taken = others(w, v->side), set = widest(w, wide, taken);
    int n = 0;
    for (; set && n < MAX_RANKS; set = widest(w, narrow, taken)) {
        sets[n++] = set;
        taken |= set;
    }
    return n;
}

/* view.cover(wide, narrow): a partition of the living ranks, as a list of lists: first one group of at most `wide`
 * ranks, then groups of at most `narrow`. */
int view_cover(lua_State *L)
{
    struct bind *b = bind_of(L);
    int wide = (int)verb_whole_number(L, 1, "the wide group's ranks", 1, MAX_RANKS);
    int narrow = (int)verb_whole_number(L, 2, "a narrow group's ranks", 1, MAX_RANKS);
    uint64_t sets[MAX_RANKS];
    if (!b->facts)
        return verb_refused(L, "view.cover can be called in a hook only");
    int n = verb_cover(b->facts, wide, narrow, sets);
    lua_createtable(L, n, 0);
    for (int i = 0; i < n; i++) {
        groups_push_ranks(L, sets[i]);
        lua_rawseti(L, -2, i + 1);
    }
    return 1;
}
