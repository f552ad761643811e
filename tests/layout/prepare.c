/* What ranks do before anything is served: which steps are rehearsed, that an engine whose steps cannot run does not
 * start, and which graphs are recorded, groups that share no rank side by side. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <cmocka.h>

#include "engine/base/clock.h"
#include "engine/engine.h"
#include "kernels/backend.h"
#include "models/load/model.h"

enum { ROWS = 100, BLOCKS = 5 };

/* Of the steps that the ranks' devices have begun. */
static atomic_int n_steps, n_largest, most_rows,
    full_from; /* full_from: steps of so many rows find no memory; 0: none */

static int counted_begin(struct device *d, const struct batch *b, const struct rope *rope, struct err *e)
{
    int most = atomic_load(&most_rows), full = atomic_load(&full_from);
    atomic_fetch_add(&n_steps, 1);
    while (b->n_rows > most && !atomic_compare_exchange_weak(&most_rows, &most, b->n_rows))
        ;
    if (b->n_rows == ROWS)
        atomic_fetch_add(&n_largest, 1);
    if (full && b->n_rows >= full)
        return err_set(e, E_FULL, "no memory for %d rows", b->n_rows);
    return backend_cpu()->begin(d, b, rope, e);
}

/* ---- a machine with graphs: what it records it runs, and no step has a graph */

enum { SIZES = 3, PATIENCE_MS = 5000 };
static atomic_int n_recorded, n_lone, most_lone, waits_for, refuses_member, refuses_rows;

static int recorded_begin(struct device *d, const struct graph_call *c, const struct rope *rope, struct err *e)
{
    static _Thread_local struct sample_result results[1 << SIZES];
    static _Thread_local struct batch runs;
    runs = *c->batch;
    runs.results = results;
    if (c->key->all && c->key->me == atomic_load(&refuses_member) && c->batch->n_rows == atomic_load(&refuses_rows)) {
        backend_cpu()->comm_abort(c->key->all);
        return err_set(e, E_UNSUPPORTED, "no graph of %d rows", c->batch->n_rows);
    }
    if (!c->key->all) { /* until so many groups of one are here */
        int n = atomic_fetch_add(&n_lone, 1) + 1, most = atomic_load(&most_lone);
        while (n > most && !atomic_compare_exchange_weak(&most_lone, &most, n))
            ;
        for (int ms = 0; atomic_load(&most_lone) < atomic_load(&waits_for) && ms < PATIENCE_MS; ms++)
            nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    int rc = backend_cpu()->begin(d, &runs, rope, e);
    if (!c->key->all)
        atomic_fetch_sub(&n_lone, 1);
    return rc;
}

static int recorded_end(struct device *d, struct err *e)
{
    int rc = backend_cpu()->finish(d, NULL, e);
    atomic_fetch_add(&n_recorded, !rc);
    return rc;
}

static int no_graph(struct device *d, const struct graph_call *c, bool *posted, struct err *e)
{
    (void)d, (void)c, (void)e;
    *posted = false;
    return 0;
}

static void give_graphs(struct backend_ops *ops, struct engine_setup *s)
{
    ops->graph_begin = recorded_begin;
    ops->graph_end = recorded_end;
    ops->graph_post = no_graph;
    s->n_graph_sizes = SIZES;
    for (int i = 0; i < SIZES; i++)
        s->graph_sizes[i] = 1 << (SIZES - 1 - i);
}

static bool has_graphs; /* the machine that is tried */

/* blocks: of 16 tokens that hold all heads. */
static int try_start(int ranks, int blocks, bool rehearse, int full, struct err *e)
{
    struct backend_ops ops = *backend_cpu();
    struct clock clock;
    struct model *m;
    struct engine *engine;
    if (model_open_dummy(&m, "tests/data/layout_gqa.json", DT_F16, 3, e))
        fail_msg("%s", e->text);
    clock_init_real(&clock);
    ops.begin = counted_begin;
    atomic_store(&n_steps, 0);
    atomic_store(&n_largest, 0);
    atomic_store(&most_rows, 0);
    atomic_store(&full_from, full);
    const struct model_config *c = model_config(m);
    struct engine_setup s = {.ops = &ops,
                             .device = {.n_threads = 1},
                             .model = m,
                             .kv_dtype = DT_F16,
                             .block_size = 16,
                             .clock = &clock,
                             .threaded = true,
                             .limits = {.max_num_seqs = 4, .max_num_batched_tokens = ROWS, .max_model_len = 64},
                             .n_ranks = ranks,
                             .quiet = true,
                             .rehearse = rehearse};
    s.kv_bytes = (size_t)blocks * (size_t)c->n_layers * ops.kv_block_bytes(DT_F16, 16, c->n_kv_heads, c->head_dim);
    policy_fcfs(&s.policy);
    if (has_graphs)
        give_graphs(&ops, &s);
    int rc = engine_create(&engine, &s, e);
    if (!rc)
        engine_destroy(engine);
    model_close(m);
    return rc;
}

static void every_layout_is_rehearsed(void **state)
{
    (void)state;
    struct err e = {0};
    assert_int_equal(try_start(4, 16, true, 0, &e), 0);
    /* sets: 4 alone, 2 pairs in 2 layouts, all 4 in 3; three sizes each, by every member */
    assert_int_equal(atomic_load(&n_steps), 3 * (4 * 1 + 4 * 2 + 4 * 3));
    assert_int_equal(atomic_load(&n_largest), 4 * 1 + 4 * 2 + 4 * 3);
    assert_int_equal(atomic_load(&most_rows), ROWS);
}

static void it_needs_no_more_blocks_than_there_are(void **state)
{
    (void)state;
    struct err e = {0};
    assert_int_equal(try_start(1, BLOCKS, true, 0, &e), 0);
    assert_int_equal(atomic_load(&n_steps), 3);
    assert_int_equal(atomic_load(&most_rows), BLOCKS * 16);
}

static void without_it_nothing_runs(void **state)
{
    (void)state;
    struct err e = {0};
    assert_int_equal(try_start(2, 16, false, 0, &e), 0);
    assert_int_equal(atomic_load(&n_steps), 0);
}

static void a_step_without_memory_is_a_start_that_fails(void **state)
{
    (void)state;
    struct err e = {0};
    assert_int_equal(try_start(1, 16, true, ROWS, &e), E_FULL);
    assert_string_equal(e.text, "a first step of 100 rows in {sp 1, tp 1} on 1 rank: no memory for 100 rows");
    memset(&e, 0, sizeof e);
    assert_int_equal(try_start(4, 16, true, 64, &e), E_FULL);
    assert_non_null(strstr(e.text, "no memory for "));
}

static void record(int ranks, int lone_at_once)
{
    struct err e = {0};
    has_graphs = true;
    atomic_store(&n_recorded, 0);
    atomic_store(&most_lone, 0);
    atomic_store(&waits_for, lone_at_once);
    assert_int_equal(try_start(ranks, 16, false, 0, &e), 0);
    has_graphs = false;
}

/* Four alone, two pairs in two layouts, all four in three; all sizes, by every member. */
static void groups_that_share_no_rank_record_side_by_side(void **state)
{
    (void)state;
    atomic_store(&refuses_member, -1);
    record(4, 4);
    assert_int_equal(atomic_load(&n_recorded), SIZES * (4 * 1 + 4 * 2 + 4 * 3));
    assert_int_equal(atomic_load(&most_lone), 4);
}

/* What one group cannot record it is not asked for in a smaller size; the others record all. */
static void a_graph_that_is_refused_costs_its_group_alone(void **state)
{
    (void)state;
    atomic_store(&refuses_member, 3); /* of all four; there is none in a pair */
    atomic_store(&refuses_rows, 2);
    record(4, 1);
    assert_int_equal(atomic_load(&n_recorded), SIZES * (4 * 1 + 4 * 2) + 1 * 4 * 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_layout_is_rehearsed),
        cmocka_unit_test(it_needs_no_more_blocks_than_there_are),
        cmocka_unit_test(without_it_nothing_runs),
        cmocka_unit_test(a_step_without_memory_is_a_start_that_fails),
        cmocka_unit_test(groups_that_share_no_rank_record_side_by_side),
        cmocka_unit_test(a_graph_that_is_refused_costs_its_group_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
