/* Weights re-sharded on the fly: the engine with ranks that really compute, in threads, each with its cut of the
 * weights only, while a policy has them hold those of other layouts all the time, of any number of stages, beside their
 * steps and between them. Each text is the one that the request has on a single rank; a rank never holds more than it
 * has room for; orders that are dropped, and ranks that fail, leave nothing behind. */
#include "engine/engine.h"
#include "tests/rig/switch_rig.h"

struct case_of {
    const char *config;
    enum dtype type;
    int ranks, kv_blocks;
    struct layout start;
    double room; /* in shares of all layers; 0: the usual */
};

/* What all layers take on a rank by themselves. */
static size_t all_layers(struct model *m)
{
    static struct run one;
    struct cut all = {.layout = {1, 1, 1}};
    start_run(&one, m, &(struct run_opts){.ranks = 1, .kv_blocks = 64, .sharded = true});
    size_t bytes = residency_bytes(engine_world(one.engine)->residency.facts, &all);
    stop_run(&one);
    engine_destroy(one.engine);
    return bytes;
}

static void churn(const struct case_of *k)
{
    static struct run quiet, t;
    static bool cancelled[N + 1];
    struct model *m = open_model(k->config, k->type);
    int n = N < 100 ? N : 200;
    struct chaos c = {.every = N < 100 ? 6 : 12, .budget = 48, .base_orders = true, .stages = true, .shards = true};
    memset(cancelled, 0, sizeof cancelled);
    one_rank(&quiet, m, &(struct run_opts){.n_requests = n});
    rng_init(&c.rng, (uint64_t)k->ranks);
    chaos_partitions(&c, k->ranks);
    start_run(&t, m,
              &(struct run_opts){.n_requests = n,
                                 .ranks = k->ranks,
                                 .kv_blocks = k->kv_blocks,
                                 .start = k->start,
                                 .sharded = true,
                                 .shard_memory = (size_t)(k->room * (double)all_layers(m)),
                                 .policy = chaos_policy(&c)});
    serve_all(&t, model_config(m)->vocab, cancelled);
    stop_run(&t);
    compare(&t, &quiet, cancelled);
    const struct world *w = engine_world(t.engine);
    print_message("%s, %d ranks: %llu switches, %llu bytes of weights moved, %llu orders refused\n", k->config,
                  k->ranks, (unsigned long long)w->partition.n_switches,
                  (unsigned long long)w->metrics->counters[C_RESHARDED_BYTES], (unsigned long long)c.n_refused);
    /* little room refuses most orders: a few are carried out */
    assert_true(w->metrics->counters[C_RESHARDED_BYTES] > 0 && w->partition.n_switches > (N < 100 ? 0 : 1));
    engine_destroy(t.engine);
    model_close(m);
}

static void reshards_never_show_on_2_ranks(void **state)
{
    (void)state;
    churn(&(struct case_of){"tests/data/layout_gqa.json", DT_F16, 2, 64, {1, 2, 1}, 0});
}

static void reshards_never_show_on_4_ranks_with_room_for_all(void **state)
{
    (void)state;
    churn(&(struct case_of){"tests/data/layout_deep.json", DT_F32, 4, 128, {1, 1, 4}, 2.1});
}

static void reshards_never_show_on_4_ranks_with_room_for_one_cut(void **state)
{
    (void)state;
    churn(&(struct case_of){"tests/data/layout_9_3.json", DT_BF16, 4, 128, {2, 2, 1}, 0.7});
}

#if defined(ON_8_RANKS)
static void reshards_never_show_on_8_ranks(void **state)
{
    (void)state;
    churn(&(struct case_of){"tests/data/layout_40_8.json", DT_F16, 8, 64, {1, 4, 2}, 1.1});
}
#endif

static void reshards_never_show_with_swiftkv(void **state)
{
    (void)state;
    churn(&(struct case_of){"tests/data/layout_swiftkv.json", DT_F16, 4, 128, {1, 2, 2}, 1.1});
}

/* Those that live load what was lost. */
static void a_rank_fails_and_the_others_load_what_it_held(void **state)
{
    (void)state;
    static struct run quiet, t;
    struct model *m = open_model("tests/data/layout_deep.json", DT_F32);
    int n = SOME < 60 ? SOME : 60;
    one_rank(&quiet, m, &(struct run_opts){.n_requests = n});
    int n_failed = 0;
    for (int rank = 0; rank < 4; rank += N < 100 ? 2 : 1) {
        struct chaos c = {.every = 10, .budget = 48, .stages = true, .shards = true};
        rng_init(&c.rng, (uint64_t)rank);
        chaos_partitions(&c, 4);
        start_run(&t, m,
                  &(struct run_opts){.n_requests = n,
                                     .ranks = 4,
                                     .kv_blocks = 128,
                                     .start = {1, 2, 2},
                                     .sharded = true,
                                     .shard_memory = 2 * all_layers(m),
                                     .fail_rank = rank,
                                     .fail_at_step = 3 + 2 * (uint64_t)rank,
                                     .policy = chaos_policy(&c)});
        serve_all(&t, model_config(m)->vocab, NULL);
        stop_run(&t);
        compare(&t, &quiet, NULL);
        n_failed += has_failed(&t, rank);
        engine_destroy(t.engine);
    }
    assert_true(n_failed >= LEAST_FAILED);
    model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reshards_never_show_on_2_ranks),
        cmocka_unit_test(reshards_never_show_on_4_ranks_with_room_for_all),
        cmocka_unit_test(reshards_never_show_on_4_ranks_with_room_for_one_cut),
#if defined(ON_8_RANKS)
        cmocka_unit_test(reshards_never_show_on_8_ranks),
#endif
        cmocka_unit_test(reshards_never_show_with_swiftkv),
        cmocka_unit_test(a_rank_fails_and_the_others_load_what_it_held),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
