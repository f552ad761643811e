#include "engine/serve/openai/answer.h"

#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/serve/front/front.h"

enum { SIBLING_COST = 32 };

/* Are there control tokens among the markers that are looked for? */
static bool sees_control(const struct openai_answer *a)
{
    return (a->has_tools && tool_format_is_control(a->model_text->tools)) ||
           (a->has_thoughts && a->model_text->think->is_control);
}

struct openai_answer *openai_answer_new(struct openai_order *o, struct http_exchange *x, const char *model)
{
    struct openai_answer *a = mem_new(sizeof *a);
    a->x = x;
    a->params = o->params;
    a->prompts = o->prompts;
    o->params = (struct openai_params){0};
    o->prompts = (struct openai_prompts){0};
    a->model_text = o->model_text;
    a->api = o->api;
    a->echo = o->echo;
    o->echo = (struct buf){0};
    snprintf(a->id, sizeof a->id, "%s", o->id);
    a->model = model;
    a->created_s = clock_wall_seconds();
    a->has_tools = a->params.tools.n && a->model_text->tools != TOOLS_NONE;
    a->has_thoughts = a->params.thinks != THINK_TEXT;
    a->call_id = o->random;
    a->n_choices = o->n_specs;
    a->choices = mem_new_array((size_t)a->n_choices, sizeof *a->choices);
    for (int i = 0; i < a->n_choices; i++) {
        struct openai_choice *c = &a->choices[i];
        *c = (struct openai_choice){.answer = a, .index = i, .prompt = i / a->params.n, .stop_id = -1};
        c->spec = o->specs[i];
        o->specs[i] = NULL;
        c->cost = i % a->params.n ? SIBLING_COST : c->spec->n_prompt; /* a sibling finds the prompt in the cache */
        if (a->has_thoughts)
            thought_reader_init(&c->thoughts, a->model_text->think, a->params.thinks);
        tool_reader_init(&c->tools, a->model_text->tools, &a->params.tools, a->params.one_call);
        detok_init(&c->detok, a->model_text->tokenizer, a->params.skip_special && !sees_control(a));
        stop_scan_init(&c->scan, &a->params.stops);
    }
    for (int i = 0; i < a->prompts.n; i++)
        a->n_prompt += a->prompts.items[i].n;
    a->held = a->echo.len;
    a->api->prepare(a);
    return a;
}

struct buf *openai_choice_shown(struct openai_choice *c)
{
    return c->answer->has_tools ? &c->tools.text : c->answer->has_thoughts ? &c->thoughts.text : &c->text;
}

/* The first n bytes of the text as it came are dealt with. */
static void cut(struct openai_choice *c, size_t n)
{
    buf_cut(&c->text, n);
    c->scanned -= n < c->scanned ? n : c->scanned;
}

void openai_choice_take(struct openai_choice *c, size_t n)
{
    struct buf *shown = openai_choice_shown(c);
    if (shown == &c->text)
        cut(c, n);
    else
        buf_cut(shown, n);
}

static void items_free(struct openai_items *i)
{
    buf_free(&i->text);
    buf_free(&i->logprobs);
    buf_free(&i->done);
}

void openai_answer_let_go(struct openai_answer *a)
{
    for (int i = 0; i < a->n_choices; i++) {
        struct openai_choice *c = &a->choices[i];
        buf_free(&c->text);
        thought_reader_free(&c->thoughts);
        tool_reader_free(&c->tools);
        items_free(&c->items);
        buf_free(&c->prompt_logprobs);
        shape_logprobs_free(&c->logprobs);
        tokens_free(&c->ids);
    }
    buf_free(&a->echo);
    a->held = 0;
}

void openai_answer_free(struct openai_answer *a)
{
    openai_answer_let_go(a);
    for (int i = 0; i < a->n_choices; i++) {
        request_spec_free(a->choices[i].spec);
        stop_scan_free(&a->choices[i].scan);
    }
    mem_free(a->choices);
    openai_prompts_free(&a->prompts);
    openai_params_free(&a->params);
    buf_free(&a->head);
    mem_free(a->owner);
    mem_free(a);
}

static size_t held_by(const struct openai_choice *c)
{
    const struct shape_logprobs *l = &c->logprobs;
    const struct openai_items *i = &c->items;
    return c->text.len + thought_reader_bytes(&c->thoughts) + tool_reader_bytes(&c->tools) + i->text.len +
           i->logprobs.len + i->done.len + c->prompt_logprobs.len + l->tokens.len + l->logprobs.len + l->tops.len +
           l->offsets.len + c->ids.len * sizeof *c->ids.ids;
}

/* The first sign of life of a choice: the stream opens, the prompt is echoed. */
static void begin(struct openai_choice *c)
{
    struct openai_answer *a = c->answer;
    if (c->begun)
        return;
    c->begun = true;
    if (a->params.stream)
        a->api->open(c);
    if (a->params.echo) {
        const struct openai_prompt *p = &a->prompts.items[c->prompt];
        buf_put(&c->text, p->echo, p->n_echo);
        c->scanned = c->text.len;
    }
}

static void add_logprobs(struct openai_choice *c, int32_t id, const struct token_logprobs *lp)
{
    const struct openai_params *p = &c->answer->params;
    struct shape_token t = {c->answer->model_text->tokenizer, id, lp, p->n_logprobs, p->tokens_as_ids};
    if (!p->logprobs)
        return;
    if (p->route == ROUTE_COMPLETIONS)
        shape_completion_token(&c->logprobs, &t, &c->chars);
    else if (lp)
        shape_chat_token(&c->logprobs, &t);
}

/* Looks for stop strings in what is new of the text. */
static void scan(struct openai_choice *c)
{
    const struct openai_params *p = &c->answer->params;
    size_t fresh = c->text.len - c->scanned;
    if (!p->stops.n || !fresh) {
        c->scanned = c->text.len;
        return;
    }
    if (c->n_output <= p->min_tokens) { /* as vLLM: text of the first min_tokens tokens stops nothing */
        stop_scan_reset(&c->scan);
        c->scanned = c->text.len;
        return;
    }
    c->scanned += stop_scan_read(&c->scan, c->text.data + c->scanned, fresh);
    if (c->scan.found < 0)
        return;
    c->stopped = true;
    c->text.len = c->scanned - (p->include_stop ? 0 : (size_t)p->stops.items[c->scan.found].n);
    c->text.data[c->text.len] = 0;
    c->scanned = c->text.len;
}

static bool is_clients_stop_id(const struct openai_params *p, int32_t id)
{
    for (int i = 0; i < p->n_stop_ids; i++)
        if (p->stop_ids[i] == id)
            return true;
    return false;
}

/* A stop id ends the text and is not part of it, unless the client named it and wants to see it. */
static bool is_shown(struct openai_choice *c, const struct engine_event *ev)
{
    const struct openai_params *p = &c->answer->params;
    if (!ev->is_stop)
        return true;
    bool own = is_clients_stop_id(p, ev->token);
    if (own)
        c->stop_id = ev->token;
    return own && p->include_stop;
}

static bool has_readers(const struct openai_answer *a)
{
    return a->has_thoughts || a->has_tools;
}

/* The first n bytes of the text, which no stop string takes back, go through the readers; end: nothing follows. */
static void read_text(struct openai_choice *c, size_t n, bool end)
{
    const struct openai_answer *a = c->answer;
    struct buf *from = &c->text;
    if (a->has_thoughts) {
        thought_reader_put(&c->thoughts, c->text.data, n);
        if (end)
            thought_reader_end(&c->thoughts);
        cut(c, n);
        from = &c->thoughts.text;
        n = from->len;
        if (!a->params.show_thoughts)
            buf_clear(&c->thoughts.thought);
    }
    if (!a->has_tools)
        return;
    tool_reader_put(&c->tools, from->data, n);
    if (end)
        tool_reader_end(&c->tools);
    if (a->has_thoughts)
        buf_clear(from);
    else
        cut(c, n);
    c->stopped = c->stopped || (c->tools.single && c->tools.n_found);
}

/* Is what comes shown, or put together, as it comes? */
static bool is_live(const struct openai_answer *a)
{
    return a->params.stream || a->api->gathers;
}

/* What may be seen by now, but for the last `held` bytes of a text that may still be taken back. */
static void show(struct openai_choice *c, size_t held)
{
    const struct openai_api *api = c->answer->api;
    size_t n = openai_choice_shown(c)->len - (has_readers(c->answer) ? 0 : held);
    if (c->thoughts.thought.len)
        api->thought(c);
    if (n)
        api->text(c, n);
    if (c->tools.n_calls)
        api->calls(c);
}

bool openai_answer_token(struct openai_choice *c, const struct engine_event *ev)
{
    struct openai_answer *a = c->answer;
    if (!a->x || c->stopped || c->ended)
        return false;
    size_t before = held_by(c);
    begin(c);
    c->n_output++;
    a->n_output++;
    if (is_shown(c, ev))
        detok_put(&c->detok, ev->token, &c->text);
    add_logprobs(c, ev->token, ev->payload);
    if (a->params.return_token_ids)
        tokens_put(&c->ids, ev->token);
    scan(c);
    size_t held = c->stopped ? 0 : stop_scan_held(&c->scan);
    if (has_readers(a))
        read_text(c, c->text.len - held, false);
    c->n_thought += c->thoughts.state == THINK_INSIDE;
    if (is_live(a))
        show(c, held);
    a->held += held_by(c) - before;
    return c->stopped;
}

void openai_answer_prompt(struct openai_choice *c, const struct prompt_logprobs *p)
{
    struct openai_answer *a = c->answer;
    if (!a->x || c->ended)
        return;
    size_t before = held_by(c);
    begin(c);
    const struct openai_prompt *q = &a->prompts.items[c->prompt];
    for (int i = 0; a->params.echo && i < p->n; i++)
        add_logprobs(c, q->ids[i], i ? &p->items[i] : NULL);
    if (a->params.show_prompt_logprobs)
        shape_put_prompt(&c->prompt_logprobs, a->model_text->tokenizer, q->ids, p);
    a->held += held_by(c) - before;
}

void openai_answer_end(struct openai_choice *c, const struct engine_event *ev)
{
    struct openai_answer *a = c->answer;
    c->ended = true;
    c->ending = c->stopped ? END_STOP : (enum ending)ev->code;
    c->n_cached = ev->n_cached;
    a->n_ended++;
    if (!a->x)
        return;
    size_t before = held_by(c);
    begin(c);
    if (!c->stopped)
        detok_flush(&c->detok, &c->text);
    if (has_readers(a))
        read_text(c, c->text.len, true);
    if (is_live(a))
        a->api->last(c);
    a->held += held_by(c) - before;
    if (a->n_ended < a->n_choices)
        return;
    if (a->params.stream)
        a->api->close(a);
    else
        a->api->whole(a);
    a->x = NULL;
}

void openai_answer_fault(struct openai_answer *a, const struct fault *f)
{
    struct http_exchange *x = a->x;
    a->x = NULL;
    if (!x)
        return;
    if (!x->streaming) {
        front_fault(x, f);
        return;
    }
    a->x = x;
    a->api->fault(a, f);
    a->x = NULL;
    http_stream_end(x);
}

const struct fault *openai_answer_too_large(struct fault *f)
{
    fault_set(
        f, 507, "answer_too_large", NULL,
        "the answer is larger than this server holds for anyone; ask for a stream, or for fewer choices or logprobs");
    return f;
}

void openai_answer_ping(struct openai_answer *a)
{
    if (!a->x || !a->params.stream)
        return;
    if (!a->x->streaming)
        http_stream_begin(a->x, 200, "text/event-stream; charset=utf-8");
    buf_puts(http_stream_put(a->x), a->api->ping);
}
