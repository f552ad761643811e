/* The fit of step times, on made recordings whose machine is known: heavy-tailed noise, busy spells, groups that slow
 * each other down. Totals are the measured ones in every cell, draws are spread as the steps were, and what was never
 * measured is told. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

#include "engine/base/mem.h"
#include "engine/lab/fit/step_fit.h"

static const struct layout layouts[] = {{1, 1, 1}, {1, 2, 1}, {2, 1, 1}, {1, 2, 2}};

struct made {
    struct rng rng;
    double pareto; /* how often a step is hit by a pause */
    double spell;  /* how much slower the machine is in a busy spell; 1: it has none */
    double bend;   /* how far from linear its steps are */
};

static double normal(struct rng *r)
{
    double sum = -6;
    for (int i = 0; i < 12; i++)
        sum += rng_unit(r);
    return sum;
}

static struct fit_step make_size(struct made *m, int i)
{
    struct fit_step s = {.layout = layouts[rng_below(&m->rng, 3)], .at_ns = (int64_t)i * 7000000};
    s.beside = (int)rng_below(&m->rng, 3);
    s.rows = s.logits = 1 + (int)rng_below(&m->rng, 24);
    if (rng_below(&m->rng, 6) == 0)
        s.rows += (int)rng_below(&m->rng, 600);
    s.looked_at = s.rows * (1 + (double)rng_below(&m->rng, 500));
    return s;
}

/* Without luck. */
static double true_ns(const struct made *m, const struct fit_step *s)
{
    double ns = 1e6 + 4e4 * s->rows / layout_size(s->layout) + 2 * s->looked_at + 2e4 * s->logits;
    return ns * (1 + 0.4 * s->beside) * (1 + m->bend * sqrt(s->rows));
}

static struct fit_step make_step(struct made *m, int i)
{
    struct fit_step s = make_size(m, i);
    double busy = s.at_ns / 2000000000 % 3 == 1 ? m->spell : 1, luck = 1 + 0.1 * normal(&m->rng);
    luck = luck > 0.2 ? luck : 0.2;
    if (rng_unit(&m->rng) < m->pareto)
        luck *= pow(1 - rng_unit(&m->rng), -1 / 1.3); /* without a variance */
    s.ns = (int64_t)(true_ns(m, &s) * busy * luck) + 1;
    s.lag_ns = rng_below(&m->rng, 5) ? 20000 + (int64_t)rng_below(&m->rng, 80000) : -1;
    return s;
}

static struct step_fit *fit(struct made *m, struct fit_step *steps, int n)
{
    struct step_fit *f = step_fit_new(0);
    for (int i = 0; i < n; i++) {
        steps[i] = make_step(m, i);
        step_fit_add(f, &steps[i]);
    }
    step_fit_end(f);
    return f;
}

static void same(double a, double b, double within, const char *what, int at)
{
    if (!(fabs(a - b) <= within * fabs(b)))
        fail_msg("%s, %d: %.17g is not %.17g", what, at, a, b);
}

/* Sums over the steps of each cell, predicted and measured. */
static void check_totals(const struct step_fit *f, const struct fit_step *steps, int n)
{
    double measured[4][3] = {{0}}, predicted[4][3] = {{0}}, all[2] = {0};
    for (int i = 0; i < n; i++) {
        enum fit_basis basis;
        double ns = step_fit_mean(f, &steps[i], &basis);
        int l = 0;
        while (!layout_equal(layouts[l], steps[i].layout))
            l++;
        measured[l][steps[i].beside] += (double)steps[i].ns;
        predicted[l][steps[i].beside] += ns;
        all[0] += ns;
        all[1] += (double)steps[i].ns;
        assert_int_equal(basis, FIT_MEASURED);
        assert_true(ns > 0);
    }
    same(all[0], all[1], 1e-9, "all steps", n);
    same(step_fit_quality(f)->measured_ns, all[1] / n, 1e-9, "the mean", n);
    same(step_fit_quality(f)->modelled_ns, all[1] / n, 1e-9, "the modelled mean", n);
    for (int l = 0; l < 4; l++)
        for (int b = 0; b < 3; b++)
            same(predicted[l][b], measured[l][b], 1e-9, "a layout and what is beside it", l * 10 + b);
}

static void totals_are_the_measured_ones(void **state)
{
    (void)state;
    enum { MOST = 6000 };
    struct fit_step *steps = mem_new_array(MOST, sizeof *steps);
    for (int seed = 0; seed < 60; seed++) {
        struct made m = {.pareto = seed % 3 * 0.05, .spell = 1 + seed % 2, .bend = seed % 5 * 0.05};
        rng_init(&m.rng, (uint64_t)seed);
        int n = seed ? 1 + (int)rng_below(&m.rng, MOST) : 1;
        struct step_fit *f = fit(&m, steps, n);
        check_totals(f, steps, n);
        step_fit_free(f);
    }
    mem_free(steps);
}

/* Where the machine is not linear, sizes are right all the same, each octave of rows within noise. */
static void sizes_are_right_on_a_bent_machine(void **state)
{
    (void)state;
    enum { N = 20000 };
    struct fit_step *steps = mem_new_array(N, sizeof *steps);
    struct made m = {.bend = 0.2, .spell = 1};
    rng_init(&m.rng, 3);
    struct step_fit *f = fit(&m, steps, N);
    double measured[12] = {0}, predicted[12] = {0};
    for (int i = 0; i < N; i++) {
        int octave = 31 - __builtin_clz((unsigned)steps[i].rows);
        measured[octave] += (double)steps[i].ns;
        predicted[octave] += step_fit_mean(f, &steps[i], NULL);
    }
    for (int k = 0; k < 10; k++)
        same(predicted[k], measured[k], 0.08, "rows from 2^", k);
    step_fit_free(f);
    mem_free(steps);
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Quantiles of what was drawn for the very steps that were measured. */
static void draws_are_spread_as_the_steps_were(void **state)
{
    (void)state;
    enum { N = 12000 };
    static const int percents[] = {5, 25, 50, 75, 90, 95};
    struct fit_step *steps = mem_new_array(N, sizeof *steps);
    double *measured = mem_new_array(N, sizeof *measured), *drawn = mem_new_array(N, sizeof *drawn);
    for (int seed = 0; seed < 8; seed++) {
        struct made m = {.pareto = seed % 2 * 0.08, .spell = seed & 2 ? 2.2 : 1, .bend = seed & 4 ? 0.1 : 0};
        struct rng luck;
        rng_init(&m.rng, 100 + (uint64_t)seed);
        rng_init(&luck, (uint64_t)seed);
        struct step_fit *f = fit(&m, steps, N);
        double lag[2] = {0}, n_lags = 0;
        for (int i = 0; i < N; i++) {
            struct fit_drawn d = step_fit_draw(f, &steps[i], &luck);
            double scale = true_ns(&m, &steps[i]); /* of one size, so that sizes do not hide the spread */
            measured[i] = (double)steps[i].ns / scale;
            drawn[i] = (double)d.ns / scale;
            lag[0] += (double)d.lag_ns / N;
            lag[1] += steps[i].lag_ns < 0 ? 0 : (double)steps[i].lag_ns;
            n_lags += steps[i].lag_ns >= 0;
        }
        same(lag[0], lag[1] / n_lags, 0.02, "lag", seed);
        same(step_fit_quality(f)->lag_ns, lag[1] / n_lags, 1e-9, "the mean lag", seed);
        qsort(measured, N, sizeof *measured, by_size);
        qsort(drawn, N, sizeof *drawn, by_size);
        for (size_t k = 0; k < sizeof percents / sizeof *percents; k++)
            same(drawn[N * percents[k] / 100], measured[N * percents[k] / 100], 0.06, "percentile",
                 seed * 100 + percents[k]);
        step_fit_free(f);
    }
    mem_free(steps);
    mem_free(measured);
    mem_free(drawn);
}

/* Heavy steps weigh as much in the mean of the draws as they did. */
static void the_mean_of_many_draws_is_the_prediction(void **state)
{
    (void)state;
    enum { N = 3000, DRAWS = 400000 };
    struct fit_step *steps = mem_new_array(N, sizeof *steps);
    struct made m = {.pareto = 0.05, .spell = 1.5, .bend = 0.1};
    struct rng luck;
    rng_init(&m.rng, 8);
    rng_init(&luck, 9);
    struct step_fit *f = fit(&m, steps, N);
    for (int i = 0; i < 5; i++) {
        const struct fit_step *s = &steps[i * 500];
        double sum = 0, squares = 0, mean = step_fit_mean(f, s, NULL);
        for (int k = 0; k < DRAWS; k++) {
            double ns = (double)step_fit_draw(f, s, &luck).ns;
            sum += ns / DRAWS;
            squares += ns * ns / DRAWS;
        }
        double error = sqrt((squares - sum * sum) / DRAWS);
        if (fabs(sum - mean) > 5 * error + 1)
            fail_msg("step %d: %g drawn, %g predicted, %g standard error", i * 500, sum, mean, error);
    }
    step_fit_free(f);
    mem_free(steps);
}

static void busy_spells_last_and_luck_does_not(void **state)
{
    (void)state;
    enum { N = 6000 };
    struct fit_step *steps = mem_new_array(N, sizeof *steps);
    struct made calm = {.spell = 1}, busy = {.spell = 2};
    rng_init(&calm.rng, 1);
    rng_init(&busy.rng, 1);
    struct step_fit *f = fit(&calm, steps, N);
    struct fit_step at = steps[0];
    assert_true(step_fit_quality(f)->spells < 0.05);
    double quiet = step_fit_mean(f, &at, NULL);
    at.at_ns = 3000000000;
    same(step_fit_mean(f, &at, NULL), quiet, 0.03, "another time", 0);
    step_fit_free(f);
    f = fit(&busy, steps, N);
    assert_true(step_fit_quality(f)->spells > 0.8);
    double slow = step_fit_mean(f, &at, NULL);
    at.at_ns = 5000000000;
    double fast = step_fit_mean(f, &at, NULL);
    same(slow / fast, 2, 0.1, "a spell", 0);
    at.at_ns = 5000000000 + INT64_C(600) * 42000000000; /* beyond the recording it all begins again */
    assert_true(step_fit_mean(f, &at, NULL) > 0.5 * fast && step_fit_mean(f, &at, NULL) < 2.2 * fast);
    at.at_ns = -5000000000;
    assert_true(step_fit_mean(f, &at, NULL) > 0.5 * fast && step_fit_mean(f, &at, NULL) < 2.2 * fast);
    step_fit_free(f);
    mem_free(steps);
}

/* Large steps that only ran in a busy spell: at other times they are as fast as the small ones beside them say. */
static void slow_times_are_not_slow_sizes(void **state)
{
    (void)state;
    enum { N = 6000 };
    struct fit_step *steps = mem_new_array(N, sizeof *steps);
    struct made m = {.spell = 3};
    rng_init(&m.rng, 5);
    struct step_fit *f = step_fit_new(0);
    for (int i = 0; i < N; i++) {
        bool busy = (int64_t)i * 7000000 / 2000000000 % 3 == 1;
        struct fit_step *s = &steps[i];
        *s = (struct fit_step){.layout = layouts[0], .at_ns = (int64_t)i * 7000000, .lag_ns = -1};
        s->rows = s->logits = 1 + (int)(busy && i % 4 ? 10 + rng_below(&m.rng, 30) : rng_below(&m.rng, 10));
        s->looked_at = s->rows * 100.0;
        s->ns = (int64_t)(true_ns(&m, s) * (busy ? m.spell : 1) * (1 + 0.1 * normal(&m.rng)));
        step_fit_add(f, s);
    }
    step_fit_end(f);
    for (int rows = 5; rows <= 40; rows += 5) {
        struct fit_step s = {.layout = layouts[0], .rows = rows, .logits = rows, .looked_at = rows * 100.0};
        same(step_fit_mean(f, &s, NULL), true_ns(&m, &s), 0.15, "calm, rows", rows);
        s.at_ns = 3000000000;
        same(step_fit_mean(f, &s, NULL), m.spell * true_ns(&m, &s), 0.15, "busy, rows", rows);
    }
    step_fit_free(f);
    mem_free(steps);
}

/* A machine that reads its weights while it multiplies, and the head's only where a token is given: 4 ms, of them a
 * fifth for the head, or 1 ms a row, whichever is longer. */
static double overlapped_ns(int rows, int logits)
{
    double reads = logits ? 4e6 : 3.2e6, multiplies = 0.8e6 * rows + 0.2e6 * logits;
    return reads > multiplies ? reads : multiplies;
}

/* Recorded as a server with few requests and a large budget is: nine of ten steps give one token to one request, the
 * others are whole prompts; slow_prompts: of 8 prompts so many take twice as long. */
static struct step_fit *fit_a_quiet_server(int slow_prompts, double head_share)
{
    struct step_fit *f = step_fit_new(head_share);
    struct rng rng;
    rng_init(&rng, 11);
    for (int i = 0, prompts = 0; i < 400; i++) {
        struct fit_step s = {.layout = layouts[0], .rows = 1, .logits = 1, .at_ns = (int64_t)i * 7000000, .lag_ns = -1};
        bool slow = false;
        if (i % 10 == 9) {
            s.rows = 12 + (int)rng_below(&rng, 70);
            slow = prompts++ % 8 < slow_prompts;
        }
        s.looked_at = s.rows * (s.rows + 1) / 2.0;
        s.ns = (int64_t)(overlapped_ns(s.rows, 1) * (slow ? 2 : 1) * (1 + 0.03 * normal(&rng)));
        step_fit_add(f, &s);
    }
    step_fit_end(f);
    return f;
}

static double predicted_ns(const struct step_fit *f, int rows, int logits)
{
    struct fit_step s = {.layout = layouts[0], .rows = rows, .logits = logits, .looked_at = rows * (rows + 1) / 2.0};
    return step_fit_mean(f, &s, NULL);
}

/* Of these sizes none ran. */
static void small_steps_are_no_part_of_a_line_through_large_ones(void **state)
{
    (void)state;
    struct step_fit *f = fit_a_quiet_server(0, 0.2);
    for (int rows = 1; rows < 12; rows += 1 + rows / 4)
        same(predicted_ns(f, rows, 1), overlapped_ns(rows, 1), 0.08, "rows", rows);
    step_fit_free(f);
}

static void a_step_that_gives_no_token_leaves_the_head_alone(void **state)
{
    (void)state;
    struct step_fit *f = fit_a_quiet_server(0, 0.2), *unknown = fit_a_quiet_server(0, 0);
    for (int rows = 1; rows <= 48; rows = rows * 3)
        same(predicted_ns(f, rows, 0), overlapped_ns(rows, 0), 0.08, "no token, rows", rows);
    assert_true(predicted_ns(unknown, 1, 0) > 1.15 * overlapped_ns(1, 0));
    step_fit_free(f);
    step_fit_free(unknown);
}

/* Such as the simulated device, on which all rows cost the same, whether they give a token or not. */
static void a_machine_whose_head_costs_nothing_is_fitted(void **state)
{
    (void)state;
    struct step_fit *f = step_fit_new(0.2);
    struct rng rng;
    rng_init(&rng, 3);
    for (int i = 0; i < 400; i++) {
        int decodes = 1 + (int)rng_below(&rng, 12), prompt = i % 7 ? 0 : 20 + (int)rng_below(&rng, 300);
        struct fit_step s = {.layout = layouts[0], .at_ns = (int64_t)i * 7000000, .lag_ns = -1};
        s.rows = decodes + prompt;
        s.logits = decodes + (prompt > 0);
        s.looked_at = (double)rng_below(&rng, 20000); /* costs nothing, either */
        s.ns = 500000 + 5000 * s.rows;
        step_fit_add(f, &s);
    }
    step_fit_end(f);
    assert_true(step_fit_quality(f)->error < 1e-4);
    step_fit_free(f);
}

/* Whatever size they have: the total has them, and all sizes of few steps take their part. */
static void slow_steps_bend_nothing(void **state)
{
    (void)state;
    struct step_fit *f = fit_a_quiet_server(1, 0.2);
    double more = predicted_ns(f, 40, 1) / overlapped_ns(40, 1);
    assert_true(more > 1.06 && more < 1.25); /* of 8 prompts one takes twice as long */
    for (int rows = 16; rows <= 80; rows += 8)
        same(predicted_ns(f, rows, 1), more * overlapped_ns(rows, 1), 0.06, "rows", rows);
    same(predicted_ns(f, 1, 1), overlapped_ns(1, 1), 0.02, "rows", 1);
    step_fit_free(f);
}

static void the_same_seed_draws_the_same(void **state)
{
    (void)state;
    enum { N = 500 };
    struct fit_step *steps = mem_new_array(N, sizeof *steps);
    struct made m[2] = {{.pareto = 0.1, .spell = 2}, {.pareto = 0.1, .spell = 2}};
    struct step_fit *f[2];
    struct rng luck[3];
    int n_other = 0;
    for (int k = 0; k < 2; k++) {
        rng_init(&m[k].rng, 4);
        f[k] = fit(&m[k], steps, N);
    }
    for (int k = 0; k < 3; k++)
        rng_init(&luck[k], k < 2 ? 6 : 7);
    for (int i = 0; i < N; i++) {
        struct fit_drawn a = step_fit_draw(f[0], &steps[i], &luck[0]), b = step_fit_draw(f[1], &steps[i], &luck[1]);
        assert_true(a.ns == b.ns && a.lag_ns == b.lag_ns && a.basis == b.basis);
        n_other += step_fit_draw(f[0], &steps[i], &luck[2]).ns != a.ns;
    }
    assert_true(n_other > N / 2);
    step_fit_free(f[0]);
    step_fit_free(f[1]);
    mem_free(steps);
}

static void what_was_never_measured_is_told(void **state)
{
    (void)state;
    enum { N = 2000 };
    struct fit_step *steps = mem_new_array(N, sizeof *steps);
    struct made m = {.spell = 1};
    enum fit_basis basis;
    rng_init(&m.rng, 2);
    struct step_fit *f = fit(&m, steps, N);
    struct fit_step s = steps[0];
    s.beside = 3;
    step_fit_mean(f, &s, &basis);
    assert_int_equal(basis, FIT_BESIDE);
    assert_int_equal(step_fit_most_beside(f, s.layout), 2);
    s.beside = 1;
    s.rows = 4000;
    double large = step_fit_mean(f, &s, &basis);
    assert_int_equal(basis, FIT_SIZE);
    same(large, true_ns(&m, &s), 0.25, "beyond the largest", 0);
    s.layout = layouts[3];
    s.rows = 10;
    assert_true(step_fit_mean(f, &s, &basis) > 0);
    assert_int_equal(basis, FIT_LAYOUT);
    assert_int_equal(step_fit_most_beside(f, s.layout), -1);
    s.layout = layouts[1];
    s.cas = true; /* its own layout, otherwise than it ran */
    step_fit_mean(f, &s, &basis);
    assert_int_equal(basis, FIT_LAYOUT);
    step_fit_free(f);
    f = step_fit_new(0);
    step_fit_end(f);
    assert_true(step_fit_mean(f, &s, &basis) > 0 && basis == FIT_LAYOUT);
    assert_true(step_fit_draw(f, &s, &m.rng).ns == 1);
    step_fit_free(f);
    mem_free(steps);
}

/* Past the bound steps are left out, and it shows nowhere else. */
static void long_recordings_are_thinned_out(void **state)
{
    (void)state;
    enum { N = 1300000 };
    struct step_fit *f = step_fit_new(0);
    struct made m = {.spell = 1};
    double sum = 0;
    rng_init(&m.rng, 2);
    for (int i = 0; i < N; i++) {
        struct fit_step s = make_step(&m, i);
        sum += (double)s.ns / N;
        step_fit_add(f, &s);
    }
    step_fit_end(f);
    const struct fit_quality *q = step_fit_quality(f);
    assert_true(q->n_left_out > N / 2 && q->n_steps > 200000 && q->n_steps + q->n_left_out == N);
    same(q->modelled_ns, sum, 0.01, "the mean", N);
    step_fit_free(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(totals_are_the_measured_ones),
                                       cmocka_unit_test(sizes_are_right_on_a_bent_machine),
                                       cmocka_unit_test(draws_are_spread_as_the_steps_were),
                                       cmocka_unit_test(the_mean_of_many_draws_is_the_prediction),
                                       cmocka_unit_test(busy_spells_last_and_luck_does_not),
                                       cmocka_unit_test(the_same_seed_draws_the_same),
                                       cmocka_unit_test(slow_times_are_not_slow_sizes),
                                       cmocka_unit_test(small_steps_are_no_part_of_a_line_through_large_ones),
                                       cmocka_unit_test(a_step_that_gives_no_token_leaves_the_head_alone),
                                       cmocka_unit_test(a_machine_whose_head_costs_nothing_is_fitted),
                                       cmocka_unit_test(slow_steps_bend_nothing),
                                       cmocka_unit_test(what_was_never_measured_is_told),
                                       cmocka_unit_test(long_recordings_are_thinned_out)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
