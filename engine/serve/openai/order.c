#include "engine/serve/openai/order.h"

#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/base/rng.h"
#include "engine/base/shared.h"
#include "engine/serve/openai/guided.h"

enum { ORDER_MAX_TOKENS = 16 << 20 }; /* prompt tokens of all sequences of one request */

static int check_model(const struct openai_order *o, const struct json *body, struct fault *f)
{
    const struct json *v = json_find(body, "model");
    if (!v || json_type(v) == JSON_NULL)
        return 0;
    const char *name = json_text(v);
    if (!name)
        return fault_set(f, 400, "invalid_type", "model", "'model' must be a string, not %s", json_type_name(v));
    for (int i = 0; i < o->n_names; i++)
        if (strcmp(name, o->names[i]) == 0)
            return 0;
    return fault_set(f, 404, "model_not_found", "model", "The model '%.100s' does not exist; this server has '%.100s'",
                     name, o->names[0]);
}

static int check_early_stop(const struct openai_order *o, struct fault *f)
{
    if (!o->params.probe_every || o->model_text->can_probe)
        return 0;
    return fault_set(
        f, 400, "unsupported_parameter", "early_stop",
        "'early_stop' is not offered here: the model's chat template has no thinking that ends with a known "
        "marker (--think-end), or the server records or has no prefix cache");
}

static int32_t *copy_ids(const int32_t *ids, int n)
{
    if (!n)
        return NULL;
    int32_t *copy = mem_new_array((size_t)n, sizeof *copy);
    memcpy(copy, ids, (size_t)n * sizeof *ids);
    return copy;
}

static void fill_sampling(struct sampling *s, const struct openai_params *p, uint64_t seed)
{
    *s = (struct sampling){.temperature = (float)p->temperature,
                           .top_p = (float)p->top_p,
                           .min_p = (float)p->min_p,
                           .top_k = p->top_k,
                           .repetition_penalty = (float)p->repetition_penalty,
                           .frequency_penalty = (float)p->frequency_penalty,
                           .presence_penalty = (float)p->presence_penalty,
                           .seed = seed,
                           .n_logprobs = p->logprobs ? p->n_logprobs : -1,
                           .n_prompt_logprobs = p->n_prompt_logprobs,
                           .n_bias = p->n_bias,
                           .n_allowed = p->n_allowed};
    s->bias = shared_hold(p->bias);
    s->allowed = shared_hold(p->allowed);
}

static void fill_stop_ids(struct request_spec *s, const struct openai_order *o)
{
    const struct openai_params *p = &o->params;
    const int32_t *ends = NULL;
    size_t n_ends = p->ignore_eos ? 0 : tokenizer_end_ids(o->model_text->tokenizer, &ends);
    s->n_stop_ids = (int)n_ends + p->n_stop_ids;
    if (!s->n_stop_ids)
        return;
    s->stop_ids = mem_new_array((size_t)s->n_stop_ids, sizeof *s->stop_ids);
    if (n_ends)
        memcpy(s->stop_ids, ends, n_ends * sizeof *ends);
    memcpy(s->stop_ids + n_ends, p->stop_ids, (size_t)p->n_stop_ids * sizeof *ends);
}

/* Where a prompt leaves the model: some templates begin its thinking, and some end it at once when told to. */
static enum think_state thinks_after(const struct openai_order *o, const struct openai_prompt *q)
{
    enum { LAST = THINK_MOST_BYTES }; /* tokens: more than a marker and white space have */
    const struct think_marks *m = o->model_text->think;
    int from = q->n > LAST ? q->n - LAST : 0;
    struct buf text = {0};
    if (!m || o->params.route != ROUTE_CHAT)
        return THINK_TEXT;
    tokenizer_decode(o->model_text->tokenizer, q->ids + from, (size_t)(q->n - from), false, &text);
    enum think_state s = think_state_after(m, text.data ? text.data : "", text.len);
    buf_free(&text);
    return s;
}

static struct request_spec *make_spec(const struct openai_order *o, const struct openai_prompt *q, int i)
{
    const struct openai_params *p = &o->params;
    struct request_spec *s = request_spec_new();
    snprintf(s->name, sizeof s->name, "%s", o->name);
    snprintf(s->tenant, sizeof s->tenant, "%s", o->tenant);
    snprintf(s->salt, sizeof s->salt, "%s\x1f%s", o->salt, p->salt);
    s->n_siblings = p->n;
    s->priority = p->priority;
    s->offline = o->offline;
    s->arrival_ns = o->arrival_ns;
    s->slo_ttft_ms = o->slo_ttft_ms;
    s->slo_tpot_ms = o->slo_tpot_ms;
    s->prompt = copy_ids(q->ids, q->n);
    s->n_prompt = q->n;
    s->max_tokens = q->max_tokens;
    s->open_ended = q->open_ended;
    s->min_tokens = p->min_tokens < q->max_tokens ? p->min_tokens : q->max_tokens;
    if (p->probe_every && thinks_after(o, q) != THINK_TEXT) {
        s->probe_every = p->probe_every;
        s->probe_window = p->probe_window;
    }
    s->grammar = shared_hold(p->grammar);
    fill_stop_ids(s, o);
    fill_sampling(&s->sampling, p, (p->has_seed ? (uint64_t)p->seed : o->random) + (uint64_t)i);
    if (s->max_tokens == 0 && s->sampling.n_prompt_logprobs < 0)
        s->sampling.n_prompt_logprobs = 0; /* the prompt is all there is to compute */
    return s;
}

static int make_specs(struct openai_order *o)
{
    int n = o->params.n, total = o->prompts.n * n;
    int64_t tokens = 0;
    for (int i = 0; i < o->prompts.n; i++)
        tokens += (int64_t)o->prompts.items[i].n * n;
    if (total > o->max_specs || tokens > ORDER_MAX_TOKENS)
        return fault_set(&o->fault, 400, "invalid_value", "n",
                         "the request asks for %d sequences with %lld prompt tokens; at most %d with %d are "
                         "accepted in one request",
                         total, (long long)tokens, o->max_specs, ORDER_MAX_TOKENS);
    o->specs = mem_new_array((size_t)total, sizeof *o->specs);
    for (; o->n_specs < total; o->n_specs++) {
        o->specs[o->n_specs] = make_spec(o, &o->prompts.items[o->n_specs / n], o->n_specs % n);
        o->specs[o->n_specs]->choice = o->n_specs;
    }
    return 0;
}

static int read_request(struct openai_order *o, const struct json *body)
{
    TRY(openai_params_read(&o->params, o->api->route, body, o->model_text->n_vocab, &o->fault));
    TRY(check_model(o, body, &o->fault));
    TRY(check_early_stop(o, &o->fault));
    const struct openai_reading r = {o->model_text, &o->params, &o->job.cancel};
    TRY(openai_prompts_read(&r, body, &o->prompts, &o->fault)); /* first: a template may show no tools to force */
    if (o->model_text->splits_thoughts && o->params.split_thoughts)
        o->params.thinks = thinks_after(o, &o->prompts.items[0]);
    TRY(openai_guided_read(o->model_text, &o->params, body, &o->fault));
    return make_specs(o);
}

static void use_own_name(const struct openai_api *api, struct fault *f)
{
    for (int i = 0; api->names && api->names[i][0]; i++)
        if (strcmp(f->param, api->names[i][0]) == 0) {
            snprintf(f->param, sizeof f->param, "%s", api->names[i][1]);
            return;
        }
}

/* A request of an API that says it in other words. */
static int read_translated(struct openai_order *o, const struct json *body)
{
    struct buf text = {0};
    struct err e = {0};
    struct json *request = NULL;
    int rc = json_type(body) == JSON_OBJECT ? o->api->translate(body, &text, &o->echo, &o->fault)
                                            : fault_set(&o->fault, 400, "invalid_type", NULL,
                                                        "the body must be a JSON object, not %s", json_type_name(body));
    if (!rc)
        request = json_parse(text.data, text.len, &(struct json_limits){.bytes = (size_t)1 << 30, .depth = 80}, &e);
    buf_free(&text);
    if (!rc && !request)
        rc = fault_set(&o->fault, e.code == E_FULL ? 503 : 400, "invalid_json", NULL,
                       "the request body is not acceptable: %s", e.text);
    if (!rc) {
        rc = read_request(o, request);
        use_own_name(o->api, &o->fault);
    }
    json_free(request);
    return rc;
}

static int read_body(struct openai_order *o, const struct json *body)
{
    return o->api->translate ? read_translated(o, body) : read_request(o, body);
}

void openai_order_read(struct text_job *job)
{
    struct openai_order *o = (struct openai_order *)job;
    struct err e = {0};
    o->fault = (struct fault){0};
    struct json *body =
        json_parse(o->body.data ? o->body.data : "", o->body.len, &(struct json_limits){.nodes = 1500000}, &e);
    if (!body)
        fault_set(&o->fault, e.code == E_FULL ? 503 : 400, "invalid_json", NULL,
                  "the request body is not acceptable: %s", e.text);
    else
        read_body(o, body);
    json_free(body);
    buf_free(&o->body);
}

void openai_order_free(struct openai_order *o)
{
    if (!o)
        return;
    for (int i = 0; i < o->n_specs; i++)
        request_spec_free(o->specs[i]);
    mem_free(o->specs);
    openai_prompts_free(&o->prompts);
    openai_params_free(&o->params);
    buf_free(&o->body);
    buf_free(&o->echo);
    mem_free(o);
}
