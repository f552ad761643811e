/* act.hold: a policy holds requests back on purpose. That is no stall and no starvation, it has an end, and everybody
 * can see it. */
#include "tests/rig/policy_rig.h"

/* A tenant called red is held in admit or in step, until `until` seconds; everybody else is served. */
static const char quota[] = "local n = 0\n"
                            "return { api = 1, doc = 'quota', needs = { 'tenant', 'held' },\n"
                            "admit = function(r, view, act) if r.tenant == 'red' and not r.again then "
                            "assert(act.hold(r, 'quota', view.now + 2)) end end,\n"
                            "step = function(view, act) n = n + 1\n"
                            "  local w = view.waiting\n"
                            "  for i = 1, w.n do if w.tenant[i] == 'green' and w.held[i] == 0 then "
                            "assert(act.hold(w.id[i], 'green waits', view.now + 1)) end end\n"
                            "  for _, g in ipairs(view.idle) do local b = act.batch(g) b:decodes() b:prefill(w) if "
                            "b.tokens > 0 then act.forward(g, b) end end end }";

static void load(struct rig *t, const char *source)
{
    if (rig_swap(t, "hold", source))
        fail_msg("%s\n%s", source, t->reply.data);
}

static void in_seconds(struct rig *t, double s)
{
    rig_run_until(t, clock_now(&t->clock) + SECONDS(s));
}

static void check_untroubled(struct rig *t)
{
    assert_int_equal(rig_metric(t, "policy_fallback_total{reason=\"stalled\"}"), 0);
    assert_int_equal(rig_metric(t, "policy_fallback_total{reason=\"starved\"}"), 0);
    assert_int_equal(rig_state(t, "policy.withdrawn"), 0);
}

/* Held longer than any bound of waiting, and nobody is blamed; others pass it; then it runs by itself. */
static void who_is_held_waits_and_nobody_is_blamed(void **state)
{
    (void)state;
    struct rig t;
    rig_open(&t, &(struct rig_knobs){.starvation_s = 0.3});
    load(&t, quota);
    uint64_t red = rig_submit(&t, "red", 20, 5), blue = rig_submit(&t, "blue", 20, 5);
    in_seconds(&t, 1);
    assert_int_equal(t.heard[blue].ending, END_LENGTH);
    assert_int_equal(t.heard[red].n_ends, 0);
    assert_int_equal(
        rig_metric(&t, "vllm:num_requests_waiting_by_reason{engine=\"0\",model_name=\"sim\",reason=\"held\"}"), 1);
    assert_int_equal(
        rig_metric(&t, "vllm:num_requests_waiting_by_reason{engine=\"0\",model_name=\"sim\",reason=\"capacity\"}"), 0);
    assert_int_equal(rig_metric(&t, "policy_decisions_total{action=\"hold\"}"), 1);
    rig_post(&t, IN_STATE, NULL, 0);
    rig_turn(&t);
    assert_non_null(strstr(t.reply.data, "\"state\":\"held\""));
    assert_non_null(strstr(t.reply.data, "\"held\":{\"for_s\":1.000,\"reason\":\"quota\"}"));
    in_seconds(&t, 1.5);
    assert_int_equal(t.heard[red].ending, END_LENGTH);
    assert_true(t.heard[red].end_ns >= SECONDS(3) && t.heard[red].end_ns < SECONDS(3.1));
    check_untroubled(&t);
    rig_check(&t);
    rig_close(&t);
}

/* Held in step, with nobody else here: the engine rests until the hold ends. */
static void a_held_house_rests(void **state)
{
    (void)state;
    struct rig t;
    rig_open(&t, &(struct rig_knobs){.starvation_s = 0.3});
    load(
        &t,
        "return { api = 1, doc = 'x', needs = { 'held', 'tenant' }, step = function(view, act) local w = view.waiting\n"
        "  for i = 1, w.n do if w.held[i] == 0 and view.now < 2 then act.hold(w.id[i], 'later', 2.5) end end\n"
        "  for _, g in ipairs(view.idle) do local b = act.batch(g) b:decodes() b:prefill(w) if b.tokens > 0 then "
        "act.forward(g, b) end end end }");
    rig_submit(&t, "", 20, 5);
    rig_submit(&t, "", 20, 5);
    rig_turn(&t);
    uint64_t before = engine_world(t.engine)->step;
    in_seconds(&t, 1.2);
    assert_int_equal(engine_world(t.engine)->n_held, 2);
    assert_true(engine_world(t.engine)->step - before <= 4);
    assert_int_equal(engine_next_ns(t.engine), SECONDS(2.5));
    in_seconds(&t, 1);
    check_untroubled(&t);
    rig_check(&t);
    rig_close(&t);
}

/* Whoever goes or comes takes the holds with it: a cancel, a swap, a rollback, a withdrawal; and nil. */
static void a_hold_ends_with_its_policy(void **state)
{
    (void)state;
    static const char fcfs[] = "return { api = 1, doc = 'x', step = function(view, act) for _, g in ipairs(view.idle) "
                               "do local b = act.batch(g) b:decodes() "
                               "b:prefill() if b.tokens > 0 then act.forward(g, b) end end end }";
    static const char bad[] = "return { api = 1, doc = 'x', needs = { 'held' }, admit = function(r, view, act) "
                              "act.hold(r, 'for an hour', view.now + 3600) end,\n"
                              "step = function(view, act) act.wake(100) if view.now > 1.5 and view.now < 4 and "
                              "view.n_waiting == 1 and view.waiting.held[1] > 3000 then"
                              " while true do end end end }";
    for (int how = 0; how < 4; how++) {
        struct rig t;
        rig_open(&t, &(struct rig_knobs){.hard_ns = 20000000});
        load(&t, fcfs);
        load(&t, bad);
        uint64_t held = rig_submit(&t, "", 20, 5);
        in_seconds(&t, 0.3);
        assert_int_equal(engine_world(t.engine)->n_held, 1);
        if (how == 0) {
            load(&t, fcfs);
        } else if (how == 1) {
            rig_post(&t, IN_ROLLBACK, NULL, 0);
        } else if (how == 2) {
            struct engine_message m = {.kind = IN_CANCEL, .tag = held, .code = END_ABORT};
            queue_post(engine_inbox(t.engine), &m);
        }
        in_seconds(&t, 2);
        assert_int_equal(t.heard[held].ending, how == 2 ? END_ABORT : END_LENGTH);
        assert_int_equal(engine_world(t.engine)->n_held, 0);
        assert_int_equal(rig_state(&t, "policy.withdrawn"), how == 3);
        rig_check(&t);
        rig_close(&t);
    }
}

/* The policy lets go when somebody else has gone: the events of those who are not held are told to it. */
static void a_policy_lets_go(void **state)
{
    (void)state;
    struct rig t;
    rig_open(&t, &(struct rig_knobs){.starvation_s = 0.3});
    load(&t, "local live = 0 return { api = 1, doc = 'one at a time', needs = { 'held', 'waiting.first' },\n"
             "admit = function(r, view, act) act.hold(r, 'one at a time', view.now + 600) end, finish = function() "
             "live = 0 end,\n"
             "step = function(view, act) local w = view.waiting\n"
             "  if live == 0 and w.first[1] then live = 1 assert(act.hold(w.id[w.first[1]], nil)) end\n"
             "  for _, g in ipairs(view.idle) do local b = act.batch(g) b:decodes() b:prefill() if b.tokens > 0 then "
             "act.forward(g, b) end end end }");
    for (int i = 0; i < 6; i++)
        rig_submit(&t, "", 20, 5);
    in_seconds(&t, 3);
    check_untroubled(&t);
    for (uint64_t i = 2; i <= t.n_tags; i++)
        assert_true(t.heard[i].end_ns > t.heard[i - 1].end_ns);
    rig_check(&t);
    rig_close(&t);
}

/* Every argument is checked, and an hour is the most there is. */
static void holds_are_checked(void **state)
{
    (void)state;
    static const struct {
        const char *code, *why; /* why: of what assert raises; NULL: it is fine */
    } cases[] = {
        {"assert(act.hold(w.id[1], 'x', view.now + 3599))", NULL},
        {"assert(act.hold(w.id[1], 'x'))", NULL},
        {"assert(act.hold(w.id[1]))", NULL},
        {"assert(act.hold(w.id[1], 'x', view.now + 3601))", "for an hour in all"},
        {"assert(act.hold(w.id[1], 'x', view.now))", "would end in the past"},
        {"assert(act.hold(w.id[1], 'x', 1 / 0))", "until must be a time like view.now"},
        {"assert(act.hold(w.id[1], 'x', 0 / 0))", "until must be a time like view.now"},
        {"assert(act.hold(w.id[1], 'x', 'soon'))", "until must be a time like view.now, not a string"},
        {"assert(act.hold(w.id[1], 5))", "a reason in words is expected, not a number"},
        {"assert(act.hold(65536 * 60000, 'x'))", "no such request"},
        {"assert(act.hold(view.running.id[1], 'x'))", "only a request that waits can be held"},
        {"act.hold(w.id[1], 'x') assert(b:add(w.id[1]))", "already used the request"},
        {"act.hold(w.id[1], 'x') b:prefill() assert(b.tokens == 0)", NULL},
        {"b:add(w.id[1]) assert(act.hold(w.id[1], 'x'))", "already used the request"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct rig t;
        char source[1024], error[600];
        rig_open(&t, &(struct rig_knobs){0});
        snprintf(source, sizeof source,
                 "return { api = 1, doc = 'x', needs = { 'id' }, step = function(view, act) local w, b = view.waiting, "
                 "act.batch(view.idle[1])\n"
                 "if view.now < 2 and w.n == 1 and view.running.n == 1 then %s end\n"
                 "b:decodes() b:prefill() if b.tokens > 0 then act.forward(b.group, b) end end }",
                 cases[i].code);
        load(&t, source);
        rig_submit(&t, "", 20, 30);
        in_seconds(&t, 0.01);
        rig_submit(&t, "", 20, 30);
        in_seconds(&t, 0.05);
        rig_last_error(&t, error, sizeof error);
        if (!cases[i].why != !*error || (cases[i].why && !strstr(error, cases[i].why)))
            fail_msg("%s\n%s", cases[i].code, error);
        for (uint64_t k = 1; k <= t.n_tags; k++) {
            struct engine_message m = {.kind = IN_CANCEL, .tag = k, .code = END_ABORT};
            queue_post(engine_inbox(t.engine), &m);
        }
        in_seconds(&t, 1);
        rig_check(&t);
        rig_close(&t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(who_is_held_waits_and_nobody_is_blamed),
        cmocka_unit_test(a_held_house_rests),
        cmocka_unit_test(a_hold_ends_with_its_policy),
        cmocka_unit_test(a_policy_lets_go),
        cmocka_unit_test(holds_are_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
