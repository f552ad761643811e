/* str() and repr() of values, and HTML escaping. */
#include <string.h>

#include "engine/base/utf8.h"
#include "models/template/iter.h"
#include "models/template/unicode.h"
#include "models/template/value.h"

static void put_repr_char(struct buf *out, uint32_t cp, char quote)
{
    static const char from[] = "\n\r\t\\", to[] = "nrt\\";
    const char *p = cp && cp < 0x80 ? strchr(from, (int)cp) : NULL;
    if (p || cp == (uint32_t)quote) {
        buf_putc(out, '\\');
        buf_putc(out, p ? to[p - from] : quote);
    } else if (unicode_is(cp, UNI_PRINTABLE)) {
        char bytes[4];
        buf_put(out, bytes, (size_t)utf8_encode(cp, bytes));
    } else {
        buf_printf(out, cp < 0x100 ? "\\x%02x" : cp < 0x10000 ? "\\u%04x" : "\\U%08x", (unsigned)cp);
    }
}

static void put_quoted(struct buf *out, const struct string *s)
{
    char quote = memchr(s->data, '\'', s->len) && !memchr(s->data, '"', s->len) ? '"' : '\'';
    buf_putc(out, quote);
    for (size_t i = 0; i < s->len;) {
        uint32_t cp = 0xFFFD;
        int len = utf8_decode(s->data + i, s->len - i, &cp);
        put_repr_char(out, cp, quote);
        i += (size_t)(len > 0 ? len : 1);
    }
    buf_putc(out, quote);
}

static void put_items(struct run *r, struct buf *out, struct value v, const char *brackets)
{
    const struct array *a = v.u.list;
    buf_putc(out, brackets[0]);
    for (size_t i = 0; i < a->n && !j_failed(r); i++) {
        if (i)
            buf_puts(out, ", ");
        j_put_repr(r, out, a->items[i]);
    }
    if (v.kind == J_TUPLE && a->n == 1)
        buf_putc(out, ',');
    buf_putc(out, brackets[1]);
}

static void put_dict(struct run *r, struct buf *out, const struct dict *d)
{
    buf_putc(out, '{');
    for (size_t i = 0; i < d->n && !j_failed(r); i++) {
        if (i)
            buf_puts(out, ", ");
        j_put_repr(r, out, d->entries[i].key);
        buf_puts(out, ": ");
        j_put_repr(r, out, d->entries[i].value);
    }
    buf_putc(out, '}');
}

static void put_view(struct run *r, struct buf *out, struct value v)
{
    static const char *const names[] = {"dict_keys", "dict_values", "dict_items"};
    buf_puts(out, names[v.u.view->of]);
    buf_putc(out, '(');
    put_items(r, out, j_list(r, v, J_LIST), "[]");
    buf_putc(out, ')');
}

static void put_range(struct buf *out, const struct range *g)
{
    buf_printf(out, "range(%lld, %lld", (long long)g->start, (long long)g->stop);
    if (g->step != 1)
        buf_printf(out, ", %lld", (long long)g->step);
    buf_putc(out, ')');
}

static void put_object(struct run *r, struct buf *out, struct value v)
{
    switch (v.kind) {
    case J_LIST:
        put_items(r, out, v, "[]");
        return;
    case J_TUPLE:
        put_items(r, out, v, "()");
        return;
    case J_DICT:
        put_dict(r, out, v.u.dict);
        return;
    case J_NAMESPACE:
        buf_puts(out, "<Namespace ");
        put_dict(r, out, v.u.dict);
        buf_putc(out, '>');
        return;
    case J_RANGE:
        put_range(out, v.u.range);
        return;
    case J_VIEW:
        put_view(r, out, v);
        return;
    case J_LOOP:
        buf_printf(out, "<LoopContext %lld/%zu>", (long long)v.u.loop->index0 + 1, j_loop_length(r, v.u.loop));
        return;
    }
    buf_printf(out, "<%s>", j_type_name(v)); /* Python prints an address here */
}

void j_put_repr(struct run *r, struct buf *out, struct value v)
{
    if (!j_charge(r, 1) || !j_enter(r))
        return;
    if (out->len > r->memory_left)
        j_full(r, "the template takes too much memory");
    switch (v.kind) {
    case J_UNDEFINED:
        buf_puts(out, "Undefined");
        break;
    case J_NONE:
        buf_puts(out, "None");
        break;
    case J_BOOL:
        buf_puts(out, v.u.b ? "True" : "False");
        break;
    case J_INT:
        buf_printf(out, "%lld", (long long)v.u.i);
        break;
    case J_BIG:
        buf_put(out, v.u.s->data, v.u.s->len);
        break;
    case J_FLOAT:
        json_put_double(out, v.u.f);
        break;
    case J_STRING:
        j_charge(r, v.u.s->len / 64);
        buf_puts(out, v.markup ? "Markup(" : "");
        put_quoted(out, v.u.s);
        buf_puts(out, v.markup ? ")" : "");
        break;
    default:
        put_object(r, out, v);
    }
    j_leave(r);
}

void j_put_str(struct run *r, struct buf *out, struct value v)
{
    if (v.kind == J_STRING) {
        if (j_charge(r, v.u.s->len / 64))
            buf_put(out, v.u.s->data, v.u.s->len);
    } else if (v.kind != J_UNDEFINED) {
        j_put_repr(r, out, v);
    }
}

struct value j_str(struct run *r, struct value v)
{
    v = j_soft_str(r, v);
    v.markup = false;
    return v;
}

struct value j_soft_str(struct run *r, struct value v)
{
    if (v.kind == J_STRING)
        return v;
    struct buf b = {0};
    j_put_str(r, &b, v);
    return j_buf(r, &b);
}

struct value j_escape(struct run *r, struct value v)
{
    struct value s = j_soft_str(r, v);
    if (s.kind != J_STRING || s.markup)
        return s;
    struct buf b = {0};
    size_t run = 0;
    static const char *const from = "&<>'\"", *const to[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
    j_charge(r, s.u.s->len / 16);
    for (size_t i = 0; i < s.u.s->len; i++) {
        const char *p = s.u.s->data[i] ? strchr(from, s.u.s->data[i]) : NULL;
        if (!p)
            continue;
        buf_put(&b, s.u.s->data + run, i - run);
        buf_puts(&b, to[p - from]);
        run = i + 1;
    }
    buf_put(&b, s.u.s->data + run, s.u.s->len - run);
    s = j_buf(r, &b);
    s.markup = true;
    return s;
}
