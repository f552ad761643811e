/* The JSON wall: what is accepted, what is refused and with which place, and that numbers and text survive
 * unchanged. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/base/buf.h"
#include "engine/base/json.h"
#include "engine/base/rng.h"

static struct json *parse(const char *text)
{
    struct err e = {0};
    struct json *j = json_parse(text, strlen(text), NULL, &e);
    if (!j)
        fail_msg("%s: %s", text, e.text);
    return j;
}

static void expect_text(const struct json *j, const struct json_style *style, const char *want)
{
    struct buf b = {0};
    json_write(&b, j, style);
    assert_string_equal(b.data, want);
    buf_free(&b);
}

static void round_trip(const char *text, const char *want)
{
    struct json *j = parse(text);
    expect_text(j, NULL, want);
    json_free(j);
}

static void test_round_trips(void **state)
{
    (void)state;
    static const struct {
        const char *in, *out;
    } cases[] = {
        {"null", "null"},
        {" \t\r\n true ", "true"},
        {"\xEF\xBB\xBF[]", "[]"},
        {"{}", "{}"},
        {"[1, 2.0, -0, -0.0, 1e3, 1E-7, 0.1]", "[1,2.0,0,-0.0,1000.0,1e-07,0.1]"},
        {"9223372036854775807", "9223372036854775807"},
        {"-9223372036854775808", "-9223372036854775808"},
        {"9007199254740993", "9007199254740993"},
        {"18446744073709551616", "18446744073709551616"},
        {"[1e16, 123456789012345680.0, 5e-324, 1.7976931348623157e308]",
         "[1e+16,1.2345678901234568e+17,5e-324,1.7976931348623157e+308]"},
        {"5.684341886080802e-14", "5.684341886080802e-14"},
        {"\"\\u00e9\\ud83d\\ude00\\n\\/\\u007f\"", "\"\xC3\xA9\xF0\x9F\x98\x80\\n/\x7F\""},
        {"{\"a\":1,\"b\":{\"c\":[]},\"a\":[\"x\"]}", "{\"a\":[\"x\"],\"b\":{\"c\":[]}}"},
        {"{\"s\":\"-1,2\\\"3\",\"4\":9007199254740995,\"x\":[5,\"6\",7.5]}",
         "{\"s\":\"-1,2\\\"3\",\"4\":9007199254740995,\"x\":[5,\"6\",7.5]}"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        round_trip(cases[i].in, cases[i].out);
}

static void test_refusals(void **state)
{
    (void)state;
    static const struct {
        const char *in, *where;
    } cases[] = {
        {"", "line 1 column 1:"},
        {"[1,\n 2", "line 2 column 3: the text ends"},
        {"[1,]", "line 1 column 4:"},
        {"{\"a\":1,}", "line 1 column 8: expected a key"},
        {"{a:1}", "line 1 column 2: expected a key"},
        {"{\"a\" 1}", "line 1 column 6: expected ':'"},
        {"[01]", "line 1 column 3: expected ','"},
        {"[+1]", "expected a value"},
        {"[.5]", "expected a value"},
        {"[1.]", "not a number"},
        {"[1e]", "not a number"},
        {"[-]", "not a number"},
        {"[0x10]", "expected ','"},
        {"NaN", "expected a value"},
        {"Infinity", "expected a value"},
        {"nul", "neither null"},
        {"1e999", "too large"},
        {"1111111111111111111111111111111111111111111111111111111111111111", "more than 63"},
        {"\"\x01\"", "control character"},
        {"\"a\tb\"", "column 3: a bare control"},
        {"\"\xC0\xAF\"", "not UTF-8"},
        {"\"\xED\xA0\x80\"", "not UTF-8"},
        {"\"\xE2\x82\"", "not UTF-8"},
        {"\"\\u0000\"", "u0000"},
        {"\"\\u12g4\"", "four hex digits"},
        {"\"\\ud800\"", "surrogate"},
        {"\"\\ude00\\ud800\"", "surrogate"},
        {"\"\\ud800\\u0041\"", "surrogate"},
        {"\"\\x\"", "backslash"},
        {"\"abc", "without an end"},
        {"\"abc\\", "backslash"},
        {"{} {}", "line 1 column 4: something follows"},
        {"['a']", "expected a value"},
        {"\"\xC3\xA9\xC3\xA9\" x", "column 6"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct err e = {0};
        struct json *j = json_parse(cases[i].in, strlen(cases[i].in), NULL, &e);
        if (j || e.code != E_INPUT || !strstr(e.text, cases[i].where))
            fail_msg("case %zu (%s): code %d, %s", i, cases[i].in, e.code, e.text);
    }
    assert_null(json_parse("[1\0]", 4, NULL, NULL));
    assert_null(json_parse("\"\0\"", 3, NULL, NULL));
}

static void test_limits(void **state)
{
    (void)state;
    struct err e = {0};
    struct json_limits l = {.depth = 3, .nodes = 5, .bytes = 20};
    struct json *j = json_parse("[[[1]]]", 7, &l, &e);
    assert_non_null(j);
    json_free(j);
    assert_null(json_parse("[[[[]]]]", 8, &l, &e));
    assert_non_null(strstr(e.text, "deeply"));
    assert_null(json_parse("[1,2,3,4,5]", 11, &l, &e));
    assert_non_null(strstr(e.text, "too many values"));
    assert_null(json_parse("\"12345678901234567890\"", 22, &l, &e));
    assert_non_null(strstr(e.text, "at most 20"));
    char deep[2000];
    memset(deep, '[', 1000);
    memset(deep + 1000, ']', 1000);
    assert_null(json_parse(deep, 2000, &(struct json_limits){.depth = 100000}, &e));
    memset(deep + 900, ']', 900); /* nine hundred levels are the most, whatever is asked for */
    struct json *ok = json_parse(deep, 1800, &(struct json_limits){.depth = 100000}, &e);
    assert_non_null(ok);
    json_free(ok);
}

static void test_reading(void **state)
{
    (void)state;
    struct json *j = parse("{\"i\":9007199254740993,\"f\":2.0,\"h\":2.5,\"big\":9223372036854775808,"
                           "\"t\":true,\"s\":\"x\",\"n\":null,\"a\":[1,2,3],\"e\":1e18}");
    int64_t v = 0;
    assert_true(json_i64(json_find(j, "i"), &v));
    assert_int_equal(v, 9007199254740993);
    assert_true(json_is_integer(json_find(j, "i")));
    assert_true(json_i64(json_find(j, "f"), &v));
    assert_int_equal(v, 2);
    assert_false(json_is_integer(json_find(j, "f")));
    assert_false(json_i64(json_find(j, "h"), &v));
    assert_false(json_i64(json_find(j, "big"), &v));
    assert_string_equal(json_digits(json_find(j, "big")), "9223372036854775808");
    assert_true(json_number(json_find(j, "big")) == 0x1p63);
    assert_true(json_i64(json_find(j, "e"), &v));
    assert_int_equal(v, 1000000000000000000);
    assert_true(json_true(json_find(j, "t")));
    assert_false(json_true(json_find(j, "i")));
    assert_string_equal(json_text(json_find(j, "s")), "x");
    assert_null(json_text(json_find(j, "i")));
    assert_null(json_find(j, "I"));
    assert_null(json_find(json_find(j, "a"), "x"));
    assert_int_equal(json_count(json_find(j, "a")), 3);
    assert_int_equal(json_type(NULL), JSON_NULL);
    assert_string_equal(json_type_name(json_find(j, "a")), "an array");
    assert_string_equal(json_key(json_first(j)), "i");
    assert_null(json_key(json_first(json_find(j, "a"))));
    assert_null(json_first(json_find(j, "s")));
    json_free(j);
    json_free(NULL);
}

static void test_styles(void **state)
{
    (void)state;
    struct json *j = parse("{\"b\":[1,{\"x\":null}],\"a\":\"\xC3\xA9\xF0\x9F\x98\x80\",\"c\":[],\"d\":{}}");
    expect_text(j, &(struct json_style){.spaced = true},
                "{\"b\": [1, {\"x\": null}], \"a\": \"\xC3\xA9\xF0\x9F\x98\x80\", \"c\": [], \"d\": {}}");
    expect_text(j, &(struct json_style){.ascii_only = true, .sort_keys = true},
                "{\"a\":\"\\u00e9\\ud83d\\ude00\",\"b\":[1,{\"x\":null}],\"c\":[],\"d\":{}}");
    expect_text(j, &(struct json_style){.indent = 2},
                "{\n  \"b\": [\n    1,\n    {\n      \"x\": null\n    }\n  ],\n  \"a\": "
                "\"\xC3\xA9\xF0\x9F\x98\x80\",\n"
                "  \"c\": [],\n  \"d\": {}\n}");
    json_free(j);
}

/* Equal keys past the size that is handled on the stack. */
static void test_many_equal_keys(void **state)
{
    (void)state;
    struct buf b = {0};
    buf_putc(&b, '{');
    for (int i = 0; i < 1000; i++)
        buf_printf(&b, "%s\"k%d\":%d", i ? "," : "", i % 10, i);
    buf_putc(&b, '}');
    struct json *j = parse(b.data);
    expect_text(j, NULL,
                "{\"k0\":990,\"k1\":991,\"k2\":992,\"k3\":993,\"k4\":994,\"k5\":995,\"k6\":996,\"k7\":997,"
                "\"k8\":998,\"k9\":999}");
    json_free(j);
    buf_free(&b);
}

/* Whatever double: what is written reads back as the same bits, and no shorter text with the same digits
 * would. */
static void test_doubles(void **state)
{
    (void)state;
    struct rng r;
    rng_init(&r, 7);
    for (int i = 0; i < 20000; i++) {
        uint64_t bits = rng_next(&r);
        if (i % 4 == 0)
            bits &= ~(((uint64_t)1 << 52) - 1); /* powers of two: the lopsided case */
        double v;
        memcpy(&v, &bits, sizeof v);
        if (isnan(v) || isinf(v))
            continue;
        struct buf b = {0};
        json_put_double(&b, v);
        double back = strtod(b.data, NULL);
        assert_memory_equal(&back, &v, sizeof v);
        buf_free(&b);
    }
}

static void test_members(void **state)
{
    (void)state;
    struct buf b = {0};
    buf_putc(&b, '{');
    json_put_member(&b, "a", "x\"y");
    json_put_member_double(&b, "b", 0.5);
    buf_puts(&b, ",\"c\":[{");
    json_put_member(&b, "d", NULL);
    buf_puts(&b, "}],");
    json_put_member(&b, "e", "");
    buf_putc(&b, '}');
    assert_true(buf_equals(&b, "{\"a\":\"x\\\"y\",\"b\":0.5,\"c\":[{\"d\":null}],\"e\":\"\"}"));
    struct json *j = json_parse(b.data, b.len, NULL, NULL);
    assert_string_equal(json_member_text(j, "a"), "x\"y");
    assert_string_equal(json_member_text(j, "b"), ""); /* no text; and none of that name, and no object */
    assert_string_equal(json_member_text(j, "z"), "");
    assert_string_equal(json_member_text(json_find(j, "a"), "a"), "");
    assert_true(json_member_number(j, "b") == 0.5 && json_member_number(j, "a") == 0 &&
                json_member_number(NULL, "b") == 0);
    json_free(j);
    buf_free(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trips), cmocka_unit_test(test_refusals), cmocka_unit_test(test_limits),
        cmocka_unit_test(test_reading),     cmocka_unit_test(test_styles),   cmocka_unit_test(test_many_equal_keys),
        cmocka_unit_test(test_doubles),     cmocka_unit_test(test_members),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
