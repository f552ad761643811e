/* Clocks: the real one runs forward, the virtual one moves only when told, seen by other threads. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/base/clock.h"
#include "engine/base/thread.h"

static void real_time_runs_forward(void **state)
{
    (void)state;
    struct clock c;
    clock_init_real(&c);
    int64_t first = clock_now(&c), last = first;
    for (int i = 0; i < 100000; i++) {
        int64_t t = clock_now(&c);
        assert_true(t >= last);
        last = t;
    }
    assert_true(last > first);
    assert_true(clock_wall_seconds() > 1700000000);
}

static void virtual_time_stands_still(void **state)
{
    (void)state;
    struct clock c;
    clock_init_virtual(&c, 42);
    assert_int_equal(clock_now(&c), 42);
    clock_advance_to(&c, 42);
    clock_advance_to(&c, INT64_MAX);
    assert_true(clock_now(&c) == INT64_MAX);
}

static void watch(void *p)
{
    int64_t last = 0;
    while (last < 1000) {
        int64_t t = clock_now(p);
        assert_true(t >= last);
        last = t;
    }
}

static void readers_in_other_threads(void **state)
{
    (void)state;
    struct clock c;
    struct thread *t[2];
    clock_init_virtual(&c, 0);
    for (int i = 0; i < 2; i++)
        assert_int_equal(thread_start(&t[i], "reader", watch, &c, NULL), 0);
    for (int64_t ns = 0; ns <= 1000; ns++)
        clock_advance_to(&c, ns);
    for (int i = 0; i < 2; i++)
        thread_join(t[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(real_time_runs_forward),
        cmocka_unit_test(virtual_time_stands_still),
        cmocka_unit_test(readers_in_other_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
