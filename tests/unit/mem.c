/* Memory: zeroed as promised, refused when it cannot be had, arenas that give disjoint aligned pieces. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "engine/base/mem.h"
#include "engine/base/rng.h"

static bool all_zero(const unsigned char *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (p[i])
            return false;
    return true;
}

static void new_memory_is_zeroed(void **state)
{
    (void)state;
    for (size_t n = 0; n < 5000; n = n * 2 + 1) {
        unsigned char *p = mem_new(n), *q = mem_try_array(n, 3);
        assert_non_null(q);
        assert_true(all_zero(p, n) && all_zero(q, 3 * n));
        memset(p, 0xAA, n);
        memset(q, 0xAA, 3 * n);
        mem_free(p);
        mem_free(q);
    }
    mem_free(NULL);
}

static void what_cannot_be_had_is_refused(void **state)
{
    (void)state;
    assert_null(mem_try_array(SIZE_MAX / 2, 3));
    assert_null(mem_try_array(SIZE_MAX, SIZE_MAX));
    assert_null(mem_try_aligned(SIZE_MAX - 5, 64));
}

static void resize_keeps_contents(void **state)
{
    (void)state;
    uint32_t *p = mem_new_array(4, 4);
    for (uint32_t i = 0; i < 4; i++)
        p[i] = i + 1;
    p = mem_resize(p, 4000, 4);
    for (uint32_t i = 0; i < 4; i++)
        assert_int_equal(p[i], i + 1);
    p = mem_resize(p, 0, 4); /* still a block that mem_free takes */
    assert_non_null(p);
    mem_free(p);
}

static void strings_are_copied(void **state)
{
    (void)state;
    char *a = mem_strdup("hello"), *b = mem_strndup("hello", 2), *c = mem_strndup("a\0b", 3);
    assert_string_equal(a, "hello");
    assert_string_equal(b, "he");
    assert_memory_equal(c, "a\0b\0", 4);
    mem_free(a);
    mem_free(b);
    mem_free(c);
}

static void aligned_blocks(void **state)
{
    (void)state;
    const size_t sizes[] = {0, 1, 63, 64, 65, 4096, (2u << 20) - 1, 2u << 20, (3u << 20) + 17};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (size_t align = 16; align <= 4096; align *= 4) {
            unsigned char *p = mem_try_aligned(sizes[i], align);
            assert_non_null(p);
            assert_int_equal((uintptr_t)p % align, 0);
            assert_true(all_zero(p, sizes[i]));
            memset(p, 0x5A, sizes[i]);
            mem_free(p);
        }
}

/* The allocator may serve a big block from memory that was used before: it must read as zero all the same. */
static void big_blocks_are_zero_after_use(void **state)
{
    (void)state;
    enum { N = 1000 };
    static void *old[N]; /* not on the stack only to spare it */
    for (int i = 0; i < N; i++) {
        old[i] = mem_new(100 << 10);
        memset(old[i], 0xEE, 100 << 10);
    }
    void *fence = mem_new(100 << 10); /* keeps the freed run inside the heap */
    for (int i = 0; i < N; i++)
        mem_free(old[i]);
    size_t n = ((size_t)70 << 20) + 123;
    unsigned char *p = mem_try_aligned(n, 64);
    assert_non_null(p);
    assert_true(all_zero(p, n));
    mem_free(p);
    mem_free(fence);
}

static void arena_pieces_are_disjoint(void **state)
{
    (void)state;
    struct arena a;
    struct rng r;
    arena_init(&a);
    rng_init(&r, 1);
    for (int round = 0; round < 20; round++) {
        unsigned char *pieces[300];
        size_t sizes[300], sum = 0;
        for (int i = 0; i < 300; i++) {
            sizes[i] = (size_t)rng_below(&r, i % 50 == 7 ? 40000 : 200);
            pieces[i] = arena_new(&a, sizes[i]);
            assert_int_equal((uintptr_t)pieces[i] % 16, 0);
            assert_true(all_zero(pieces[i], sizes[i]));
            memset(pieces[i], i, sizes[i]);
            sum += sizes[i];
        }
        for (int i = 0; i < 300; i++)
            for (size_t k = 0; k < sizes[i]; k++)
                assert_int_equal(pieces[i][k], (unsigned char)i);
        assert_true(a.used >= sum && a.used <= a.total);
        arena_reset(&a);
        assert_int_equal(a.used, 0);
    }
    char *copy = arena_copy(&a, "abc", 4);
    assert_string_equal(copy, "abc");
    assert_non_null(arena_copy(&a, NULL, 0));
    arena_free(&a);
    arena_free(&a);
    assert_null(a.head);
}

static void arena_settles_on_one_chunk(void **state)
{
    (void)state;
    struct arena a;
    arena_init(&a);
    size_t held = 0;
    for (int round = 0; round < 30; round++) {
        for (int i = 0; i < 100; i++)
            arena_new(&a, 1000);
        if (round > 3)
            assert_int_equal(a.total, held);
        held = a.total;
        arena_reset(&a);
        if (round > 3)
            assert_int_equal(a.total, held);
    }
    arena_free(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(new_memory_is_zeroed),
        cmocka_unit_test(what_cannot_be_had_is_refused),
        cmocka_unit_test(resize_keeps_contents),
        cmocka_unit_test(strings_are_copied),
        cmocka_unit_test(aligned_blocks),
        cmocka_unit_test(big_blocks_are_zero_after_use),
        cmocka_unit_test(arena_pieces_are_disjoint),
        cmocka_unit_test(arena_settles_on_one_chunk),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
