/* The methods of what is not str, and which methods there are. */
#include <math.h>
#include <string.h>

#include "models/template/run.h"

#define METHOD(name)                                                                                                   \
    static struct value name(struct run *r, struct value self, const struct value *a, const struct args *raw)
#define UNUSED (void)r, (void)self, (void)a, (void)raw

static struct value view(struct run *r, struct value dict, enum view_of of)
{
    struct view *v = j_alloc(r, sizeof *v);
    if (!v)
        return j_of(J_UNDEFINED);
    *v = (struct view){dict.u.dict, of};
    return (struct value){.kind = J_VIEW, .u.view = v};
}

METHOD(d_items)
{
    UNUSED;
    return view(r, self, VIEW_ITEMS);
}

METHOD(d_keys)
{
    UNUSED;
    return view(r, self, VIEW_KEYS);
}

METHOD(d_values)
{
    UNUSED;
    return view(r, self, VIEW_VALUES);
}

METHOD(d_copy)
{
    UNUSED;
    return self;
} /* nothing can tell: dicts never change */
METHOD(l_copy)
{
    UNUSED;
    return j_list(r, self, J_LIST);
}

METHOD(d_get)
{
    UNUSED;
    uint64_t hash;
    if (!j_hash(r, a[0], &hash))
        return self;
    const struct value *v = j_dict_find(r, self.u.dict, a[0]);
    return v ? *v : j_given(a[1]) ? a[1] : j_none();
}

METHOD(s_count)
{
    UNUSED;
    int64_t n = 0;
    struct value iter = j_iter(r, self), each;
    while (j_next(r, iter, &each))
        n += j_is(each, a[0]) || j_equal(r, each, a[0]);
    return j_int(n);
}

METHOD(s_index)
{
    UNUSED;
    size_t n = 0;
    j_length(r, self, &n);
    int64_t from = 0, to = (int64_t)n, i = 0;
    if ((j_given(a[1]) && !j_index(r, a[1], &from)) || (j_given(a[2]) && !j_index(r, a[2], &to)))
        return self;
    from = from < 0 ? from + (int64_t)n : from;
    to = to < 0 ? to + (int64_t)n : to;
    struct value iter = j_iter(r, self), each;
    for (; j_next(r, iter, &each); i++)
        if (i >= from && i < to && (j_is(each, a[0]) || j_equal(r, each, a[0])))
            return j_int(i);
    return j_fail(r, "the value is not in the %s", j_type_name(self));
}

METHOD(n_is_integer)
{
    UNUSED;
    return j_bool(isfinite(self.u.f) && self.u.f == floor(self.u.f));
}

METHOD(n_conjugate)
{
    UNUSED;
    return self.kind == J_BOOL ? j_int(self.u.b) : self;
}

METHOD(n_bit_length)
{
    UNUSED;
    int64_t i;
    j_is_int(self, &i);
    uint64_t u = i < 0 ? -(uint64_t)i : (uint64_t)i;
    return j_int(u ? 64 - __builtin_clzll(u) : 0);
}

METHOD(l_cycle)
{
    UNUSED;
    if (!raw->n || raw->n_kw)
        return j_fail(r, "no items for cycling given");
    int64_t i = self.u.loop->index0;
    return raw->at[i < 0 ? 0 : (size_t)i % raw->n];
}

METHOD(l_changed)
{
    UNUSED;
    struct value now = j_array(r, J_TUPLE, raw->n);
    if (j_failed(r) || raw->n_kw)
        return j_fail(r, "changed() takes no keyword arguments");
    if (raw->n)
        memcpy(now.u.list->items, raw->at, raw->n * sizeof *raw->at);
    struct loop *l = self.u.loop;
    if (j_given(l->last_changed) && j_equal(r, l->last_changed, now))
        return j_bool(false);
    l->last_changed = now;
    return j_bool(true);
}

METHOD(c_next)
{
    UNUSED;
    struct cycler *c = self.u.cycler;
    struct value v = c->items.u.list->items[c->at];
    c->at = (c->at + 1) % c->items.u.list->n;
    return v;
}

METHOD(c_reset)
{
    UNUSED;
    self.u.cycler->at = 0;
    return j_none();
}

const struct builtin *builtin_find(const struct builtin *table, size_t n_table, const char *name, size_t n)
{
    for (size_t i = 0; i < n_table; i++)
        if (strlen(table[i].name) == n && memcmp(table[i].name, name, n) == 0)
            return &table[i];
    return NULL;
}

#define FIND(table) builtin_find(table, sizeof(table) / sizeof *(table), name, n)

const struct builtin *method_find(struct value self, const char *name, size_t n)
{
    static const struct builtin dict[] = {{"get", "/key default?", d_get},
                                          {"items", "/", d_items},
                                          {"keys", "/", d_keys},
                                          {"values", "/", d_values},
                                          {"copy", "/", d_copy}};
    static const struct builtin list[] = {
        {"count", "/value", s_count}, {"index", "/value start? end?", s_index}, {"copy", "/", l_copy}};
    static const struct builtin sequence[] = {{"count", "/value", s_count}, {"index", "/value start? end?", s_index}};
    static const struct builtin range[] = {{"count", "/value", s_count}, {"index", "/value", s_index}};
    static const struct builtin whole[] = {{"bit_length", "/", n_bit_length}, {"conjugate", "/", n_conjugate}};
    static const struct builtin real[] = {{"is_integer", "/", n_is_integer}, {"conjugate", "/", n_conjugate}};
    static const struct builtin loop[] = {{"cycle", "...", l_cycle}, {"changed", "...", l_changed}};
    static const struct builtin cycler[] = {{"next", "/", c_next}, {"reset", "/", c_reset}};
    switch (self.kind) {
    case J_STRING:
        return text_method_find(name, n);
    case J_DICT:
        return FIND(dict);
    case J_LIST:
        return FIND(list);
    case J_TUPLE:
        return FIND(sequence);
    case J_RANGE:
        return FIND(range);
    case J_BOOL:
    case J_INT:
        return FIND(whole);
    case J_FLOAT:
        return FIND(real);
    case J_LOOP:
        return FIND(loop);
    case J_CYCLER:
        return FIND(cycler);
    }
    return NULL;
}

bool method_refused(const char *name, size_t n)
{
    static const char *const names[] = {
        "encode",     "translate", "maketrans",        "format_map", "fromkeys", "isdisjoint", "to_bytes",
        "from_bytes", "bit_count", "as_integer_ratio", "hex",        "fromhex",  "striptags",  "unescape",
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strlen(names[i]) == n && memcmp(names[i], name, n) == 0)
            return true;
    return false;
}
