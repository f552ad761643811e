/* Memory for weights: what is taken overlaps nothing, what is given back is found again, as it was or by the system. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

#include "engine/base/rng.h"
#include "kernels/cpu/slab.h"

enum { PIECES = 300, PAGE = 4096, HUGE_PAGE = 2 << 20, AREA = 128 << 20 };

struct taken {
    uint8_t *p;
    size_t bytes;
    uint8_t mark;
};

static void check(const struct taken *t)
{
    for (size_t i = 0; i < t->bytes; i += 997)
        assert_int_equal(t->p[i], t->mark);
    if (t->bytes)
        assert_int_equal(t->p[t->bytes - 1], t->mark);
}

static void what_is_taken_overlaps_nothing(void **state)
{
    (void)state;
    struct rng r;
    struct taken all[PIECES] = {{0}};
    struct slab *s = slab_open(true);
    rng_init(&r, 5);
    for (int round = 0; round < 5000; round++) {
        struct taken *t = &all[rng_below(&r, PIECES)];
        if (t->p) {
            check(t);
            slab_give(s, t->p, t->bytes);
            t->p = NULL;
            continue;
        }
        t->bytes = (size_t)rng_below(&r, round % 50 ? 40000 : 400000);
        t->mark = (uint8_t)(round | 1);
        t->p = slab_take(s, t->bytes);
        assert_non_null(t->p);
        assert_int_equal((uintptr_t)t->p % 64, 0);
        memset(t->p, t->mark, t->bytes);
    }
    for (int i = 0; i < PIECES; i++)
        if (all[i].p)
            check(&all[i]);
    slab_close(s);
}

/* Whatever order it comes back in, holes grow together: as much can be taken at once as at first. */
static void all_that_came_back_is_one_again(void **state)
{
    (void)state;
    struct rng r;
    void *p[PIECES];
    struct slab *s = slab_open(true);
    rng_init(&r, 6);
    uint8_t *whole = slab_take(s, AREA);
    slab_give(s, whole, AREA);
    for (int round = 0; round < 20; round++) {
        for (int i = 0; i < PIECES; i++)
            assert_non_null(p[i] = slab_take(s, 64 * 1000));
        for (int left = PIECES; left > 0; left--) {
            int i = (int)rng_below(&r, (uint64_t)left);
            slab_give(s, p[i], 64 * 1000);
            p[i] = p[left - 1];
        }
        assert_ptr_equal(slab_take(s, AREA), whole);
        slab_give(s, whole, AREA);
    }
    slab_close(s);
}

static int resident_pages(void *p, size_t bytes)
{
    static unsigned char in[AREA / PAGE];
    int n = 0;
    assert_int_equal(mincore(p, bytes, in), 0);
    for (size_t i = 0; i < bytes / PAGE; i++)
        n += in[i] & 1;
    return n;
}

static void pages_go_back_to_the_system_unless_they_are_kept(void **state)
{
    (void)state;
    for (int keeps = 0; keeps < 2; keeps++) {
        struct slab *s = slab_open(keeps);
        size_t bytes = 5 * HUGE_PAGE + 12345, half = bytes / 128 * 64;
        uint8_t *p = slab_take(s, half), *q = slab_take(s, bytes - half);
        assert_ptr_equal(q, p + half);
        memset(p, 1, half);
        memset(q, 1, bytes - half);
        assert_true(resident_pages(p, 5 * HUGE_PAGE) == 5 * HUGE_PAGE / PAGE);
        slab_give(s, q, bytes - half); /* the page that both lie in stays */
        assert_true(resident_pages(p, 2 * HUGE_PAGE) == 2 * HUGE_PAGE / PAGE);
        assert_int_equal(resident_pages(p + 3 * HUGE_PAGE, 2 * HUGE_PAGE), keeps ? 2 * HUGE_PAGE / PAGE : 0);
        slab_give(s, p, half);
        assert_int_equal(resident_pages(p, 5 * HUGE_PAGE), keeps ? 5 * HUGE_PAGE / PAGE : 0);
        slab_close(s);
    }
}

static void more_than_there_is_is_refused(void **state)
{
    (void)state;
    struct slab *s = slab_open(false);
    assert_null(slab_take(s, SIZE_MAX));
    assert_null(slab_take(s, (size_t)1 << 60));
    void *p = slab_take(s, 10);
    assert_non_null(p);
    slab_give(s, p, 10);
    slab_give(s, NULL, 10);
    slab_close(s);
    slab_close(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_taken_overlaps_nothing),
        cmocka_unit_test(all_that_came_back_is_one_again),
        cmocka_unit_test(pages_go_back_to_the_system_unless_they_are_kept),
        cmocka_unit_test(more_than_there_is_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
