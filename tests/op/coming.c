/* What idle threads ask for: the weights that came next last time, from where their own share begins. How much of it is
 * asked for tells which product it is of; the addresses are of no memory, as nothing is read. */
#include "kernels/cpu/coming.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

enum { THREADS = 3, AT_ONCE = 512, MOST = 256 << 10 };

static void note(struct coming *c, int product)
{
    struct span *s = coming_spans(c);
    for (int t = 0; t < THREADS; t++)
        s[t] = (struct span){(const char *)64 + ((size_t)product << 24) + ((size_t)t << 20),
                             (size_t)(product + t) * AT_ONCE};
    coming_note(c, true);
}

/* Looks that a thread needs until all is asked for. */
static int looks(struct coming *c, int thread)
{
    int n = 0;
    while (coming_fetch(c, thread))
        n++;
    return n;
}

/* A thread that has k pieces to ask for has something left to do k - 1 times. */
static void expect(struct coming *c, int product)
{
    for (int t = 0; t < THREADS; t++)
        assert_int_equal(looks(c, t), product < 0 ? 0 : product + t - 1);
    for (int t = 0; t < THREADS; t++)
        assert_false(coming_fetch(c, t));
}

static void what_came_next_comes_next(void **state)
{
    (void)state;
    struct coming *c = coming_new(THREADS);
    expect(c, -1);
    for (int round = 0; round < 3; round++)
        for (int p = 1; p <= 4; p++) {
            note(c, p);
            expect(c, round ? p % 4 + 1 : -1);
        }
    note(c, 2); /* not in the order that is known: it is learned */
    expect(c, 3);
    note(c, 1);
    expect(c, 2);
    note(c, 2);
    expect(c, 1);
    coming_note(c, false); /* many rows, say */
    expect(c, -1);
    note(c, 3);
    expect(c, 4);
    coming_free(c);
}

static void of_many_products(void **state)
{
    (void)state;
    struct coming *c = coming_new(THREADS);
    int wrong = 0;
    for (int round = 0; round < 2; round++)
        for (int p = 1; p <= 400; p++) {
            note(c, p);
            if (round && looks(c, 0) != p % 400)
                wrong++;
        }
    assert_int_equal(wrong, 0);
    for (int round = 0; round < 2; round++) /* more than there is room for: some are forgotten, and nothing else */
        for (int p = 1; p <= 3000; p++) {
            note(c, p);
            assert_in_range(looks(c, p % THREADS), 0, MOST / AT_ONCE - 1);
        }
    coming_free(c);
}

static void no_more_than_a_cache_holds(void **state)
{
    (void)state;
    struct coming *c = coming_new(THREADS);
    note(c, 5000);
    note(c, 6000);
    note(c, 5000);
    assert_int_equal(looks(c, 1), MOST / AT_ONCE - 1);
    coming_free(c);
    coming_free(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_came_next_comes_next),
        cmocka_unit_test(of_many_products),
        cmocka_unit_test(no_more_than_a_cache_holds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
