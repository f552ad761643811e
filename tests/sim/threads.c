/* The engine with its threads in real time on the simulated device: one thread submits, cancels and swaps policies at
 * random while another listens. Made for TSan; in any build each request must have one ending and the books must
 * balance. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "engine/base/rng.h"
#include "engine/base/thread.h"
#include "engine/engine.h"

enum { N = 400 };

static struct request_spec *spec_new(uint64_t tag, int64_t now)
{
    struct request_spec *s = mem_new(sizeof *s);
    s->tag = tag;
    s->arrival_ns = now;
    s->n_prompt = 1 + (int)(tag * 37 % 200);
    s->max_tokens = 1 + (int)(tag * 11 % 30);
    s->prompt = mem_new_array((size_t)s->n_prompt, sizeof(int32_t));
    for (int i = 0; i < s->n_prompt; i++)
        s->prompt[i] = (int32_t)(tag % 5 * 100) + i;
    s->sampling = (struct sampling){
        .top_p = 1, .repetition_penalty = 1, .n_logprobs = tag % 3 ? -1 : 2, .n_prompt_logprobs = tag % 10 ? -1 : 0};
    return s;
}

static void send(struct engine *engine, enum engine_in kind, uint64_t tag, void *payload)
{
    struct engine_message m = {.kind = kind, .tag = tag, .payload = payload, .code = END_ABORT};
    assert_int_equal(queue_post(engine_inbox(engine), &m), 0);
}

struct counts {
    int ends[N + 1], total_ends, tokens, replies;
};

static void listen_to(struct engine *engine, struct counts *c)
{
    struct engine_event ev[32];
    size_t n = queue_take_many(engine_outbox(engine), ev, 32);
    for (size_t i = 0; i < n; i++) {
        struct engine_event one;
        for (int k = 0; engine_event_token(&ev[i], k, &one); k++) {
            assert_int_equal(c->ends[one.tag], 0);
            c->tokens++;
        }
        if (ev[i].kind == EV_END) {
            c->ends[ev[i].tag]++;
            c->total_ends++;
        } else if (ev[i].kind == EV_REPLY) {
            c->replies++;
        }
        mem_free(ev[i].payload);
    }
}

static struct engine *open_engine(struct clock *clock, struct model **model)
{
    struct err e = {0};
    clock_init_real(clock);
    if (model_open_dummy(model, "tests/data/sim_model.json", DT_BF16, 1, &e))
        fail_msg("%s", e.text);
    struct engine_setup s = {
        .ops = backend_sim(),
        .device = {.sim_step_ns = 50000},
        .model = *model,
        .limits = {.max_num_seqs = 16, .max_num_batched_tokens = 128, .max_model_len = 512, .prefix_caching = true},
        .kv_dtype = DT_F16,
        .block_size = 16,
        .clock = clock,
        .threaded = true,
        .quiet = true};
    struct engine *engine = NULL;
    s.kv_bytes = 48 * 2 * backend_sim()->kv_block_bytes(DT_F16, 16, 2, 16);
    if (engine_create(&engine, &s, &e))
        fail_msg("%s", e.text);
    return engine;
}

static void random_traffic(void **state)
{
    (void)state;
    struct clock clock;
    struct model *model;
    struct engine *engine = open_engine(&clock, &model);
    struct thread *t;
    struct counts c = {0};
    struct rng r;
    rng_init(&r, 3);
    assert_int_equal(thread_start(&t, "engine", engine_run, engine, NULL), 0);
    int asked = 0;
    for (uint64_t tag = 1; tag <= N; tag++) {
        send(engine, IN_SUBMIT, tag, spec_new(tag, clock_now(&clock)));
        if (rng_below(&r, 4) == 0)
            send(engine, IN_CANCEL, 1 + rng_below(&r, tag), NULL);
        if (rng_below(&r, 8) == 0) {
            struct policy *p = mem_new(sizeof *p);
            policy_fcfs(p);
            send(engine, rng_below(&r, 2) ? IN_METRICS : IN_STATE, tag, NULL);
            send(engine, IN_POLICY, tag, p);
            asked += 2;
        }
        if (tag % 16 == 0)
            queue_wait(engine_outbox(engine), 1000000);
        listen_to(engine, &c);
    }
    while (c.total_ends < N) {
        queue_wait(engine_outbox(engine), 1000000000);
        listen_to(engine, &c);
    }
    send(engine, IN_STOP, 0, NULL);
    thread_join(t);
    listen_to(engine, &c);
    for (int tag = 1; tag <= N; tag++)
        assert_int_equal(c.ends[tag], 1);
    assert_int_equal(c.replies, asked);
    assert_true(c.tokens > N);
    assert_true(world_check(engine_world(engine)));
    engine_destroy(engine);
    model_close(model);
}

static void stop_in_the_middle(void **state)
{
    (void)state;
    for (int round = 0; round < 20; round++) {
        struct clock clock;
        struct model *model;
        struct engine *engine = open_engine(&clock, &model);
        struct thread *t;
        struct counts c = {0};
        assert_int_equal(thread_start(&t, "engine", engine_run, engine, NULL), 0);
        for (uint64_t tag = 1; tag <= 50; tag++)
            send(engine, IN_SUBMIT, tag, spec_new(tag, clock_now(&clock)));
        send(engine, IN_STOP, 0, NULL);
        thread_join(t);
        while (c.total_ends < 50 && queue_count(engine_outbox(engine)))
            listen_to(engine, &c);
        for (int tag = 1; tag <= 50; tag++)
            assert_int_equal(c.ends[tag], 1);
        engine_destroy(engine);
        model_close(model);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(random_traffic), cmocka_unit_test(stop_in_the_middle)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
