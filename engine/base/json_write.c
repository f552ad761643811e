#include "engine/base/json.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/base/utf8.h"

/* ---- strings ---- */

static void put_u(struct buf *out, uint32_t unit)
{
    static const char hex[] = "0123456789abcdef";
    char u[6] = {'\\', 'u', hex[unit >> 12 & 15], hex[unit >> 8 & 15], hex[unit >> 4 & 15], hex[unit & 15]};
    buf_put(out, u, 6);
}

static void put_ascii_escape(struct buf *out, char c)
{
    static const char from[] = "\"\\\n\r\t\f\b", to[] = "\"\\nrtfb";
    const char *p = c ? strchr(from, c) : NULL;
    if (!p) {
        put_u(out, (unsigned char)c);
        return;
    }
    buf_putc(out, '\\');
    buf_putc(out, to[p - from]);
}

static void put_past_ascii(struct buf *out, uint32_t cp)
{
    if (cp < 0x10000) {
        put_u(out, cp);
        return;
    }
    cp -= 0x10000;
    put_u(out, 0xD800 + (cp >> 10));
    put_u(out, 0xDC00 + (cp & 0x3FF));
}

void json_put_string(struct buf *out, const char *s, size_t n, bool ascii_only)
{
    buf_reserve(out, n + 2);
    buf_putc(out, '"');
    size_t run = 0;
    for (size_t i = 0; i < n;) {
        unsigned char c = (unsigned char)s[i];
        uint32_t cp = c;
        int len = c < 0x80 ? 1 : utf8_decode(s + i, n - i, &cp);
        bool plain = c < 0x80 ? c >= 0x20 && c != '"' && c != '\\' : len > 0 && !ascii_only;
        if (plain) {
            i += (size_t)len;
            continue;
        }
        buf_put(out, s + run, i - run);
        if (c < 0x80)
            put_ascii_escape(out, (char)c);
        else
            put_past_ascii(out, len > 0 ? cp : 0xFFFD);
        i += len > 0 ? (size_t)len : 1;
        run = i;
    }
    buf_put(out, s + run, n - run);
    buf_putc(out, '"');
}

/* ---- doubles ---- */

/* "d.ddde[+-]xx" of v with n digits. True when it reads back as v. */
static bool digits_of(double v, int n, char text[32])
{
    snprintf(text, 32, "%.*e", n - 1, v);
    if (strtod(text, NULL) == v)
        return true;
    /* Below a power of two the doubles lie closer than above it, so there the shortest form may be the next
     * decimal up, which is not the nearest one. */
    int exponent;
    if (fabs(frexp(v, &exponent)) != 0.5)
        return false;
    char *last = strchr(text, 'e') - 1;
    if (*last == '9' || *last == '.')
        return false;
    ++*last;
    return strtod(text, NULL) == v;
}

/* The shortest such text. Among normal numbers 15 digits always tell decimals apart, so the search starts
 * there. */
static void shortest(double v, char text[32])
{
    int n = fabs(v) < 0x1p-1022 ? 1 : 15;
    while (n < 17 && !digits_of(v, n, text))
        n++;
    if (n == 17)
        snprintf(text, 32, "%.16e", v);
}

void json_put_double(struct buf *out, double v)
{
    if (isnan(v) || isinf(v)) {
        buf_puts(out, isnan(v) ? "nan" : v < 0 ? "-inf" : "inf");
        return;
    }
    char text[32], digits[20];
    shortest(fabs(v), text);
    int n = 0, exponent = atoi(strchr(text, 'e') + 1);
    for (const char *p = text; *p != 'e'; p++)
        if (*p != '.')
            digits[n++] = *p;
    while (n > 1 && digits[n - 1] == '0')
        n--;
    if (signbit(v))
        buf_putc(out, '-');
    if (exponent < -4 || exponent >= 16) {
        buf_putc(out, digits[0]);
        if (n > 1)
            buf_putc(out, '.');
        buf_put(out, digits + 1, (size_t)n - 1);
        buf_printf(out, "e%c%02d", exponent < 0 ? '-' : '+', abs(exponent));
        return;
    }
    if (exponent < 0) {
        buf_puts(out, "0.");
        for (int i = -1; i > exponent; i--)
            buf_putc(out, '0');
        buf_put(out, digits, (size_t)n);
        return;
    }
    for (int i = 0; i <= exponent; i++)
        buf_putc(out, i < n ? digits[i] : '0');
    buf_putc(out, '.');
    if (n > exponent + 1)
        buf_put(out, digits + exponent + 1, (size_t)(n - exponent - 1));
    else
        buf_putc(out, '0');
}

/* ---- documents ---- */

struct writer {
    struct buf *out;
    struct json_style style;
    int depth;
};

static void new_line(struct writer *w)
{
    buf_putc(w->out, '\n');
    for (int i = 0; i < w->depth * w->style.indent; i++)
        buf_putc(w->out, ' ');
}

static void write_value(struct writer *w, const struct json *j);

static void write_item(struct writer *w, const struct json *j, bool first)
{
    if (!first)
        buf_puts(w->out, w->style.spaced && w->style.indent <= 0 ? ", " : ",");
    if (w->style.indent > 0)
        new_line(w);
    if (json_key(j)) {
        json_put_string(w->out, json_key(j), strlen(json_key(j)), w->style.ascii_only);
        buf_puts(w->out, w->style.spaced || w->style.indent > 0 ? ": " : ":");
    }
    write_value(w, j);
}

static int key_order(const void *a, const void *b)
{
    return strcmp(json_key(*(const struct json *const *)a), json_key(*(const struct json *const *)b));
}

static void write_sorted(struct writer *w, const struct json *object)
{
    size_t n = json_count(object), i = 0;
    const struct json **all = mem_new_array(n, sizeof *all);
    for (const struct json *c = json_first(object); c; c = json_next(c))
        all[i++] = c;
    qsort(all, n, sizeof *all, key_order);
    for (i = 0; i < n; i++)
        write_item(w, all[i], i == 0);
    mem_free(all);
}

static void write_container(struct writer *w, const struct json *j)
{
    bool object = json_type(j) == JSON_OBJECT;
    buf_putc(w->out, object ? '{' : '[');
    w->depth++;
    if (object && w->style.sort_keys) {
        write_sorted(w, j);
    } else {
        for (const struct json *c = json_first(j); c; c = json_next(c))
            write_item(w, c, c == json_first(j));
    }
    w->depth--;
    if (w->style.indent > 0 && json_first(j))
        new_line(w);
    buf_putc(w->out, object ? '}' : ']');
}

static void write_number(struct writer *w, const struct json *j)
{
    int64_t i;
    if (json_digits(j))
        buf_puts(w->out, json_digits(j));
    else if (json_is_integer(j) && json_i64(j, &i))
        buf_printf(w->out, "%lld", (long long)i);
    else
        json_put_double(w->out, json_number(j));
}

static void write_value(struct writer *w, const struct json *j)
{
    switch (json_type(j)) {
    case JSON_NULL:
        buf_puts(w->out, "null");
        break;
    case JSON_BOOL:
        buf_puts(w->out, json_true(j) ? "true" : "false");
        break;
    case JSON_NUMBER:
        write_number(w, j);
        break;
    case JSON_STRING:
        json_put_string(w->out, json_text(j), strlen(json_text(j)), w->style.ascii_only);
        break;
    case JSON_ARRAY:
    case JSON_OBJECT:
        write_container(w, j);
        break;
    }
}

void json_write(struct buf *out, const struct json *j, const struct json_style *style)
{
    struct writer w = {out, style ? *style : (struct json_style){0}, 0};
    write_value(&w, j);
}

/* ---- members */

static void begin_member(struct buf *out, const char *key)
{
    if (out->len && !strchr("{[,", out->data[out->len - 1]))
        buf_putc(out, ',');
    buf_printf(out, "\"%s\":", key);
}

void json_put_member(struct buf *out, const char *key, const char *text)
{
    begin_member(out, key);
    if (text)
        buf_put_json(out, text, strlen(text));
    else
        buf_puts(out, "null");
}

void json_put_member_double(struct buf *out, const char *key, double v)
{
    begin_member(out, key);
    json_put_double(out, v);
}
