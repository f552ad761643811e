#include "models/guide/digits.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { FRACTION = 9, LENGTH = 16 };

static int32_t either(struct grammar_maker *m, int32_t a, int32_t b)
{
    return a < 0 ? b : b < 0 ? a : grammar_split(m, a, b);
}

/* least digits, then up to most. */
static int32_t some_digits(struct grammar_maker *m, int least, int most, int32_t next)
{
    int32_t first = next;
    for (int i = least; i < most; i++)
        first = grammar_split(m, grammar_range(m, '0', '9', first), next);
    for (int i = 0; i < least; i++)
        first = grammar_range(m, '0', '9', first);
    return first;
}

static bool is_all(const char *s, int n, char c)
{
    while (n && s[n - 1] == c)
        n--;
    return !n;
}

/* Numbers of n digits from lo to hi. */
static int32_t between(struct grammar_maker *m, const char *lo, const char *hi, int n, int32_t next)
{
    static const char nines[] = "9999999999999999", zeros[] = "0000000000000000";
    if (!n)
        return next;
    if (is_all(lo, n, '0') && is_all(hi, n, '9'))
        return some_digits(m, n, n, next);
    unsigned char a = (unsigned char)lo[0], b = (unsigned char)hi[0];
    if (a == b)
        return grammar_byte(m, a, between(m, lo + 1, hi + 1, n - 1, next));
    int32_t low = grammar_byte(m, a, between(m, lo + 1, nines, n - 1, next)),
            high = grammar_byte(m, b, between(m, zeros, hi + 1, n - 1, next)), ways = grammar_split(m, low, high);
    if (a + 1 < b)
        ways = grammar_split(
            m, ways,
            grammar_range(m, (unsigned char)(a + 1), (unsigned char)(b - 1), some_digits(m, n - 1, n - 1, next)));
    return ways;
}

/* 0 <= lo; -1: lo > hi. */
static int32_t whole(struct grammar_maker *m, int64_t lo, int64_t hi, int32_t next)
{
    int32_t ways = -1;
    int64_t first = 0, last = 9;
    for (int n = 1; n <= LENGTH && first <= hi; n++, first = last + 1, last = last * 10 + 9) {
        char from[24], to[24];
        if (last < lo)
            continue;
        snprintf(from, sizeof from, "%0*" PRId64, n, lo > first ? lo : first);
        snprintf(to, sizeof to, "%0*" PRId64, n, hi < last ? hi : last);
        if (strcmp(from, to) <= 0)
            ways = either(m, ways, between(m, from, to, n, next));
    }
    return ways;
}

int32_t digits_integer(struct grammar_maker *m, const struct digits_bounds *b, int32_t next)
{
    int32_t up = b->most >= 0 ? whole(m, b->least > 0 ? b->least : 0, b->most, next) : -1, down = -1;
    if (b->least < 0)
        down = whole(m, b->most < 0 ? -b->most : 1, -b->least, next);
    return either(m, up, down < 0 ? -1 : grammar_byte(m, '-', down));
}

static int32_t text_of(struct grammar_maker *m, int64_t v, int32_t next)
{
    char text[24];
    int n = snprintf(text, sizeof text, "%" PRId64, v);
    return grammar_text(m, text, (size_t)n, next);
}

/* .0, or nothing */
static int32_t no_fraction(struct grammar_maker *m, int32_t next)
{
    return grammar_split(m, grammar_text(m, ".0", 2, next), next);
}

static int32_t any_fraction(struct grammar_maker *m, int32_t next)
{
    return grammar_split(m, grammar_byte(m, '.', some_digits(m, 1, FRACTION, next)), next);
}

/* More than nothing. */
static int32_t some_fraction(struct grammar_maker *m, int32_t next)
{
    int32_t last = grammar_range(m, '1', '9', next);
    return grammar_byte(m, '.', some_digits(m, 0, FRACTION - 1, last));
}

/* 0 <= least */
static int32_t upwards(struct grammar_maker *m, const struct digits_bounds *b, int32_t next)
{
    if (b->least > b->most || (b->least == b->most && (b->least_open || b->most_open)))
        return -1;
    if (b->least == b->most)
        return text_of(m, b->least, no_fraction(m, next));
    int32_t first = text_of(m, b->least, b->least_open ? some_fraction(m, next) : any_fraction(m, next)),
            inner = whole(m, b->least + 1, b->most - 1, any_fraction(m, next)),
            last = b->most_open ? -1 : text_of(m, b->most, no_fraction(m, next));
    return either(m, first, either(m, inner, last));
}

int32_t digits_number(struct grammar_maker *m, const struct digits_bounds *b, int32_t next)
{
    struct digits_bounds up = *b, down = {.most = -b->least, .most_open = b->least_open};
    if (b->least < 0) {
        up.least = 0;
        up.least_open = false;
    }
    down.least = b->most < 0 ? -b->most : 0;
    down.least_open = b->most >= 0 || b->most_open; /* no -0 */
    int32_t over = b->most >= 0 ? upwards(m, &up, next) : -1, below = b->least < 0 ? upwards(m, &down, next) : -1;
    return either(m, over, below < 0 ? -1 : grammar_byte(m, '-', below));
}
