#include "engine/serve/policies.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/file.h"
#include "engine/base/hash.h"
#include "engine/base/json.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/serve/front/auth.h"

enum { WATCH_MS = 40 };
static const char *const result_names[] = {"ok", "validate", "init_error", "unreadable"};

struct policy_job {
    struct text_job job; /* first */
    struct policies *policies;
    const struct lua_opts *lua;
    char name[POLICY_NAME_MAX + 1];
    struct buf source;
    char sha256[65];
    bool from_file;
    char path[POLICY_PATH]; /* "": the source came with the request */
    const char *dir;        /* which the file may not lead out of; NULL: the operator named it */
    const char *folder;     /* where libraries lie of a source that came with the request; NULL: none */
    struct policy *made;    /* heap; NULL: err says why */
    struct err err;
    enum reload_result result;
    policy_fn fn;
    void *ctx;
    struct policy_job *next; /* of all under way */
    struct policy_job **link;
};

bool policies_name_ok(const char *name)
{
    return auth_name_ok(name) && strlen(name) <= POLICY_NAME_MAX;
}

bool policies_path(const struct policies *p, const char *name, char out[POLICY_PATH])
{
    int n = p->dir ? snprintf(out, POLICY_PATH, "%s/%s.lua", p->dir, name) : -1;
    return n > 0 && n < POLICY_PATH;
}

/* ---- loading */

static void run(struct text_job *job)
{
    struct policy_job *j = (struct policy_job *)job;
    struct err e = {0};
    j->err = (struct err){0};
    if (j->path[0] && file_read_within(&j->source, j->dir, j->path, LUA_SOURCE_BYTES, &e)) {
        j->result = RELOAD_UNREADABLE;
        err_set(&j->err, e.code, "%s.lua:1: cannot be read: %s", j->name, e.text);
        return;
    }
    struct sha256 sha = hash_sha256(j->source.data ? j->source.data : "", j->source.len);
    struct lua_opts o = *j->lua;
    char folder[POLICY_PATH];
    o.folder = j->folder;
    if (j->path[0]) {
        file_folder(j->path, folder, sizeof folder);
        o.folder = folder;
    }
    hash_hex(&sha, j->sha256);
    j->result = RELOAD_REFUSED;
    j->made = mem_new(sizeof *j->made);
    if (lua_policy_load(j->made, j->name, j->source.data ? j->source.data : "", j->source.len, &o, NULL, &j->err)) {
        mem_free(j->made);
        j->made = NULL;
        return;
    }
    memcpy(j->sha256, j->made->sha256, sizeof j->sha256); /* with its libraries */
}

static void remember(struct policies *p, const struct policy_job *j, const char *text)
{
    struct policy_version *v = &p->versions[p->n_versions++ % POLICY_VERSIONS];
    *v = (struct policy_version){.from_file = j->from_file, .result = j->result, .at_s = clock_wall_seconds()};
    snprintf(v->name, sizeof v->name, "%s", j->name);
    snprintf(v->text, sizeof v->text, "%s", j->result == RELOAD_OK ? "" : text);
    memcpy(v->sha256, j->sha256, sizeof v->sha256);
    p->front->counts.reloads[j->result]++;
    if (j->result == RELOAD_OK)
        p->front->counts.last_reload_s = v->at_s;
    else
        log_warn("policy", "refused: %s", text);
    bool engine_knows = j->result == RELOAD_OK || j->result == RELOAD_INIT_ERROR;
    if (!engine_knows && !p->front->stopped) {
        struct engine_message m = {.kind = IN_POLICY_REFUSED, .payload = mem_strdup(text)};
        queue_post(p->front->inbox, &m);
    }
}

static void finish(struct policy_job *j, const char *text)
{
    struct policies *p = j->policies;
    remember(p, j, text);
    if (j->from_file)
        p->loading = false;
    if (j->fn)
        j->fn(j->ctx, &(struct policy_outcome){j->result, text});
    *j->link = j->next;
    if (j->next)
        j->next->link = j->link;
    buf_free(&j->source);
    mem_free(j);
}

static void engine_answered(void *ctx, const struct call_reply *r)
{
    struct policy_job *j = ctx;
    char text[400];
    j->result = r->code ? RELOAD_INIT_ERROR : RELOAD_OK;
    if (r->code == 0) {
        policies_now_live(j->policies, r->text, r->n);
        finish(j, r->text);
        return;
    }
    /* Reasons of the script itself begin with its file and line; those of the engine get the file. */
    bool placed = strstr(r->text, ".lua:") != NULL;
    snprintf(text, sizeof text, "%s%s%.300s", placed ? "" : j->name, placed ? "" : ".lua:1: ", r->text);
    finish(j, text);
}

static void done(struct text_job *job)
{
    struct policy_job *j = (struct policy_job *)job;
    struct front *f = j->policies->front;
    if (j->made && f->stopped) {
        j->made->ops->destroy(j->made->ctx);
        mem_free(j->made);
        j->made = NULL;
        err_set(&j->err, E_GONE, "%s.lua:1: the server is stopping", j->name);
    }
    if (!j->made)
        finish(j, j->err.text);
    else
        calls_send(&f->calls, IN_POLICY, j->made, 0, engine_answered, j);
}

static int post(struct policies *p, struct policy_job *j)
{
    j->job = (struct text_job){.run = run, .done = done, .bytes = j->source.len};
    j->policies = p;
    j->lua = p->lua;
    j->folder = p->dir;
    j->result = RELOAD_REFUSED;
    err_set(&j->err, E_GONE, "%s.lua:1: the server is stopping", j->name);
    if (text_post(p->front->text, TEXT_POLICY, &j->job)) {
        buf_free(&j->source);
        mem_free(j);
        return E_FULL;
    }
    j->next = p->jobs;
    j->link = &p->jobs;
    if (j->next)
        j->next->link = &j->next;
    p->jobs = j;
    return 0;
}

int policies_load(struct policies *p, const char *name, struct buf *source, policy_fn fn, void *ctx)
{
    struct policy_job *j = mem_new(sizeof *j);
    j->fn = fn;
    j->ctx = ctx;
    snprintf(j->name, sizeof j->name, "%s", name);
    if (source->len == 0 && policies_path(p, name, j->path))
        j->dir = p->dir;
    j->source = *source;
    *source = (struct buf){0};
    return post(p, j);
}

void policies_forget(struct policies *p, void *ctx)
{
    for (struct policy_job *j = p->jobs; j; j = j->next)
        if (j->ctx == ctx)
            j->fn = NULL;
}

/* ---- the live policy's file */

static void watch(struct policies *p, const char *name, const char *path, const char *dir)
{
    if (strcmp(p->watched.path, path) == 0)
        return;
    if (!file_is_within(dir, path) || !followed_begin(&p->watched, path)) {
        p->watched = (struct followed){0};
        return;
    }
    p->watched_dir = dir;
    snprintf(p->watched_name, sizeof p->watched_name, "%s", name);
    log_info("policy", "edits of %s go live", path);
}

void policies_now_live(struct policies *p, const char *state, size_t n)
{
    struct json *j = json_parse(state, n, NULL, NULL);
    const char *name = json_text(json_find(json_find(j, "active"), "name"));
    const char *libs = json_text(json_find(json_find(j, "active"), "libs"));
    char path[POLICY_PATH];
    /* the file given at the start stays the one to watch for its policy, wherever it lies */
    if (p->tick && name && policies_name_ok(name) && !(p->watched.n && strcmp(name, p->watched_name) == 0)) {
        if (policies_path(p, name, path))
            watch(p, name, path, p->dir);
        else
            p->watched = (struct followed){0};
    }
    followed_set_libs(&p->watched, libs ? libs : "");
    json_free(j);
}

static void on_tick(void *ctx)
{
    struct policies *p = ctx;
    if (p->loading || !followed_changed(&p->watched))
        return;
    struct policy_job *j = mem_new(sizeof *j);
    j->from_file = true;
    snprintf(j->name, sizeof j->name, "%s", p->watched_name);
    snprintf(j->path, sizeof j->path, "%s", p->watched.path);
    j->dir = p->watched_dir;
    p->loading = post(p, j) == 0;
}

int policies_init(struct policies *p, const struct policies_setup *s, struct err *e)
{
    *p = (struct policies){.front = s->front, .lua = s->lua, .dir = s->dir};
    if (s->name && !policies_name_ok(s->name))
        return err_set(e, E_INPUT,
                       "policy names have at most %d letters, digits, dots, dashes and underscores, not '%.60s'",
                       POLICY_NAME_MAX, s->name);
    if (s->no_watch || !s->lua)
        return 0;
    p->tick = loop_every(s->loop, WATCH_MS, on_tick, p);
    if (!p->tick)
        return err_set(e, E_SYS, "no timer for the policy's file");
    if (s->name && s->path)
        watch(p, s->name, s->path, NULL);
    followed_set_libs(&p->watched, s->libs ? s->libs : "");
    return 0;
}

void policies_free(struct policies *p)
{
    loop_event_free(p->tick);
    p->tick = NULL;
    while (p->jobs) { /* handed to an engine that ended without an answer: the policy was its own */
        struct policy_job *j = p->jobs;
        p->jobs = j->next;
        buf_free(&j->source);
        mem_free(j);
    }
}

/* ---- the list */

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void put_files(const struct policies *p, struct buf *json)
{
    char *names[256];
    int n = 0;
    DIR *d = p->dir ? opendir(p->dir) : NULL;
    for (struct dirent *f; d && n < 256 && (f = readdir(d));) {
        size_t len = strlen(f->d_name);
        if (len > 4 && strcmp(f->d_name + len - 4, ".lua") == 0) {
            char path[POLICY_PATH];
            names[n] = mem_strndup(f->d_name, len - 4);
            if (policies_name_ok(names[n]) && policies_path(p, names[n], path) && file_is_within(p->dir, path))
                n++;
            else
                mem_free(names[n]);
        }
    }
    if (d)
        closedir(d);
    qsort(names, (size_t)n, sizeof *names, by_name);
    for (int i = 0; i < n; i++) {
        if (i)
            buf_putc(json, ',');
        buf_put_json(json, names[i], strlen(names[i]));
        mem_free(names[i]);
    }
}

void policies_list(const struct policies *p, struct buf *json)
{
    buf_puts(json, "{\"directory\":");
    if (p->dir)
        buf_put_json(json, p->dir, strlen(p->dir));
    else
        buf_puts(json, "null");
    buf_puts(json, ",\"watched\":");
    if (p->watched.n)
        buf_put_json(json, p->watched.path, strlen(p->watched.path));
    else
        buf_puts(json, "null");
    buf_puts(json, ",\"files\":[");
    put_files(p, json);
    buf_puts(json, "],\"versions\":[");
    uint64_t from = p->n_versions > POLICY_VERSIONS ? p->n_versions - POLICY_VERSIONS : 0;
    for (uint64_t i = from; i < p->n_versions; i++) {
        const struct policy_version *v = &p->versions[i % POLICY_VERSIONS];
        buf_printf(json, "%s{\"name\":\"%s\",\"sha256\":\"%s\",\"at\":%lld,\"from\":\"%s\",\"result\":\"%s\",\"text\":",
                   i > from ? "," : "", v->name, v->sha256, (long long)v->at_s, v->from_file ? "file" : "request",
                   result_names[v->result]);
        buf_put_json(json, v->text, strlen(v->text));
        buf_putc(json, '}');
    }
    buf_puts(json, "]}");
}
