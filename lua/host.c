#include "lua/host.h"

#include <stdio.h>
#include <string.h>

#include "engine/base/hash.h"
#include "engine/base/mem.h"
#include "lua/apart.h"
#include "lua/check.h"
#include "lua/follow.h"
#include "lua/hook_times.h"
#include "lua/scan.h"
#include "lua/libs.h"
#include "lua/script.h"

struct host {
    struct script *script;
    struct hook_times times;
    struct buf text;    /* all of it, as libs_text makes it */
    bool followed;      /* it may be: with lua_opts.keep_text */
    struct buf *follow; /* where the next call of step is told; NULL: nobody follows */
};

static size_t heap_of(const struct vm *vm)
{
    return vm->used > vm->floor ? vm->used - vm->floor : 0;
}

static enum verdict measured(struct host *h, enum policy_hook hook, enum verdict v)
{
    if (h->script->hooks[hook] >= 0)
        duration_add(&h->times.hooks[hook], h->script->vm.last_ns);
    return v;
}

static int hooks_of(const struct script *s)
{
    int has = 0;
    for (int i = 0; i < HOOK_COUNT; i++)
        has |= (s->hooks[i] >= 0) << i;
    return has;
}

static void metrics(void *ctx, const char *labels, struct buf *out)
{
    struct host *h = ctx;
    h->times.has = hooks_of(h->script);
    h->times.heap_bytes = heap_of(&h->script->vm);
    h->times.heap_limit = h->script->vm.cap;
    hook_times_put(&h->times, labels, out);
}

/* ---- the hooks */

static enum verdict start(void *ctx, const struct node_facts *node, const struct view *v, struct plan *p, struct err *e)
{
    struct host *h = ctx;
    return measured(h, HOOK_START, script_start(h->script, node, v, p, e));
}

static enum verdict admit(void *ctx, const struct request *r, const struct view *v, struct admission *a, struct err *e)
{
    struct host *h = ctx;
    return measured(h, HOOK_ADMIT, script_admit(h->script, r, v, a, e));
}

static enum verdict followed_step(struct host *h, const struct view *v, struct plan *p, struct err *e)
{
    struct follow *f = follow_begin(h->script);
    struct err mine = {0};
    enum verdict verdict = script_step(h->script, v, p, &mine);
    follow_tell(f, &(struct follow_end){verdict, &mine, p, h->text.data, h->text.len}, h->follow);
    h->follow = NULL;
    if (e)
        *e = mine;
    return verdict;
}

static enum verdict step(void *ctx, const struct view *v, struct plan *p, struct err *e)
{
    struct host *h = ctx;
    if (h->follow)
        return followed_step(h, v, p, e);
    return measured(h, HOOK_STEP, script_step(h->script, v, p, e));
}

static void follow(void *ctx, struct buf *out)
{
    struct host *h = ctx;
    h->follow = h->followed ? out : NULL;
}

static enum verdict finish(void *ctx, const struct request *r, enum ending how, const struct view *v, struct err *e)
{
    struct host *h = ctx;
    return measured(h, HOOK_FINISH, script_finish(h->script, r, how, v, e));
}

static void idle(void *ctx)
{
    struct host *h = ctx;
    int64_t took = vm_collect(&h->script->vm);
    if (took)
        duration_add(&h->times.collector, took);
}

static enum verdict export_state(void *ctx, struct buf *out, struct err *e)
{
    struct host *h = ctx;
    return measured(h, HOOK_EXPORT, script_export(h->script, out, e));
}

static enum verdict import_state(void *ctx, const char *json, size_t n, struct err *e)
{
    struct host *h = ctx;
    return measured(h, HOOK_IMPORT, script_import(h->script, json, n, e));
}

static void params_get(void *ctx, struct buf *json)
{
    const struct host *h = ctx;
    params_write(&h->script->params, json);
}

static int set_params(void *ctx, const char *json, size_t n, struct err *e)
{
    struct host *h = ctx;
    return script_params_set(h->script, json, n, e);
}

/* As a process of its own would be replaced: for replays of what was decided in one. */
static int renew(void *ctx, struct err *e)
{
    struct host *h = ctx;
    struct script *fresh = NULL, *old = h->script;
    struct lua_opts o = old->opts;
    struct libs libs = {.watchdog = o.watchdog, .n_policy = h->text.len};
    const char *source = h->text.data ? h->text.data : "";
    size_t n = h->text.len;
    o.libs = &libs;
    int rc = libs_take_apart(&libs, old->name, &source, &n, e);
    if (!rc)
        rc = script_open(&fresh, old->name, source, n, &o, e);
    if (!rc)
        rc = script_params_copy(fresh, old, e);
    libs_free(&libs);
    if (rc) {
        script_close(fresh);
        return rc;
    }
    fresh->opts.libs = NULL;
    h->script = fresh;
    script_close(old);
    return 0;
}

static void destroy(void *ctx)
{
    struct host *h = ctx;
    script_close(h->script);
    buf_free(&h->text);
    mem_free(h);
}

static const struct policy_ops ops = {
    .start = start,
    .admit = admit,
    .step = step,
    .finish = finish,
    .idle = idle,
    .export_state = export_state,
    .import_state = import_state,
    .params_get = params_get,
    .params_set = set_params,
    .follow = follow,
    .metrics = metrics,
    .renew = renew,
    .destroy = destroy,
};

void lua_policy_send(struct policy *p, const struct verb_way *way)
{
    struct host *h = p->ctx;
    h->script->bind.way = *way;
}

void lua_policy_look(const struct policy *p, struct lua_inside *out)
{
    const struct host *h = p->ctx;
    *out = (struct lua_inside){.hooks = hooks_of(h->script),
                               .heap_bytes = heap_of(&h->script->vm),
                               .heap_limit = h->script->vm.cap,
                               .wants_rest = vm_wants_rest(&h->script->vm)};
}

/* The libraries are read once for all machines that are made meanwhile. */
static int begin(struct check *c, struct libs *libs, const struct lua_opts *o, struct err *e)
{
    TRY(script_opts(&c->opts, o, e));
    *libs = (struct libs){.folder = o->folder, .reader = o->reader, .watchdog = o->watchdog, .n_policy = c->n};
    c->opts.libs = libs;
    char name[NAME_BYTES], file[NAME_BYTES + 8];
    TRY(script_name(name, c->name, e));
    snprintf(file, sizeof file, "%s.lua", name);
    int rc = libs_take_apart(libs, file, &c->source, &c->n, e);
    if (rc)
        libs_free(libs);
    return rc;
}

int lua_policy_load(struct policy *out, const char *name, const char *source, size_t n, const struct lua_opts *o,
                    const char *params_json, struct err *e)
{
    struct script *s;
    struct libs libs;
    struct check c = {.name = name, .source = source, .n = n, .params_json = params_json};
    if (o->nursery)
        return apart_load(out, &(struct apart_source){name, source, n, params_json}, o, e);
    TRY(begin(&c, &libs, o, e));
    int rc = check_policy(&c, &s, e);
    if (!rc) {
        struct host *h = mem_new(sizeof *h);
        h->script = s;
        h->followed = o->keep_text;
        libs_text(&libs, c.source, c.n, &h->text);
        s->opts.libs = NULL;
        s->opts.folder = NULL;
        *out = (struct policy){.ops = &ops, .ctx = h};
        snprintf(out->name, sizeof out->name, "%s", s->name);
        snprintf(out->doc, sizeof out->doc, "%s", s->doc);
        struct sha256 sum = libs_sha256(&libs, c.source, c.n);
        hash_hex(&sum, out->sha256);
        libs_list(&libs, out->libs);
    }
    libs_free(&libs);
    return rc;
}

int lua_policy_text(const char *name, const char *source, size_t n, const struct lua_opts *o, struct buf *out,
                    struct err *e)
{
    struct script *s;
    struct libs libs;
    struct check c = {.name = name, .source = source, .n = n};
    if (o->nursery)
        return apart_text(&(struct apart_source){name, source, n, NULL}, o, out, e);
    TRY(begin(&c, &libs, o, e));
    int rc = scan_source(name, c.source, c.n, o->watchdog, e);
    if (!rc)
        rc = script_open(&s, name, c.source, c.n, &c.opts, e);
    if (!rc) {
        libs_text(&libs, c.source, c.n, out);
        script_close(s);
    }
    libs_free(&libs);
    return rc;
}

int lua_policy_check(const char *name, const char *source, size_t n, const struct lua_opts *o, const char *params_json,
                     struct buf *report, struct err *e)
{
    struct script *s;
    struct libs libs;
    struct check c = {.name = name, .source = source, .n = n, .params_json = params_json, .report = report};
    if (o->nursery)
        return apart_check(&(struct apart_source){name, source, n, params_json}, o, report, e);
    TRY(begin(&c, &libs, o, e));
    int rc = check_policy(&c, &s, e);
    if (!rc)
        script_close(s);
    libs_free(&libs);
    return rc;
}

int lua_policy_test(const char *name, const char *source, size_t n, const struct lua_opts *o, struct buf *report,
                    struct err *e)
{
    struct libs libs;
    struct check c = {.name = name, .source = source, .n = n, .report = report};
    if (o->nursery)
        return apart_test(&(struct apart_source){name, source, n, NULL}, o, report, e);
    TRY(begin(&c, &libs, o, e));
    int rc = check_tests(&c, e);
    libs_free(&libs);
    return rc;
}
