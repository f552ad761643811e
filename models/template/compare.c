/* Truth, equality, order, hash and membership of values, as Python has them. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/map.h"
#include "models/template/iter.h"
#include "models/template/value.h"

bool j_is_number(struct value v)
{
    return v.kind == J_BOOL || v.kind == J_INT || v.kind == J_FLOAT;
}

bool j_is_int(struct value v, int64_t *i)
{
    if (v.kind == J_BOOL)
        *i = v.u.b;
    else if (v.kind == J_INT)
        *i = v.u.i;
    else
        return false;
    return true;
}

double j_as_double(struct value v)
{
    return v.kind == J_FLOAT ? v.u.f : v.kind == J_BOOL ? v.u.b : (double)v.u.i;
}

const char *j_type_name(struct value v)
{
    static const char *const names[] = {
        "Undefined", "NoneType",    "bool",   "int",       "int",    "float",     "str",
        "list",      "tuple",       "dict",   "Namespace", "range",  "dict view", "generator",
        "Macro",     "LoopContext", "method", "function",  "Cycler", "Joiner",    "missing value",
    };
    return names[v.kind];
}

bool j_has_length(struct value v)
{
    switch (v.kind) {
    case J_UNDEFINED:
    case J_STRING:
    case J_LIST:
    case J_TUPLE:
    case J_DICT:
    case J_RANGE:
    case J_VIEW:
    case J_LOOP:
        return true;
    }
    return false;
}

bool j_length(struct run *r, struct value v, size_t *n)
{
    *n = 0;
    switch (v.kind) {
    case J_UNDEFINED:
        return true;
    case J_STRING:
        *n = j_chars(v);
        return true;
    case J_LIST:
    case J_TUPLE:
        *n = v.u.list->n;
        return true;
    case J_DICT:
        *n = v.u.dict->n;
        return true;
    case J_RANGE:
        *n = v.u.range->n;
        return true;
    case J_VIEW:
        *n = v.u.view->dict->n;
        return true;
    case J_LOOP:
        *n = j_loop_length(r, v.u.loop);
        return !j_failed(r);
    }
    j_fail(r, "object of type '%s' has no len()", j_type_name(v));
    return false;
}

bool j_true(struct run *r, struct value v)
{
    size_t n;
    switch (v.kind) {
    case J_UNDEFINED:
    case J_NONE:
    case J_MISSING:
        return false;
    case J_BOOL:
        return v.u.b;
    case J_INT:
        return v.u.i != 0;
    case J_FLOAT:
        return v.u.f != 0;
    case J_STRING:
        return v.u.s->len != 0;
    }
    return !j_has_length(v) || (j_length(r, v, &n) && n != 0);
}

bool j_is(struct value a, struct value b)
{
    if (a.kind != b.kind)
        return false;
    switch (a.kind) {
    case J_NONE:
    case J_MISSING:
        return true;
    case J_BOOL:
        return a.u.b == b.u.b;
    case J_INT:
        return a.u.i == b.u.i;
    case J_FLOAT:
        return memcmp(&a.u.f, &b.u.f, sizeof a.u.f) == 0;
    case J_METHOD:
        return false; /* a bound method is made anew by each look-up */
    case J_UNDEFINED:
        return a.u.undefined == b.u.undefined && a.u.undefined;
    }
    return a.u.s == b.u.s;
}

static bool numbers_equal(struct value a, struct value b)
{
    int64_t x = 0, y = 0;
    bool xi = j_is_int(a, &x), yi = j_is_int(b, &y);
    if (xi && yi)
        return x == y;
    if (!xi && !yi)
        return a.u.f == b.u.f;
    double f = xi ? b.u.f : a.u.f;
    return f == floor(f) && f >= -0x1p63 && f < 0x1p63 && (int64_t)f == (xi ? x : y);
}

static bool strings_equal(const struct string *a, const struct string *b)
{
    return a->len == b->len && (a->data == b->data || memcmp(a->data, b->data, a->len) == 0);
}

static bool arrays_equal(struct run *r, const struct array *a, const struct array *b)
{
    if (a->n != b->n || !j_enter(r))
        return false;
    bool same = true;
    for (size_t i = 0; i < a->n && same; i++)
        same = j_is(a->items[i], b->items[i]) || j_equal(r, a->items[i], b->items[i]);
    j_leave(r);
    return same;
}

static bool dicts_equal(struct run *r, const struct dict *a, const struct dict *b)
{
    if (a->n != b->n || !j_enter(r))
        return false;
    bool same = true;
    for (size_t i = 0; i < a->n && same; i++) {
        const struct value *other = j_dict_find(r, b, a->entries[i].key);
        same = other && (j_is(a->entries[i].value, *other) || j_equal(r, a->entries[i].value, *other));
    }
    j_leave(r);
    return same;
}

static bool ranges_equal(const struct range *a, const struct range *b)
{
    return a->n == b->n && (!a->n || (a->start == b->start && (a->n == 1 || a->step == b->step)));
}

bool j_equal(struct run *r, struct value a, struct value b)
{
    if (j_is_number(a) && j_is_number(b))
        return numbers_equal(a, b);
    if (a.kind != b.kind || (r && !j_charge(r, 1)))
        return false;
    switch (a.kind) {
    case J_UNDEFINED:
    case J_NONE:
    case J_MISSING:
        return true;
    case J_BIG:
        return strings_equal(a.u.s, b.u.s);
    case J_STRING:
        if (r)
            j_charge(r, a.u.s->len / 256);
        return strings_equal(a.u.s, b.u.s);
    case J_LIST:
    case J_TUPLE:
        return arrays_equal(r, a.u.list, b.u.list);
    case J_DICT:
        return dicts_equal(r, a.u.dict, b.u.dict);
    case J_RANGE:
        return ranges_equal(a.u.range, b.u.range);
    case J_VIEW:
        return a.u.view->of == b.u.view->of && a.u.view->of != VIEW_VALUES &&
               dicts_equal(r, a.u.view->dict, b.u.view->dict);
    case J_METHOD:
        return a.u.method->of == b.u.method->of && j_is(a.u.method->self, b.u.method->self);
    }
    return j_is(a, b);
}

static int order_strings(const struct string *a, const struct string *b)
{
    size_t n = a->len < b->len ? a->len : b->len;
    int c = n ? memcmp(a->data, b->data, n) : 0; /* the order of UTF-8 bytes is that of code points */
    return c ? c : a->len < b->len ? -1 : a->len > b->len;
}

static bool arrays_less(struct run *r, const struct array *a, const struct array *b, bool or_equal)
{
    size_t i = 0;
    if (!j_enter(r))
        return false;
    while (i < a->n && i < b->n && (j_is(a->items[i], b->items[i]) || j_equal(r, a->items[i], b->items[i])))
        i++;
    bool less = i < a->n && i < b->n ? j_less(r, a->items[i], b->items[i], or_equal)
                : a->n == b->n       ? or_equal
                                     : a->n < b->n;
    j_leave(r);
    return less;
}

/* An integer past 64 bits against a number or another such integer. */
static bool big_less(struct value a, struct value b, bool or_equal)
{
    bool a_big = a.kind == J_BIG, b_big = b.kind == J_BIG, a_neg = a_big && a.u.s->data[0] == '-';
    bool b_neg = b_big && b.u.s->data[0] == '-';
    if (a.kind == J_FLOAT || b.kind == J_FLOAT) {
        double x = a_big ? strtod(a.u.s->data, NULL) : a.u.f, y = b_big ? strtod(b.u.s->data, NULL) : b.u.f;
        return or_equal ? x <= y : x < y;
    }
    if (!a_big || !b_big || a_neg != b_neg)
        return a_big ? a_neg : !b_neg;
    int c =
        a.u.s->len != b.u.s->len ? (a.u.s->len < b.u.s->len ? -1 : 1) : memcmp(a.u.s->data, b.u.s->data, a.u.s->len);
    c = a_neg ? -c : c;
    return or_equal ? c <= 0 : c < 0;
}

bool j_less(struct run *r, struct value a, struct value b, bool or_equal)
{
    int64_t x, y;
    if (a.kind == J_UNDEFINED || b.kind == J_UNDEFINED) {
        j_fail_undefined(r, a.kind == J_UNDEFINED ? a : b);
        return false;
    }
    if (!j_charge(r, 1))
        return false;
    if (j_is_int(a, &x) && j_is_int(b, &y))
        return or_equal ? x <= y : x < y;
    if (j_is_number(a) && j_is_number(b))
        return or_equal ? j_as_double(a) <= j_as_double(b) : j_as_double(a) < j_as_double(b);
    if ((a.kind == J_BIG || b.kind == J_BIG) && (a.kind == J_BIG || j_is_number(a)) &&
        (b.kind == J_BIG || j_is_number(b)))
        return big_less(a, b, or_equal);
    if (a.kind == b.kind && a.kind == J_STRING) {
        int c = order_strings(a.u.s, b.u.s);
        return or_equal ? c <= 0 : c < 0;
    }
    if (a.kind == b.kind && (a.kind == J_LIST || a.kind == J_TUPLE))
        return arrays_less(r, a.u.list, b.u.list, or_equal);
    j_fail(r, "'%s' and '%s' have no order", j_type_name(a), j_type_name(b));
    return false;
}

/* A tuple nested past all use counts as unhashable, so that this recursion needs no run to stop it. */
static bool hashable(struct value v, int depth)
{
    if (v.kind == J_TUPLE) {
        bool all = depth > 0;
        for (size_t i = 0; i < v.u.list->n && all; i++)
            all = hashable(v.u.list->items[i], depth - 1);
        return all;
    }
    return v.kind != J_LIST && v.kind != J_DICT && v.kind != J_VIEW;
}

bool j_hashable(struct value v)
{
    return hashable(v, 200);
}

static uint64_t hash_tuple(struct run *r, const struct array *a)
{
    uint64_t h = a->n, one = 0;
    for (size_t i = 0; i < a->n && j_hash(r, a->items[i], &one); i++)
        h = map_hash(h ^ one) + i;
    return h;
}

bool j_hash(struct run *r, struct value v, uint64_t *hash)
{
    int64_t i;
    if (j_is_int(v, &i)) {
        *hash = map_hash((uint64_t)i);
        return true;
    }
    switch (v.kind) {
    case J_FLOAT:
        if (v.u.f == floor(v.u.f) && fabs(v.u.f) < 0x1p63)
            *hash = map_hash((uint64_t)(int64_t)v.u.f);
        else
            memcpy(hash, &v.u.f, sizeof *hash);
        return true;
    case J_STRING:
        *hash = map_hash_bytes(v.u.s->data, v.u.s->len);
        return true;
    case J_BIG:
        *hash = map_hash_bytes(v.u.s->data, v.u.s->len) + 1;
        return true;
    case J_UNDEFINED:
    case J_NONE:
    case J_MISSING:
        *hash = v.kind;
        return true;
    case J_RANGE:
        *hash = v.u.range->n;
        return true;
    case J_METHOD:
        *hash = (uintptr_t)v.u.method->of;
        return true;
    case J_LIST:
    case J_DICT:
    case J_VIEW:
        j_fail(r, "unhashable type: '%s'", j_type_name(v));
        return false;
    case J_TUPLE:
        if (!j_enter(r))
            return false;
        *hash = hash_tuple(r, v.u.list);
        j_leave(r);
        return !j_failed(r);
    }
    *hash = (uintptr_t)v.u.s;
    return true;
}

static bool in_range(struct value item, const struct range *g)
{
    int64_t x;
    if (item.kind == J_FLOAT && item.u.f == floor(item.u.f) && fabs(item.u.f) < 0x1p62)
        x = (int64_t)item.u.f;
    else if (!j_is_int(item, &x))
        return false;
    __int128 off = (__int128)x - g->start;
    return off % g->step == 0 && off / g->step >= 0 && off / g->step < (__int128)g->n;
}

static bool in_each(struct run *r, struct value item, struct value container)
{
    struct value iter = j_iter(r, container), each;
    while (j_next(r, iter, &each))
        if (j_is(each, item) || j_equal(r, each, item))
            return true;
    return false;
}

static bool in_dict(struct run *r, struct value item, const struct dict *d)
{
    uint64_t hash;
    return j_hash(r, item, &hash) && j_dict_find(r, d, item);
}

bool j_in(struct run *r, struct value item, struct value c)
{
    switch (c.kind) {
    case J_STRING:
        if (item.kind != J_STRING) {
            j_fail(r, "'in <string>' requires string as left operand, not %s", j_type_name(item));
            return false;
        }
        j_charge(r, c.u.s->len / 64);
        return !item.u.s->len || memmem(c.u.s->data, c.u.s->len, item.u.s->data, item.u.s->len);
    case J_DICT:
        return in_dict(r, item, c.u.dict);
    case J_RANGE:
        return in_range(item, c.u.range);
    case J_VIEW:
        if (c.u.view->of == VIEW_KEYS)
            return in_dict(r, item, c.u.view->dict);
    }
    return in_each(r, item, c);
}
