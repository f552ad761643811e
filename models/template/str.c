#include "models/template/str.h"

#include <string.h>

#include "engine/base/utf8.h"
#include "models/template/unicode.h"

bool j_want_string(struct run *r, struct value v, const char *what)
{
    if (v.kind == J_STRING)
        return true;
    if (v.kind == J_UNDEFINED)
        j_fail_undefined(r, v);
    else
        j_fail(r, "%s must be str, not %s", what, j_type_name(v));
    return false;
}

static int decode(const char *s, size_t n, uint32_t *cp)
{
    int len = utf8_decode(s, n, cp);
    return len > 0 ? len : 1;
}

/* ---- strip ---- */

static bool has_char(const struct string *set, const char *c, size_t n)
{
    return memmem(set->data, set->len, c, n) != NULL; /* whole characters only match at character bounds in UTF-8 */
}

struct value j_strip(struct run *r, struct value string, struct value chars, int sides)
{
    const char *s = string.u.s->data;
    size_t from = 0, to = string.u.s->len;
    if (!j_given(chars) || chars.kind == J_NONE) {
        if (sides & SIDE_LEFT)
            from = unicode_skip_space(s, to);
        if (sides & SIDE_RIGHT)
            to = from + unicode_strip_space(s + from, to - from);
        return j_part(r, string, from, to);
    }
    if (!j_want_string(r, chars, "the characters to strip"))
        return chars;
    uint32_t cp;
    while ((sides & SIDE_LEFT) && from < to) {
        size_t len = (size_t)decode(s + from, to - from, &cp);
        if (!j_charge(r, chars.u.s->len / 64) || !has_char(chars.u.s, s + from, len))
            break;
        from += len;
    }
    while ((sides & SIDE_RIGHT) && from < to) {
        size_t at = to - 1;
        while (at > from && ((unsigned char)s[at] & 0xC0) == 0x80)
            at--;
        if (!j_charge(r, chars.u.s->len / 64) || !has_char(chars.u.s, s + at, to - at))
            break;
        to = at;
    }
    return j_part(r, string, from, to);
}

/* ---- replace ---- */

static bool out_fits(struct run *r, const struct buf *b)
{
    if (b->len > r->memory_left)
        j_full(r, "the template takes too much memory");
    return !j_failed(r);
}

static void replace_empty(struct run *r, struct buf *b, const struct string *s, const struct string *new_,
                          int64_t count)
{
    size_t i = 0;
    while (out_fits(r, b)) {
        if (count != 0)
            buf_put(b, new_->data, new_->len);
        count -= count > 0;
        if (i >= s->len)
            break;
        uint32_t cp;
        size_t len = (size_t)decode(s->data + i, s->len - i, &cp);
        buf_put(b, s->data + i, len);
        i += len;
    }
}

struct value j_replace(struct run *r, struct value string, struct value old, struct value new_, int64_t count)
{
    const struct string *s = string.u.s, *o = old.u.s, *n = new_.u.s;
    struct buf b = {0};
    j_charge(r, s->len / 16);
    if (!o->len) {
        replace_empty(r, &b, s, n, count);
    } else {
        const char *at = s->data, *end = s->data + s->len, *hit;
        while (count-- != 0 && (hit = memmem(at, (size_t)(end - at), o->data, o->len)) && out_fits(r, &b)) {
            buf_put(&b, at, (size_t)(hit - at));
            buf_put(&b, n->data, n->len);
            at = hit + o->len;
        }
        if (at == s->data)
            return string;
        buf_put(&b, at, (size_t)(end - at));
    }
    struct value v = j_buf(r, &b);
    v.markup = string.markup;
    return v;
}

/* ---- case ---- */

static void put_changed(struct buf *b, const struct string *s, enum change how)
{
    bool after_cased = false;
    for (size_t i = 0; i < s->len;) {
        uint32_t cp = 0xFFFD;
        size_t len = (size_t)decode(s->data + i, s->len - i, &cp);
        bool first = how == CHANGE_TITLE ? !after_cased : i == 0;
        if (how == CHANGE_UPPER || how == CHANGE_FOLD)
            unicode_put_case(b, cp, how == CHANGE_UPPER ? CASE_UPPER : CASE_FOLD);
        else if (how == CHANGE_SWAP ? unicode_is(cp, UNI_LOWER) : first)
            unicode_put_case(b, cp, how == CHANGE_SWAP ? CASE_UPPER : CASE_TITLE);
        else if (how == CHANGE_SWAP && !unicode_is(cp, UNI_UPPER))
            buf_put(b, s->data + i, len);
        else
            unicode_put_lower_at(b, s->data, s->len, i, len);
        after_cased = unicode_is(cp, UNI_CASED);
        i += len;
    }
}

struct value j_change_case(struct run *r, struct value string, enum change how)
{
    struct buf b = {0};
    j_charge(r, string.u.s->len / 8);
    if (how == CHANGE_LOWER)
        unicode_put_lower(&b, string.u.s->data, string.u.s->len);
    else
        put_changed(&b, string.u.s, how);
    struct value v = j_buf(r, &b);
    v.markup = string.markup;
    return v;
}

struct value j_lowered(struct run *r, struct value v)
{
    return v.kind == J_STRING ? j_change_case(r, v, CHANGE_LOWER) : v;
}

/* ---- splitting and joining ---- */

/* Length of the line end at s, 0 for none. */
static size_t line_end(const char *s, size_t n)
{
    static const char *const ends[] = {"\r\n", "\n",   "\r",       "\v",           "\f",          "\x1c",
                                       "\x1d", "\x1e", "\xC2\x85", "\xE2\x80\xA8", "\xE2\x80\xA9"};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (strlen(ends[i]) <= n && memcmp(s, ends[i], strlen(ends[i])) == 0)
            return strlen(ends[i]);
    return 0;
}

struct value j_split_lines(struct run *r, struct value string, bool keep_ends)
{
    struct items all = {0};
    const struct string *s = string.u.s;
    size_t from = 0;
    j_charge(r, s->len / 16);
    for (size_t i = 0; i < s->len && !j_failed(r);) {
        size_t end = line_end(s->data + i, s->len - i);
        i += end ? end : 1;
        if (end) {
            j_push(r, &all, j_part(r, string, from, keep_ends ? i : i - end));
            from = i;
        }
    }
    if (from < s->len)
        j_push(r, &all, j_part(r, string, from, s->len));
    return j_finish(r, &all, J_LIST);
}

static void split_space(struct run *r, struct items *all, struct value string, int64_t max)
{
    const struct string *s = string.u.s;
    size_t i = unicode_skip_space(s->data, s->len);
    while (i < s->len && !j_failed(r)) {
        size_t from = i;
        uint32_t cp;
        if (max-- == 0) {
            j_push(r, all, j_part(r, string, from, s->len));
            return;
        }
        for (; i < s->len; i += (size_t)decode(s->data + i, s->len - i, &cp)) {
            decode(s->data + i, s->len - i, &cp);
            if (unicode_is(cp, UNI_SPACE))
                break;
        }
        j_push(r, all, j_part(r, string, from, i));
        i += unicode_skip_space(s->data + i, s->len - i);
    }
}

static void split_space_right(struct run *r, struct items *all, struct value string, int64_t max)
{
    const struct string *s = string.u.s;
    size_t to = unicode_strip_space(s->data, s->len);
    while (to && !j_failed(r)) {
        size_t from = to;
        uint32_t cp;
        if (max-- == 0) {
            j_push(r, all, j_part(r, string, 0, to));
            return;
        }
        while (from) {
            size_t at = from - 1;
            while (at && ((unsigned char)s->data[at] & 0xC0) == 0x80)
                at--;
            decode(s->data + at, to - at, &cp);
            if (unicode_is(cp, UNI_SPACE))
                break;
            from = at;
        }
        j_push(r, all, j_part(r, string, from, to));
        to = unicode_strip_space(s->data, from);
    }
}

static void split_text(struct run *r, struct items *all, struct value string, const struct string *sep, int64_t max)
{
    size_t from = 0;
    const char *s = string.u.s->data, *hit;
    while (max-- != 0 && !j_failed(r) && (hit = memmem(s + from, string.u.s->len - from, sep->data, sep->len))) {
        j_push(r, all, j_part(r, string, from, (size_t)(hit - s)));
        from = (size_t)(hit - s) + sep->len;
    }
    j_push(r, all, j_part(r, string, from, string.u.s->len));
}

static void split_text_right(struct run *r, struct items *all, struct value string, const struct string *sep,
                             int64_t max)
{
    size_t to = string.u.s->len;
    const char *s = string.u.s->data;
    j_charge(r, to / 16 * (sep->len / 16 + 1));
    for (size_t at = to; max != 0 && at >= sep->len && !j_failed(r);) {
        if (at <= to && memcmp(s + at - sep->len, sep->data, sep->len) == 0) {
            j_push(r, all, j_part(r, string, at, to));
            to = at -= sep->len;
            max--;
        } else {
            at--;
        }
    }
    j_push(r, all, j_part(r, string, 0, to));
}

static void reverse_items(struct items *all)
{
    for (size_t i = 0; i < all->n / 2; i++) {
        struct value v = all->at[i];
        all->at[i] = all->at[all->n - 1 - i];
        all->at[all->n - 1 - i] = v;
    }
}

struct value j_split(struct run *r, struct value string, struct value separator, int64_t max, bool from_right)
{
    struct items all = {0};
    j_charge(r, string.u.s->len / 16);
    if (!j_given(separator) || separator.kind == J_NONE) {
        from_right ? split_space_right(r, &all, string, max) : split_space(r, &all, string, max);
    } else {
        if (!j_want_string(r, separator, "the separator"))
            return separator;
        if (!separator.u.s->len)
            return j_fail(r, "empty separator");
        from_right ? split_text_right(r, &all, string, separator.u.s, max)
                   : split_text(r, &all, string, separator.u.s, max);
    }
    if (from_right)
        reverse_items(&all);
    return j_finish(r, &all, J_LIST);
}

struct value j_join(struct run *r, struct value separator, struct value items, bool strict)
{
    struct value iter = j_iter(r, items), each;
    struct buf b = {0};
    bool first = true;
    while (j_next(r, iter, &each) && out_fits(r, &b)) {
        if (strict && !separator.markup && each.kind != J_STRING)
            j_fail(r, "join() wants strings, found %s", j_type_name(each));
        if (!first)
            buf_put(&b, separator.u.s->data, separator.u.s->len);
        first = false;
        if (separator.markup)
            each = j_escape(r, each);
        j_put_str(r, &b, each);
    }
    struct value v = j_buf(r, &b);
    v.markup = separator.markup;
    return v;
}

struct value j_pad(struct run *r, struct value string, int64_t width, struct value fill, int where)
{
    int64_t have = (int64_t)j_chars(string), pad = width - have;
    if (fill.kind != J_STRING || j_chars(fill) != 1)
        return j_fail(r, "the fill character must be exactly one character long");
    if (pad <= 0)
        return string;
    int64_t left = where < 0 ? 0 : where > 0 ? pad : pad / 2 + (pad & width & 1);
    if (string.markup)
        fill = j_escape(r, fill);
    struct value v = j_concat(r, j_concat(r, j_repeat(r, fill, left), string), j_repeat(r, fill, pad - left));
    v.markup = string.markup;
    return v;
}
