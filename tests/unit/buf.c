/* Growable bytes: always terminated, NULs inside kept, JSON strings that any parser takes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "engine/base/buf.h"
#include "engine/base/mem.h"
#include "engine/base/rng.h"
#include "engine/base/utf8.h"

static void grows_and_stays_terminated(void **state)
{
    (void)state;
    struct buf b = {0};
    char want[3000];
    size_t n = 0;
    for (int i = 0; i < 700; i++) {
        char piece[8];
        int len = snprintf(piece, sizeof piece, "%d,", i % 100);
        memcpy(want + n, piece, (size_t)len);
        n += (size_t)len;
        buf_printf(&b, "%d,", i % 100);
        assert_true(b.len == n && b.cap > b.len && b.data[n] == 0);
    }
    assert_memory_equal(b.data, want, n);
    buf_clear(&b);
    assert_int_equal(b.len, 0);
    assert_string_equal(b.data, "");
    buf_free(&b);
    assert_true(!b.data && !b.len && !b.cap);
}

/* With a limit everything up to it is kept, nothing after the first piece that did not fit, and no memory is no abort.
 */
static void a_limit_is_kept(void **state)
{
    (void)state;
    struct buf b = {.limit = 100};
    for (int i = 0; i < 9; i++)
        buf_puts(&b, "0123456789");
    assert_false(b.over);
    buf_put(&b, "0123456789x", 11);
    assert_true(b.over && b.len == 90);
    buf_putc(&b, 'y');
    buf_printf(&b, "%d", 7);
    buf_put_json(&b, "z", 1);
    assert_true(b.len == 90 && b.data[90] == 0 && !buf_reserve(&b, 1));
    buf_cut(&b, 80);
    assert_string_equal(b.data, "0123456789");
    buf_clear(&b);
    for (int i = 0; i < 10; i++)
        buf_printf(&b, "%s", "0123456789");
    assert_true(!b.over && b.len == 100 && b.cap == 101);
    buf_free(&b);
    assert_int_equal(b.limit, 100);
    b.limit = SIZE_MAX / 8; /* more than any machine has */
    assert_false(buf_reserve(&b, SIZE_MAX / 16));
    assert_true(b.over && !b.data && !b.len);
    buf_cut(&b, 0);
    char *nothing = buf_take(&b);
    assert_string_equal(nothing, "");
    mem_free(nothing);
}

static void empty_ones_are_fine(void **state)
{
    (void)state;
    struct buf b;
    buf_init(&b);
    buf_clear(&b);
    buf_cut(&b, 0);
    assert_true(buf_equals(&b, ""));
    assert_false(buf_equals(&b, "x"));
    buf_put(&b, NULL, 0);
    assert_string_equal(b.data, "");
    buf_free(&b);
    char *s = buf_take(&b);
    assert_string_equal(s, "");
    mem_free(s);
    buf_free(&b);
}

static void cut_and_take(void **state)
{
    (void)state;
    struct buf b = {0};
    buf_put(&b, "ab\0cd", 5);
    assert_int_equal(b.len, 5);
    buf_cut(&b, 3);
    assert_true(buf_equals(&b, "cd"));
    buf_cut(&b, 2);
    assert_true(buf_equals(&b, ""));
    buf_puts(&b, "again");
    char *s = buf_take(&b);
    assert_string_equal(s, "again");
    assert_true(!b.data && !b.len);
    mem_free(s);
}

static void numbers(void **state)
{
    (void)state;
    const unsigned long long values[] = {0, 9, 10, 4294967296u, 18446744073709551615u};
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        char want[32];
        struct buf b = {0};
        snprintf(want, sizeof want, "%llu", values[i]);
        buf_put_u64(&b, values[i]);
        assert_string_equal(b.data, want);
        buf_free(&b);
    }
}

static void json_escapes(void **state)
{
    (void)state;
    struct buf b = {0};
    buf_put_json(&b, "a\"\\\b\f\n\r\t\0\x1f\x7f/", 12);
    assert_string_equal(b.data, "\"a\\\"\\\\\\b\\f\\n\\r\\t\\u0000\\u001f\\u007f/\"");
    buf_clear(&b);
    buf_put_json(&b, "\xC3\xA9\xF0\x9F\x8C\x99", 6);
    assert_string_equal(b.data, "\"\xC3\xA9\xF0\x9F\x8C\x99\"");
    buf_clear(&b);
    buf_put_json(&b, "x\xFFy\xC3", 4); /* a stray byte, and a character cut off by the end */
    assert_string_equal(b.data, "\"x\xEF\xBF\xBDy\xEF\xBF\xBD\"");
    buf_clear(&b);
    buf_put_json(&b, "\xC2\x9B\xC2\xA0\xC2\x80", 6);
    assert_string_equal(b.data, "\"\\u009b\xC2\xA0\\u0080\"");
    buf_clear(&b);
    buf_put_json(&b, NULL, 0);
    assert_string_equal(b.data, "\"\"");
    buf_free(&b);
}

/* Whatever the bytes: the result is UTF-8, has no raw control byte, and every quote inside is escaped. */
static void json_of_random_bytes(void **state)
{
    (void)state;
    struct rng r;
    rng_init(&r, 7);
    for (int round = 0; round < 20000; round++) {
        char s[24];
        size_t n = (size_t)rng_below(&r, sizeof s + 1);
        for (size_t i = 0; i < n; i++)
            s[i] = (char)rng_next(&r);
        struct buf b = {0};
        buf_put_json(&b, s, n);
        assert_true(utf8_valid(b.data, b.len));
        assert_true(b.len >= 2 && b.data[0] == '"' && b.data[b.len - 1] == '"');
        for (size_t i = 1; i < b.len - 1; i++) {
            assert_true((unsigned char)b.data[i] >= 0x20 && b.data[i] != '"');
            if (b.data[i] == '\\')
                i += b.data[i + 1] == 'u' ? 5 : 1;
        }
        buf_free(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(grows_and_stays_terminated),
        cmocka_unit_test(a_limit_is_kept),
        cmocka_unit_test(empty_ones_are_fine),
        cmocka_unit_test(cut_and_take),
        cmocka_unit_test(numbers),
        cmocka_unit_test(json_escapes),
        cmocka_unit_test(json_of_random_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
