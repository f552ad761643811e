/* Sixteen rows put side by side, in elements of each size, beside the same by indices. transpose_portable.c is this
 * with the code of other CPUs. */
#include "kernels/cpu/transpose.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "engine/base/rng.h"

enum { PITCH = 37 };

static void check(const uint8_t *from, const uint8_t *to, int size)
{
    for (int row = 0; row < TILE_ROWS; row++)
        for (int i = 0; i < TILE_BYTES; i++)
            assert_int_equal(to[(i / size * TILE_ROWS + row) * size + i % size], from[row * PITCH + i]);
}

static void elements_of_each_size(void **state)
{
    (void)state;
    struct rng r;
    rng_init(&r, 9);
    for (int round = 0; round < 50; round++) {
        uint8_t from[TILE_ROWS * PITCH];
        _Alignas(16) uint8_t to[TILE_ROWS * TILE_BYTES];
        for (size_t i = 0; i < sizeof from; i++)
            from[i] = (uint8_t)rng_next(&r);
        transpose_words(to, from, PITCH);
        check(from, to, 4);
        transpose_halves(to, from, PITCH);
        check(from, to, 2);
        transpose_bytes(to, from, PITCH);
        check(from, to, 1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(elements_of_each_size)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
