#include "models/template/run.h"

#include <string.h>

static enum flow exec_node(struct run *r, struct activation *at, const struct node *n);

enum flow j_exec(struct run *r, struct activation *at, const struct nodes *list)
{
    enum flow flow = FLOW_ON;
    for (int i = 0; i < list->n && flow == FLOW_ON && !j_failed(r); i++)
        flow = exec_node(r, at, list->at[i]);
    return flow;
}

static struct value *slot(struct activation *at, int up, int i)
{
    while (up--)
        at = at->outer;
    return &at->slots[i];
}

void j_scope_enter(struct run *r, struct activation *at, const struct scope_code *code)
{
    for (int i = 0; i < code->n_loads; i++) {
        const struct slot_load *l = &code->loads[i];
        switch (l->how) {
        case LOAD_PARAM:
            break;
        case LOAD_RESOLVE:
            at->slots[l->slot] = r->globals[l->from];
            break;
        case LOAD_ALIAS:
            at->slots[l->slot] = *slot(at, l->up, l->from);
            break;
        case LOAD_UNDEFINED:
            at->slots[l->slot] = j_missing();
            break;
        }
    }
}

static void scope_leave(struct activation *at, const struct scope_code *code)
{
    for (int i = 0; i < code->n_loads; i++)
        at->slots[code->loads[i].slot] = j_missing();
}

struct activation *j_activate(struct run *r, const struct function_code *f, struct activation *outer)
{
    struct activation *at = j_alloc(r, sizeof *at);
    struct value *slots = at ? j_alloc_array(r, (size_t)f->n_slots, sizeof *slots) : NULL;
    if (!slots)
        return NULL;
    for (int i = 0; i < f->n_slots; i++)
        slots[i] = j_missing();
    *at = (struct activation){slots, outer};
    return at;
}

struct value j_captured(struct run *r, size_t start)
{
    struct value v = j_string(r, r->out->data ? r->out->data + start : "", r->out->len - start);
    r->out->len = start;
    return v;
}

static void put(struct run *r, struct value v)
{
    j_put_str(r, r->out, v);
    if (r->out->len - r->out_base > r->out_limit)
        j_full(r, "the template's output passes %zu bytes", r->out_limit);
}

/* What a filter or call block gives is not converted: Python can only join str. */
static void put_text(struct run *r, struct value v)
{
    if (!j_failed(r) && v.kind != J_STRING)
        j_fail(r, "a block must give str, not %s", j_type_name(v));
    put(r, v);
}

/* ---- assignment ---- */

static void assign_each(struct run *r, struct activation *at, const struct node *target, struct value v)
{
    struct value iter = j_iter(r, v), item;
    for (int i = 0; i < target->list.n && !j_failed(r); i++) {
        if (!j_next(r, iter, &item)) {
            j_fail(r, "not enough values to unpack (expected %d, got %d)", target->list.n, i);
            return;
        }
        j_assign(r, at, target->list.at[i], item);
    }
    if (j_next(r, iter, &item))
        j_fail(r, "too many values to unpack (expected %d)", target->list.n);
}

void j_assign(struct run *r, struct activation *at, const struct node *target, struct value v)
{
    if (j_failed(r))
        return;
    struct value *to = target->type == N_TUPLE ? NULL : slot(at, target->up, target->slot);
    switch (target->type) {
    case N_TUPLE:
        assign_each(r, at, target, v);
        return;
    case N_NSREF:
        if (to->kind == J_NAMESPACE)
            j_dict_set(r, to->u.dict, target->value, v);
        else
            j_fail(r, "cannot assign attribute on non-namespace object");
        return;
    default:
        *to = v;
    }
}

/* Python checks every namespace of a target before the value is computed. */
static void check_namespaces(struct run *r, struct activation *at, const struct node *target)
{
    for (int i = 0; i < target->list.n; i++)
        check_namespaces(r, at, target->list.at[i]);
    if (target->type == N_NSREF && slot(at, target->up, target->slot)->kind != J_NAMESPACE)
        j_fail(r, "cannot assign attribute on non-namespace object");
}

/* Items of a tuple are unpacked before any is stored, so `set a, b = b, a` swaps; a plain value is stored as
 * it is. */
static void exec_set(struct run *r, struct activation *at, const struct node *n)
{
    check_namespaces(r, at, n->a);
    struct value v = j_eval(r, at, n->b);
    r->line = n->line;
    if (n->a->type == N_TUPLE && !j_failed(r)) {
        v = j_list(r, v, J_LIST);
        r->line = n->line;
    }
    j_assign(r, at, n->a, v);
}

static enum flow exec_set_block(struct run *r, struct activation *at, const struct node *n)
{
    size_t start = r->out->len;
    j_scope_enter(r, at, &n->scope);
    enum flow flow = j_exec(r, at, &n->list);
    struct value text = j_captured(r, start);
    if (flow == FLOW_ON && !j_failed(r))
        j_assign(r, at, n->a, n->b ? j_filter_text(r, at, n->b, text) : text);
    scope_leave(at, &n->scope);
    return flow;
}

static enum flow exec_filter_block(struct run *r, struct activation *at, const struct node *n)
{
    size_t start = r->out->len;
    j_scope_enter(r, at, &n->scope);
    enum flow flow = j_exec(r, at, &n->list);
    struct value text = j_captured(r, start);
    if (flow == FLOW_ON)
        put_text(r, j_filter_text(r, at, n->b, text));
    scope_leave(at, &n->scope);
    return flow;
}

static enum flow exec_with(struct run *r, struct activation *at, const struct node *n)
{
    j_scope_enter(r, at, &n->scope);
    for (int i = 0; i < n->list.n; i++)
        j_assign(r, at, n->list.at[i], j_eval(r, at, n->list2.at[i]));
    enum flow flow = j_exec(r, at, &n->list3);
    scope_leave(at, &n->scope);
    return flow;
}

static enum flow exec_if(struct run *r, struct activation *at, const struct node *n)
{
    if (j_true(r, j_eval(r, at, n->a)))
        return j_exec(r, at, &n->list);
    for (int i = 0; i < n->list2.n && !j_failed(r); i++) {
        const struct node *elif = n->list2.at[i];
        if (j_true(r, j_eval(r, at, elif->a)))
            return j_exec(r, at, &elif->list);
    }
    return j_exec(r, at, &n->list3);
}

/* ---- loops ---- */

struct condition {
    struct activation *at;
    const struct node *node;
    struct value iter;
};

static bool next_passing(struct run *r, struct iter *it, struct value *out)
{
    struct condition *c = it->state;
    while (j_next(r, c->iter, out)) {
        j_assign(r, c->at, c->node->test_target, *out);
        j_scope_enter(r, c->at, &c->node->scope3);
        if (j_true(r, j_eval(r, c->at, c->node->c)))
            return !j_failed(r);
    }
    return false;
}

static struct value filtered(struct run *r, struct activation *at, const struct node *n, struct value source)
{
    struct condition *c = j_alloc(r, sizeof *c);
    if (!c)
        return j_of(J_UNDEFINED);
    *c = (struct condition){at, n, j_iter(r, source)};
    return j_generator(r, next_passing, source, c);
}

/* As jinja2 compiles it, the else branch runs when no turn came to the end of the body; break and continue
 * skip that. */
static enum flow run_loop(struct run *r, struct activation *at, const struct node *n, struct loop *l)
{
    struct value item;
    bool completed = false;
    while (!j_failed(r) && j_loop_next(r, l, &item)) {
        r->line = n->line;
        j_assign(r, at, n->a, item);
        if (n->slot_loop >= 0)
            at->slots[n->slot_loop] = (struct value){.kind = J_LOOP, .u.loop = l};
        j_scope_enter(r, at, &n->scope);
        enum flow flow = j_exec(r, at, &n->list);
        if (flow == FLOW_BREAK)
            break;
        if (flow == FLOW_ON)
            completed = true;
    }
    scope_leave(at, &n->scope);
    if (completed || !n->list2.n || j_failed(r))
        return FLOW_ON;
    j_scope_enter(r, at, &n->scope2);
    enum flow flow = j_exec(r, at, &n->list2);
    scope_leave(at, &n->scope2);
    return flow;
}

static struct loop *new_loop(struct run *r, struct activation *at, const struct node *n, struct value source)
{
    struct loop *l = j_alloc(r, sizeof *l);
    if (!l)
        return NULL;
    if (n->c)
        source = filtered(r, at, n, source);
    *l = (struct loop){.source = source,
                       .after = j_missing(),
                       .current = j_missing(),
                       .before = j_missing(),
                       .last_changed = j_missing(),
                       .index0 = -1};
    l->iter = j_iter(r, source);
    return l;
}

/* One level of a recursive loop: a function that gives back its text. */
static struct value recurse(struct run *r, struct activation *home, const struct node *n, struct value source,
                            int64_t depth0)
{
    if (!j_enter(r))
        return j_of(J_UNDEFINED);
    struct activation *at = j_activate(r, n->function, home);
    struct loop *l = at ? new_loop(r, at, n, source) : NULL;
    size_t start = r->out->len;
    if (l) {
        l->recurse = n;
        l->home = home;
        l->depth0 = depth0;
        run_loop(r, at, n, l);
    }
    j_leave(r);
    return j_captured(r, start);
}

struct value j_loop_call(struct run *r, struct loop *l, const struct args *args)
{
    if (!l->recurse)
        return j_fail(r, "the loop must have the 'recursive' marker to be called recursively");
    if (args->n != 1 || args->n_kw)
        return j_fail(r, "loop() takes one argument");
    return recurse(r, l->home, l->recurse, args->at[0], l->depth0 + 1);
}

static enum flow exec_for(struct run *r, struct activation *at, const struct node *n)
{
    struct value source = j_eval(r, at, n->b);
    r->line = n->line;
    if (j_failed(r))
        return FLOW_ON;
    if (n->flag) {
        put(r, recurse(r, at, n, source, 0));
        return FLOW_ON;
    }
    struct loop *l = new_loop(r, at, n, source);
    return l ? run_loop(r, at, n, l) : FLOW_ON;
}

/* ---- functions ---- */

static struct value new_macro(struct run *r, struct activation *at, const struct node *n)
{
    struct macro *m = j_alloc(r, sizeof *m);
    if (!m)
        return j_of(J_UNDEFINED);
    *m = (struct macro){n, at};
    return (struct value){.kind = J_MACRO, .u.macro = m};
}

static void exec_call_block(struct run *r, struct activation *at, const struct node *n)
{
    struct value caller = new_macro(r, at, n);
    struct args args = {0};
    if (!n->a) { /* generation: only what stands in it */
        put(r, j_call(r, caller, &args));
        return;
    }
    struct value callee = j_eval(r, at, n->a->a);
    if (j_args(r, at, n->a, &args)) {
        r->line = n->line;
        j_add_keyword(r, &args, "caller", caller);
        put_text(r, j_call(r, callee, &args));
    }
}

static enum flow exec_node(struct run *r, struct activation *at, const struct node *n)
{
    enum flow flow = FLOW_ON;
    if (!j_charge(r, 1) || !j_enter(r))
        return FLOW_ON;
    r->line = n->line;
    switch (n->type) {
    case N_DATA:
        put(r, n->value);
        break;
    case N_PRINT:
        put(r, j_eval(r, at, n->a));
        break;
    case N_FOR:
        flow = exec_for(r, at, n);
        break;
    case N_IF:
        flow = exec_if(r, at, n);
        break;
    case N_SET:
        exec_set(r, at, n);
        break;
    case N_SET_BLOCK:
        flow = exec_set_block(r, at, n);
        break;
    case N_MACRO:
        *slot(at, n->up, n->slot) = new_macro(r, at, n);
        break;
    case N_CALL_BLOCK:
        exec_call_block(r, at, n);
        break;
    case N_FILTER_BLOCK:
        flow = exec_filter_block(r, at, n);
        break;
    case N_WITH:
        flow = exec_with(r, at, n);
        break;
    case N_BREAK:
        flow = FLOW_BREAK;
        break;
    case N_CONTINUE:
        flow = FLOW_CONTINUE;
        break;
    default:
        j_eval(r, at, n);
    }
    j_leave(r);
    return flow;
}
