/* The methods of str. */
#include <string.h>

#include "engine/base/utf8.h"
#include "models/template/str.h"
#include "models/template/unicode.h"

#define METHOD(name)                                                                                                   \
    static struct value name(struct run *r, struct value self, const struct value *a, const struct args *raw)
#define UNUSED (void)r, (void)a, (void)raw

METHOD(m_strip)
{
    UNUSED;
    return j_strip(r, self, a[0], SIDE_LEFT | SIDE_RIGHT);
}

METHOD(m_lstrip)
{
    UNUSED;
    return j_strip(r, self, a[0], SIDE_LEFT);
}

METHOD(m_rstrip)
{
    UNUSED;
    return j_strip(r, self, a[0], SIDE_RIGHT);
}

METHOD(m_lower)
{
    UNUSED;
    return j_change_case(r, self, CHANGE_LOWER);
}

METHOD(m_upper)
{
    UNUSED;
    return j_change_case(r, self, CHANGE_UPPER);
}

METHOD(m_casefold)
{
    UNUSED;
    return j_change_case(r, self, CHANGE_FOLD);
}

METHOD(m_swapcase)
{
    UNUSED;
    return j_change_case(r, self, CHANGE_SWAP);
}

METHOD(m_title)
{
    UNUSED;
    return j_change_case(r, self, CHANGE_TITLE);
}

METHOD(m_capitalize)
{
    UNUSED;
    return j_change_case(r, self, CHANGE_CAPITAL);
}

METHOD(m_format)
{
    UNUSED;
    return j_format(r, self, raw);
}

static bool optional_int(struct run *r, struct value v, int64_t if_missing, int64_t *out)
{
    *out = if_missing;
    return !j_given(v) || j_index(r, v, out);
}

METHOD(m_split)
{
    UNUSED;
    int64_t max;
    return optional_int(r, a[1], -1, &max) ? j_split(r, self, a[0], max, false) : a[1];
}

METHOD(m_rsplit)
{
    UNUSED;
    int64_t max;
    return optional_int(r, a[1], -1, &max) ? j_split(r, self, a[0], max, true) : a[1];
}

METHOD(m_splitlines)
{
    UNUSED;
    return j_split_lines(r, self, j_given(a[0]) && j_true(r, a[0]));
}

METHOD(m_join)
{
    UNUSED;
    return j_join(r, self, a[0], true);
}

METHOD(m_replace)
{
    UNUSED;
    int64_t count;
    if (!j_want_string(r, a[0], "replace() argument 1") || !j_want_string(r, a[1], "replace() argument 2") ||
        !optional_int(r, a[2], -1, &count))
        return self;
    return j_replace(r, self, a[0], self.markup ? j_escape(r, a[1]) : a[1], count);
}

/* ---- searching ---- */

struct window {
    size_t from, to; /* bytes */
    size_t first;    /* the character at from */
    bool empty;      /* start lies behind end: nothing is found there, not even "" */
};

/* start? and end? as Python's slices understand them. */
static bool window(struct run *r, struct value self, struct value start, struct value end, struct window *w)
{
    int64_t n = (int64_t)j_chars(self), i = 0, k = n;
    if ((j_given(start) && start.kind != J_NONE && !j_index(r, start, &i)) ||
        (j_given(end) && end.kind != J_NONE && !j_index(r, end, &k)))
        return false;
    i = i < 0 ? (i < -n ? 0 : i + n) : i;
    k = k < 0 ? (k < -n ? 0 : k + n) : k > n ? n : k;
    w->empty = i > k;
    i = i > n ? n : i;
    w->first = (size_t)i;
    w->from = j_char_offset(self, (size_t)i);
    w->to = j_char_offset(self, (size_t)k);
    return j_charge(r, self.u.s->len / 64);
}

static size_t count_chars(const char *s, size_t n)
{
    size_t chars = 0;
    for (size_t i = 0; i < n; i++)
        chars += ((unsigned char)s[i] & 0xC0) != 0x80;
    return chars;
}

static const char *last_match(const char *s, size_t n, const struct string *what)
{
    for (size_t i = n >= what->len ? n - what->len + 1 : 0; i-- > 0;)
        if (memcmp(s + i, what->data, what->len) == 0 && (what->len || ((unsigned char)s[i] & 0xC0) != 0x80 || i == n))
            return s + i;
    return NULL;
}

/* The character index of a[0] in self, -1 when it is not there; false: failed. */
static bool find(struct run *r, struct value self, const struct value *a, bool last, int64_t *at)
{
    struct window w;
    *at = -1;
    if (!j_want_string(r, a[0], "the text to find") || !window(r, self, a[1], a[2], &w))
        return false;
    if (w.empty)
        return true;
    const char *s = self.u.s->data + w.from;
    size_t n = w.to - w.from;
    j_charge(r, last ? n / 16 * (a[0].u.s->len / 16 + 1) : 0);
    const char *hit = last            ? last_match(s, n, a[0].u.s)
                      : a[0].u.s->len ? memmem(s, n, a[0].u.s->data, a[0].u.s->len)
                                      : s;
    if (hit)
        *at = (int64_t)(w.first + count_chars(s, (size_t)(hit - s)));
    return !j_failed(r);
}

METHOD(m_find)
{
    UNUSED;
    int64_t at;
    return find(r, self, a, false, &at) ? j_int(at) : self;
}

METHOD(m_rfind)
{
    UNUSED;
    int64_t at;
    return find(r, self, a, true, &at) ? j_int(at) : self;
}

METHOD(m_index)
{
    UNUSED;
    int64_t at;
    return !find(r, self, a, false, &at) ? self : at < 0 ? j_fail(r, "substring not found") : j_int(at);
}

METHOD(m_rindex)
{
    UNUSED;
    int64_t at;
    return !find(r, self, a, true, &at) ? self : at < 0 ? j_fail(r, "substring not found") : j_int(at);
}

METHOD(m_count)
{
    UNUSED;
    struct window w;
    int64_t n = 0;
    if (!j_want_string(r, a[0], "the text to count") || !window(r, self, a[1], a[2], &w))
        return self;
    const char *s = self.u.s->data + w.from, *end = self.u.s->data + w.to, *hit;
    if (w.empty)
        return j_int(0);
    if (!a[0].u.s->len)
        return j_int((int64_t)count_chars(s, (size_t)(end - s)) + 1);
    while ((hit = memmem(s, (size_t)(end - s), a[0].u.s->data, a[0].u.s->len))) {
        n++;
        s = hit + a[0].u.s->len;
    }
    return j_int(n);
}

static bool fits(const struct window *w, struct value self, const struct string *with, bool at_end)
{
    size_t n = w->to - w->from;
    const char *s = self.u.s->data + (at_end ? w->to - with->len : w->from);
    return !w->empty && with->len <= n && memcmp(s, with->data, with->len) == 0;
}

static struct value starts_or_ends(struct run *r, struct value self, const struct value *a, bool at_end)
{
    struct window w;
    if (!window(r, self, a[1], a[2], &w))
        return self;
    if (a[0].kind != J_TUPLE)
        return j_want_string(r, a[0], "the prefix or suffix") ? j_bool(fits(&w, self, a[0].u.s, at_end)) : self;
    for (size_t i = 0; i < a[0].u.list->n; i++) {
        struct value one = a[0].u.list->items[i];
        if (!j_want_string(r, one, "the prefix or suffix") || fits(&w, self, one.u.s, at_end))
            return j_bool(true);
    }
    return j_bool(false);
}

METHOD(m_startswith)
{
    UNUSED;
    return starts_or_ends(r, self, a, false);
}

METHOD(m_endswith)
{
    UNUSED;
    return starts_or_ends(r, self, a, true);
}

METHOD(m_removeprefix)
{
    UNUSED;
    const struct window all = {0, self.u.s->len, 0, false};
    if (!j_want_string(r, a[0], "removeprefix() argument"))
        return self;
    return fits(&all, self, a[0].u.s, false) ? j_part(r, self, a[0].u.s->len, self.u.s->len) : self;
}

METHOD(m_removesuffix)
{
    UNUSED;
    const struct window all = {0, self.u.s->len, 0, false};
    if (!j_want_string(r, a[0], "removesuffix() argument"))
        return self;
    return a[0].u.s->len && fits(&all, self, a[0].u.s, true) ? j_part(r, self, 0, self.u.s->len - a[0].u.s->len) : self;
}

static struct value partition(struct run *r, struct value self, struct value sep, bool last)
{
    if (!j_want_string(r, sep, "the separator"))
        return self;
    if (!sep.u.s->len)
        return j_fail(r, "empty separator");
    const char *s = self.u.s->data;
    size_t n = self.u.s->len;
    j_charge(r, last ? n / 16 * (sep.u.s->len / 16 + 1) : n / 64);
    const char *hit = last ? last_match(s, n, sep.u.s) : memmem(s, n, sep.u.s->data, sep.u.s->len);
    struct value v = j_array(r, J_TUPLE, 3), none = j_part(r, self, 0, 0);
    if (j_failed(r))
        return v;
    size_t at = hit ? (size_t)(hit - s) : 0;
    struct value *out = v.u.list->items;
    out[0] = hit ? j_part(r, self, 0, at) : last ? none : self;
    out[1] = hit ? j_part(r, self, at, at + sep.u.s->len) : none;
    out[2] = hit ? j_part(r, self, at + sep.u.s->len, n) : last ? self : none;
    return v;
}

METHOD(m_partition)
{
    UNUSED;
    return partition(r, self, a[0], false);
}

METHOD(m_rpartition)
{
    UNUSED;
    return partition(r, self, a[0], true);
}

/* ---- padding ---- */

static struct value pad(struct run *r, struct value self, const struct value *a, int where)
{
    int64_t width;
    if (!j_index(r, a[0], &width))
        return self;
    return j_pad(r, self, width, j_given(a[1]) ? a[1] : j_cstring(r, " "), where);
}

METHOD(m_ljust)
{
    UNUSED;
    return pad(r, self, a, -1);
}

METHOD(m_center)
{
    UNUSED;
    return pad(r, self, a, 0);
}

METHOD(m_rjust)
{
    UNUSED;
    return pad(r, self, a, 1);
}

METHOD(m_zfill)
{
    UNUSED;
    int64_t width;
    if (!j_index(r, a[0], &width))
        return self;
    const struct string *s = self.u.s;
    size_t sign = s->len && (s->data[0] == '-' || s->data[0] == '+');
    struct value digits = j_part(r, self, sign, s->len);
    if (j_failed(r))
        return digits;
    return j_concat(r, j_part(r, self, 0, sign), j_pad(r, digits, width - (int64_t)sign, j_cstring(r, "0"), 1));
}

METHOD(m_expandtabs)
{
    UNUSED;
    int64_t size, column = 0;
    if (!optional_int(r, a[0], 8, &size))
        return self;
    struct buf b = {0};
    for (size_t i = 0; i < self.u.s->len && j_charge(r, i % 16 == 0); i++) {
        char c = self.u.s->data[i];
        if (c == '\t') {
            int64_t n = size > 0 ? size - column % size : 0;
            if (n > (1 << 20) || b.len > r->memory_left) {
                j_full(r, "the template takes too much memory");
                break;
            }
            for (column += n; n > 0; n--)
                buf_putc(&b, ' ');
            continue;
        }
        buf_putc(&b, c);
        column = c == '\n' || c == '\r' ? 0 : column + (((unsigned char)c & 0xC0) != 0x80);
    }
    return j_buf(r, &b);
}

/* ---- questions ---- */

static struct value all_are(struct run *r, struct value self, unsigned any_of)
{
    const struct string *s = self.u.s;
    uint32_t cp;
    j_charge(r, s->len / 16);
    for (size_t i = 0; i < s->len;) {
        int len = utf8_decode(s->data + i, s->len - i, &cp);
        if (len <= 0 || !unicode_is(cp, any_of))
            return j_bool(false);
        i += (size_t)len;
    }
    return j_bool(s->len > 0);
}

METHOD(m_isalpha)
{
    UNUSED;
    return all_are(r, self, UNI_ALPHA);
}

METHOD(m_isdigit)
{
    UNUSED;
    return all_are(r, self, UNI_DIGIT);
}

METHOD(m_isdecimal)
{
    UNUSED;
    return all_are(r, self, UNI_DECIMAL);
}

METHOD(m_isnumeric)
{
    UNUSED;
    return all_are(r, self, UNI_NUMERIC);
}

METHOD(m_isalnum)
{
    UNUSED;
    return all_are(r, self, UNI_ALNUM);
}

METHOD(m_isspace)
{
    UNUSED;
    return all_are(r, self, UNI_SPACE);
}

METHOD(m_isprintable)
{
    UNUSED;
    return self.u.s->len ? all_are(r, self, UNI_PRINTABLE) : j_bool(true);
}

METHOD(m_isascii)
{
    UNUSED;
    return j_bool(j_chars(self) == self.u.s->len);
}

METHOD(m_isidentifier)
{
    UNUSED;
    uint32_t cp = 0;
    const struct string *s = self.u.s;
    if (!s->len || utf8_decode(s->data, s->len, &cp) <= 0)
        return j_bool(false);
    bool starts = cp == '_' || unicode_is(cp, UNI_ALPHA);
    return starts ? all_are(r, self, UNI_WORD) : j_bool(false);
}

/* islower and isupper: some cased character, and none of the other case. */
static struct value one_case(struct run *r, struct value self, unsigned wanted)
{
    const struct string *s = self.u.s;
    bool some = false;
    uint32_t cp = 0;
    j_charge(r, s->len / 16);
    for (size_t i = 0; i < s->len;) {
        int len = utf8_decode(s->data + i, s->len - i, &cp);
        unsigned f = unicode_flags(cp);
        if (f & (UNI_CASED & ~wanted))
            return j_bool(false);
        some = some || (f & wanted);
        i += (size_t)(len > 0 ? len : 1);
    }
    return j_bool(some);
}

METHOD(m_islower)
{
    UNUSED;
    return one_case(r, self, UNI_LOWER);
}

METHOD(m_isupper)
{
    UNUSED;
    return one_case(r, self, UNI_UPPER);
}

METHOD(m_istitle)
{
    UNUSED;
    const struct string *s = self.u.s;
    bool some = false, after_cased = false;
    uint32_t cp = 0;
    j_charge(r, s->len / 16);
    for (size_t i = 0; i < s->len;) {
        int len = utf8_decode(s->data + i, s->len - i, &cp);
        unsigned f = unicode_flags(cp);
        if ((f & (UNI_UPPER | UNI_TITLE) && after_cased) || (f & UNI_LOWER && !after_cased))
            return j_bool(false);
        after_cased = f & UNI_CASED;
        some = some || after_cased;
        i += (size_t)(len > 0 ? len : 1);
    }
    return j_bool(some);
}

static const struct builtin text_methods[] = {
    {"capitalize", "/", m_capitalize},
    {"casefold", "/", m_casefold},
    {"center", "/width fill?", m_center},
    {"count", "/text start? end?", m_count},
    {"endswith", "/suffix start? end?", m_endswith},
    {"expandtabs", "tabsize?", m_expandtabs},
    {"find", "/text start? end?", m_find},
    {"format", "...", m_format},
    {"index", "/text start? end?", m_index},
    {"isalnum", "/", m_isalnum},
    {"isalpha", "/", m_isalpha},
    {"isascii", "/", m_isascii},
    {"isdecimal", "/", m_isdecimal},
    {"isdigit", "/", m_isdigit},
    {"isidentifier", "/", m_isidentifier},
    {"islower", "/", m_islower},
    {"isnumeric", "/", m_isnumeric},
    {"isprintable", "/", m_isprintable},
    {"isspace", "/", m_isspace},
    {"istitle", "/", m_istitle},
    {"isupper", "/", m_isupper},
    {"join", "/items", m_join},
    {"ljust", "/width fill?", m_ljust},
    {"lower", "/", m_lower},
    {"lstrip", "/chars?", m_lstrip},
    {"partition", "/separator", m_partition},
    {"removeprefix", "/prefix", m_removeprefix},
    {"removesuffix", "/suffix", m_removesuffix},
    {"replace", "/old new count?", m_replace},
    {"rfind", "/text start? end?", m_rfind},
    {"rindex", "/text start? end?", m_rindex},
    {"rjust", "/width fill?", m_rjust},
    {"rpartition", "/separator", m_rpartition},
    {"rsplit", "sep? maxsplit?", m_rsplit},
    {"rstrip", "/chars?", m_rstrip},
    {"split", "sep? maxsplit?", m_split},
    {"splitlines", "keepends?", m_splitlines},
    {"startswith", "/prefix start? end?", m_startswith},
    {"strip", "/chars?", m_strip},
    {"swapcase", "/", m_swapcase},
    {"title", "/", m_title},
    {"upper", "/", m_upper},
    {"zfill", "/width", m_zfill},
};

const struct builtin *text_method_find(const char *name, size_t n)
{
    return builtin_find(text_methods, sizeof text_methods / sizeof *text_methods, name, n);
}
