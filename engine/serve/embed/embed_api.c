#include "engine/serve/embed/embed_api.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/serve/embed/answer.h"

enum {
    PART_BYTES = 32768,     /* of texts that a worker tokenises before others get their turn */
    INLINE_BYTES = 65536,   /* answers below are written on the front's thread */
    MAX_INPUTS = 32768,     /* texts that may wait in all */
    HELD_BYTES = 512 << 20, /* of texts that requests keep */
    LANES = 2,
};

/* Lines of all batches take one turn, so that who waits has his beside them. No salt is this. */
#define BATCHES "\n"

struct embed_request;

/* Some of a request's texts on their way to ids. */
struct part {
    struct text_job job; /* first */
    struct embed_request *request;
    struct embed_part what;
    struct tokens ids;
    struct fault fault;
    struct part *older; /* those that came back */
};

struct embed_request {
    struct text_job job;   /* first: reads the body, later writes the answer */
    struct embed_job work; /* the embedder's */
    struct list at;        /* in the api's */
    struct embed_api *api;
    struct http_exchange *x; /* NULL: the client is gone, or was told */
    struct embed_ask ask;
    struct buf body, out;
    struct fault fault;
    struct encoder_seq *seqs; /* [ask.n] */
    float *vectors;           /* [ask.n][dim] */
    struct part *parts;       /* that came back */
    struct part *lanes[LANES];
    int next_input; /* no part has it yet */
    size_t held;    /* of the api's */
    bool computing; /* the embedder has it */
    enum embed_route route;
    int64_t began_ns, created_s, n_tokens;
    char id[NAME_BYTES];
};

/* ---- the end of a request */

static void count(struct embed_request *r, enum embed_ending how)
{
    static const double bounds[EMBED_BUCKETS] = {.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 5, 30};
    struct embed_api *a = r->api;
    double s = (double)(clock_now(a->front->clock) - r->began_ns) * 1e-9;
    int b = 0;
    a->endings[r->route][how]++;
    if (how != EMBED_ANSWERED)
        return;
    while (b < EMBED_BUCKETS && s > bounds[b])
        b++;
    a->buckets[b]++;
    a->seconds += s;
}

static void free_part(struct part *p)
{
    tokens_free(&p->ids);
    mem_free(p);
}

/* What it keeps of its body, when there is room for that. false: there is none. */
static bool hold(struct embed_request *r)
{
    struct embed_api *a = r->api;
    if (!r->ask.body || (a->held && a->held + r->ask.bytes > a->held_most))
        return !r->ask.body;
    r->held = r->ask.bytes;
    a->held += r->held;
    return true;
}

static void let_go_of_body(struct embed_request *r)
{
    embed_ask_free(&r->ask);
    r->api->held -= r->held;
    r->held = 0;
}

static void drop(struct embed_request *r)
{
    list_remove(&r->at);
    r->api->n_requests--;
    let_go_of_body(r);
    while (r->parts) {
        struct part *p = r->parts;
        r->parts = p->older;
        free_part(p);
    }
    buf_free(&r->body);
    buf_free(&r->out);
    mem_free(r->seqs);
    mem_free(r->vectors);
    mem_free(r);
}

/* Tells the client, once; the request may live on until others let go of it. */
static void tell(struct embed_request *r, const struct fault *f)
{
    struct http_exchange *x = r->x;
    r->x = NULL;
    if (!x)
        return;
    x->gone = NULL;
    count(r, EMBED_FAILED);
    front_fault(x, f);
}

/* Nobody else has it. */
static void refuse(struct embed_request *r)
{
    tell(r, &r->fault);
    drop(r);
}

/* Nobody waits for it: whoever has it gives it up, and hands it back as usual. May free it. */
static void give_up(struct embed_request *r)
{
    cancel_ask(&r->job.cancel);
    for (int i = 0; i < LANES; i++)
        if (r->lanes[i])
            cancel_ask(&r->lanes[i]->job.cancel);
    if (r->computing)
        embedder_cancel(r->api->embedder, &r->work);
}

static void gone(struct http_exchange *x)
{
    struct embed_request *r = x->user;
    r->x = NULL;
    count(r, EMBED_LEFT);
    give_up(r);
}

static bool stopping(struct embed_request *r)
{
    if (r->api->stopping && !r->fault.status)
        fault_set(&r->fault, 503, "stopping", NULL, "the server is stopping");
    return r->api->stopping;
}

/* ---- the answer */

static void write_answer(struct text_job *job)
{
    struct embed_request *r = (struct embed_request *)job;
    const struct embed_result result = {r->vectors, r->n_tokens, r->id, r->created_s};
    r->fault = (struct fault){0};
    embed_answer_put(&r->ask, &result, &r->out, &r->fault);
    if (r->out.over && !r->fault.status)
        fault_set(&r->fault, 507, "answer_too_large", NULL,
                  "the answer is larger than this server holds for anyone; ask for fewer texts at once%s",
                  r->ask.n_scores || r->ask.base64 ? "" : ", or for base64");
}

static void answer(struct text_job *job)
{
    struct embed_request *r = (struct embed_request *)job;
    struct http_exchange *x = r->x;
    if (r->fault.status || !x) {
        refuse(r);
        return;
    }
    r->x = NULL;
    x->gone = NULL;
    count(r, EMBED_ANSWERED);
    front_json(x, &r->out);
    drop(r);
}

static void computed(struct embed_job *work)
{
    struct embed_request *r = (struct embed_request *)((char *)work - offsetof(struct embed_request, work));
    struct front *f = r->api->front;
    r->computing = false;
    if (work->rc == E_GONE)
        fault_set(&r->fault, 503, "stopping", NULL, "%s", work->why);
    else if (work->rc)
        fault_set(&r->fault, 500, "model_error", NULL, "the encoder failed: %s", work->why);
    if (work->rc || !r->x) {
        refuse(r);
        return;
    }
    size_t bytes = embed_answer_bytes(&r->ask);
    r->out.limit = http_max_answer(f->http);
    fault_set(&r->fault, 503, "stopping", NULL, "the server is stopping");
    r->job = (struct text_job){.run = write_answer, .done = answer, .bytes = bytes};
    if (bytes > INLINE_BYTES && !r->api->stopping && text_post(f->text, TEXT_LONG, &r->job) == 0)
        return;
    write_answer(&r->job);
    answer(&r->job);
}

/* ---- to the embedder */

static void point_at_ids(const struct part *p, struct encoder_seq *seqs, int64_t *n_tokens)
{
    const int32_t *ids = p->ids.ids;
    for (int i = p->what.from; i < p->what.to; i++) {
        seqs[i].ids = ids;
        ids += seqs[i].n;
        *n_tokens += seqs[i].n;
    }
}

static void submit(struct embed_request *r)
{
    struct embed_api *a = r->api;
    int dim = a->model.facts->dim;
    struct err e = {0};
    r->n_tokens = 0;
    if (!r->ask.docs)
        let_go_of_body(r);
    for (const struct part *p = r->parts; p; p = p->older)
        point_at_ids(p, r->seqs, &r->n_tokens);
    r->vectors = mem_try_array((size_t)r->ask.n, (size_t)dim * sizeof(float));
    for (int i = 0; r->vectors && i < r->ask.n; i++)
        r->seqs[i].out = r->vectors + (size_t)i * (size_t)dim;
    r->work.seqs = r->seqs;
    r->work.n = r->ask.n;
    r->work.n_tokens = r->n_tokens;
    r->work.done = computed;
    r->computing = true;
    int rc = r->vectors ? embedder_post(a->embedder, &r->work, &e) : err_set(&e, E_FULL, "there is no memory for it");
    if (!rc)
        return;
    r->computing = false;
    fault_set(&r->fault, 503, "overloaded", NULL, "%s", e.text);
    r->fault.retry_after_s = rc == E_FULL ? 1 : -1;
    refuse(r);
}

/* ---- texts to ids, in parts */

static void tokenize(struct text_job *job)
{
    struct part *p = (struct part *)job;
    p->what.cancel = &p->job.cancel;
    p->fault = (struct fault){0};
    embed_ask_tokenize(&p->request->ask, &p->what, p->request->seqs, &p->ids, &p->fault);
}

static bool is_tokenizing(const struct embed_request *r)
{
    return r->lanes[0] || r->lanes[1];
}

static void tokenized(struct text_job *job);

/* false: the lane has no room. */
static bool post_part(struct embed_request *r, int lane)
{
    struct part *p = mem_new(sizeof *p);
    size_t bytes = 0;
    p->request = r;
    p->what = (struct embed_part){.from = r->next_input, .to = r->next_input};
    while (p->what.to < r->ask.n && bytes < PART_BYTES) {
        const struct encoder_text *t = &r->ask.inputs[p->what.to++].text;
        bytes += t->n + t->n_pair;
    }
    p->job = (struct text_job){.run = tokenize, .done = tokenized, .bytes = bytes};
    fault_set(&p->fault, 503, "stopping", NULL, "the server is stopping");
    if (text_post(r->api->front->text, lane ? TEXT_LONG : TEXT_SHORT, &p->job)) {
        free_part(p);
        return false;
    }
    r->lanes[lane] = p;
    r->next_input = p->what.to;
    return true;
}

/* One text that alone is long stays off the short lane. */
static bool suits(const struct embed_request *r, int lane)
{
    const struct encoder_text *t = &r->ask.inputs[r->next_input].text;
    return lane || t->n + t->n_pair < PART_BYTES;
}

static void go_on(struct embed_request *r)
{
    bool may = !r->fault.status && r->x && !stopping(r);
    for (int lane = LANES - 1; lane >= 0 && may; lane--)
        if (!r->lanes[lane] && r->next_input < r->ask.n && suits(r, lane))
            post_part(r, lane);
    if (is_tokenizing(r))
        return;
    if (may && r->next_input < r->ask.n) {
        fault_set(&r->fault, 503, "overloaded", NULL, "too many requests wait to be read; try again later");
        r->fault.retry_after_s = 1;
    }
    if (r->fault.status || !r->x)
        refuse(r);
    else
        submit(r);
}

static void tokenized(struct text_job *job)
{
    struct part *p = (struct part *)job;
    struct embed_request *r = p->request;
    r->lanes[r->lanes[1] == p] = NULL;
    if (p->fault.status && !r->fault.status)
        r->fault = p->fault;
    p->older = r->parts;
    r->parts = p;
    go_on(r);
}

/* ---- the body */

/* What is small, or has ids already, is done with at once. */
static void read_body(struct text_job *job)
{
    struct embed_request *r = (struct embed_request *)job;
    struct embed_ask *a = &r->ask;
    r->fault = (struct fault){0};
    a->route = r->route;
    if (embed_ask_read(a, &r->api->model, r->body.data ? r->body.data : "", r->body.len, &r->fault))
        return;
    r->seqs = mem_new_array((size_t)a->n, sizeof *r->seqs);
    if (!a->has_ids && a->bytes >= PART_BYTES)
        return;
    struct part *p = mem_new(sizeof *p);
    p->what = (struct embed_part){0, a->n, &job->cancel};
    r->parts = p;
    r->next_input = a->n;
    embed_ask_tokenize(a, &p->what, r->seqs, &p->ids, &r->fault);
    if (!a->docs) /* a large tree is not for the front's thread to free */
        embed_ask_free(a);
}

static void was_read(struct text_job *job)
{
    struct embed_request *r = (struct embed_request *)job;
    buf_free(&r->body);
    if (!hold(r) && !r->fault.status) {
        fault_set(&r->fault, 503, "overloaded", NULL, "too many texts wait to be read; try again later");
        r->fault.retry_after_s = 1;
    }
    go_on(r);
}

static void not_offered(struct http_exchange *x)
{
    struct fault f;
    fault_set(&f, 501, "not_implemented", NULL,
              "%.100s needs an encoder, and this server has none: start it with --embedding-model", x->head.path);
    http_add_header(x, "x-should-retry", "false");
    front_fault(x, &f);
}

void embed_api_handle(struct embed_api *a, struct http_exchange *x, enum embed_route route, const struct auth_key *key)
{
    struct front *f = a->front;
    if (!a->model.encoder) {
        not_offered(x);
        return;
    }
    if (f->draining || a->stopping) {
        front_refuse_busy(x, "the server is draining; try another one");
        return;
    }
    struct embed_request *r = mem_new(sizeof *r);
    r->api = a;
    r->x = x;
    r->route = route;
    r->body = x->body;
    r->began_ns = x->began_ns;
    r->created_s = clock_wall_seconds();
    r->job = (struct text_job){.run = read_body, .done = was_read, .bytes = x->body.len};
    snprintf(r->work.owner, sizeof r->work.owner, "%s", key->offline ? BATCHES : key->salt);
    front_request_id(f, x, r->id);
    http_add_header(x, "X-Request-Id", r->id);
    fault_set(&r->fault, 503, "stopping", NULL, "the server is stopping");
    x->body = (struct buf){0};
    x->user = r;
    x->gone = gone;
    x->drop_on_eof = true;
    list_push_back(&a->requests, &r->at);
    a->n_requests++;
    if (text_post(f->text, r->body.len < TEXT_LONG_BYTES ? TEXT_SHORT : TEXT_LONG, &r->job) == 0)
        return;
    fault_set(&r->fault, 503, "overloaded", NULL, "too many requests wait to be read; try again later");
    r->fault.retry_after_s = 1;
    refuse(r);
}

/* ---- beginning and end */

int embed_api_init(struct embed_api *a, struct front *f, const struct embed_plan *p, struct err *e)
{
    *a = (struct embed_api){.front = f, .held_most = p->held_bytes ? p->held_bytes : HELD_BYTES};
    list_init(&a->requests);
    if (!p->encoder)
        return 0;
    a->model = (struct embed_model){.name = p->name, .root = p->root, .others = f->names, .n_others = f->n_names};
    TRY(embed_model_init(&a->model, p->encoder, e));
    struct embed_setup s = {.ops = &embed_encoder_ops,
                            .ctx = (void *)(uintptr_t)p->encoder,
                            .n_replicas = p->replicas,
                            .n_threads = p->threads,
                            .batch_tokens = p->batch_tokens,
                            .longest = a->model.facts->max_tokens,
                            .link = p->link,
                            .max_tokens = p->queued_tokens,
                            .max_inputs = p->queued_inputs ? p->queued_inputs : MAX_INPUTS};
    return embedder_create(&a->embedder, &s, e);
}

void embed_api_route(struct embed_api *a, struct embed_rule rule)
{
    if (a->embedder)
        embedder_route(a->embedder, rule);
}

void embed_api_put_state(const struct embed_api *a, struct buf *json)
{
    struct embed_counts n;
    if (!a->embedder) {
        buf_puts(json, "null");
        return;
    }
    struct embed_rule rule = embedder_rule(a->embedder);
    embedder_count(a->embedder, &n);
    buf_printf(json,
               "{\"route\":\"%s\",\"replicas\":%d,\"alive\":%d,\"allowed\":%d,\"for_short\":%d,\"texts_waiting\":%d,"
               "\"tokens_waiting\":%" PRId64 ",\"texts_running\":%d,\"tokens_running\":%" PRId64 "}",
               embed_way_name(rule.way), n.replicas, n.replicas_alive, n.replicas_allowed,
               embed_rule_kept(rule, n.replicas_alive), n.inputs_waiting, n.tokens_waiting, n.inputs_flying,
               n.tokens_flying);
}

void embed_api_collect(struct embed_api *a)
{
    embedder_collect(a->embedder);
}

static struct embed_request *first_waiting(const struct embed_api *a)
{
    LIST_EACH(at, &a->requests)
    {
        struct embed_request *r = LIST_ENTRY(at, struct embed_request, at);
        if (r->x)
            return r;
    }
    return NULL;
}

void embed_api_stop(struct embed_api *a, const char *why)
{
    struct embed_request *r;
    struct fault f;
    a->stopping = true;
    fault_set(&f, 503, "stopping", NULL, "%s", why);
    while (a->embedder && (r = first_waiting(a))) { /* from the first again: an answer may end others */
        tell(r, &f);
        give_up(r);
    }
}

void embed_api_free(struct embed_api *a)
{
    embedder_destroy(a->embedder);
    a->embedder = NULL;
}

/* ---- metrics */

static void put_one(struct buf *out, const char *name, const char *type, const char *help, double v)
{
    buf_printf(out, "# HELP %s %s\n# TYPE %s %s\n%s %.17g\n", name, help, name, type, name, v);
}

static void put_endings(const struct embed_api *a, struct buf *out)
{
    static const char *const routes[] = {"embeddings", "rerank", "score"};
    static const char *const endings[] = {"answer", "error", "gone"};
    buf_puts(out, "# HELP moonshift:embedding_requests_total Requests for vectors and scores, by route and ending.\n"
                  "# TYPE moonshift:embedding_requests_total counter\n");
    for (int r = 0; r < EMBED_ROUTES; r++)
        for (int k = 0; k < EMBED_ENDINGS; k++)
            buf_printf(out, "moonshift:embedding_requests_total{route=\"%s\",result=\"%s\"} %" PRIu64 "\n", routes[r],
                       endings[k], a->endings[r][k]);
}

static void put_seconds(const struct embed_api *a, struct buf *out)
{
    static const char *const bounds[] = {"0.001", "0.0025", "0.005", "0.01", "0.025", "0.05", "0.1",
                                         "0.25",  "0.5",    "1",     "5",    "30",    "+Inf"};
    uint64_t sum = 0;
    buf_puts(out, "# HELP moonshift:embedding_request_seconds Time from a request's head to its vectors or scores.\n"
                  "# TYPE moonshift:embedding_request_seconds histogram\n");
    for (int b = 0; b <= EMBED_BUCKETS; b++) {
        sum += a->buckets[b];
        buf_printf(out, "moonshift:embedding_request_seconds_bucket{le=\"%s\"} %" PRIu64 "\n", bounds[b], sum);
    }
    buf_printf(out,
               "moonshift:embedding_request_seconds_sum %.9g\nmoonshift:embedding_request_seconds_count %" PRIu64 "\n",
               a->seconds, sum);
}

void embed_api_render(const struct embed_api *a, struct buf *out)
{
    struct embed_counts n;
    if (!a->embedder)
        return;
    embedder_count(a->embedder, &n);
    put_endings(a, out);
    put_seconds(a, out);
    put_one(out, "moonshift:embedding_inputs_total", "counter", "Texts (or pairs) of requests that were computed.",
            (double)n.inputs);
    put_one(out, "moonshift:embedding_tokens_total", "counter", "Their tokens.", (double)n.tokens);
    put_one(out, "moonshift:embedding_batches_total", "counter", "Batches handed to replicas.", (double)n.batches);
    put_one(out, "moonshift:embedding_batch_tokens_total", "counter", "Tokens in those batches.",
            (double)n.batch_tokens);
    put_one(out, "moonshift:embedding_failed_batches_total", "counter", "Batches that a replica failed at.",
            (double)n.failed_batches);
    put_one(out, "moonshift:embedding_inputs_waiting", "gauge", "Texts that no replica has yet.", n.inputs_waiting);
    put_one(out, "moonshift:embedding_inputs_running", "gauge", "Texts in batches of replicas.", n.inputs_flying);
    put_one(out, "moonshift:embedding_tokens_waiting", "gauge", "Tokens that no replica has yet.",
            (double)n.tokens_waiting);
    put_one(out, "moonshift:embedding_replicas_alive", "gauge", "Replicas of the encoder that work.", n.replicas_alive);
    put_one(out, "moonshift:embedding_replicas_allowed", "gauge",
            "Of those, how many may take texts by the policy's rule.", n.replicas_allowed);
}
