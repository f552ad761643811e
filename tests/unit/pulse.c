/* Sums of steps by group and layout between two looks. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "engine/base/rng.h"
#include "engine/pulse.h"

static void sums_are_those_of_all_steps(void **state)
{
    (void)state;
    struct rng rng;
    struct pulse p;
    rng_init(&rng, 7);
    for (int round = 0; round < 50; round++) {
        uint64_t steps = 0, rows = 0, at[40][4] = {0};
        int64_t ns = 0;
        int groups = 1 + (int)rng_below(&rng, 40);
        pulse_clear(&p, round);
        assert_int_equal(p.since_ns, round);
        for (int i = 0; i < 2000; i++) {
            int g = (int)rng_below(&rng, (uint64_t)groups), l = (int)rng_below(&rng, 4), n = (int)rng_below(&rng, 100);
            pulse_note(&p, g + 1, (struct layout){1 << l, 1, 1}, n, n);
            at[g][l]++;
            steps++;
            rows += (uint64_t)n;
            ns += n;
        }
        uint64_t kept = 0, kept_rows = 0;
        int64_t kept_ns = 0;
        for (int i = 0; i < p.n; i++) {
            const struct pulse_row *r = &p.rows[i];
            int l = __builtin_ctz((unsigned)r->layout.sp);
            assert_int_equal(r->steps, at[r->group - 1][l]);
            at[r->group - 1][l] = 0; /* each once */
            kept += r->steps;
            kept_rows += r->rows;
            kept_ns += r->ns;
        }
        assert_int_equal(kept + p.missed, steps);
        assert_int_equal(p.missed == 0, groups * 4 <= PULSE_ROWS || p.n < PULSE_ROWS);
        if (!p.missed) {
            assert_int_equal(kept_rows, rows);
            assert_int_equal(kept_ns, ns);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(sums_are_those_of_all_steps)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
