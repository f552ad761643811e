#include "engine/serve/routes.h"

#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/base/version.h"
#include "engine/serve/messages/answer.h"
#include "engine/serve/messages/request.h"
#include "engine/serve/openai/frame.h"
#include "engine/serve/openai/tokens.h"
#include "engine/serve/responses/answer.h"

enum { GET = 1 << HTTP_GET | 1 << HTTP_HEAD, POST = 1 << HTTP_POST, DELETE = 1 << HTTP_DELETE };
/* OPEN: needs no key, since it computes nothing and tells nothing of what others ask; JSON: has a body, which is JSON;
 * FORM: has one with a file; WRITES: needs a model that writes, not an encoder. */
enum { OPEN = 1, JSON = 2, FORM = 4, WRITES = 8, SMALL_BODY = 65536 };

/* ---- small answers */

/* No Retry-After: it will not come back by itself. */
static void say_down(struct routes *r, struct http_exchange *x)
{
    struct fault f;
    fault_set(&f, 503, "overloaded", NULL, "%s", r->front->down);
    front_fault(x, &f);
}

static void get_health(struct routes *r, struct http_exchange *x)
{
    if (r->front->draining)
        front_refuse_busy(x, "the server is draining");
    else if (*r->front->down)
        say_down(r, x);
    else if (r->front->alone && embedder_is_down(r->embed->embedder))
        front_refuse_busy(x, "every replica of the encoder has failed");
    else
        http_answer(x, 200, NULL, NULL, 0);
}

static void get_ping(struct routes *r, struct http_exchange *x)
{
    get_health(r, x);
}

static void get_version(struct routes *r, struct http_exchange *x)
{
    (void)r;
    struct buf out = {0};
    buf_printf(&out, "{\"version\":\"%s\",\"commit\":\"%s\",\"server\":\"moonshift\"}", version_number, version_commit);
    http_answer(x, 200, "application/json", out.data, out.len);
    buf_free(&out);
}

static void get_load(struct routes *r, struct http_exchange *x)
{
    struct buf out = {0};
    buf_printf(&out, "{\"server_load\":%d}", r->front->n_live + r->embed->n_requests);
    front_json(x, &out);
    buf_free(&out);
}

struct served {
    const char *name, *root;
    int max_model_len;
};

/* The i-th model: the names of the generating one, then the encoder. false: there are no more. */
static bool served_model(const struct routes *r, int i, struct served *out)
{
    const struct front *f = r->front;
    const struct embed_model *m = &r->embed->model;
    if (i < f->n_names)
        *out = (struct served){f->names[i], f->root, f->model_text.max_model_len};
    else if (i == f->n_names && m->encoder)
        *out = (struct served){m->name, m->root, m->facts->max_tokens};
    else
        return false;
    return true;
}

static void put_model(const struct front *f, const struct served *m, struct buf *out)
{
    buf_puts(out, "{\"id\":");
    buf_put_json(out, m->name, strlen(m->name));
    buf_printf(out,
               ",\"object\":\"model\",\"created\":%lld,\"owned_by\":\"moonshift\",\"root\":", (long long)f->created_s);
    buf_put_json(out, m->root, strlen(m->root));
    buf_printf(out, ",\"parent\":null,\"max_model_len\":%d}", m->max_model_len);
}

static void get_models(struct routes *r, struct http_exchange *x)
{
    struct buf out = {0};
    buf_puts(&out, "{\"object\":\"list\",\"data\":[");
    struct served m;
    for (int i = 0; served_model(r, i, &m); i++) {
        if (i)
            buf_putc(&out, ',');
        put_model(r->front, &m, &out);
    }
    buf_puts(&out, "]}");
    front_json(x, &out);
    buf_free(&out);
}

static void get_model(struct routes *r, struct http_exchange *x)
{
    const char *name = x->head.path + strlen("/v1/models/");
    struct served m;
    for (int i = 0; served_model(r, i, &m); i++)
        if (strcmp(name, m.name) == 0) {
            struct buf out = {0};
            put_model(r->front, &m, &out);
            front_json(x, &out);
            buf_free(&out);
            return;
        }
    struct fault f;
    fault_set(&f, 404, "model_not_found", "model", "The model '%.100s' does not exist", name);
    front_fault(x, &f);
}

/* ---- answers by others */

struct metrics_wait {
    const struct routes *routes;
    struct http_exchange *x;
    uint64_t tag;
};

static void metrics_gone(struct http_exchange *x)
{
    struct metrics_wait *w = x->user;
    calls_forget(&w->routes->front->calls, w->tag);
    mem_free(w);
}

/* j: NULL: there are none. */
static void put_batches(struct jobs *j, struct buf *out)
{
    struct jobs_counts n = {0};
    if (j)
        jobs_count(j, &n);
    buf_puts(out,
             "# HELP moonshift:batches Batches that the server keeps, by status.\n# TYPE moonshift:batches gauge\n");
    for (int s = 0; s < JOB_STATUSES; s++)
        buf_printf(out, "moonshift:batches{status=\"%s\"} %d\n", job_status_name((enum job_status)s), n.by_status[s]);
    buf_puts(out, "# HELP moonshift:batch_lines_total Lines of batches that came to an end.\n"
                  "# TYPE moonshift:batch_lines_total counter\n");
    buf_printf(out, "moonshift:batch_lines_total{result=\"answer\"} %lld\n", (long long)n.done);
    buf_printf(out, "moonshift:batch_lines_total{result=\"error\"} %lld\n", (long long)n.failed);
}

/* Behind what the engine says. */
static void answer_metrics(const struct routes *r, struct http_exchange *x, const char *engine, size_t n)
{
    struct front *f = r->front;
    struct counts_now now = {http_n_connections(f->http), http_n_exchanges(f->http), text_pending(f->text),
                             http_backlog(f->http)};
    struct buf out = {0};
    buf_put(&out, engine, n);
    counts_render(&f->counts, &now, &out);
    put_batches(r->jobs.jobs, &out);
    embed_api_render(r->embed, &out);
    http_answer(x, 200, "text/plain; version=0.0.4; charset=utf-8", out.data, out.len);
    buf_free(&out);
}

static void metrics_came(void *ctx, const struct call_reply *reply)
{
    struct metrics_wait *w = ctx;
    answer_metrics(w->routes, w->x, reply->text, reply->n);
    mem_free(w);
}

static void get_metrics(struct routes *r, struct http_exchange *x)
{
    if (r->front->alone) {
        answer_metrics(r, x, "", 0);
        return;
    }
    struct metrics_wait *w = mem_new(sizeof *w);
    *w = (struct metrics_wait){.routes = r, .x = x};
    x->user = w;
    x->gone = metrics_gone;
    w->tag = calls_send(&r->front->calls, IN_METRICS, NULL, 0, metrics_came, w);
}

static void post_tokenize(struct routes *r, struct http_exchange *x)
{
    tokens_api_tokenize(r->front, x);
}

static void post_detokenize(struct routes *r, struct http_exchange *x)
{
    tokens_api_detokenize(r->front, x);
}

static void get_tokenizer_info(struct routes *r, struct http_exchange *x)
{
    tokens_api_info(r->front, x);
}

static const struct auth_key *key_of(const struct routes *r, const struct http_exchange *x)
{
    const char *authorization = http_head_find(&x->head, "authorization"),
               *bare = http_head_find(&x->head, "x-api-key");
    const struct auth_key *key = r->jobs.jobs ? jobs_key(r->jobs.jobs, authorization) : NULL;
    key = key ? key : auth_find(&r->auth, authorization);
    return key || !bare ? key : auth_find_key(&r->auth, bare);
}

static void post_chat(struct routes *r, struct http_exchange *x)
{
    openai_handle(r->openai, x, &openai_chat_api, key_of(r, x));
}

static void post_completions(struct routes *r, struct http_exchange *x)
{
    openai_handle(r->openai, x, &openai_completions_api, key_of(r, x));
}

static void post_responses(struct routes *r, struct http_exchange *x)
{
    openai_handle(r->openai, x, &responses_api, key_of(r, x));
}

static void post_messages(struct routes *r, struct http_exchange *x)
{
    openai_handle(r->openai, x, &messages_api, key_of(r, x));
}

static void post_count_tokens(struct routes *r, struct http_exchange *x)
{
    tokens_api_count(r->front, x, messages_translate_prompt);
}

static void post_embeddings(struct routes *r, struct http_exchange *x)
{
    embed_api_handle(r->embed, x, EMBED_EMBEDDINGS, key_of(r, x));
}

static void post_rerank(struct routes *r, struct http_exchange *x)
{
    embed_api_handle(r->embed, x, EMBED_RERANK, key_of(r, x));
}

static void post_score(struct routes *r, struct http_exchange *x)
{
    embed_api_handle(r->embed, x, EMBED_SCORE, key_of(r, x));
}

static void all_files(struct routes *r, struct http_exchange *x)
{
    files_api_all(&r->files, x, key_of(r, x));
}

static void one_file(struct routes *r, struct http_exchange *x)
{
    files_api_one(&r->files, x, key_of(r, x));
}

static void all_batches(struct routes *r, struct http_exchange *x)
{
    jobs_api_all(&r->jobs, x, key_of(r, x));
}

static void one_batch(struct routes *r, struct http_exchange *x)
{
    jobs_api_one(&r->jobs, x, key_of(r, x));
}

static void not_offered(struct routes *r, struct http_exchange *x)
{
    struct fault f;
    fault_set(&f, 501, "not_implemented", NULL, "%.100s is not offered by this server; %s", x->head.path,
              r->front->alone ? "/v1/embeddings, /v1/rerank and /v1/score are"
                              : "/v1/chat/completions and /v1/completions are");
    http_add_header(x, "x-should-retry", "false");
    front_fault(x, &f);
}

/* ---- the table */

struct route {
    const char *path; /* one that ends in '/' takes everything below */
    int methods, traits;
    void (*handle)(struct routes *r, struct http_exchange *x);
};

static const struct route table[] = {
    {"/v1/chat/completions", POST, JSON | WRITES, post_chat},
    {"/v1/completions", POST, JSON | WRITES, post_completions},
    {"/v1/embeddings", POST, JSON, post_embeddings},
    {"/v1/rerank", POST, JSON, post_rerank},
    {"/v2/rerank", POST, JSON, post_rerank},
    {"/rerank", POST, JSON, post_rerank},
    {"/v1/score", POST, JSON, post_score},
    {"/score", POST, JSON, post_score},
    {"/v1/models", GET, 0, get_models},
    {"/v1/models/", GET, 0, get_model},
    {"/health", GET, OPEN, get_health},
    {"/ping", GET | POST, OPEN, get_ping},
    {"/metrics", GET, OPEN, get_metrics},
    {"/tokenize", POST, JSON | WRITES, post_tokenize},
    {"/detokenize", POST, JSON | WRITES, post_detokenize},
    {"/tokenizer_info", GET, WRITES, get_tokenizer_info},
    {"/version", GET, OPEN, get_version},
    {"/load", GET, OPEN, get_load},
    {"/v1/responses", POST, JSON | WRITES, post_responses},
    {"/v1/messages", POST, JSON | WRITES, post_messages},
    {"/v1/messages/count_tokens", POST, JSON | WRITES, post_count_tokens},
    {"/v1/audio/", POST, 0, not_offered},
    {"/v1/images/", POST, 0, not_offered},
    {"/v1/files", GET | POST, FORM, all_files},
    {"/v1/files/", GET | DELETE, 0, one_file},
    {"/v1/batches", GET | POST, JSON, all_batches},
    {"/v1/batches/", GET | POST, 0, one_batch},
};

static const struct route *find_route(const char *path)
{
    for (size_t i = 0; path && i < sizeof table / sizeof *table; i++) {
        size_t n = strlen(table[i].path);
        bool below = table[i].path[n - 1] == '/';
        if (below ? strncmp(path, table[i].path, n) == 0 && path[n] : strcmp(path, table[i].path) == 0)
            return &table[i];
    }
    return NULL;
}

int routes_count_index(struct front *f, const struct http_exchange *x)
{
    const struct route *t = x->admin ? NULL : find_route(x->head.path);
    return counts_route(&f->counts, t ? t->path : x->admin ? "/admin" : "none");
}

/* ---- the doors */

static bool origin_allowed(const struct routes *r, const char *origin)
{
    for (int i = 0; origin && i < r->n_origins; i++)
        if (strcmp(r->origins[i], "*") == 0 || strcmp(r->origins[i], origin) == 0)
            return true;
    return false;
}

static void preflight(struct http_exchange *x, bool allowed)
{
    if (allowed) {
        const char *asked = http_head_find(&x->head, "access-control-request-headers");
        http_add_header(x, "Access-Control-Allow-Methods", "GET, POST, OPTIONS");
        http_add_header(x, "Access-Control-Allow-Headers", asked ? asked : "authorization, content-type");
        http_add_header(x, "Access-Control-Max-Age", "600");
    }
    http_add_header(x, "Allow", "GET, HEAD, POST, OPTIONS");
    http_answer(x, 204, NULL, NULL, 0);
}

static void wrong_method(const struct route *t, struct http_exchange *x)
{
    struct fault f;
    char allow[64] = "";
    for (int m = 0; m < HTTP_METHOD_COUNT; m++)
        if (t->methods & 1 << m) {
            size_t n = strlen(allow);
            snprintf(allow + n, sizeof allow - n, "%s%s", n ? ", " : "", http_method_name((enum http_method)m));
        }
    http_add_header(x, "Allow", allow);
    fault_set(&f, 405, "method_not_allowed", NULL, "%s is not a method of %.200s; %s is",
              http_method_name(x->head.method), x->head.path, allow);
    front_fault(x, &f);
}

static bool is_json(const char *type)
{
    size_t n = type ? strcspn(type, "; \t") : 0;
    return n == strlen("application/json") && strncasecmp(type, "application/json", n) == 0;
}

static bool refuse(struct http_exchange *x, const struct fault *f)
{
    front_fault(x, f);
    return false;
}

static size_t form_bytes(const struct routes *r)
{
    return r->files.files ? (size_t)files_limits_of(r->files.files)->file_bytes + FILES_API_FORM : SMALL_BODY;
}

bool routes_admit(struct routes *r, struct http_exchange *x)
{
    struct fault f;
    const char *origin = http_head_find(&x->head, "origin");
    const struct route *t = find_route(x->head.path);
    bool allowed = origin_allowed(r, origin);
    if (allowed) {
        http_add_header(x, "Access-Control-Allow-Origin", origin);
        http_add_header(x, "Access-Control-Expose-Headers", "X-Request-Id");
        http_add_header(x, "Vary", "Origin");
    }
    if (x->head.method == HTTP_OPTIONS) {
        preflight(x, allowed);
        return false;
    }
    if (!(t && t->traits & OPEN) && !key_of(r, x)) {
        http_add_header(x, "WWW-Authenticate", "Bearer");
        fault_set(&f, 401, "invalid_api_key", NULL, "a valid API key is needed: Authorization: Bearer KEY");
        return refuse(x, &f);
    }
    if (!t) {
        fault_set(&f, 404, "not_found", NULL, "there is no %.200s here", x->head.path);
        return refuse(x, &f);
    }
    if (!(t->methods & 1 << x->head.method)) {
        wrong_method(t, x);
        return false;
    }
    if (t->traits & WRITES && r->front->alone) {
        front_refuse_alone(r->front, x);
        return false;
    }
    /* Any page may have its reader's browser post a form or plain text anywhere, unasked; JSON it may post only where
     * CORS lets it. */
    if (t->traits & JSON && origin && !is_json(http_head_find(&x->head, "content-type"))) {
        fault_set(&f, 415, "unsupported_media_type", NULL, "from a browser, %s wants Content-Type: application/json",
                  t->path);
        return refuse(x, &f);
    }
    if (t->traits & FORM && x->head.method == HTTP_POST && origin && !allowed) {
        fault_set(&f, 403, "origin_not_allowed", NULL, "pages of %.200s may not post forms here (--allowed-origins)",
                  origin);
        return refuse(x, &f);
    }
    x->max_body = t->traits & JSON ? 0 : t->traits & FORM ? form_bytes(r) : SMALL_BODY;
    return true;
}

void routes_handle(struct routes *r, struct http_exchange *x)
{
    find_route(x->head.path)->handle(r, x);
}
