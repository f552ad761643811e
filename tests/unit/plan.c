/* Plans: every verb is checked against the world as the plan would leave it, nothing happens before apply, and a random
 * plan can always be applied. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "engine/base/rng.h"
#include "engine/world/plan.h"

struct bench {
    struct world w;
    struct metrics m;
    struct plan p;
    uint64_t tag;
    int64_t now;
};

static void set_up(struct bench *b, int blocks, int seqs, int batched)
{
    memset(b, 0, sizeof *b);
    struct limits l = {
        .max_num_seqs = seqs, .max_num_batched_tokens = batched, .max_model_len = 1024, .prefix_caching = true};
    metrics_init(&b->m);
    struct node_shape shape;
    node_shape_uniform(&shape, 1, &(struct heads){1, 1, 64}, 8, 16);
    world_init(&b->w, &l, &shape, blocks, &b->m);
    partition_ask(&b->w, &(struct switch_order){.mask = 1, .base = {1, 1, 1}}, 0);
    assert_int_equal(partition_advance(&b->w, 0), 1);
    plan_init(&b->p, &b->w);
}

static struct request *submit(struct bench *b, int n_prompt, int first_token, int max_tokens)
{
    struct request_spec *s = mem_new(sizeof *s);
    struct request *r = NULL;
    struct err e;
    s->tag = ++b->tag;
    s->arrival_ns = ++b->now;
    s->n_prompt = n_prompt;
    s->prompt = mem_new_array((size_t)n_prompt, sizeof(int32_t));
    for (int i = 0; i < n_prompt; i++)
        s->prompt[i] = first_token + i;
    s->max_tokens = max_tokens;
    s->sampling.n_logprobs = s->sampling.n_prompt_logprobs = -1;
    if (world_submit(&b->w, s, b->now, &r, &e)) {
        request_spec_free(s);
        return NULL;
    }
    return r;
}

/* Applies the plan and pretends the step ran. */
static void run(struct bench *b)
{
    plan_apply(&b->p);
    for (int i = 0; i < b->p.n_batches; i++)
        for (int k = 0; b->p.batches[i]->forwarded && k < b->p.batches[i]->n_items; k++) {
            struct plan_item *it = &b->p.batches[i]->items[k];
            world_commit(&b->w, it->request, it->request->n_computed + it->n_tokens);
            if (request_remaining(it->request) == 0)
                request_append(it->request, 7);
        }
    assert_true(world_check(&b->w));
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

static const struct layout ONE = {1, 1, 1};

static void chunks_then_decodes(void **state)
{
    (void)state;
    struct bench b;
    set_up(&b, 64, 8, 32);
    struct request *r = submit(&b, 50, 100, 10);
    plan_begin(&b.p, 1);
    struct plan_batch *batch = plan_batch(&b.p, 1);
    assert_int_equal(plan_decodes(batch), 0);
    assert_int_equal(plan_prefill(batch, NULL, 0, 1000), 32); /* max_num_batched_tokens caps the budget */
    assert_true(plan_forward(batch, ONE));
    assert_int_equal(r->state, REQ_WAITING); /* nothing happens before apply */
    run(&b);
    assert_int_equal(r->n_computed, 32);
    plan_begin(&b.p, 2);
    batch = plan_batch(&b.p, 1);
    assert_int_equal(plan_prefill(batch, NULL, 0, 8), 8);
    assert_true(plan_forward(batch, ONE));
    run(&b);
    plan_begin(&b.p, 3);
    batch = plan_batch(&b.p, 1);
    plan_prefill(batch, NULL, 0, 32);
    plan_forward(batch, ONE);
    run(&b);
    assert_int_equal(r->n_tokens, 51);
    plan_begin(&b.p, 4);
    batch = plan_batch(&b.p, 1);
    assert_int_equal(plan_decodes(batch), 1);
    assert_int_equal(batch->n_tokens, 1);
    tear_down(&b);
}

static void refusals_name_the_reason(void **state)
{
    (void)state;
    struct bench b;
    set_up(&b, 4, 1, 32);
    struct request *r = submit(&b, 20, 1, 4);
    assert_null(submit(&b, 65, 1, 4)); /* can never fit: refused at submission */
    plan_begin(&b.p, 1);
    assert_null(plan_batch(&b.p, 2));
    assert_string_equal(b.p.reason, "no such group (any more)");
    struct plan_batch *batch = plan_batch(&b.p, 1);
    assert_null(plan_batch(&b.p, 1));
    assert_false(plan_forward(batch, ONE));
    assert_string_equal(b.p.reason, "the batch is empty");
    assert_int_equal(plan_add(batch, 12345, 1), 0);
    assert_string_equal(b.p.reason, "no such request");
    assert_int_equal(plan_add(batch, r->id, 0), 20);
    assert_int_equal(plan_add(batch, r->id, 0), 0);
    assert_false(plan_preempt(&b.p, r->id, PREEMPT_RECOMPUTE));
    assert_false(plan_refuse(&b.p, r->id, 503, 1, "no"));
    assert_false(plan_forward(batch, (struct layout){.sp = 2, .tp = 1, .pp = 1}));
    assert_false(plan_wake(&b.p, 0));
    assert_false(plan_wake(&b.p, 0.0 / 0.0));
    assert_true(plan_forward(batch, ONE));
    assert_false(plan_forward(batch, ONE));
    run(&b);
    struct request *second = submit(&b, 5, 400, 4);
    plan_begin(&b.p, 2);
    batch = plan_batch(&b.p, 1);
    assert_int_equal(plan_add(batch, second->id, 0), 0);
    assert_string_equal(b.p.reason, "max_num_seqs requests are running");
    assert_true(plan_preempt(&b.p, r->id, PREEMPT_HARD)); /* a seat is free now */
    assert_int_equal(plan_add(batch, second->id, 0), 5);
    assert_true(plan_forward(batch, ONE));
    run(&b);
    assert_true(r->parked && r->n_blocks > 0);
    assert_false(plan_refuse(&b.p, r->id, 503, 1, "no"));
    tear_down(&b);
}

static void the_last_gives_way_when_kv_runs_out(void **state)
{
    (void)state;
    struct bench b;
    set_up(&b, 5, 8, 256);
    struct request *first = submit(&b, 31, 100, 49), *second = submit(&b, 31, 600, 49);
    for (int i = 0; i < 40; i++) {
        plan_begin(&b.p, i);
        struct plan_batch *batch = plan_batch(&b.p, 1);
        plan_decodes(batch);
        plan_prefill(batch, NULL, 0, 256);
        assert_true(plan_forward(batch, ONE));
        run(&b);
    }
    assert_int_equal(first->state, REQ_RUNNING);
    assert_int_equal(first->n_tokens, 31 + 40);
    assert_true(second->n_preempted >= 1);
    assert_int_equal(second->state, REQ_WAITING);
    tear_down(&b);
}

static void prefix_hits_skip_work_and_tenants_do_not_share(void **state)
{
    (void)state;
    struct bench b;
    set_up(&b, 64, 8, 256);
    struct request *first = submit(&b, 64, 100, 4);
    plan_begin(&b.p, 1);
    struct plan_batch *batch = plan_batch(&b.p, 1);
    plan_prefill(batch, NULL, 0, 256);
    plan_forward(batch, ONE);
    run(&b);
    world_end(&b.w, first, END_STOP);
    struct request *same = submit(&b, 64, 100, 4);
    assert_int_equal(world_prefix(&b.w, same, 0), 3); /* the last block is computed again: its logits are wanted */
    struct request *other = submit(&b, 64, 100, 4);
    snprintf(other->spec->salt, sizeof other->spec->salt, "other");
    assert_int_equal(world_prefix(&b.w, other, 0), 0);
    tear_down(&b);
}

/* What was found before is not taken for what is there now. */
static void prefixes_are_looked_for_again_when_the_cache_changes(void **state)
{
    (void)state;
    struct bench b;
    set_up(&b, 64, 8, 256);
    struct request *first = submit(&b, 80, 100, 4), *same = submit(&b, 80, 100, 4);
    const struct kv_key *keys = world_keys(&b.w, same);
    assert_int_equal(world_prefix(&b.w, same, 0), 0);
    int32_t blocks[4];
    for (int i = 0; i < 4; i++) {
        assert_int_equal(world_prefix(&b.w, same, 0), i);
        blocks[i] = kv_take(&b.w.kv, 0);
        kv_publish(&b.w.kv, 0, blocks[i], keys[i]);
        assert_int_equal(world_prefix(&b.w, same, 0), i + 1);
    }
    kv_unpublish(&b.w.kv, 0, blocks[1]); /* a hole: what lies behind it does not count */
    assert_int_equal(world_prefix(&b.w, same, 0), 1);
    kv_publish(&b.w.kv, 0, blocks[1], keys[1]);
    assert_int_equal(world_prefix(&b.w, same, 0), 4);
    for (int i = 0; i < 4; i++)
        kv_drop(&b.w.kv, 0, blocks[i]);
    assert_int_equal(world_prefix(&b.w, same, 0), 4);
    kv_forget_cached(&b.w.kv);
    assert_int_equal(world_prefix(&b.w, same, 0), 0);
    assert_int_equal(world_prefix(&b.w, first, 0), 0);
    tear_down(&b);
}

/* A parked request gives way to one newcomer while another, earlier in the plan, begins with its blocks: what is held
 * again does not come back. */
static void blocks_that_a_newcomer_shares_do_not_come_back(void **state)
{
    (void)state;
    struct bench b;
    set_up(&b, 8, 8, 256);
    struct request *parked = submit(&b, 65, 0, 5); /* 5 blocks, four of them full */
    plan_begin(&b.p, 1);
    struct plan_batch *batch = plan_batch(&b.p, 1);
    assert_int_equal(plan_prefill(batch, NULL, 0, 256), 65);
    assert_true(plan_forward(batch, ONE));
    run(&b);
    plan_begin(&b.p, 2);
    assert_true(plan_preempt(&b.p, parked->id, PREEMPT_HARD));
    run(&b);
    world_rekey(&b.w, parked, 1e6);
    struct request *same = submit(&b, 65, 0, 5),
                   *other = submit(&b, 80, 500, 5); /* one more block; five, and three are free */
    plan_begin(&b.p, 3);
    batch = plan_batch(&b.p, 1);
    assert_int_equal(plan_prefill(batch, NULL, 0, 256), 1);
    assert_true(plan_forward(batch, ONE));
    run(&b);
    assert_int_equal(same->n_prefix, 64);
    assert_int_equal(same->state, REQ_RUNNING);
    assert_int_equal(other->state, REQ_WAITING);
    tear_down(&b);
}

static void siblings_wait_for_their_leader(void **state)
{
    (void)state;
    struct bench b;
    set_up(&b, 64, 8, 40);
    struct request *leader = submit(&b, 64, 100, 4), *sibling = submit(&b, 64, 100, 4);
    sibling->spec->leader = leader->spec->tag;
    for (int i = 0; i < 2; i++) {
        plan_begin(&b.p, i);
        struct plan_batch *batch = plan_batch(&b.p, 1);
        plan_prefill(batch, NULL, 0, 40);
        assert_int_equal(batch->n_items, 1);
        plan_forward(batch, ONE);
        run(&b);
    }
    plan_begin(&b.p, 3);
    struct plan_batch *batch = plan_batch(&b.p, 1);
    plan_prefill(batch, NULL, 0, 40);
    assert_int_equal(batch->n_tokens, 16); /* three of four blocks came from the leader */
    tear_down(&b);
}

/* Any lawful sequence of verbs must apply: plan_apply ASSERTs otherwise. */
static void random_plans_apply(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 40; seed++) {
        struct bench b;
        struct rng r;
        rng_init(&r, seed);
        set_up(&b, 6 + (int)rng_below(&r, 12), 1 + (int)rng_below(&r, 8), 16 + (int)rng_below(&r, 100));
        for (int step = 0; step < 150; step++) {
            if (rng_below(&r, 3) == 0)
                submit(&b, 1 + (int)rng_below(&r, 90), (int)rng_below(&r, 3) * 100, 6);
            plan_begin(&b.p, step);
            struct plan_batch *batch = plan_batch(&b.p, 1);
            for (int verb = 0; verb < 6; verb++) {
                struct req_queue *q = rng_below(&r, 2) ? &b.w.waiting : &b.w.running;
                req_id id = q->n ? q->items[rng_below(&r, (uint64_t)q->n)]->id : 0;
                switch (rng_below(&r, 6)) {
                case 0:
                    plan_decodes(batch);
                    break;
                case 1:
                    plan_prefill(batch, NULL, 0, (int)rng_below(&r, 200));
                    break;
                case 2:
                    plan_add(batch, id, (int)rng_below(&r, 50));
                    break;
                case 3:
                    plan_preempt(&b.p, id, PREEMPT_RECOMPUTE);
                    break;
                case 4:
                    plan_preempt(&b.p, id, PREEMPT_HARD);
                    break;
                default:
                    plan_refuse(&b.p, id, 503, 1, "no");
                }
            }
            plan_forward(batch, ONE);
            run(&b);
            for (int i = 0; i < b.p.n_verbs; i++)
                if (b.p.verbs[i].kind == PLAN_REFUSE)
                    world_end(&b.w, b.p.verbs[i].request, END_REFUSED);
            if (rng_below(&r, 4) == 0 && b.w.running.n)
                world_end(&b.w, b.w.running.items[rng_below(&r, (uint64_t)b.w.running.n)], END_ABORT);
            while (b.w.running.n && b.w.running.items[0]->n_tokens >= 95)
                world_end(&b.w, b.w.running.items[0], END_LENGTH);
        }
        tear_down(&b);
    }
}

static void no_idea(void *ctx, const struct request *r, void **note, int most, struct draft_guess *g)
{
    (void)ctx;
    (void)r;
    (void)note;
    (void)most;
    g->n = 0;
}

static void not_heard(void *ctx, const struct request *r, void **note, const struct draft_made *m)
{
    (void)ctx;
    (void)r;
    (void)note;
    (void)m;
}

/* Of a source whose guesses steps make, a step makes those that were asked for, if a next step could use them: 64. */
static void steps_guess_for_whom_they_are_asked(void **state)
{
    (void)state;
    enum { REQUESTS = 70 };
    struct bench b;
    struct draft_guess g;
    struct draft_sources sources = {
        {{.name = "text", .guess = no_idea}, {.name = "heads", .guess = no_idea, .made = not_heard}}, 2};
    set_up(&b, 300, REQUESTS, 200);
    b.w.drafts = &sources;
    req_id ids[REQUESTS];
    for (int i = 0; i < REQUESTS; i++)
        ids[i] = submit(&b, 1, 10 * i, i < 2 ? 2 + i : 4)->id; /* of which the first is said by now */
    plan_begin(&b.p, 1);
    struct plan_batch *batch = plan_batch(&b.p, 1);
    plan_prefill(batch, NULL, 0, REQUESTS);
    assert_true(plan_forward(batch, ONE));
    run(&b);
    plan_begin(&b.p, 2);
    batch = plan_batch(&b.p, 1);
    assert_int_equal(plan_decodes(batch), REQUESTS);
    assert_true(plan_draft(&b.p, ids[2], &(struct draft_wish){4, 0, false, 0}, &g) &&
                plan_draft(&b.p, ids[2], &(struct draft_wish){0, 1, false, 0}, &g));
    assert_true(plan_draft(&b.p, ids[2], &(struct draft_wish){4, 1, false, -1}, &g));
    assert_int_equal(batch->n_asks, 0);
    assert_true(plan_draft(&b.p, ids[0], &(struct draft_wish){4, 1, false, 0}, &g) &&
                plan_draft(&b.p, ids[1], &(struct draft_wish){4, -1, false, 0}, &g));
    assert_int_equal(batch->n_asks, 0);
    for (int i = 2; i < REQUESTS; i++)
        assert_true(plan_draft(&b.p, ids[i], &(struct draft_wish){4, i % 2, false, 0}, &g) &&
                    plan_draft(&b.p, ids[i], &(struct draft_wish){4, -1, false, 0}, &g));
    assert_int_equal(batch->n_asks, MOST_ASKS);
    int asks = 0;
    for (int i = 0; i < batch->n_items; i++)
        asks += batch->items[i].asks > 0;
    for (int i = 0; i < batch->n_items; i++) /* of an answer of four tokens one is left to guess when two are said */
        assert_true(batch->items[i].asks <= 1 && (!batch->items[i].asks || batch->items[i].asked == 1));
    assert_int_equal(asks, MOST_ASKS);
    tear_down(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chunks_then_decodes),
        cmocka_unit_test(refusals_name_the_reason),
        cmocka_unit_test(the_last_gives_way_when_kv_runs_out),
        cmocka_unit_test(prefix_hits_skip_work_and_tenants_do_not_share),
        cmocka_unit_test(prefixes_are_looked_for_again_when_the_cache_changes),
        cmocka_unit_test(blocks_that_a_newcomer_shares_do_not_come_back),
        cmocka_unit_test(siblings_wait_for_their_leader),
        cmocka_unit_test(random_plans_apply),
        cmocka_unit_test(steps_guess_for_whom_they_are_asked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
