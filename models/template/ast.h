/* A parsed template: a tree of nodes in the template's arena, with names resolved to slots (scope.c). Written once at
 * compile time, then read by any thread. Invariant: the tree is at most NODE_DEPTH_MAX deep. */
#ifndef MODELS_TEMPLATE_AST_H
#define MODELS_TEMPLATE_AST_H

#include "models/template/lex.h"

enum { NODE_DEPTH_MAX = 250 };

/* Which children a node has, in jinja2's order of fields (its scoping depends on it), stands beside each
 * type. */
enum node_type {
    N_DATA,         /* value: the text */
    N_PRINT,        /* a */
    N_FOR,          /* a: target, b: iterated, list: body, list2: else, c: condition; flag: recursive */
    N_IF,           /* a: test, list: body, list2: elif (N_IF without else), list3: else */
    N_SET,          /* a: target, b: value */
    N_SET_BLOCK,    /* a: target, b: filter or NULL, list: body */
    N_MACRO,        /* name, list: parameters, list2: defaults of the last ones, list3: body */
    N_CALL_BLOCK,   /* a: the call (NULL: generation), list: parameters, list2: defaults, list3: body */
    N_FILTER_BLOCK, /* list: body, b: filter */
    N_WITH,         /* list: targets, list2: values, list3: body */
    N_BREAK,
    N_CONTINUE,
    N_NAME,  /* name; up, slot; op: enum name_use */
    N_NSREF, /* name, attribute in value; up, slot */
    N_CONST, /* value */
    N_LIST,
    N_TUPLE, /* list */
    N_DICT,  /* list: keys, list2: values */
    N_COND,  /* a: test, b: then, c: else or NULL */
    N_OR,
    N_AND, /* a, b */
    N_NOT,
    N_NEG,
    N_POS,     /* a */
    N_COMPARE, /* a, list: N_OPERAND */
    N_OPERAND, /* op: token type, or OP_IN, OP_NOT_IN; a */
    N_BINARY,  /* op: token type; a, b */
    N_CONCAT,  /* list */
    N_GETATTR, /* a, value: the name */
    N_GETITEM, /* a, b */
    N_SLICE,   /* a, b, c: each may be NULL */
    N_CALL,    /* a: callee; arguments: list, list2 (N_KEYWORD), b: *args, c: **kwargs */
    N_FILTER,  /* a (NULL: the block's text), builtin, arguments as for N_CALL */
    N_TEST,    /* the same; a is never NULL */
    N_KEYWORD  /* value: the name, a */
};
enum { OP_IN = 100, OP_NOT_IN };
enum name_use { USE_LOAD, USE_STORE, USE_PARAM };

struct node;
struct nodes {
    struct node **at;
    int n, cap;
};

struct name {
    const char *s;
    size_t n;
};

/* What happens to a slot when its scope is entered. */
enum load { LOAD_PARAM, LOAD_RESOLVE, LOAD_ALIAS, LOAD_UNDEFINED };
struct slot_load {
    enum load how;
    int slot;
    int up, from; /* alias: where from; resolve: from = index of the free name */
};
struct scope_code {
    struct slot_load *loads;
    int n_loads;
};

/* A run of code with its own activation: the template, a macro, a recursive loop. */
struct function_code {
    int n_slots;
};

struct node {
    enum node_type type;
    int line, depth;
    int op;
    bool flag;
    struct node *a, *b, *c;
    struct nodes list, list2, list3;
    struct name name;
    struct value value;
    const struct builtin *builtin;
    int up, slot;
    struct scope_code scope;        /* of the body */
    struct scope_code scope2;       /* for: of the else branch */
    struct scope_code scope3;       /* for: of the condition */
    struct node *test_target;       /* for with a condition: the target again, in the condition's scope */
    struct function_code *function; /* macro, call block, recursive for */
    int slot_loop;                  /* for: slot of `loop`, or -1; macro: of caller, kwargs, varargs */
    int slot_caller, slot_kwargs, slot_varargs;
};

struct template
{
    struct arena arena;
    struct nodes body;
    struct scope_code scope;
    struct function_code root;
    struct name *free_names; /* looked up in the context once per render */
    int n_free_names;
};

/* ---- parsing ---- */
struct parser {
    struct compile c;
    struct template *t;
    size_t at;
    int depth; /* of statements and expressions in each other */
    int loops; /* for bodies around, within the function */
};
int jinja_parse(struct parser *p); /* tokens to p->t->body */

struct token *p_token(struct parser *p);
struct token *p_look(struct parser *p); /* the one after */
struct token *p_next(struct parser *p); /* the current one, and moves on */
bool p_is(struct parser *p, enum token_type type);
bool p_is_name(struct parser *p, const char *name);
bool p_skip(struct parser *p, enum token_type type);
bool p_skip_name(struct parser *p, const char *name);
struct token *p_expect(struct parser *p, enum token_type type);
struct node *p_fail(struct parser *p, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
bool p_enter(struct parser *p);
struct node *p_node(struct parser *p, enum node_type type, int line);
struct node *p_with(struct parser *p, struct node *n, struct node *a, struct node *b, struct node *c);
void p_append(struct parser *p, struct node *n, struct nodes *list, struct node *item);
struct value p_string(struct parser *p, const char *s, size_t n);

struct node *p_expression(struct parser *p, bool with_condition);
struct node *p_tuple(struct parser *p, bool with_condition, const char *end_name, bool parentheses);
struct node *p_primary(struct parser *p, bool namespace_target);
struct node *p_filters(struct parser *p, struct node *subject, bool inline_start);

/* ---- after parsing ---- */
int jinja_resolve(struct compile *c, struct template *t); /* names to slots */
/* Calls visit for each child in order, NULL left out. */
void node_each(struct node *n, void (*visit)(void *ctx, struct node *child), void *ctx);

/* ---- tables ---- */
const struct builtin *filter_find(const char *name, size_t n);
const struct builtin *test_find(const char *name, size_t n);
const struct builtin *global_find(const char *name, size_t n);
const struct builtin *builtin_find(const struct builtin *table, size_t n_table, const char *name, size_t n);
bool filter_refused(const char *name, size_t n); /* jinja2 has it, this interpreter does not */
bool method_refused(const char *name, size_t n); /* a Python method that is not offered */

#endif
