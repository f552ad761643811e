/* str.format and the % operator of strings. */
#include <string.h>

#include "engine/base/utf8.h"
#include "models/template/format_spec.h"

struct formatter {
    struct run *r;
    const struct args *args;
    struct buf out;
    int64_t next; /* automatic numbering; -1 once a number was written */
    bool numbered;
    bool markup;
};

static struct value argument(struct formatter *f, const char *s, size_t n)
{
    int64_t i = 0;
    bool digits = n > 0 && n < 10;
    for (size_t k = 0; k < n && digits; k++) {
        digits = s[k] >= '0' && s[k] <= '9';
        i = i * 10 + (s[k] - '0');
    }
    if (n == 0 || digits) {
        if (n == 0 ? f->numbered : f->next > 0)
            return j_fail(f->r, "automatic and manual numbering of fields are mixed");
        f->numbered = n != 0;
        i = n ? i : f->next++;
        return (size_t)i < f->args->n ? f->args->at[i] : j_fail(f->r, "a field of the format has no argument");
    }
    for (size_t k = 0; k < f->args->n_kw; k++) {
        const struct string *name = f->args->kw[k].name.u.s;
        if (name->len == n && memcmp(name->data, s, n) == 0)
            return f->args->kw[k].value;
    }
    return j_fail(f->r, "the format names '%.*s', which was not given", (int)(n < 60 ? n : 60), s);
}

/* name.attr[key]... */
static struct value field(struct formatter *f, const char *s, size_t n)
{
    size_t i = 0;
    while (i < n && s[i] != '.' && s[i] != '[')
        i++;
    struct value v = argument(f, s, i);
    while (i < n && !j_failed(f->r)) {
        bool item = s[i++] == '[';
        size_t from = i;
        while (i < n && (item ? s[i] != ']' : s[i] != '.' && s[i] != '['))
            i++;
        if (i == from || (item && i >= n))
            return j_fail(f->r, "an empty attribute in a format");
        struct value name = j_string_of(f->r, s + from, i - from);
        int64_t index = 0;
        bool digits = item && i - from < 10;
        for (size_t k = from; k < i && digits; k++) {
            digits = s[k] >= '0' && s[k] <= '9';
            index = index * 10 + (s[k] - '0');
        }
        if (j_failed(f->r))
            return v;
        v = item ? j_getitem(f->r, v, digits ? j_int(index) : name) : j_getattr(f->r, v, name);
        i += item;
        if (item && i < n && s[i] != '.' && s[i] != '[')
            return j_fail(f->r, "only '.' or '[' may follow ']' in a format");
    }
    return v;
}

static struct value convert(struct formatter *f, struct value v, char how)
{
    struct buf b = {0};
    if (how == 's')
        return j_str(f->r, v);
    if (how != 'r' && how != 'a')
        return j_fail(f->r, "unknown conversion '!%c' in a format", how);
    j_put_repr(f->r, &b, v);
    return j_buf(f->r, &b);
}

static void put_value(struct formatter *f, struct value v, const char *spec_text, size_t n)
{
    struct format_spec spec;
    if (f->markup && v.kind != J_STRING && !n)
        v = j_str(f->r, v);
    if (f->markup && v.kind == J_STRING)
        v = j_escape(f->r, v);
    if (!n)
        j_put_str(f->r, &f->out, v);
    else if (format_spec_read(f->r, spec_text, n, &spec))
        format_put(f->r, &f->out, v, &spec);
}

static void expand(struct formatter *f, const char *s, size_t n, int depth);

/* s[0..n): what stands between the braces of a field. */
static void put_field(struct formatter *f, const char *s, size_t n, int depth)
{
    size_t name = 0;
    for (bool bracket = false; name < n && (bracket || (s[name] != '!' && s[name] != ':')); name++)
        bracket = s[name] == '[' ? true : s[name] == ']' ? false : bracket;
    struct value v = field(f, s, name);
    size_t i = name;
    if (i < n && s[i] == '!') {
        if (i + 1 >= n || (i + 2 < n && s[i + 2] != ':')) {
            j_fail(f->r, "a bad conversion in a format");
            return;
        }
        v = convert(f, v, s[i + 1]);
        i += 2;
    }
    if (j_failed(f->r))
        return;
    struct buf outer = f->out;
    f->out = (struct buf){0};
    if (i < n) /* the specification may hold fields of its own */
        expand(f, s + i + 1, n - i - 1, depth + 1);
    struct buf spec = f->out;
    f->out = outer;
    if (!j_failed(f->r))
        put_value(f, v, spec.data, spec.len);
    buf_free(&spec);
}

static void expand(struct formatter *f, const char *s, size_t n, int depth)
{
    if (depth > 1) {
        j_fail(f->r, "a format is nested too deeply");
        return;
    }
    for (size_t i = 0; i < n && !j_failed(f->r);) {
        char c = s[i];
        if ((c == '{' || c == '}') && i + 1 < n && s[i + 1] == c && depth == 0) {
            buf_putc(&f->out, c);
            i += 2;
            continue;
        }
        if (c != '{' && c != '}') {
            buf_putc(&f->out, c);
            i++;
            continue;
        }
        size_t to = i + 1;
        for (int open = 1; c == '{' && to < n; to++) {
            open += s[to] == '{' ? 1 : s[to] == '}' ? -1 : 0;
            if (!open)
                break;
        }
        if (c == '}' || to >= n) {
            j_fail(f->r, "single '%c' in a format", c);
            return;
        }
        put_field(f, s + i + 1, to - i - 1, depth);
        i = to + 1;
    }
}

struct value j_format(struct run *r, struct value self, const struct args *args)
{
    struct formatter f = {.r = r, .args = args, .markup = self.markup};
    j_charge(r, self.u.s->len / 8);
    expand(&f, self.u.s->data, self.u.s->len, 0);
    struct value v = j_buf(r, &f.out);
    v.markup = self.markup;
    return v;
}

/* ---- % ---- */

struct percent {
    struct run *r;
    struct buf out;
    struct value args;
    size_t next;  /* of a tuple; 1 when the one argument was taken */
    bool mapping; /* what is left over is no mistake */
    bool markup;
};

static struct value next_argument(struct percent *p)
{
    if (p->args.kind == J_TUPLE && p->next < p->args.u.list->n)
        return p->args.u.list->items[p->next++];
    if (p->args.kind != J_TUPLE && p->next == 0) {
        p->next = 1;
        return p->args;
    }
    return j_fail(p->r, "not enough arguments for the format string");
}

static bool star_or_size(struct percent *p, const char *s, size_t n, size_t *i, int64_t *out)
{
    if (*i < n && s[*i] == '*') {
        ++*i;
        return j_index(p->r, next_argument(p), out) &&
               (*out < 100000000 ? true : (j_full(p->r, "too wide a format"), false));
    }
    for (*out = 0; *i < n && s[*i] >= '0' && s[*i] <= '9'; ++*i) {
        *out = *out * 10 + (s[*i] - '0');
        if (*out > 100000000) {
            j_full(p->r, "a width or precision in a format is too large");
            return false;
        }
    }
    return true;
}

static void put_percent_number(struct percent *p, struct value v, struct format_spec *spec, bool zero, bool left)
{
    if (spec->type == 'i' || spec->type == 'u')
        spec->type = 'd';
    if (spec->type == 'd' && v.kind == J_FLOAT) {
        if (!(v.u.f > -0x1p63 && v.u.f < 0x1p63)) {
            j_fail(p->r, "a float that fits no integer in a format");
            return;
        }
        v = j_int((int64_t)v.u.f);
    }
    if (v.kind == J_UNDEFINED) {
        j_fail_undefined(p->r, v);
        return;
    }
    if (!j_is_number(v) || (v.kind == J_FLOAT && strchr("xXo", spec->type))) {
        j_fail(p->r, "%%%c format: a number is required, not %s", spec->type, j_type_name(v));
        return;
    }
    if (strchr("dxXo", spec->type) && spec->precision >= 0) { /* the least number of digits */
        if (spec->precision > PRECISION_MAX) {
            j_full(p->r, "a precision in a format is too large");
            return;
        }
        struct format_spec digits = *spec;
        digits.width = digits.precision = 0;
        struct buf b = {0}, all = {0};
        size_t n_prefix;
        digits.precision = -1;
        format_put_number(p->r, &b, v, &digits, &n_prefix);
        int64_t i = 0;
        j_is_int(v, &i);
        if (i < 0 || spec->sign)
            buf_putc(&all, i < 0 ? '-' : spec->sign);
        buf_put(&all, b.data, n_prefix);
        for (int64_t have = (int64_t)(b.len - n_prefix); have < spec->precision; have++)
            buf_putc(&all, '0');
        buf_put(&all, b.data + n_prefix, b.len - n_prefix);
        format_put_padded(p->r, &p->out, all.data, all.len, spec, left ? '<' : '>');
        buf_free(&b);
        buf_free(&all);
        return;
    }
    spec->align = left ? '<' : zero ? '=' : '>';
    strncpy(spec->fill, zero && !left ? "0" : " ", sizeof spec->fill - 1);
    format_put(p->r, &p->out, v, spec);
}

static void put_percent_text(struct percent *p, struct value v, struct format_spec *spec, bool left)
{
    struct buf b = {0};
    if (spec->type == 'c') {
        int64_t i;
        if (j_is_int(v, &i)) {
            size_t n_prefix;
            struct format_spec one = {.type = 'c', .precision = -1};
            format_put_number(p->r, &b, v, &one, &n_prefix);
            v = j_buf(p->r, &b);
        } else if (v.kind != J_STRING || j_chars(v) != 1) {
            j_fail(p->r, "%%c requires an int or one character");
            return;
        }
        spec->precision = -1;
    } else if (spec->type == 's') {
        v = p->markup ? j_escape(p->r, v) : j_str(p->r, v);
    } else {
        j_put_repr(p->r, &b, v);
        v = j_buf(p->r, &b);
        if (p->markup)
            v = j_escape(p->r, v);
    }
    if (v.kind != J_STRING)
        return;
    spec->type = 's';
    spec->sign = 0;
    spec->alternate = false;
    spec->align = left ? '<' : '>';
    format_put(p->r, &p->out, v, spec);
}

/* %(key) before a conversion: the argument it names. */
static bool named_argument(struct percent *p, const char *s, size_t n, size_t *i, struct value *v)
{
    size_t from = ++*i;
    int open = 1;
    for (; *i < n && open; ++*i)
        open += s[*i] == '(' ? 1 : s[*i] == ')' ? -1 : 0;
    if (open || p->args.kind != J_DICT) {
        j_fail(p->r, open ? "incomplete format key" : "a format requires a mapping");
        return false;
    }
    struct value key = j_string_of(p->r, s + from, *i - from - 1);
    const struct value *found = j_failed(p->r) ? NULL : j_dict_find(p->r, p->args.u.dict, key);
    if (!found) {
        j_fail(p->r, "the format names a key that was not given");
        return false;
    }
    *v = *found;
    return true;
}

/* The conversion after a '%' at s[*i]. */
static void put_conversion(struct percent *p, const char *s, size_t n, size_t *i)
{
    struct format_spec spec = {.fill = " ", .precision = -1};
    struct value v = j_missing();
    bool zero = false, left = false;
    if (*i < n && s[*i] == '(' && !named_argument(p, s, n, i, &v))
        return;
    for (; *i < n && s[*i] && strchr("#0- +", s[*i]); ++*i) {
        zero |= s[*i] == '0';
        left |= s[*i] == '-';
        spec.alternate |= s[*i] == '#';
        spec.sign = s[*i] == '+' || (s[*i] == ' ' && !spec.sign) ? s[*i] : spec.sign;
    }
    if (!star_or_size(p, s, n, i, &spec.width))
        return;
    left |= spec.width < 0;
    spec.width = spec.width < 0 ? -spec.width : spec.width;
    if (*i < n && s[*i] == '.') {
        ++*i;
        if (!star_or_size(p, s, n, i, &spec.precision))
            return;
        spec.precision = spec.precision < 0 ? 0 : spec.precision;
    }
    if (*i < n && s[*i] && strchr("hlL", s[*i]))
        ++*i;
    if (*i >= n) {
        j_fail(p->r, "incomplete format");
        return;
    }
    spec.type = s[(*i)++];
    if (spec.type == '%') {
        buf_putc(&p->out, '%');
        return;
    }
    if (!spec.type || !strchr("diuxXoeEfFgGcrsa", spec.type)) {
        j_fail(p->r, "unsupported format character");
        return;
    }
    v = j_given(v) ? v : next_argument(p);
    if (j_failed(p->r))
        return;
    if (strchr("crsa", spec.type))
        put_percent_text(p, v, &spec, left);
    else
        put_percent_number(p, v, &spec, zero, left);
}

struct value j_percent(struct run *r, struct value format, struct value args)
{
    struct percent p = {.r = r, .args = args, .markup = format.markup};
    p.mapping = args.kind == J_DICT || args.kind == J_LIST || args.kind == J_RANGE || args.kind == J_UNDEFINED;
    const char *s = format.u.s->data;
    size_t n = format.u.s->len;
    j_charge(r, n / 8);
    for (size_t i = 0; i < n && !j_failed(r);) {
        char c = s[i++];
        if (c == '%')
            put_conversion(&p, s, n, &i);
        else
            buf_putc(&p.out, c);
    }
    if (!p.mapping && p.next < (args.kind == J_TUPLE ? args.u.list->n : 1))
        j_fail(r, "not all arguments converted during string formatting");
    struct value v = j_buf(r, &p.out);
    v.markup = format.markup;
    return v;
}
