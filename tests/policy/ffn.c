/* Pooled FFN weights as policies meet them: the verb and what it refuses, the facts, what a policy that goes leaves
 * behind, and what the metrics and the state say. */
#include "tests/rig/policy_rig.h"

#include "lua/rehearse.h"

static struct lua_watchdog *dog;
static const struct rehearsal_size pooled = {.kv_blocks = 200,
                                             .tokens_per_block = 16,
                                             .max_num_seqs = 60,
                                             .max_num_batched_tokens = 256,
                                             .n_ranks = 4,
                                             .groups = {1, 2, 12},
                                             .n_pooled = 6};

static int open_script(struct script **s, const char *source, struct err *e)
{
    struct lua_opts in = {.watchdog = dog, .hard_ns = 5000000000, .quiet = true}, o;
    assert_int_equal(script_opts(&o, &in, e), 0);
    return script_open(s, "ffn", source, strlen(source), &o, e);
}

/* One step of this code. What it raises is in e, else what it asserts has to hold. */
static bool in_step(struct rehearsal *r, const char *code, struct err *e)
{
    char source[4096];
    struct script *s;
    snprintf(source, sizeof source, "return { api = 1, doc = 'x', step = function(view, act, p)\n%s\nend }", code);
    if (open_script(&s, source, e))
        fail_msg("%s", e->text);
    struct view v = rehearsal_view(r);
    plan_begin(&r->plan, r->now_ns);
    bool good = verdict_stands(script_step(s, &v, &r->plan, e));
    script_close(s);
    return good;
}

static void holds(struct rehearsal *r, const char *code)
{
    struct err e = {0};
    if (!in_step(r, code, &e))
        fail_msg("%s", e.text);
}

static void raises(struct rehearsal *r, const char *code, const char *why)
{
    struct err e = {0};
    if (in_step(r, code, &e) || !strstr(e.text, why))
        fail_msg("%s: '%s' and not '%s'", code, e.text, why);
}

static int cas_of(const struct rehearsal *r, int nth)
{
    return ffn_count_cas(&partition_group(&r->world.partition, nth)->ffn, 6);
}

static void the_verb_says_what_the_plan_holds(void **state)
{
    (void)state;
    struct rehearsal r;
    rehearsal_init(&r, pooled, 100);
    holds(&r, "assert(act.ffn('all', 'cas', { layers = { 1, 4 } }))\n"
              "assert(act.ffn(view.groups[1], 'was', { layers = { 2, 2 } }))\n"
              "assert(act.ffn(view.groups[2].id, 'cas', {}))\n"
              "assert(act.ffn(view.groups[1], 'local', { layers = { 4, 4 } }))");
    assert_int_equal(r.plan.n_verbs, 4);
    plan_apply(&r.plan);
    assert_int_equal(cas_of(&r, 0), 2);
    assert_int_equal(cas_of(&r, 1), 6);
    assert_int_equal(cas_of(&r, 2), 4);
    assert_int_equal(ffn_count_cas(&r.world.ffn_usual, 6), 4);
    holds(&r, "assert(view.groups[1].ffn == 'mixed' and view.groups[2].ffn == 'cas')\n"
              "assert(act.ffn('all', 'was'))");
    plan_apply(&r.plan);
    holds(&r, "for _, g in ipairs(view.groups) do assert(g.ffn == 'was') end\n"
              "assert(act.ffn('all', 'was'))");
    assert_int_equal(r.plan.n_verbs, 0); /* so it was */
    rehearsal_free(&r);
}

static void the_verb_refuses_with_a_reason_and_raises_on_wrong_types(void **state)
{
    (void)state;
    struct rehearsal r;
    rehearsal_init(&r, pooled, 100);
    holds(&r,
          "local function no(...) local ok, why = act.ffn(...) assert(not ok) return why end\n"
          "assert(no(view.groups[1], 'local') == 'the FFN of layer 1 lies on rank 1, so for rank 0 it is not local: "
          "\"was\" fetches it, \"cas\" sends rows there')\n"
          "assert(no('all', 'cas', { layers = { 0, 6 } }) == 'no such layers: the model has the layers 0 to 5')\n"
          "assert(no('all', 'cas', { layers = { 3, 2 } }))\n"
          "assert(no(4711, 'cas') == 'no such group (any more)')");
    assert_int_equal(r.plan.n_verbs, 0);
    raises(&r, "act.ffn('everybody', 'cas')", "a group of view.groups is expected, not a string");
    raises(&r, "act.ffn('all')", "the way must be \"local\", \"was\" or \"cas\"");
    raises(&r, "act.ffn('all', 'fetch')", "the way must be");
    raises(&r, "act.ffn('all', 'cas', 5)", "options like");
    raises(&r, "act.ffn('all', 'cas', { layer = 5 })", "did you mean 'layers'");
    raises(&r, "act.ffn('all', 'cas', { layers = { 5 } })", "{ from, to }");
    raises(&r, "act.ffn('all', 'cas', { layers = { -1, 2 } })", "a layer must be a whole number");
    raises(&r, "act.ffn('all', 'cas', { layers = { 0.5, 2 } })", "a layer must be a whole number");
    raises(&r, "act.ffn('all', 'cas', { layers = { 'a', 2 } })", "a layer must be a number");
    rehearsal_free(&r);
    struct rehearsal_size plain = pooled;
    plain.n_pooled = 0;
    rehearsal_init(&r, plain, 100);
    holds(&r, "local ok, why = act.ffn('all', 'was') assert(not ok and why == 'every rank has all weights: start with "
              "--weights pooled')\n"
              "ok, why = view.estimate(view.groups[1], nil, 5, { ffn = 'cas' }) assert(not ok and why:sub(1, 10) == "
              "'every rank')\n"
              "assert(view.groups[1].ffn == 'local' and view.fetch_ms == 0)");
    rehearsal_free(&r);
}

static void layers_lie_on_every_rank_by_a_verb(void **state)
{
    (void)state;
    struct rehearsal r;
    rehearsal_init(&r, pooled, 1000);
    holds(&r, "assert(view.replicas == 0 and view.kv_total == 200)"
              "assert(act.weights('all', 'replicated', { layers = { 0, 1 } }))"
              "assert(act.weights('all', 'pooled') == nil)");
    rehearsal_advance(&r, 0, NULL, NULL);
    holds(&r, "assert(view.replicas == 2 and view.kv_total == 200 - 16, view.kv_total)"
              "assert(act.weights('all', 'pooled', { layers = { 1, 1 } }))");
    rehearsal_advance(&r, 0, NULL, NULL);
    holds(&r, "assert(view.replicas == 1)");
    raises(&r, "act.weights('all', 'sharded')", "how weights lie must be");
    raises(&r, "act.weights('all', 'pooled', { layer = 1 })", "the options of act.weights");
    raises(&r, "act.weights('all', 'pooled', 3)", "options like");
    holds(&r, "local ok, why = act.weights('all', 'replicated', { layers = { 0, 99 } })"
              "assert(ok == nil and why:sub(1, 14) == 'no such layers', why)");
    rehearsal_free(&r);
}

static void estimates_are_of_either_way(void **state)
{
    (void)state;
    struct rehearsal r;
    const struct layout l = {1, 1, 1};
    rehearsal_init(&r, pooled, 100);
    for (int i = 0; i < 40; i++) {
        estimator_learn(&r.world.estimate, l, (struct step_size){.rows = 10, .pool_ranks = 1}, 9e6);
        estimator_learn(&r.world.estimate, l, (struct step_size){.rows = 10, .pool_ranks = 1, .cas_layers = 6}, 3e6);
    }
    ffn_measure(&r.world.ffn_measured, 8e6, 5e6);
    holds(&r,
          "local g = view.groups[1]\n"
          "local function near(ms, want) assert(math.abs(ms - want) < 0.2, ms) end\n"
          "near(view.estimate(g, nil, 10, { ffn = 'was' }), 9) near(view.estimate(g, nil, 10, { ffn = 'cas' }), 3)\n"
          "near(view.estimate(g, nil, 10), 9) act.ffn(g, 'cas') near(view.estimate(g, nil, 10), 3)\n"
          "near(view.estimate(view.groups[2], nil, 10), 9)\n"
          "assert(select(2, view.estimate(g, nil, 10, { ffn = 'cas' })) == 40)\n"
          "assert(view.fetch_ms == 8 and view.was_wait_ms == 5)");
    raises(&r, "view.estimate(view.groups[1], nil, 10, { ffn = 'local' })", "ffn must be \"was\" or \"cas\"");
    raises(&r, "view.estimate(view.groups[1], nil, 10, { way = 'cas' })", "has no field 'way'");
    raises(&r, "view.estimate(view.groups[1], nil, 10, 'cas')", "options like");
    rehearsal_free(&r);
}

static void the_node_says_how_it_is_pooled(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct rehearsal_size size = pooled;
        struct rehearsal r;
        struct script *s;
        struct err e = {0};
        size.n_pooled = i ? 6 : 0;
        rehearsal_init(&r, size, 100);
        if (open_script(&s,
                        i ? "return { api = 1, doc = 'x', step = function() end, start = function(node, act)\n"
                            "local f = node.ffn assert(node.residency == 'pooled' and f.layers == 6 and f.slots == 4)\n"
                            "assert(f.layer_bytes > 0 and f.freed_bytes > 0 and #f.owners == 6 and f.owners[6] == 1)\n"
                            "assert(act.ffn('all', 'cas')) end }"
                          : "return { api = 1, doc = 'x', step = function() end, start = function(node)\n"
                            "assert(node.residency == 'replicated' and node.ffn == false) end }",
                        &e))
            fail_msg("%s", e.text);
        struct node_facts node = rehearsal_node(&r);
        struct view v = rehearsal_view(&r);
        plan_begin(&r.plan, r.now_ns);
        if (!verdict_stands(script_start(s, &node, &v, &r.plan, &e)))
            fail_msg("%s", e.text);
        assert_int_equal(r.plan.n_verbs, i);
        script_close(s);
        rehearsal_free(&r);
    }
}

/* ---- on the engine */

static const char serves[] = "for _, g in ipairs(view.idle) do local b = act.batch(g) b:decodes() "
                             "b:prefill(view.waiting) if b.tokens > 0 then act.forward(g, b) end end";

static const char *policy_of(const char *params, const char *code)
{
    static char text[4096];
    snprintf(text, sizeof text,
             "return { api = 1, doc = 'x', params = { %s }, step = function(view, act, p) %s %s end }", params, code,
             serves);
    return text;
}

/* Layers that some group sends rows for, groups to come included. */
static int sent(const struct rig *t)
{
    const struct world *w = engine_world(t->engine);
    int n = ffn_count_cas(&w->ffn_usual, w->ffn->n_layers);
    for (int i = 0; i < w->partition.n_groups; i++)
        n += ffn_count_cas(&partition_group(&w->partition, i)->ffn, w->ffn->n_layers);
    return n;
}

static void tell(struct rig *t, enum engine_in kind, const char *params)
{
    rig_post(t, kind, params ? mem_strdup(params) : NULL, params ? strlen(params) : 0);
    rig_turn(t);
}

static struct ffn_setup two_layers(void)
{
    struct ffn_setup f = {.n_ranks = 4, .n_layers = 2, .n_slots = 2, .tile_bytes = 1 << 20};
    assert_int_equal(ffn_parse_owners(&f, "layer-mod", NULL), 0);
    return f;
}

/* A policy that has all groups send rows is live, and requests run. */
static void open_sending(struct rig *t, const struct ffn_setup *f)
{
    rig_open(t, &(struct rig_knobs){.ranks = 4, .group_size = 1, .blocks = 16384, .ffn = f});
    rig_live(t, "plain", policy_of("", ""));
    rig_live(t, "sender",
             policy_of("fall = { default = false }", "if p.fall then error('as told') end act.ffn('all', 'cas')"
                                                     " if view.replicas == 0 then act.weights('all', 'replicated', "
                                                     "{ layers = { 0, 0 } }) end"));
    for (int i = 0; i < 8; i++)
        rig_submit(t, "", 20, 60);
    rig_run_until(t, clock_now(&t->clock) + 10000000);
    assert_int_equal(sent(t), 10);
    assert_int_equal(world_count_replicas(engine_world(t->engine), REPLICA_HERE), 1);
}

static void a_policy_that_goes_takes_its_ways_with_it(void **state)
{
    (void)state;
    struct ffn_setup f = two_layers();
    for (int way = 0; way < 3; way++) {
        struct rig t;
        open_sending(&t, &f);
        if (way == 0) {
            rig_live(&t, "next", policy_of("", ""));
        } else if (way == 1) {
            tell(&t, IN_ROLLBACK, NULL);
            assert_int_equal(t.reply_code, 0);
        } else {
            tell(&t, IN_PARAMS, "{\"fall\": true}");
            rig_run_until(&t, clock_now(&t.clock) + 20000000);
            assert_int_equal(rig_state(&t, "policy.withdrawn"), 1);
        }
        assert_int_equal(sent(&t), 0);
        rig_settle(&t);
        rig_check(&t);
        assert_int_equal(world_count_replicas(engine_world(t.engine), REPLICA_NONE), 2);
        for (int r = 0; r < 4; r++)
            assert_int_equal(engine_world(t.engine)->kv.ranks[r].n_lent, 0);
        rig_close(&t);
    }
}

static void a_swap_that_is_refused_changes_no_way(void **state)
{
    (void)state;
    struct ffn_setup f = two_layers();
    struct rig t;
    open_sending(&t, &f);
    assert_int_not_equal(rig_swap(&t, "bad",
                                  "return { api = 1, doc = 'x', step = function() end, start = function(node, act) "
                                  "act.ffn('all', 'was') if node.model == 'sim' then error('no') end end }"),
                         0);
    assert_int_equal(sent(&t), 10);
    assert_int_equal(world_count_replicas(engine_world(t.engine), REPLICA_HERE), 1);
    rig_live(&t, "starts",
             "return { api = 1, doc = 'x', start = function(node, act) if node.ffn then act.ffn('all', "
             "'cas', { layers = { 1, 1 } }) act.weights('all', 'replicated', { layers = { 0, 0 } }) end end, step = "
             "function(view, act) for _, g in "
             "ipairs(view.idle) do local b = act.batch(g) b:decodes() b:prefill(view.waiting) if "
             "b.tokens > 0 then act.forward(g, b) end end end }");
    assert_int_equal(sent(&t), 5); /* its own start comes after the end of what was */
    rig_run_until(&t, clock_now(&t.clock) + 10000000);
    assert_int_equal(world_count_replicas(engine_world(t.engine), REPLICA_HERE), 1); /* which keeps the copies */
    rig_settle(&t);
    rig_check(&t);
    rig_close(&t);
}

/* A device whose steps cost what a pool costs. */
static int finish_pooled(struct device *d, struct step_time *time, struct err *e)
{
    int rc = backend_sim()->finish(d, time, e);
    time->ffn =
        (struct ffn_cost){.wait_ns = 250000, .fetch_ns = 800000, .was_bytes = 1000, .cas_bytes = 40, .cas_rows = 3};
    return rc;
}

static void what_crosses_between_ranks_is_counted_and_shown(void **state)
{
    (void)state;
    struct backend_ops ops = *backend_sim();
    struct ffn_setup f = two_layers();
    struct rig t;
    ops.finish = finish_pooled;
    rig_open(&t, &(struct rig_knobs){.ranks = 4, .group_size = 1, .ffn = &f, .ops = &ops});
    rig_live(&t, "looks",
             policy_of("", "local g = view.groups[1] if g and g.ffn ~= 'local' and g.steps > 0 and view.fetch_ms == 0 "
                           "then error('no fact') end"));
    rig_submit(&t, "", 20, 30);
    rig_settle(&t);
    rig_check(&t);
    assert_int_equal(rig_state(&t, "policy.fallback_steps.error"), 0);
    double steps = rig_metric(&t, "moonshift:steps_total{engine=\"0\",model_name=\"sim\"} ");
    assert_true(steps >= 30);
    static const struct {
        enum counter c;
        const char *name;
        double each;
    } counts[] = {{C_WAS_BYTES, "moonshift:was_bytes_total", 1000},
                  {C_WAS_WAIT_NS, "moonshift:was_wait_seconds_total", 250e-6},
                  {C_CAS_BYTES, "moonshift:cas_bytes_total", 40},
                  {C_CAS_ROWS, "moonshift:cas_rows_total", 3}};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        char line[120];
        snprintf(line, sizeof line, "%s{engine=\"0\",model_name=\"sim\"} ", counts[i].name);
        assert_float_equal(rig_metric(&t, line), steps * counts[i].each, 1e-7);
    }
    assert_float_equal(rig_state(&t, "ffn.fetch_ms"), 0.8, 1e-9);
    assert_float_equal(rig_state(&t, "ffn.wait_ms"), 0.25, 1e-9);
    assert_int_equal(rig_state(&t, "ffn.layers"), 2);
    assert_non_null(strstr(t.reply.data, "\"owners\":[0,1]}"));
    assert_non_null(strstr(t.reply.data, "\"ffn\":\"was\""));
    rig_close(&t);
    rig_open(&t, &(struct rig_knobs){.ranks = 4, .group_size = 1, .ops = &ops});
    rig_submit(&t, "", 20, 30);
    rig_settle(&t);
    assert_int_equal(rig_metric(&t, "moonshift:was_bytes_total{engine=\"0\",model_name=\"sim\"} "), 0);
    rig_post(&t, IN_STATE, NULL, 0);
    rig_turn(&t);
    assert_non_null(strstr(t.reply.data, ",\"ffn\":null,"));
    assert_non_null(strstr(t.reply.data, "\"ffn\":\"local\""));
    rig_close(&t);
}

static int start_dog(void **state)
{
    struct err e;
    (void)state;
    return lua_watchdog_start(&dog, &e);
}

static int stop_dog(void **state)
{
    (void)state;
    lua_watchdog_stop(dog);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_verb_says_what_the_plan_holds),
        cmocka_unit_test(the_verb_refuses_with_a_reason_and_raises_on_wrong_types),
        cmocka_unit_test(layers_lie_on_every_rank_by_a_verb),
        cmocka_unit_test(estimates_are_of_either_way),
        cmocka_unit_test(the_node_says_how_it_is_pooled),
        cmocka_unit_test(a_policy_that_goes_takes_its_ways_with_it),
        cmocka_unit_test(a_swap_that_is_refused_changes_no_way),
        cmocka_unit_test(what_crosses_between_ranks_is_counted_and_shown),
    };
    return cmocka_run_group_tests(tests, start_dog, stop_dog);
}
