/* Partitions that change all the time, on the simulated device: whatever a policy orders, every request has one ending,
 * its text is the one that it has on a rank of its own, KV is conserved on every rank, and nothing waits past its
 * bound. Failures of the published systems have tests of their own names. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "engine/base/rng.h"
#include "engine/engine.h"
#include "tests/rig/chaos.h"
#include "tests/rig/engine_rig.h"

enum { N_REQUESTS = 1000 };

static struct request_spec *random_spec(struct rig *t, struct rng *rng, uint64_t tag)
{
    struct request_spec *s =
        spec_new(t, tag, 1 + (int)rng_below(rng, rng_below(rng, 4) ? 40 : 200), 1 + (int)rng_below(rng, 40));
    s->priority = (int)rng_below(rng, 3);
    return s;
}

/* The texts on one rank, unswitched. */
static void alone(struct rig *quiet, uint64_t seed)
{
    struct rng rng;
    open_rig(quiet, &(struct knobs){.seqs = 64, .batched = 256, .blocks = 512});
    rng_init(&rng, seed);
    for (uint64_t tag = 1; tag <= N_REQUESTS; tag++) {
        submit(quiet, random_spec(quiet, &rng, tag));
        if (tag % 32 == 0)
            run_until(quiet, INT64_MAX);
    }
    run_until(quiet, INT64_MAX);
    check_books(quiet);
    close_rig(quiet);
}

static void compare(const struct heard *is, const struct heard *should, bool cancelled)
{
    assert_int_equal(is->n_ends, 1);
    if (!cancelled) {
        assert_int_equal(is->ending, should->ending);
        assert_int_equal(is->n_tokens, should->n_tokens);
    }
    assert_true(is->n_tokens <= should->n_tokens);
    assert_memory_equal(is->tokens, should->tokens, (size_t)is->n_tokens * sizeof *is->tokens);
}

static void churn(int ranks, uint64_t seed, bool base_orders, int blocks)
{
    static struct rig quiet, t;
    static bool cancelled[N_REQUESTS + 1];
    struct chaos c = {.every = 20, .budget = 96, .base_orders = base_orders};
    struct rng rng, cancels;
    memset(cancelled, 0, sizeof cancelled);
    alone(&quiet, seed);
    rng_init(&rng, seed);
    rng_init(&c.rng, seed + 1);
    rng_init(&cancels, seed + 2);
    chaos_partitions(&c, ranks);
    open_rig(&t, &(struct knobs){.seqs = 64,
                                 .batched = 256,
                                 .blocks = blocks,
                                 .ranks = ranks,
                                 .park_ns = 500000000,
                                 .policy = chaos_policy(&c)});
    for (uint64_t tag = 1; tag <= N_REQUESTS; tag++) {
        submit(&t, random_spec(&t, &rng, tag));
        run_until(&t, clock_now(&t.clock) + (int64_t)rng_below(&cancels, 4000000));
        uint64_t victim = 1 + rng_below(&cancels, tag);
        if (rng_below(&cancels, 8) == 0) {
            cancelled[victim] = true;
            post(&t, IN_CANCEL, victim, END_ABORT, NULL);
        }
        if (tag % 100 == 0)
            assert_true(world_check(engine_world(t.engine)));
    }
    run_until(&t, clock_now(&t.clock) + (int64_t)60000000000);
    check_books(&t);
    for (uint64_t tag = 1; tag <= N_REQUESTS; tag++)
        compare(&t.heard[tag], &quiet.heard[tag], cancelled[tag]);
    const struct partition *p = &engine_world(t.engine)->partition;
    print_message("%d ranks: %llu orders, %llu switches, %llu remaps, %llu group parks\n", ranks,
                  (unsigned long long)c.n_orders, (unsigned long long)p->n_switches, (unsigned long long)c.n_remaps,
                  (unsigned long long)c.n_parks);
    assert_true(p->n_switches > 50);
    assert_int_equal(p->n_pending, 0);
    close_rig(&t);
}

static void switching_never_shows(void **state)
{
    (void)state;
    churn(2, 11, false, 512);
    churn(4, 12, false, 512);
    churn(4, 13, true, 64); /* little KV: copies often find no room */
    churn(8, 14, true, 256);
}

/* B3: a member without work left before the barrier, and the others waited for ever. */
static void a_step_with_no_tokens_during_a_switch(void **state)
{
    (void)state;
    struct rig t;
    struct chaos c = {.every = 1, .budget = 16, .only_hard = true};
    rng_init(&c.rng, 9);
    chaos_partitions(&c, 4);
    open_rig(&t,
             &(struct knobs){
                 .seqs = 8, .batched = 64, .blocks = 64, .ranks = 4, .start = {1, 1, 1}, .policy = chaos_policy(&c)});
    run_until(&t, clock_now(&t.clock) + 1000000); /* nobody has any work */
    submit(&t, spec_new(&t, 1, 30, 40));          /* one group has, three have none, while all change all the time */
    run_until(&t, clock_now(&t.clock) + (int64_t)20000000000);
    assert_int_equal(t.heard[1].n_tokens, 40);
    assert_int_equal(t.heard[1].ending, END_LENGTH);
    assert_true(engine_world(t.engine)->partition.n_switches > 10);
    check_books(&t);
    close_rig(&t);
}

/* Parks everybody once, and then never does anything that a parked request could run by. */
static enum verdict park_step(void *ctx, const struct view *v, struct plan *p, struct err *e)
{
    int *n = ctx;
    (void)e;
    if (v->world->running.n && ++*n == 4) {
        for (int i = 0; i < v->n_idle; i++)
            plan_preempt_group(p, v->idle[i], WHEN_HARD);
        plan_switch(p, &(struct switch_order){.mask = 3, .base = {2, 1, 1}, .fate = FATE_PARK, .reason = "park"});
        return VERDICT_OK;
    }
    for (int i = 0; i < v->n_idle; i++) {
        struct plan_batch *b = plan_batch(p, v->idle[i]);
        if (!b)
            continue;
        plan_decodes(b);
        plan_prefill(b, NULL, 0, 64);
        if (b->n_tokens)
            plan_forward(b, (struct layout){b->group->n_ranks, 1, 1});
    }
    return VERDICT_OK;
}

/* Found by the model in tests/formal: when the time of a parked request is up and nothing else happens, its policy has
 * to be asked. */
static void the_end_of_parking_wakes_the_policy(void **state)
{
    (void)state;
    struct rig t;
    int n = 0;
    static const struct policy_ops ops = {.step = park_step};
    struct policy p = {.ops = &ops, .ctx = &n, .name = "park", .sha256 = "park"};
    open_rig(
        &t,
        &(struct knobs){
            .seqs = 8, .batched = 64, .blocks = 64, .ranks = 2, .start = {1, 1, 1}, .park_ns = 700000000, .policy = p});
    submit(&t, spec_new(&t, 1, 30, 20));
    run_until(&t, clock_now(&t.clock) + (int64_t)2000000000);
    assert_int_equal(t.heard[1].n_tokens, 20);
    assert_int_equal((int)engine_world(t.engine)->metrics->counters[C_UNPARKED], 1);
    check_books(&t);
    close_rig(&t);
}

/* Only ever changes the partition. */
static enum verdict restless_step(void *ctx, const struct view *v, struct plan *p, struct err *e)
{
    int *n = ctx;
    (void)v;
    (void)e;
    plan_switch(p,
                &(struct switch_order){
                    .mask = ++*n % 2 ? 1 : 3, .base = {*n % 2 ? 1 : 2, 1, 1}, .fate = FATE_PARK, .reason = "restless"});
    return VERDICT_OK;
}

static void a_policy_that_only_switches_is_stalled(void **state)
{
    (void)state;
    struct rig t;
    int n = 0;
    static const struct policy_ops ops = {.step = restless_step};
    struct policy p = {.ops = &ops, .ctx = &n, .name = "restless", .sha256 = "restless"};
    open_rig(&t, &(struct knobs){.seqs = 8, .batched = 64, .blocks = 64, .ranks = 2, .policy = p});
    submit(&t, spec_new(&t, 1, 30, 20));
    run_until(&t, clock_now(&t.clock) + (int64_t)2000000000);
    assert_int_equal(t.heard[1].n_tokens, 20);
    check_books(&t);
    close_rig(&t);
}

/* A rank is lost in virtual time too, and when none is left the node says so. */
static void a_node_without_ranks_says_503(void **state)
{
    (void)state;
    struct rig t;
    open_rig(&t,
             &(struct knobs){.seqs = 8, .batched = 64, .blocks = 64, .ranks = 1, .fail_rank = 0, .fail_at_step = 3});
    submit(&t, spec_new(&t, 1, 30, 40));
    run_until(&t, INT64_MAX);
    assert_int_equal(t.heard[1].ending, END_ERROR);
    submit(&t, spec_new(&t, 2, 30, 40));
    run_until(&t, INT64_MAX);
    assert_int_equal(t.heard[2].ending, END_REFUSED);
    assert_int_equal(t.heard[2].http_status, 503);
    check_books(&t);
    close_rig(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(switching_never_shows), cmocka_unit_test(a_step_with_no_tokens_during_a_switch),
        cmocka_unit_test(a_node_without_ranks_says_503), cmocka_unit_test(the_end_of_parking_wakes_the_policy),
        cmocka_unit_test(a_policy_that_only_switches_is_stalled)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
