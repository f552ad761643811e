#include "models/template/unicode.h"

#include "engine/base/utf8.h"

enum { FLAG_BITS = 11 };

unsigned unicode_flags(uint32_t cp)
{
    int lo = 0, hi = n_unicode_runs;
    while (hi - lo > 1) {
        int mid = (lo + hi) / 2;
        if (unicode_runs[mid] >> FLAG_BITS <= cp)
            lo = mid;
        else
            hi = mid;
    }
    return unicode_runs[lo] & ((1u << FLAG_BITS) - 1);
}

bool unicode_is(uint32_t cp, unsigned any_of)
{
    return unicode_flags(cp) & any_of;
}

struct case_table {
    const struct case_run *runs;
    int n_runs;
    const struct case_several *several;
    int n_several;
};

/* The first row whose last code point is not before cp. */
static int run_at(const struct case_table *t, uint32_t cp)
{
    int lo = 0, hi = t->n_runs;
    while (lo < hi) {
        int mid = (lo + hi) / 2;
        if (t->runs[mid].last < cp)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

static bool put_mapped(struct buf *out, uint32_t cp, const struct case_table *t)
{
    char bytes[4];
    /* Rows of step 2 may lie around others, so a few rows are looked at. */
    for (int i = run_at(t, cp); i < t->n_runs && i < run_at(t, cp) + 4; i++) {
        const struct case_run *c = &t->runs[i];
        if (c->first <= cp && cp <= c->last && (cp - c->first) % c->step == 0) {
            buf_put(out, bytes, (size_t)utf8_encode((uint32_t)((int32_t)cp + c->delta), bytes));
            return true;
        }
    }
    for (int i = 0; i < t->n_several; i++)
        if (t->several[i].from == cp) {
            for (int k = 0; k < 3 && t->several[i].to[k]; k++)
                buf_put(out, bytes, (size_t)utf8_encode(t->several[i].to[k], bytes));
            return true;
        }
    return false;
}

void unicode_put_case(struct buf *out, uint32_t cp, enum unicode_case to)
{
    const struct case_table lower = {unicode_lower, n_unicode_lower, unicode_lower_several, n_unicode_lower_several};
    const struct case_table upper = {unicode_upper, n_unicode_upper, unicode_upper_several, n_unicode_upper_several};
    const struct case_table title = {unicode_title, n_unicode_title, unicode_title_several, n_unicode_title_several};
    const struct case_table fold = {unicode_fold, n_unicode_fold, unicode_fold_several, n_unicode_fold_several};
    if (cp < 0x80) {
        bool up = cp >= 'A' && cp <= 'Z', low = cp >= 'a' && cp <= 'z';
        bool wants_low = to == CASE_LOWER || to == CASE_FOLD;
        buf_putc(out, (char)(up && wants_low ? cp + 32 : low && !wants_low ? cp - 32 : cp));
        return;
    }
    if ((to == CASE_TITLE && put_mapped(out, cp, &title)) || (to == CASE_FOLD && put_mapped(out, cp, &fold)))
        return;
    if (put_mapped(out, cp, to == CASE_LOWER || to == CASE_FOLD ? &lower : &upper))
        return;
    char bytes[4];
    buf_put(out, bytes, (size_t)utf8_encode(cp, bytes));
}

/* Whether, from byte `at` on in that direction, the first character that is not case-ignorable is cased. */
static bool cased_ahead(const char *s, size_t n, size_t at, int direction)
{
    while (direction > 0 ? at < n : at > 0) {
        size_t from = at;
        if (direction < 0)
            do
                from--;
            while (from > 0 && ((unsigned char)s[from] & 0xC0) == 0x80);
        uint32_t cp;
        int len = utf8_decode(s + from, n - from, &cp);
        if (len <= 0)
            return false;
        if (!unicode_is(cp, UNI_IGNORABLE))
            return unicode_is(cp, UNI_CASED);
        at = direction > 0 ? from + (size_t)len : from;
    }
    return false;
}

void unicode_put_lower_at(struct buf *out, const char *s, size_t n, size_t at, size_t len)
{
    uint32_t cp = 0xFFFD;
    utf8_decode(s + at, n - at, &cp);
    if (cp == 0x3A3 && cased_ahead(s, n, at, -1) && !cased_ahead(s, n, at + len, 1))
        buf_puts(out, "\xCF\x82");
    else
        unicode_put_case(out, cp, CASE_LOWER);
}

void unicode_put_lower(struct buf *out, const char *s, size_t n)
{
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        int got = utf8_decode(s + i, n - i, &cp);
        size_t len = got > 0 ? (size_t)got : 1;
        unicode_put_lower_at(out, s, n, i, len);
        i += len;
    }
}

size_t unicode_skip_space(const char *s, size_t n)
{
    size_t i = 0;
    uint32_t cp;
    while (i < n) {
        int len = utf8_decode(s + i, n - i, &cp);
        if (len <= 0 || !unicode_is(cp, UNI_SPACE))
            break;
        i += (size_t)len;
    }
    return i;
}

size_t unicode_strip_space(const char *s, size_t n)
{
    uint32_t cp;
    while (n) {
        size_t from = n - 1;
        while (from > 0 && ((unsigned char)s[from] & 0xC0) == 0x80)
            from--;
        if (utf8_decode(s + from, n - from, &cp) <= 0 || !unicode_is(cp, UNI_SPACE))
            break;
        n = from;
    }
    return n;
}
