/* Filters that are generators in jinja2: nothing happens before someone takes an item, not even the check of
 * arguments. */
#include <string.h>

#include "models/template/str.h"

#define FILTER(name)                                                                                                   \
    static struct value name(struct run *r, struct value self, const struct value *a, const struct args *raw)
#define UNUSED (void)r, (void)self, (void)a, (void)raw

struct lazy {
    struct args args; /* as they came, or what is left of them */
    struct value a[PARAMS_MAX];
    struct value source; /* an iterator once started */
    bool started;
    const struct builtin *apply; /* map: the filter; select: the test; NULL: none */
    struct value attribute;
    struct value fallback;
    bool negate, by_attribute;
    struct dict seen;
    struct value list;
    int64_t at, offset;
};

static struct value lazy(struct run *r, bool (*next)(struct run *, struct iter *, struct value *), struct value self,
                         const struct value *a, const struct args *raw, struct lazy **out)
{
    struct lazy *l = j_alloc(r, sizeof *l);
    if (!l)
        return j_of(J_UNDEFINED);
    l->args = *raw;
    l->source = self;
    l->attribute = l->fallback = j_missing();
    for (int i = 0; i < PARAMS_MAX; i++)
        l->a[i] = a ? a[i] : j_missing();
    if (out)
        *out = l;
    return j_generator(r, next, self, l);
}

/* Starts the source at the first item asked for. False: nothing to do (a falsy source, or failed). */
static bool start(struct run *r, struct lazy *l, bool if_true)
{
    if (l->started)
        return !j_failed(r);
    l->started = true;
    if (if_true && !j_true(r, l->source)) {
        l->source = j_iter(r, j_array(r, J_LIST, 0));
        return false;
    }
    l->source = j_iter(r, l->source);
    return !j_failed(r);
}

/* ---- map ---- */

static struct value *keyword(struct run *r, const struct args *args, const char *name)
{
    for (size_t i = 0; i < args->n_kw; i++)
        if (j_text_is(args->kw[i].name, name)) {
            struct value *copy = j_alloc(r, sizeof *copy);
            if (copy)
                *copy = args->kw[i].value;
            return copy;
        }
    return NULL;
}

static void prepare_map(struct run *r, struct lazy *l)
{
    struct value *attribute = keyword(r, &l->args, "attribute"), *fallback = keyword(r, &l->args, "default");
    if (!l->args.n && attribute) {
        l->attribute = *attribute;
        l->fallback = fallback ? *fallback : j_none();
        if (l->args.n_kw > 1 + (fallback != NULL))
            j_fail(r, "map got an unexpected keyword argument");
        return;
    }
    if (!l->args.n) {
        j_fail(r, "map requires a filter argument");
        return;
    }
    struct value name = l->args.at[0];
    l->apply = name.kind == J_STRING ? filter_find(name.u.s->data, name.u.s->len) : NULL;
    if (!l->apply)
        j_fail(r, "map names no filter");
    l->args.at++;
    l->args.n--;
}

static bool next_mapped(struct run *r, struct iter *it, struct value *out)
{
    struct lazy *l = it->state;
    struct value item;
    bool first = !l->started;
    if (!start(r, l, true))
        return false;
    if (first)
        prepare_map(r, l);
    if (j_failed(r) || !j_next(r, l->source, &item))
        return false;
    *out = l->apply ? j_call_builtin(r, l->apply, item, &l->args) : j_get_path_or(r, item, l->attribute, l->fallback);
    return !j_failed(r);
}

FILTER(f_map)
{
    UNUSED;
    return lazy(r, next_mapped, self, NULL, raw, NULL);
}

/* ---- select and reject ---- */

static void prepare_select(struct run *r, struct lazy *l)
{
    if (l->by_attribute) {
        if (!l->args.n) {
            j_fail(r, "Missing parameter for attribute name");
            return;
        }
        l->attribute = l->args.at[0];
        l->args.at++;
        l->args.n--;
    }
    if (!l->args.n)
        return;
    struct value name = l->args.at[0];
    l->apply = name.kind == J_STRING ? test_find(name.u.s->data, name.u.s->len) : NULL;
    if (!l->apply)
        j_fail(r, "a test of that name does not exist");
    l->args.at++;
    l->args.n--;
}

static bool next_selected(struct run *r, struct iter *it, struct value *out)
{
    struct lazy *l = it->state;
    bool first = !l->started;
    if (!start(r, l, true))
        return false;
    if (first)
        prepare_select(r, l);
    while (!j_failed(r) && j_next(r, l->source, out)) {
        struct value v = l->by_attribute ? j_get_path_or(r, *out, l->attribute, j_missing()) : *out;
        if (l->apply)
            v = j_call_builtin(r, l->apply, v, &l->args);
        if (j_true(r, v) != l->negate)
            return !j_failed(r);
    }
    return false;
}

static struct value selector(struct run *r, struct value self, const struct args *raw, bool negate, bool by_attribute)
{
    struct lazy *l = NULL;
    struct value v = lazy(r, next_selected, self, NULL, raw, &l);
    if (l) {
        l->negate = negate;
        l->by_attribute = by_attribute;
    }
    return v;
}

FILTER(f_select)
{
    UNUSED;
    return selector(r, self, raw, false, false);
}

FILTER(f_reject)
{
    UNUSED;
    return selector(r, self, raw, true, false);
}

FILTER(f_selectattr)
{
    UNUSED;
    return selector(r, self, raw, false, true);
}

FILTER(f_rejectattr)
{
    UNUSED;
    return selector(r, self, raw, true, true);
}

/* ---- items, unique, batch, slice ---- */

static bool next_pair(struct run *r, struct iter *it, struct value *out)
{
    struct lazy *l = it->state;
    if (!l->started && l->source.kind != J_DICT && l->source.kind != J_UNDEFINED) {
        j_fail(r, "Can only get item pairs from a mapping.");
        return false;
    }
    if (l->source.kind == J_UNDEFINED || (size_t)l->at >= it->over.u.dict->n)
        return false;
    const struct entry *e = &it->over.u.dict->entries[l->at++];
    *out = j_pair(r, e->key, e->value);
    return !j_failed(r);
}

FILTER(f_items)
{
    UNUSED;
    return lazy(r, next_pair, self, a, raw, NULL);
}

static bool next_unique(struct run *r, struct iter *it, struct value *out)
{
    struct lazy *l = it->state;
    bool sensitive = j_given(l->a[0]) && j_true(r, l->a[0]);
    if (!start(r, l, false))
        return false;
    while (j_next(r, l->source, out)) {
        struct value key = j_given(l->a[1]) ? j_get_path(r, *out, l->a[1]) : *out;
        size_t before = l->seen.n;
        key = sensitive ? key : j_lowered(r, key);
        if (!j_dict_set(r, &l->seen, key, j_none()))
            return false;
        if (l->seen.n > before)
            return true;
    }
    return false;
}

FILTER(f_unique)
{
    UNUSED;
    return lazy(r, next_unique, self, a, raw, NULL);
}

static bool next_batch(struct run *r, struct iter *it, struct value *out)
{
    struct lazy *l = it->state;
    struct items row = {0};
    struct value item;
    int64_t size;
    if (!start(r, l, false))
        return false;
    /* An item that found the row full waits in l->list. */
    if (l->at) {
        j_push(r, &row, l->list);
        l->at = 0;
    }
    while (j_next(r, l->source, &item)) {
        bool full = j_equal(r, l->a[0], j_int((int64_t)row.n));
        if (full) {
            l->list = item;
            l->at = 1;
            *out = j_finish(r, &row, J_LIST);
            return !j_failed(r);
        }
        j_push(r, &row, item);
    }
    if (!row.n || j_failed(r))
        return false;
    if (j_given(l->a[1]) && l->a[1].kind != J_NONE && j_index(r, l->a[0], &size)) {
        while ((int64_t)row.n < size && j_charge(r, 1) && j_push(r, &row, l->a[1]))
            ;
    }
    *out = j_finish(r, &row, J_LIST);
    return !j_failed(r);
}

FILTER(f_batch)
{
    UNUSED;
    return lazy(r, next_batch, self, a, raw, NULL);
}

static bool next_slice(struct run *r, struct iter *it, struct value *out)
{
    struct lazy *l = it->state;
    int64_t slices;
    if (!l->started) {
        l->started = true;
        l->list = j_list(r, l->source, J_LIST);
    }
    if (j_failed(r) || !j_index(r, l->a[0], &slices))
        return false;
    if (slices == 0) {
        j_fail(r, "division by zero");
        return false;
    }
    if (l->at >= slices)
        return false;
    int64_t n = (int64_t)l->list.u.list->n, each = n / slices, extra = n % slices, i = l->at++;
    int64_t from = l->offset + i * each;
    l->offset += i < extra;
    int64_t to = l->offset + (i + 1) * each;
    struct items row = {0};
    for (; from < to && from < n; from++)
        j_push(r, &row, l->list.u.list->items[from]);
    if (j_given(l->a[1]) && l->a[1].kind != J_NONE && i >= extra)
        j_push(r, &row, l->a[1]);
    *out = j_finish(r, &row, J_LIST);
    return !j_failed(r);
}

FILTER(f_slice)
{
    UNUSED;
    return lazy(r, next_slice, self, a, raw, NULL);
}

const struct builtin lazy_filters[] = {
    {"batch", "linecount fill_with?", f_batch},
    {"items", "", f_items},
    {"map", "...", f_map},
    {"reject", "...", f_reject},
    {"rejectattr", "...", f_rejectattr},
    {"select", "...", f_select},
    {"selectattr", "...", f_selectattr},
    {"slice", "slices fill_with?", f_slice},
    {"unique", "case_sensitive? attribute?", f_unique},
    {NULL, NULL, NULL},
};
