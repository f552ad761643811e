/* Names to slots, with jinja2's rules of scope: every block that has its own scope is looked through as a
 * whole before its code runs, and what it does with a name decides whether the name starts as the outer one's
 * copy, as the context's member or as nothing. An if has no scope of its own. */
#include <string.h>

#include "models/template/ast.h"

struct function {
    struct function *outer;
    struct function_code *code;
    int depth;
};

struct symbol {
    struct name name;
    int slot;
    bool known; /* seen in this scope (jinja2: in refs) */
    bool stored;
    bool loaded; /* has a load instruction */
    enum load how;
};

struct scope {
    struct scope *outer;
    struct function *function;
    struct symbol *symbols; /* all names the scope ever met; branches work on copies of the array */
    int n, cap;
};

enum { NAMES_MAX = 2000 };

struct resolver {
    struct compile *c;
    struct template *t;
};

static bool same_name(struct name a, struct name b)
{
    return a.n == b.n && memcmp(a.s, b.s, a.n) == 0;
}

static bool name_is(struct name a, const char *s)
{
    return a.n == strlen(s) && memcmp(a.s, s, a.n) == 0;
}

static struct symbol *symbol(const struct scope *s, struct name name)
{
    for (int i = 0; i < s->n; i++)
        if (same_name(s->symbols[i].name, name))
            return &s->symbols[i];
    return NULL;
}

static const struct scope *find_ref(const struct scope *s, struct name name, struct symbol **found)
{
    for (; s; s = s->outer) {
        *found = symbol(s, name);
        if (*found && (*found)->known)
            return s;
    }
    return NULL;
}

static struct symbol *define(struct resolver *v, struct scope *s, struct name name, enum load how)
{
    struct symbol *x = symbol(s, name);
    if (!x) {
        if (s->n == s->cap) {
            s->cap = s->cap ? 2 * s->cap : 8;
            struct symbol *more = arena_new(v->c->arena, (size_t)s->cap * sizeof *more);
            if (s->n)
                memcpy(more, s->symbols, (size_t)s->n * sizeof *more);
            s->symbols = more;
        }
        x = &s->symbols[s->n++];
        *x = (struct symbol){.name = name, .slot = s->function->code->n_slots++};
        if (s->n > NAMES_MAX)
            c_fail(v->c, E_UNSUPPORTED, 1, "more than %d names in one scope", NAMES_MAX);
    }
    x->known = x->loaded = true;
    x->how = how;
    return x;
}

static void store(struct resolver *v, struct scope *s, struct name name)
{
    struct symbol *x = symbol(s, name), *outer;
    if (!x || !x->known)
        x = define(v, s, name, s->outer && find_ref(s->outer, name, &outer) ? LOAD_ALIAS : LOAD_UNDEFINED);
    x->stored = true;
}

static void load(struct resolver *v, struct scope *s, struct name name)
{
    struct symbol *x;
    if (!find_ref(s, name, &x))
        define(v, s, name, LOAD_RESOLVE);
}

static int declare(struct resolver *v, struct scope *s, struct name name)
{
    struct symbol *x = define(v, s, name, LOAD_PARAM);
    x->stored = true;
    return x->slot;
}

/* ---- branches of an if ---- */

static struct scope branch_copy(struct resolver *v, const struct scope *s)
{
    struct scope copy = *s;
    c_check_size(v->c, 1);
    copy.cap = s->n;
    copy.symbols = arena_copy(v->c->arena, s->symbols, (size_t)s->n * sizeof *s->symbols);
    return copy;
}

/* Takes what one branch did into s. The branch began as a copy of the first n symbols of s, so those have the
 * same places. */
static void take_branch(struct resolver *v, struct scope *s, const struct scope *branch, int n, bool *stored)
{
    for (int i = 0; i < n; i++)
        stored[i] = stored[i] || branch->symbols[i].stored;
    for (int i = n; i < branch->n && !c_failed(v->c); i++) {
        const struct symbol *x = &branch->symbols[i];
        struct symbol *mine = symbol(s, x->name);
        bool was_stored = mine && mine->stored;
        mine = define(v, s, x->name, x->how);
        mine->stored = was_stored || x->stored;
    }
}

/* A name that only some branch stored starts as what it was outside. */
static void settle_stored(struct scope *s, int n, const bool *stored)
{
    struct symbol *outer;
    for (int i = 0; i < s->n; i++) {
        struct symbol *x = &s->symbols[i];
        if (i < n ? stored[i] && !x->stored : x->stored)
            x->how = s->outer && find_ref(s->outer, x->name, &outer) ? LOAD_ALIAS : LOAD_RESOLVE;
        x->stored = x->stored || (i < n && stored[i]);
    }
}

/* ---- what a scope's own code does with names (inner scopes are left out) ---- */

struct visit {
    struct resolver *v;
    struct scope *s;
    bool as_param;
};

static void visit(void *ctx, struct node *n);

static void visit_all(struct visit *w, const struct nodes *list)
{
    for (int i = 0; i < list->n; i++)
        visit(w, list->at[i]);
}

static void visit_name(struct visit *w, const struct node *n)
{
    if (w->as_param || n->op == USE_PARAM)
        declare(w->v, w->s, n->name);
    else if (n->op == USE_STORE)
        store(w->v, w->s, n->name);
    else
        load(w->v, w->s, n->name);
}

static void visit_if(struct visit *w, struct node *n)
{
    const struct nodes *lists[3] = {&n->list, &n->list2, &n->list3};
    struct scope branches[3], *s = w->s;
    visit(w, n->a);
    int before = s->n;
    bool *stored = arena_new(w->v->c->arena, (size_t)before);
    for (int i = 0; i < 3; i++) {
        if (!lists[i]->n)
            continue;
        branches[i] = branch_copy(w->v, s);
        struct visit inner = {w->v, &branches[i], w->as_param};
        visit_all(&inner, lists[i]);
    }
    for (int i = 0; i < 3 && !c_failed(w->v->c); i++)
        if (lists[i]->n)
            take_branch(w->v, s, &branches[i], before, stored);
    settle_stored(s, before, stored);
}

static void visit(void *ctx, struct node *n)
{
    struct visit *w = ctx;
    if (!n || c_failed(w->v->c))
        return;
    switch (n->type) {
    case N_NAME:
        visit_name(w, n);
        return;
    case N_NSREF:
        load(w->v, w->s, n->name);
        return;
    case N_IF:
        visit_if(w, n);
        return;
    case N_MACRO:
        store(w->v, w->s, n->name);
        return;
    case N_SET:
        visit(w, n->b);
        visit(w, n->a);
        return;
    case N_FOR:
    case N_FILTER_BLOCK:
        visit(w, n->b);
        return;
    case N_CALL_BLOCK:
    case N_SET_BLOCK:
        visit(w, n->a);
        return;
    case N_WITH:
        visit_all(w, &n->list2);
        return;
    default:
        node_each(n, visit, w);
    }
}

/* ---- searches ---- */

/* Which of caller, kwargs and varargs (or loop) some code reads before it stores them, in order of the text.
 */
struct undeclared {
    const char *names[4];
    bool gone[4], found[4];
};

static void find_undeclared(void *ctx, struct node *n)
{
    struct undeclared *u = ctx;
    if (n->type == N_NAME)
        for (int i = 0; i < 4 && u->names[i]; i++)
            if (!u->gone[i] && name_is(n->name, u->names[i])) {
                if (n->op == USE_LOAD)
                    u->found[i] = true;
                else
                    u->gone[i] = true;
            }
    node_each(n, find_undeclared, u);
}

static void search(struct undeclared *u, const struct nodes *list)
{
    for (int i = 0; i < list->n; i++)
        find_undeclared(u, list->at[i]);
}

static void refuse_loop_store(void *ctx, struct node *n)
{
    struct compile *c = ctx;
    if (n->type == N_NAME && n->op == USE_STORE && name_is(n->name, "loop"))
        c_fail(c, E_INPUT, n->line, "the variable 'loop' cannot be assigned inside a for");
    node_each(n, refuse_loop_store, ctx);
}

/* ---- the second pass: every name gets its slot ---- */

static int free_name(struct resolver *v, struct name name)
{
    struct template *t = v->t;
    for (int i = 0; i < t->n_free_names; i++)
        if (same_name(t->free_names[i], name))
            return i;
    struct name *more = arena_new(v->c->arena, (size_t)(t->n_free_names + 1) * sizeof *more);
    if (t->n_free_names)
        memcpy(more, t->free_names, (size_t)t->n_free_names * sizeof *more);
    more[t->n_free_names] = name;
    t->free_names = more;
    return t->n_free_names++;
}

static struct scope_code scope_code(struct resolver *v, const struct scope *s)
{
    struct scope_code code = {arena_new(v->c->arena, (size_t)s->n * sizeof *code.loads), 0};
    for (int i = 0; i < s->n; i++) {
        const struct symbol *x = &s->symbols[i];
        struct slot_load l = {.how = x->how, .slot = x->slot};
        struct symbol *outer = NULL;
        const struct scope *owner = x->how == LOAD_ALIAS ? find_ref(s->outer, x->name, &outer) : NULL;
        if (!x->known || !x->loaded)
            continue;
        if (x->how == LOAD_RESOLVE)
            l.from = free_name(v, x->name);
        if (owner) {
            l.up = s->function->depth - owner->function->depth;
            l.from = outer->slot;
        }
        code.loads[code.n_loads++] = l;
    }
    return code;
}

static void resolve(struct resolver *v, struct scope *s, struct node *n);

static void resolve_all(struct resolver *v, struct scope *s, const struct nodes *list)
{
    for (int i = 0; i < list->n; i++)
        resolve(v, s, list->at[i]);
}

static void resolve_name(struct scope *s, struct node *n)
{
    struct symbol *x;
    const struct scope *owner = find_ref(s, n->name, &x);
    if (!owner)
        return; /* cannot be: the first pass met every name */
    n->up = s->function->depth - owner->function->depth;
    n->slot = x->slot;
}

static struct function inner_function(struct resolver *v, struct scope *s)
{
    struct function_code *code = arena_new(v->c->arena, sizeof *code);
    return (struct function){s->function, code, s->function->depth + 1};
}

static void check_caller_param(struct resolver *v, const struct node *n)
{
    int first_default = n->list.n - n->list2.n;
    for (int i = 0; i < n->list.n && i < first_default; i++)
        if (name_is(n->list.at[i]->name, "caller"))
            c_fail(v->c, E_INPUT, n->line, "the parameter 'caller' must have a default");
}

static bool has_param(const struct node *n, const char *name)
{
    for (int i = 0; i < n->list.n; i++)
        if (name_is(n->list.at[i]->name, name))
            return true;
    return false;
}

static void resolve_macro(struct resolver *v, struct scope *s, struct node *n)
{
    if (n->type == N_MACRO)
        resolve_name(s, n);
    else if (n->a)
        resolve(v, s, n->a);
    struct function f = inner_function(v, s);
    struct scope inner = {.outer = s, .function = &f};
    struct visit w = {v, &inner, false};
    visit_all(&w, &n->list);
    visit_all(&w, &n->list2);
    visit_all(&w, &n->list3);
    struct undeclared u = {.names = {"caller", "kwargs", "varargs", NULL}};
    search(&u, &n->list3);
    int *slots[3] = {&n->slot_caller, &n->slot_kwargs, &n->slot_varargs};
    for (int i = 0; i < 3; i++)
        if (u.found[i] && !has_param(n, u.names[i]))
            *slots[i] = declare(v, &inner, (struct name){u.names[i], strlen(u.names[i])});
    if (u.found[0])
        check_caller_param(v, n);
    n->flag = u.found[0];
    resolve_all(v, &inner, &n->list);
    resolve_all(v, &inner, &n->list2);
    resolve_all(v, &inner, &n->list3);
    n->scope = scope_code(v, &inner);
    n->function = f.code;
}

static struct node *clone_target(struct resolver *v, const struct node *n)
{
    struct node *copy = arena_copy(v->c->arena, n, sizeof *n);
    if (n->list.n)
        copy->list.at = arena_copy(v->c->arena, n->list.at, (size_t)n->list.n * sizeof *n->list.at);
    for (int i = 0; i < n->list.n; i++)
        copy->list.at[i] = clone_target(v, n->list.at[i]);
    return copy;
}

static void resolve_condition(struct resolver *v, struct scope *s, struct function *f, struct node *n)
{
    struct scope test = {.outer = s, .function = f};
    struct visit w = {v, &test, true};
    n->test_target = clone_target(v, n->a);
    visit(&w, n->test_target);
    w.as_param = false;
    visit(&w, n->c);
    resolve(v, &test, n->test_target);
    resolve(v, &test, n->c);
    n->scope3 = scope_code(v, &test);
}

static void resolve_for(struct resolver *v, struct scope *s, struct node *n)
{
    resolve(v, s, n->b);
    refuse_loop_store(v->c, n);
    struct function own = *s->function;
    if (n->flag) {
        own = inner_function(v, s);
        n->function = own.code;
    }
    struct scope body = {.outer = s, .function = &own}, other = {.outer = s, .function = &own};
    struct undeclared u = {.names = {"loop", NULL}};
    search(&u, &n->list);
    if (n->flag || u.found[0])
        n->slot_loop = declare(v, &body, (struct name){"loop", 4});
    struct visit w = {v, &body, true};
    visit(&w, n->a);
    w.as_param = false;
    visit_all(&w, &n->list);
    resolve(v, &body, n->a);
    resolve_all(v, &body, &n->list);
    n->scope = scope_code(v, &body);
    w.s = &other;
    visit_all(&w, &n->list2);
    resolve_all(v, &other, &n->list2);
    n->scope2 = scope_code(v, &other);
    if (n->c)
        resolve_condition(v, s, &own, n);
}

/* filter, with and set blocks: a scope within the same function. */
static void resolve_block(struct resolver *v, struct scope *s, struct node *n)
{
    struct scope inner = {.outer = s, .function = s->function};
    struct visit w = {v, &inner, false};
    if (n->type == N_WITH) {
        visit_all(&w, &n->list);
        visit_all(&w, &n->list3);
        resolve_all(v, s, &n->list2);
        resolve_all(v, &inner, &n->list);
        resolve_all(v, &inner, &n->list3);
    } else {
        visit_all(&w, &n->list);
        visit(&w, n->b);
        resolve_all(v, &inner, &n->list);
        resolve(v, &inner, n->b);
        if (n->a)
            resolve(v, s, n->a);
    }
    n->scope = scope_code(v, &inner);
}

struct resolve_child {
    struct resolver *v;
    struct scope *s;
};

static void resolve_child(void *ctx, struct node *n)
{
    struct resolve_child *w = ctx;
    resolve(w->v, w->s, n);
}

static void resolve(struct resolver *v, struct scope *s, struct node *n)
{
    struct resolve_child w = {v, s};
    if (!n || c_failed(v->c))
        return;
    switch (n->type) {
    case N_NAME:
    case N_NSREF:
        resolve_name(s, n);
        return;
    case N_MACRO:
    case N_CALL_BLOCK:
        resolve_macro(v, s, n);
        return;
    case N_FOR:
        resolve_for(v, s, n);
        return;
    case N_FILTER_BLOCK:
    case N_SET_BLOCK:
    case N_WITH:
        resolve_block(v, s, n);
        return;
    default:
        node_each(n, resolve_child, &w);
    }
}

static void each_of(const struct nodes *list, void (*f)(void *, struct node *), void *ctx)
{
    for (int i = 0; i < list->n; i++)
        f(ctx, list->at[i]);
}

void node_each(struct node *n, void (*f)(void *ctx, struct node *child), void *ctx)
{
    bool b_after_lists = n->type == N_CALL || n->type == N_FILTER || n->type == N_TEST || n->type == N_FILTER_BLOCK;
    if (n->a)
        f(ctx, n->a);
    if (n->b && !b_after_lists)
        f(ctx, n->b);
    each_of(&n->list, f, ctx);
    each_of(&n->list2, f, ctx);
    each_of(&n->list3, f, ctx);
    if (n->b && b_after_lists)
        f(ctx, n->b);
    if (n->c)
        f(ctx, n->c);
}

int jinja_resolve(struct compile *c, struct template *t)
{
    struct resolver v = {c, t};
    struct function root = {NULL, &t->root, 0};
    struct scope s = {.function = &root};
    struct visit w = {&v, &s, false};
    visit_all(&w, &t->body);
    resolve_all(&v, &s, &t->body);
    t->scope = scope_code(&v, &s);
    return c->error.code;
}
