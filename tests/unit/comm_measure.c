/* What start-up says of its all-reduces, and from which size on which algorithm is taken. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "engine/exec/comm_measure.h"

static const struct comm_measure measured = {.bytes = {4 << 10, 32 << 10, 256 << 10, 1 << 20},
                                             .oneshot_ns = {9000, 12000, 60000, 250000},
                                             .twoshot_ns = {15000, 11000, 61000, 100000},
                                             .meet_ns = 4000};

static void two_shots_from_where_they_stay_ahead(void **state)
{
    (void)state;
    struct comm_measure m = measured;
    assert_int_equal(comm_twoshot_from(&m), 1 << 20); /* ahead at 32 KiB, too, but not after it */
    m.twoshot_ns[2] = 59000;
    assert_int_equal(comm_twoshot_from(&m), 32 << 10);
    m.twoshot_ns[3] = 250000;
    assert_true(comm_twoshot_from(&m) == SIZE_MAX);
    assert_int_equal(comm_twoshot_from(&(struct comm_measure){.library_bytes = 0}), 32 << 10);
}

static void says(const struct comm_measure *m, const char *words)
{
    char text[COMM_SAID];
    comm_measure_say(m, text);
    assert_string_equal(text, words);
}

static void it_is_said(void **state)
{
    (void)state;
    struct comm_measure m = measured;
    says(&m, "4 KiB in 9.0 us, 1 MiB in 100.0 us (10.5 GB/s), two shots from 1 MiB on");
    m.library_bytes = 4 << 20;
    m.twoshot_ns[3] = 300000;
    says(&m, "4 KiB in 9.0 us, 1 MiB in 250.0 us (4.2 GB/s), one shot always, by the library from 4 MiB on");
    m.library_bytes = COMM_NEVER;
    says(&m, "4 KiB in 9.0 us, 1 MiB in 250.0 us (4.2 GB/s), one shot always, never by the library");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_shots_from_where_they_stay_ahead),
        cmocka_unit_test(it_is_said),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
