/* obj.name, obj[key] and slices, as jinja2's immutable sandbox has them. */
#include <string.h>

#include "models/template/run.h"

static bool listed(const char *const *names, const char *s, size_t n)
{
    for (; *names; names++)
        if (strlen(*names) == n && memcmp(*names, s, n) == 0)
            return true;
    return false;
}

/* Methods that change their object: the sandbox makes them undefined, and using them an error. */
static bool changes(struct value obj, const char *s, size_t n)
{
    static const char *const of_list[] = {"append", "clear",  "pop",    "reverse", "insert",
                                          "sort",   "extend", "remove", NULL};
    static const char *const of_dict[] = {"clear", "pop", "popitem", "setdefault", "update", NULL};
    return (obj.kind == J_LIST && listed(of_list, s, n)) || (obj.kind == J_DICT && listed(of_dict, s, n));
}

/* Names every Python object has and the sandbox hides. */
static bool internal(const char *s, size_t n)
{
    static const char *const names[] = {
        "__class__",
        "__init__",
        "__doc__",
        "__dir__",
        "__eq__",
        "__ne__",
        "__lt__",
        "__le__",
        "__gt__",
        "__ge__",
        "__hash__",
        "__str__",
        "__repr__",
        "__new__",
        "__reduce__",
        "__reduce_ex__",
        "__getattribute__",
        "__setattr__",
        "__delattr__",
        "__format__",
        "__sizeof__",
        "__subclasshook__",
        "__init_subclass__",
        "__getstate__",
        NULL,
    };
    return n > 4 && listed(names, s, n);
}

static struct value unsafe(struct run *r, struct value obj, struct value name)
{
    struct buf b = {0};
    buf_printf(&b, "access to attribute '%.*s' of '%s' object is unsafe",
               (int)(name.u.s->len < 60 ? name.u.s->len : 60), name.u.s->data, j_type_name(obj));
    struct value hint = j_string(r, b.data, b.len + 1);
    buf_free(&b);
    return j_failed(r) ? hint : j_undefined_hint(r, hint.u.s->data, name);
}

static struct value loop_attribute(struct run *r, struct loop *l, const char *s)
{
    if (strcmp(s, "index") == 0)
        return j_int(l->index0 + 1);
    if (strcmp(s, "index0") == 0)
        return j_int(l->index0);
    if (strcmp(s, "first") == 0)
        return j_bool(l->index0 == 0);
    if (strcmp(s, "last") == 0)
        return j_bool(!j_given(j_loop_peek(r, l)));
    if (strcmp(s, "length") == 0)
        return j_int((int64_t)j_loop_length(r, l));
    if (strcmp(s, "revindex") == 0)
        return j_int((int64_t)j_loop_length(r, l) - l->index0);
    if (strcmp(s, "revindex0") == 0)
        return j_int((int64_t)j_loop_length(r, l) - l->index0 - 1);
    if (strcmp(s, "depth") == 0)
        return j_int(l->depth0 + 1);
    if (strcmp(s, "depth0") == 0)
        return j_int(l->depth0);
    if (strcmp(s, "previtem") == 0)
        return l->index0 > 0 ? l->before : j_undefined_hint(r, "there is no previous item", j_none());
    if (strcmp(s, "nextitem") == 0) {
        struct value next = j_loop_peek(r, l);
        return j_given(next) ? next : j_undefined_hint(r, "there is no next item", j_none());
    }
    return j_missing();
}

static struct value macro_attribute(struct run *r, const struct node *n, const char *s)
{
    if (strcmp(s, "name") == 0)
        return n->type == N_MACRO ? j_string_of(r, n->name.s, n->name.n) : j_none();
    if (strcmp(s, "catch_kwargs") == 0)
        return j_bool(n->slot_kwargs >= 0);
    if (strcmp(s, "catch_varargs") == 0)
        return j_bool(n->slot_varargs >= 0);
    if (strcmp(s, "caller") == 0)
        return j_bool(n->flag);
    if (strcmp(s, "arguments") != 0)
        return j_missing();
    struct value names = j_array(r, J_TUPLE, (size_t)n->list.n);
    for (int i = 0; i < n->list.n && !j_failed(r); i++)
        names.u.list->items[i] = j_string_of(r, n->list.at[i]->name.s, n->list.at[i]->name.n);
    return names;
}

/* What Python's getattr finds beside methods; J_MISSING: nothing. name has a NUL after it. */
static struct value plain_attribute(struct run *r, struct value obj, const char *s)
{
    switch (obj.kind) {
    case J_LOOP:
        return loop_attribute(r, obj.u.loop, s);
    case J_MACRO:
        return macro_attribute(r, obj.u.macro->node, s);
    case J_CYCLER:
        if (strcmp(s, "current") == 0)
            return obj.u.cycler->items.u.list->items[obj.u.cycler->at];
        if (strcmp(s, "pos") == 0)
            return j_int((int64_t)obj.u.cycler->at);
        return strcmp(s, "items") == 0 ? obj.u.cycler->items : j_missing();
    case J_JOINER:
        if (strcmp(s, "used") == 0)
            return j_bool(obj.u.joiner->used);
        return strcmp(s, "sep") == 0 ? obj.u.joiner->separator : j_missing();
    case J_RANGE:
        if (strcmp(s, "start") == 0)
            return j_int(obj.u.range->start);
        if (strcmp(s, "stop") == 0)
            return j_int(obj.u.range->stop);
        return strcmp(s, "step") == 0 ? j_int(obj.u.range->step) : j_missing();
    case J_TUPLE:
        if (obj.group && strcmp(s, "grouper") == 0)
            return obj.u.list->items[0];
        return obj.group && strcmp(s, "list") == 0 ? obj.u.list->items[1] : j_missing();
    case J_BOOL:
    case J_INT:
        if (strcmp(s, "real") == 0 || strcmp(s, "numerator") == 0)
            return j_int(obj.kind == J_BOOL ? obj.u.b : obj.u.i);
        if (strcmp(s, "imag") == 0)
            return j_int(0);
        return strcmp(s, "denominator") == 0 ? j_int(1) : j_missing();
    case J_FLOAT:
        return strcmp(s, "real") == 0 ? obj : strcmp(s, "imag") == 0 ? j_float(0) : j_missing();
    }
    return j_missing();
}

static struct value python_getattr(struct run *r, struct value obj, struct value name)
{
    const char *s = name.u.s->data;
    size_t n = name.u.s->len;
    char terminated[32];
    if (obj.kind == J_NAMESPACE) {
        const struct value *v = j_dict_find(r, obj.u.dict, name);
        return !v ? j_missing() : n && s[0] == '_' ? unsafe(r, obj, name) : *v;
    }
    if (changes(obj, s, n) || internal(s, n))
        return unsafe(r, obj, name);
    const struct builtin *m = method_find(obj, s, n);
    if (m) {
        struct method *bound = j_alloc(r, sizeof *bound);
        if (!bound)
            return j_of(J_UNDEFINED);
        *bound = (struct method){obj, m};
        return (struct value){.kind = J_METHOD, .u.method = bound};
    }
    if (n >= sizeof terminated)
        return j_missing();
    memcpy(terminated, s, n);
    terminated[n] = 0;
    return strlen(terminated) == n ? plain_attribute(r, obj, terminated) : j_missing();
}

struct value j_attr_only(struct run *r, struct value obj, struct value name)
{
    if (obj.kind == J_UNDEFINED)
        return j_fail_undefined(r, obj);
    struct value v = python_getattr(r, obj, name);
    return j_given(v) ? v : j_undefined_in(r, obj, name);
}

bool j_index(struct run *r, struct value v, int64_t *i)
{
    if (j_is_int(v, i))
        return true;
    if (v.kind == J_UNDEFINED)
        j_fail_undefined(r, v);
    else
        j_fail(r, "'%s' object cannot be interpreted as an integer", j_type_name(v));
    return false;
}

static struct value nth(struct run *r, struct value obj, size_t i)
{
    if (obj.kind == J_STRING) {
        size_t from = j_char_offset(obj, i), to = from + 1;
        j_charge(r, j_chars(obj) == obj.u.s->len ? 0 : from / 64);
        while (to < obj.u.s->len && ((unsigned char)obj.u.s->data[to] & 0xC0) == 0x80)
            to++;
        return j_part(r, obj, from, to);
    }
    if (obj.kind == J_RANGE)
        return j_int(obj.u.range->start + (int64_t)i * obj.u.range->step);
    return obj.u.list->items[i];
}

/* Python's obj[key] where it gives something; J_MISSING where it raises TypeError or LookupError. */
static struct value python_getitem(struct run *r, struct value obj, struct value key)
{
    int64_t i;
    size_t n;
    switch (obj.kind) {
    case J_DICT: {
        const struct value *v = j_dict_find(r, obj.u.dict, key);
        return v ? *v : j_missing();
    }
    case J_STRING:
    case J_LIST:
    case J_TUPLE:
    case J_RANGE:
        if (!j_is_int(key, &i) || !j_length(r, obj, &n))
            return j_missing();
        if (i < 0)
            i += (int64_t)n;
        return i < 0 || i >= (int64_t)n ? j_missing() : nth(r, obj, (size_t)i);
    }
    return j_missing();
}

struct value j_getattr(struct run *r, struct value obj, struct value name)
{
    if (obj.kind == J_UNDEFINED)
        return j_fail_undefined(r, obj);
    struct value v = python_getattr(r, obj, name);
    if (!j_given(v))
        v = python_getitem(r, obj, name);
    return j_given(v) ? v : j_undefined_in(r, obj, name);
}

struct value j_getitem(struct run *r, struct value obj, struct value key)
{
    if (obj.kind == J_UNDEFINED)
        return j_fail_undefined(r, obj);
    struct value v = python_getitem(r, obj, key);
    if (!j_given(v) && key.kind == J_STRING)
        v = python_getattr(r, obj, key);
    return j_given(v) ? v : j_undefined_in(r, obj, key);
}

struct value j_get_path_or(struct run *r, struct value obj, struct value path, struct value fallback)
{
    bool replace = j_given(fallback) && fallback.kind != J_NONE;
    if (path.kind != J_STRING) {
        obj = path.kind == J_NONE ? obj : j_getitem(r, obj, path);
        return replace && path.kind != J_NONE && obj.kind == J_UNDEFINED ? fallback : obj;
    }
    const char *s = path.u.s->data;
    for (size_t from = 0; from <= path.u.s->len && !j_failed(r);) {
        size_t to = from;
        bool digits = true;
        int64_t index = 0;
        for (; to < path.u.s->len && s[to] != '.'; to++) {
            digits = digits && s[to] >= '0' && s[to] <= '9';
            index = digits && index < INT64_MAX / 20 ? index * 10 + (s[to] - '0') : index;
        }
        obj = j_getitem(r, obj, digits && to > from ? j_int(index) : j_part(r, path, from, to));
        if (replace && obj.kind == J_UNDEFINED)
            obj = fallback;
        from = to + 1;
    }
    return obj;
}

struct value j_get_path(struct run *r, struct value obj, struct value path)
{
    return j_get_path_or(r, obj, path, j_missing());
}

/* ---- slices ---- */

static bool slice_part(struct run *r, struct value v, int64_t if_none, int64_t *out)
{
    *out = if_none;
    return v.kind == J_NONE || j_index(r, v, out);
}

static int64_t clamp(int64_t i, int64_t n, int64_t lo, int64_t hi)
{
    if (i < 0)
        i = i < -n ? lo : i + n;
    return i < lo ? lo : i > hi ? hi : i;
}

static struct value slice_range(struct run *r, const struct range *g, int64_t start, int64_t stop, int64_t step,
                                size_t n)
{
    struct range *out = j_alloc(r, sizeof *out);
    int64_t s;
    if (!out || __builtin_mul_overflow(g->step, step, &s))
        return j_fail(r, "the step of a range is too large");
    *out = (struct range){g->start + start * g->step, s, n, g->start + stop * g->step};
    return (struct value){.kind = J_RANGE, .u.range = out};
}

static struct value slice_string(struct run *r, struct value s, int64_t start, int64_t step, size_t n)
{
    j_charge(r, s.u.s->len / 64);
    if (step == 1) {
        size_t from = j_char_offset(s, (size_t)start);
        struct value rest = j_part(r, s, from, s.u.s->len);
        return j_failed(r) ? rest : j_part(r, s, from, from + (n ? j_char_offset(rest, n) : 0));
    }
    struct value chars = j_list(r, s, J_LIST), *c;
    struct buf b = {0};
    for (size_t i = 0; i < n && !j_failed(r); i++, start += step) {
        c = &chars.u.list->items[start];
        buf_put(&b, c->u.s->data, c->u.s->len);
    }
    struct value v = j_buf(r, &b);
    v.markup = s.markup;
    return v;
}

struct value j_slice(struct run *r, struct value obj, struct value vstart, struct value vstop, struct value vstep)
{
    int64_t start, stop, step;
    size_t length;
    if (obj.kind == J_UNDEFINED)
        return j_fail_undefined(r, obj);
    if (obj.kind != J_STRING && obj.kind != J_LIST && obj.kind != J_TUPLE && obj.kind != J_RANGE)
        return j_fail(r, "'%s' object cannot be sliced", j_type_name(obj));
    if (!slice_part(r, vstep, 1, &step) || !j_length(r, obj, &length))
        return j_of(J_UNDEFINED);
    if (step == 0)
        return j_fail(r, "slice step cannot be zero");
    step = step < -INT64_MAX ? -INT64_MAX : step;
    int64_t len = (int64_t)length, lo = step < 0 ? -1 : 0, hi = step < 0 ? len - 1 : len;
    if (!slice_part(r, vstart, 0, &start) || !slice_part(r, vstop, 0, &stop))
        return j_of(J_UNDEFINED);
    start = vstart.kind == J_NONE ? (step < 0 ? hi : lo) : clamp(start, len, lo, hi);
    stop = vstop.kind == J_NONE ? (step < 0 ? lo : hi) : clamp(stop, len, lo, hi);
    size_t n = 0;
    if (step > 0 && start < stop)
        n = (size_t)((stop - start - 1) / step + 1);
    else if (step < 0 && stop < start)
        n = (size_t)((start - stop - 1) / -step + 1);
    if (obj.kind == J_RANGE)
        return slice_range(r, obj.u.range, start, stop, step, n);
    if (obj.kind == J_STRING)
        return slice_string(r, obj, n ? start : 0, step, n);
    struct value v = j_array(r, obj.kind, n);
    for (size_t i = 0; i < n && j_charge(r, i % 8 == 0); i++)
        v.u.list->items[i] = obj.u.list->items[start + (int64_t)i * step];
    return v;
}
