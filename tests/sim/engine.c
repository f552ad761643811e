/* The real engine on the simulated device in virtual time: every request has one ending, texts never depend on the
 * schedule, KV is conserved, a broken policy costs nothing but its own steps. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "engine/base/map.h"
#include "engine/base/rng.h"
#include "engine/engine.h"
#include "tests/rig/engine_rig.h"

static void one_request(void **state)
{
    (void)state;
    struct rig t;
    open_rig(&t, &(struct knobs){.seqs = 8, .batched = 64, .blocks = 64});
    submit(&t, spec_new(&t, 1, 100, 10));
    run_until(&t, INT64_MAX);
    assert_int_equal(t.heard[1].n_tokens, 10);
    assert_int_equal(t.heard[1].ending, END_LENGTH);
    assert_int_equal(t.heard[1].n_ends, 1);
    /* 64 + 36 prompt rows, then nine decodes: 11 steps of 1 ms and 109 rows of 10 us */
    assert_int_equal(clock_now(&t.clock), 1000000000 + 11 * 1000000 + 109 * 10000);
    check_books(&t);
    close_rig(&t);
}

/* Two cancels while a step is under way: what the first one said is how it ends. */
static void the_first_ending_stands(void **state)
{
    (void)state;
    struct rig t;
    open_rig(&t, &(struct knobs){.seqs = 4, .batched = 64, .blocks = 64});
    submit(&t, spec_new(&t, 1, 20, 40));
    run_until(&t, clock_now(&t.clock) + 5500000);
    int tokens = t.heard[1].n_tokens;
    assert_true(tokens > 0 && t.heard[1].n_ends == 0);
    post(&t, IN_CANCEL, 1, END_STOP, NULL);
    post(&t, IN_CANCEL, 1, END_ABORT, NULL);
    run_until(&t, INT64_MAX);
    assert_int_equal(t.heard[1].n_ends, 1);
    assert_int_equal(t.heard[1].ending, END_STOP);
    assert_int_equal(t.heard[1].n_tokens, tokens);
    check_books(&t);
    close_rig(&t);
}

/* Texts of a random load must equal those of each request alone, whatever the pool, the batch and the cancels. */
static void texts_do_not_depend_on_the_schedule(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 12; seed++) {
        struct rig t, alone;
        struct rng r;
        rng_init(&r, seed);
        enum { N = 120 };
        int prompts[N + 1], outs[N + 1];
        bool cancelled[N + 1] = {0};
        open_rig(&t, &(struct knobs){.seqs = 1 + (int)rng_below(&r, 20),
                                     .batched = 16 + (int)rng_below(&r, 200),
                                     .blocks = 20 + (int)rng_below(&r, 40)});
        for (uint64_t tag = 1; tag <= N; tag++) {
            prompts[tag] = 1 + (int)rng_below(&r, 200);
            outs[tag] = 1 + (int)rng_below(&r, 40);
            submit(&t, spec_new(&t, tag, prompts[tag], outs[tag]));
            run_until(&t, clock_now(&t.clock) + (int64_t)rng_below(&r, 8000000));
            if (rng_below(&r, 6) == 0) {
                uint64_t victim = 1 + rng_below(&r, tag);
                cancelled[victim] = true;
                post(&t, IN_CANCEL, victim, END_ABORT, NULL);
            }
        }
        run_until(&t, INT64_MAX);
        check_books(&t);
        open_rig(&alone, &(struct knobs){.seqs = 1, .batched = 512, .blocks = 60});
        for (uint64_t tag = 1; tag <= N; tag++) {
            assert_int_equal(t.heard[tag].n_ends, 1);
            submit(&alone, spec_new(&alone, tag, prompts[tag], outs[tag]));
            run_until(&alone, INT64_MAX);
            if (!cancelled[tag])
                assert_int_equal(t.heard[tag].n_tokens, outs[tag]);
            assert_memory_equal(t.heard[tag].tokens, alone.heard[tag].tokens,
                                (size_t)t.heard[tag].n_tokens * sizeof(int32_t));
        }
        close_rig(&alone);
        close_rig(&t);
    }
}

static void refusals(void **state)
{
    (void)state;
    struct rig t;
    open_rig(&t, &(struct knobs){.seqs = 1, .batched = 64, .blocks = 8, .queued = 2});
    submit(&t, spec_new(&t, 1, 128, 4)); /* the context is 128: nothing could be generated */
    for (uint64_t tag = 2; tag < 7; tag++)
        submit(&t, spec_new(&t, tag, 20, 4));
    run_until(&t, INT64_MAX);
    assert_int_equal(t.heard[1].ending, END_REFUSED);
    assert_int_equal(t.heard[1].http_status, 400);
    assert_int_equal(t.heard[2].ending, END_LENGTH);
    assert_int_equal(t.heard[3].ending, END_LENGTH);
    assert_int_equal(t.heard[6].ending, END_REFUSED);
    assert_int_equal(t.heard[6].http_status, 503);
    assert_int_equal(engine_world(t.engine)->metrics->counters[C_REFUSED_INPUT], 1);
    assert_true(engine_world(t.engine)->metrics->counters[C_REFUSED_FULL] >= 1);
    check_books(&t);
    close_rig(&t);
}

static void drain_then_stop(void **state)
{
    (void)state;
    struct rig t;
    open_rig(&t, &(struct knobs){.seqs = 4, .batched = 64, .blocks = 32});
    submit(&t, spec_new(&t, 1, 20, 8));
    run_until(&t, clock_now(&t.clock) + 3000000);
    post(&t, IN_DRAIN, 0, 0, NULL);
    submit(&t, spec_new(&t, 2, 20, 8));
    run_until(&t, INT64_MAX);
    assert_int_equal(t.heard[1].ending, END_LENGTH);
    assert_int_equal(t.heard[2].ending, END_REFUSED);
    assert_int_equal(t.n_drained, 1);
    close_rig(&t);
    open_rig(&t, &(struct knobs){.seqs = 1, .batched = 64, .blocks = 32});
    submit(&t, spec_new(&t, 1, 20, 40));
    submit(&t, spec_new(&t, 2, 20, 40));
    run_until(&t, clock_now(&t.clock) + 3000000);
    post(&t, IN_STOP, 0, 0, NULL);
    run_until(&t, INT64_MAX);
    assert_int_equal(t.heard[1].ending, END_ABORT);
    assert_int_equal(t.heard[2].ending, END_ABORT);
    check_books(&t);
    close_rig(&t);
}

/* ---- policies that break the contract; ctx counts calls */

static enum verdict lazy_step(void *ctx, const struct view *v, struct plan *p, struct err *e)
{
    (void)ctx;
    (void)v;
    (void)p;
    (void)e;
    return VERDICT_OK;
}

static enum verdict failing_step(void *ctx, const struct view *v, struct plan *p, struct err *e)
{
    (void)ctx;
    plan_preempt(p, v->world->running.n ? v->world->running.items[0]->id : 0,
                 PREEMPT_RECOMPUTE); /* must leave no trace */
    err_set(e, E_POLICY, "bad.lua:3: broken");
    return VERDICT_ERROR;
}

static enum verdict torn_step(void *ctx, const struct view *v, struct plan *p, struct err *e)
{
    (void)ctx;
    (void)v;
    (void)p;
    err_set(e, E_POLICY, "bad.lua:9: time is up");
    return VERDICT_TIMEOUT;
}

static enum verdict waking_step(void *ctx, const struct view *v, struct plan *p, struct err *e)
{
    (void)ctx;
    (void)v;
    (void)e;
    plan_wake(p, 50);
    return VERDICT_OK;
}

/* Last come, first served: somebody waits for ever. */
static enum verdict unfair_step(void *ctx, const struct view *v, struct plan *p, struct err *e)
{
    (void)ctx;
    (void)e;
    struct plan_batch *b = plan_batch(p, 1);
    plan_decodes(b);
    if (v->world->waiting.n > 1)
        plan_add(b, v->world->waiting.items[v->world->waiting.n - 1]->id, 0);
    if (b->n_tokens)
        plan_forward(b, (struct layout){1, 1, 1});
    else
        plan_wake(p, 1);
    return VERDICT_OK;
}

static enum verdict nan_admit(void *ctx, const struct request *r, const struct view *v, struct admission *a,
                              struct err *e)
{
    (void)ctx;
    (void)r;
    (void)v;
    (void)e;
    a->key = 0.0 / 0.0;
    return VERDICT_OK;
}

static enum verdict refuse_admit(void *ctx, const struct request *r, const struct view *v, struct admission *a,
                                 struct err *e)
{
    (void)ctx;
    (void)v;
    (void)e;
    if (r->spec->n_prompt > 50) {
        a->refused = true;
        a->code = 429;
        a->retry_after_s = 7;
        snprintf(a->why, sizeof a->why, "too long for now");
    }
    return VERDICT_OK;
}

static struct policy make_policy(const struct policy_ops *ops, const char *name)
{
    struct policy p = {.ops = ops};
    snprintf(p.name, sizeof p.name, "%s", name);
    snprintf(p.sha256, sizeof p.sha256, "%s", name);
    return p;
}

static void expect_in_metrics(struct rig *t, const char *text)
{
    struct engine_event ev;
    bool found = false;
    post(t, IN_METRICS, 1, 0, NULL);
    while (engine_turn(t->engine))
        ;
    while (queue_take(engine_outbox(t->engine), &ev)) {
        if (ev.kind == EV_REPLY) {
            found = strstr(ev.payload, text) != NULL;
            if (!found)
                print_error("not in /metrics: %s\n%s\n", text, (char *)ev.payload);
        }
        mem_free(ev.payload);
    }
    assert_true(found);
}

static void run_with(const struct policy_ops *ops, const char *metric)
{
    struct rig t;
    open_rig(
        &t,
        &(struct knobs){
            .seqs = 4, .batched = 64, .blocks = 32, .policy = make_policy(ops, "bad"), .starvation_ns = 2000000000});
    for (uint64_t tag = 1; tag <= 20; tag++)
        submit(&t, spec_new(&t, tag, 20 + (int)tag, 8));
    run_until(&t, INT64_MAX);
    for (uint64_t tag = 1; tag <= 20; tag++) {
        assert_int_equal(t.heard[tag].n_ends, 1);
        assert_int_equal(t.heard[tag].ending, END_LENGTH);
    }
    expect_in_metrics(&t, metric);
    check_books(&t);
    close_rig(&t);
}

static void bad_policies_cost_only_their_steps(void **state)
{
    (void)state;
    const struct policy_ops lazy = {.step = lazy_step}, failing = {.step = failing_step}, torn = {.step = torn_step},
                            waking = {.step = waking_step}, nan_key = {.step = lazy_step, .admit = nan_admit};
    run_with(&lazy, "policy_fallback_total{reason=\"stalled\"} 4");
    run_with(&failing, "policy_fallback_total{reason=\"error\"} 4"); /* three strikes are forgiven in 1000 steps, the
                                                                        fourth withdraws it */
    run_with(&torn, "policy_fallback_total{reason=\"timeout\"} 1");
    run_with(&waking, "policy_hook_errors_total{hook=\"step\",kind=\"stalled\"} ");
    run_with(&nan_key, "policy_hook_errors_total{hook=\"admit\",kind=\"malformed\"} 4");
    run_with(&failing, "policy_swaps_total{kind=\"withdrawn\"} 1");
}

static void nobody_starves(void **state)
{
    (void)state;
    const struct policy_ops unfair = {.step = unfair_step};
    struct rig t;
    open_rig(&t, &(struct knobs){.seqs = 4,
                                 .batched = 64,
                                 .blocks = 32,
                                 .policy = make_policy(&unfair, "unfair"),
                                 .starvation_ns = 1000000000});
    submit(&t, spec_new(&t, 1, 20, 4));
    uint64_t tag = 2;
    for (; !t.heard[1].n_ends && tag < 1000; tag++) { /* new ones keep coming */
        submit(&t, spec_new(&t, tag, 20, 4));
        run_until(&t, clock_now(&t.clock) + 20000000);
    }
    assert_int_equal(t.heard[1].ending, END_LENGTH);
    assert_true(clock_now(&t.clock) < 1000000000 + (int64_t)1500000000);
    run_until(&t, INT64_MAX);
    check_books(&t);
    close_rig(&t);
}

/* First come, first served: no two of the large ones have room, and the small ones wait for them although they would
 * fit. */
static void waiting_behind_one_without_room_is_no_starvation(void **state)
{
    (void)state;
    struct rig t;
    struct policy orderly;
    policy_fcfs(&orderly);
    orderly = make_policy(orderly.ops, "orderly");
    open_rig(&t, &(struct knobs){.seqs = 8, .batched = 64, .blocks = 32, .policy = orderly, .starvation_ns = 50000000});
    for (uint64_t tag = 1; tag <= 3; tag++)
        submit(&t, spec_new(&t, tag, 300, 60)); /* one fills more than half of the cache */
    for (uint64_t tag = 4; tag <= 6; tag++)
        submit(&t, spec_new(&t, tag, 20, 4));
    run_until(&t, INT64_MAX);
    for (uint64_t tag = 1; tag <= 6; tag++)
        assert_int_equal(t.heard[tag].ending, END_LENGTH);
    assert_true(clock_now(&t.clock) > 150000000);
    expect_in_metrics(&t, "policy_fallback_total{reason=\"starved\"} 0\n");
    check_books(&t);
    close_rig(&t);
}

static void admit_refuses_with_its_own_code(void **state)
{
    (void)state;
    const struct policy_ops ops = {.step = lazy_step, .admit = refuse_admit};
    struct rig t;
    open_rig(&t, &(struct knobs){.seqs = 4, .batched = 64, .blocks = 32, .policy = make_policy(&ops, "gate")});
    submit(&t, spec_new(&t, 1, 60, 4));
    run_until(&t, INT64_MAX);
    assert_int_equal(t.heard[1].ending, END_REFUSED);
    assert_int_equal(t.heard[1].http_status, 429);
    check_books(&t);
    close_rig(&t);
}

static void prefix_cache_is_reported(void **state)
{
    (void)state;
    struct rig t;
    open_rig(&t, &(struct knobs){.seqs = 4, .batched = 64, .blocks = 32});
    submit(&t, spec_new(&t, 7, 64, 4));
    run_until(&t, INT64_MAX);
    submit(&t, spec_new(&t, 14, 64, 4)); /* the same text */
    run_until(&t, INT64_MAX);
    assert_int_equal(t.heard[7].n_cached, 0);
    assert_int_equal(t.heard[14].n_cached, 48);
    post(&t, IN_RESET_PREFIX_CACHE, 1, 0, NULL);
    submit(&t, spec_new(&t, 21, 64, 4));
    run_until(&t, INT64_MAX);
    assert_int_equal(t.heard[21].n_cached, 0);
    check_books(&t);
    close_rig(&t);
}

static void swaps_keep_every_token(void **state)
{
    (void)state;
    const struct policy_ops unfair = {.step = unfair_step};
    struct rig t, alone;
    open_rig(&t, &(struct knobs){.seqs = 6, .batched = 48, .blocks = 40});
    for (uint64_t tag = 1; tag <= 60; tag++) {
        submit(&t, spec_new(&t, tag, 30, 30));
        struct policy *p = mem_new(sizeof *p);
        if (tag % 2)
            *p = make_policy(&unfair, "unfair");
        else
            policy_fcfs(p);
        struct engine_message m = {.kind = IN_POLICY, .tag = tag, .payload = p};
        queue_post(engine_inbox(t.engine), &m);
        if (tag % 5 == 0)
            post(&t, IN_ROLLBACK, tag, 0, NULL);
        run_until(&t, clock_now(&t.clock) + 7000000);
    }
    struct policy *p = mem_new(sizeof *p);
    policy_fcfs(p);
    struct engine_message m = {.kind = IN_POLICY, .tag = 1, .payload = p};
    queue_post(engine_inbox(t.engine), &m);
    run_until(&t, INT64_MAX);
    assert_int_equal(t.n_replies, 60 + 12 + 1);
    open_rig(&alone, &(struct knobs){.seqs = 1, .batched = 512, .blocks = 60});
    for (uint64_t tag = 1; tag <= 60; tag++) {
        submit(&alone, spec_new(&alone, tag, 30, 30));
        run_until(&alone, INT64_MAX);
        assert_int_equal(t.heard[tag].n_tokens, 30);
        assert_memory_equal(t.heard[tag].tokens, alone.heard[tag].tokens, 30 * sizeof(int32_t));
    }
    check_books(&t);
    close_rig(&alone);
    close_rig(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_request),
        cmocka_unit_test(texts_do_not_depend_on_the_schedule),
        cmocka_unit_test(the_first_ending_stands),
        cmocka_unit_test(refusals),
        cmocka_unit_test(drain_then_stop),
        cmocka_unit_test(bad_policies_cost_only_their_steps),
        cmocka_unit_test(nobody_starves),
        cmocka_unit_test(waiting_behind_one_without_room_is_no_starvation),
        cmocka_unit_test(admit_refuses_with_its_own_code),
        cmocka_unit_test(prefix_cache_is_reported),
        cmocka_unit_test(swaps_keep_every_token),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
