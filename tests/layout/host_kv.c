/* KV in host memory, live: the engine with ranks that really compute, in threads, while a policy swaps running
 * sequences out at random, brings some back into another group, and changes partition, layouts and stages all the time.
 * Each text is the one that the request has on a single rank; the books of ranks and host memory balance; cancels and
 * ranks that fail, with copies under way in either direction, lose nothing. So it is with cached blocks that go there
 * before ranks evict them, and are found there by prompts that begin alike. */
#include "engine/engine.h"
#include "tests/rig/switch_rig.h"

struct case_of {
    const char *config;
    enum dtype type;
    int ranks, kv_blocks, host_blocks;
};

static void say(const struct case_of *k, const struct world *w, const struct chaos *c)
{
    print_message("%s, %d ranks: %llu swapped out by order, %llu in; %llu bytes out, %llu in; %llu tokens saved, %llu "
                  "found; %llu switches\n",
                  k->config, k->ranks, (unsigned long long)c->n_out, (unsigned long long)c->n_in,
                  (unsigned long long)w->metrics->counters[C_SWAPPED_OUT_BYTES],
                  (unsigned long long)w->metrics->counters[C_SWAPPED_IN_BYTES],
                  (unsigned long long)w->metrics->counters[C_SAVED_TOKENS],
                  (unsigned long long)w->metrics->counters[C_HOST_HITS], (unsigned long long)w->partition.n_switches);
}

static void churn(const struct case_of *k)
{
    static struct run quiet, t;
    static bool cancelled[N + 1];
    struct model *m = open_model(k->config, k->type);
    int n = N < 100 ? N : 300;
    struct chaos c = {.every = N < 100 ? 8 : 20, .budget = 48, .base_orders = true, .stages = true, .host = true};
    memset(cancelled, 0, sizeof cancelled);
    one_rank(&quiet, m, &(struct run_opts){.n_requests = n});
    rng_init(&c.rng, (uint64_t)k->ranks);
    chaos_partitions(&c, k->ranks);
    start_run(&t, m,
              &(struct run_opts){.n_requests = n,
                                 .ranks = k->ranks,
                                 .kv_blocks = k->kv_blocks,
                                 .host_blocks = k->host_blocks,
                                 .policy = chaos_policy(&c)});
    serve_all(&t, model_config(m)->vocab, cancelled);
    stop_run(&t);
    compare(&t, &quiet, cancelled);
    const struct world *w = engine_world(t.engine);
    say(k, w, &c);
    assert_true(w->metrics->counters[C_SWAPPED_OUT_BYTES] > 0 && w->metrics->counters[C_SWAPPED_IN_BYTES] > 0);
    for (int p = 0; p < w->kv.n_places; p++) /* nobody is here: nothing is held, in any tier */
        for (int b = 0; b < kv_place(&w->kv, p)->n_blocks; b++)
            assert_int_equal(kv_place(&w->kv, p)->blocks[b].refs, 0);
    engine_destroy(t.engine);
    model_close(m);
}

static void swapping_never_shows_on_1_rank(void **state)
{
    (void)state;
    churn(&(struct case_of){"tests/data/layout_9_3.json", DT_F32, 1, 128, 64});
}

static void swapping_never_shows_on_2_ranks_with_little_of_both(void **state)
{
    (void)state;
    churn(&(struct case_of){"tests/data/layout_gqa.json", DT_F16, 2, 24, 12});
}

static void swapping_never_shows_on_4_ranks(void **state)
{
    (void)state;
    churn(&(struct case_of){"tests/data/layout_deep.json", DT_Q8_0, 4, 96, 40});
}

#if defined(ON_8_RANKS)
static void swapping_never_shows_on_8_ranks(void **state)
{
    (void)state;
    churn(&(struct case_of){"tests/data/layout_40_8.json", DT_F16, 8, 64, 64});
}
#endif

/* Nobody swaps anything, and a rank fails while cached blocks of it go to host memory: what half a copy has brought is
 * found by nobody. */
static void a_rank_fails_while_cached_blocks_are_saved(void **state)
{
    (void)state;
    static struct run quiet, t;
    struct model *m = open_model("tests/data/layout_gqa.json", DT_F16);
    int n = N < 60 ? N : 60;
    uint64_t saved = 0;
    one_rank(&quiet, m, &(struct run_opts){.n_requests = n});
    for (int i = 0; i < 6; i += N < 100 ? 3 : 1) {
        start_run(&t, m,
                  &(struct run_opts){.n_requests = n,
                                     .ranks = 2,
                                     .start = {1, 2, 1},
                                     .kv_blocks = 24,
                                     .host_blocks = 128,
                                     .fail_rank = i % 2,
                                     .fail_at_step = 8 + 3 * (uint64_t)i});
        serve_all(&t, model_config(m)->vocab, NULL);
        stop_run(&t);
        compare(&t, &quiet, NULL);
        assert_int_equal((int)engine_world(t.engine)->partition.dead_ranks, 1 << i % 2);
        assert_int_equal(engine_world(t.engine)->n_saving, 0);
        saved += engine_world(t.engine)->metrics->counters[C_SAVED_TOKENS];
        engine_destroy(t.engine);
    }
    assert_true(N < 10 || saved > 0);
    model_close(m);
}

/* Host memory outlives ranks: who waits there needs not begin again. */
static void a_rank_fails_while_sequences_are_swapped(void **state)
{
    (void)state;
    static struct run quiet, t;
    struct model *m = open_model("tests/data/layout_9_3.json", DT_F32);
    int n = N < 60 ? N : 60;
    one_rank(&quiet, m, &(struct run_opts){.n_requests = n});
    int n_failed = 0;
    for (int rank = 0; rank < 4; rank += N < 100 ? 2 : 1) {
        struct chaos c = {.every = 10, .budget = 48, .stages = true, .host = true};
        rng_init(&c.rng, (uint64_t)rank);
        chaos_partitions(&c, 4);
        start_run(&t, m,
                  &(struct run_opts){.n_requests = n,
                                     .ranks = 4,
                                     .kv_blocks = 128,
                                     .host_blocks = 64,
                                     .fail_rank = rank,
                                     .fail_at_step = 3 + (uint64_t)rank,
                                     .policy = chaos_policy(&c)});
        serve_all(&t, model_config(m)->vocab, NULL);
        stop_run(&t);
        compare(&t, &quiet, NULL);
        n_failed += has_failed(&t, rank);
        assert_int_equal(engine_world(t.engine)->n_saving, 0);
        engine_destroy(t.engine);
    }
    assert_true(n_failed >= LEAST_FAILED);
    model_close(m);
}

/* Nobody swaps anything: ranks that have too little for all beginnings of the prompts find in host memory what they
 * have evicted. */
static void serve_from_host(const char *config, struct layout start, int ranks, int kv_blocks)
{
    static struct run quiet, t;
    static bool cancelled[N + 1];
    struct model *m = open_model(config, DT_F16);
    int n = N < 100 ? N : 200;
    memset(cancelled, 0, sizeof cancelled);
    one_rank(&quiet, m, &(struct run_opts){.n_requests = n});
    start_run(&t, m,
              &(struct run_opts){
                  .n_requests = n, .ranks = ranks, .start = start, .kv_blocks = kv_blocks, .host_blocks = 128});
    serve_all(&t, model_config(m)->vocab, cancelled);
    stop_run(&t);
    compare(&t, &quiet, cancelled);
    const uint64_t *counts = engine_world(t.engine)->metrics->counters;
    print_message("%s, %d ranks: %llu tokens saved, %llu found there of %llu in all\n", config, ranks,
                  (unsigned long long)counts[C_SAVED_TOKENS], (unsigned long long)counts[C_HOST_HITS],
                  (unsigned long long)counts[C_PREFIX_HITS]);
    assert_true(counts[C_SAVED_TOKENS] > 0);
    assert_true(N < 100 || counts[C_HOST_HITS] > 0); /* few prompts: whose beginnings come again is chance */
    assert_int_equal(engine_world(t.engine)->n_saving, 0);
    engine_destroy(t.engine);
    model_close(m);
}

static void what_ranks_evict_is_found_in_host_memory(void **state)
{
    (void)state;
    serve_from_host("tests/data/layout_9_3.json", (struct layout){1, 1, 1}, 1, 24);
    serve_from_host("tests/data/layout_gqa.json", (struct layout){1, 2, 1}, 2, 14);
    serve_from_host("tests/data/layout_deep.json", (struct layout){2, 1, 2}, 4, 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(swapping_never_shows_on_1_rank),
        cmocka_unit_test(swapping_never_shows_on_2_ranks_with_little_of_both),
        cmocka_unit_test(swapping_never_shows_on_4_ranks),
#if defined(ON_8_RANKS)
        cmocka_unit_test(swapping_never_shows_on_8_ranks),
#endif
        cmocka_unit_test(what_ranks_evict_is_found_in_host_memory),
        cmocka_unit_test(a_rank_fails_while_cached_blocks_are_saved),
        cmocka_unit_test(a_rank_fails_while_sequences_are_swapped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
