/* Random numbers: the published splitmix64 stream, bounds, evenness, and draws that depend on seed and position alone.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/base/rng.h"

static void published_stream(void **state)
{
    (void)state;
    static const uint64_t want[] = {6457827717110365317u, 3203168211198807973u, 9817491932198370423u,
                                    4593380528125082431u, 16408922859458223821u}; /* splitmix64, seed 1234567 */
    struct rng r;
    rng_init(&r, 1234567);
    for (int i = 0; i < 5; i++)
        assert_true(rng_next(&r) == want[i]);
}

static void below_is_even_and_in_range(void **state)
{
    (void)state;
    struct rng r;
    rng_init(&r, 9);
    int counts[7] = {0};
    for (int i = 0; i < 70000; i++) {
        uint64_t v = rng_below(&r, 7);
        assert_true(v < 7);
        counts[v]++;
    }
    for (int i = 0; i < 7; i++)
        assert_in_range(counts[i], 9600, 10400); /* four standard deviations */
    assert_true(rng_below(&r, 1) == 0);
}

static void unit_is_half_open(void **state)
{
    (void)state;
    struct rng r;
    rng_init(&r, 2);
    double sum = 0;
    for (int i = 0; i < 100000; i++) {
        double u = rng_unit(&r);
        assert_true(u >= 0 && u < 1);
        sum += u;
    }
    assert_true(fabs(sum / 100000 - 0.5) < 0.005);
}

static void draws_by_position(void **state)
{
    (void)state;
    assert_true(rng_at(1, 5) == rng_at(1, 5));
    double mean = 0;
    for (uint64_t i = 0; i < 100000; i++) {
        assert_true(rng_at(7, i) != rng_at(7, i + 1));
        assert_true(rng_at(i, 3) != rng_at(i + 1, 3));
        mean += (double)(rng_at(i, 0) >> 11) * 0x1p-53; /* neighbouring seeds must not draw alike */
    }
    assert_true(fabs(mean / 100000 - 0.5) < 0.005);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(published_stream),
        cmocka_unit_test(below_is_even_and_in_range),
        cmocka_unit_test(unit_is_half_open),
        cmocka_unit_test(draws_by_position),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
