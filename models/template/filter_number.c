/* Filters about numbers, and the look-up of all filters. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "models/template/str.h"
#include "models/template/unicode.h"

#define FILTER(name)                                                                                                   \
    static struct value name(struct run *r, struct value self, const struct value *a, const struct args *raw)
#define UNUSED (void)r, (void)self, (void)a, (void)raw

FILTER(f_abs)
{
    UNUSED;
    int64_t i;
    if (j_is_int(self, &i))
        return i < 0 ? j_negative(r, j_int(i), true) : j_int(i);
    if (self.kind == J_FLOAT)
        return j_float(fabs(self.u.f));
    if (self.kind == J_BIG) {
        struct value v = j_part(r, self, self.u.s->data[0] == '-', self.u.s->len);
        v.kind = j_failed(r) ? J_UNDEFINED : J_BIG;
        return v;
    }
    return self.kind == J_UNDEFINED ? j_fail_undefined(r, self)
                                    : j_fail(r, "bad operand type for abs(): '%s'", j_type_name(self));
}

/* Strips white space and single underscores between digits into out; false: cannot be a number. */
static bool number_text(struct value v, char *out, size_t size)
{
    size_t from = unicode_skip_space(v.u.s->data, v.u.s->len), n = 0;
    size_t to = from + unicode_strip_space(v.u.s->data + from, v.u.s->len - from);
    for (size_t i = from; i < to; i++) {
        char c = v.u.s->data[i];
        if (c == '_') {
            bool between = i > from && i + 1 < to && v.u.s->data[i - 1] != '_' && v.u.s->data[i + 1] != '_';
            if (!between)
                return false;
            continue;
        }
        if (n + 1 >= size || !c)
            return false;
        out[n++] = c;
    }
    out[n] = 0;
    return n > 0;
}

enum { NUMBER_TEXT = 400 };

static bool read_float(struct value v, double *out)
{
    char text[NUMBER_TEXT], *end;
    if (!number_text(v, text, sizeof text) || strpbrk(text, "xXpP(") || strchr(" \t\n\v\f\r", text[0]))
        return false;
    *out = strtod(text, &end);
    return *end == 0;
}

/* Python's int(text, base). 1: done; 0: not an integer; -1: past 64 bits. */
static int read_int(struct value v, int64_t base, int64_t *out)
{
    char text[NUMBER_TEXT], *s = text, *end;
    if (!number_text(v, text, sizeof text))
        return 0;
    bool negative = *s == '-';
    s += *s == '-' || *s == '+';
    static const char marks[] = "bBoOxX";
    static const int bases[] = {2, 2, 8, 8, 16, 16};
    const char *mark = s[0] == '0' && s[1] ? strchr(marks, s[1]) : NULL;
    if (mark && s[2] && (base == 0 || base == bases[mark - marks])) {
        base = bases[mark - marks];
        s += 2;
    } else if (base == 0) {
        base = 10;
        if (s[0] == '0' && s[strspn(s, "0")])
            return 0;
    }
    if (!*s || strchr("+- \t\n\v\f\r", *s) || (mark && s == text))
        return 0;
    if (base == 16 && (s[1] | 32) == 'x')
        return 0;
    errno = 0;
    unsigned long long u = strtoull(s, &end, (int)base);
    if (*end)
        return 0;
    if (errno == ERANGE || u > (unsigned long long)INT64_MAX + negative)
        return -1;
    *out = negative ? (int64_t)(0 - u) : (int64_t)u;
    return 1;
}

static struct value truncated(struct run *r, double f, struct value if_not)
{
    if (isnan(f) || isinf(f))
        return if_not;
    if (!(f > -0x1p63 && f < 0x1p63))
        return j_fail(r, "the result is an integer past 64 bits");
    return j_int((int64_t)f);
}

FILTER(f_int)
{
    UNUSED;
    struct value other = j_given(a[0]) ? a[0] : j_int(0);
    int64_t base = 10, i;
    double f;
    if (j_is_int(self, &i))
        return j_int(i);
    if (self.kind == J_BIG)
        return self;
    if (self.kind == J_FLOAT)
        return isinf(self.u.f) ? j_fail(r, "cannot convert float infinity to integer") : truncated(r, self.u.f, other);
    if (self.kind == J_UNDEFINED)
        return j_fail_undefined(r, self);
    if (self.kind != J_STRING)
        return other;
    if (j_given(a[1]) && !j_is_int(a[1], &base))
        base = -1; /* a TypeError, which the filter swallows */
    if (base == 0 || (base >= 2 && base <= 36)) {
        int got = read_int(self, base, &i);
        if (got)
            return got > 0 ? j_int(i) : j_fail(r, "the result is an integer past 64 bits");
    }
    return read_float(self, &f) ? truncated(r, f, other) : other;
}

FILTER(f_float)
{
    UNUSED;
    double f;
    if (j_is_number(self))
        return j_float(j_as_double(self));
    if (self.kind == J_UNDEFINED)
        return j_fail_undefined(r, self);
    if (self.kind == J_BIG)
        return j_float(strtod(self.u.s->data, NULL));
    if (self.kind == J_STRING && read_float(self, &f))
        return j_float(f);
    return j_given(a[0]) ? a[0] : j_float(0);
}

/* Rounds half to even on the exact decimal value, as Python does. */
static struct value round_float(struct run *r, double f, int64_t precision)
{
    char text[800];
    if (isnan(f) || isinf(f) || precision > 330)
        return j_float(f);
    if (precision >= 0) {
        snprintf(text, sizeof text, "%.*f", (int)precision, f);
        return j_float(strtod(text, NULL));
    }
    if (precision < -309)
        return j_float(copysign(0, f));
    double unit = pow(10, (double)-precision), q = nearbyint(f / unit) * unit;
    return isinf(q) ? j_fail(r, "the rounded value is too large") : j_float(q);
}

static struct value round_int(struct run *r, int64_t i, int64_t precision)
{
    int64_t unit = 1;
    if (precision >= 0)
        return j_int(i);
    for (; precision < 0; precision++)
        if (__builtin_mul_overflow(unit, 10, &unit))
            return j_int(0);
    int64_t down = i / unit * unit - (i % unit < 0 ? unit : 0), rest = i - down, result = down;
    bool up = rest > unit / 2 || (rest == unit / 2 && unit > 1 && (down / unit) % 2 != 0);
    if (up && __builtin_add_overflow(down, unit, &result))
        return j_fail(r, "the result is an integer past 64 bits");
    return j_int(result);
}

FILTER(f_round)
{
    UNUSED;
    int64_t precision = 0, i;
    bool ceil_ = j_given(a[1]) && j_text_is(a[1], "ceil"), floor_ = j_given(a[1]) && j_text_is(a[1], "floor");
    if (j_given(a[1]) && !ceil_ && !floor_ && !j_text_is(a[1], "common"))
        return j_fail(r, "method must be common, ceil or floor");
    if (self.kind == J_UNDEFINED)
        return j_fail_undefined(r, self);
    if (self.kind == J_BIG && (!j_given(a[0]) || (j_is_int(a[0], &i) && i >= 0)) && !ceil_ && !floor_)
        return self;
    if (!j_is_number(self))
        return j_fail(r, "round wants a number, not %s", j_type_name(self));
    if (j_given(a[0]) && a[0].kind == J_NONE && !ceil_ && !floor_)
        return self.kind == J_FLOAT ? truncated(r, nearbyint(self.u.f), j_missing()) : self;
    if (j_given(a[0]) && !j_index(r, a[0], &precision))
        return self;
    if (!ceil_ && !floor_)
        return j_is_int(self, &i) ? round_int(r, i, precision) : round_float(r, self.u.f, precision);
    double unit = pow(10, (double)precision), scaled = j_as_double(self) * unit;
    if (isnan(scaled) || isinf(scaled) || unit == 0 || isinf(unit))
        return j_fail(r, "round cannot use this number");
    return j_float((ceil_ ? ceil(scaled) : floor(scaled)) / unit);
}

FILTER(f_filesizeformat)
{
    UNUSED;
    struct value none = j_missing(), v = f_float(r, self, &none, raw);
    static const char *const prefixes = "kMGTPEZY";
    bool binary = j_given(a[0]) && j_true(r, a[0]);
    double base = binary ? 1024 : 1000, bytes;
    if (j_failed(r))
        return self;
    if (!j_is_number(self) && self.kind != J_BIG && !(self.kind == J_STRING && read_float(self, &bytes)))
        return j_fail(r, "could not convert to a number of bytes");
    bytes = v.u.f;
    struct buf b = {0};
    if (bytes == 1) {
        buf_puts(&b, "1 Byte");
    } else if (bytes < base) {
        buf_printf(&b, "%lld Bytes", bytes > -0x1p63 ? (long long)bytes : 0);
    } else {
        double unit = base * base;
        int i = 0;
        for (; i < 7 && !(bytes < unit); i++)
            unit *= base;
        buf_printf(&b, "%.1f %c%sB", base * bytes / unit, binary && i == 0 ? 'K' : prefixes[i], binary ? "i" : "");
    }
    return j_buf(r, &b);
}

const struct builtin number_filters[] = {
    {"abs", "/", f_abs},
    {"filesizeformat", "binary?", f_filesizeformat},
    {"float", "default? ", f_float},
    {"int", "default? base?", f_int},
    {"round", "precision? method?", f_round},
    {NULL, NULL, NULL},
};

const struct builtin *filter_find(const char *name, size_t n)
{
    static const struct builtin *const tables[] = {text_filters, list_filters, lazy_filters, number_filters};
    for (size_t t = 0; t < sizeof tables / sizeof *tables; t++)
        for (const struct builtin *b = tables[t]; b->name; b++)
            if (strlen(b->name) == n && memcmp(b->name, name, n) == 0)
                return b;
    return NULL;
}

bool filter_refused(const char *name, size_t n)
{
    static const char *const names[] = {"pprint", "random", "striptags", "urlize", "wordwrap"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strlen(names[i]) == n && memcmp(names[i], name, n) == 0)
            return true;
    return false;
}
