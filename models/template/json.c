/* The tojson filter as transformers defines it: json.dumps with non-ASCII text kept. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "models/template/run.h"

struct dumper {
    struct run *r;
    struct buf out;
    bool ascii, sort, pretty;
    struct value indent; /* a string */
    const char *item_separator, *key_separator;
    size_t n_item_separator, n_key_separator;
    int depth;
};

static void dump(struct dumper *d, struct value v);

static void new_line(struct dumper *d)
{
    if (!d->pretty)
        return;
    buf_putc(&d->out, '\n');
    for (int i = 0; i < d->depth; i++)
        buf_put(&d->out, d->indent.u.s->data, d->indent.u.s->len);
}

static void dump_float(struct dumper *d, double f)
{
    if (isnan(f) || isinf(f))
        buf_puts(&d->out, isnan(f) ? "NaN" : f < 0 ? "-Infinity" : "Infinity");
    else
        json_put_double(&d->out, f);
}

static void dump_scalar(struct dumper *d, struct value v)
{
    switch (v.kind) {
    case J_NONE:
        buf_puts(&d->out, "null");
        break;
    case J_BOOL:
        buf_puts(&d->out, v.u.b ? "true" : "false");
        break;
    case J_INT:
        buf_printf(&d->out, "%lld", (long long)v.u.i);
        break;
    case J_BIG:
        buf_put(&d->out, v.u.s->data, v.u.s->len);
        break;
    case J_FLOAT:
        dump_float(d, v.u.f);
        break;
    case J_STRING:
        j_charge(d->r, v.u.s->len / 64);
        json_put_string(&d->out, v.u.s->data, v.u.s->len, d->ascii);
        break;
    default:
        j_fail(d->r, "object of type %s is not JSON serializable", j_type_name(v));
    }
}

static void dump_key(struct dumper *d, struct value key)
{
    if (key.kind == J_STRING) {
        dump_scalar(d, key);
    } else if (key.kind == J_NONE || j_is_number(key) || key.kind == J_BIG) {
        buf_putc(&d->out, '"');
        dump_scalar(d, key);
        buf_putc(&d->out, '"');
    } else {
        j_fail(d->r, "keys of JSON must be str, int, float, bool or None, not %s", j_type_name(key));
    }
    buf_put(&d->out, d->key_separator, d->n_key_separator);
}

static void dump_dict(struct dumper *d, const struct dict *dict)
{
    struct entry *entries = dict->entries;
    if (d->sort && dict->n > 1) { /* an insertion sort would be quadratic: sort through the list filter's merge sort */
        struct value keys = j_array(d->r, J_LIST, dict->n);
        entries = j_alloc_array(d->r, dict->n, sizeof *entries);
        for (size_t i = 0; i < dict->n && !j_failed(d->r); i++)
            keys.u.list->items[i] = dict->entries[i].key;
        keys = j_failed(d->r) ? keys : j_sorted(d->r, keys);
        for (size_t i = 0; i < dict->n && !j_failed(d->r); i++) {
            entries[i].key = keys.u.list->items[i];
            entries[i].value = *j_dict_find(d->r, dict, entries[i].key);
        }
    }
    for (size_t i = 0; i < dict->n && !j_failed(d->r); i++) {
        if (i)
            buf_put(&d->out, d->item_separator, d->n_item_separator);
        new_line(d);
        dump_key(d, entries[i].key);
        dump(d, entries[i].value);
    }
}

static void dump_list(struct dumper *d, const struct array *a)
{
    for (size_t i = 0; i < a->n && !j_failed(d->r); i++) {
        if (i)
            buf_put(&d->out, d->item_separator, d->n_item_separator);
        new_line(d);
        dump(d, a->items[i]);
    }
}

static void dump(struct dumper *d, struct value v)
{
    bool object = v.kind == J_DICT, list = v.kind == J_LIST || v.kind == J_TUPLE;
    if (!j_charge(d->r, 1))
        return;
    if (!object && !list) {
        dump_scalar(d, v);
        return;
    }
    if (d->out.len > d->r->memory_left || !j_enter(d->r)) {
        j_full(d->r, "the template takes too much memory");
        return;
    }
    buf_putc(&d->out, object ? '{' : '[');
    d->depth++;
    if (object)
        dump_dict(d, v.u.dict);
    else
        dump_list(d, v.u.list);
    d->depth--;
    if (object ? v.u.dict->n : v.u.list->n)
        new_line(d);
    buf_putc(&d->out, object ? '}' : ']');
    j_leave(d->r);
}

static void set_separators(struct dumper *d, struct value v)
{
    struct value pair = v.kind == J_TUPLE || v.kind == J_LIST ? v : j_list(d->r, v, J_LIST);
    if (j_failed(d->r))
        return;
    if (pair.u.list->n != 2 || pair.u.list->items[0].kind != J_STRING || pair.u.list->items[1].kind != J_STRING) {
        j_fail(d->r, "separators must be two strings");
        return;
    }
    const struct string *item = pair.u.list->items[0].u.s, *key = pair.u.list->items[1].u.s;
    d->item_separator = item->data;
    d->n_item_separator = item->len;
    d->key_separator = key->data;
    d->n_key_separator = key->len;
}

/* ensure_ascii? indent? separators? sort_keys? */
struct value j_tojson(struct run *r, struct value self, const struct value *a, const struct args *raw)
{
    (void)raw;
    struct dumper d = {
        .r = r, .item_separator = ", ", .key_separator = ": ", .n_item_separator = 2, .n_key_separator = 2};
    int64_t width;
    d.ascii = j_given(a[0]) && j_true(r, a[0]);
    d.sort = j_given(a[3]) && j_true(r, a[3]);
    if (j_given(a[1]) && a[1].kind != J_NONE) {
        d.pretty = true;
        d.n_item_separator = 1;
        d.indent = a[1];
        if (a[1].kind != J_STRING && j_index(r, a[1], &width))
            d.indent = j_repeat(r, j_cstring(r, " "), width);
    }
    if (j_given(a[2]) && a[2].kind != J_NONE)
        set_separators(&d, a[2]);
    if (!j_failed(r))
        dump(&d, self);
    return j_buf(r, &d.out);
}
