/* Prompt lookup beside a search through the whole timeline: the same length of match, and a guess that is what stood
 * there; token by token or all at once, over timelines that repeat much or little. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "engine/base/rng.h"
#include "engine/world/lookup.h"

enum { LONGEST = 3000, MOST = 20, FEW = 4 };

static int match_at(const int32_t *t, int place, int n)
{
    int same = 0;
    while (same < LOOKUP_MATCH && same < place && t[place - 1 - same] == t[n - 1 - same])
        same++;
    return same;
}

/* The longest match of an earlier place; *n_places: how many have three tokens of it. */
static int naive(const int32_t *t, int n, int *n_places)
{
    int best = 0;
    *n_places = 0;
    for (int place = 3; place < n; place++) {
        int same = match_at(t, place, n);
        *n_places += same >= 3;
        best = same >= 3 && same > best ? same : best;
    }
    return best;
}

/* Some place with such a match goes on like this, with itself where the timeline ends. */
static bool stood_there(const int32_t *t, int n, const int32_t *out, int most, int match)
{
    for (int place = 3; place < n; place++) {
        bool same = match_at(t, place, n) == match;
        for (int i = 0; i < most && same; i++)
            same = out[i] == (place + i < n ? t[place + i] : out[place + i - n]);
        if (same)
            return true;
    }
    return false;
}

static void finds_what_a_search_finds(void **state)
{
    (void)state;
    static int32_t t[LONGEST];
    struct rng r;
    int n_found = 0, n_compared = 0;
    rng_init(&r, 11);
    for (int round = 0; round < 60; round++) {
        struct lookup *l = lookup_new();
        int vocab = 2 + (int)rng_below(&r, round % 3 ? 2000 : 6), n = 0;
        while (n < LONGEST - 100) {
            int copied = n > 50 && rng_below(&r, 3) == 0 ? (int)rng_below(&r, 60) : 0, from = 0;
            if (copied)
                from = (int)rng_below(&r, (uint64_t)(n - 40));
            for (int i = 0; i < copied; i++, n++)
                t[n] = t[from + i];
            t[n++] = (int32_t)rng_below(&r, (uint64_t)vocab);
            if (rng_below(&r, round % 7 + 1))
                continue;
            int32_t out[MOST];
            int match, places, best = naive(t, n, &places), got = lookup_propose(l, t, n, MOST, out, &match);
            assert_true(got == 0 || got == MOST);
            assert_true(match <= best && (got != 0) == (match != 0));
            if (places <= FEW) /* of more it looks at the latest only */
                assert_int_equal(match, best);
            if (got)
                assert_true(stood_there(t, n, out, MOST, match));
            n_found += got != 0;
            n_compared += places > 0 && places <= FEW;
        }
        lookup_free(l);
    }
    assert_true(n_found > 1000 && n_compared > 300);
}

static void what_repeats_goes_on_repeating(void **state)
{
    (void)state;
    int32_t t[] = {9, 1, 2, 3, 1, 2, 3, 1}, out[8];
    static const int32_t want[] = {2, 3, 1, 2, 3, 1, 2, 3};
    int match;
    struct lookup *l = lookup_new();
    assert_int_equal(lookup_propose(l, t, 8, 8, out, &match), 8);
    assert_memory_equal(out, want, sizeof want);
    assert_int_equal(match, 4);
    lookup_free(l);
}

static void too_short_for_a_guess(void **state)
{
    (void)state;
    int32_t t[] = {1, 1, 1, 1}, out[4];
    int match;
    for (int n = 1; n <= 3; n++) {
        struct lookup *l = lookup_new();
        assert_int_equal(lookup_propose(l, t, n, 4, out, &match), 0);
        assert_int_equal(match, 0);
        lookup_free(l);
    }
    struct lookup *l = lookup_new();
    assert_int_equal(lookup_propose(l, t, 4, 0, out, &match), 0);
    assert_int_equal(lookup_propose(l, t, 4, 4, out, &match), 4);
    lookup_free(l);
    lookup_free(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(finds_what_a_search_finds),
        cmocka_unit_test(what_repeats_goes_on_repeating),
        cmocka_unit_test(too_short_for_a_guess),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
