/* Pooled FFN weights never show in a node that serves: modes change with the partition at random, requests are
 * cancelled, preempted in every way and moved, and each text is the one of a single rank with all weights; slots and
 * blocks are conserved. A rank that fails takes its layers with it: where others have room for them no request is lost,
 * else each gets its one answer, 503. */
#include "engine/engine.h"
#include "tests/rig/switch_rig.h"

static struct ffn_setup pool_of(const struct model *m, int ranks, int slots, enum ffn_order order, const char *owners)
{
    struct err e = {0};
    struct ffn_setup s = {
        .n_ranks = ranks, .n_layers = model_config(m)->n_layers, .n_slots = slots, .order = order, .tile_bytes = 16384};
    if (ffn_parse_owners(&s, owners, &e))
        fail_msg("%s", e.text);
    return s;
}

static void churn_pooled(const char *config, enum dtype type, int ranks, int slots, const char *owners)
{
    static struct run quiet, t;
    static bool cancelled[N + 1];
    struct model *m = open_model(config, type);
    struct ffn_setup ffn = pool_of(m, ranks, slots, slots >= ranks ? FFN_SHIFTED : FFN_SLICED, owners);
    struct chaos c = {.every = N < 100 ? 8 : N < 1000 ? 5 : 20, .budget = 48, .base_orders = true};
    memset(cancelled, 0, sizeof cancelled);
    one_rank(&quiet, m, &(struct run_opts){.n_requests = N});
    rng_init(&c.rng, (uint64_t)ranks);
    chaos_partitions(&c, ranks);
    start_run(&t, m, &(struct run_opts){.ranks = ranks, .kv_blocks = 96, .ffn = &ffn, .policy = chaos_policy(&c)});
    serve_all(&t, model_config(m)->vocab, cancelled);
    stop_run(&t);
    compare(&t, &quiet, cancelled);
    const uint64_t *counters = engine_world(t.engine)->metrics->counters;
    print_message("%s, %d ranks: %llu switches, %llu changes of mode, %llu bytes fetched, %llu rows sent, %llu layers "
                  "copied (%llu times asked for)\n",
                  config, ranks, (unsigned long long)engine_world(t.engine)->partition.n_switches,
                  (unsigned long long)c.n_modes, (unsigned long long)counters[C_WAS_BYTES],
                  (unsigned long long)counters[C_CAS_ROWS], (unsigned long long)counters[C_LAYER_COPIES],
                  (unsigned long long)c.n_replicas);
    assert_true(c.n_modes > 0);
    assert_true(counters[C_LAYER_COPIES] > 0 || !backend_cpu()->forget); /* GPUs lend no blocks */
    assert_int_equal(counters[C_CAS_ROWS] > 0, !ffn_any_shares(&ffn));   /* no rank serves a layer in shares */
    assert_true(counters[C_WAS_BYTES] > 0 || slots >= ffn.n_layers - 1); /* all may have come while it warmed up */
    engine_destroy(t.engine);
    model_close(m);
}

static void modes_and_partitions_never_show_on_4_ranks(void **state)
{
    (void)state;
    churn_pooled("tests/data/layout_9_3.json", DT_F32, 4, 2, "layer-mod");
}

static void modes_and_partitions_never_show_on_2_ranks(void **state)
{
    (void)state;
    churn_pooled("tests/data/layout_gqa.json", DT_F16, 2, 1, "layer-mod");
}

static void owners_that_are_groups_never_show(void **state)
{
    (void)state;
    churn_pooled("tests/data/layout_gqa.json", DT_F16, 4, 2, "layer-mod:2");
}

#if !defined(__SANITIZE_THREAD__)
static void modes_and_partitions_never_show_on_8_ranks(void **state)
{
    (void)state;
    churn_pooled("tests/data/layout_40_8.json", DT_Q8_0, 8, 8, "layer-mod");
}
#endif

/* Whichever rank fails, in its first steps or later, while everything changes. */
static void fail_each_rank(const char *config, enum dtype type, const char *owners)
{
    static struct run quiet, t;
    struct model *m = open_model(config, type);
    struct ffn_setup ffn = pool_of(m, 4, 2, FFN_SLICED, owners);
    one_rank(&quiet, m, &(struct run_opts){.n_requests = SOME});
    int n_failed = 0;
    for (int rank = 0; rank < 4; rank++) {
        struct chaos c = {.every = 10, .budget = 48};
        rng_init(&c.rng, (uint64_t)rank);
        chaos_partitions(&c, 4);
        start_run(&t, m,
                  &(struct run_opts){.n_requests = SOME,
                                     .ranks = 4,
                                     .kv_blocks = 128,
                                     .ffn = &ffn,
                                     .rank_memory = 256 << 20,
                                     .fail_rank = rank,
                                     .fail_at_step = 3 + (uint64_t)rank * 2,
                                     .policy = chaos_policy(&c)});
        serve_all(&t, model_config(m)->vocab, NULL);
        stop_run(&t);
        compare(&t, &quiet, NULL);
        const struct world *w = engine_world(t.engine);
        bool failed = has_failed(&t, rank);
        assert_true(!failed || ffn_owned(w->ffn, rank) == 0);
        n_failed += failed;
        engine_destroy(t.engine);
    }
    assert_true(n_failed >= LEAST_FAILED);
    model_close(m);
}

static void a_failed_owner_loses_no_request_where_others_have_room(void **state)
{
    (void)state;
    fail_each_rank("tests/data/layout_9_3.json", DT_F32, "layer-mod");
}

/* Its shares are loaded again, onto any rank: two of a layer may come together. */
static void a_failed_owner_of_shares_loses_no_request(void **state)
{
    (void)state;
    fail_each_rank("tests/data/layout_gqa.json", DT_F16, "contiguous:2");
}

static void a_failed_owner_means_503_where_nobody_has_room(void **state)
{
    (void)state;
    static struct run t;
    struct model *m = open_model("tests/data/layout_gqa.json", DT_F16);
    struct ffn_setup ffn = pool_of(m, 2, 2, FFN_SLICED, "layer-mod");
    struct chaos c = {.every = 10, .budget = 48};
    rng_init(&c.rng, 1);
    chaos_partitions(&c, 2);
    start_run(&t, m,
              &(struct run_opts){.n_requests = SOME,
                                 .ranks = 2,
                                 .ffn = &ffn,
                                 .rank_memory = 8 << 20, /* what weights leave of it is KV */
                                 .fail_rank = 1,
                                 .fail_at_step = 9,
                                 .may_refuse = true,
                                 .policy = chaos_policy(&c)});
    serve_all(&t, model_config(m)->vocab, NULL);
    stop_run(&t);
    for (int i = 1; i <= t.n; i++)
        assert_int_equal(t.heard[i].n_ends, 1);
    assert_true(t.n_refused > 0);
    assert_int_equal(t.n_down, 1); /* so /health answers 503, too */
    engine_destroy(t.engine);
    model_close(m);
}

/* Heads of 32, so no tensor parallelism, and no shares of it: the engine says so before it loads anything. */
static void owners_that_cannot_share_are_refused_at_the_start(void **state)
{
    (void)state;
    static const char *const owners[] = {"layer-mod:2", "contiguous:2", "layer-mod:4"};
    for (size_t i = 0; i < sizeof owners / sizeof *owners; i++) {
        struct clock clock;
        struct engine *engine;
        struct err e = {0};
        struct model *m = open_model("tests/data/gold_qwen3.json", DT_F16);
        struct ffn_setup ffn = pool_of(m, 4, 2, FFN_SLICED, owners[i]);
        clock_init_real(&clock);
        assert_int_equal(model_config(m)->head_dim, 32);
        struct engine_setup s = {.ops = backend_cpu(),
                                 .device = {.n_threads = 1},
                                 .model = m,
                                 .limits = {.max_num_seqs = 4, .max_num_batched_tokens = 64, .max_model_len = 256},
                                 .kv_dtype = DT_F16,
                                 .kv_bytes = 16 << 20,
                                 .block_size = 16,
                                 .clock = &clock,
                                 .threaded = true,
                                 .quiet = true,
                                 .n_ranks = 4,
                                 .ffn = &ffn};
        policy_fcfs(&s.policy);
        assert_int_equal(engine_create(&engine, &s, &e), E_UNSUPPORTED);
        if (!strstr(e.text, "--pool-owner: layer 0 cannot be cut into ") || !strstr(e.text, "multiple of 64 wide"))
            fail_msg("%s", e.text);
        model_close(m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(modes_and_partitions_never_show_on_2_ranks),
        cmocka_unit_test(modes_and_partitions_never_show_on_4_ranks),
        cmocka_unit_test(owners_that_are_groups_never_show),
#if !defined(__SANITIZE_THREAD__)
        cmocka_unit_test(modes_and_partitions_never_show_on_8_ranks),
#endif
        cmocka_unit_test(a_failed_owner_loses_no_request_where_others_have_room),
        cmocka_unit_test(a_failed_owner_of_shares_loses_no_request),
        cmocka_unit_test(a_failed_owner_means_503_where_nobody_has_room),
        cmocka_unit_test(owners_that_cannot_share_are_refused_at_the_start),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
