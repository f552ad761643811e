/* UTF-8 against the table of well-formed sequences (Unicode, table 3-7), exhaustively where that is possible. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "engine/base/rng.h"
#include "engine/base/utf8.h"

struct row {
    unsigned char lo[4], hi[4];
    int len;
};
static const struct row table[] = {
    {{0x00}, {0x7F}, 1},
    {{0xC2, 0x80}, {0xDF, 0xBF}, 2},
    {{0xE0, 0xA0, 0x80}, {0xE0, 0xBF, 0xBF}, 3},
    {{0xE1, 0x80, 0x80}, {0xEC, 0xBF, 0xBF}, 3},
    {{0xED, 0x80, 0x80}, {0xED, 0x9F, 0xBF}, 3},
    {{0xEE, 0x80, 0x80}, {0xEF, 0xBF, 0xBF}, 3},
    {{0xF0, 0x90, 0x80, 0x80}, {0xF0, 0xBF, 0xBF, 0xBF}, 4},
    {{0xF1, 0x80, 0x80, 0x80}, {0xF3, 0xBF, 0xBF, 0xBF}, 4},
    {{0xF4, 0x80, 0x80, 0x80}, {0xF4, 0x8F, 0xBF, 0xBF}, 4},
};

/* What utf8_decode must return for s[0..n): the length, 0 for a proper prefix, -1 otherwise. */
static int expected(const unsigned char *s, int n)
{
    for (size_t r = 0; r < sizeof table / sizeof *table; r++) {
        int i = 0;
        while (i < n && i < table[r].len && s[i] >= table[r].lo[i] && s[i] <= table[r].hi[i])
            i++;
        if (i == table[r].len)
            return i;
        if (i == n)
            return 0;
    }
    return -1;
}

static void all_code_points_round_trip(void **state)
{
    (void)state;
    for (uint32_t cp = 0; cp <= 0x110010; cp++) {
        char s[4];
        uint32_t back = 0;
        int len = utf8_encode(cp, s);
        bool good = cp <= 0x10FFFF && (cp < 0xD800 || cp > 0xDFFF);
        if (utf8_decode(s, (size_t)len, &back) != len || back != (good ? cp : 0xFFFD))
            fail_msg("code point %x", cp);
    }
}

static void every_short_sequence(void **state)
{
    (void)state;
    for (uint32_t v = 0; v < 1u << 24; v++) {
        unsigned char s[3] = {(unsigned char)(v >> 16), (unsigned char)(v >> 8), (unsigned char)v};
        uint32_t cp;
        for (int n = v & 0xFFFF ? 3 : 1; n <= 3; n++)
            if (utf8_decode((char *)s, (size_t)n, &cp) != expected(s, n))
                fail_msg("%02x %02x %02x cut to %d", s[0], s[1], s[2], n);
        if ((v & 0xFF) == 0 && utf8_decode((char *)s, 2, &cp) != expected(s, 2))
            fail_msg("%02x %02x", s[0], s[1]);
    }
}

static void four_bytes_at_the_borders(void **state)
{
    (void)state;
    static const unsigned char edge[] = {0x00, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xFF};
    for (int a = 0xEF; a <= 0xFF; a++)
        for (size_t i = 0; i < 1000; i++) {
            unsigned char s[4] = {(unsigned char)a, edge[i / 100], edge[i / 10 % 10], edge[i % 10]};
            uint32_t cp;
            for (int n = 1; n <= 4; n++)
                assert_int_equal(utf8_decode((char *)s, (size_t)n, &cp), expected(s, n));
        }
}

static void valid_means_a_run_of_characters(void **state)
{
    (void)state;
    assert_true(utf8_valid("", 0));
    assert_true(utf8_valid("a\0b", 3));
    assert_true(utf8_valid("\xE2\x82\xAC", 3));
    assert_false(utf8_valid("\xE2\x82", 2));
    assert_false(utf8_valid("\xC0\xAF", 2));
    assert_false(utf8_valid("\xED\xA0\x80", 3));
}

/* Streaming by utf8_whole never cuts a character, and holds back at most three bytes. */
static void whole_prefixes(void **state)
{
    (void)state;
    struct rng r;
    rng_init(&r, 3);
    for (int round = 0; round < 20000; round++) {
        char s[64];
        size_t n = 0;
        while (n < 60)
            n += (size_t)utf8_encode((uint32_t)rng_below(&r, round % 2 ? 0x110000 : 0x900), s + n);
        size_t cut = (size_t)rng_below(&r, n + 1), whole = utf8_whole(s, cut);
        assert_true(whole <= cut && cut - whole <= 3);
        assert_true(utf8_valid(s, whole));
        uint32_t cp;
        if (whole < cut)
            assert_int_equal(utf8_decode(s + whole, cut - whole, &cp), 0);
    }
    assert_int_equal(utf8_whole("", 0), 0);
    assert_int_equal(utf8_whole("a\xFF", 2), 2); /* bad bytes are not waited for */
    assert_int_equal(utf8_whole("\x80\x80\x80\x80", 4), 4);
}

static void what_cannot_be_seen_is_spelt_out(void **state)
{
    (void)state;
    static const struct {
        const char *text, *shown;
    } cases[] = {
        {"caf\xC3\xA9 \xE2\x82\xAC \xF0\x9F\x98\x80", "caf\xC3\xA9 \xE2\x82\xAC \xF0\x9F\x98\x80"},
        {"a\nb\x7f\x1b[2J", "a\\x0ab\\x7f\\x1b[2J"},
        {"\xE2\x80\xAEgnp.exe", "\\u{202e}gnp.exe"}, /* right to left */
        {"pay\xE2\x80\x8Bpal", "pay\\u{200b}pal"},   /* no width */
        {"a\xC2\xA0"
         "b\xC2\x85",
         "a\\u{a0}b\\u{85}"},                                    /* a space that is none; a C1 control */
        {"\xEF\xBB\xBFx\xE2\x81\xA6y", "\\u{feff}x\\u{2066}y"},  /* byte order mark; isolate */
        {"\xF3\xA0\x81\x81\xE3\x85\xA4", "\\u{e0041}\\u{3164}"}, /* tag letter; filler */
        {"\xFF\xC3", "\\xff\\xc3"},
    };
    char out[80];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(utf8_show(out, sizeof out, cases[i].text, strlen(cases[i].text)), strlen(cases[i].shown));
        assert_string_equal(out, cases[i].shown);
    }
    for (size_t cap = 16; cap < 40; cap++) { /* cut, and not within an escape */
        static const char tail[] = "\xE2\x80\xAE\xE2\x80\xAE\xE2\x80\xAE\xE2\x80\xAE\xE2\x80\xAE";
        size_t n = utf8_show(out, cap, tail, sizeof tail - 1);
        assert_true(n < cap && strlen(out) == n && !strcmp(out + n - 3, "...") && (n - 3) % 8 == 0);
    }
    for (int i = 1; i < n_utf8_unseen; i++)
        assert_true(utf8_unseen[i - 1][1] < utf8_unseen[i][0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_code_points_round_trip),
        cmocka_unit_test(every_short_sequence),
        cmocka_unit_test(four_bytes_at_the_borders),
        cmocka_unit_test(valid_means_a_run_of_characters),
        cmocka_unit_test(whole_prefixes),
        cmocka_unit_test(what_cannot_be_seen_is_spelt_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
