/* E4M3 to f32 and back: every code, every f16, every midpoint, beside a search in float64. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "kernels/dtype.h"

/* By the format's definition: bias 7, three bits of mantissa. */
static double value_of(int code)
{
    int exponent = code >> 3 & 15, mantissa = code & 7;
    double size = exponent ? ldexp(8 + mantissa, exponent - 10) : ldexp(mantissa, -9);
    return code & 0x80 ? -size : size;
}

/* The nearest of the 127 sizes; of two the one with an even code. */
static int nearest(double size)
{
    int best = 0;
    for (int code = 1; code < 0x7f; code++) {
        double d = fabs(value_of(code) - size), b = fabs(value_of(best) - size);
        if (d < b || (d == b && code % 2 == 0))
            best = code;
    }
    return best;
}

static void every_code(void **state)
{
    (void)state;
    for (int code = 0; code < 256; code++) {
        float f = f8_to_f32((uint8_t)code);
        if ((code & 0x7f) == 0x7f) {
            assert_true(isnan(f));
            assert_int_equal(f32_to_f8(f), code);
            continue;
        }
        assert_true((double)f == value_of(code) && !signbit(f) == !(code & 0x80));
        assert_int_equal(f32_to_f8(f), code);
    }
    assert_true(f8_to_f32(0x7e) == 448.0f && f8_to_f32(1) == 0x1p-9f);
}

static void check(float f)
{
    int want = isnan(f) ? 0x7f : nearest(fabs((double)f));
    int got = f32_to_f8(f);
    if ((got & 0x7f) != want || (got >> 7 != 0) != (signbit(f) != 0))
        fail_msg("%a becomes %02x, not %02x", (double)f, got, want);
}

static void every_f16(void **state)
{
    (void)state;
    for (int h = 0; h < 1 << 16; h++)
        check(f16_to_f32((uint16_t)h));
}

/* Halfway between neighbours, and one ulp to either side. */
static void every_midpoint(void **state)
{
    (void)state;
    for (int code = 0; code < 0x7e; code++) {
        float mid = (float)((value_of(code) + value_of(code + 1)) / 2);
        check(mid);
        check(-mid);
        check(nextafterf(mid, 0));
        check(nextafterf(mid, 1e9f));
    }
}

static void what_is_out_of_range(void **state)
{
    (void)state;
    static const float large[] = {448.5f, 464, 465, 480, 1e9f, 3e38f, INFINITY};
    for (size_t i = 0; i < sizeof large / sizeof *large; i++) {
        assert_int_equal(f32_to_f8(large[i]), 0x7e);
        assert_int_equal(f32_to_f8(-large[i]), 0xfe);
    }
    assert_int_equal(f32_to_f8(1e-40f), 0);
    assert_int_equal(f32_to_f8(-0.0f), 0x80);
    assert_int_equal(f32_to_f8(0x1p-10f), 0); /* half of the least: to even */
    assert_int_equal(f32_to_f8(NAN) & 0x7f, 0x7f);
}

static void blocks_have_a_scale(void **state)
{
    (void)state;
    uint8_t block[2 * 68];
    float y[128], d[2] = {0.25f, 3};
    for (int b = 0; b < 2; b++) {
        memcpy(block + 68 * b, &d[b], 4);
        for (int i = 0; i < 64; i++)
            block[68 * b + 4 + i] = (uint8_t)(i + 50 * b);
    }
    assert_int_equal(dtype_row_bytes(DT_F8_SCALED, 128), sizeof block);
    dtype_to_f32(DT_F8_SCALED, block, y, 128);
    for (int i = 0; i < 128; i++)
        assert_true(y[i] == d[i / 64] * (float)value_of(i % 64 + 50 * (i / 64)));
    dtype_to_f32(DT_F8, block + 4, y, 64);
    for (int i = 0; i < 64; i++)
        assert_true(y[i] == (float)value_of(i));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_code),           cmocka_unit_test(every_f16),           cmocka_unit_test(every_midpoint),
        cmocka_unit_test(what_is_out_of_range), cmocka_unit_test(blocks_have_a_scale),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
