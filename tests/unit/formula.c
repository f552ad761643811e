/* The arithmetic of the run lists: precedence, comparisons, functions, names, and where in the text it is wrong. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <string.h>

#include "engine/lab/search/formula.h"

static int known(void *ctx, const char *name, double *out, struct err *e)
{
    (void)ctx;
    if (!strcmp(name, "a.b_1"))
        *out = 7;
    else if (!strcmp(name, "zero"))
        *out = 0;
    else
        return err_set(e, E_NOTFOUND, "no %s", name);
    return 0;
}

static void values(void **state)
{
    static const struct {
        const char *text;
        double is;
    } cases[] = {
        {"1 + 2 * 3", 7},      {"(1 + 2) * 3", 9},       {"8 / 4 / 2", 1},      {"2 - 3 - 4", -5},
        {"-2 * -3", 6},        {"a.b_1 * 2", 14},        {"1 < 2", 1},          {"2 <= 1", 0},
        {"1 + 1 == 2", 1},     {"max(1, 5, 3)", 5},      {"min(4, 2)", 2},      {"abs(-3)", 3},
        {"and(1, 2, 3)", 1},   {"and(1, zero)", 0},      {"or(zero, zero)", 0}, {"or(zero, 4)", 1},
        {"1e3 + 0.5", 1000.5}, {"(1 < 2) + (3 > 1)", 2},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        double v = -1;
        struct err e = {0};
        int rc = formula_value(cases[i].text, known, NULL, &v, &e);
        if (rc || v != cases[i].is)
            fail_msg("%s is %g, not %g (%s)", cases[i].text, v, cases[i].is, e.text);
    }
}

static void mistakes(void **state)
{
    static const char *const cases[][2] = {
        {"", "column 1"},        {"1 +", "is missing"},      {"(1", "')' is missing"},   {"1 2", "too much"},
        {"max()", "is missing"}, {"abs(1, 2)", "one value"}, {"sin(1)", "functions"},    {"1 / zero", "divides"},
        {"nobody", "no nobody"}, {"1e999", "not a finite"},  {"max(1 2)", "',' or ')'"}, {".5", "no .5"},
    };
    char deep[400];
    double v;
    struct err e = {0};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_not_equal(formula_value(cases[i][0], known, NULL, &v, &e), 0);
        if (!strstr(e.text, cases[i][1]))
            fail_msg("'%s' says '%s'", cases[i][0], e.text);
    }
    memset(deep, '(', sizeof deep - 1);
    deep[sizeof deep - 1] = 0;
    assert_int_equal(formula_value(deep, known, NULL, &v, &e), E_INPUT);
    memset(deep, '-', sizeof deep - 1);
    assert_int_equal(formula_value(deep, known, NULL, &v, NULL), E_INPUT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(values), cmocka_unit_test(mistakes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
