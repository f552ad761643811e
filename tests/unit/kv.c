/* The block pool against a plain model of it, over random operations. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

#include "engine/base/rng.h"
#include "engine/world/kv.h"

static void open_single(struct kv_pool *p, int n_blocks)
{
    int rank = 0;
    kv_init(p, 1, n_blocks);
    assert_int_equal(kv_place_open(p, &(struct kv_place_setup){&rank, 1, 1, 1, 16}), 0);
}

static void take_and_drop(void **state)
{
    (void)state;
    struct kv_pool p;
    open_single(&p, 3);
    int32_t a = kv_take(&p, 0), b = kv_take(&p, 0), c = kv_take(&p, 0);
    assert_int_equal(kv_take(&p, 0), -1);
    assert_int_equal(a + b + c, 0 + 1 + 2);
    kv_drop(&p, 0, b);
    assert_int_equal(kv_available(&p, 0), 1);
    assert_int_equal(kv_take(&p, 0), b);
    assert_true(kv_check(&p));
    kv_free(&p);
}

static void cached_blocks_are_found_and_evicted_oldest_first(void **state)
{
    (void)state;
    struct kv_pool p;
    open_single(&p, 2);
    int32_t tokens[16] = {1};
    struct kv_key root = kv_key_root(&p, "t"), k1 = kv_key_next(&p, root, tokens), k2 = kv_key_next(&p, k1, tokens);
    int32_t a = kv_take(&p, 0), b = kv_take(&p, 0);
    kv_publish(&p, 0, a, k1);
    kv_publish(&p, 0, b, k2);
    kv_drop(&p, 0, a);
    kv_drop(&p, 0, b);
    assert_int_equal(p.ranks[0].n_cached, 2);
    assert_int_equal(kv_lookup(&p, 0, k1), a);
    kv_hold(&p, 0, a); /* a is in use again, so b is what goes */
    assert_int_equal(kv_take(&p, 0), b);
    assert_int_equal(kv_lookup(&p, 0, k2), -1);
    assert_int_equal(kv_lookup(&p, 0, k1), a);
    assert_int_equal((int)p.n_evicted, 1);
    assert_true(kv_check(&p));
    kv_free(&p);
}

static void a_key_belongs_to_one_block(void **state)
{
    (void)state;
    struct kv_pool p;
    open_single(&p, 2);
    struct kv_key k = kv_key_root(&p, "x");
    int32_t a = kv_take(&p, 0), b = kv_take(&p, 0);
    kv_publish(&p, 0, a, k);
    kv_publish(&p, 0, b, k);
    kv_drop(&p, 0, b);
    assert_int_equal(p.ranks[0].n_free, 1); /* the second stayed keyless */
    kv_drop(&p, 0, a);
    assert_int_equal(p.ranks[0].n_cached, 1);
    assert_true(kv_check(&p));
    kv_free(&p);
}

static void keys_depend(bool trusted)
{
    struct kv_pool p;
    open_single(&p, 2);
    p.trusted = trusted;
    int32_t t[2][16] = {{1, 2, 3}, {1, 2, 4}};
    struct kv_key a = kv_key_root(&p, "a"), b = kv_key_root(&p, "b");
    assert_true(a.h[0] != b.h[0]);
    assert_true(kv_key_next(&p, a, t[0]).h[0] != kv_key_next(&p, b, t[0]).h[0]);
    assert_true(kv_key_next(&p, a, t[0]).h[0] != kv_key_next(&p, a, t[1]).h[0]);
    struct kv_key again = kv_key_next(&p, a, t[0]), first = kv_key_next(&p, a, t[0]);
    assert_memory_equal(&again, &first, sizeof again);
    kv_free(&p);
}

static void keys_depend_on_salt_order_and_tokens(void **state)
{
    (void)state;
    keys_depend(false);
    keys_depend(true);
}

static int by_bits(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* Half a key finds a block: texts that differ in two tokens have neither half in common. */
static void quick_keys_tell_near_texts_apart(void **state)
{
    (void)state;
    enum { VALUES = 5, N = KV_UNIT * KV_UNIT / 2 * VALUES * VALUES };
    static uint64_t halves[2][N];
    struct kv_pool p;
    int n = 0;
    open_single(&p, 2);
    p.trusted = true;
    struct kv_key root = kv_key_root(&p, "");
    for (int i = 0; i < KV_UNIT; i++)
        for (int k = i + 1; k < KV_UNIT; k++)
            for (int v = 0; v < VALUES * VALUES; v++) {
                int32_t t[KV_UNIT] = {0};
                t[i] = 1 + v / VALUES;
                t[k] = 1 + v % VALUES;
                struct kv_key key = kv_key_next(&p, root, t);
                halves[0][n] = key.h[0];
                halves[1][n++] = key.h[1];
            }
    for (int h = 0; h < 2; h++) {
        qsort(halves[h], (size_t)n, sizeof **halves, by_bits);
        for (int i = 1; i < n; i++)
            assert_true(halves[h][i] != halves[h][i - 1]);
    }
    kv_free(&p);
}

/* The same units in another order: no key of one is a key of the other, at the end either. */
static void quick_keys_are_a_chain(void **state)
{
    (void)state;
    struct kv_pool p;
    int32_t t[2][KV_UNIT] = {{7}, {8}};
    open_single(&p, 2);
    p.trusted = true;
    struct kv_key a = kv_key_root(&p, ""), b = a;
    for (int i = 0; i < 16; i++) {
        a = kv_key_next(&p, a, t[i == 0]);
        b = kv_key_next(&p, b, t[i == 15]);
        assert_true(a.h[0] != b.h[0] && a.h[1] != b.h[1]);
    }
    kv_free(&p);
}

static void random_operations_conserve(void **state)
{
    (void)state;
    enum { N = 24, OPS = 40000 };
    struct kv_pool p;
    struct rng r;
    int refs[N] = {0};
    open_single(&p, N);
    rng_init(&r, 7);
    for (int i = 0; i < OPS; i++) {
        int32_t b = (int32_t)rng_below(&r, N);
        int32_t token[16] = {(int32_t)rng_below(&r, 40)};
        struct kv_key k = kv_key_next(&p, kv_key_root(&p, ""), token);
        switch (rng_below(&r, 5)) {
        case 0:
        case 1:
            b = kv_take(&p, 0);
            if (b >= 0) {
                assert_int_equal(refs[b], 0);
                refs[b] = 1;
            }
            break;
        case 2:
            if (refs[b]) {
                kv_drop(&p, 0, b);
                refs[b]--;
            }
            break;
        case 3:
            if (refs[b])
                kv_publish(&p, 0, b, k);
            break;
        default:
            b = kv_lookup(&p, 0, k);
            if (b >= 0) {
                kv_hold(&p, 0, b);
                refs[b]++;
            }
        }
        int held = 0;
        for (int j = 0; j < N; j++)
            held += refs[j] > 0;
        assert_int_equal(kv_available(&p, 0), N - held);
    }
    assert_true(kv_check(&p));
    kv_free(&p);
}

/* Two ranks, and a place on each and on both: more than one part. */
static void open_many(struct kv_pool *p, int n_blocks)
{
    int ranks[] = {0, 1};
    kv_init(p, 2, n_blocks);
    assert_int_equal(kv_place_open(p, &(struct kv_place_setup){ranks, 1, 1, 1, 16}), 0);
    assert_int_equal(kv_place_open(p, &(struct kv_place_setup){ranks + 1, 1, 1, 1, 16}), 1);
    assert_int_equal(kv_place_open(p, &(struct kv_place_setup){ranks, 2, 1, 1, 32}), 2);
}

/* How many parts it takes from here until one is wrong; 0: none of `most` is. */
static int parts_until_wrong(const struct kv_pool *p, struct kv_cursor *at, int most)
{
    for (int i = 1; i <= most; i++)
        if (!kv_check_part(p, at))
            return i;
    return 0;
}

static void parts_come_to_every_block(void **state)
{
    (void)state;
    enum { N = KV_CHECK_PART, PARTS = 4 + 1 }; /* four times as many blocks, by shares */
    struct kv_pool p;
    struct kv_cursor at = {0};
    open_many(&p, N);
    for (int i = 0; i < 1000; i++)
        assert_true(kv_take(&p, i % 3) >= 0);
    assert_true(kv_check(&p));
    assert_int_equal(parts_until_wrong(&p, &at, 2 * PARTS), 0);
    struct {
        int place, block;
    } wrong[] = {{0, 0}, {0, N - 1}, {1, 7}, {2, 0}, {2, N / 2}, {2, N - 1}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct kv_block *b = &p.places[wrong[i].place]->blocks[wrong[i].block];
        int32_t refs = b->refs;
        b->refs = -1;
        int parts = parts_until_wrong(&p, &at, PARTS);
        assert_in_range(parts, 1, PARTS);
        b->refs = refs;
    }
    assert_int_equal(parts_until_wrong(&p, &at, PARTS), 0);
    p.ranks[1].n_cached++; /* a sum is looked at every time, as far as it can be wrong by itself */
    p.ranks[1].n_free = p.ranks[1].n_blocks;
    assert_false(kv_check_part(&p, &at));
    kv_free(&p);
}

/* As few as in most tests: all of it at once. */
static void a_small_pool_is_recounted_whole(void **state)
{
    (void)state;
    struct kv_pool p;
    struct kv_cursor at = {0};
    open_many(&p, 64);
    int32_t a = kv_take(&p, 2), b = kv_take(&p, 2);
    assert_true(kv_check_part(&p, &at));
    int32_t was = p.places[2]->phys[2 * b];
    p.places[2]->phys[2 * b] = p.places[2]->phys[2 * a]; /* two blocks in one place: nothing by itself */
    assert_false(kv_check_part(&p, &at));
    p.places[2]->phys[2 * b] = was;
    p.ranks[0].n_free--; /* one is in nobody's hands */
    assert_false(kv_check_part(&p, &at));
    p.ranks[0].n_free++;
    assert_true(kv_check_part(&p, &at));
    kv_free(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(take_and_drop),
        cmocka_unit_test(cached_blocks_are_found_and_evicted_oldest_first),
        cmocka_unit_test(a_key_belongs_to_one_block),
        cmocka_unit_test(keys_depend_on_salt_order_and_tokens),
        cmocka_unit_test(quick_keys_tell_near_texts_apart),
        cmocka_unit_test(quick_keys_are_a_chain),
        cmocka_unit_test(random_operations_conserve),
        cmocka_unit_test(parts_come_to_every_block),
        cmocka_unit_test(a_small_pool_is_recounted_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
