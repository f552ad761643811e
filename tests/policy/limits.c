/* Limits that an operator changes while a policy decides: it sees them at its next call, nobody who runs is thrown out,
 * an order that is refused changes nothing, and a probation ends undecided. */
#include "tests/rig/policy_rig.h"

/* First come, first served, that keeps what it has been told of the limits in its state. */
static const char policy[] = "local seen = {}\n"
                             "return { api = 1, doc = 'x',\n"
                             "  start = function(node) seen.built = node.max_num_seqs end,\n"
                             "  export = function() return seen end,\n"
                             "  step = function(view, act)\n"
                             "    seen.seqs, seen.tokens = view.max_num_seqs, view.max_num_batched_tokens\n"
                             "    act.log(string.format('%d %d', seen.seqs, seen.tokens))\n"
                             "    for _, g in ipairs(view.idle) do\n"
                             "      local b = act.batch(g) b:decodes() b:prefill(view.waiting)\n"
                             "      if b.tokens > 0 then act.forward(g, b) end\n"
                             "    end end }\n";

/* It refuses to start where it is told of five. */
static const char not_five[] = "return { api = 1, doc = 'x',\n"
                               "  start = function(node) assert(node.max_num_seqs ~= 5, 'told of five') end,\n"
                               "  step = function(view, act) for _, g in ipairs(view.idle) do\n"
                               "    local b = act.batch(g) b:decodes() b:prefill(view.waiting)\n"
                               "    if b.tokens > 0 then act.forward(g, b) end end end }\n";

static int order(struct rig *t, const char *json)
{
    struct limits_order *o = mem_new(sizeof *o);
    struct err e = {0};
    if (limits_read(o, json, strlen(json), &e))
        fail_msg("%s", e.text);
    rig_post(t, IN_LIMITS, o, sizeof *o);
    rig_turn(t);
    return t->reply_code;
}

/* What the policy has said in its last plan. */
static const char *said(struct rig *t)
{
    const struct plan *p = engine_plan(t->engine);
    for (int i = 0; i < p->n_verbs; i++)
        if (p->verbs[i].kind == PLAN_LOG)
            return p->verbs[i].text;
    return "";
}

static void the_policy_sees_them_and_nobody_is_thrown_out(void **state)
{
    (void)state;
    struct rig t;
    rig_open(&t, &(struct rig_knobs){.seqs = 8, .batched = 64});
    rig_live(&t, "p", policy);
    const struct world *w = engine_world(t.engine);
    for (int i = 0; i < 12; i++)
        rig_submit(&t, "a", 5, 40 + i);
    rig_run_until(&t, clock_now(&t.clock) + 10000000);
    assert_int_equal(w->running.n, 8);
    assert_string_equal(said(&t), "8 64");
    assert_int_equal(order(&t, "{\"max_num_seqs\": 5, \"max_num_batched_tokens\": 6}"), 0);
    assert_non_null(strstr(t.reply.data, "\"changed\":\"max_num_seqs 8 -> 5, max_num_batched_tokens 64 -> 6\""));
    assert_non_null(strstr(t.reply.data, "\"start\":{\"max_num_seqs\":8,"));
    int most = 8;
    while (w->requests.n_live) {
        int64_t next = engine_next_ns(t.engine);
        clock_advance_to(&t.clock, next);
        rig_turn(&t);
        assert_true(w->running.n <= most);
        most = w->running.n > 5 ? w->running.n : 5;
        assert_true(partition_group((struct partition *)&w->partition, 0)->last_step_tokens <= 64);
    }
    assert_string_equal(said(&t), "5 6");
    assert_true(rig_metric(&t, "vllm:num_preemptions_total{engine=\"0\",model_name=\"sim\"}") == 0);
    for (uint64_t i = 1; i <= t.n_tags; i++)
        assert_true(t.heard[i].n_ends == 1 && t.heard[i].ending == END_LENGTH);
    rig_check(&t);
    rig_close(&t);
}

static void a_refused_order_changes_nothing(void **state)
{
    (void)state;
    struct rig t;
    rig_open(&t, &(struct rig_knobs){.seqs = 8, .batched = 64});
    const struct limits before = engine_world(t.engine)->limits;
    assert_int_equal(order(&t, "{\"max_num_seqs\": 2, \"max_num_batched_tokens\": 65}"), E_INPUT);
    assert_non_null(strstr(t.reply.data, "--max-num-batched-tokens 65"));
    assert_memory_equal(&engine_world(t.engine)->limits, &before, sizeof before);
    rig_post(&t, IN_LIMITS, NULL, 0); /* a question */
    rig_turn(&t);
    assert_int_equal(t.reply_code, 0);
    assert_non_null(strstr(t.reply.data, "\"max_num_batched_tokens\":{\"least\":1,\"most\":64}"));
    assert_non_null(strstr(t.reply.data, "\"changed\":\"\""));
    rig_close(&t);
}

/* The start of a policy that comes later is told of the limits of now. */
static void a_later_policy_is_told_at_its_start(void **state)
{
    (void)state;
    struct rig t;
    rig_open(&t, &(struct rig_knobs){.seqs = 8, .batched = 64});
    rig_live(&t, "p", policy);
    assert_int_equal(order(&t, "{\"max_num_seqs\": 5}"), 0);
    assert_int_equal(rig_swap(&t, "q", not_five), E_POLICY);
    assert_non_null(strstr(t.reply.data, "told of five"));
    assert_int_equal(order(&t, "{\"max_num_seqs\": 3}"), 0);
    rig_live(&t, "q", not_five);
    rig_close(&t);
}

/* Requests fare worse because of the operator: that is not held against the policy. */
static void a_probation_ends_undecided(void **state)
{
    (void)state;
    struct rig t;
    rig_open(&t, &(struct rig_knobs){.seqs = 8, .batched = 64, .probation_s = 2});
    rig_live(&t, "p", policy);
    for (int i = 0; i < 100; i++) {
        rig_submit(&t, "a", 5, 10);
        rig_run_until(&t, clock_now(&t.clock) + 20000000);
    }
    rig_live(&t, "q", policy);
    assert_int_equal(order(&t, "{\"max_num_seqs\": 1}"), 0);
    for (int i = 0; i < 100; i++) {
        rig_submit(&t, "a", 5, 10);
        rig_run_until(&t, clock_now(&t.clock) + 20000000);
    }
    assert_string_equal(engine_policy(t.engine)->name, "q");
    rig_post(&t, IN_STATE, NULL, 0);
    rig_turn(&t);
    assert_non_null(strstr(t.reply.data, "undecided: an operator has changed the limits since"));
    assert_true(rig_metric(&t, "policy_probations_total{result=\"committed\"}") >= 1);
    rig_settle(&t);
    rig_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_policy_sees_them_and_nobody_is_thrown_out),
        cmocka_unit_test(a_refused_order_changes_nothing),
        cmocka_unit_test(a_later_policy_is_told_at_its_start),
        cmocka_unit_test(a_probation_ends_undecided),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
