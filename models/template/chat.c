#include "models/template/chat.h"

#include <string.h>

#include "models/template/run.h"

struct chat_template {
    struct template t;
};

enum { SOURCE_MAX = 512 << 10 };

int chat_compile(struct chat_template **out, const char *source, size_t n, struct err *e)
{
    *out = NULL;
    if (n > SOURCE_MAX)
        return err_set(e, E_UNSUPPORTED, "line 1: a template of %zu bytes; at most %d are accepted", n, SOURCE_MAX);
    struct chat_template *t = mem_new(sizeof *t);
    struct parser p = {.t = &t->t};
    p.c.arena = &t->t.arena;
    int rc = jinja_lex(&p.c, source, n);
    if (!rc)
        rc = jinja_parse(&p);
    if (!rc)
        rc = jinja_resolve(&p.c, &t->t);
    if (rc) {
        chat_free(t);
        return err_set(e, rc, "%s", p.c.error.text);
    }
    *out = t;
    return 0;
}

void chat_free(struct chat_template *t)
{
    if (!t)
        return;
    arena_free(&t->t.arena);
    mem_free(t);
}

bool chat_takes(const struct chat_template *t, const char *name)
{
    size_t n = strlen(name);
    for (int i = 0; i < t->t.n_free_names; i++)
        if (t->t.free_names[i].n == n && memcmp(t->t.free_names[i].s, name, n) == 0)
            return true;
    return false;
}

/* The values of the names that the template takes from outside. */
static void fill_globals(struct run *r, const struct json *context)
{
    const struct template *t = r->t;
    struct value all = context ? j_from_json(r, context) : j_dict(r);
    r->globals = j_alloc_array(r, (size_t)t->n_free_names + 1, sizeof *r->globals);
    for (int i = 0; i < t->n_free_names && r->globals && !j_failed(r); i++) {
        const struct name *name = &t->free_names[i];
        const struct value *v = j_dict_find_text(all.u.dict, name->s, name->n);
        const struct builtin *f = v ? NULL : global_find(name->s, name->n);
        r->globals[i] = v ? *v : f ? (struct value){.kind = J_FUNCTION, .u.function = f} : j_missing();
    }
}

int chat_render(const struct chat_template *t, const struct chat_input *in, struct buf *out, struct err *e)
{
    const struct chat_limits *l = &in->limits;
    struct run r = {.t = &t->t, .out = out, .out_base = out->len, .line = 1, .now = in->now, .cancel = in->cancel};
    if (in->context && json_type(in->context) != JSON_OBJECT)
        return err_set(e, E_INPUT, "the context of a chat template must be an object, not %s",
                       json_type_name(in->context));
    r.steps_left = l->steps ? l->steps : 10000000;
    r.out_limit = l->bytes ? l->bytes : (size_t)64 << 20;
    r.memory_left = l->memory ? l->memory : (size_t)512 << 20;
    fill_globals(&r, in->context);
    struct activation *at = j_failed(&r) ? NULL : j_activate(&r, &t->t.root, NULL);
    if (at) {
        j_scope_enter(&r, at, &t->t.scope);
        j_exec(&r, at, &t->t.body);
    }
    arena_free(&r.arena);
    if (!r.error.code)
        return 0;
    out->len = r.out_base;
    if (out->data)
        out->data[out->len] = 0;
    return err_set(e, r.error.code, "%s", r.error.text);
}
