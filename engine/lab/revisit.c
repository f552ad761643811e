#include "engine/lab/revisit.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/json.h"
#include "engine/base/mem.h"
#include "engine/decisions.h"
#include "engine/lab/recording/record_plan.h"
#include "engine/lab/reenact.h"

enum { DECISION_BYTES = 1 << 20 };

/* A replay on which somebody looks. */
struct visit {
    const struct revisit_setup *setup;
    struct recorded_policies policies;
    struct recording *recording;
    const struct recording_head *head;
    struct model *model;
    struct engine_play play;
    struct engine_setup engine;
    struct reenactment seen;
    struct buf *out;
    bool found;
    /* a decision */
    struct revisit_which which;
    int64_t last_ns;
    /* stories */
    const char *id;
    int n;
    char by_order[NAME_BYTES]; /* the name of the request whose order the id is; "": it is none */
};

/* ---- the replay */

static int open_visit(struct visit *v, const struct revisit_setup *s, struct err *e)
{
    v->setup = s;
    v->policies = s->policies;
    TRY(recording_open(&v->recording, s->path, e));
    v->head = recording_head(v->recording);
    int rc = model_open_described(&v->model, v->head->config, DT_BF16, e);
    if (rc)
        return err_prefix(e, rc, "%.100s:1: model", s->path);
    reenact_engine(&v->engine, &v->play, v->head, v->model);
    TRY(s->begin(s->policies.ctx, v->head->facts.n_ranks, e));
    v->policies.when = "at its start";
    return recorded_policies_find(&v->policies, v->head->policy, v->head->sha256, v->head->params, &v->engine.policy,
                                  e);
}

static void close_visit(struct visit *v)
{
    reenact_free(&v->seen);
    recording_close(v->recording);
    model_close(v->model);
}

static int find_policy(void *ctx, const char *name, const char *sha256, const char *params, struct policy *out,
                       struct err *e)
{
    struct visit *v = ctx;
    v->policies.when = "from here on";
    return recorded_policies_find(&v->policies, name, sha256, params, out, e);
}

static int run(struct visit *v, const struct reenact_look *look, struct err *e)
{
    struct replay replay;
    struct replay_setup setup = {.engine = &v->engine, .vocab = 1};
    struct reenact_setup again = {
        .replay = &setup, .recording = v->recording, .find_policy = find_policy, .ctx = v, .look = look};
    int rc = reenact_run(&v->seen, &replay, &again, e);
    replay_free(&replay);
    return rc;
}

static int left(const struct visit *v, struct err *e)
{
    return err_set(e, E_INPUT, "the replay leaves the recording before that: %.300s",
                   v->seen.difference ? v->seen.difference : "it decides otherwise");
}

/* What the engine answers: the code. */
static int ask(struct engine *engine, struct engine_message *m, struct buf *out)
{
    struct engine_event ev;
    int code = E_GONE;
    engine_take(engine, m);
    while (queue_take(engine_outbox(engine), &ev)) {
        if (ev.kind == EV_REPLY) {
            code = ev.code;
            buf_put(out, ev.payload, ev.n);
        }
        mem_free(ev.payload);
    }
    return code;
}

/* ---- a decision */

static bool wants(void *ctx, uint64_t number, int64_t t_ns)
{
    struct visit *v = ctx;
    v->last_ns = t_ns;
    return v->which.number ? number == v->which.number : llround((double)t_ns * 1e-3) >= llround(v->which.at_s * 1e6);
}

static void put_words(struct buf *out, const char *name, const char *plan)
{
    struct buf words = {0};
    record_plan_words(&words, plan);
    json_put_member(out, name, words.data);
    buf_free(&words);
}

static struct json *asked(struct engine *engine, struct engine_message *m)
{
    struct buf text = {0};
    struct json *j = ask(engine, m, &text) ? NULL : json_parse(text.data, text.len, NULL, NULL);
    buf_free(&text);
    return j;
}

/* As the server would have logged it. */
static void put_decided(struct engine *engine, struct buf *out)
{
    struct decisions_ask *newest = mem_new(sizeof *newest);
    newest->n = 1;
    struct json *log = asked(engine, &(struct engine_message){.kind = IN_DECISIONS, .payload = newest});
    const struct json *d = json_first(json_find(log, "decisions"));
    const char *verdict = json_text(json_find(json_find(d, "policy"), "verdict"));
    buf_puts(out, ",\"decided\":");
    json_write(out, d, NULL);
    struct json *state =
        verdict && strcmp(verdict, "ok") != 0 ? asked(engine, &(struct engine_message){.kind = IN_STATE}) : NULL;
    json_put_member(out, "error", json_text(json_find(json_find(state, "policy"), "last_error")));
    json_free(state);
    json_free(log);
}

static void show(void *ctx, struct engine *engine, const struct reenact_decision *d)
{
    struct visit *v = ctx;
    struct buf *out = v->out;
    const struct policy *p = engine_policy(engine);
    v->found = true;
    buf_printf(out,
               "{\"decision\":%" PRIu64 ",\"line\":%" PRIu64 ",\"t_ns\":%" PRId64 ",\"policy\":{\"name\":", d->number,
               d->line, d->t_ns);
    buf_put_json(out, p->name, strlen(p->name));
    json_put_member(out, "sha256", p->sha256);
    buf_printf(out, "},\"plan\":{\"equal\":%s", strcmp(d->recorded, d->came_out) ? "false" : "true");
    put_words(out, "words", d->came_out);
    put_words(out, "recorded", d->recorded);
    buf_putc(out, '}');
    put_decided(engine, out);
    buf_printf(out, ",\"call\":%s}", d->call ? d->call : "null");
}

static int not_there(const struct visit *v, struct err *e)
{
    if (!v->seen.equal)
        return left(v, e);
    if (!v->seen.n_decisions)
        return err_set(e, E_NOTFOUND, "no decision is in this recording");
    if (v->which.number)
        return err_set(e, E_NOTFOUND, "the recording has %" PRIu64 " decisions, and so no decision %" PRIu64,
                       v->seen.n_decisions, v->which.number);
    return err_set(e, E_NOTFOUND,
                   "the last of the recording's %" PRIu64 " decisions was taken %.6f s after its start, and none later",
                   v->seen.n_decisions, (double)v->last_ns * 1e-9);
}

int revisit_decision(const struct revisit_setup *s, const struct revisit_which *w, struct buf *out, struct err *e)
{
    struct visit *v = mem_new(sizeof *v);
    struct reenact_look look = {.ctx = v, .wants = wants, .show = show};
    v->which = *w;
    v->out = out;
    int rc = open_visit(v, s, e);
    v->engine.story_keep = 1; /* for the names of the requests that are here */
    v->engine.decision_bytes = DECISION_BYTES;
    if (!rc)
        rc = run(v, &look, e);
    if (!rc && !v->found)
        rc = not_there(v, e);
    close_visit(v);
    mem_free(v);
    return rc;
}

/* ---- stories */

static void over(void *ctx, struct engine *engine)
{
    struct visit *v = ctx;
    const char *ids[] = {v->id, v->by_order[0] ? v->by_order : NULL};
    for (int i = 0; i < 2 && !v->found && (i == 0 || ids[i]); i++) {
        size_t before = v->out->len;
        v->found = !ask(engine,
                        &(struct engine_message){
                            .kind = IN_STORY, .n = (size_t)v->n, .payload = ids[i] ? mem_strdup(ids[i]) : NULL},
                        v->out);
        if (!v->found)
            v->out->len = before;
    }
}

/* How many requests there are, and which of them has the order that the id is, if it is one. */
static int count_requests(struct visit *v, const char *path, int *n, struct err *e)
{
    struct recording *r;
    struct recorded x;
    bool end = false, digits = v->id && *v->id && strspn(v->id, "0123456789") == strlen(v->id) && strlen(v->id) < 16;
    int64_t order = digits ? atoll(v->id) : -1;
    *n = 0;
    TRY(recording_open(&r, path, e));
    int rc = recording_next(r, &x, &end, e);
    for (; !rc && !end; rc = recording_next(r, &x, &end, e)) {
        if (x.kind != 'a' || x.order < 0)
            continue;
        *n += *n < REVISIT_MOST_STORIES;
        if (x.order == order)
            memcpy(v->by_order, x.name, sizeof v->by_order);
    }
    recording_close(r);
    return rc;
}

int revisit_stories(const struct revisit_setup *s, const char *id, int n, struct buf *out, struct err *e)
{
    struct visit *v = mem_new(sizeof *v);
    struct reenact_look look = {.ctx = v, .over = over};
    int n_requests = 0;
    v->id = id;
    v->n = n;
    v->out = out;
    int rc = count_requests(v, s->path, &n_requests, e);
    if (!rc)
        rc = open_visit(v, s, e);
    v->engine.story_keep = n_requests ? n_requests : 1;
    if (!rc)
        rc = run(v, &look, e);
    if (!rc && !v->seen.equal)
        rc = left(v, e);
    else if (!rc && !v->found)
        rc = err_set(e, E_NOTFOUND, "no request of the recording goes by '%.100s'%s", id ? id : "",
                     n_requests == REVISIT_MOST_STORIES ? ", of the last 65536" : "");
    close_visit(v);
    mem_free(v);
    return rc;
}
