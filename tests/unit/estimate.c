/* The estimator learns what steps take, on slow machines as on fast ones, and says how far off it was. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "engine/base/rng.h"
#include "engine/world/estimate.h"

static double cost(double slow, const struct step_size *s)
{
    return slow * (2e5 + 2e4 * s->rows + 3 * s->looked_at);
}

/* Prompts and decodes of a machine whose steps cost so many times those of a fast one. */
static void learns_any_machine(void **state)
{
    (void)state;
    static const double slow[] = {0.01, 1, 10, 100};
    const struct layout l = {1, 2, 1};
    for (int k = 0; k < 4; k++) {
        struct estimator e;
        struct rng rng;
        estimator_init(&e);
        rng_init(&rng, 5);
        for (int i = 0; i < 250; i++) {
            struct step_size s = {0};
            for (uint64_t n = 1 + rng_below(&rng, 8); n; n--)
                step_size_add(&s, rng_below(&rng, 4) ? 1 : 1 + (int)rng_below(&rng, 500), (double)rng_below(&rng, 800));
            double predicted = estimator_learn(&e, l, s, cost(slow[k], &s)), off = predicted / cost(slow[k], &s) - 1;
            if (i >= 20 && (off > 0.3 || off < -0.3))
                fail_msg("%g times as slow, step %d: %+.1f%%", slow[k], i, 100 * off);
        }
        assert_true(e.error < 0.2); /* the first guesses of a fast machine are hundreds of times too long: they fade */
    }
}

/* A prompt and a decode: what a row costs is known by then. */
static void two_sizes_of_step_settle_what_a_row_costs(void **state)
{
    (void)state;
    for (double slow = 0.1; slow < 300; slow *= 10) {
        const struct layout l = {1, 1, 1};
        struct estimator e;
        struct step_size prompt = {.rows = 170}, decode = {.rows = 8};
        estimator_init(&e);
        for (int i = 0; i < 2; i++) {
            estimator_learn(&e, l, prompt, cost(slow, &prompt));
            estimator_learn(&e, l, decode, cost(slow, &decode));
        }
        struct step_size wider = {.rows = 16};
        double row = estimator_ns(&e, l, wider, NULL) - estimator_ns(&e, l, decode, NULL), is = slow * 8 * 2e4;
        if (row < 0.8 * is || row > 1.2 * is)
            fail_msg("%g times as slow: eight rows cost %g ns, and are thought to cost %g", slow, is, row);
    }
}

/* The head and the sampler: a draft token pays for them, a prompt's row does not. */
static void rows_that_give_a_token_have_a_price_of_their_own(void **state)
{
    (void)state;
    const struct layout l = {1, 1, 1};
    struct estimator e;
    struct rng rng;
    estimator_init(&e);
    rng_init(&rng, 9);
    for (int i = 0; i < 400; i++) {
        int rows = i % 20 ? 4 + (int)rng_below(&rng, 5) : 300 + (int)rng_below(&rng, 200);
        struct step_size s = {.rows = rows, .n_logits = rows < 300 ? rows : 1};
        estimator_learn(&e, l, s, 2e6 + 1e5 * s.rows + 4e5 * s.n_logits);
    }
    struct step_size decode = {.rows = 8, .n_seqs = 8, .n_logits = 8}, more = decode,
                     prompt = {.rows = 300, .n_logits = 1};
    step_size_draft(&more, 1);
    double draft = estimator_ns(&e, l, more, NULL) - estimator_ns(&e, l, decode, NULL),
           whole = estimator_ns(&e, l, prompt, NULL);
    assert_true(draft > 0.9 * 5e5 && draft < 1.1 * 5e5);
    assert_true(whole > 0.9 * 32.4e6 && whole < 1.1 * 32.4e6);
}

/* A layout that never ran is judged by one that did: no less than nothing, and finite. */
static void guesses_what_never_ran(void **state)
{
    (void)state;
    struct estimator e;
    uint64_t seen = 1;
    estimator_init(&e);
    const struct step_size s = {.rows = 10, .looked_at = 55};
    double before = estimator_ns(&e, (struct layout){1, 1, 1}, s, &seen);
    assert_true(before > 0 && before < 1e12 && seen == 0);
    for (int i = 0; i < 30; i++)
        estimator_learn(&e, (struct layout){1, 1, 1}, s, 5e6);
    double same = estimator_ns(&e, (struct layout){1, 1, 1}, s, &seen),
           wide = estimator_ns(&e, (struct layout){1, 4, 1}, s, NULL);
    assert_true(seen == 30 && same > 4.9e6 && same < 5.1e6);
    assert_true(wide > 0 && wide <= same * 1.001);
}

/* Each micro-batch is a while in each stage, and reads its weights. */
static double piped(struct layout l, const struct step_size *s, int n)
{
    return (double)(n + l.pp - 1) / l.pp * (3e6 + (2e4 * s->rows + 3 * s->looked_at) / n);
}

static void how_a_step_is_cut_follows_from_what_it_takes(void **state)
{
    (void)state;
    static const struct layout layouts[] = {{1, 1, 2}, {1, 2, 4}, {2, 1, 3}};
    struct rng rng;
    rng_init(&rng, 11);
    for (int k = 0; k < 3; k++) {
        struct layout l = layouts[k];
        struct estimator e;
        estimator_init(&e);
        for (int i = 0; i < 400; i++) {
            struct step_size s = {.n_micro = 1 + (int)rng_below(&rng, 20)}, any;
            for (uint64_t n = 1 + rng_below(&rng, 40); n; n--)
                step_size_add(&s, rng_below(&rng, 4) ? 1 : 1 + (int)rng_below(&rng, 500), (double)rng_below(&rng, 800));
            if (i < 100) {
                estimator_learn(&e, l, s, piped(l, &s, step_size_micro(&s, l)));
                continue;
            }
            any = s;
            any.n_micro = 0;
            double least = INFINITY, off = estimator_ns(&e, l, s, NULL) / piped(l, &s, step_size_micro(&s, l)) - 1;
            assert_true(off < 0.01 && off > -0.01);
            for (int n = 1; n <= 4 * l.pp && n <= s.rows; n *= 2)
                least = fmin(least, piped(l, &s, n));
            assert_true(piped(l, &s, estimator_micro(&e, l, s)) <= 1.001 * least);
            assert_true(fabs(estimator_ns(&e, l, any, NULL) / least - 1) < 0.01);
        }
        struct step_size decode = {.rows = 8}, prompts = {.rows = 8000};
        assert_int_equal(estimator_micro(&e, l, decode), 1);
        assert_true(estimator_micro(&e, l, prompts) >= 2 * l.pp);
    }
}

/* Rows of draft tokens are those that the sequences would have if each had its share of them. */
static void drafts_are_rows_of_sequences(void **state)
{
    (void)state;
    for (int n = 0; n <= 64; n += 4) {
        struct step_size with = {0}, each = {0};
        for (int i = 0; i < 8; i++) {
            step_size_add(&with, 1, 1000);
            with.n_logits++;
            step_size_add(&each, 1 + n / 8 + (i < n % 8), 1000);
            each.n_logits += 1 + n / 8 + (i < n % 8);
        }
        step_size_draft(&with, n);
        assert_int_equal(with.rows, each.rows);
        assert_int_equal(with.n_logits, each.n_logits);
        assert_int_equal(with.n_chunks, each.n_chunks);
        assert_int_equal(with.chunk_rows, each.chunk_rows);
        assert_true(fabs(with.looked_at - each.looked_at) <= 0.01 * each.looked_at);
        assert_true(fabs(with.chunk_looked_at - each.chunk_looked_at) <= 0.01 * each.chunk_looked_at);
    }
    struct step_size bare = {.rows = 3};
    step_size_draft(&bare, 5);
    assert_int_equal(bare.rows, 8);
    assert_int_equal(bare.n_chunks, 0);
}

/* Steps that send rows to the owners of FFN layers are learnt apart; until one has run, those that do not stand for
 * them. */
static void steps_that_send_rows_are_learnt_apart(void **state)
{
    (void)state;
    struct estimator e;
    uint64_t seen = 1;
    estimator_init(&e);
    const struct layout l = {1, 1, 1}, other = {1, 2, 1};
    const struct step_size fetches = {.rows = 10, .looked_at = 55, .pool_ranks = 4},
                           sends = {.rows = 10, .looked_at = 55, .pool_ranks = 4, .cas_layers = 3};
    for (int i = 0; i < 60; i++)
        estimator_learn(&e, other, fetches, 90e6);
    for (int i = 0; i < 30; i++)
        estimator_learn(&e, l, fetches, 8e6);
    double guess = estimator_ns(&e, l, sends, &seen);
    assert_true(seen == 0 && guess > 7.8e6 && guess < 8.2e6);
    for (int i = 0; i < 30; i++)
        estimator_learn(&e, l, sends, 2e6);
    double was = estimator_ns(&e, l, fetches, NULL), cas = estimator_ns(&e, l, sends, &seen);
    assert_true(was > 7.8e6 && was < 8.2e6 && cas > 1.9e6 && cas < 2.1e6 && seen == 30);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(learns_any_machine),
                                       cmocka_unit_test(two_sizes_of_step_settle_what_a_row_costs),
                                       cmocka_unit_test(rows_that_give_a_token_have_a_price_of_their_own),
                                       cmocka_unit_test(guesses_what_never_ran),
                                       cmocka_unit_test(how_a_step_is_cut_follows_from_what_it_takes),
                                       cmocka_unit_test(drafts_are_rows_of_sequences),
                                       cmocka_unit_test(steps_that_send_rows_are_learnt_apart)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
