/* What the twins of Hopper's instructions are for: every mistake in the use of them is seen, by the end of the program
 * or in what comes out; and which devices take the kernel that is made of them. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "kernels/cuda/device.h"
#include "tests/emulator/dying.h"
#include "tests/emulator/hopper_wrong.h"

void emulator_capability(int ten_times);
int emulator_registers(int n);

enum { SUMS = 128 };

static void right_use_passes(void **state)
{
    (void)state;
    float out[SUMS];
    hopper_mistake(NO_MISTAKE, out);
    for (int i = 0; i < SUMS; i++)
        assert_true(out[i] == 16.0f);
}

static void make(void *arg)
{
    float out[SUMS];
    hopper_mistake(*(enum mistake *)arg, out);
}

static void mistakes_end_the_program(void **state)
{
    (void)state;
    for (enum mistake m = NO_WGMMA_FENCE; m < NO_WAIT; m++)
        dies(make, &m, (int)m);
}

static void mistakes_show(void **state)
{
    (void)state;
    float out[SUMS];
    for (int m = NO_WAIT; m <= NO_PHASE; m++) {
        hopper_mistake((enum mistake)m, out);
        for (int i = 0; i < SUMS; i++)
            if (m == WRITTEN_UNDER_WAY ? out[i] != 16.0f : !isnan(out[i])) /* what is written is lost */
                fail_msg("mistake %d: %g", m, (double)out[i]);
    }
}

static void only_code_for_90_has_it(void **state)
{
    (void)state;
    static const struct {
        int capability, registers;
        bool plain, hopper;
    } cases[] = {{90, 255, false, true},  {90, 255, true, false}, {80, 255, false, false}, {100, 255, false, false},
                 {91, 255, false, false}, {90, 10, false, false}}; /* compiled for another architecture: empty */
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct device *d;
        struct err e = {0};
        emulator_capability(cases[i].capability);
        emulator_registers(cases[i].registers);
        assert_int_equal(
            backend_cuda()->open(
                &d, &(struct device_opts){.max_rows = 16, .max_logits = 4, .plain_kernels = cases[i].plain}, &e),
            0);
        assert_int_equal(d->hopper, cases[i].hopper);
        backend_cuda()->close(d);
    }
    emulator_capability(90);
    emulator_registers(255);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(right_use_passes), cmocka_unit_test(mistakes_end_the_program),
                                       cmocka_unit_test(mistakes_show), cmocka_unit_test(only_code_for_90_has_it)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
