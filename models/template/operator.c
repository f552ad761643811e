/* Arithmetic and what else the operators mean in Python. */
#include <math.h>
#include <string.h>

#include "models/template/run.h"

static struct value no_operator(struct run *r, const char *op, struct value a, struct value b)
{
    return j_fail(r, "unsupported operand type(s) for %s: '%s' and '%s'", op, j_type_name(a), j_type_name(b));
}

static struct value overflow(struct run *r)
{
    return j_fail(r, "the result is an integer past 64 bits");
}

struct value j_repeat(struct run *r, struct value s, int64_t times)
{
    size_t n = times > 0 ? (size_t)times : 0, unit = s.kind == J_STRING ? s.u.s->len : s.u.list->n, total;
    if (__builtin_mul_overflow(n, unit, &total))
        total = SIZE_MAX;
    j_charge(r, total / 64);
    if (s.kind != J_STRING) {
        struct items all = {0};
        all.at = j_alloc_array(r, total, sizeof *all.at);
        for (size_t i = 0; i < n && unit && all.at && !j_failed(r); i++, all.n += unit)
            memcpy(all.at + all.n, s.u.list->items, unit * sizeof *all.at);
        return j_finish(r, &all, s.kind);
    }
    char *bytes = j_failed(r) ? NULL : j_alloc(r, total);
    if (!bytes)
        return j_of(J_UNDEFINED);
    for (size_t i = 0; i < n && unit; i++)
        memcpy(bytes + i * unit, s.u.s->data, unit);
    struct value v = j_string_of(r, bytes, total);
    v.markup = s.markup;
    return v;
}

static struct value join_arrays(struct run *r, struct value a, struct value b)
{
    size_t n = a.u.list->n, m = b.u.list->n;
    struct value v = j_array(r, a.kind, n + m);
    if (!j_charge(r, (n + m) / 8) || v.kind == J_UNDEFINED)
        return j_of(J_UNDEFINED);
    if (n)
        memcpy(v.u.list->items, a.u.list->items, n * sizeof *v.u.list->items);
    if (m)
        memcpy(v.u.list->items + n, b.u.list->items, m * sizeof *v.u.list->items);
    return v;
}

struct value j_add(struct run *r, struct value a, struct value b)
{
    int64_t x, y, z;
    if (a.kind == J_STRING && b.kind == J_STRING) {
        bool markup = a.markup || b.markup;
        struct value v = markup ? j_concat(r, j_escape(r, a), j_escape(r, b)) : j_concat(r, a, b);
        v.markup = markup;
        return v;
    }
    if (j_is_int(a, &x) && j_is_int(b, &y))
        return __builtin_add_overflow(x, y, &z) ? overflow(r) : j_int(z);
    if (j_is_number(a) && j_is_number(b))
        return j_float(j_as_double(a) + j_as_double(b));
    if (a.kind == b.kind && (a.kind == J_LIST || a.kind == J_TUPLE))
        return join_arrays(r, a, b);
    return no_operator(r, "+", a, b);
}

static struct value multiply(struct run *r, struct value a, struct value b)
{
    int64_t x, y, z;
    if (j_is_int(a, &x) && (b.kind == J_STRING || b.kind == J_LIST || b.kind == J_TUPLE))
        return j_repeat(r, b, x);
    if (j_is_int(b, &x) && (a.kind == J_STRING || a.kind == J_LIST || a.kind == J_TUPLE))
        return j_repeat(r, a, x);
    if (j_is_int(a, &x) && j_is_int(b, &y))
        return __builtin_mul_overflow(x, y, &z) ? overflow(r) : j_int(z);
    if (j_is_number(a) && j_is_number(b))
        return j_float(j_as_double(a) * j_as_double(b));
    return no_operator(r, "*", a, b);
}

/* Python's remainder has the sign of the divisor. */
static double float_mod(double a, double b)
{
    double m = fmod(a, b);
    if (m == 0)
        return copysign(0, b);
    return (b < 0) != (m < 0) ? m + b : m;
}

/* As CPython computes it: exact where a plain floor(a / b) is one off. */
static double float_floordiv(double a, double b)
{
    double mod = fmod(a, b), div = (a - mod) / b;
    if (mod != 0 && (b < 0) != (mod < 0))
        div -= 1;
    if (div == 0)
        return copysign(0, a / b);
    double whole = floor(div);
    return div - whole > 0.5 ? whole + 1 : whole;
}

static struct value divide(struct run *r, int op, struct value a, struct value b)
{
    int64_t x, y;
    const char *name = op == T_DIV ? "/" : op == T_MOD ? "%" : "//";
    if (!j_is_number(a) || !j_is_number(b))
        return no_operator(r, name, a, b);
    if (j_as_double(b) == 0)
        return j_fail(r, "division by zero");
    if (op == T_DIV)
        return j_float(j_as_double(a) / j_as_double(b));
    if (!j_is_int(a, &x) || !j_is_int(b, &y))
        return j_float(op == T_MOD ? float_mod(j_as_double(a), j_as_double(b))
                                   : float_floordiv(j_as_double(a), j_as_double(b)));
    if (y == -1)
        return op == T_MOD ? j_int(0) : x == INT64_MIN ? overflow(r) : j_int(-x);
    int64_t q = x / y, m = x % y;
    bool adjust = m != 0 && (m < 0) != (y < 0);
    return j_int(op == T_MOD ? (adjust ? m + y : m) : q - adjust);
}

static struct value int_power(struct run *r, int64_t base, int64_t exponent)
{
    int64_t result = 1;
    for (;;) {
        if (exponent & 1 && __builtin_mul_overflow(result, base, &result))
            return overflow(r);
        exponent >>= 1;
        if (!exponent)
            return j_int(result);
        if (__builtin_mul_overflow(base, base, &base))
            return overflow(r);
    }
}

static struct value power(struct run *r, struct value a, struct value b)
{
    int64_t x, y;
    if (!j_is_number(a) || !j_is_number(b))
        return no_operator(r, "**", a, b);
    if (j_is_int(a, &x) && j_is_int(b, &y) && y >= 0)
        return int_power(r, x, y);
    double base = j_as_double(a), e = j_as_double(b);
    if (base == 0 && e < 0)
        return j_fail(r, "0 cannot be raised to a negative power");
    if (base < 0 && !isinf(base) && !isinf(e) && e != floor(e))
        return j_fail(r, "the result is a complex number");
    double v = pow(base, e);
    if (isinf(v) && !isinf(base) && !isinf(e))
        return j_fail(r, "the result is too large");
    return j_float(v);
}

struct value j_binary(struct run *r, int op, struct value a, struct value b)
{
    if (op == T_MOD && a.kind == J_STRING)
        return j_percent(r, a, b);
    if (a.kind == J_UNDEFINED || b.kind == J_UNDEFINED)
        return j_fail_undefined(r, a.kind == J_UNDEFINED ? a : b);
    if (a.kind == J_BIG || b.kind == J_BIG)
        return j_fail(r, "arithmetic on an integer past 64 bits");
    switch (op) {
    case T_ADD:
        return j_add(r, a, b);
    case T_MUL:
        return multiply(r, a, b);
    case T_POW:
        return power(r, a, b);
    case T_DIV:
    case T_FLOORDIV:
    case T_MOD:
        return divide(r, op, a, b);
    }
    int64_t x, y, z;
    if (j_is_int(a, &x) && j_is_int(b, &y))
        return __builtin_sub_overflow(x, y, &z) ? overflow(r) : j_int(z);
    if (j_is_number(a) && j_is_number(b))
        return j_float(j_as_double(a) - j_as_double(b));
    return no_operator(r, "-", a, b);
}

struct value j_negative(struct run *r, struct value v, bool negate)
{
    int64_t i;
    if (v.kind == J_UNDEFINED)
        return j_fail_undefined(r, v);
    if (j_is_int(v, &i))
        return !negate ? j_int(i) : i == INT64_MIN ? overflow(r) : j_int(-i);
    if (v.kind == J_FLOAT)
        return j_float(negate ? -v.u.f : v.u.f);
    return j_fail(r, "bad operand type for unary %c: '%s'", negate ? '-' : '+', j_type_name(v));
}

struct value j_fail_undefined(struct run *r, struct value v)
{
    const struct undefined *u = v.u.undefined;
    struct buf name = {0};
    if (!u)
        return j_fail(r, "a value is undefined");
    if (u->hint)
        return j_fail(r, "%s", u->hint);
    j_put_repr(r, &name, u->name);
    const char *n = name.data ? name.data : "";
    if (u->object.kind == J_MISSING)
        j_fail(r, "%s is undefined", n);
    else
        j_fail(r, "a value of type '%s' has no %s %s", j_type_name(u->object),
               u->name.kind == J_STRING ? "attribute" : "element", n);
    buf_free(&name);
    return v;
}
