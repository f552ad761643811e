#include "models/template/run.h"

#include <string.h>

static struct value eval_name(struct run *r, struct activation *at, const struct node *n)
{
    for (int up = n->up; up; up--)
        at = at->outer;
    struct value v = at->slots[n->slot];
    if (v.kind != J_MISSING)
        return v;
    return j_undefined(r, j_string_of(r, n->name.s, n->name.n));
}

static struct value eval_list(struct run *r, struct activation *at, const struct node *n)
{
    struct value v = j_array(r, n->type == N_LIST ? J_LIST : J_TUPLE, (size_t)n->list.n);
    for (int i = 0; i < n->list.n && !j_failed(r); i++)
        v.u.list->items[i] = j_eval(r, at, n->list.at[i]);
    return v;
}

static struct value eval_dict(struct run *r, struct activation *at, const struct node *n)
{
    struct value d = j_dict(r);
    for (int i = 0; i < n->list.n && !j_failed(r); i++) {
        struct value key = j_eval(r, at, n->list.at[i]), value = j_eval(r, at, n->list2.at[i]);
        r->line = n->line;
        j_dict_set(r, d.u.dict, key, value);
    }
    return d;
}

static struct value eval_cond(struct run *r, struct activation *at, const struct node *n)
{
    if (j_true(r, j_eval(r, at, n->a)))
        return j_eval(r, at, n->b);
    if (n->c)
        return j_eval(r, at, n->c);
    return j_undefined_hint(r, "the inline if-expression evaluated to false and no else section was defined", j_none());
}

static bool compare(struct run *r, int op, struct value a, struct value b)
{
    switch (op) {
    case T_EQ:
        return j_equal(r, a, b);
    case T_NE:
        return !j_equal(r, a, b);
    case T_LT:
        return j_less(r, a, b, false);
    case T_LE:
        return j_less(r, a, b, true);
    case T_GT:
        return j_less(r, b, a, false);
    case T_GE:
        return j_less(r, b, a, true);
    case OP_IN:
        return j_in(r, a, b);
    }
    return !j_in(r, a, b);
}

static struct value eval_compare(struct run *r, struct activation *at, const struct node *n)
{
    struct value left = j_eval(r, at, n->a);
    for (int i = 0; i < n->list.n; i++) {
        struct value right = j_eval(r, at, n->list.at[i]->a);
        r->line = n->line;
        if (j_failed(r) || !compare(r, n->list.at[i]->op, left, right))
            return j_bool(false);
        left = right;
    }
    return j_bool(true);
}

static struct value eval_concat(struct run *r, struct activation *at, const struct node *n)
{
    struct value all = j_cstring(r, "");
    for (int i = 0; i < n->list.n && !j_failed(r); i++)
        all = j_concat(r, all, j_str(r, j_eval(r, at, n->list.at[i])));
    all.markup = false;
    return all;
}

static struct value eval_getitem(struct run *r, struct activation *at, const struct node *n)
{
    struct value obj = j_eval(r, at, n->a), part[3];
    if (n->b->type != N_SLICE) {
        struct value key = j_eval(r, at, n->b);
        r->line = n->line;
        return j_getitem(r, obj, key);
    }
    const struct node *at_part[3] = {n->b->a, n->b->b, n->b->c};
    for (int i = 0; i < 3; i++)
        part[i] = at_part[i] ? j_eval(r, at, at_part[i]) : j_none();
    r->line = n->line;
    return j_slice(r, obj, part[0], part[1], part[2]);
}

static struct value eval_call(struct run *r, struct activation *at, const struct node *n)
{
    struct value callee = j_eval(r, at, n->a);
    struct args args;
    if (!j_args(r, at, n, &args))
        return j_of(J_UNDEFINED);
    r->line = n->line;
    return j_call(r, callee, &args);
}

static struct value eval_builtin(struct run *r, struct activation *at, const struct node *n)
{
    struct value subject = j_eval(r, at, n->a);
    struct args args;
    if (!j_args(r, at, n, &args))
        return j_of(J_UNDEFINED);
    r->line = n->line;
    return j_call_builtin(r, n->builtin, subject, &args);
}

struct value j_filter_text(struct run *r, struct activation *at, const struct node *filter, struct value text)
{
    struct args args;
    struct value subject = filter->a ? j_filter_text(r, at, filter->a, text) : text;
    if (j_failed(r) || !j_args(r, at, filter, &args))
        return j_of(J_UNDEFINED);
    r->line = filter->line;
    return j_call_builtin(r, filter->builtin, subject, &args);
}

static struct value eval_binary(struct run *r, struct activation *at, const struct node *n)
{
    struct value a = j_eval(r, at, n->a), b = j_eval(r, at, n->b);
    if (j_failed(r))
        return j_of(J_UNDEFINED);
    r->line = n->line;
    return j_binary(r, n->op, a, b);
}

static struct value eval_sign(struct run *r, struct activation *at, const struct node *n)
{
    struct value v = j_eval(r, at, n->a);
    r->line = n->line;
    return j_negative(r, v, n->type == N_NEG);
}

static struct value eval_logic(struct run *r, struct activation *at, const struct node *n)
{
    struct value v = j_eval(r, at, n->a);
    return j_true(r, v) == (n->type == N_OR) ? v : j_eval(r, at, n->b);
}

static struct value eval_getattr(struct run *r, struct activation *at, const struct node *n)
{
    struct value obj = j_eval(r, at, n->a);
    r->line = n->line;
    return j_failed(r) ? obj : j_getattr(r, obj, n->value);
}

static struct value eval_node(struct run *r, struct activation *at, const struct node *n)
{
    switch (n->type) {
    case N_NAME:
        return eval_name(r, at, n);
    case N_CONST:
        return n->value;
    case N_LIST:
    case N_TUPLE:
        return eval_list(r, at, n);
    case N_DICT:
        return eval_dict(r, at, n);
    case N_COND:
        return eval_cond(r, at, n);
    case N_OR:
    case N_AND:
        return eval_logic(r, at, n);
    case N_NOT:
        return j_bool(!j_true(r, j_eval(r, at, n->a)));
    case N_NEG:
    case N_POS:
        return eval_sign(r, at, n);
    case N_COMPARE:
        return eval_compare(r, at, n);
    case N_BINARY:
        return eval_binary(r, at, n);
    case N_CONCAT:
        return eval_concat(r, at, n);
    case N_GETATTR:
        return eval_getattr(r, at, n);
    case N_GETITEM:
        return eval_getitem(r, at, n);
    case N_CALL:
        return eval_call(r, at, n);
    case N_FILTER:
    case N_TEST:
        return eval_builtin(r, at, n);
    default:
        return j_none(); /* statements never come here */
    }
}

struct value j_eval(struct run *r, struct activation *at, const struct node *n)
{
    if (!j_charge(r, 1) || !j_enter(r))
        return j_of(J_UNDEFINED);
    r->line = n->line;
    struct value v = eval_node(r, at, n);
    j_leave(r);
    return v;
}
