/* Floats as digits and as base64: what is read back is the same float. */
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "engine/base/json.h"
#include "engine/base/rng.h"
#include "engine/serve/embed/digits.h"

static void reads_back(float v)
{
    char text[DIGITS_FLOAT + 1];
    memset(text, '#', sizeof text);
    size_t n = digits_put(text, v);
    assert_true(n >= 1 && n <= DIGITS_FLOAT);
    assert_int_equal(text[DIGITS_FLOAT], '#');
    text[n] = 0;
    char *end;
    float back = strtof(text, &end);
    if (*end || memcmp(&back, &v, sizeof v) != 0)
        fail_msg("%.9g was written as %s", (double)v, text);
    struct json *j = json_parse(text, n, NULL, NULL);
    assert_int_equal(json_type(j), JSON_NUMBER);
    json_free(j);
}

static void any_bits_read_back(void **state)
{
    (void)state;
    struct rng r;
    rng_init(&r, 3);
    for (int i = 0; i < 400000; i++) {
        uint32_t bits = (uint32_t)rng_next(&r);
        float v;
        memcpy(&v, &bits, sizeof v);
        if (isfinite(v))
            reads_back(v);
        reads_back((float)((double)(rng_next(&r) >> 11) / 9007199254740992.0 - 0.5) / (float)(1 << i % 14));
    }
}

/* The floats around every power of ten and of two. */
static void edges_read_back(void **state)
{
    (void)state;
    static const float plain[] = {0,     -0.0f,   1,       -1,           0.5f,     0.1f, 0.3f,
                                  1e-5f, FLT_MIN, FLT_MAX, FLT_TRUE_MIN, 16777216, 1e9f};
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++)
        reads_back(plain[i]);
    for (int k = -46; k < 40; k++) {
        float a = powf(10, (float)k), b = ldexpf(1, k), up = a, down = a;
        for (int i = 0; i < 200 && isfinite(up); i++) {
            reads_back(up);
            reads_back(-down);
            up = nextafterf(up, INFINITY);
            down = nextafterf(down, 0);
        }
        reads_back(b);
        reads_back(nextafterf(b, 0));
        reads_back(nextafterf(b, 2));
    }
}

static void lists_and_bytes(void **state)
{
    (void)state;
    static const float v[] = {0.5f, -0.25f, 0.1f, 1};
    struct buf out = {0};
    digits_put_floats(&out, v, 4);
    assert_string_equal(out.data, "[0.5,-0.25,0.100000001,1.0]");
    buf_clear(&out);
    digits_put_floats(&out, v, 0);
    assert_string_equal(out.data, "[]");
    /* as Python's base64.b64encode(struct.pack("<4f", ...)) */
    static const char *const bytes[] = {"\"\"", "\"AAAAPw==\"", "\"AAAAPwAAgL4=\"", "\"AAAAPwAAgL7NzMw9\"",
                                        "\"AAAAPwAAgL7NzMw9AACAPw==\""};
    for (int n = 0; n <= 4; n++) {
        buf_clear(&out);
        digits_put_base64(&out, v, n);
        assert_true(buf_equals(&out, bytes[n]));
    }
    buf_free(&out);
}

/* A limit that a client reached leaves no half written past it. */
static void a_full_buffer_is_over(void **state)
{
    (void)state;
    static const float v[100];
    struct buf out = {.limit = 50};
    digits_put_floats(&out, v, 100);
    assert_true(out.over && out.len <= 50);
    buf_clear(&out);
    digits_put_base64(&out, v, 100);
    assert_true(out.over && out.len <= 50);
    buf_free(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_bits_read_back),
        cmocka_unit_test(edges_read_back),
        cmocka_unit_test(lists_and_bytes),
        cmocka_unit_test(a_full_buffer_is_over),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
