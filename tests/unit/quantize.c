/* f32 to every stored type and back: the error stays within half a step of the block's scale, and bytes are the same
 * every time. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "engine/base/rng.h"
#include "models/load/quantize.h"

enum { N = 1024 };

/* Steps per block range, by type: the error is at most about range / steps / 2, plus what rounding of scales adds. */
static const struct {
    enum dtype type;
    double limit; /* of error / largest size in the row */
} types[] = {{DT_F32, 0},      {DT_F16, 0.0005}, {DT_BF16, 0.004}, {DT_Q8_0, 0.0045},
             {DT_Q4_0, 0.13},  {DT_Q4_1, 0.07},  {DT_Q5_0, 0.065}, {DT_Q5_1, 0.034},
             {DT_IQ4_NL, 0.2}, {DT_IQ4_XS, 0.2}, {DT_Q2_K, 0.4},   {DT_Q3_K, 0.28},
             {DT_Q4_K, 0.085}, {DT_Q5_K, 0.05},  {DT_Q6_K, 0.035}, {DT_F8_SCALED, 0.0365}};

static void fill(struct rng *r, int kind, float *x)
{
    for (int i = 0; i < N; i++) {
        double u = 2 * rng_unit(r) - 1;
        x[i] = (float)(kind == 0 ? u : kind == 1 ? fabs(u) : kind == 2 ? -fabs(u) : i % 100 == 3 ? u : u * 0.05);
    }
}

static void test_round_trip(void **state)
{
    (void)state;
    float x[N], y[N];
    uint8_t a[N * 4], b[N * 4];
    struct rng r;
    rng_init(&r, 1);
    for (size_t t = 0; t < sizeof types / sizeof *types; t++)
        for (int round = 0; round < 40; round++) {
            fill(&r, round % 4, x);
            quantize_row(types[t].type, x, a, N);
            quantize_row(types[t].type, x, b, N);
            assert_memory_equal(a, b, dtype_row_bytes(types[t].type, N));
            dtype_to_f32(types[t].type, a, y, N);
            double worst = 0;
            for (int i = 0; i < N; i++)
                worst = fmax(worst, fabs((double)x[i] - (double)y[i]));
            if (worst > types[t].limit)
                fail_msg("%s, round %d: %g off", dtype_get(types[t].type)->name, round, worst);
        }
}

static void test_corners(void **state)
{
    (void)state;
    float zero[N] = {0}, one[N], tiny[N], y[N];
    uint8_t a[N * 4];
    for (int i = 0; i < N; i++) {
        one[i] = 1;
        tiny[i] = i % 2 ? 1e-30f : -1e-30f;
    }
    for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
        quantize_row(types[t].type, zero, a, N);
        dtype_to_f32(types[t].type, a, y, N);
        for (int i = 0; i < N; i++)
            assert_true(y[i] == 0);
        quantize_row(types[t].type, one, a, N);
        dtype_to_f32(types[t].type, a, y, N);
        for (int i = 0; i < N; i++)
            assert_true(fabsf(y[i] - 1) < 0.005f);
        quantize_row(types[t].type, tiny, a, N);
        dtype_to_f32(types[t].type, a, y, N);
        for (int i = 0; i < N; i++)
            assert_true(fabsf(y[i]) < 1e-6f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_round_trip), cmocka_unit_test(test_corners)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
