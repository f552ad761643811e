/* What a call costs is told apart: code that executes too much is judged by that, on however slow a machine; the clock
 * counts only where it costs something, and never for a core that somebody else had. */
#include "tests/rig/policy_rig.h"

#include "engine/base/clock.h"
#include "lua/gauge.h"
#include "lua/vm.h"
#include "lua/watchdog.h"

#include <lauxlib.h>

/* ---- the gauge, on a clock of the test's */

static const struct gauge_limits limits = {.bytecodes = 1000, .cpu_ns = 100000};

static void burn(int64_t ns)
{
    int64_t until = clock_thread_cpu() + ns;
    while (clock_thread_cpu() < until)
        ;
}

/* n calls that take so long by the clock, and really compute for burnt_ns, so far apart. Returns how many were called
 * slow. */
static int calls(struct gauge *g, int n, int64_t took_ns, int64_t burnt_ns, int64_t apart_ns)
{
    static int64_t now = 1000000000000;
    int slow = 0;
    for (int i = 0; i < n; i++) {
        gauge_begin(g, &limits, now);
        if (burnt_ns)
            burn(burnt_ns);
        slow += gauge_end(g, &limits, now + took_ns) == VERDICT_SLOW;
        now += apart_ns;
    }
    return slow;
}

static void a_core_that_others_had_is_no_slow_call(void **state)
{
    (void)state;
    struct gauge g = {0};
    assert_int_equal(calls(&g, 500, 5000000, 0, 6000000), 0);
}

static void time_counts_where_it_costs_something(void **state)
{
    (void)state;
    struct gauge g = {0}, rare = {0};
    assert_true(calls(&g, 50, 1000000, 150000, 20000000) > 30);        /* 5% of the time, and its own */
    assert_int_equal(calls(&rare, 50, 1000000, 150000, 200000000), 0); /* half a percent */
    assert_int_equal(calls(&g, 200, 50000, 0, 2000000), 0);            /* more than 1%, but of calls that are short */
}

static void some_calls_are_counted_and_all_after_a_late_one(void **state)
{
    (void)state;
    struct gauge g = {0};
    int n = 0;
    calls(&g, 3200, 1000, 0, 20000000);
    assert_in_range(g.n_counted, 50, 200);
    calls(&g, 1, 1000000, 0, 20000000);
    for (int i = 0; i < 20; i++) {
        n += gauge_begin(&g, &limits, 1);
        assert_int_equal(gauge_end(&g, &limits, 2), VERDICT_OK);
    }
    assert_int_equal(n, 20);
    const struct gauge_limits none = {0};
    assert_false(gauge_begin(&g, &none, 1));
}

/* ---- the machine: 2 ms, in a call that executes next to nothing and in one that loops */

static int burn_a_tenth(lua_State *L)
{
    (void)L;
    burn(100000);
    return 0;
}

static void work(lua_State *L, void *n)
{
    assert_int_equal(luaL_loadstring(L, "local f, n = ... for i = 1, n do f() end while n == 0 do end"), 0);
    lua_pushcfunction(L, burn_a_tenth);
    lua_pushinteger(L, *(int *)n);
    lua_call(L, 2, 0);
}

/* Where the host has too much to do, a virtual machine calls it CPU time when it stands still. */
static void a_call_that_executes_next_to_nothing_has_more_time(void **state)
{
    (void)state;
    struct err e = {0};
    struct lua_watchdog *dog;
    struct vm vm;
    struct vm_budget budget = {.hard_ns = 2000000};
    assert_int_equal(lua_watchdog_start(&dog, &e), 0);
    assert_int_equal(vm_create(&vm, dog, 1 << 20, &e), 0);
    assert_int_equal(vm_call(&vm, budget, work, &(int){35}, &e), VERDICT_OK);
    assert_int_equal(vm_call(&vm, budget, work, &(int){300}, &e), VERDICT_TIMEOUT);
    assert_int_equal(vm_call(&vm, budget, work, &(int){0}, &e), VERDICT_TIMEOUT);
    assert_int_equal(vm_call(&vm, budget, work, &(int){1}, &e), VERDICT_OK);
    vm_destroy(&vm);
    lua_watchdog_stop(dog);
}

/* ---- live */

enum { LONG_MS = 2000 };

#define SERVE                                                                                                          \
    "for _, g in ipairs(view.idle) do local b = act.batch(g) b:decodes() b:prefill(view.waiting) if b.tokens > 0 "     \
    "then act.forward(g, b) end end"

/* Some hundred steps, then its params change: from there on its step is what the test wants. */
static void run_policy(struct rig *t, const char *code)
{
    char source[2000];
    snprintf(source, sizeof source,
             "return { api = 1, doc = 'cost', params = { bad = { default = false, doc = 'x' } }, step = function(view, "
             "act, p)\n"
             "if p.bad then %s end " SERVE " end }",
             code);
    if (rig_swap(t, "cost", source))
        fail_msg("%s", t->reply.data);
    for (int i = 0; i < 40; i++)
        rig_submit(t, "", 20, 20);
    rig_settle(t);
    assert_int_equal(rig_state(t, "policy.withdrawn"), 0);
    const char *params = "{\"bad\": true}";
    rig_post(t, IN_PARAMS, mem_strdup(params), strlen(params));
    for (int i = 0; i < 120; i++)
        rig_submit(t, "", 20, 20);
    rig_settle(t);
}

static void code_that_executes_too_much_is_withdrawn(void **state)
{
    (void)state;
    struct rig t;
    char error[600];
    rig_open(&t, &(struct rig_knobs){.hard_ns = LONG_MS * 1000000ll});
    run_policy(&t, "local x = 0 for i = 1, 150000 do x = x + i end");
    assert_int_equal(rig_state(&t, "policy.withdrawn"), 1);
    rig_last_error(&t, error, sizeof error);
    if (!strstr(error, "step: heavy: ") || !strstr(error, "executed some 300") || !strstr(error, "; for good"))
        fail_msg("%s", error);
    rig_check(&t);
    rig_close(&t);
}

/* 12 000 bytecodes: less than a step may, and twenty times what the dearest of ours executes. */
static void code_within_its_limit_stays(void **state)
{
    (void)state;
    struct rig t;
    rig_open(&t, &(struct rig_knobs){.hard_ns = LONG_MS * 1000000ll});
    run_policy(&t, "local x = 0 for i = 1, 6000 do x = x + i end");
    assert_int_equal(rig_state(&t, "policy.withdrawn"), 0);
    assert_int_equal(rig_metric(&t, "policy_hook_errors_total{hook=\"step\",kind=\"heavy\"}"), 0);
    rig_close(&t);
}

static void the_dry_runs_refuse_it(void **state)
{
    (void)state;
    struct rig t;
    rig_open(&t, &(struct rig_knobs){.hard_ns = LONG_MS * 1000000ll});
    assert_int_equal(rig_swap(&t, "loops",
                              "return { api = 1, doc = 'x', step = function(view, act, p)\n"
                              "for i = 1, 100000 do local x = i end " SERVE " end }"),
                     E_POLICY);
    if (!strstr(t.reply.data, "bytecodes: more than 20000 (dry run of step on"))
        fail_msg("%s", t.reply.data);
    /* now and then is a price that a policy may pay */
    assert_int_equal(rig_swap(&t, "seldom",
                              "local n = 0 return { api = 1, doc = 'x', step = function(view, act, p) n = n + 1\n"
                              "if n % 20 == 0 then for i = 1, 100000 do local x = i end end " SERVE " end }"),
                     0);
    rig_close(&t);
}

/* ---- tried again: first come, first served by C, whose steps are slow as long as the machine is busy */

struct busy {
    bool now;
    int n_starts, n_destroyed;
};

static enum verdict busy_start(void *ctx, const struct node_facts *node, const struct view *v, struct plan *p,
                               struct err *e)
{
    (void)node, (void)v, (void)p, (void)e;
    ((struct busy *)ctx)->n_starts++;
    return VERDICT_OK;
}

static enum verdict busy_step(void *ctx, const struct view *v, struct plan *p, struct err *e)
{
    struct policy native;
    policy_fcfs(&native);
    native.ops->step(native.ctx, v, p, e);
    if (!((struct busy *)ctx)->now)
        return VERDICT_OK;
    err_set(e, E_POLICY, "took 999 us");
    return VERDICT_SLOW;
}

static void busy_destroy(void *ctx)
{
    ((struct busy *)ctx)->n_destroyed++;
}

static void go_live(struct rig *t, struct busy *b)
{
    static const struct policy_ops ops = {.start = busy_start, .step = busy_step, .destroy = busy_destroy};
    struct policy *p = mem_new(sizeof *p);
    *p = (struct policy){.ops = &ops, .ctx = b, .name = "busy", .sha256 = "b1"};
    rig_post(t, IN_POLICY, p, 0);
    rig_turn(t);
    assert_int_equal(t->reply_code, 0);
}

/* As many requests as fill some two hundred steps. */
static void serve(struct rig *t)
{
    for (int i = 0; i < 20; i++)
        rig_submit(t, "", 20, 100);
    rig_turn(t);
    for (int i = 0; i < 200 && engine_world(t->engine)->requests.n_live; i++)
        rig_run_until(t, clock_now(&t->clock) + 10000000);
    assert_int_equal(engine_world(t->engine)->requests.n_live, 0);
}

static void expect_error(struct rig *t, const char *part)
{
    char error[600];
    rig_last_error(t, error, sizeof error);
    if (!strstr(error, part))
        fail_msg("'%s' has no '%s'", error, part);
}

static void slowness_alone_is_forgiven_later(void **state)
{
    (void)state;
    struct rig t;
    struct busy b = {.now = true};
    rig_open(&t, &(struct rig_knobs){0});
    go_live(&t, &b);
    serve(&t);
    assert_int_equal(rig_state(&t, "policy.withdrawn"), 1);
    assert_string_equal(engine_policy(t.engine)->sha256, "native");
    double in_s = rig_state(&t, "policy.retry.in_s");
    assert_true(in_s > 5 && in_s <= 10);
    assert_int_equal(rig_state(&t, "policy.retry.number"), 1);
    assert_int_equal(rig_metric(&t, "policy_info{policy=\"busy\",version=\"b1\",sha256=\"b1\",state=\"resting\"}"), 1);
    expect_error(&t, "step: slow: took 999 us; busy is withdrawn: too many calls that take more time than they are "
                     "worth; to be tried again in 10 s, number 1 of 5");
    b.now = false;
    rig_run_until(&t, clock_now(&t.clock) + 11000000000); /* nobody is served meanwhile: by itself */
    assert_string_equal(engine_policy(t.engine)->name, "busy");
    assert_int_equal(b.n_starts, 2);
    assert_int_equal(rig_metric(&t, "policy_swaps_total{kind=\"retried\"}"), 1);
    assert_int_equal(rig_metric(&t, "policy_swaps_total{kind=\"swap\"}"), 1);
    serve(&t);
    assert_string_equal(engine_policy(t.engine)->name, "busy");
    assert_int_equal(rig_state(&t, "policy.withdrawn"), 1);
    rig_check(&t);
    rig_close(&t);
    assert_int_equal(b.n_destroyed, 1);
}

static void not_for_ever(void **state)
{
    (void)state;
    static const int64_t rests_s[] = {10, 30, 90, 270, 810};
    struct rig t;
    struct busy b = {.now = true};
    rig_open(&t, &(struct rig_knobs){0});
    go_live(&t, &b);
    for (int i = 0; i < 5; i++) {
        serve(&t);
        assert_int_equal(rig_state(&t, "policy.withdrawn"), i + 1);
        assert_int_equal(rig_state(&t, "policy.retry.number"), i + 1);
        rig_run_until(&t, clock_now(&t.clock) + (rests_s[i] - 3) * 1000000000);
        assert_string_equal(engine_policy(t.engine)->sha256, "native");
        rig_run_until(&t, clock_now(&t.clock) + 4000000000);
        assert_string_equal(engine_policy(t.engine)->name, "busy");
    }
    assert_int_equal(b.n_destroyed, 0);
    serve(&t);
    assert_int_equal(b.n_destroyed, 1);
    expect_error(&t, "for good, after 5 more tries");
    rig_run_until(&t, clock_now(&t.clock) + 10000000000000);
    assert_string_equal(engine_policy(t.engine)->sha256, "native");
    rig_check(&t);
    rig_close(&t);
}

/* Whoever says what is to be live has said that the one that rests is not. */
static void a_swap_ends_the_rest(void **state)
{
    (void)state;
    struct rig t;
    struct busy b = {.now = true};
    rig_open(&t, &(struct rig_knobs){0});
    go_live(&t, &b);
    serve(&t);
    assert_int_equal(
        rig_swap(&t, "plain", "return { api = 1, doc = 'x', step = function(view, act, p) " SERVE " end }"), 0);
    assert_int_equal(b.n_destroyed, 1);
    rig_run_until(&t, clock_now(&t.clock) + 20000000000);
    assert_string_equal(engine_policy(t.engine)->name, "plain");
    rig_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_core_that_others_had_is_no_slow_call),
        cmocka_unit_test(time_counts_where_it_costs_something),
        cmocka_unit_test(some_calls_are_counted_and_all_after_a_late_one),
        cmocka_unit_test(a_call_that_executes_next_to_nothing_has_more_time),
        cmocka_unit_test(code_that_executes_too_much_is_withdrawn),
        cmocka_unit_test(code_within_its_limit_stays),
        cmocka_unit_test(the_dry_runs_refuse_it),
        cmocka_unit_test(slowness_alone_is_forgiven_later),
        cmocka_unit_test(not_for_ever),
        cmocka_unit_test(a_swap_ends_the_rest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
