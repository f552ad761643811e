/* Filters over sequences that give their result at once. */
#include <string.h>

#include "models/template/str.h"

#define FILTER(name)                                                                                                   \
    static struct value name(struct run *r, struct value self, const struct value *a, const struct args *raw)
#define UNUSED (void)r, (void)self, (void)a, (void)raw

FILTER(f_length)
{
    UNUSED;
    size_t n;
    return j_length(r, self, &n) ? j_int((int64_t)n) : self;
}

FILTER(f_first)
{
    UNUSED;
    struct value iter = j_iter(r, self), v;
    if (j_next(r, iter, &v))
        return v;
    return j_undefined_hint(r, "No first item, sequence was empty.", j_none());
}

FILTER(f_last)
{
    UNUSED;
    struct value iter = j_reversed(r, self), v;
    if (j_next(r, iter, &v))
        return v;
    return j_undefined_hint(r, "No last item, sequence was empty.", j_none());
}

FILTER(f_list)
{
    UNUSED;
    return j_list(r, self, J_LIST);
}

FILTER(f_join)
{
    UNUSED;
    struct value separator = j_given(a[0]) ? j_str(r, a[0]) : j_cstring(r, ""), items = self;
    if (j_failed(r))
        return self;
    if (j_given(a[1]) && a[1].kind != J_NONE) {
        struct items all = {0};
        struct value iter = j_iter(r, self), each;
        while (j_next(r, iter, &each) && j_push(r, &all, j_get_path(r, each, a[1])))
            ;
        items = j_finish(r, &all, J_LIST);
    }
    return j_failed(r) ? self : j_join(r, separator, items, false);
}

FILTER(f_reverse)
{
    UNUSED;
    if (self.kind != J_STRING && self.kind != J_LOOP && j_has_length(self))
        return j_reversed(r, self);
    if (!j_iterable(self))
        return j_fail(r, "reverse wants something that can be iterated");
    struct value all = j_list(r, self, J_LIST);
    if (j_failed(r))
        return all;
    struct value *at = all.u.list->items;
    for (size_t i = 0, k = all.u.list->n; i + 1 < k; i++) {
        struct value v = at[--k];
        at[k] = at[i];
        at[i] = v;
    }
    if (self.kind != J_STRING)
        return all;
    struct value v = j_join(r, j_cstring(r, ""), all, false);
    v.markup = self.markup;
    return v;
}

/* ---- order ---- */

static struct value folded(struct run *r, struct value v, bool case_sensitive)
{
    return case_sensitive ? v : j_lowered(r, v);
}

/* Keys of a sort: attribute may name several, by commas; Python compares the lists of them. */
static struct value sort_key(struct run *r, struct value item, struct value attribute, bool case_sensitive)
{
    struct value paths = j_array(r, J_LIST, 1);
    if (j_failed(r))
        return paths;
    paths.u.list->items[0] = j_given(attribute) ? attribute : j_none();
    if (attribute.kind == J_STRING)
        paths = j_split(r, attribute, j_cstring(r, ","), -1, false);
    for (size_t i = 0; !j_failed(r) && i < paths.u.list->n; i++)
        paths.u.list->items[i] = folded(r, j_get_path(r, item, paths.u.list->items[i]), case_sensitive);
    return paths;
}

FILTER(f_sort)
{
    UNUSED;
    bool reverse = j_given(a[0]) && j_true(r, a[0]), sensitive = j_given(a[1]) && j_true(r, a[1]);
    struct value all = j_list(r, self, J_LIST);
    struct value *keys = j_failed(r) ? NULL : j_alloc_array(r, all.u.list->n, sizeof *keys);
    for (size_t i = 0; keys && i < all.u.list->n && !j_failed(r); i++)
        keys[i] = sort_key(r, all.u.list->items[i], a[2], sensitive);
    return j_failed(r) ? all : j_sorted_by(r, all, keys, reverse);
}

FILTER(f_dictsort)
{
    UNUSED;
    bool sensitive = j_given(a[0]) && j_true(r, a[0]), reverse = j_given(a[2]) && j_true(r, a[2]);
    size_t by = j_given(a[1]) && j_text_is(a[1], "value");
    if (j_given(a[1]) && !by && !j_text_is(a[1], "key"))
        return j_fail(r, "You can only sort by either \"key\" or \"value\"");
    if (self.kind != J_DICT)
        return self.kind == J_UNDEFINED ? j_fail_undefined(r, self) : j_fail(r, "dictsort wants a mapping");
    struct view items = {self.u.dict, VIEW_ITEMS};
    struct value all = j_list(r, (struct value){.kind = J_VIEW, .u.view = &items}, J_LIST);
    struct value *keys = j_failed(r) ? NULL : j_alloc_array(r, all.u.list->n, sizeof *keys);
    for (size_t i = 0; keys && i < all.u.list->n; i++)
        keys[i] = folded(r, all.u.list->items[i].u.list->items[by], sensitive);
    return j_failed(r) ? all : j_sorted_by(r, all, keys, reverse);
}

static struct value extreme(struct run *r, struct value self, const struct value *a, bool largest)
{
    bool sensitive = j_given(a[0]) && j_true(r, a[0]);
    struct value iter = j_iter(r, self), each, best, best_key = j_missing();
    while (j_next(r, iter, &each)) {
        struct value key = folded(r, j_given(a[1]) ? j_get_path(r, each, a[1]) : each, sensitive);
        if (!j_given(best_key) || (largest ? j_less(r, best_key, key, false) : j_less(r, key, best_key, false))) {
            best = each;
            best_key = key;
        }
    }
    if (j_given(best_key))
        return best;
    return j_undefined_hint(r, "No aggregated item, sequence was empty.", j_none());
}

FILTER(f_min)
{
    UNUSED;
    return extreme(r, self, a, false);
}

FILTER(f_max)
{
    UNUSED;
    return extreme(r, self, a, true);
}

FILTER(f_sum)
{
    UNUSED;
    struct value total = j_given(a[1]) ? a[1] : j_int(0), iter = j_iter(r, self), each;
    if (total.kind == J_STRING)
        return j_fail(r, "sum() can't sum strings");
    while (j_next(r, iter, &each)) {
        if (j_given(a[0]) && a[0].kind != J_NONE)
            each = j_get_path(r, each, a[0]);
        total = j_binary(r, T_ADD, total, each);
    }
    return total;
}

/* ---- groups ---- */

static bool push_group(struct run *r, struct items *groups, struct value grouper, struct items *members)
{
    struct value pair = j_pair(r, grouper, j_finish(r, members, J_LIST));
    pair.group = true;
    *members = (struct items){0};
    return j_push(r, groups, pair);
}

FILTER(f_groupby)
{
    UNUSED;
    bool sensitive = j_given(a[2]) && j_true(r, a[2]);
    struct items groups = {0}, members = {0};
    struct value all = j_list(r, self, J_LIST), last = j_missing(), grouper = last;
    struct value *keys = j_failed(r) ? NULL : j_alloc_array(r, all.u.list->n, sizeof *keys);
    for (size_t i = 0; keys && i < all.u.list->n && !j_failed(r); i++)
        keys[i] = folded(r, j_get_path_or(r, all.u.list->items[i], a[0], a[1]), sensitive);
    if (!j_failed(r))
        all = j_sorted_by(r, all, keys, false);
    for (size_t i = 0; !j_failed(r) && i < all.u.list->n; i++) {
        struct value item = all.u.list->items[i], own = j_get_path_or(r, item, a[0], a[1]);
        struct value key = folded(r, own, sensitive);
        if (j_given(last) && !j_equal(r, last, key))
            push_group(r, &groups, grouper, &members);
        if (!members.n)
            grouper = own;
        last = key;
        j_push(r, &members, item);
    }
    if (members.n)
        push_group(r, &groups, grouper, &members);
    return j_finish(r, &groups, J_LIST);
}

FILTER(f_attr)
{
    UNUSED;
    return j_want_string(r, a[0], "an attribute's name") ? j_attr_only(r, self, a[0]) : self;
}

FILTER(f_default)
{
    UNUSED;
    struct value other = j_given(a[0]) ? a[0] : j_cstring(r, "");
    bool falsy = j_given(a[1]) && j_true(r, a[1]) && !j_true(r, self);
    return self.kind == J_UNDEFINED || falsy ? other : self;
}

const struct builtin list_filters[] = {
    {"attr", "name", f_attr},
    {"count", "/", f_length},
    {"d", "default_value? boolean?", f_default},
    {"default", "default_value? boolean?", f_default},
    {"dictsort", "case_sensitive? by? reverse?", f_dictsort},
    {"first", "", f_first},
    {"groupby", "attribute default? case_sensitive?", f_groupby},
    {"join", "d? attribute?", f_join},
    {"last", "", f_last},
    {"length", "/", f_length},
    {"list", "", f_list},
    {"max", "case_sensitive? attribute?", f_max},
    {"min", "case_sensitive? attribute?", f_min},
    {"reverse", "", f_reverse},
    {"sort", "reverse? case_sensitive? attribute?", f_sort},
    {"sum", "attribute? start?", f_sum},
    {NULL, NULL, NULL},
};
