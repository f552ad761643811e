/* Values of the template language, with Python's meaning: what a chat template computes with while it renders. They
 * live in the arena of one `struct run` (constants: in the template's) and die with it; one thread. Lists, tuples,
 * dicts and strings never change once built; only namespaces, loops, iterators, cyclers and joiners have state. Errors
 * are sticky: j_fail notes the first one in the run, what follows is cheap and meaningless, and the interpreter stops
 * at the next node. So no value function returns a code. Invariant: every string is valid UTF-8. */
#ifndef MODELS_TEMPLATE_VALUE_H
#define MODELS_TEMPLATE_VALUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/buf.h"
#include "engine/base/cancel.h"
#include "engine/base/err.h"
#include "engine/base/json.h"
#include "engine/base/mem.h"

enum kind {
    J_UNDEFINED,
    J_NONE,
    J_BOOL,
    J_INT,
    J_BIG /* an integer past 64 bits, only carried */,
    J_FLOAT,
    J_STRING,
    J_LIST,
    J_TUPLE,
    J_DICT,
    J_NAMESPACE,
    J_RANGE,
    J_VIEW,
    J_ITER,
    J_MACRO,
    J_LOOP,
    J_METHOD,
    J_FUNCTION,
    J_CYCLER,
    J_JOINER,
    J_MISSING /* no value at all: a slot without one, an argument that was not given */
};

struct value {
    uint8_t kind;
    bool markup; /* a string made by |safe or |escape: what joins it is escaped */
    bool group;  /* a tuple made by |groupby: has .grouper and .list */
    union {
        bool b;
        int64_t i;
        double f;
        struct string *s;   /* also J_BIG: its digits */
        struct array *list; /* list and tuple */
        struct dict *dict;  /* dict and namespace */
        struct range *range;
        struct view *view;
        struct iter *iter;
        struct macro *macro;
        struct loop *loop;
        struct method *method;
        const struct builtin *function;
        struct cycler *cycler;
        struct joiner *joiner;
        const struct undefined *undefined; /* NULL: nothing known about it */
    } u;
};

struct string {
    const char *data;
    size_t len;        /* bytes */
    size_t chars;      /* code points; SIZE_MAX until someone asked */
    struct tail *tail; /* room behind the bytes that the next concatenation may use; NULL: none */
};

struct array {
    struct value *items;
    size_t n;
};

struct entry {
    struct value key, value;
    uint64_t hash;
};

struct dict {
    struct entry *entries; /* in order of insertion */
    size_t n, cap;
    uint32_t *index; /* open addressing, entry + 1; NULL while small */
    size_t n_index;
};

struct range {
    int64_t start, step;
    size_t n;
    int64_t stop;
};

enum view_of { VIEW_KEYS, VIEW_VALUES, VIEW_ITEMS };
struct view {
    struct dict *dict;
    enum view_of of;
};

struct undefined {
    const char *hint;    /* the whole message, or NULL */
    struct value name;   /* of the variable, attribute or element */
    struct value object; /* J_MISSING: a variable */
};

struct method {
    struct value self;
    const struct builtin *of;
};

struct cycler {
    struct value items; /* a tuple */
    size_t at;
};

struct joiner {
    struct value separator;
    bool used;
};

struct keyword {
    struct value name;
    struct value value;
};

struct args {
    const struct value *at;
    size_t n;
    const struct keyword *kw;
    size_t n_kw;
};

struct run;
/* What a filter, test, method or global function is. params: names in order, "a b? /"; '?' may be left out
 * (J_MISSING), a leading '/' forbids keywords, "..." hands the arguments over as they came (a is NULL then).
 */
struct builtin {
    const char *name;
    const char *params;
    struct value (*fn)(struct run *r, struct value self, const struct value *a, const struct args *raw);
};
enum { PARAMS_MAX = 8 };

struct template;
struct activation;
struct run {
    const struct template *t;
    struct arena arena;
    size_t memory_left, steps_left, out_limit, out_base;
    int depth; /* of C calls */
    int line;
    int64_t now;
    struct cancel *cancel;
    struct err error; /* code 0: none */
    struct buf *out;
    struct value *globals; /* by the template's list of free names */
};

/* ---- errors and bounds ---- */
struct value j_fail(struct run *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
struct value j_full(struct run *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static inline bool j_failed(const struct run *r)
{
    return r->error.code != 0;
}
bool j_enter(struct run *r); /* one level of C recursion more; false (and failed) when there are too many */
static inline void j_leave(struct run *r)
{
    r->depth--;
}
bool j_charge(struct run *r, size_t steps); /* false (and failed) when the steps are used up */
void *j_alloc(struct run *r, size_t bytes); /* zeroed; NULL (and failed) past the memory bound */
void *j_alloc_array(struct run *r, size_t n, size_t size);
struct value j_fail_undefined(struct run *r, struct value v);

/* ---- making values ---- */
static inline struct value j_of(enum kind k)
{
    return (struct value){.kind = k};
}
static inline struct value j_none(void)
{
    return j_of(J_NONE);
}
static inline struct value j_missing(void)
{
    return j_of(J_MISSING);
}
static inline struct value j_bool(bool b)
{
    return (struct value){.kind = J_BOOL, .u.b = b};
}
static inline struct value j_int(int64_t i)
{
    return (struct value){.kind = J_INT, .u.i = i};
}
static inline struct value j_float(double f)
{
    return (struct value){.kind = J_FLOAT, .u.f = f};
}
struct value j_string(struct run *r, const char *s, size_t n);    /* copies */
struct value j_string_of(struct run *r, const char *s, size_t n); /* refers: s must live as long as the run */
struct value j_cstring(struct run *r, const char *s);
struct value j_buf(struct run *r, struct buf *b);                       /* copies and frees b */
struct value j_concat(struct run *r, struct value a, struct value b);   /* two strings */
struct value j_array(struct run *r, enum kind list_or_tuple, size_t n); /* items are none until set */
struct value j_pair(struct run *r, struct value a, struct value b);
struct value j_dict(struct run *r);
struct value j_undefined(struct run *r, struct value name);
struct value j_undefined_hint(struct run *r, const char *hint, struct value name);
struct value j_undefined_in(struct run *r, struct value object, struct value name);
struct value j_from_json(struct run *r, const struct json *j); /* strings refer to j */

/* ---- reading values ---- */
static inline bool j_given(struct value v)
{
    return v.kind != J_MISSING;
}
bool j_is_number(struct value v);          /* bool, int, float */
bool j_is_int(struct value v, int64_t *i); /* int or bool */
double j_as_double(struct value v);        /* of a number */
const char *j_type_name(struct value v);   /* Python's: "str", "dict", ... */
bool j_true(struct run *r, struct value v);
bool j_equal(struct run *r, struct value a, struct value b);
bool j_is(struct value a, struct value b); /* the same object */
bool j_less(struct run *r, struct value a, struct value b, bool or_equal);
bool j_hash(struct run *r, struct value v, uint64_t *hash); /* false (and failed): unhashable */
bool j_hashable(struct value v);
bool j_in(struct run *r, struct value item, struct value container);
bool j_text_is(struct value v, const char *s); /* a string with these bytes */
size_t j_chars(struct value string);
size_t j_char_offset(struct value string, size_t char_index); /* bytes before that character */
struct value j_part(struct run *r, struct value string, size_t from_byte, size_t to_byte);
bool j_length(struct run *r, struct value v, size_t *n); /* Python's len(); false (and failed): has none */
bool j_has_length(struct value v);

/* ---- dicts ---- */
bool j_dict_set(struct run *r, struct dict *d, struct value key, struct value value);   /* false: failed */
const struct value *j_dict_find(struct run *r, const struct dict *d, struct value key); /* NULL: absent or unhashable */
const struct value *j_dict_find_text(const struct dict *d, const char *s, size_t n);

/* ---- text ---- */
void j_put_str(struct run *r, struct buf *out, struct value v);  /* str(v) */
void j_put_repr(struct run *r, struct buf *out, struct value v); /* repr(v) */
struct value j_str(struct run *r, struct value v);               /* str(v); strings pass unchanged, markup lost */
struct value j_soft_str(struct run *r, struct value v);          /* the same, markup kept */
struct value j_escape(struct run *r, struct value v);            /* HTML escaped unless markup; markup after */

#endif
