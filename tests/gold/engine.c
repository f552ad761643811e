/* The whole engine on the CPU backend: what a request says never depends on its neighbours, on chunking, on preemption
 * or on the prefix cache. A small model with random weights, random loads; each text must equal, bit for bit, that of
 * the request alone. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "engine/base/rng.h"
#include "engine/engine.h"

enum { N = 24, MAX_OUT = 40, MAX_PROMPT = 120 };

struct heard {
    int n, ends;
    int32_t tokens[MAX_OUT];
    float logprobs[MAX_OUT];
    int n_prompt; /* prompt logprobs heard */
    float prompt[MAX_PROMPT];
};

struct rig {
    struct clock clock;
    struct model *model;
    struct engine *engine;
    struct heard heard[N + 1];
};

struct knobs {
    int seqs, batched, blocks, threads;
    bool prefix_caching;
    enum dtype type;
    const char *model;
};

static void open_rig(struct rig *t, const struct knobs *k)
{
    struct err e = {0};
    memset(t, 0, sizeof *t);
    clock_init_virtual(&t->clock, 1);
    if (model_open_dummy(&t->model, k->model, k->type, 5, &e))
        fail_msg("%s", e.text);
    struct engine_setup s = {.ops = backend_cpu(),
                             .device = {.n_threads = k->threads},
                             .model = t->model,
                             .limits = {.max_num_seqs = k->seqs,
                                        .max_num_batched_tokens = k->batched,
                                        .max_model_len = k->blocks * 16,
                                        .prefix_caching = k->prefix_caching},
                             .kv_dtype = DT_F16,
                             .block_size = 16,
                             .clock = &t->clock,
                             .quiet = true};
    snprintf(s.model_name, sizeof s.model_name, "gold");
    s.kv_bytes =
        (size_t)k->blocks * (size_t)model_config(t->model)->n_layers * backend_cpu()->kv_block_bytes(DT_F16, 16, 2, 16);
    if (engine_create(&t->engine, &s, &e))
        fail_msg("%s", e.text);
}

static void close_rig(struct rig *t)
{
    assert_true(world_check(engine_world(t->engine)));
    engine_destroy(t->engine);
    model_close(t->model);
}

static void run_until(struct rig *t, int64_t until)
{
    for (;;) {
        while (engine_turn(t->engine))
            ;
        struct engine_event ev;
        while (queue_take(engine_outbox(t->engine), &ev)) {
            struct heard *h = &t->heard[ev.tag];
            if (ev.kind == EV_TOKEN) {
                h->tokens[h->n] = ev.token;
                h->logprobs[h->n++] = ((struct token_logprobs *)ev.payload)->logprob;
            }
            for (int i = 1; ev.kind == EV_PROMPT_LOGPROBS && i < ((struct prompt_logprobs *)ev.payload)->n; i++)
                h->prompt[h->n_prompt++] = ((struct prompt_logprobs *)ev.payload)->items[i].logprob;
            h->ends += ev.kind == EV_END;
            mem_free(ev.payload);
        }
        int64_t next = engine_next_ns(t->engine);
        if (next > until || next == INT64_MAX)
            return;
        clock_advance_to(&t->clock, next);
    }
}

/* Odd tags are greedy, even ones sample with their own seed and penalties. Every fourth asks what its prompt's tokens
 * are worth. */
static void submit(struct rig *t, uint64_t tag, int n_prompt, int max_tokens)
{
    struct request_spec *s = mem_new(sizeof *s);
    s->tag = tag;
    s->arrival_ns = clock_now(&t->clock);
    s->n_prompt = n_prompt;
    s->max_tokens = max_tokens;
    s->prompt = mem_new_array((size_t)n_prompt, sizeof(int32_t));
    for (int i = 0; i < n_prompt; i++)
        s->prompt[i] = (int32_t)((tag % 3 * 331 + (uint64_t)i * 7) % 1000);
    s->sampling = (struct sampling){.temperature = tag % 2 ? 0.0f : 0.8f,
                                    .top_p = 0.95f,
                                    .top_k = 50,
                                    .repetition_penalty = 1.1f,
                                    .frequency_penalty = 0.1f,
                                    .seed = tag,
                                    .n_logprobs = 0,
                                    .n_prompt_logprobs = tag % 4 ? -1 : 0};
    struct engine_message m = {.kind = IN_SUBMIT, .payload = s};
    queue_post(engine_inbox(t->engine), &m);
}

#if defined(__SANITIZE_THREAD__)
enum { SEEDS = 4 };
#else
enum { SEEDS = 16 };
#endif

static void compare(const char *model, enum dtype type, uint64_t seed)
{
    struct rig t, alone;
    struct rng r;
    int prompts[N + 1], outs[N + 1];
    rng_init(&r, seed);
    open_rig(&t, &(struct knobs){.seqs = 2 + (int)rng_below(&r, 12),
                                 .batched = 8 + (int)rng_below(&r, 90),
                                 .blocks = 12 + (int)rng_below(&r, 12),
                                 .threads = 1 + (int)rng_below(&r, 3),
                                 .prefix_caching = rng_below(&r, 3) > 0,
                                 .type = type,
                                 .model = model});
    for (uint64_t tag = 1; tag <= N; tag++) {
        prompts[tag] = 1 + (int)rng_below(&r, MAX_PROMPT);
        outs[tag] = 1 + (int)rng_below(&r, MAX_OUT - 1);
        submit(&t, tag, prompts[tag], outs[tag]);
        run_until(&t, clock_now(&t.clock) + (int64_t)rng_below(&r, 400000));
    }
    run_until(&t, INT64_MAX);
    open_rig(&alone,
             &(struct knobs){.seqs = 1, .batched = 256, .blocks = 16, .threads = 1, .type = type, .model = model});
    for (uint64_t tag = 1; tag <= N; tag++) {
        submit(&alone, tag, prompts[tag], outs[tag]);
        run_until(&alone, INT64_MAX);
        assert_int_equal(t.heard[tag].ends, 1);
        assert_int_equal(t.heard[tag].n, outs[tag]);
        assert_memory_equal(t.heard[tag].tokens, alone.heard[tag].tokens, (size_t)outs[tag] * sizeof(int32_t));
        assert_memory_equal(t.heard[tag].logprobs, alone.heard[tag].logprobs, (size_t)outs[tag] * sizeof(float));
        assert_int_equal(t.heard[tag].n_prompt, tag % 4 ? 0 : prompts[tag] - 1);
        assert_memory_equal(t.heard[tag].prompt, alone.heard[tag].prompt, sizeof t.heard[tag].prompt);
    }
    close_rig(&alone);
    close_rig(&t);
}

static void texts_and_logprobs_are_bit_identical(void **state)
{
    (void)state;
    static const enum dtype types[] = {DT_BF16, DT_Q8_0, DT_Q4_1, DT_F16};
    for (uint64_t seed = 0; seed < SEEDS; seed++)
        compare("tests/data/sim_model.json", types[seed % 4], seed);
}

/* Rows that stop halfway, rows of prompts that do not because their logits are asked for, and cached prefixes whose
 * rows were of either kind. */
static void and_so_they_are_with_swiftkv(void **state)
{
    (void)state;
    static const enum dtype types[] = {DT_Q8_0, DT_F16};
    for (uint64_t seed = 0; seed < SEEDS; seed++)
        compare("tests/data/engine_swiftkv.json", types[seed % 2], seed);
}

/* The slots of pooled weights follow the layers that all rows go through. */
static void pooled_weights_are_refused_with_swiftkv(void **state)
{
    struct clock clock;
    struct model *m;
    struct engine *engine;
    struct err e = {0};
    struct ffn_setup pool = {.n_ranks = 2, .n_layers = 4};
    (void)state;
    clock_init_virtual(&clock, 1);
    assert_int_equal(model_open_dummy(&m, "tests/data/engine_swiftkv.json", DT_F16, 1, &e), 0);
    struct engine_setup s = {.ops = backend_sim(),
                             .model = m,
                             .n_ranks = 2,
                             .ffn = &pool,
                             .limits = {.max_num_seqs = 4, .max_num_batched_tokens = 64, .max_model_len = 64},
                             .kv_dtype = DT_F16,
                             .kv_bytes = 1 << 20,
                             .block_size = 16,
                             .clock = &clock,
                             .quiet = true};
    assert_int_equal(engine_create(&engine, &s, &e), E_UNSUPPORTED);
    assert_non_null(strstr(e.text, "SwiftKV"));
    model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(texts_and_logprobs_are_bit_identical),
                                       cmocka_unit_test(and_so_they_are_with_swiftkv),
                                       cmocka_unit_test(pooled_weights_are_refused_with_swiftkv)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
