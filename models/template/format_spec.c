#include "models/template/format_spec.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/utf8.h"

static bool read_size(struct run *r, const char *s, size_t n, size_t *i, int64_t *out)
{
    *out = 0;
    for (; *i < n && s[*i] >= '0' && s[*i] <= '9'; ++*i) {
        *out = *out * 10 + (s[*i] - '0');
        if (*out > 100000000) {
            j_full(r, "a width or precision in a format is too large");
            return false;
        }
    }
    return true;
}

static size_t read_align(const char *s, size_t n, struct format_spec *spec)
{
    uint32_t cp;
    int first = n ? utf8_decode(s, n, &cp) : 0;
    if (first > 0 && (size_t)first < n && strchr("<>=^", s[first]) && s[first]) {
        memcpy(spec->fill, s, (size_t)first);
        spec->fill[first] = 0;
        spec->align = s[first];
        return (size_t)first + 1;
    }
    if (n && s[0] && strchr("<>=^", s[0])) {
        spec->align = s[0];
        return 1;
    }
    return 0;
}

bool format_spec_read(struct run *r, const char *s, size_t n, struct format_spec *spec)
{
    *spec = (struct format_spec){.fill = " ", .precision = -1};
    size_t i = read_align(s, n, spec);
    bool has_fill = i > 1;
    if (i < n && s[i] && strchr("+- ", s[i]))
        spec->sign = s[i++];
    if (i < n && s[i] == '#') {
        spec->alternate = true;
        i++;
    }
    if (i < n && s[i] == '0') {
        if (!has_fill)
            strncpy(spec->fill, "0", sizeof spec->fill - 1);
        if (!spec->align)
            spec->align = '=';
        i++;
    }
    if (!read_size(r, s, n, &i, &spec->width))
        return false;
    if (i < n && (s[i] == ',' || s[i] == '_'))
        spec->group = s[i++];
    if (i < n && s[i] == '.') {
        size_t from = ++i;
        if (!read_size(r, s, n, &i, &spec->precision))
            return false;
        if (i == from) {
            j_fail(r, "a format specifier misses its precision");
            return false;
        }
    }
    if (i < n)
        spec->type = s[i++];
    if (i < n || (spec->type && !strchr("bcdeEfFgGnosxX%", spec->type))) {
        j_fail(r, "invalid format specifier");
        return false;
    }
    return true;
}

void format_put_padded(struct run *r, struct buf *out, const char *s, size_t n, const struct format_spec *spec,
                       char align)
{
    int64_t chars = 0;
    for (size_t i = 0; i < n; i++)
        chars += ((unsigned char)s[i] & 0xC0) != 0x80;
    int64_t pad = spec->width > chars ? spec->width - chars : 0;
    int64_t left = align == '>' ? pad : align == '^' ? pad / 2 : 0;
    if ((size_t)pad * 4 + out->len > r->memory_left) {
        j_full(r, "the template takes too much memory");
        return;
    }
    j_charge(r, (size_t)pad / 16);
    for (int64_t i = 0; i < left; i++)
        buf_puts(out, spec->fill);
    buf_put(out, s, n);
    for (int64_t i = left; i < pad; i++)
        buf_puts(out, spec->fill);
}

/* ---- numbers ---- */

static void put_radix(struct buf *out, uint64_t v, unsigned base, bool upper)
{
    char tmp[64];
    int i = 64;
    do
        tmp[--i] = (upper ? "0123456789ABCDEF" : "0123456789abcdef")[v % base];
    while (v /= base);
    buf_put(out, tmp + i, (size_t)(64 - i));
}

static bool put_whole(struct run *r, struct buf *out, int64_t i, const struct format_spec *spec, size_t *n_prefix)
{
    uint64_t v = i < 0 ? -(uint64_t)i : (uint64_t)i;
    char type = spec->type ? spec->type : 'd';
    char bytes[4];
    if (type == 'c') {
        if (i < 0 || i > 0x10FFFF || (i >= 0xD800 && i < 0xE000)) {
            j_fail(r, "%%c wants the number of a character");
            return false;
        }
        buf_put(out, bytes, (size_t)utf8_encode((uint32_t)i, bytes));
        return true;
    }
    if (spec->alternate && strchr("boxX", type)) {
        buf_putc(out, '0');
        buf_putc(out, type);
        *n_prefix = 2;
    }
    put_radix(out, v, type == 'b' ? 2 : type == 'o' ? 8 : type == 'x' || type == 'X' ? 16 : 10, type == 'X');
    return true;
}

/* No type: the shortest form, or with a precision like 'g', but always with a digit behind the point. */
static void put_plain_double(struct buf *out, double v, int64_t precision, bool alternate)
{
    char text[PRECISION_MAX + 400];
    if (precision < 0) {
        json_put_double(out, v);
        return;
    }
    int p = precision ? (int)precision : 1;
    snprintf(text, sizeof text, "%.*e", p - 1, v);
    int exponent = atoi(strchr(text, 'e') + 1);
    /* Like 'g', but the exponent form begins one digit earlier, since ".0" is added. */
    if (exponent < -4 || exponent >= p - 1) {
        snprintf(text, sizeof text, alternate ? "%#.*e" : "%.*e", p - 1, v);
        char *e = strchr(text, 'e'), *end = e;
        if (!alternate && memchr(text, '.', (size_t)(e - text)))
            while (end[-1] == '0' || end[-1] == '.')
                if (*--end == '.')
                    break;
        buf_put(out, text, (size_t)(end - text));
        buf_puts(out, e);
        return;
    }
    snprintf(text, sizeof text, alternate ? "%#.*g" : "%.*g", p, v);
    buf_puts(out, text);
    if (!strpbrk(text, ".e"))
        buf_puts(out, ".0");
}

static bool put_double(struct run *r, struct buf *out, double v, const struct format_spec *spec)
{
    char text[PRECISION_MAX + 400], type = spec->type == 'n' ? 'g' : spec->type, format[8] = "%#.*f";
    bool upper = type == 'E' || type == 'F' || type == 'G';
    if (spec->precision > PRECISION_MAX) {
        j_full(r, "a precision in a format is too large");
        return false;
    }
    v = fabs(v);
    if (isnan(v) || isinf(v)) {
        buf_puts(out, isnan(v) ? (upper ? "NAN" : "nan") : upper ? "INF" : "inf");
        return true;
    }
    if (!type) {
        put_plain_double(out, v, spec->precision, spec->alternate);
        return true;
    }
    format[4] = type == '%' ? 'f' : type;
    if (!spec->alternate)
        memmove(format + 1, format + 2, 5);
    snprintf(text, sizeof text, format, spec->precision < 0 ? 6 : (int)spec->precision, type == '%' ? v * 100 : v);
    buf_puts(out, text);
    if (type == '%')
        buf_putc(out, '%');
    return true;
}

bool format_put_number(struct run *r, struct buf *out, struct value v, const struct format_spec *spec, size_t *n_prefix)
{
    int64_t i;
    *n_prefix = 0;
    bool float_type = spec->type && strchr("eEfFgG%", spec->type);
    if (j_is_int(v, &i) && !float_type) {
        if (spec->precision >= 0) {
            j_fail(r, "a precision is not allowed in the format of an integer");
            return false;
        }
        return put_whole(r, out, i, spec, n_prefix);
    }
    if (!j_is_number(v) || (spec->type && !float_type && spec->type != 'n')) {
        j_fail(r, "unknown format code '%c' for an object of type '%s'", spec->type ? spec->type : ' ', j_type_name(v));
        return false;
    }
    return put_double(r, out, j_as_double(v), spec);
}

/* Digits with a separator every three (or four, for radix types), filled up with zeros to `width` characters
 * when the padding is zeros inside the number. */
static void group_digits(struct buf *out, const char *s, size_t n, const struct format_spec *spec, int64_t width)
{
    size_t digits = 0, every = spec->type && strchr("boxX", spec->type) ? 4 : 3;
    while (digits < n && strchr("0123456789abcdefABCDEF", s[digits]) && !(every == 3 && (s[digits] | 32) >= 'a'))
        digits++;
    size_t rest = n - digits, zeros = 0;
    while (width > 0 && digits + zeros + (digits + zeros - 1) / every + rest < (size_t)width)
        zeros++;
    for (size_t i = 0; i < zeros + digits; i++) {
        if (i && (zeros + digits - i) % every == 0)
            buf_putc(out, spec->group);
        buf_putc(out, i < zeros ? '0' : s[i - zeros]);
    }
    buf_put(out, s + digits, rest);
}

static void put_formatted_number(struct run *r, struct buf *out, struct value v, const struct format_spec *spec)
{
    struct buf digits = {0}, all = {0};
    size_t n_prefix = 0;
    bool negative = signbit(j_as_double(v)) && !(v.kind == J_FLOAT && isnan(v.u.f));
    if (!format_put_number(r, &digits, v, spec, &n_prefix)) {
        buf_free(&digits);
        return;
    }
    char sign = negative ? '-' : spec->sign == '+' || spec->sign == ' ' ? spec->sign : 0;
    if (sign)
        buf_putc(&all, sign);
    buf_put(&all, digits.data, n_prefix);
    size_t head = all.len;
    bool inner = spec->align == '=', zeros = inner && strcmp(spec->fill, "0") == 0;
    int64_t room = spec->width - (int64_t)head;
    if (spec->group)
        group_digits(&all, digits.data + n_prefix, digits.len - n_prefix, spec, zeros && room < 100000 ? room : 0);
    else
        buf_put(&all, digits.data + n_prefix, digits.len - n_prefix);
    if (inner) {
        struct format_spec rest = *spec;
        rest.width = room;
        buf_put(out, all.data, head);
        format_put_padded(r, out, all.data + head, all.len - head, &rest, '>');
    } else {
        format_put_padded(r, out, all.data, all.len, spec, spec->align ? spec->align : '>');
    }
    buf_free(&digits);
    buf_free(&all);
}

void format_put(struct run *r, struct buf *out, struct value v, const struct format_spec *spec)
{
    if (j_is_number(v) && spec->type != 's') {
        put_formatted_number(r, out, v, spec);
        return;
    }
    if (v.kind != J_STRING) {
        j_fail(r, "unsupported format for an object of type '%s'", j_type_name(v));
        return;
    }
    if ((spec->type && spec->type != 's') || spec->sign || spec->alternate || spec->group || spec->align == '=') {
        if (spec->align != '=' || strcmp(spec->fill, "0") != 0 || spec->type || spec->sign || spec->alternate ||
            spec->group) {
            j_fail(r, "invalid format for an object of type 'str'");
            return;
        }
    }
    size_t n = v.u.s->len;
    if (spec->precision >= 0 && (size_t)spec->precision < j_chars(v))
        n = j_char_offset(v, (size_t)spec->precision);
    format_put_padded(r, out, v.u.s->data, n, spec, spec->align && spec->align != '=' ? spec->align : '<');
}
