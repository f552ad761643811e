/* Pipelined groups live: the engine with ranks that really compute, in threads, while a policy binds groups of any
 * number of stages, in any layout and with any number of micro-batches, all the time. Every fate of the KV takes it
 * from one number of stages to another. Each text is the one that the request has on a single rank; the books balance;
 * a rank that fails, of the first, a middle or the last stage, loses nothing. */
#include "engine/engine.h"
#include "tests/rig/switch_rig.h"

static void churn(const char *config, enum dtype type, int ranks, int kv_blocks)
{
    static struct run quiet, t;
    static bool cancelled[N + 1];
    struct model *m = open_model(config, type);
    int n = N < 100 ? N : 150;
    struct chaos c = {.every = N < 10 ? 2 : N < 100 ? 8 : 5, .budget = 48, .base_orders = true, .stages = true};
    memset(cancelled, 0, sizeof cancelled);
    one_rank(&quiet, m, &(struct run_opts){.n_requests = n});
    rng_init(&c.rng, (uint64_t)ranks);
    chaos_partitions(&c, ranks);
    start_run(&t, m,
              &(struct run_opts){.n_requests = n,
                                 .ranks = ranks,
                                 .kv_blocks = kv_blocks,
                                 .start = {1, 1, ranks},
                                 .policy = chaos_policy(&c)});
    serve_all(&t, model_config(m)->vocab, cancelled);
    stop_run(&t);
    compare(&t, &quiet, cancelled);
    const struct world *w = engine_world(t.engine);
    print_message("%s, %d ranks: %llu switches, %llu moves of %llu bytes, %llu tokens from the prefix cache\n", config,
                  ranks, (unsigned long long)w->partition.n_switches, (unsigned long long)w->metrics->counters[C_MOVES],
                  (unsigned long long)w->metrics->counters[C_MOVED_BYTES],
                  (unsigned long long)w->metrics->counters[C_PREFIX_HITS]);
    assert_true(w->partition.n_switches > (N < 1000 ? 0 : 5));
    engine_destroy(t.engine);
    model_close(m);
}

static void stages_never_show_on_2_ranks_with_little_kv(void **state)
{
    (void)state;
    churn("tests/data/layout_gqa.json", DT_F16, 2, 24);
}

static void stages_never_show_on_4_ranks(void **state)
{
    (void)state;
    churn("tests/data/layout_deep.json", DT_F32, 4, 128);
}

/* Switches, moves, preempts, prefixes, stages: the layers' keys and values come from elsewhere, and nobody notices. */
static void nor_with_swiftkv(void **state)
{
    (void)state;
    churn("tests/data/layout_swiftkv_deep.json", DT_Q8_0, 4, 64);
}

#if defined(ON_8_RANKS)
static void stages_never_show_on_8_ranks(void **state)
{
    (void)state;
    churn("tests/data/layout_deep.json", DT_Q8_0, 8, 64);
}
#endif

/* One layout for good, and so many micro-batches. */
struct pipe {
    struct layout layout;
    int n_micro;
};

static enum verdict pipe_step(void *ctx, const struct view *v, struct plan *p, struct err *e)
{
    const struct pipe *c = ctx;
    (void)e;
    for (int i = 0; i < v->n_idle; i++) {
        struct plan_batch *b = plan_batch(p, v->idle[i]);
        if (!b)
            continue;
        plan_decodes(b);
        plan_prefill(b, NULL, 0, 64);
        b->n_micro = c->n_micro;
        struct layout l = c->layout;
        if (layout_size(l) != b->group->n_ranks || l.pp != b->group->base.pp) /* a rank has failed */
            l = (struct layout){b->group->n_ranks / b->group->base.pp, 1, b->group->base.pp};
        if (b->n_tokens && !plan_forward(b, l))
            fail_msg("%s", p->reason);
    }
    return VERDICT_OK;
}

/* The texts of a node that never switches, in this layout, are those of one rank. */
static void fixed(struct layout l, int n_micro, struct run_opts o)
{
    static struct run quiet, t;
    static const struct policy_ops ops = {.step = pipe_step};
    struct model *m = open_model("tests/data/layout_deep.json", DT_F16);
    struct pipe c = {l, n_micro};
    o.ranks = layout_size(l);
    o.start = l;
    o.kv_blocks = 256;
    o.policy = (struct policy){.ops = &ops, .ctx = &c, .name = "pipe", .sha256 = "pipe"};
    o.n_requests = N < 100 && N > 10 ? 8 : SOME < 60 ? SOME : 60;
    one_rank(&quiet, m, &o);
    start_run(&t, m, &o);
    serve_all(&t, model_config(m)->vocab, NULL);
    stop_run(&t);
    compare(&t, &quiet, NULL);
    assert_int_equal((int)engine_world(t.engine)->partition.dead_ranks, o.fail_at_step ? 1 << o.fail_rank : 0);
    engine_destroy(t.engine);
    model_close(m);
}

static void one_layout_for_good(void **state)
{
    (void)state;
    fixed((struct layout){1, 1, 4}, 0, (struct run_opts){0});
    fixed((struct layout){2, 1, 2}, 5, (struct run_opts){0});
    if (N < 100)
        return;
    fixed((struct layout){1, 2, 3}, 1, (struct run_opts){.thirds = true});
    fixed((struct layout){2, 2, 2}, 64, (struct run_opts){0});
}

static void a_rank_of_any_stage_that_fails_loses_no_request(void **state)
{
    (void)state;
    for (int rank = 0; rank < 4; rank += N < 100 ? 3 : 1)
        fixed((struct layout){1, 1, 4}, 0, (struct run_opts){.fail_rank = rank, .fail_at_step = 5 + (uint64_t)rank});
    fixed((struct layout){1, 2, 2}, 0, (struct run_opts){.fail_rank = 1, .fail_at_step = 9});
}

static void a_rank_fails_while_stages_change(void **state)
{
    (void)state;
    static struct run quiet, t;
    struct model *m = open_model("tests/data/layout_deep.json", DT_F32);
    int n = N < 100 && N > 10 ? 8 : SOME < 60 ? SOME : 60;
    one_rank(&quiet, m, &(struct run_opts){.n_requests = n});
    int n_failed = 0;
    for (int rank = 0; rank < 4; rank += N < 100 ? 2 : 1) {
        struct chaos c = {.every = 10, .budget = 48, .stages = true};
        rng_init(&c.rng, (uint64_t)rank);
        chaos_partitions(&c, 4);
        start_run(&t, m,
                  &(struct run_opts){.n_requests = n,
                                     .ranks = 4,
                                     .kv_blocks = 128,
                                     .start = {1, 1, 4},
                                     .fail_rank = rank,
                                     .fail_at_step = 3 + (uint64_t)rank,
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
        cmocka_unit_test(stages_never_show_on_2_ranks_with_little_kv),
        cmocka_unit_test(stages_never_show_on_4_ranks),
        cmocka_unit_test(nor_with_swiftkv),
#if defined(ON_8_RANKS)
        cmocka_unit_test(stages_never_show_on_8_ranks),
#endif
        cmocka_unit_test(one_layout_for_good),
        cmocka_unit_test(a_rank_of_any_stage_that_fails_loses_no_request),
        cmocka_unit_test(a_rank_fails_while_stages_change),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
