/* Calls: arguments, built-ins and macros, as Python binds them. */
#include <string.h>

#include "models/template/run.h"

static bool same_text(struct value a, struct value b)
{
    return a.u.s->len == b.u.s->len && memcmp(a.u.s->data, b.u.s->data, a.u.s->len) == 0;
}

static bool put_keyword(struct run *r, struct args *args, struct value name, struct value v)
{
    for (size_t i = 0; i < args->n_kw; i++)
        if (same_text(args->kw[i].name, name)) {
            j_fail(r, "multiple values for the keyword argument '%.*s'", (int)name.u.s->len, name.u.s->data);
            return false;
        }
    struct keyword *kw = j_alloc_array(r, args->n_kw + 1, sizeof *kw);
    if (!kw || !j_charge(r, args->n_kw))
        return false;
    if (args->n_kw)
        memcpy(kw, args->kw, args->n_kw * sizeof *kw);
    kw[args->n_kw++] = (struct keyword){name, v};
    args->kw = kw;
    return true;
}

struct value j_add_keyword(struct run *r, struct args *args, const char *name, struct value v)
{
    put_keyword(r, args, j_cstring(r, name), v);
    return v;
}

static bool spread_keywords(struct run *r, struct args *out, struct value d)
{
    if (d.kind != J_DICT) {
        j_fail(r, "the argument after ** must be a mapping, not %s", j_type_name(d));
        return false;
    }
    for (size_t i = 0; i < d.u.dict->n; i++) {
        if (d.u.dict->entries[i].key.kind != J_STRING) {
            j_fail(r, "keywords must be strings");
            return false;
        }
        if (!put_keyword(r, out, d.u.dict->entries[i].key, d.u.dict->entries[i].value))
            return false;
    }
    return true;
}

bool j_args(struct run *r, struct activation *at, const struct node *n, struct args *out)
{
    *out = (struct args){0};
    struct items all = {0};
    for (int i = 0; i < n->list.n; i++)
        j_push(r, &all, j_eval(r, at, n->list.at[i]));
    if (n->b) {
        struct value iter = j_iter(r, j_eval(r, at, n->b)), each;
        while (j_next(r, iter, &each) && j_push(r, &all, each))
            ;
    }
    for (int i = 0; i < n->list2.n && !j_failed(r); i++)
        put_keyword(r, out, n->list2.at[i]->value, j_eval(r, at, n->list2.at[i]->a));
    if (n->c && !j_failed(r))
        spread_keywords(r, out, j_eval(r, at, n->c));
    out->at = all.at;
    out->n = all.n;
    return !j_failed(r);
}

/* ---- built-ins ---- */

struct param {
    const char *name;
    size_t n;
    bool optional;
};

static int read_params(const char *spec, struct param *out, bool *positional_only)
{
    int n = 0;
    *positional_only = *spec == '/';
    spec += *positional_only;
    while (*spec) {
        spec += strspn(spec, " ");
        size_t len = strcspn(spec, " ?");
        if (!len)
            break;
        out[n++] = (struct param){spec, len, spec[len] == '?'};
        spec += len + (spec[len] == '?');
    }
    return n;
}

static bool bind_keyword(struct run *r, const struct builtin *b, const struct param *params, int n,
                         const struct keyword *kw, struct value *a)
{
    for (int i = 0; i < n; i++)
        if (params[i].n == kw->name.u.s->len && memcmp(params[i].name, kw->name.u.s->data, params[i].n) == 0) {
            if (j_given(a[i]))
                break;
            a[i] = kw->value;
            return true;
        }
    j_fail(r, "%s() got an unexpected or repeated keyword argument '%.*s'", b->name,
           (int)(kw->name.u.s->len < 60 ? kw->name.u.s->len : 60), kw->name.u.s->data);
    return false;
}

static bool bind(struct run *r, const struct builtin *b, const struct args *args, struct value *a)
{
    struct param params[PARAMS_MAX];
    bool positional_only;
    int n = read_params(b->params, params, &positional_only);
    if (args->n > (size_t)n || (positional_only && args->n_kw)) {
        j_fail(r, "%s() takes at most %d argument%s%s", b->name, n, n == 1 ? "" : "s",
               positional_only ? ", none by name" : "");
        return false;
    }
    for (int i = 0; i < PARAMS_MAX; i++)
        a[i] = (size_t)i < args->n ? args->at[i] : j_missing();
    for (size_t i = 0; i < args->n_kw; i++)
        if (!bind_keyword(r, b, params, n, &args->kw[i], a))
            return false;
    for (int i = 0; i < n; i++)
        if (!params[i].optional && !j_given(a[i])) {
            j_fail(r, "%s() misses the argument '%.*s'", b->name, (int)params[i].n, params[i].name);
            return false;
        }
    return true;
}

struct value j_call_builtin(struct run *r, const struct builtin *b, struct value self, const struct args *args)
{
    struct value a[PARAMS_MAX], v = j_of(J_UNDEFINED);
    if (!j_charge(r, 1) || !j_enter(r))
        return v;
    if (strcmp(b->params, "...") == 0)
        v = b->fn(r, self, NULL, args);
    else if (bind(r, b, args, a))
        v = b->fn(r, self, a, args);
    j_leave(r);
    return v;
}

/* ---- macros ---- */

static struct value take_keyword(struct args *args, bool *used, const struct name *name)
{
    for (size_t i = 0; i < args->n_kw; i++) {
        struct value k = args->kw[i].name;
        if (!used[i] && k.u.s->len == name->n && memcmp(k.u.s->data, name->s, name->n) == 0) {
            used[i] = true;
            return args->kw[i].value;
        }
    }
    return j_missing();
}

/* kwargs the macro did not name, or the refusal of the first of them. */
static void rest_keywords(struct run *r, struct activation *at, const struct node *n, const struct args *args,
                          const bool *used)
{
    struct value rest = n->slot_kwargs >= 0 ? j_dict(r) : j_none();
    for (size_t i = 0; i < args->n_kw && !j_failed(r); i++) {
        if (used[i])
            continue;
        struct value k = args->kw[i].name;
        if (rest.kind == J_DICT)
            j_dict_set(r, rest.u.dict, k, args->kw[i].value);
        else
            j_fail(r, "macro '%.*s' takes no keyword argument '%.*s'", (int)n->name.n, n->name.s, (int)k.u.s->len,
                   k.u.s->data);
    }
    if (rest.kind == J_DICT)
        at->slots[n->slot_kwargs] = rest;
}

static void rest_positional(struct run *r, struct activation *at, const struct node *n, const struct args *args)
{
    size_t n_params = (size_t)n->list.n;
    if (n->slot_varargs < 0) {
        if (args->n > n_params)
            j_fail(r, "macro '%.*s' takes not more than %zu argument(s)", (int)n->name.n, n->name.s, n_params);
        return;
    }
    size_t more = args->n > n_params ? args->n - n_params : 0;
    struct value rest = j_array(r, J_TUPLE, more);
    if (more && !j_failed(r))
        memcpy(rest.u.list->items, args->at + n_params, more * sizeof *args->at);
    at->slots[n->slot_varargs] = rest;
}

static void bind_macro(struct run *r, struct activation *at, const struct node *n, struct args *args)
{
    static const struct name caller_name = {"caller", 6};
    bool *used = j_alloc(r, args->n_kw + 1);
    if (!used)
        return;
    for (int i = 0; i < n->list.n; i++) {
        const struct node *param = n->list.at[i];
        struct value v = (size_t)i < args->n ? args->at[i] : take_keyword(args, used, &param->name);
        at->slots[param->slot] = v;
    }
    if (n->slot_caller >= 0) {
        struct value caller = take_keyword(args, used, &caller_name);
        bool none = caller.kind == J_MISSING || caller.kind == J_NONE;
        at->slots[n->slot_caller] = none ? j_undefined_hint(r, "No caller defined", j_cstring(r, "caller")) : caller;
    }
    rest_keywords(r, at, n, args, used);
    rest_positional(r, at, n, args);
}

static void fill_defaults(struct run *r, struct activation *at, const struct node *n)
{
    int first = n->list.n - n->list2.n;
    for (int i = 0; i < n->list.n && !j_failed(r); i++) {
        struct value *to = &at->slots[n->list.at[i]->slot];
        if (to->kind != J_MISSING)
            continue;
        *to = i >= first ? j_eval(r, at, n->list2.at[i - first])
                         : j_undefined_hint(r, "a parameter of the macro was not provided",
                                            j_string_of(r, n->list.at[i]->name.s, n->list.at[i]->name.n));
    }
}

static struct value call_macro(struct run *r, const struct macro *m, struct args args)
{
    const struct node *n = m->node;
    struct activation *at = j_activate(r, n->function, m->home);
    if (!at)
        return j_of(J_UNDEFINED);
    bind_macro(r, at, n, &args);
    j_scope_enter(r, at, &n->scope);
    size_t start = r->out->len;
    fill_defaults(r, at, n);
    j_exec(r, at, &n->list3);
    return j_captured(r, start);
}

struct value j_call(struct run *r, struct value callee, const struct args *args)
{
    struct value v = j_of(J_UNDEFINED);
    if (!j_enter(r))
        return v;
    switch (callee.kind) {
    case J_UNDEFINED:
        v = j_fail_undefined(r, callee);
        break;
    case J_MACRO:
        v = call_macro(r, callee.u.macro, *args);
        break;
    case J_METHOD:
        v = j_call_builtin(r, callee.u.method->of, callee.u.method->self, args);
        break;
    case J_FUNCTION:
        v = j_call_builtin(r, callee.u.function, j_none(), args);
        break;
    case J_LOOP:
        v = j_loop_call(r, callee.u.loop, args);
        break;
    case J_JOINER:
        v = callee.u.joiner->used ? callee.u.joiner->separator : j_cstring(r, "");
        callee.u.joiner->used = true;
        break;
    default:
        v = j_fail(r, "'%s' object is not callable", j_type_name(callee));
    }
    j_leave(r);
    return v;
}
