/* Results of two sides beside each other: quantiles are those of the sorted values within a class, and the test of
 * ranks says what shuffling the values many times says, whether the sides are alike or not. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

#include "engine/base/rng.h"
#include "engine/canary_results.h"

enum { MOST = 120, SHUFFLES = 4000 };

struct sample {
    double values[MOST];
    int n;
};

/* A skewed one, about one second, `times` as long. */
static void draw(struct sample *s, struct rng *r, int n, double times)
{
    s->n = n;
    for (int i = 0; i < n; i++) {
        double u = (double)(1 + rng_below(r, 1000000)) / 1000001;
        s->values[i] = times * (0.2 - log(u));
    }
}

static void fill(struct result_times *t, const double *values, int n)
{
    *t = (struct result_times){0};
    for (int i = 0; i < n; i++)
        results_add(t, values[i]);
}

/* How often a value of b is larger than one of a, ties by half. */
static double larger(const double *a, int n_a, const double *b, int n_b)
{
    double u = 0;
    for (int i = 0; i < n_a; i++)
        for (int k = 0; k < n_b; k++)
            u += b[k] > a[i] ? 1 : b[k] == a[i] ? 0.5 : 0;
    return u / ((double)n_a * n_b);
}

/* The share of shuffles in which the sides differ as much. */
static double by_shuffling(const struct sample *a, const struct sample *b, struct rng *r)
{
    double all[2 * MOST], off = fabs(larger(a->values, a->n, b->values, b->n) - 0.5);
    int n = a->n + b->n, as_far = 0;
    for (int i = 0; i < n; i++)
        all[i] = i < a->n ? a->values[i] : b->values[i - a->n];
    for (int s = 0; s < SHUFFLES; s++) {
        for (int i = n - 1; i > 0; i--) {
            int k = (int)rng_below(r, (uint64_t)i + 1);
            double x = all[i];
            all[i] = all[k];
            all[k] = x;
        }
        as_far += fabs(larger(all, a->n, all + a->n, b->n) - 0.5) >= off - 1e-12;
    }
    return (double)as_far / SHUFFLES;
}

static void ranks_are_compared_as_by_shuffling(void **state)
{
    (void)state;
    static const double times[] = {1, 1, 1.2, 0.8, 1.5, 3};
    struct rng r;
    rng_init(&r, 5);
    for (size_t i = 0; i < sizeof times / sizeof *times; i++) {
        struct sample a, b;
        static struct result_times x, y;
        draw(&a, &r, 40 + (int)i, 1);
        draw(&b, &r, 30, times[i]);
        fill(&x, a.values, a.n);
        fill(&y, b.values, b.n);
        struct rank_test t = results_compare(&x, &y), back = results_compare(&y, &x);
        assert_true(fabs(t.larger - larger(a.values, a.n, b.values, b.n)) < 0.02);
        assert_true(fabs(t.p - by_shuffling(&a, &b, &r)) < 0.03);
        assert_true(fabs(t.p - back.p) < 1e-9 && fabs(t.larger + back.larger - 1) < 1e-9);
    }
}

static void few_values_say_nothing(void **state)
{
    (void)state;
    static struct result_times x, y, none;
    double low[RESULT_LEAST], high[RESULT_LEAST];
    for (int i = 0; i < RESULT_LEAST; i++) {
        low[i] = 1 + 0.1 * i;
        high[i] = 100 + i;
    }
    fill(&x, low, RESULT_LEAST);
    fill(&y, high, RESULT_LEAST - 1);
    assert_true(results_compare(&x, &y).p == 1 && results_compare(&x, &y).larger == 1);
    assert_false(results_compare(&x, &y).enough);
    fill(&y, high, RESULT_LEAST);
    assert_true(results_compare(&x, &y).p < 1e-6 && results_compare(&x, &y).enough);
    assert_true(results_compare(&x, &none).p == 1 && results_quantile(&none, 0.5) == 0 && results_mean(&none) == 0);
    fill(&x, (double[]){5, 5, 5}, 3); /* all alike */
    assert_true(results_compare(&x, &x).p == 1);
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void quantiles_are_those_of_the_values(void **state)
{
    (void)state;
    static const double of[] = {0.01, 0.5, 0.9, 0.99, 1};
    static struct result_times t;
    struct rng r;
    struct sample s;
    rng_init(&r, 6);
    for (int n = 1; n <= MOST; n += 7) {
        double sum = 0;
        draw(&s, &r, n, 0.03);
        fill(&t, s.values, n);
        qsort(s.values, (size_t)n, sizeof *s.values, ascending);
        for (int i = 0; i < n; i++)
            sum += s.values[i];
        assert_true(fabs(results_mean(&t) - sum / n) < 1e-12);
        for (size_t q = 0; q < sizeof of / sizeof *of; q++) {
            int at = (int)ceil(of[q] * n) - 1;
            double exact = s.values[at < 0 ? 0 : at], found = results_quantile(&t, of[q]);
            assert_true(found >= exact * 0.999 && found <= exact * 1.021);
        }
    }
    results_add(&t, 0); /* what is beyond the classes is in the last one of them */
    results_add(&t, 1e12);
    assert_true(results_quantile(&t, 1) > 1e4 && results_quantile(&t, 0.0001) < 2e-6);
}

static void shares_are_compared_by_a_binomial(void **state)
{
    (void)state;
    assert_true(fabs(results_compare_shares(0, 100, 10, 100) - 2.0 / 1024) < 1e-9);
    assert_true(fabs(results_compare_shares(10, 100, 0, 100) - 2.0 / 1024) < 1e-9);
    assert_true(fabs(results_compare_shares(1, 300, 4, 100) - 2 * 16.0 / 1024) < 1e-9); /* 5 of 1 in 4: 4 or 5 */
    assert_true(results_compare_shares(5, 100, 5, 100) == 1);
    assert_true(results_compare_shares(0, 0, 10, 100) == 1 && results_compare_shares(0, 10, 0, 10) == 1);
    /* of up to 1,000 by their sum, of more by the normal distribution */
    double summed = results_compare_shares(470, 5000, 530, 5000), normal = results_compare_shares(470, 5000, 531, 5000);
    assert_true(fabs(summed - 0.0621) < 0.0005 && fabs(normal - 0.0579) < 0.0005);
    assert_true(results_compare_shares(2000000, 9000000, 1000000, 9000000) < 1e-100);
    assert_true(results_compare_shares(1000000, 9000000, 1000000, 9000000) == 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_are_compared_as_by_shuffling),
        cmocka_unit_test(few_values_say_nothing),
        cmocka_unit_test(quantiles_are_those_of_the_values),
        cmocka_unit_test(shares_are_compared_by_a_binomial),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
