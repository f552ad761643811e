/* What suffix caches keep: by tenant, within their bytes, by each rule; in slices, so that guesses may come in between.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "engine/base/rng.h"
#include "engine/draft/suffix_cache.h"

enum { LENGTH = 200 };

/* A text that no other number gives. */
static void text_of(int number, int32_t *text)
{
    struct rng r;
    rng_init(&r, (uint64_t)number + 1);
    for (int i = 0; i < LENGTH; i++)
        text[i] = (int32_t)rng_below(&r, 50000);
}

static void add(struct suffix_cache *c, const char *tenant, int number)
{
    int32_t text[LENGTH];
    text_of(number, text);
    suffix_cache_add(c, tenant, text, LENGTH);
    while (suffix_cache_work(c))
        ;
}

/* Is what this text says behind its first half known? */
static bool knows(struct suffix_cache *c, const char *tenant, int number)
{
    int32_t text[LENGTH];
    struct suffix_guess g;
    text_of(number, text);
    int n = suffix_cache_guess(c, tenant, text, LENGTH / 2, (struct suffix_want){.most = 8}, &g);
    return n == 8 && g.match == SUFFIX_MATCH && memcmp(g.tokens, text + LENGTH / 2, 8 * sizeof *text) == 0;
}

static void tenants_do_not_know_of_one_another(void **state)
{
    (void)state;
    struct suffix_cache *c = suffix_cache_new(1 << 20);
    add(c, "anna", 1);
    add(c, "", 2);
    add(c, "bert", 3);
    const char *const names[] = {"", "anna", "bert", "carl"};
    for (int i = 0; i < 4; i++)
        for (int k = 1; k <= 3; k++)
            assert_int_equal(knows(c, names[i], k), (i == 1 && k == 1) || (i == 0 && k == 2) || (i == 2 && k == 3));
    struct suffix_cache_stats s = suffix_cache_stats(c);
    assert_int_equal(s.n_sequences, 3);
    assert_int_equal(s.n_tenants, 3);
    assert_int_equal(s.tree.tokens, 3 * LENGTH);
    suffix_cache_free(c);
}

static void nobody_is_forgotten_but_the_oldest(void **state)
{
    (void)state;
    size_t bytes = 256 << 10;
    struct suffix_cache *c = suffix_cache_new(bytes);
    for (int i = 0; i < 60; i++) {
        add(c, i % 3 ? "a" : "b", i);
        assert_true(suffix_cache_stats(c).tree.bytes <= bytes);
    }
    int kept = suffix_cache_stats(c).n_sequences;
    assert_true(kept >= 5 && kept < 60);
    assert_int_equal(suffix_cache_stats(c).n_evicted, 60 - kept);
    for (int i = 0; i < 60; i++)
        assert_int_equal(knows(c, i % 3 ? "a" : "b", i), i >= 60 - kept);
    suffix_cache_free(c);
}

static void what_is_guessed_from_stays(void **state)
{
    (void)state;
    struct suffix_cache *c = suffix_cache_new(256 << 10);
    suffix_cache_set_rule(c, EVICT_UNUSED);
    for (int i = 0; i < 60; i++) {
        add(c, "a", i);
        assert_true(knows(c, "a", 0));
    }
    int kept = suffix_cache_stats(c).n_sequences;
    for (int i = 1; i < 60; i++)
        assert_int_equal(knows(c, "a", i), i > 60 - kept);
    suffix_cache_free(c);
}

static void who_has_most_gives_way(void **state)
{
    (void)state;
    struct suffix_cache *c = suffix_cache_new(256 << 10);
    suffix_cache_set_rule(c, EVICT_LARGEST);
    add(c, "small", 1000);
    for (int i = 0; i < 60; i++)
        add(c, "large", i);
    assert_true(knows(c, "small", 1000));
    assert_true(knows(c, "large", 59));
    assert_false(knows(c, "large", 0));
    suffix_cache_free(c);
}

static bool note(void *ctx, const char *tenant, const int32_t *tokens, int n)
{
    int *seen = ctx;
    int32_t text[LENGTH];
    text_of(*seen, text);
    assert_string_equal(tenant, *seen % 2 ? "odd" : "even");
    assert_int_equal(n, LENGTH);
    assert_memory_equal(tokens, text, sizeof text);
    return ++*seen < 3;
}

static void each_names_them_in_order(void **state)
{
    (void)state;
    struct suffix_cache *c = suffix_cache_new(1 << 20);
    int seen = 0;
    for (int i = 0; i < 5; i++)
        add(c, i % 2 ? "odd" : "even", i);
    suffix_cache_each(c, note, &seen);
    assert_int_equal(seen, 3);
    suffix_cache_free(c);
}

/* Of a text that is too long for the cache its end is kept; guesses come between slices. */
static void a_long_text_in_slices(void **state)
{
    (void)state;
    enum { LONG = 6000 };
    static int32_t text[LONG];
    struct suffix_cache *c = suffix_cache_new(256 << 10);
    struct suffix_guess g;
    struct rng r;
    rng_init(&r, 9);
    for (int i = 0; i < LONG; i++)
        text[i] = (int32_t)rng_below(&r, 50000);
    int slices = 0, found = 0;
    add(c, "a", 1);
    suffix_cache_add(c, "a", text, LONG);
    for (; suffix_cache_work(c); slices++)
        found += suffix_cache_guess(c, "a", text, LONG - 200, (struct suffix_want){.most = 8}, &g) == 8;
    assert_true(slices > 20 && found > 0 && found < slices);
    assert_int_equal(suffix_cache_guess(c, "a", text, LONG - 200, (struct suffix_want){.most = 8}, &g), 8);
    assert_memory_equal(g.tokens, text + LONG - 200, 8 * sizeof *text);
    assert_int_equal(suffix_cache_guess(c, "a", text, 200, (struct suffix_want){.most = 8}, &g), 0);
    suffix_cache_add(c, "b", text, LONG); /* freed in the middle */
    suffix_cache_work(c);
    suffix_cache_free(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tenants_do_not_know_of_one_another), cmocka_unit_test(nobody_is_forgotten_but_the_oldest),
        cmocka_unit_test(what_is_guessed_from_stays),         cmocka_unit_test(who_has_most_gives_way),
        cmocka_unit_test(each_names_them_in_order),           cmocka_unit_test(a_long_text_in_slices),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
