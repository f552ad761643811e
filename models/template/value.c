#include "models/template/value.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/utf8.h"

enum { DEPTH_MAX = 1200, STEP_WORK = 64 /* a step takes as long as so many bytes of plain work */ };

static struct value fail_va(struct run *r, int code, const char *fmt, va_list ap)
{
    if (r->error.code)
        return j_of(J_UNDEFINED);
    char text[sizeof r->error.text];
    vsnprintf(text, sizeof text, fmt, ap);
    text[utf8_whole(text, strlen(text))] = 0;
    err_set(&r->error, code, "line %d: %s", r->line, text);
    return j_of(J_UNDEFINED);
}

static void fail(struct run *r, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
static void fail(struct run *r, int code, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    fail_va(r, code, fmt, ap);
    va_end(ap);
}

struct value j_fail(struct run *r, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    struct value v = fail_va(r, E_INPUT, fmt, ap);
    va_end(ap);
    return v;
}

struct value j_full(struct run *r, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    struct value v = fail_va(r, E_FULL, fmt, ap);
    va_end(ap);
    return v;
}

bool j_enter(struct run *r)
{
    if (j_failed(r))
        return false;
    if (r->depth >= DEPTH_MAX) {
        j_full(r, "the template recurses too deeply");
        return false;
    }
    r->depth++;
    return true;
}

/* Work that is no step still takes time: false (and failed) when the run is given up. */
static bool tick(struct run *r, size_t work)
{
    struct err e = {0};
    int rc = cancel_check(r->cancel, work, &e);
    if (rc)
        fail(r, rc, "%s", e.text);
    return !rc;
}

bool j_charge(struct run *r, size_t steps)
{
    if (j_failed(r) || !tick(r, (steps + 1) * STEP_WORK))
        return false;
    if (r->steps_left < steps) {
        j_full(r, "the template takes too many steps");
        return false;
    }
    r->steps_left -= steps;
    return true;
}

void *j_alloc(struct run *r, size_t bytes)
{
    if (bytes > r->memory_left) {
        j_full(r, "the template takes too much memory");
        return NULL;
    }
    r->memory_left -= bytes;
    if (!tick(r, bytes / 4 + 1))
        return NULL;
    return arena_new(&r->arena, bytes);
}

void *j_alloc_array(struct run *r, size_t n, size_t size)
{
    size_t bytes;
    if (__builtin_mul_overflow(n, size, &bytes))
        bytes = SIZE_MAX;
    return j_alloc(r, bytes);
}

/* ---- strings ---- */

struct tail {
    char *used, *end; /* free bytes lie between */
};

struct value j_string_of(struct run *r, const char *s, size_t n)
{
    struct string *x = j_alloc(r, sizeof *x);
    if (!x)
        return j_of(J_UNDEFINED);
    x->data = s;
    x->len = n;
    x->chars = SIZE_MAX;
    return (struct value){.kind = J_STRING, .u.s = x};
}

struct value j_string(struct run *r, const char *s, size_t n)
{
    char *copy = j_alloc(r, n);
    if (!copy)
        return j_of(J_UNDEFINED);
    if (n)
        memcpy(copy, s, n);
    return j_string_of(r, copy, n);
}

struct value j_cstring(struct run *r, const char *s)
{
    return j_string_of(r, s, strlen(s));
}

struct value j_buf(struct run *r, struct buf *b)
{
    struct value v = j_string(r, b->data, b->len);
    buf_free(b);
    return v;
}

/* Text that grows by `x = x + more` in a loop would cost the square of its length; so a concatenation leaves
 * room behind its bytes, and the next one whose left side ends exactly there writes into that room. */
struct value j_concat(struct run *r, struct value a, struct value b)
{
    if (a.kind != J_STRING || b.kind != J_STRING)
        return j_of(J_UNDEFINED);
    struct string *x = a.u.s, *y = b.u.s;
    if (!y->len)
        return a;
    if (!x->len)
        return b;
    j_charge(r, y->len / 64 + 1);
    struct tail *t = x->tail;
    size_t n = x->len + y->len;
    const char *data = x->data;
    if (t && x->data + x->len == t->used && (size_t)(t->end - t->used) >= y->len) {
        memcpy(t->used, y->data, y->len);
        t->used += y->len;
    } else {
        j_charge(r, x->len / 64);
        size_t cap = n < 64 ? n : 2 * n;
        char *bytes = j_alloc(r, cap);
        t = bytes ? j_alloc(r, sizeof *t) : NULL;
        if (!t)
            return j_of(J_UNDEFINED);
        memcpy(bytes, x->data, x->len);
        memcpy(bytes + x->len, y->data, y->len);
        *t = (struct tail){bytes + n, bytes + cap};
        data = bytes;
    }
    struct value v = j_string_of(r, data, n);
    if (v.kind == J_STRING)
        v.u.s->tail = t;
    return v;
}

size_t j_chars(struct value string)
{
    struct string *s = string.u.s;
    if (s->chars == SIZE_MAX) {
        size_t n = 0;
        for (size_t i = 0; i < s->len; i++)
            n += ((unsigned char)s->data[i] & 0xC0) != 0x80;
        s->chars = n;
    }
    return s->chars;
}

size_t j_char_offset(struct value string, size_t char_index)
{
    const struct string *s = string.u.s;
    if (j_chars(string) == s->len)
        return char_index < s->len ? char_index : s->len;
    size_t at = 0;
    while (at < s->len && char_index) {
        at++;
        while (at < s->len && ((unsigned char)s->data[at] & 0xC0) == 0x80)
            at++;
        char_index--;
    }
    return at;
}

struct value j_part(struct run *r, struct value string, size_t from, size_t to)
{
    if (from == 0 && to == string.u.s->len)
        return string;
    struct value v = j_string_of(r, string.u.s->data + from, to > from ? to - from : 0);
    v.markup = string.markup;
    return v;
}

bool j_text_is(struct value v, const char *s)
{
    return v.kind == J_STRING && v.u.s->len == strlen(s) && memcmp(v.u.s->data, s, v.u.s->len) == 0;
}

/* ---- containers ---- */

struct value j_array(struct run *r, enum kind list_or_tuple, size_t n)
{
    struct array *a = j_alloc(r, sizeof *a);
    struct value *items = a ? j_alloc_array(r, n, sizeof *items) : NULL;
    if (!items)
        return j_of(J_UNDEFINED);
    for (size_t i = 0; i < n; i++)
        items[i] = j_none();
    *a = (struct array){items, n};
    return (struct value){.kind = (uint8_t)list_or_tuple, .u.list = a};
}

struct value j_pair(struct run *r, struct value a, struct value b)
{
    struct value v = j_array(r, J_TUPLE, 2);
    if (v.kind == J_TUPLE) {
        v.u.list->items[0] = a;
        v.u.list->items[1] = b;
    }
    return v;
}

struct value j_dict(struct run *r)
{
    struct dict *d = j_alloc(r, sizeof *d);
    return d ? (struct value){.kind = J_DICT, .u.dict = d} : j_of(J_UNDEFINED);
}

struct value j_undefined(struct run *r, struct value name)
{
    return j_undefined_in(r, j_missing(), name);
}

struct value j_undefined_in(struct run *r, struct value object, struct value name)
{
    struct undefined *u = j_alloc(r, sizeof *u);
    if (u)
        *u = (struct undefined){NULL, name, object};
    return (struct value){.kind = J_UNDEFINED, .u.undefined = u};
}

struct value j_undefined_hint(struct run *r, const char *hint, struct value name)
{
    struct undefined *u = j_alloc(r, sizeof *u);
    if (u)
        *u = (struct undefined){hint, name, j_missing()};
    return (struct value){.kind = J_UNDEFINED, .u.undefined = u};
}

static struct value from_container(struct run *r, const struct json *j)
{
    bool object = json_type(j) == JSON_OBJECT;
    struct value v = object ? j_dict(r) : j_array(r, J_LIST, json_count(j));
    size_t i = 0;
    if (j_failed(r) || !j_enter(r))
        return j_of(J_UNDEFINED);
    for (const struct json *c = json_first(j); c && !j_failed(r); c = json_next(c)) {
        struct value item = j_from_json(r, c);
        if (object)
            j_dict_set(r, v.u.dict, j_cstring(r, json_key(c)), item);
        else
            v.u.list->items[i++] = item;
    }
    j_leave(r);
    return v;
}

struct value j_from_json(struct run *r, const struct json *j)
{
    int64_t i;
    struct value v;
    switch (json_type(j)) {
    case JSON_NULL:
        return j_none();
    case JSON_BOOL:
        return j_bool(json_true(j));
    case JSON_STRING:
        return j_cstring(r, json_text(j));
    case JSON_NUMBER:
        if (json_is_integer(j) && json_i64(j, &i))
            return j_int(i);
        if (!json_digits(j))
            return j_float(json_number(j));
        v = j_cstring(r, json_digits(j));
        v.kind = v.kind == J_STRING ? J_BIG : J_UNDEFINED;
        return v;
    case JSON_ARRAY:
    case JSON_OBJECT:
        break;
    }
    return from_container(r, j);
}

/* ---- dicts ---- */

static bool key_is(struct run *r, const struct entry *e, struct value key, uint64_t hash)
{
    return e->hash == hash && (j_is(e->key, key) || j_equal(r, e->key, key));
}

static size_t dict_slot(struct run *r, const struct dict *d, struct value key, uint64_t hash)
{
    size_t mask = d->n_index - 1, at = hash & mask;
    while (d->index[at] && !key_is(r, &d->entries[d->index[at] - 1], key, hash)) {
        at = (at + 1) & mask;
        if (r)
            j_charge(r, 1); /* keys chosen to collide end as too many steps */
    }
    return at;
}

static struct entry *dict_entry(struct run *r, const struct dict *d, struct value key, uint64_t hash)
{
    if (d->index) {
        uint32_t i = d->index[dict_slot(r, d, key, hash)];
        return i ? &d->entries[i - 1] : NULL;
    }
    for (size_t i = 0; i < d->n; i++)
        if (key_is(r, &d->entries[i], key, hash))
            return &d->entries[i];
    return NULL;
}

static bool dict_grow(struct run *r, struct dict *d)
{
    size_t cap = d->cap ? 2 * d->cap : 4;
    struct entry *entries = cap <= UINT32_MAX / 4 ? j_alloc_array(r, cap, sizeof *entries) : NULL;
    if (!entries)
        return false;
    if (d->n)
        memcpy(entries, d->entries, d->n * sizeof *entries);
    d->entries = entries;
    d->cap = cap;
    if (cap <= 8)
        return true;
    d->n_index = 2 * cap;
    d->index = j_alloc_array(r, d->n_index, sizeof *d->index);
    if (!d->index)
        return false;
    for (size_t i = 0; i < d->n; i++) {
        size_t at = d->entries[i].hash & (d->n_index - 1);
        while (d->index[at])
            at = (at + 1) & (d->n_index - 1);
        d->index[at] = (uint32_t)i + 1;
    }
    return true;
}

bool j_dict_set(struct run *r, struct dict *d, struct value key, struct value value)
{
    uint64_t hash;
    if (j_failed(r) || !j_hash(r, key, &hash))
        return false;
    struct entry *e = dict_entry(r, d, key, hash);
    if (e) {
        e->value = value;
        return true;
    }
    if (d->n == d->cap && !dict_grow(r, d))
        return false;
    d->entries[d->n++] = (struct entry){key, value, hash};
    if (d->index)
        d->index[dict_slot(r, d, key, hash)] = (uint32_t)d->n;
    return true;
}

const struct value *j_dict_find(struct run *r, const struct dict *d, struct value key)
{
    uint64_t hash;
    if (!j_hashable(key) || !j_hash(r, key, &hash))
        return NULL;
    const struct entry *e = dict_entry(r, d, key, hash);
    return e ? &e->value : NULL;
}

const struct value *j_dict_find_text(const struct dict *d, const char *s, size_t n)
{
    struct string text = {s, n, SIZE_MAX, NULL};
    return j_dict_find(NULL, d, (struct value){.kind = J_STRING, .u.s = &text});
}
