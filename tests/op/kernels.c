/* The kernels of rows, each instruction set's beside the portable ones: the same bits, whatever floats they get. What
 * the sets multiply is in op_linear and op_attention, what an encoder has in op_encode. */
#include "kernels/cpu/isa.h"
#include "kernels/cpu/kernels.h"
#include "tests/rig/isas.h"
#include "tests/rig/op_fixture.h"

enum { N = 96, ROUNDS = 400 };

/* Calls check for each set but the portable one that this CPU has. */
static void with_each(void (*check)(const struct cpu_kernels *a, const struct cpu_kernels *b))
{
    for (int i = 1; i < N_ISAS; i++) {
        const struct isa *set;
        if (isa_pick(isas[i], &set, NULL) == 0)
            check(cpu_kernels_portable(), set->kernels());
    }
}

static void assert_floats(const float *a, const float *b, int n, const char *isa)
{
    for (int i = 0; i < n; i++)
        if (isnan(a[i]) ? !isnan(b[i]) : memcmp(&a[i], &b[i], sizeof *a))
            fail_msg("%s: element %d is %a, not %a", isa, i, (double)b[i], (double)a[i]);
}

/* Plain ones; with one that is not; any bits at all. */
static void make_floats(struct rng *r, float *x, int round)
{
    static const float odd[] = {0.0f,     -0.0f,  INFINITY, -INFINITY, NAN,     3.4e38f,
                                -3.4e38f, 1e-45f, 1e-38f,   88.0f,     -104.0f, 1e30f};
    for (int i = 0; i < N; i++) {
        uint32_t bits = (uint32_t)rng_next(r);
        x[i] = gaussian(r) * 20.0f;
        if (round % 3 == 2)
            memcpy(&x[i], &bits, sizeof bits);
    }
    if (round % 3 == 1)
        x[rng_below(r, N)] = odd[rng_below(r, sizeof odd / sizeof *odd)];
}

static void check_rows(const struct cpu_kernels *a, const struct cpu_kernels *b)
{
    struct rng r;
    rng_init(&r, 33);
    for (int round = 0; round < ROUNDS; round++) {
        float x[N], x2[N], y[2][N];
        int n = N - (int)rng_below(&r, 40);
        make_floats(&r, x, round);
        make_floats(&r, x2, 0);
        a->norm_row(x, x2, n, 1e-6f, y[0]);
        b->norm_row(x, x2, n, 1e-6f, y[1]);
        assert_floats(y[0], y[1], n, b->isa);
        a->swiglu_row(x, x2, n, y[0]);
        b->swiglu_row(x, x2, n, y[1]);
        assert_floats(y[0], y[1], n, b->isa);
        a->attend_finish(x, 3.0f, n, y[0]);
        b->attend_finish(x, 3.0f, n, y[1]);
        assert_floats(y[0], y[1], n, b->isa);
    }
}

static void check_rounding(const struct cpu_kernels *a, const struct cpu_kernels *b)
{
    static const enum dtype caches[] = {DT_F32, DT_F16, DT_BF16, DT_F8};
    struct rng r;
    rng_init(&r, 34);
    for (int round = 0; round < ROUNDS; round++) {
        float x[N], y[2][N];
        uint16_t h[2][N];
        int8_t q[N / 32 * QUANT_BLOCK];
        int n = N - (int)rng_below(&r, 40);
        make_floats(&r, x, round);
        for (size_t t = 0; t < sizeof caches / sizeof *caches; t++) {
            memset(y, 0, sizeof y);
            a->to_cache(x, n, caches[t], y[0]);
            b->to_cache(x, n, caches[t], y[1]);
            assert_memory_equal(y[0], y[1], sizeof y[0]);
        }
        a->round_row(x, n, h[0], 1);
        b->round_row(x, n, h[1], 1);
        assert_memory_equal(h[0], h[1], (size_t)(n + 31) / 32 * 32 * sizeof h[0][0]);
        for (int fast = 0; fast < 2; fast++) { /* how integers lie is each set's own */
            union qword meta[2][3 * N / 32];
            int32_t half[2][2 * N / 32];
            a->quantise_row(x, N, (struct qinput){q, meta[0], half[0], 1}, fast);
            b->quantise_row(x, N, (struct qinput){q, meta[1], half[1], 1}, fast);
            for (int i = 0; i < N / 32; i++) {
                assert_int_equal(meta[0][3 * i].i, meta[1][3 * i].i);
                assert_floats(&meta[0][3 * i + 1].f, &meta[1][3 * i + 1].f, 2, b->isa);
            }
            assert_memory_equal(half[0], half[1], sizeof half[0]);
        }
    }
}

/* Weights of every bit pattern. */
static void check_lace(const struct cpu_kernels *a, const struct cpu_kernels *b)
{
    enum { PAIRS = 65536 / 32 };
    static uint16_t w[65536], out[2][65536];
    for (int i = 0; i < 65536; i++)
        w[i] = (uint16_t)i;
    for (int f = FAM_F16; f <= FAM_BF16; f++) {
        a->lace((enum family)f, (const uint8_t *)w, PAIRS, (uint8_t *)out[0]);
        b->lace((enum family)f, (const uint8_t *)w, PAIRS, (uint8_t *)out[1]);
        assert_memory_equal(out[0], out[1], sizeof out[0]);
    }
}

static void check_fold(const struct cpu_kernels *a, const struct cpu_kernels *b)
{
    struct rng r;
    rng_init(&r, 35);
    for (int round = 0; round < ROUNDS; round++) {
        float partial[N + PARTIAL_EXTRA], o[2][N], m[2], l[2];
        make_floats(&r, partial, 0);
        make_floats(&r, o[0], 0);
        memcpy(o[1], o[0], sizeof o[0]);
        partial[N] = gaussian(&r) * 40.0f;
        partial[N + 1] = 1.0f + (float)rng_unit(&r);
        m[0] = m[1] = round % 5 ? gaussian(&r) * 40.0f : -INFINITY;
        l[0] = l[1] = 2.5f;
        a->fold(partial, N, &m[0], &l[0], o[0]);
        b->fold(partial, N, &m[1], &l[1], o[1]);
        assert_memory_equal(o[0], o[1], sizeof o[0]);
        assert_true(m[0] == m[1] && l[0] == l[1]);
    }
}

static void rows_are_the_same(void **state)
{
    (void)state;
    with_each(check_rows);
}

static void rounding_is_the_same(void **state)
{
    (void)state;
    with_each(check_rounding);
}

static void pairs_are_the_same(void **state)
{
    (void)state;
    with_each(check_lace);
}

static void folds_are_the_same(void **state)
{
    (void)state;
    with_each(check_fold);
}

/* The best one is picked, and what is not there is named. */
static void sets_are_found_or_named(void **state)
{
    (void)state;
    const struct isa *set, *best = NULL;
    struct err e = {0};
    assert_int_equal(isa_pick(NULL, &best, &e), 0);
    assert_int_equal(isa_pick("auto", &set, &e), 0);
    assert_ptr_equal(set, best);
    assert_int_equal(isa_pick("sse9", &set, &e), E_INPUT);
    assert_non_null(strstr(e.text, "sse9"));
    for (int i = 0; i < N_ISAS; i++) {
        int rc = isa_pick(isas[i], &set, &e);
        assert_string_equal(set->name, isas[i]);
        assert_true(rc == 0 ? set->kernels() && set->encode() : rc == E_UNSUPPORTED && strstr(e.text, set->needs));
    }
    const char *wanted = getenv("MOONSHIFT_TEST_BEST"); /* tests/arm.sh knows which CPU it is */
    if (wanted)
        assert_string_equal(best->name, wanted);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_the_same),       cmocka_unit_test(rounding_is_the_same),
        cmocka_unit_test(pairs_are_the_same),      cmocka_unit_test(folds_are_the_same),
        cmocka_unit_test(sets_are_found_or_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
