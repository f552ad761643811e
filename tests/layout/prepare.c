/* What ranks do before anything is served: which steps are rehearsed, and that an engine whose steps cannot run does
 * not start. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_layout_is_rehearsed),
        cmocka_unit_test(it_needs_no_more_blocks_than_there_are),
        cmocka_unit_test(without_it_nothing_runs),
        cmocka_unit_test(a_step_without_memory_is_a_start_that_fails),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
