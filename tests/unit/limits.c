/* Limits that change while requests run: read as a whole or not at all, within what the node was built for; nobody is
 * thrown out by a lower one, and nothing new begins until there is room. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "engine/base/mem.h"
#include "engine/base/rng.h"
#include "engine/world/plan.h"

static const struct limits BUILT = {.max_num_seqs = 8,
                                    .max_num_batched_tokens = 64,
                                    .max_model_len = 256,
                                    .max_num_queued_reqs = 0,
                                    .prefix_caching = true,
                                    .park_ns = 10000000000,
                                    .starvation_ns = 30000000000};

static int obey(struct limits *l, const char *json, struct err *e)
{
    struct limits_order o;
    TRY(limits_read(&o, json, strlen(json), e));
    return limits_obey(l, &BUILT, &o, e);
}

static void an_order_is_obeyed_as_a_whole(void **state)
{
    (void)state;
    struct limits l = BUILT;
    struct err e = {0};
    struct buf words = {0};
    assert_int_equal(obey(&l,
                          "{\"max_num_seqs\": 4, \"max_num_batched_tokens\": 16, \"max_num_queued_reqs\": 7,"
                          "\"max_num_queued_tokens\": 5000, \"max_park_seconds\": 2.5, \"starvation_seconds\": 0}",
                          &e),
                     0);
    assert_int_equal(l.max_num_seqs, 4);
    assert_int_equal(l.max_num_batched_tokens, 16);
    assert_int_equal(l.max_num_queued_reqs, 7);
    assert_int_equal(l.max_num_queued_tokens, 5000);
    assert_int_equal(l.park_ns, 2500000000);
    assert_int_equal(l.starvation_ns, 0);
    assert_int_equal(l.max_model_len, 256);
    limits_put_change(&BUILT, &l, &words);
    assert_string_equal(words.data, "max_num_seqs 8 -> 4, max_num_batched_tokens 64 -> 16, max_num_queued_reqs 0 -> 7, "
                                    "max_num_queued_tokens 0 -> 5000, max_park_seconds 10 -> 2.5, "
                                    "starvation_seconds 30 -> 0");
    buf_clear(&words);
    limits_put(&l, &words);
    struct limits again = BUILT;
    assert_int_equal(obey(&again, words.data, &e), 0); /* what is shown can be ordered */
    assert_memory_equal(&again, &l, sizeof l);
    assert_int_equal(obey(&l, "{\"max_num_batched_tokens\": 64}", &e), 0); /* back up to where it began */
    again = l;
    assert_int_equal(obey(&l, "{\"max_num_seqs\": 2, \"max_num_batched_tokens\": 65}", &e), E_INPUT);
    assert_memory_equal(&again, &l, sizeof l);
    assert_non_null(strstr(e.text, "built for steps of 64 tokens; restart it with --max-num-batched-tokens 65"));
    buf_free(&words);
}

/* ---- in the world */

struct bench {
    struct world w;
    struct metrics m;
    struct plan p;
    uint64_t tag;
    int64_t now;
};

static const struct layout ONE = {1, 1, 1};

static void set_up(struct bench *b)
{
    memset(b, 0, sizeof *b);
    metrics_init(&b->m);
    struct node_shape shape;
    node_shape_uniform(&shape, 1, &(struct heads){1, 1, 64}, 8, 16);
    world_init(&b->w, &BUILT, &shape, 40, &b->m);
    partition_ask(&b->w, &(struct switch_order){.mask = 1, .base = {1, 1, 1}}, 0);
    assert_int_equal(partition_advance(&b->w, 0), 1);
    plan_init(&b->p, &b->w);
}

static int submit(struct bench *b, int n_prompt, int max_tokens)
{
    struct request_spec *s = mem_new(sizeof *s);
    struct request *r = NULL;
    struct err e;
    s->tag = ++b->tag;
    s->arrival_ns = ++b->now;
    s->n_prompt = n_prompt;
    s->prompt = mem_new_array((size_t)n_prompt, sizeof(int32_t));
    for (int i = 0; i < n_prompt; i++)
        s->prompt[i] = (int32_t)b->tag * 300 + i;
    s->max_tokens = max_tokens;
    s->sampling.n_logprobs = s->sampling.n_prompt_logprobs = -1;
    int rc = world_submit(&b->w, s, b->now, &r, &e);
    if (rc)
        request_spec_free(s);
    return rc;
}

/* One step as the native policy takes it. Returns its tokens. */
static int step(struct bench *b)
{
    int n = 0;
    plan_begin(&b->p, ++b->now);
    struct plan_batch *batch = plan_batch(&b->p, 1);
    plan_decodes(batch);
    plan_prefill(batch, NULL, 0, b->w.limits.max_num_batched_tokens);
    if (batch->n_tokens)
        plan_forward(batch, ONE);
    plan_apply(&b->p);
    for (int k = 0; batch->forwarded && k < batch->n_items; k++) {
        struct plan_item *it = &batch->items[k];
        n += it->n_tokens;
        world_commit(&b->w, it->request, it->request->n_computed + it->n_tokens);
        if (request_remaining(it->request) == 0)
            request_append(it->request, 7);
    }
    for (int i = b->w.running.n - 1; i >= 0; i--) {
        struct request *r = b->w.running.items[i];
        if (request_output(r) >= r->spec->max_tokens)
            world_end(&b->w, r, END_LENGTH);
    }
    assert_true(world_check(&b->w));
    return n;
}

static void tear_down(struct bench *b)
{
    while (b->w.running.n)
        world_end(&b->w, b->w.running.items[0], END_ABORT);
    while (b->w.waiting.n)
        world_end(&b->w, b->w.waiting.items[0], END_ABORT);
    assert_true(world_check(&b->w));
    plan_free(&b->p);
    world_free(&b->w);
}

static void a_lower_limit_throws_nobody_out(void **state)
{
    (void)state;
    struct bench b;
    set_up(&b);
    for (int i = 0; i < 10; i++)
        submit(&b, 4, 6 + i);
    step(&b);
    assert_int_equal(b.w.running.n, 8);
    b.w.limits.max_num_seqs = 3;
    b.w.limits.max_num_batched_tokens = 5;
    int most = 8;
    while (b.w.requests.n_live) {
        int n = step(&b), running = b.w.running.n;
        assert_true(n >= 1 && n <= 5); /* a step is as small as it is said to be, and goes on */
        assert_true(running <= most);  /* nothing begins above the limit */
        most = running > 3 ? running : 3;
    }
    assert_int_equal(b.m.counters[C_LENGTH], 10);
    assert_int_equal(b.m.counters[C_PREEMPTIONS], 0);
    tear_down(&b);
}

static void the_queue_is_as_long_as_it_is_said_to_be_now(void **state)
{
    (void)state;
    struct bench b;
    set_up(&b);
    for (int i = 0; i < 5; i++)
        assert_int_equal(submit(&b, 10, 4), 0);
    b.w.limits.max_num_queued_reqs = 3;
    assert_int_equal(submit(&b, 10, 4), E_FULL);
    assert_int_equal(b.w.waiting.n, 5); /* who waits already goes on waiting */
    b.w.limits.max_num_queued_reqs = 6;
    assert_int_equal(submit(&b, 10, 4), 0);
    assert_int_equal(submit(&b, 10, 4), E_FULL);
    b.w.limits.max_num_queued_reqs = 0;
    b.w.limits.max_num_queued_tokens = 65;
    assert_int_equal(submit(&b, 10, 4), E_FULL);
    b.w.limits.max_num_queued_tokens = 70;
    assert_int_equal(submit(&b, 10, 4), 0);
    tear_down(&b);
}

/* Whatever the limits do, plans apply, the books are right and all requests come to their end. */
static void limits_may_change_between_any_two_steps(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 20; seed++) {
        struct bench b;
        struct rng r;
        rng_init(&r, seed);
        set_up(&b);
        int n = 0;
        for (int i = 0; i < 200; i++) {
            if (rng_below(&r, 4) == 0)
                n += submit(&b, 1 + (int)rng_below(&r, 90), 1 + (int)rng_below(&r, 9)) == 0;
            if (rng_below(&r, 3) == 0) {
                struct limits_order o = {.given = {true, true, true, rng_below(&r, 2) > 0},
                                         .values = {1 + (int64_t)rng_below(&r, 12), 1 + (int64_t)rng_below(&r, 64),
                                                    (int64_t)rng_below(&r, 6), (int64_t)rng_below(&r, 300)}};
                struct err e;
                assert_int_equal(limits_obey(&b.w.limits, &BUILT, &o, &e), 0);
            }
            step(&b);
        }
        for (int i = 0; i < 3000 && b.w.requests.n_live; i++)
            step(&b);
        assert_int_equal(b.m.counters[C_LENGTH], n);
        tear_down(&b);
    }
}

/* What held requests is counted by reason, in a table that stays small. */
static void holds_are_counted_by_their_reason(void **state)
{
    (void)state;
    struct bench b;
    set_up(&b);
    b.w.limits.max_num_queued_reqs = 0;
    for (int i = 0; i < HOLD_REASONS + 4; i++)
        assert_int_equal(submit(&b, 4, 4), 0);
    struct request **w = b.w.waiting.items;
    world_hold(&b.w, w[0], 50, "late", 1);
    world_hold(&b.w, w[0], 60, "late", 2); /* goes on: the same hold */
    world_hold(&b.w, w[1], 50, "late", 2);
    assert_int_equal(b.w.holds.items[0].now, 2);
    assert_int_equal(b.w.holds.items[0].times, 2);
    world_hold(&b.w, w[1], 50, "early", 3);
    assert_int_equal(b.w.holds.items[0].now, 1);
    world_end(&b.w, w[1], END_ABORT);
    assert_int_equal(b.w.n_held, 1);
    assert_true(world_check(&b.w));
    for (int i = 0; i < b.w.waiting.n; i++) {
        char why[20];
        snprintf(why, sizeof why, "reason %d", i);
        world_hold(&b.w, w[i], 70, why, 4);
        assert_true(world_check(&b.w));
    }
    assert_int_equal(b.w.holds.n, HOLD_REASONS);
    assert_true(b.w.holds.items[HOLD_REASONS].now > 0); /* for whom there was no place */
    uint64_t times = b.w.holds.items[HOLD_REASONS].times;
    for (int i = 0; i < HOLD_REASONS; i++)
        times += b.w.holds.items[i].times;
    assert_int_equal(times, 3 + HOLD_REASONS + 3);
    int64_t next;
    assert_int_equal(world_let_go(&b.w, 100, false, &next), HOLD_REASONS + 3);
    assert_true(world_check(&b.w));
    tear_down(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_order_is_obeyed_as_a_whole),
        cmocka_unit_test(a_lower_limit_throws_nobody_out),
        cmocka_unit_test(the_queue_is_as_long_as_it_is_said_to_be_now),
        cmocka_unit_test(limits_may_change_between_any_two_steps),
        cmocka_unit_test(holds_are_counted_by_their_reason),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
