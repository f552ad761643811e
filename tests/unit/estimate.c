/* The estimator learns what steps take, on slow machines as on fast ones, and says how far off it was. */
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
    const struct CMUnitTest tests[] = {cmocka_unit_test(learns_any_machine), cmocka_unit_test(guesses_what_never_ran),
                                       cmocka_unit_test(steps_that_send_rows_are_learnt_apart)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
