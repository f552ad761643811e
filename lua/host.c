#include "lua/host.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/hash.h"
#include "engine/base/mem.h"
#include "lua/check.h"
#include "lua/follow.h"
#include "lua/scan.h"
#include "lua/libs.h"
#include "lua/script.h"

/* ---- what the policy costs */

static const double bucket_seconds[] = {1e-6, 2e-6, 5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2};
enum { N_BUCKETS = sizeof bucket_seconds / sizeof *bucket_seconds };

struct duration {
    uint64_t buckets[N_BUCKETS + 1], count;
    int64_t sum_ns;
};

struct host {
    struct script *script;
    struct duration hooks[HOOK_COUNT], collector;
    struct buf text;    /* with lua_opts.keep_text: all of it, as libs_text makes it */
    struct buf *follow; /* where the next call of step is told; NULL: nobody follows */
};

static void observe(struct duration *d, int64_t ns)
{
    int i = 0;
    while (i < N_BUCKETS && (double)ns > bucket_seconds[i] * 1e9)
        i++;
    d->buckets[i]++;
    d->count++;
    d->sum_ns += ns;
}

static enum verdict measured(struct host *h, enum policy_hook hook, enum verdict v)
{
    if (h->script->hooks[hook] >= 0)
        observe(&h->hooks[hook], h->script->vm.last_ns);
    return v;
}

static void put_duration(const struct duration *d, const char *name, const char *labels, struct buf *out)
{
    uint64_t total = 0;
    for (int i = 0; i < N_BUCKETS; i++) {
        total += d->buckets[i];
        buf_printf(out, "%s_bucket{%s,le=\"%g\"} %" PRIu64 "\n", name, labels, bucket_seconds[i], total);
    }
    buf_printf(out, "%s_bucket{%s,le=\"+Inf\"} %" PRIu64 "\n", name, labels, d->count);
    buf_printf(out, "%s_sum{%s} %.9f\n%s_count{%s} %" PRIu64 "\n", name, labels, (double)d->sum_ns * 1e-9, name, labels,
               d->count);
}

static void put_gauge(const char *name, const char *help, const char *labels, double value, struct buf *out)
{
    buf_printf(out, "# HELP %s %s\n# TYPE %s gauge\n%s{%s} %.0f\n", name, help, name, name, labels, value);
}

static void metrics(void *ctx, const char *labels, struct buf *out)
{
    const struct host *h = ctx;
    const struct vm *vm = &h->script->vm;
    buf_puts(out, "# HELP policy_hook_duration_seconds Wall time of the policy's calls.\n# TYPE "
                  "policy_hook_duration_seconds histogram\n");
    for (int i = 0; i < HOOK_COUNT; i++) {
        char with_hook[256];
        if (h->script->hooks[i] < 0)
            continue;
        snprintf(with_hook, sizeof with_hook, "%s,hook=\"%s\"", labels, policy_hook_name((enum policy_hook)i));
        put_duration(&h->hooks[i], "policy_hook_duration_seconds", with_hook, out);
    }
    buf_puts(out, "# HELP policy_gc_pause_seconds Collector work between the steps.\n# TYPE "
                  "policy_gc_pause_seconds histogram\n");
    put_duration(&h->collector, "policy_gc_pause_seconds", labels, out);
    size_t mine = vm->used > vm->floor ? vm->used - vm->floor : 0;
    put_gauge("policy_lua_heap_bytes", "Heap of the policy, without the host's own tables.", labels, (double)mine, out);
    put_gauge("policy_lua_heap_limit_bytes", "What that heap may grow to.", labels, (double)vm->cap, out);
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
    h->follow = h->text.len ? out : NULL;
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
        observe(&h->collector, took);
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
    .destroy = destroy,
};

/* The libraries are read once for all machines that are made meanwhile. */
static int begin(struct check *c, struct libs *libs, const struct lua_opts *o, struct err *e)
{
    TRY(script_opts(&c->opts, o, e));
    *libs = (struct libs){.folder = o->folder, .watchdog = o->watchdog, .n_policy = c->n};
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
    TRY(begin(&c, &libs, o, e));
    int rc = check_policy(&c, &s, e);
    if (!rc) {
        struct host *h = mem_new(sizeof *h);
        h->script = s;
        if (o->keep_text)
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
    TRY(begin(&c, &libs, o, e));
    int rc = check_tests(&c, e);
    libs_free(&libs);
    return rc;
}
