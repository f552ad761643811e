#include "engine/serve/admin_inner.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/decisions.h"
#include "engine/draft/suffix.h"
#include "engine/serve/room/room.h"
#include "engine/story.h"

enum { ADMIN_BODY = 1 << 20 }; /* more than the largest policy and set of params: their own limits say what is wrong */

enum { LOGGED_PARAMS = 500 };

/* An operator's request that waits for an answer. */
struct wait {
    struct admin *admin;
    struct http_exchange *x;
    uint64_t tag;
    char actor[AUDIT_ACTOR];
    char *given; /* params, for the log; NULL: none */
};

static void free_wait(struct wait *w)
{
    mem_free(w->given);
    mem_free(w);
}

static struct wait *make_wait(struct admin *a, struct http_exchange *x, void (*gone)(struct http_exchange *))
{
    struct wait *w = mem_new(sizeof *w);
    *w = (struct wait){.admin = a, .x = x};
    x->user = w;
    x->gone = gone;
    return w;
}

static void ask_gone(struct http_exchange *x)
{
    struct wait *w = x->user;
    calls_forget(&w->admin->front->calls, w->tag);
    free_wait(w);
}

static void ask(struct admin *a, struct http_exchange *x, enum engine_in kind, struct buf *payload, call_fn fn)
{
    struct wait *w = make_wait(a, x, ask_gone);
    size_t n = payload ? payload->len : 0;
    w->tag = calls_send(&a->front->calls, kind, payload ? buf_take(payload) : NULL, n, fn, w);
}

void admin_refuse(struct http_exchange *x, int status, const char *code, const char *text)
{
    struct fault f;
    fault_set(&f, status, code, NULL, "%s", text);
    front_fault(x, &f);
}

static void answer_json(struct wait *w, const char *text, size_t n)
{
    http_answer(w->x, 200, "application/json", text, n);
    free_wait(w);
}

/* The engine's own answer, or its refusal. */
static void pass_on(void *ctx, const struct call_reply *r)
{
    struct wait *w = ctx;
    if (r->code == 0) {
        answer_json(w, r->text, r->n);
        return;
    }
    admin_refuse(w->x, r->code == E_NOTFOUND ? 409 : 400, err_name(r->code), r->text);
    free_wait(w);
}

/* ---- policies */

void admin_refuse_policy(struct http_exchange *x, const char *code, const char *text)
{
    const char *colon = strstr(text, ".lua:");
    char *end = NULL;
    long line = colon ? strtol(colon + 5, &end, 10) : 0;
    bool placed = colon && end > colon + 5 && *end == ':';
    const char *file = placed ? colon : text; /* "start: error: name.lua:12: reason" */
    while (file > text && file[-1] != ' ')
        file--;
    struct buf out = {0};
    buf_puts(&out, "{\"error\":{\"message\":");
    buf_put_json(&out, text, strlen(text));
    buf_printf(&out, ",\"type\":\"policy_error\",\"param\":null,\"code\":\"%s\",\"file\":", code);
    if (placed)
        buf_put_json(&out, file, (size_t)(colon + 4 - file));
    else
        buf_puts(&out, "null");
    buf_printf(&out, ",\"line\":%ld,\"reason\":", placed ? line : 0);
    const char *reason = placed ? end + 1 + strspn(end + 1, " ") : text;
    buf_put_json(&out, reason, strlen(reason));
    buf_puts(&out, "}}");
    http_answer(x, 400, "application/json", out.data, out.len);
    buf_free(&out);
}

bool admin_read_name(const char *given, char out[POLICY_NAME_MAX + 1])
{
    size_t n = strlen(given);
    if (n > 4 && strcmp(given + n - 4, ".lua") == 0)
        n -= 4;
    if (n == 0 || n > POLICY_NAME_MAX)
        return false;
    memcpy(out, given, n);
    out[n] = 0;
    return policies_name_ok(out);
}

bool admin_source_ok(struct admin *a, struct http_exchange *x)
{
    if (!a->policies->lua)
        admin_refuse(x, 501, "not_implemented", "this server was started without the policy host");
    else if (x->body.len > LUA_SOURCE_BYTES)
        admin_refuse(x, 413, "too_large", "a policy has at most 256 KiB");
    else
        return true;
    return false;
}

struct check_job {
    struct text_job job; /* first */
    struct http_exchange *x;
    struct lua_opts lua;
    char name[POLICY_NAME_MAX + 1];
    struct buf source, report;
    struct err err;
    int rc;
};

static void check_run(struct text_job *job)
{
    struct check_job *c = (struct check_job *)job;
    c->rc = lua_policy_check(c->name, c->source.data ? c->source.data : "", c->source.len, &c->lua, NULL, &c->report,
                             &c->err);
}

static void check_done(struct text_job *job)
{
    struct check_job *c = (struct check_job *)job;
    if (c->x && c->rc) {
        admin_refuse_policy(c->x, "policy_refused", c->err.text);
    } else if (c->x) {
        struct buf out = {0};
        buf_puts(&out, "{\"ok\":true,\"report\":");
        buf_put_json(&out, c->report.data ? c->report.data : "", c->report.len);
        buf_putc(&out, '}');
        front_json(c->x, &out);
        buf_free(&out);
    }
    buf_free(&c->source);
    buf_free(&c->report);
    mem_free(c);
}

static void check_gone(struct http_exchange *x)
{
    ((struct check_job *)x->user)->x = NULL;
}

void admin_check(struct admin *a, struct http_exchange *x, const char *fallback)
{
    char given[80], name[POLICY_NAME_MAX + 1];
    snprintf(given, sizeof given, "%s", fallback);
    http_query_find(x->head.query, "name", given, sizeof given);
    if (!admin_source_ok(a, x))
        return;
    if (!admin_read_name(given, name)) {
        admin_refuse(x, 400, "invalid_name",
                     "a policy's name has at most 40 letters, digits, dots, dashes and underscores");
        return;
    }
    struct check_job *c = mem_new(sizeof *c);
    *c = (struct check_job){.job = {.run = check_run, .done = check_done, .bytes = x->body.len},
                            .x = x,
                            .lua = *a->policies->lua,
                            .source = x->body,
                            .rc = E_GONE};
    c->lua.folder = a->policies->dir;
    snprintf(c->name, sizeof c->name, "%s", name);
    err_set(&c->err, E_GONE, "%s.lua:1: the server is stopping", name);
    x->body = (struct buf){0};
    x->user = c;
    x->gone = check_gone;
    if (text_post(a->front->text, TEXT_POLICY, &c->job) == 0)
        return;
    c->x = NULL;
    x->gone = NULL;
    check_done(&c->job);
    front_refuse_busy(x, "too many policies are being loaded");
}

static void check_policy(struct admin *a, struct http_exchange *x)
{
    admin_check(a, x, "check");
}

/* What the log says is what happened: the policy may refuse. */
static void params_came(void *ctx, const struct call_reply *r)
{
    struct wait *w = ctx;
    if (r->code == 0)
        log_info("admin", "policy params: %s", w->given);
    else
        log_warn("admin", "policy params refused: %s: %.300s", w->given, r->text);
    policies_params(w->admin->policies, w->actor, w->given, r->code ? r->text : NULL, r->text);
    pass_on(ctx, r);
}

static void patch_params(struct admin *a, struct http_exchange *x)
{
    struct err e = {0};
    struct json *j = json_parse(x->body.data ? x->body.data : "", x->body.len,
                                &(struct json_limits){.bytes = 65536, .depth = 4}, &e);
    bool ok = json_type(j) == JSON_OBJECT;
    json_free(j);
    if (!ok) {
        admin_refuse(x, 400, "invalid_json", e.code ? e.text : "the body must be an object of params");
        return;
    }
    char *given = mem_strndup(x->body.data, x->body.len < LOGGED_PARAMS ? x->body.len : LOGGED_PARAMS);
    ask(a, x, IN_PARAMS, &x->body, params_came);
    ((struct wait *)x->user)->given = given;
    admin_actor(a, x, ((struct wait *)x->user)->actor);
}

static void policy_came(void *ctx, const struct call_reply *r)
{
    struct wait *w = ctx;
    struct buf out = {0};
    struct json *state = json_parse(r->text, r->n, NULL, NULL);
    json_write(&out, json_find(state, "policy"), NULL);
    json_free(state);
    answer_json(w, out.data, out.len);
    buf_free(&out);
}

static void get_policy(struct admin *a, struct http_exchange *x)
{
    ask(a, x, IN_STATE, NULL, policy_came);
}

/* ---- the rest */

static void state_came(void *ctx, const struct call_reply *r)
{
    struct wait *w = ctx;
    struct front *f = w->admin->front;
    const struct openai *o = w->admin->openai;
    struct buf out = {0};
    buf_puts(&out, "{\"engine\":");
    buf_put(&out, r->text, r->n);
    buf_printf(&out,
               ",\"front\":{\"connections\":%d,\"exchanges\":%d,\"unsent_bytes\":%zu,\"text_jobs\":%d,"
               "\"answers\":%d,\"orders\":%d,\"live\":%d,"
               "\"submitted\":%" PRIu64 ",\"ended\":%" PRIu64 ",\"clients_gone\":%" PRIu64
               ",\"draining\":%s},\"encoder\":",
               http_n_connections(f->http), http_n_exchanges(f->http), http_backlog(f->http), text_pending(f->text),
               o->n_answers, o->n_orders, f->n_live, f->counts.n_submitted, f->counts.n_ended, f->counts.n_gone,
               f->draining ? "true" : "false");
    embed_api_put_state(w->admin->embed, &out);
    buf_putc(&out, '}');
    answer_json(w, out.data, out.len);
    buf_free(&out);
}

static void get_state(struct admin *a, struct http_exchange *x)
{
    if (a->front->alone) {
        struct wait *w = make_wait(a, x, ask_gone);
        x->gone = NULL; /* it waits for nobody */
        state_came(w, &(struct call_reply){.text = "null", .n = 4});
        return;
    }
    ask(a, x, IN_STATE, NULL, state_came);
}

/* ---- where the time of requests went */

static void story_came(void *ctx, const struct call_reply *r)
{
    struct wait *w = ctx;
    if (r->code == 0) {
        answer_json(w, r->text, r->n);
        return;
    }
    admin_refuse(w->x, r->code == E_NOTFOUND ? 404 : 400, err_name(r->code), r->text);
    free_wait(w);
}

/* What a query says, a whole number within bounds; otherwise when it is not given. -1: refused. */
static long read_count(struct http_exchange *x, const char *name, long otherwise, long most)
{
    char given[32], *end, text[128];
    if (!http_query_find(x->head.query, name, given, sizeof given))
        return otherwise;
    long n = strtol(given, &end, 10);
    if (*given >= '0' && *given <= '9' && !*end && n >= 1 && n <= most)
        return n;
    snprintf(text, sizeof text, "%s is a whole number from 1 to %ld", name, most);
    admin_refuse(x, 400, "invalid_value", text);
    return -1;
}

static void get_request(struct admin *a, struct http_exchange *x)
{
    struct buf id = {0};
    buf_puts(&id, x->head.path + strlen("/admin/requests/"));
    ask(a, x, IN_STORY, &id, story_came);
}

static void get_decisions(struct admin *a, struct http_exchange *x)
{
    long n = read_count(x, "n", 20, DECISIONS_ASKED_MOST), from = n < 0 ? -1 : read_count(x, "from", 0, LONG_MAX);
    if (from < 0)
        return;
    struct decisions_ask *order = mem_new(sizeof *order);
    *order = (struct decisions_ask){.from = (uint64_t)from, .n = (int)n};
    struct wait *w = make_wait(a, x, ask_gone);
    w->tag = calls_send(&a->front->calls, IN_DECISIONS, order, sizeof *order, story_came, w);
}

static void get_shadow(struct admin *a, struct http_exchange *x)
{
    ask(a, x, IN_SHADOW_STATE, NULL, pass_on);
}

static void delete_shadow(struct admin *a, struct http_exchange *x)
{
    log_info("admin", "policy shadow: end");
    ask(a, x, IN_SHADOW_END, NULL, story_came);
}

static void get_canary(struct admin *a, struct http_exchange *x)
{
    ask(a, x, IN_CANARY_STATE, NULL, pass_on);
}

static void delete_canary(struct admin *a, struct http_exchange *x)
{
    log_info("admin", "policy canary: end");
    ask(a, x, IN_CANARY_END, NULL, story_came);
}

static void get_profile(struct admin *a, struct http_exchange *x)
{
    ask(a, x, IN_PROFILE, NULL, story_came);
}

static void get_requests(struct admin *a, struct http_exchange *x)
{
    long n = read_count(x, "slowest", 10, STORY_ASKED_MOST);
    if (n < 0)
        return;
    struct wait *w = make_wait(a, x, ask_gone);
    w->tag = calls_send(&a->front->calls, IN_STORY, NULL, (size_t)n, story_came, w);
}

static void post_reset(struct admin *a, struct http_exchange *x)
{
    log_info("admin", "reset of the prefix cache");
    ask(a, x, IN_RESET_PREFIX_CACHE, NULL, pass_on);
}

/* ---- what was said, to a file and back */

struct said_job {
    struct text_job job; /* first */
    struct http_exchange *x;
    struct suffix *suffix;
    int (*move)(struct suffix *s, struct suffix_file_count *count, struct err *e);
    struct suffix_file_count count;
    struct err err;
    int rc;
};

static void said_run(struct text_job *job)
{
    struct said_job *s = (struct said_job *)job;
    s->rc = s->move(s->suffix, &s->count, &s->err);
}

static void said_done(struct text_job *job)
{
    struct said_job *s = (struct said_job *)job;
    if (s->x && s->rc) {
        log_warn("admin", "texts for drafts: %s", s->err.text);
        admin_refuse(s->x, s->rc == E_NOTFOUND ? 404 : s->rc == E_SYS ? 500 : 400, err_name(s->rc), s->err.text);
    } else if (s->x) {
        struct buf out = {0};
        buf_printf(&out, "{\"sequences\":%" PRId64 ",\"tokens\":%" PRId64 "}", s->count.sequences, s->count.tokens);
        front_json(s->x, &out);
        buf_free(&out);
    }
    mem_free(s);
}

static void said_gone(struct http_exchange *x)
{
    ((struct said_job *)x->user)->x = NULL;
}

static void move_said(struct admin *a, struct http_exchange *x,
                      int (*move)(struct suffix *s, struct suffix_file_count *count, struct err *e))
{
    if (!a->suffix) {
        admin_refuse(x, 400, err_name(E_UNSUPPORTED), "nothing is kept for draft tokens: --draft-memory is 0");
        return;
    }
    struct said_job *s = mem_new(sizeof *s);
    *s = (struct said_job){
        .job = {.run = said_run, .done = said_done}, .x = x, .suffix = a->suffix, .move = move, .rc = E_GONE};
    err_set(&s->err, E_GONE, "the server is stopping");
    x->user = s;
    x->gone = said_gone;
    if (text_post(a->front->text, TEXT_POLICY, &s->job) == 0)
        return;
    s->x = NULL;
    x->gone = NULL;
    said_done(&s->job);
    front_refuse_busy(x, "too many jobs are waiting");
}

static void post_save(struct admin *a, struct http_exchange *x)
{
    log_info("admin", "texts for drafts: save");
    move_said(a, x, suffix_save);
}

static void post_load(struct admin *a, struct http_exchange *x)
{
    log_info("admin", "texts for drafts: load");
    move_said(a, x, suffix_load);
}

static void post_drain(struct admin *a, struct http_exchange *x)
{
    log_info("admin", "drain");
    http_answer(x, 200, "application/json", "{}", 2);
    a->drain(a->drain_ctx);
}

static void get_events(struct admin *a, struct http_exchange *x)
{
    events_watch(a->events, x);
}

/* ---- the table */

static const struct {
    enum http_method method;
    const char *path; /* one that ends in '/' takes one name below */
    void (*handle)(struct admin *a, struct http_exchange *x);
    bool alone; /* also of use where an encoder is served alone */
} table[] = {
    {HTTP_GET, "/admin/policy", get_policy, false},
    {HTTP_GET, "/admin/policies", admin_get_versions, false},
    {HTTP_GET, "/admin/policies/", admin_get_source, false},
    {HTTP_PUT, "/admin/policies/", admin_put_source, false},
    {HTTP_POST, "/admin/policies/", admin_post_version, false},
    {HTTP_DELETE, "/admin/policies/", admin_delete_version, false},
    {HTTP_GET, "/admin/audit", admin_get_audit, false},
    {HTTP_POST, "/admin/policy/check", check_policy, false},
    {HTTP_GET, "/admin/what-if", admin_get_whatif, false},
    {HTTP_POST, "/admin/what-if", admin_post_whatif, false},
    {HTTP_PATCH, "/admin/policy/params", patch_params, false},
    {HTTP_POST, "/admin/policy/rollback", admin_post_rollback, false},
    {HTTP_GET, "/admin/limits", admin_get_limits, false},
    {HTTP_PATCH, "/admin/limits", admin_patch_limits, false},
    {HTTP_GET, "/admin/state", get_state, true},
    {HTTP_GET, "/admin/shadow", get_shadow, false},
    {HTTP_DELETE, "/admin/shadow", delete_shadow, false},
    {HTTP_GET, "/admin/canary", get_canary, false},
    {HTTP_DELETE, "/admin/canary", delete_canary, false},
    {HTTP_GET, "/admin/decisions", get_decisions, false},
    {HTTP_GET, "/admin/profile", get_profile, false},
    {HTTP_GET, "/admin/requests", get_requests, false},
    {HTTP_GET, "/admin/requests/", get_request, false},
    {HTTP_POST, "/admin/reset_prefix_cache", post_reset, false},
    {HTTP_POST, "/admin/drafts/save", post_save, false},
    {HTTP_POST, "/admin/drafts/load", post_load, false},
    {HTTP_POST, "/admin/drain", post_drain, true},
    {HTTP_GET, "/admin/events", get_events, false},
};

static bool matches(const char *pattern, const char *path)
{
    size_t n = strlen(pattern);
    return pattern[n - 1] == '/' ? strncmp(pattern, path, n) == 0 && path[n] : strcmp(pattern, path) == 0;
}

/* Not sent by a browser, or by one that shows the control room of this very listener: its host, which is known here. */
static bool own_page(const struct http_exchange *x)
{
    const char *origin = http_head_find(&x->head, "origin"), *site = http_head_find(&x->head, "sec-fetch-site");
    const char *host = http_head_find(&x->head, "host"), *scheme = origin ? strstr(origin, "://") : NULL;
    if (site && strcmp(site, "same-origin") != 0 && strcmp(site, "none") != 0)
        return false;
    return !origin || (host && scheme && strcmp(scheme + 3, host) == 0);
}

/* A file of the control room, which tells nothing and needs no key. */
static bool is_page(const struct http_exchange *x)
{
    return (x->head.method == HTTP_GET || x->head.method == HTTP_HEAD) && room_has(x->head.path);
}

bool admin_admit(struct admin *a, struct http_exchange *x)
{
    x->max_body = ADMIN_BODY;
    if (!hosts_know(&a->hosts, http_head_find(&x->head, "host"))) {
        admin_refuse(x, 403, "unknown_host",
                     "admin routes answer to no such host name; --admin-allowed-hosts NAME adds one");
        return false;
    }
    if (is_page(x))
        return true;
    if (!own_page(x)) {
        admin_refuse(x, 403, "forbidden", "admin routes are not for pages of other sites");
        return false;
    }
    if (auth_find(&a->auth, http_head_find(&x->head, "authorization")))
        return true;
    log_warn("admin", "%s %s without a valid key", http_method_name(x->head.method), x->head.path);
    http_add_header(x, "WWW-Authenticate", "Bearer");
    admin_refuse(x, 401, "invalid_api_key", "the admin key is needed: Authorization: Bearer KEY");
    return false;
}

void admin_handle(struct admin *a, struct http_exchange *x)
{
    bool path = false;
    if (is_page(x)) {
        room_answer(x);
        return;
    }
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        if (!matches(table[i].path, x->head.path))
            continue;
        path = true;
        enum http_method m = x->head.method == HTTP_HEAD ? HTTP_GET : x->head.method;
        if (m == table[i].method && a->front->alone && !table[i].alone) {
            front_refuse_alone(a->front, x);
            return;
        }
        if (m == table[i].method) {
            table[i].handle(a, x);
            return;
        }
    }
    admin_refuse(x, path ? 405 : 404, path ? "method_not_allowed" : "not_found",
                 path ? "another method is needed here" : "there is no such admin route");
}
