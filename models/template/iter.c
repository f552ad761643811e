#include "models/template/iter.h"

#include <string.h>

static bool next_item(struct run *r, struct iter *it, struct value *out)
{
    (void)r;
    if (it->at >= it->over.u.list->n)
        return false;
    *out = it->over.u.list->items[it->at++];
    return true;
}

static bool next_char(struct run *r, struct iter *it, struct value *out)
{
    const struct string *s = it->over.u.s;
    if (it->at >= s->len)
        return false;
    size_t to = it->at + 1;
    while (to < s->len && ((unsigned char)s->data[to] & 0xC0) == 0x80)
        to++;
    *out = j_part(r, it->over, it->at, to);
    out->markup = false;
    it->at = to;
    return true;
}

static struct value view_item(struct run *r, const struct view *v, size_t i)
{
    const struct entry *e = &v->dict->entries[i];
    return v->of == VIEW_KEYS ? e->key : v->of == VIEW_VALUES ? e->value : j_pair(r, e->key, e->value);
}

static bool next_of_view(struct run *r, struct iter *it, struct value *out)
{
    const struct view *v = it->over.u.view;
    if (it->at >= v->dict->n)
        return false;
    *out = view_item(r, v, it->at++);
    return true;
}

static bool next_key(struct run *r, struct iter *it, struct value *out)
{
    (void)r;
    if (it->at >= it->over.u.dict->n)
        return false;
    *out = it->over.u.dict->entries[it->at++].key;
    return true;
}

static bool next_number(struct run *r, struct iter *it, struct value *out)
{
    (void)r;
    const struct range *g = it->over.u.range;
    if (it->at >= g->n)
        return false;
    *out = j_int(g->start + (int64_t)it->at++ * g->step);
    return true;
}

static bool next_none(struct run *r, struct iter *it, struct value *out)
{
    (void)r, (void)it, (void)out;
    return false;
}

static bool next_of_loop(struct run *r, struct iter *it, struct value *out)
{
    struct value item;
    if (!j_loop_next(r, it->over.u.loop, &item))
        return false;
    *out = j_pair(r, item, it->over);
    return true;
}

static bool (*stepper(struct value v))(struct run *, struct iter *, struct value *)
{
    switch (v.kind) {
    case J_LIST:
    case J_TUPLE:
        return next_item;
    case J_STRING:
        return next_char;
    case J_DICT:
        return next_key;
    case J_VIEW:
        return next_of_view;
    case J_RANGE:
        return next_number;
    case J_UNDEFINED:
        return next_none;
    case J_LOOP:
        return next_of_loop;
    }
    return NULL;
}

bool j_iterable(struct value v)
{
    return v.kind == J_ITER || stepper(v);
}

struct value j_generator(struct run *r, bool (*next)(struct run *, struct iter *, struct value *), struct value over,
                         void *state)
{
    struct iter *it = j_alloc(r, sizeof *it);
    if (!it)
        return j_of(J_UNDEFINED);
    *it = (struct iter){.next = next, .over = over, .state = state};
    return (struct value){.kind = J_ITER, .u.iter = it};
}

struct value j_iter(struct run *r, struct value v)
{
    if (v.kind == J_ITER)
        return v;
    if (!stepper(v))
        return j_fail(r, "'%s' object is not iterable", j_type_name(v));
    return j_generator(r, stepper(v), v, NULL);
}

bool j_next(struct run *r, struct value iter, struct value *out)
{
    if (iter.kind != J_ITER || iter.u.iter->done || !j_charge(r, 1))
        return false;
    if (j_enter(r)) {
        bool more = iter.u.iter->next(r, iter.u.iter, out);
        j_leave(r);
        if (more && !j_failed(r))
            return true;
    }
    iter.u.iter->done = true;
    return false;
}

/* ---- whole lists ---- */

bool j_push(struct run *r, struct items *to, struct value v)
{
    if (to->n == to->cap) {
        size_t cap = to->cap ? 2 * to->cap : 8;
        struct value *at = j_alloc_array(r, cap, sizeof *at);
        if (!at)
            return false;
        if (to->n)
            memcpy(at, to->at, to->n * sizeof *at);
        to->at = at;
        to->cap = cap;
    }
    to->at[to->n++] = v;
    return !j_failed(r);
}

struct value j_finish(struct run *r, struct items *from, enum kind list_or_tuple)
{
    struct value v = j_array(r, list_or_tuple, 0);
    if (v.kind != J_UNDEFINED && from->n) {
        v.u.list->items = from->at;
        v.u.list->n = from->n;
    }
    return v;
}

struct value j_list(struct run *r, struct value v, enum kind list_or_tuple)
{
    struct items all = {0};
    struct value iter = j_iter(r, v), each;
    while (j_next(r, iter, &each) && j_push(r, &all, each))
        ;
    return j_finish(r, &all, list_or_tuple);
}

/* ---- backwards ---- */

static bool next_backwards(struct run *r, struct iter *it, struct value *out)
{
    if (it->at >= it->n)
        return false;
    size_t i = it->n - 1 - it->at++;
    switch (it->over.kind) {
    case J_LIST:
    case J_TUPLE:
        *out = it->over.u.list->items[i];
        break;
    case J_DICT:
        *out = it->over.u.dict->entries[i].key;
        break;
    case J_VIEW:
        *out = view_item(r, it->over.u.view, i);
        break;
    case J_RANGE:
        *out = j_int(it->over.u.range->start + (int64_t)i * it->over.u.range->step);
        break;
    }
    return true;
}

struct value j_reversed(struct run *r, struct value v)
{
    size_t n = 0;
    if (v.kind == J_STRING) /* rare: as a list of its characters */
        v = j_list(r, v, J_LIST);
    if (v.kind == J_LOOP || !j_has_length(v))
        return j_fail(r, "'%s' object is not reversible", j_type_name(v));
    j_length(r, v, &n);
    struct value it = j_generator(r, next_backwards, v, NULL);
    if (it.kind == J_ITER)
        it.u.iter->n = n;
    return it;
}

/* ---- the loop variable ---- */

bool j_loop_next(struct run *r, struct loop *l, struct value *out)
{
    struct value item;
    if (l->after.kind != J_MISSING) {
        item = l->after;
        l->after = j_missing();
    } else if (!j_next(r, l->iter, &item)) {
        return false;
    }
    l->index0++;
    l->before = l->current;
    l->current = item;
    *out = item;
    return true;
}

struct value j_loop_peek(struct run *r, struct loop *l)
{
    if (l->after.kind == J_MISSING && !j_next(r, l->iter, &l->after))
        l->after = j_missing();
    return l->after;
}

size_t j_loop_length(struct run *r, struct loop *l)
{
    if (l->length_known)
        return l->length;
    if (j_has_length(l->source)) {
        j_length(r, l->source, &l->length);
    } else {
        struct value rest = j_list(r, l->iter, J_LIST);
        if (j_failed(r))
            return 0;
        l->iter = j_iter(r, rest);
        l->length = rest.u.list->n + (size_t)(l->index0 + 1) + (l->after.kind != J_MISSING);
    }
    l->length_known = true;
    return l->length;
}
