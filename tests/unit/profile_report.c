/* The profile for people and programs: rates and shares of a made-up one, rows that add up to the total, and what is
 * not known. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/base/json.h"
#include "engine/profile_report.h"

/* Two ranks of two threads; the steps took 4 s of them together. */
static struct profile made_up(void)
{
    struct profile p = {.n_devices = 2, .n_threads = 4, .peaks = {20e9, 800e9, 200e9}};
    struct profile_steps *s = &p.steps[PROFILE_ONE];
    *s = (struct profile_steps){.steps = 10, .rows = 10, .ns = 4000000000, .before_ns = 5000000};
    s->ops[PROFILE_QKV] = (struct profile_count){.calls = 40,
                                                 .ns = 2000000000,
                                                 .pool_ns = 1500000000,
                                                 .wait_ns = 200000000,
                                                 .bytes = 5e9,
                                                 .stored_bytes = 5e9,
                                                 .int8_ops = 80e9,
                                                 .float_ops = 20e9};
    s->ops[PROFILE_ROPE] = (struct profile_count){.calls = 40, .ns = 1000000000, .bytes = 1e9};
    return p;
}

static struct json *read_back(const struct profile *p)
{
    struct buf text = {0};
    profile_json(p, &text);
    struct json *j = json_parse(text.data, text.len, NULL, NULL);
    assert_non_null(j);
    buf_free(&text);
    return j;
}

static const struct json *row(const struct json *j, int size, const char *name)
{
    const struct json *steps = json_first(json_find(j, "steps"));
    for (int i = 0; i < size; i++)
        steps = json_next(steps);
    for (const struct json *r = json_first(json_find(steps, "ops")); r; r = json_next(r))
        if (strcmp(json_member_text(r, "op"), name) == 0)
            return r;
    return NULL;
}

static void near(const struct json *r, const char *key, double want)
{
    double got = json_member_number(r, key);
    if (fabs(got - want) > 1e-4 * fabs(want))
        fail_msg("%s: %g instead of %g", key, got, want);
}

static void rates_are_those_of_one_rank(void **state)
{
    (void)state;
    struct profile p = made_up();
    struct json *j = read_back(&p);
    const struct json *qkv = row(j, PROFILE_ONE, "qkv"), *rope = row(j, PROFILE_ONE, "rope");
    near(qkv, "share", 0.5);
    near(qkv, "gb_s", 2.5);
    near(qkv, "of_read_peak", 0.25); /* of 10 GB/s */
    near(qkv, "gop_s", 50);
    near(qkv, "of_products_peak", (80.0 / 400 + 20.0 / 100) / 2);
    near(rope, "gb_s", 1);
    assert_int_equal(json_type(json_find(rope, "of_read_peak")), JSON_NULL); /* out of a cache */
    assert_int_equal(json_type(json_find(rope, "of_products_peak")), JSON_NULL);
    assert_null(row(j, PROFILE_ONE, "sample")); /* not called */
    json_free(j);
}

static void rows_add_up_to_the_total(void **state)
{
    (void)state;
    struct profile p = made_up();
    struct json *j = read_back(&p);
    const struct json *rest = row(j, PROFILE_ONE, "rest"), *total = row(j, PROFILE_ONE, "total");
    near(rest, "ns", 1e9);
    near(rest, "share", 0.25);
    near(total, "ns", 4e9);
    near(total, "bytes", 6e9);
    near(total, "of_read_peak", 0.125);
    near(total, "share", 1);
    near(row(j, PROFILE_MANY, "total"), "ns", 0); /* there was no such step */
    json_free(j);
}

static void a_table_has_the_steps_that_there_were(void **state)
{
    (void)state;
    struct profile p = made_up();
    struct buf t = {0};
    profile_table(&p, &t);
    assert_non_null(strstr(t.data, "ranks: 2, threads: 4; peaks of a rank: 10.00 GB/s read, 400.0 Gop/s of int8"));
    assert_non_null(strstr(t.data, "Steps of 1 row: 10 (10 rows), 4000.00 ms, and 5.00 ms before them\n"));
    assert_null(strstr(t.data, "2-16"));
    assert_non_null(
        strstr(t.data, "qkv                    40    2000.00  50.0%  25.0%  10.0%    5.000   2.500  25.0%"));
    assert_non_null(strstr(t.data, "\ntotal "));
    buf_free(&t);
}

/* A rank with one thread waits for nobody; without probes nothing has a share of them. */
static void what_is_not_known_is_a_dash(void **state)
{
    (void)state;
    struct profile p = made_up();
    struct buf t = {0};
    p.n_threads = 2;
    p.peaks = (struct profile_peaks){0};
    profile_table(&p, &t);
    assert_non_null(strstr(t.data, "peaks of a rank: - GB/s read, - Gop/s of int8, - of floats\n"));
    assert_non_null(
        strstr(t.data, "qkv                    40    2000.00  50.0%      -      -    5.000   2.500      -"));
    buf_free(&t);
    p = (struct profile){0};
    profile_table(&p, &t);
    json_free(read_back(&p));
    buf_free(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rates_are_those_of_one_rank),
        cmocka_unit_test(rows_add_up_to_the_total),
        cmocka_unit_test(a_table_has_the_steps_that_there_were),
        cmocka_unit_test(what_is_not_known_is_a_dash),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
