/* Filters that make text. */
#include <string.h>

#include "engine/base/utf8.h"
#include "models/template/str.h"
#include "models/template/unicode.h"

#define FILTER(name)                                                                                                   \
    static struct value name(struct run *r, struct value self, const struct value *a, const struct args *raw)
#define UNUSED (void)r, (void)self, (void)a, (void)raw

static struct value text(struct run *r, struct value v)
{
    struct value s = j_soft_str(r, v);
    return s.kind == J_STRING ? s : j_cstring(r, "");
}

FILTER(f_upper)
{
    UNUSED;
    return j_change_case(r, text(r, self), CHANGE_UPPER);
}

FILTER(f_lower)
{
    UNUSED;
    return j_change_case(r, text(r, self), CHANGE_LOWER);
}

FILTER(f_capitalize)
{
    UNUSED;
    return j_change_case(r, text(r, self), CHANGE_CAPITAL);
}

FILTER(f_trim)
{
    UNUSED;
    return j_strip(r, text(r, self), a[0], SIDE_LEFT | SIDE_RIGHT);
}

FILTER(f_string)
{
    UNUSED;
    return j_soft_str(r, self);
}

FILTER(f_escape)
{
    UNUSED;
    return j_escape(r, self);
}

FILTER(f_forceescape)
{
    UNUSED;
    return j_escape(r, j_str(r, self));
}

FILTER(f_safe)
{
    UNUSED;
    struct value v = text(r, self);
    v.markup = true;
    return v;
}

static bool splits_words(uint32_t cp)
{
    return cp == '-' || cp == '(' || cp == '{' || cp == '[' || cp == '<' || unicode_is(cp, UNI_SPACE);
}

/* jinja2's own title: a word begins behind white space, '-', and opening brackets; no lowering across words.
 */
FILTER(f_title)
{
    UNUSED;
    struct value v = text(r, self);
    const struct string *s = v.u.s;
    struct buf b = {0};
    j_charge(r, s->len / 8);
    for (size_t i = 0; i < s->len;) {
        uint32_t cp = 0xFFFD;
        size_t len = (size_t)utf8_decode(s->data + i, s->len - i, &cp);
        bool split = splits_words(cp);
        unicode_put_case(&b, cp, CASE_UPPER);
        size_t from = i += len;
        while (!split && i < s->len) {
            len = (size_t)utf8_decode(s->data + i, s->len - i, &cp);
            if (splits_words(cp))
                break;
            i += len;
        }
        unicode_put_lower(&b, s->data + from, i - from);
    }
    return j_buf(r, &b);
}

FILTER(f_replace)
{
    UNUSED;
    int64_t count = -1;
    if (j_given(a[2]) && a[2].kind != J_NONE && !j_index(r, a[2], &count))
        return self;
    struct value s = j_str(r, self), old = j_str(r, a[0]), new_ = j_str(r, a[1]);
    return j_failed(r) ? self : j_replace(r, s, old, new_, count);
}

FILTER(f_center)
{
    UNUSED;
    int64_t width = 80;
    if (j_given(a[0]) && !j_index(r, a[0], &width))
        return self;
    return j_pad(r, text(r, self), width, j_cstring(r, " "), 0);
}

FILTER(f_format)
{
    UNUSED;
    struct value all;
    if (raw->n && raw->n_kw)
        return j_fail(r, "can't handle positional and keyword arguments at the same time");
    if (raw->n_kw) {
        all = j_dict(r);
        for (size_t i = 0; i < raw->n_kw && !j_failed(r); i++)
            j_dict_set(r, all.u.dict, raw->kw[i].name, raw->kw[i].value);
    } else {
        all = j_array(r, J_TUPLE, raw->n);
        if (raw->n && !j_failed(r))
            memcpy(all.u.list->items, raw->at, raw->n * sizeof *raw->at);
    }
    return j_failed(r) ? self : j_percent(r, text(r, self), all);
}

FILTER(f_indent)
{
    UNUSED;
    bool first = j_given(a[1]) && j_true(r, a[1]), blank = j_given(a[2]) && j_true(r, a[2]);
    struct value by = a[0];
    int64_t width = 4;
    if (!j_want_string(r, self, "the text to indent"))
        return self;
    if (by.kind != J_STRING) {
        if (j_given(by) && !j_index(r, by, &width))
            return self;
        by = j_repeat(r, j_cstring(r, " "), width);
    }
    /* jinja2 adds a newline before it splits, so a newline at the end gives an empty last line. */
    struct value lines = j_split_lines(r, j_concat(r, self, j_cstring(r, "\n")), false);
    struct buf b = {0};
    for (size_t i = 0; !j_failed(r) && i < lines.u.list->n && b.len <= r->memory_left; i++) {
        const struct string *line = lines.u.list->items[i].u.s;
        if (i)
            buf_putc(&b, '\n');
        if (i ? blank || line->len : first)
            buf_put(&b, by.u.s->data, by.u.s->len);
        buf_put(&b, line->data, line->len);
    }
    struct value v = j_buf(r, &b);
    v.markup = self.markup;
    return v;
}

FILTER(f_truncate)
{
    UNUSED;
    int64_t length = 255, leeway = 5;
    struct value end = j_given(a[2]) ? a[2] : j_cstring(r, "...");
    size_t n;
    if ((j_given(a[0]) && !j_index(r, a[0], &length)) || !j_want_string(r, end, "truncate's end") ||
        (j_given(a[3]) && a[3].kind != J_NONE && !j_index(r, a[3], &leeway)) || !j_length(r, self, &n))
        return self;
    int64_t keep = length - (int64_t)j_chars(end);
    if (keep < 0 || leeway < 0)
        return j_fail(r, "truncate() wants a length of at least %zu and no negative leeway", j_chars(end));
    if ((int64_t)n <= length + leeway)
        return self;
    if (!j_want_string(r, self, "the text to truncate"))
        return self;
    struct value head = j_part(r, self, 0, j_char_offset(self, (size_t)keep));
    if (j_failed(r) || (j_given(a[1]) && j_true(r, a[1])))
        return j_add(r, head, end);
    const char *space = memrchr(head.u.s->data, ' ', head.u.s->len);
    if (space)
        head = j_part(r, head, 0, (size_t)(space - head.u.s->data));
    return j_add(r, head, end);
}

FILTER(f_wordcount)
{
    UNUSED;
    struct value v = text(r, self);
    int64_t words = 0;
    bool inside = false;
    uint32_t cp;
    j_charge(r, v.u.s->len / 8);
    for (size_t i = 0; i < v.u.s->len;) {
        int len = utf8_decode(v.u.s->data + i, v.u.s->len - i, &cp);
        bool word = cp == '_' || unicode_is(cp, UNI_ALNUM);
        words += word && !inside;
        inside = word;
        i += (size_t)(len > 0 ? len : 1);
    }
    return j_int(words);
}

/* ---- URLs and markup ---- */

static void put_quoted(struct run *r, struct buf *b, struct value v, bool query)
{
    struct value s = j_str(r, v);
    static const char plain[] = "_.-~";
    if (s.kind != J_STRING)
        return;
    j_charge(r, s.u.s->len / 8);
    for (size_t i = 0; i < s.u.s->len; i++) {
        unsigned char c = (unsigned char)s.u.s->data[i];
        bool keep = (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z') || (c && strchr(plain, c));
        if (keep || (c == '/' && !query))
            buf_putc(b, (char)c);
        else if (c == ' ' && query)
            buf_putc(b, '+');
        else
            buf_printf(b, "%%%02X", c);
    }
}

FILTER(f_urlencode)
{
    UNUSED;
    struct buf b = {0};
    if (self.kind == J_STRING || !j_iterable(self)) {
        put_quoted(r, &b, self, false);
        return j_buf(r, &b);
    }
    struct view items = {self.u.dict, VIEW_ITEMS};
    struct value pairs = self.kind == J_DICT ? (struct value){.kind = J_VIEW, .u.view = &items} : self;
    struct value iter = j_iter(r, pairs), each;
    while (j_next(r, iter, &each)) {
        struct value pair = j_list(r, each, J_LIST);
        if (j_failed(r) || pair.u.list->n != 2) {
            j_fail(r, "urlencode wants pairs");
            break;
        }
        if (b.len)
            buf_putc(&b, '&');
        put_quoted(r, &b, pair.u.list->items[0], true);
        buf_putc(&b, '=');
        put_quoted(r, &b, pair.u.list->items[1], true);
    }
    return j_buf(r, &b);
}

static bool put_attribute(struct run *r, struct buf *b, struct value key, struct value v)
{
    if (!j_want_string(r, key, "an attribute's name"))
        return false;
    for (size_t i = 0; i < key.u.s->len; i++)
        if (strchr(" \t\n\r\f\v/>=", key.u.s->data[i])) {
            j_fail(r, "invalid character in an attribute's name");
            return false;
        }
    struct value k = j_escape(r, key), e = j_escape(r, v);
    if (j_failed(r))
        return false;
    if (b->len)
        buf_putc(b, ' ');
    buf_put(b, k.u.s->data, k.u.s->len);
    buf_puts(b, "=\"");
    buf_put(b, e.u.s->data, e.u.s->len);
    buf_putc(b, '"');
    return true;
}

FILTER(f_xmlattr)
{
    UNUSED;
    struct buf b = {0};
    if (self.kind != J_DICT)
        return self.kind == J_UNDEFINED ? j_fail_undefined(r, self) : j_fail(r, "xmlattr wants a mapping");
    for (size_t i = 0; i < self.u.dict->n; i++) {
        const struct entry *e = &self.u.dict->entries[i];
        if (e->value.kind != J_NONE && e->value.kind != J_UNDEFINED && !put_attribute(r, &b, e->key, e->value))
            break;
    }
    struct value v = j_buf(r, &b);
    bool space = !j_given(a[0]) || j_true(r, a[0]);
    return space && v.kind == J_STRING && v.u.s->len ? j_concat(r, j_cstring(r, " "), v) : v;
}

const struct builtin text_filters[] = {
    {"capitalize", "", f_capitalize},
    {"center", "width?", f_center},
    {"e", "/", f_escape},
    {"escape", "/", f_escape},
    {"forceescape", "", f_forceescape},
    {"format", "...", f_format},
    {"indent", "width? first? blank?", f_indent},
    {"lower", "", f_lower},
    {"replace", "old new count?", f_replace},
    {"safe", "", f_safe},
    {"string", "", f_string},
    {"title", "", f_title},
    {"tojson", "ensure_ascii? indent? separators? sort_keys?", j_tojson},
    {"trim", "chars?", f_trim},
    {"truncate", "length? killwords? end? leeway?", f_truncate},
    {"upper", "", f_upper},
    {"urlencode", "", f_urlencode},
    {"wordcount", "", f_wordcount},
    {"xmlattr", "autospace?", f_xmlattr},
    {NULL, NULL, NULL},
};
