/* The hash map against a plain array, with keys that collide and removals in the middle of runs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "engine/base/map.h"
#include "engine/base/rng.h"

static void empty_map(void **state)
{
    (void)state;
    struct map m;
    uint64_t v = 5;
    map_init(&m);
    assert_false(map_find(&m, 1, &v));
    assert_false(map_remove(&m, 1));
    assert_int_equal(v, 5);
    map_free(&m);
    map_free(&m);
}

static void zero_and_all_ones_are_keys(void **state)
{
    (void)state;
    struct map m;
    uint64_t v;
    map_init(&m);
    map_set(&m, 0, UINT64_MAX);
    map_set(&m, UINT64_MAX, 0);
    map_set(&m, 0, 7);
    assert_int_equal(m.count, 2);
    assert_true(map_find(&m, 0, &v) && v == 7);
    assert_true(map_find(&m, UINT64_MAX, &v) && v == 0);
    assert_true(map_find(&m, 0, NULL));
    assert_true(map_remove(&m, 0));
    assert_false(map_remove(&m, 0));
    assert_false(map_find(&m, 0, NULL));
    map_free(&m);
}

/* 600 possible keys, so runs are long and everything is removed and set again many times. */
static void against_an_array(void **state)
{
    (void)state;
    enum { KEYS = 600 };
    uint64_t values[KEYS] = {0};
    bool has[KEYS] = {0};
    size_t count = 0;
    struct map m;
    struct rng r;
    map_init(&m);
    rng_init(&r, 11);
    for (int op = 0; op < 300000; op++) {
        size_t k = (size_t)rng_below(&r, KEYS);
        uint64_t key = k * 0x9e3779b97f4a7c15u, v = rng_next(&r), got = 0;
        if (rng_below(&r, 100) < (op / 30000 % 2 ? 30u : 70u)) {
            map_set(&m, key, v);
            count += !has[k];
            has[k] = true;
            values[k] = v;
        } else {
            assert_int_equal(map_remove(&m, key), has[k]);
            count -= has[k];
            has[k] = false;
        }
        size_t probe = (size_t)rng_below(&r, KEYS);
        bool found = map_find(&m, probe * 0x9e3779b97f4a7c15u, &got);
        assert_int_equal(found, has[probe]);
        if (found)
            assert_true(got == values[probe]);
        assert_int_equal(m.count, count);
        assert_true(m.count <= m.cap - m.cap / 4);
    }
    map_free(&m);
}

static void reserve_means_no_growth(void **state)
{
    (void)state;
    struct map m;
    map_init(&m);
    map_reserve(&m, 1000);
    size_t cap = m.cap;
    for (uint64_t i = 0; i < 1000; i++)
        map_set(&m, i, i);
    assert_int_equal(m.cap, cap);
    map_free(&m);
}

static void byte_hashes_see_every_byte_and_the_length(void **state)
{
    (void)state;
    unsigned char s[40] = {0};
    for (size_t n = 0; n <= sizeof s; n++) {
        uint64_t base = map_hash_bytes(s, n);
        if (n)
            assert_true(base != map_hash_bytes(s, n - 1));
        for (size_t i = 0; i < n; i++) {
            s[i] ^= 0x10;
            assert_true(map_hash_bytes(s, n) != base);
            s[i] ^= 0x10;
        }
        assert_true(map_hash_bytes(s, n) == base);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(empty_map),
        cmocka_unit_test(zero_and_all_ones_are_keys),
        cmocka_unit_test(against_an_array),
        cmocka_unit_test(reserve_means_no_growth),
        cmocka_unit_test(byte_hashes_see_every_byte_and_the_length),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
