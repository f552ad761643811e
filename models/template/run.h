/* Running a compiled template: what the files of the interpreter call in each other. Everything works on one `struct
 * run`, made by chat_render and used by one thread. Invariant: a slot is read only after its scope was entered. */
#ifndef MODELS_TEMPLATE_RUN_H
#define MODELS_TEMPLATE_RUN_H

#include "models/template/ast.h"
#include "models/template/iter.h"

struct activation {
    struct value *slots;
    struct activation *outer;
};

struct macro {
    const struct node *node;
    struct activation *home;
};

enum flow { FLOW_ON, FLOW_BREAK, FLOW_CONTINUE };

/* ---- statements (exec.c) ---- */
enum flow j_exec(struct run *r, struct activation *at, const struct nodes *list);
void j_scope_enter(struct run *r, struct activation *at, const struct scope_code *code);
struct activation *j_activate(struct run *r, const struct function_code *f, struct activation *outer);
void j_assign(struct run *r, struct activation *at, const struct node *target, struct value v);
struct value j_captured(struct run *r, size_t start); /* takes the output from start on away, as a string */
struct value j_loop_call(struct run *r, struct loop *l, const struct args *args); /* loop(...) of a recursive for */

/* ---- expressions (eval.c) ---- */
struct value j_eval(struct run *r, struct activation *at, const struct node *n);
struct value j_filter_text(struct run *r, struct activation *at, const struct node *filter, struct value text);

/* ---- calls (call.c) ---- */
bool j_args(struct run *r, struct activation *at, const struct node *n, struct args *out);
struct value j_call(struct run *r, struct value callee, const struct args *args);
struct value j_call_builtin(struct run *r, const struct builtin *b, struct value self, const struct args *args);
struct value j_add_keyword(struct run *r, struct args *args, const char *name, struct value v);

/* ---- operators (operator.c) ---- */
struct value j_binary(struct run *r, int op, struct value a, struct value b);
struct value j_negative(struct run *r, struct value v, bool negate);
struct value j_repeat(struct run *r, struct value sequence, int64_t times);
struct value j_add(struct run *r, struct value a, struct value b);

/* ---- members (attr.c) ---- */
struct value j_getattr(struct run *r, struct value obj, struct value name);
struct value j_attr_only(struct run *r, struct value obj, struct value name); /* never obj[name] */
struct value j_getitem(struct run *r, struct value obj, struct value key);
struct value j_slice(struct run *r, struct value obj, struct value start, struct value stop, struct value step);
struct value j_get_path(struct run *r, struct value obj,
                        struct value path); /* "a.b.0", as filters' attribute= has it */
/* The same with a default= that stands in for whatever is undefined on the way; none or missing: no default.
 */
struct value j_get_path_or(struct run *r, struct value obj, struct value path, struct value fallback);
const struct builtin *method_find(struct value self, const char *name, size_t n);
const struct builtin *text_method_find(const char *name, size_t n);
bool j_index(struct run *r, struct value v, int64_t *i); /* an int or bool; else fails */

/* ---- filters and tests by file; each table ends with a NULL name ---- */
extern const struct builtin text_filters[], list_filters[], lazy_filters[], number_filters[];

/* ---- text (format.c, json.c) ---- */
struct value j_percent(struct run *r, struct value format, struct value args);
struct value j_format(struct run *r, struct value self, const struct args *args);
struct value j_tojson(struct run *r, struct value self, const struct value *a, const struct args *raw);

/* ---- sorting (sort.c) ---- */
struct value j_sorted(struct run *r, struct value list); /* a new list, by the items themselves */
/* list sorted by keys[i] of its items; stable, also in reverse. */
struct value j_sorted_by(struct run *r, struct value list, const struct value *keys, bool reverse);

#endif
