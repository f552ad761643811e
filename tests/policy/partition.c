/* What a policy sees of the partition is the partition, whatever happens to it; and what it orders lawfully stands in
 * the plan as it was said. */
#include "tests/rig/policy_rig.h"

#include <lauxlib.h>
#include <math.h>

#include "engine/base/rng.h"
#include "lua/rehearse.h"

static struct lua_watchdog *dog;
static const struct rehearsal_size eight = {.kv_blocks = 200,
                                            .tokens_per_block = 16,
                                            .max_num_seqs = 60,
                                            .max_num_batched_tokens = 256,
                                            .n_ranks = 8,
                                            .groups = {15, 48, 64}};

static struct script *open_script(const char *source)
{
    struct script *s;
    struct err e = {0};
    struct lua_opts in = {.watchdog = dog, .hard_ns = 5000000000, .quiet = true}, o;
    assert_int_equal(script_opts(&o, &in, &e), 0);
    if (script_open(&s, "partition", source, strlen(source), &o, &e))
        fail_msg("%s", e.text);
    return s;
}

static void decide(struct script *s, struct rehearsal *r)
{
    struct view v = rehearsal_view(r);
    struct err e = {0};
    plan_begin(&r->plan, r->now_ns);
    if (!verdict_stands(script_step(s, &v, &r->plan, &e)))
        fail_msg("%s", e.text);
}

/* ---- facts */

/* The stack's top is a table: its number, or -12345. Booleans are 0 and 1. */
static double fact(lua_State *L, const char *name)
{
    lua_getfield(L, -1, name);
    double v = lua_type(L, -1) == LUA_TNUMBER    ? lua_tonumber(L, -1)
               : lua_type(L, -1) == LUA_TBOOLEAN ? lua_toboolean(L, -1)
                                                 : -12345;
    lua_pop(L, 1);
    return v;
}

static uint64_t ranks(lua_State *L, const char *name)
{
    uint64_t mask = 0;
    lua_getfield(L, -1, name);
    for (int i = 1; i <= (int)lua_objlen(L, -1); i++) {
        lua_rawgeti(L, -1, i);
        mask |= 1ull << (int)lua_tonumber(L, -1);
        lua_pop(L, 1);
    }
    lua_pop(L, 1);
    return mask;
}

static void check_group(lua_State *L, const struct rehearsal *r, const struct group *g)
{
    const struct world *w = &r->world;
    const struct {
        const char *name;
        double want;
    } facts[] = {
        {"id", g->id},
        {"size", g->n_ranks},
        {"n_running", g->n_running},
        {"load", (double)g->load},
        {"kv_free", kv_available(&w->kv, g->place)},
        {"tokens_per_block", kv_place(&w->kv, g->place)->tokens_per_block},
        {"capacity_tokens", (double)w->kv.n_blocks * kv_place(&w->kv, g->place)->tokens_per_block},
        {"idle", g->idle},
        {"held", g->held},
        {"closed", g->closed || g->shut},
        {"steps", (double)g->n_steps},
        {"last_step_tokens", g->last_step_tokens},
        {"last_step_ms", (double)g->last_step_ns * 1e-6},
        {"since_ms", (double)(r->now_ns - g->bound_ns) * 1e-6},
    };
    for (size_t i = 0; i < sizeof facts / sizeof *facts; i++)
        if (fact(L, facts[i].name) != facts[i].want)
            fail_msg("%s of group %d is %g, not %g", facts[i].name, g->id, fact(L, facts[i].name), facts[i].want);
    assert_true(ranks(L, "ranks") == g->mask);
    lua_getfield(L, -1, "layout");
    assert_true(fact(L, "sp") == g->layout.sp && fact(L, "tp") == g->layout.tp && fact(L, "pp") == g->layout.pp);
    lua_pop(L, 1);
    lua_getfield(L, -1, "base");
    assert_true(fact(L, "sp") == g->base.sp && fact(L, "tp") == g->base.tp);
    lua_pop(L, 1);
}

/* view.groups and view.idle are the partition, in order, and nothing else. */
static void check_view(struct script *s, struct rehearsal *r)
{
    lua_State *L = s->vm.L;
    struct partition *p = &r->world.partition;
    struct view v = rehearsal_view(r);
    int top = lua_gettop(L);
    lua_rawgeti(L, LUA_REGISTRYINDEX, s->bind.view_ref);
    assert_true(ranks(L, "free_ranks") == p->free_ranks);
    assert_true(ranks(L, "dead_ranks") == p->dead_ranks);
    lua_getfield(L, -1, "pending");
    assert_int_equal(lua_objlen(L, -1), p->n_pending);
    for (int i = 0; i < p->n_pending; i++) {
        lua_rawgeti(L, -1, i + 1);
        assert_true(ranks(L, "ranks") == p->pending[i].order.mask);
        assert_true(fact(L, "release") == p->pending[i].order.release);
        assert_true(fact(L, "age_ms") == (double)(r->now_ns - p->pending[i].since_ns) * 1e-6);
        lua_pop(L, 1);
    }
    lua_pop(L, 1);
    lua_getfield(L, -1, "groups");
    assert_int_equal(lua_objlen(L, -1), p->n_groups);
    for (int i = 0; i < p->n_groups; i++) {
        lua_rawgeti(L, -1, i + 1);
        check_group(L, r, partition_slot(p, i));
        lua_pop(L, 1);
    }
    lua_pop(L, 1);
    lua_getfield(L, -1, "idle");
    assert_int_equal(lua_objlen(L, -1), v.n_idle);
    for (int i = 0; i < v.n_idle; i++) {
        lua_rawgeti(L, -1, i + 1);
        assert_true(fact(L, "id") == v.idle[i]);
        lua_pop(L, 1);
    }
    lua_settop(L, top);
}

static void check_columns(struct script *s, const struct columns *c, const struct world *w, const struct req_queue *q)
{
    lua_State *L = s->vm.L;
    static const char *const names[] = {"id", "group", "home", "parked"};
    int base = lua_gettop(L) + 1;
    lua_rawgeti(L, LUA_REGISTRYINDEX, c->view_ref);
    for (int i = 0; i < 4; i++)
        lua_getfield(L, base, names[i]);
    assert_int_equal(lua_objlen(L, base + 1), q->n);
    for (int i = 1; i <= q->n; i++) {
        for (int k = 0; k < 4; k++)
            lua_rawgeti(L, base + 1 + k, i);
        const struct request *r = request_find(&w->requests, lua_req_id_back(lua_tonumber(L, base + 5)));
        assert_non_null(r);
        assert_true(lua_tonumber(L, base + 6) == r->group);
        assert_int_equal(lua_type(L, base + 8), LUA_TBOOLEAN);
        assert_int_equal(lua_toboolean(L, base + 8), r->parked);
        const struct group *home = partition_find(&w->partition, (int)lua_tonumber(L, base + 7));
        assert_true(!home || (r->n_blocks ? home->place == r->place : home->id == r->group));
        lua_settop(L, base + 4);
    }
    lua_settop(L, base - 1);
}

static void shake(struct rehearsal *r, struct rng *g)
{
    struct world *w = &r->world;
    struct switch_order o = {.mask = w->shape.sets[rng_below(g, (uint64_t)w->shape.n_sets)],
                             .release = rng_below(g, 4) == 0,
                             .when = (enum switch_when)rng_below(g, 3),
                             .fate = (enum kv_fate)rng_below(g, 4),
                             .max_wait_ns = 50000000};
    o.base = (struct layout){__builtin_popcountll(o.mask), 1, 1};
    if (__builtin_popcountll(o.mask) == 4 && rng_below(g, 2))
        o.base = (struct layout){2, 2, 1};
    if (rng_below(g, 3) == 0)
        rehearsal_order(r, &o);
    rehearsal_add(r, &(struct made_request){.n_prompt = 1 + (int)rng_below(g, 90),
                                            .max_tokens = 30,
                                            .n_output = (int)rng_below(g, 5),
                                            .running = rng_below(g, 2),
                                            .parked = rng_below(g, 6) == 0});
}

static void facts_follow_the_world(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 6; seed++) {
        struct script *s = open_script(
            "return { api = 1, doc = 'x', needs = { 'group', 'home', 'parked' }, step = function(view, act)\n"
            "  for _, g in ipairs(view.idle) do local b = act.batch(g) b:decodes() b:prefill() if b.tokens > 0 then "
            "act.forward(g, b) end end end }");
        struct rehearsal r;
        struct rng g;
        rng_init(&g, seed);
        rehearsal_init(&r, eight, 100);
        for (int i = 0; i < 150; i++) {
            if (i == 75)
                rehearsal_lose(&r, (int)rng_below(&g, 8));
            shake(&r, &g);
            decide(s, &r);
            check_view(s, &r);
            check_columns(s, &s->bind.waiting, &r.world, &r.world.waiting);
            check_columns(s, &s->bind.running, &r.world, &r.world.running);
            rehearsal_advance(&r, 4, NULL, NULL);
            assert_true(world_check(&r.world));
        }
        rehearsal_free(&r);
        script_close(s);
    }
}

/* A policy that writes into a group is found out, and the group is put right at once. */
static void a_changed_group_is_found(void **state)
{
    (void)state;
    static const char *const writes[] = {"g.n_running = g.n_running + 1", "g.idle = not g.idle", "g.id = 99",
                                         "g.layout.tp = 77", "g.kv_free = nil"};
    for (int k = 0; k < 5; k++) {
        char source[400];
        snprintf(source, sizeof source,
                 "return { api = 1, doc = 'x', step = function(view) if view.step == 5 then for _, g in "
                 "ipairs(view.groups) do %s end end end }",
                 writes[k]);
        struct script *s = open_script(source);
        struct rehearsal r;
        struct err e = {0};
        int found = 0;
        rehearsal_init(&r, eight, 100);
        for (int i = 0; i < 400 && !found; i++) {
            struct view v = rehearsal_view(&r);
            r.world.step = (uint64_t)i;
            plan_begin(&r.plan, r.now_ns);
            found = script_step(s, &v, &r.plan, &e) == VERDICT_MALFORMED;
        }
        assert_true(found);
        check_view(s, &r);
        rehearsal_free(&r);
        script_close(s);
    }
}

/* A table kept from a group that is gone never shows another one. */
static void a_group_that_is_gone_stays_gone(void **state)
{
    (void)state;
    struct script *s =
        open_script("local kept return { api = 1, doc = 'x', step = function(view, act) kept = kept or view.groups[1]\n"
                    "  if view.groups[1].id ~= kept.id then local b, why = act.batch(kept) assert(not b and why == 'no "
                    "such group (any more)', why)\n"
                    "    assert(not act.release(kept) and not act.open(kept) and not view.estimate(kept, nil, 5)) "
                    "log('gone') end end }");
    struct rehearsal r;
    rehearsal_init(&r, eight, 100);
    decide(s, &r);
    rehearsal_order(&r, &(struct switch_order){.mask = 15, .release = true});
    rehearsal_order(&r, &(struct switch_order){.mask = 3, .base = {2, 1, 1}});
    decide(s, &r);
    assert_int_equal(r.plan.n_verbs, 1);
    rehearsal_free(&r);
    script_close(s);
}

/* ---- verbs */

/* One step of this code in the world; what it asserts has to hold. */
static void in_step(struct rehearsal *r, const char *code)
{
    char source[4096];
    snprintf(source, sizeof source,
             "return { api = 1, doc = 'x', needs = { 'id', 'group' }, step = function(view, act, p)\n%s\nend }", code);
    struct script *s = open_script(source);
    decide(s, r);
    script_close(s);
}

static const struct switch_order *order(const struct rehearsal *r, int nth)
{
    for (int i = 0; i < r->plan.n_verbs; i++)
        if (r->plan.verbs[i].kind == PLAN_SWITCH && nth-- == 0)
            return r->plan.verbs[i].order;
    fail_msg("there is no such order");
    return NULL;
}

static void orders_say_what_was_said(void **state)
{
    (void)state;
    struct rehearsal r;
    rehearsal_init(&r, eight, 100);
    rehearsal_crowd(&r, 10, 1);
    in_step(
        &r,
        "assert(act.bind({ 4, 5, 6, 7 }, { when = 'soft', kv = 'park', base = { sp = 2, tp = 2 }, max_wait_ms = 70, "
        "requests = { view.waiting.id[1], view.waiting.id[2] }, reason = 'because\\n' }))\n"
        "assert(act.release(view.groups[1], { when = 'drain', kv = 'recompute' }))\n"
        "local ok, why = act.bind({ 0, 1 }) assert(not ok and why == 'this plan has an order for one of these ranks "
        "already', why)");
    const struct switch_order *o = order(&r, 0);
    assert_true(!o->release && o->mask == 0xf0 && o->base.sp == 2 && o->base.tp == 2 && o->when == WHEN_SOFT &&
                o->fate == FATE_PARK);
    assert_int_equal(o->max_wait_ns, 70000000);
    assert_int_equal(o->n_named, 2);
    assert_non_null(request_find(&r.world.requests, o->named[1]));
    assert_string_equal(o->reason, "because\\x0a");
    o = order(&r, 1);
    assert_true(o->release && o->mask == 15 && o->when == WHEN_DRAIN && o->fate == FATE_RECOMPUTE &&
                o->max_wait_ns == 10000000000);
    in_step(&r, "assert(act.bind({ 2, 3 })) assert(act.release(view.groups[2], 'park'))");
    o = order(&r, 0);
    assert_true(o->mask == 12 && o->base.sp == 2 && o->base.tp == 1 && o->when == WHEN_HARD &&
                o->fate == FATE_MIGRATE && !*o->reason);
    assert_true(order(&r, 1)->mask == 48 && order(&r, 1)->fate == FATE_PARK);
    rehearsal_free(&r);
}

static void what_is_so_is_no_order(void **state)
{
    (void)state;
    struct rehearsal r;
    rehearsal_init(&r, eight, 100);
    in_step(&r, "assert(act.bind({ 0, 1, 2, 3 })) assert(act.bind({ 3, 2, 1, 0 }, { when = 'drain' })) "
                "assert(act.bind({ 6 }))\n"
                "for _, g in ipairs(view.idle) do local b = act.batch(g) b:decodes() end");
    assert_int_equal(r.plan.n_verbs, 0);
    in_step(&r,
            "assert(act.bind({ 0, 1, 2, 3 }, { base = { sp = 2, tp = 2 } }))"); /* another order of the same ranks is */
    assert_int_equal(r.plan.n_verbs, 1);
    rehearsal_free(&r);
}

static void requests_are_moved(void **state)
{
    (void)state;
    struct rehearsal r;
    rehearsal_init(&r, eight, 100);
    struct request *a =
        rehearsal_add(&r, &(struct made_request){.n_prompt = 40, .running = true, .n_output = 2, .group = 1});
    struct request *b =
        rehearsal_add(&r, &(struct made_request){.n_prompt = 40, .running = true, .n_output = 2, .group = 1});
    struct request *c =
        rehearsal_add(&r, &(struct made_request){.n_prompt = 40, .running = true, .n_output = 2, .group = 2});
    in_step(&r, "local r, id = view.running, {} for i = 1, r.n do id[i] = r.id[i] end local one, two, three = "
                "view.groups[1], view.groups[2], view.groups[3]\n"
                "local ok, why = act.remap(id[1], two, 'keep') assert(not ok and why:sub(1, 6) == 'its KV', why)\n"
                "assert(act.remap(id[1], two)) assert(act.remap(id[2], nil, 'park')) assert(act.remap(id[3], one, "
                "'recompute'))\n"
                "ok, why = act.remap(id[1], three) assert(why == 'this plan has already used the request', why)\n"
                "ok, why = act.remap(id[1], three, 'host') assert(not ok and why:sub(1, 23) == 'there is no host "
                "memory', why)");
    rehearsal_advance(&r, 0, NULL, NULL);
    assert_int_equal(a->group, partition_slot(&r.world.partition, 1)->id);
    assert_int_equal(a->place, partition_slot(&r.world.partition, 1)->place);
    assert_true(b->parked && b->n_blocks && !b->group);
    assert_true(!c->parked && !c->n_blocks && !c->group);
    assert_true(world_check(&r.world));
    rehearsal_free(&r);
}

static void groups_close_and_open(void **state)
{
    (void)state;
    struct rehearsal r;
    rehearsal_init(&r, eight, 100);
    rehearsal_add(&r, &(struct made_request){.n_prompt = 40, .running = true, .n_output = 2, .group = 1});
    in_step(
        &r,
        "assert(act.preempt(view.groups[1], 'hard')) assert(act.preempt(view.groups[2], 'drain'))\n"
        "local ok, why = act.preempt(view.groups[3], 'recompute') assert(not ok and why:sub(1, 11) == 'act.preempt')");
    rehearsal_advance(&r, 0, NULL, NULL);
    assert_int_equal(r.world.running.n, 0);
    assert_true(r.world.waiting.items[0]->parked);
    in_step(&r, "assert(view.groups[2].closed and not view.groups[1].closed) assert(act.open(view.groups[2]))");
    rehearsal_advance(&r, 0, NULL, NULL);
    in_step(&r, "assert(not view.groups[2].closed)");
    rehearsal_free(&r);
}

static void questions_are_answered(void **state)
{
    (void)state;
    struct rehearsal r;
    rehearsal_init(&r, eight, 100);
    for (int i = 0; i < 10; i++)
        estimator_learn(&r.world.estimate, (struct layout){1, 4, 1}, (struct step_size){.rows = 100}, 5e6);
    rehearsal_add(&r, &(struct made_request){.n_prompt = 100, .n_output = 0});
    in_step(&r, "local function near(a, b) return math.abs(a / b - 1) < 0.02 end local one = view.groups[1]\n"
                "local ms, n = view.estimate(one, { tp = 4 }, 100) assert(near(ms, 5) and n == 10, ms)\n"
                "ms, n = view.estimate(one, nil, 100) assert(near(ms, 5) and n == 10)\n" /* the layout that forward
                                                                                            takes by itself */
                "ms, n = view.estimate(one, { sp = 4 }, 100) assert(ms > 0 and n == 0)\n"
                "local b = act.batch(one) b:prefill(view.waiting, 50, 'any') assert(b.tokens == 50) "
                "assert(view.estimate(one, { tp = 4 }, b) > 0)\n"
                "local w = act.weights(one, { sp = 2, tp = 2 }) assert(w.bytes == 0 and w.zero_copy and w.ready)\n"
                "assert(#view.narrowest(1) == 1 and #view.narrowest(200 * 16 * 3) == 4 and not view.narrowest(200 * 16 "
                "* 9))\n"
                "local c = view.cover(4, 2) assert(#c == 3 and #c[1] == 4 and #c[2] == 2 and #c[3] == 2) "
                "assert(c[1][1] == 0)\n" /* the group of 4 that is */
                "c = view.cover(8, 1) assert(#c == 1 and #c[1] == 8) c = view.cover(1, 1) assert(#c == 8)\n"
                "local k = act.comm({ 0, 1 }, 'twoshot') assert(#k.ranks == 2 and k.algorithm == 'twoshot')\n"
                "local no, why = act.comm({ 0, 1 }, 'library') assert(not no and why:sub(1, 10) == 'no library', why)\n"
                "no, why = act.comm({ 0, 2 }) assert(not no and why:sub(1, 15) == 'no communicator', why)\n"
                "assert(view.group_capacity == 200 * 64 and view.head_tokens == 100 and view.last_switch_ms == 10000)");
    assert_int_equal(r.plan.n_verbs, 1);
    assert_int_equal(r.plan.verbs[0].kind, PLAN_COMM);
    assert_int_equal(r.plan.verbs[0].algorithm, 2);
    rehearsal_lose(&r, 2);
    in_step(
        &r,
        "local c = view.cover(8, 8) assert(#c == 3 and #c[1] == 4 and c[1][1] == 4) assert(view.dead_ranks[1] == 2)\n"
        "local no, why = act.bind({ 2, 3 }) assert(not no and why == 'one of these ranks has failed', why)");
    rehearsal_free(&r);
}

/* start may give orders, and do nothing else. */
static void start_gives_orders(void **state)
{
    (void)state;
    struct script *s =
        open_script("return { api = 1, doc = 'x', step = function() end, start = function(node, act, p, view)\n"
                    "  assert(#node.ranks == 8 and #node.sets == 15 and #node.layouts[4] == 3 and "
                    "node.layouts[4][1].sp == 4 and node.layouts[3] == nil)\n"
                    "  assert(node.tokens_per_block[1] == 16 and node.tokens_per_block[8] == 128 and node.heads.q == "
                    "16 and node.heads.kv == 8)\n"
                    "  assert(#view.groups == 3 and view.groups[1].size == 4)\n"
                    "  assert(act.bind(node.ranks)) assert(not act.release(view.groups[1]))\n"
                    "  for _, verb in ipairs { 'batch', 'open' } do local ok, why = act[verb](view.groups[1]) "
                    "assert(not ok and why == 'act.' .. verb .. ' can be called in step only', why) end\n"
                    "  assert(not act.wake(5) and not act.preempt(view.groups[1], 'hard') and not act.remap(65536, 1) "
                    "and not act.refuse(65536)) assert(act.log('x')) end }");
    struct rehearsal r;
    struct err e = {0};
    rehearsal_init(&r, eight, 100);
    struct node_facts node = rehearsal_node(&r);
    struct view v = rehearsal_view(&r);
    plan_begin(&r.plan, r.now_ns);
    if (!verdict_stands(script_start(s, &node, &v, &r.plan, &e)))
        fail_msg("%s", e.text);
    assert_int_equal(r.plan.n_verbs, 1);
    rehearsal_advance(&r, 0, NULL, NULL);
    assert_int_equal(r.world.partition.n_groups, 1);
    rehearsal_free(&r);
    script_close(s);
}

static int start(void **state)
{
    (void)state;
    return lua_watchdog_start(&dog, NULL);
}

static int stop(void **state)
{
    (void)state;
    lua_watchdog_stop(dog);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(facts_follow_the_world),
        cmocka_unit_test(a_changed_group_is_found),
        cmocka_unit_test(a_group_that_is_gone_stays_gone),
        cmocka_unit_test(orders_say_what_was_said),
        cmocka_unit_test(what_is_so_is_no_order),
        cmocka_unit_test(requests_are_moved),
        cmocka_unit_test(groups_close_and_open),
        cmocka_unit_test(questions_are_answered),
        cmocka_unit_test(start_gives_orders),
    };
    return cmocka_run_group_tests(tests, start, stop);
}
