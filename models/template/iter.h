/* Iteration: one pull interface over everything that Python can iterate. Generators (map, select, a loop's filter,
 * ...) compute an item when it is asked for and can be used up only once, as in Python, so errors and side effects
 * happen when they do there. Owned by the run's arena; one thread. Invariant: each item is handed out once. */
#ifndef MODELS_TEMPLATE_ITER_H
#define MODELS_TEMPLATE_ITER_H

#include "models/template/value.h"

struct iter {
    bool (*next)(struct run *r, struct iter *it, struct value *out); /* false: the end, or failed */
    struct value over;
    size_t at, n;
    void *state; /* of a generator */
    bool done;
};

/* A new iterator over v (an iterator is its own). Fails when v cannot be iterated. */
struct value j_iter(struct run *r, struct value v);
bool j_iterable(struct value v);
bool j_next(struct run *r, struct value iter, struct value *out);
/* A generator: next is called with `state` until it says false. */
struct value j_generator(struct run *r, bool (*next)(struct run *, struct iter *, struct value *), struct value over,
                         void *state);
struct value j_list(struct run *r, struct value v, enum kind list_or_tuple); /* all items of v; always a new one */
struct value j_reversed(struct run *r, struct value v);                      /* Python's reversed(); fails like it */

/* ---- growing a list ---- */
struct items {
    struct value *at;
    size_t n, cap;
};
bool j_push(struct run *r, struct items *to, struct value v);
struct value j_finish(struct run *r, struct items *from, enum kind list_or_tuple);

/* ---- the loop variable ---- */
struct loop {
    struct value source, iter; /* what is iterated, and its iterator */
    struct value after, current, before;
    struct value last_changed;
    int64_t index0;
    size_t length;
    bool length_known;
    int64_t depth0;
    const struct node *recurse; /* the recursive for, or NULL */
    struct activation *home;    /* where that for stands */
};
size_t j_loop_length(struct run *r, struct loop *l);
bool j_loop_next(struct run *r, struct loop *l, struct value *out);
struct value j_loop_peek(struct run *r, struct loop *l); /* J_MISSING: at the end */

#endif
