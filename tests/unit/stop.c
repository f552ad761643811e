/* Stop strings: found however the text is cut, and nothing shown that may be their beginning. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "engine/base/buf.h"
#include "engine/base/rng.h"
#include "engine/serve/openai/stop.h"

/* What a stream shows of text, cut into pieces of the given lengths (0: random). */
static int shown(const struct stops *s, const char *text, size_t piece, struct rng *r, struct buf *out)
{
    struct stop_scan c;
    struct buf all = {0};
    size_t done = 0, n = strlen(text), sent = 0;
    stop_scan_init(&c, s);
    while (done < n && c.found < 0) {
        size_t len = piece ? piece : 1 + rng_below(r, 4);
        len = len < n - done ? len : n - done;
        size_t read = stop_scan_read(&c, text + done, len);
        buf_put(&all, text + done, read);
        done += len;
        size_t visible = c.found >= 0 ? all.len - (size_t)s->items[c.found].n : all.len - stop_scan_held(&c);
        assert_true(visible >= sent); /* nothing shown is ever taken back */
        buf_put(out, all.data + sent, visible - sent);
        sent = visible;
    }
    int found = c.found;
    if (found < 0)
        buf_put(out, all.data + sent, all.len - sent);
    stop_scan_free(&c);
    buf_free(&all);
    return found;
}

static void check(const char *const *strings, const char *text, const char *want, int found)
{
    struct stops s = {0};
    struct rng r;
    rng_init(&r, 5);
    for (int i = 0; strings[i]; i++)
        stops_add(&s, strings[i], strlen(strings[i]));
    for (size_t piece = 0; piece < 9; piece++) {
        struct buf out = {0};
        buf_put(&out, "", 0);
        assert_int_equal(shown(&s, text, piece, &r, &out), found);
        assert_string_equal(out.data, want);
        buf_free(&out);
    }
    stops_free(&s);
}

static void the_first_match_ends_the_text(void **state)
{
    (void)state;
    check((const char *[]){"END", NULL}, "one END two END", "one ", 0);
    check((const char *[]){"END", NULL}, "ENENEND", "ENEN", 0);
    check((const char *[]){"aab", NULL}, "aaaab", "aa", 0);
    check((const char *[]){"abc", "b", NULL}, "xabc", "xa", 1); /* the one that ends first */
    check((const char *[]){"c", "abc", NULL}, "xabc", "x", 1);  /* of those the longest */
    check((const char *[]){"zzz", NULL}, "zz zz", "zz zz", -1);
    check((const char *[]){"\xC3\xA9t\xC3\xA9", NULL}, "l'\xC3\xA9t\xC3\xA9!", "l'", 0);
    check((const char *[]){"\n\n", "Q:", NULL}, "a\nQ: b", "a\n", 1);
}

/* Against a plain search over random texts of a small alphabet. */
static void random_texts_agree_with_a_plain_search(void **state)
{
    (void)state;
    struct rng r;
    rng_init(&r, 99);
    for (int round = 0; round < 3000; round++) {
        char text[40], words[3][6];
        struct stops s = {0};
        size_t n = 1 + rng_below(&r, 38);
        for (size_t i = 0; i < n; i++)
            text[i] = (char)('a' + rng_below(&r, 2));
        text[n] = 0;
        for (int w = 0; w < 3; w++) {
            size_t len = 1 + rng_below(&r, 5);
            for (size_t i = 0; i < len; i++)
                words[w][i] = (char)('a' + rng_below(&r, 2));
            words[w][len] = 0;
            stops_add(&s, words[w], len);
        }
        size_t best_end = SIZE_MAX, best_at = n;
        for (int w = 0; w < 3; w++) {
            const char *at = strstr(text, words[w]);
            size_t end = at ? (size_t)(at - text) + strlen(words[w]) : SIZE_MAX;
            if (at && (end < best_end || (end == best_end && (size_t)(at - text) < best_at))) {
                best_end = end;
                best_at = (size_t)(at - text);
            }
        }
        struct buf out = {0};
        int found = shown(&s, text, 0, &r, &out);
        assert_int_equal(found >= 0, best_end != SIZE_MAX);
        assert_int_equal(out.len, best_end == SIZE_MAX ? n : best_at);
        buf_free(&out);
        stops_free(&s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_match_ends_the_text),
        cmocka_unit_test(random_texts_agree_with_a_plain_search),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
