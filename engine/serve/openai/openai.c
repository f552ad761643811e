#include "engine/serve/openai/openai.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/log.h"
#include "engine/base/mem.h"

enum { MAX_SPECS = 4096 };

/* An order on its way through the text workers, and the exchange that it is for. */
struct pending {
    struct openai_order order; /* first: freed as an order */
    struct openai *openai;
    struct http_exchange *x; /* NULL: the client is gone */
};

void openai_init(struct openai *o, struct front *f)
{
    *o = (struct openai){.front = f};
    map_init(&o->by_tag);
}

static void count_held(struct openai *o, struct openai_answer *a)
{
    o->held += a->held - a->counted;
    a->counted = a->held;
}

static void let_go(struct openai *o, struct openai_answer *a)
{
    openai_answer_let_go(a);
    count_held(o, a);
}

static void drop_answer(struct openai *o, struct openai_answer *a)
{
    let_go(o, a);
    *a->link = a->next;
    if (a->next)
        a->next->link = a->link;
    o->n_answers--;
    openai_answer_free(a);
}

void openai_free(struct openai *o)
{
    while (o->answers)
        drop_answer(o, o->answers);
    map_free(&o->by_tag);
    grammars_free(&o->grammars);
}

/* ---- cancelling */

static void cancel(struct openai *o, struct openai_choice *c, enum ending how)
{
    if (c->ended || c->cancelled)
        return;
    c->cancelled = true;
    struct engine_message m = {.kind = IN_CANCEL, .code = how, .tag = c->tag};
    queue_post(o->front->inbox, &m);
}

/* What was not handed over yet never will be. */
static void take_back(struct openai *o, struct openai_answer *a)
{
    for (int i = a->n_given; i < a->n_choices; i++) {
        a->choices[i].ended = true;
        a->n_ended++;
        o->n_behind--;
        o->front->n_live--;
    }
    a->n_given = a->n_choices;
}

static void cancel_all(struct openai *o, struct openai_answer *a)
{
    int n = a->n_given;
    take_back(o, a);
    for (int i = 0; i < n; i++)
        cancel(o, &a->choices[i], END_ABORT);
}

/* The exchange of an answer finds its way back through this. */
struct owner {
    struct openai *openai;
    struct openai_answer *answer;
};

static void answer_gone(struct http_exchange *x)
{
    struct owner *w = x->user;
    log_debug("openai", "%s: the client left", w->answer->id);
    w->answer->x = NULL;
    let_go(w->openai, w->answer);
    cancel_all(w->openai, w->answer);
}

static void fail(struct openai *o, struct openai_answer *a, const struct fault *f)
{
    openai_answer_fault(a, f);
    let_go(o, a);
    cancel_all(o, a);
}

static struct openai_answer *largest(struct openai *o)
{
    struct openai_answer *found = NULL;
    for (struct openai_answer *a = o->answers; a; a = a->next)
        if (a->held && (!found || a->held > found->held))
            found = a;
    return found;
}

/* What is gathered for whole answers is bounded with what waits to be taken. An answer that has grown beyond its own
 * bound ends, then those that nobody takes, then the largest. */
static void bound_held(struct openai *o, struct openai_answer *a)
{
    struct fault f;
    struct http *http = o->front->http;
    count_held(o, a);
    if (a->held > a->most)
        fail(o, a, openai_answer_too_large(&f));
    while (!http_make_room(http, o->held) && (a = largest(o))) {
        fault_set(
            &f, 503, "overloaded", NULL,
            "the answers that are being made hold more memory than they may; ask for a stream, or try again later");
        f.retry_after_s = 1;
        fail(o, a, &f);
    }
}

/* ---- submitting */

static void submit(struct openai *o, struct openai_answer *a, int i)
{
    struct openai_choice *c = &a->choices[i];
    struct request_spec *s = c->spec;
    int first = i - i % a->params.n;
    c->spec = NULL;
    c->tag = s->tag = ++o->next_tag;
    s->leader = i > first ? a->choices[first].tag : 0;
    if (i) /* it queues from now on, not since its request came */
        s->arrival_ns = clock_now(o->front->clock);
    map_set(&o->by_tag, c->tag, (uintptr_t)c);
    a->n_with_engine++;
    a->unstarted += c->cost;
    o->n_behind--;
    o->front->counts.n_submitted++;
    struct engine_message m = {.kind = IN_SUBMIT, .tag = c->tag, .payload = s};
    queue_post(o->front->inbox, &m);
}

/* A request of many sequences neither takes all places nor queues them all at once: it has half of the places at most,
 * and no more prompt tokens that wait than a step takes, so that whoever comes next is behind one step of it, not
 * behind all of it. Its others follow as these start and end. */
static void hand_over(struct openai *o, struct openai_answer *a)
{
    const struct front *f = o->front;
    int places = f->places > 1 ? f->places / 2 : f->places;
    while (a->n_given < a->n_choices) {
        const struct openai_choice *c = &a->choices[a->n_given];
        if (a->n_with_engine && ((places && a->n_with_engine >= places) ||
                                 (f->step_tokens && a->unstarted && a->unstarted + c->cost > f->step_tokens)))
            return;
        submit(o, a, a->n_given++);
    }
}

static void note_started(struct openai *o, struct openai_choice *c)
{
    if (c->started)
        return;
    c->started = true;
    c->answer->unstarted -= c->cost;
    hand_over(o, c->answer);
}

static void start(struct openai *o, struct openai_order *order, struct http_exchange *x)
{
    struct front *f = o->front;
    grammars_settle(&o->grammars, order);
    struct openai_answer *a = openai_answer_new(order, x, f->names[0]);
    a->force_usage = f->force_usage;
    a->most = http_max_answer(f->http);
    a->owner = mem_new(sizeof(struct owner));
    *(struct owner *)a->owner = (struct owner){o, a};
    a->next = o->answers;
    a->link = &o->answers;
    if (a->next)
        a->next->link = &a->next;
    o->answers = a;
    o->n_answers++;
    x->user = a->owner;
    x->gone = answer_gone;
    o->n_behind += a->n_choices;
    f->n_live += a->n_choices;
    hand_over(o, a);
}

/* The queue's places are counted by sequence; one that had room alone may have none with all that it asks for. */
static void check_room(struct openai *o, struct openai_order *order)
{
    const struct front *f = o->front;
    if (order->fault.status || !f->max_live || f->n_live + order->n_specs <= f->max_live)
        return;
    fault_set(&order->fault, 503, "overloaded", NULL,
              "the queue is full: the request asks for %d sequences, and there is room for %d; try again later",
              order->n_specs, f->max_live > f->n_live ? f->max_live - f->n_live : 0);
    order->fault.retry_after_s = 1;
}

static void order_gone(struct http_exchange *x)
{
    struct pending *p = x->user;
    p->x = NULL;
    cancel_ask(&p->order.job.cancel);
}

static void order_done(struct text_job *job)
{
    struct pending *p = (struct pending *)job;
    struct openai *o = p->openai;
    o->n_orders--;
    o->front->n_live--;
    if (o->front->stopped)
        fault_set(&p->order.fault, 503, "stopping", NULL, "the server is stopping");
    check_room(o, &p->order);
    if (p->x && p->order.fault.status)
        front_fault(p->x, &p->order.fault);
    else if (p->x)
        start(o, &p->order, p->x);
    openai_order_free(&p->order);
}

/* ---- the request */

/* Clients may send the same word twice: the engine's name gets more. */
static void choose_id(struct openai *o, struct http_exchange *x, struct openai_order *r, char out[NAME_BYTES])
{
    const char *kind = r->api->id;
    bool given = front_request_id(o->front, x, out);
    snprintf(r->id, sizeof r->id, "%s%s", kind, out);
    if (given)
        snprintf(r->name, sizeof r->name, "%s%.37s-%016" PRIx64, kind, out, rng_next(&o->front->rng));
    else
        snprintf(r->name, sizeof r->name, "%.63s", r->id);
}

static double header_ms(const struct http_exchange *x, const char *name)
{
    const char *v = http_head_find(&x->head, name);
    char *end;
    double ms = v ? strtod(v, &end) : 0;
    return v && *v && !*end && ms > 0 && ms <= 1e9 ? ms : 0;
}

static struct pending *make_pending(struct openai *o, struct http_exchange *x, const struct openai_api *api,
                                    const struct auth_key *key)
{
    struct front *f = o->front;
    struct pending *p = mem_new(sizeof *p);
    p->openai = o;
    p->x = x;
    struct openai_order *r = &p->order;
    r->job = (struct text_job){.run = openai_order_read, .done = order_done, .bytes = x->body.len};
    r->model_text = &f->model_text;
    r->names = f->names;
    r->n_names = f->n_names;
    r->api = api;
    r->body = x->body;
    x->body = (struct buf){0};
    r->arrival_ns = x->began_ns;
    r->slo_ttft_ms = header_ms(x, "x-llm-d-slo-ttft-ms");
    r->slo_tpot_ms = header_ms(x, "x-llm-d-slo-tpot-ms");
    r->random = rng_next(&f->rng);
    r->max_specs = f->max_live && f->max_live < MAX_SPECS ? f->max_live : MAX_SPECS;
    snprintf(r->tenant, sizeof r->tenant, "%s", *key->tenant ? key->tenant : "default");
    snprintf(r->salt, sizeof r->salt, "%s", key->salt);
    r->offline = key->offline;
    char id[NAME_BYTES];
    choose_id(o, x, r, id);
    http_add_header(x, "X-Request-Id", id);
    fault_set(&r->fault, 503, "stopping", NULL, "the server is stopping");
    return p;
}

void openai_handle(struct openai *o, struct http_exchange *x, const struct openai_api *api, const struct auth_key *key)
{
    struct front *f = o->front;
    if (f->draining || (f->max_live && f->n_live >= f->max_live)) {
        front_refuse_busy(x, f->draining ? "the server is draining; try another one"
                                         : "the queue is full; try again later");
        return;
    }
    enum text_lane lane = x->body.len < TEXT_LONG_BYTES ? TEXT_SHORT : TEXT_LONG;
    struct pending *p = make_pending(o, x, api, key);
    x->user = p;
    x->gone = order_gone;
    x->drop_on_eof = true;
    o->n_orders++;
    f->n_live++;
    if (text_post(f->text, lane, &p->order.job) == 0)
        return;
    p->x = NULL;
    x->gone = NULL;
    order_done(&p->order.job);
    front_refuse_busy(x, "too many requests wait to be read; try again later");
}

/* ---- the engine's events */

static void end_failed(struct openai *o, struct openai_choice *c, const struct engine_event *ev)
{
    struct fault f;
    const char *why = ev->payload ? ev->payload : NULL;
    int status = ev->code == END_REFUSED ? (ev->http_status ? ev->http_status : 503)
                 : ev->code == END_ERROR ? (ev->http_status ? ev->http_status : 500)
                                         : 503;
    const char *code = ev->code == END_ERROR   ? "engine_error"
                       : ev->code == END_ABORT ? "stopping"
                       : status == 429         ? "rate_limit_exceeded"
                       : status < 500          ? "refused"
                                               : "overloaded";
    fault_set(&f, status, code, NULL, "%s",
              why                     ? why
              : ev->code == END_ABORT ? "the server is stopping"
                                      : "the request was refused");
    f.retry_after_s = ev->code == END_REFUSED ? ev->retry_after_s : -1;
    if (status == 503 && f.retry_after_s < 0 && ev->code != END_ERROR)
        f.retry_after_s = 1;
    c->ended = true;
    c->answer->n_ended++;
    fail(o, c->answer, &f);
}

static void take_end(struct openai *o, struct openai_choice *c, const struct engine_event *ev)
{
    struct openai_answer *a = c->answer;
    map_remove(&o->by_tag, c->tag);
    o->front->n_live--;
    o->front->counts.n_ended++;
    a->n_with_engine--;
    if (ev->code == END_STOP || ev->code == END_LENGTH || c->stopped)
        openai_answer_end(c, ev);
    else
        end_failed(o, c, ev);
    note_started(o, c);
    hand_over(o, a);
    if (a->n_ended == a->n_choices)
        drop_answer(o, a);
}

static void take_tokens(struct openai *o, struct openai_choice *c, const struct engine_event *ev)
{
    struct engine_event one;
    note_started(o, c);
    for (int i = 0; engine_event_token(ev, i, &one); i++)
        if (openai_answer_token(c, &one))
            cancel(o, c, END_STOP);
}

void openai_event(struct openai *o, const struct engine_event *ev)
{
    uint64_t v;
    if (!map_find(&o->by_tag, ev->tag, &v)) {
        log_error("openai", "an event for a sequence that is not here: kind %d tag %" PRIu64, (int)ev->kind, ev->tag);
        return;
    }
    struct openai_choice *c = (struct openai_choice *)(uintptr_t)v;
    if (ev->kind == EV_END)
        take_end(o, c, ev);
    else if (ev->kind == EV_PROMPT_LOGPROBS)
        openai_answer_prompt(c, ev->payload);
    else
        take_tokens(o, c, ev);
    if (ev->kind != EV_END)
        bound_held(o, c->answer);
}

void openai_tick(struct openai *o, int64_t now)
{
    int64_t after = (int64_t)o->front->ping_s * 1000000000;
    if (!after)
        return;
    for (struct openai_answer *a = o->answers; a; a = a->next)
        if (a->x && now - http_last_put_ns(a->x) >= after)
            openai_answer_ping(a);
}

void openai_fail_all(struct openai *o, const char *why)
{
    struct fault f;
    fault_set(&f, 503, "stopping", NULL, "%s", why);
    for (struct openai_answer *a = o->answers; a; a = a->next)
        fail(o, a, &f);
}
