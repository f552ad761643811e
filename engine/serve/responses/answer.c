#include "engine/serve/responses/answer.h"

#include <string.h>

#include "engine/serve/front/front.h"
#include "engine/serve/openai/answer.h"
#include "engine/serve/responses/request.h"

static void put_string(struct buf *out, const char *s)
{
    buf_put_json(out, s, strlen(s));
}

static void put_text(struct buf *out, const struct buf *text)
{
    buf_put_json(out, text->data ? text->data : "", text->len);
}

/* ---- items as JSON */

static const struct {
    const char *type, *id, *part, *delta, *done;
} kinds[] = {
    [ITEM_THOUGHT] = {"reasoning", "rs", "reasoning_text", "response.reasoning_text.delta",
                      "response.reasoning_text.done"},
    [ITEM_TEXT] = {"message", "msg", "output_text", "response.output_text.delta", "response.output_text.done"},
    [ITEM_CALL] = {"function_call", "fc", NULL, "response.function_call_arguments.delta",
                   "response.function_call_arguments.done"},
};

static void put_item_id(const struct openai_choice *c, struct buf *out)
{
    const struct openai_answer *a = c->answer;
    buf_printf(out, "\"%s_%s_%d\"", kinds[c->items.open].id, a->id + strlen(a->api->id), c->items.n);
}

/* The part that holds the text of the open item. */
static void put_part(const struct openai_choice *c, bool whole, struct buf *out)
{
    const struct openai_items *i = &c->items;
    static const struct buf nothing;
    buf_printf(out, "{\"type\":\"%s\",\"text\":", kinds[i->open].part);
    put_text(out, whole ? &i->text : &nothing);
    if (i->open == ITEM_TEXT) {
        buf_puts(out, ",\"annotations\":[],\"logprobs\":[");
        buf_put(out, i->logprobs.data, whole ? i->logprobs.len : 0);
        buf_putc(out, ']');
    }
    buf_putc(out, '}');
}

static void open_item_json(const struct openai_choice *c, const char *status, struct buf *out)
{
    buf_puts(out, "{\"id\":");
    put_item_id(c, out);
    buf_printf(out, ",\"type\":\"%s\",\"status\":\"%s\"", kinds[c->items.open].type, status);
}

/* The open item, which holds text; status NULL: it has just begun. */
static void put_item(const struct openai_choice *c, const char *status, struct buf *out)
{
    open_item_json(c, status ? status : "in_progress", out);
    buf_puts(out,
             c->items.open == ITEM_TEXT ? ",\"role\":\"assistant\",\"content\":[" : ",\"summary\":[],\"content\":[");
    if (status)
        put_part(c, true, out);
    buf_puts(out, "]}");
}

/* NAMESPACE.NAME, as the request's functions are shown to the model, or NAME. */
static void put_function(const char *name, bool with_space, struct buf *out)
{
    const char *dot = strchr(name, '.');
    buf_puts(out, ",\"name\":");
    put_string(out, dot ? dot + 1 : name);
    if (dot && with_space) {
        buf_puts(out, ",\"namespace\":");
        buf_put_json(out, name, (size_t)(dot - name));
    }
}

static void put_call(const struct openai_choice *c, const struct tool_call *call, const char *status, struct buf *out)
{
    char id[TOOL_ID_BYTES];
    tool_call_id(id, c->answer->call_id, c->index, c->items.n);
    open_item_json(c, status ? status : "in_progress", out);
    buf_printf(out, ",\"call_id\":\"%s\"", id);
    put_function(call->name, true, out);
    buf_puts(out, ",\"arguments\":");
    put_string(out, status ? call->arguments : "");
    buf_putc(out, '}');
}

/* ---- the response as JSON */

static const char *status_of(const struct openai_choice *c)
{
    return c->ending == END_LENGTH ? "incomplete" : "completed";
}

static void put_usage(const struct openai_answer *a, struct buf *out)
{
    const struct openai_choice *c = a->choices;
    buf_printf(out,
               "{\"input_tokens\":%d,\"input_tokens_details\":{\"cached_tokens\":%d,\"cache_write_tokens\":0},"
               "\"output_tokens\":%d,\"output_tokens_details\":{\"reasoning_tokens\":%d},\"total_tokens\":%lld}",
               a->n_prompt, c->n_cached, c->n_output, c->n_thought, (long long)a->n_prompt + c->n_output);
}

/* f: why it failed, NULL: it did not. */
static void put_response(const struct openai_answer *a, const char *status, const struct fault *f, struct buf *out)
{
    const struct openai_choice *c = a->choices;
    bool incomplete = strcmp(status, "incomplete") == 0;
    buf_puts(out, "{\"id\":");
    put_string(out, a->id);
    buf_printf(out,
               ",\"object\":\"response\",\"created_at\":%lld,\"status\":\"%s\",\"model\":", (long long)a->created_s,
               status);
    put_string(out, a->model);
    buf_puts(out, ",\"output\":[");
    buf_put(out, c->items.done.data, c->items.done.len);
    buf_printf(out,
               "],\"incomplete_details\":%s,\"error\":", incomplete ? "{\"reason\":\"max_output_tokens\"}" : "null");
    if (f) {
        buf_printf(out, "{\"code\":\"%s\",\"message\":", f->status == 429 ? "rate_limit_exceeded" : "server_error");
        put_string(out, f->text);
        buf_putc(out, '}');
    } else {
        buf_puts(out, "null");
    }
    buf_puts(out, ",\"usage\":");
    if (c->ended && !f)
        put_usage(a, out);
    else
        buf_puts(out, "null");
    buf_putc(out, ',');
    buf_put(out, a->echo.data, a->echo.len);
    buf_putc(out, '}');
}

/* ---- events of a stream */

static struct buf *event_begin(struct openai_choice *c, const char *type)
{
    struct buf *out = http_stream_put(c->answer->x);
    buf_printf(out, "event: %s\ndata: {\"type\":\"%s\",\"sequence_number\":%lu", type, type, c->items.events++);
    return out;
}

static void event_end(struct buf *out)
{
    buf_puts(out, "}\n\n");
}

static void tell_response(struct openai_answer *a, const char *type, const char *status, const struct fault *f)
{
    struct buf *out = event_begin(a->choices, type);
    buf_puts(out, ",\"response\":");
    put_response(a, status, f, out);
    event_end(out);
}

/* Of the open item: where it stands. */
static struct buf *item_event(struct openai_choice *c, const char *type)
{
    struct buf *out = event_begin(c, type);
    buf_printf(out, ",\"output_index\":%d", c->items.n);
    return out;
}

/* Of the open item's text, or its arguments. */
static struct buf *part_event(struct openai_choice *c, const char *type)
{
    struct buf *out = item_event(c, type);
    buf_puts(out, ",\"item_id\":");
    put_item_id(c, out);
    if (kinds[c->items.open].part)
        buf_puts(out, ",\"content_index\":0");
    return out;
}

static void tell_item(struct openai_choice *c, const char *type, const struct buf *json)
{
    struct buf *out = item_event(c, type);
    buf_puts(out, ",\"item\":");
    buf_put(out, json->data, json->len);
    event_end(out);
}

static void tell_part(struct openai_choice *c, const char *type, bool whole)
{
    struct buf *out = part_event(c, type);
    buf_puts(out, ",\"part\":");
    put_part(c, whole, out);
    event_end(out);
}

/* ---- items as they come */

static bool is_stream(const struct openai_choice *c)
{
    return c->answer->params.stream;
}

/* The open item has ended, and this is what it was. */
static void end_item(struct openai_choice *c, struct buf *json)
{
    struct openai_items *i = &c->items;
    if (is_stream(c))
        tell_item(c, "response.output_item.done", json);
    buf_puts(&i->done, i->done.len ? "," : "");
    buf_put(&i->done, json->data, json->len);
    buf_free(json);
    buf_clear(&i->text);
    buf_clear(&i->logprobs);
    i->open = ITEM_NONE;
    i->n++;
}

static void close_item(struct openai_choice *c, const char *status)
{
    struct buf json = {0};
    if (c->items.open == ITEM_NONE)
        return;
    if (is_stream(c)) {
        struct buf *out = part_event(c, kinds[c->items.open].done);
        buf_puts(out, ",\"text\":");
        put_text(out, &c->items.text);
        if (c->items.open == ITEM_TEXT) {
            buf_puts(out, ",\"logprobs\":[");
            buf_put(out, c->items.logprobs.data, c->items.logprobs.len);
            buf_putc(out, ']');
        }
        event_end(out);
        tell_part(c, "response.content_part.done", true);
    }
    put_item(c, status, &json);
    end_item(c, &json);
}

static void open_item(struct openai_choice *c, enum openai_item kind)
{
    struct buf json = {0};
    if (c->items.open == kind)
        return;
    close_item(c, "completed");
    c->items.open = kind;
    if (!is_stream(c))
        return;
    put_item(c, NULL, &json);
    tell_item(c, "response.output_item.added", &json);
    tell_part(c, "response.content_part.added", false);
    buf_free(&json);
}

static void add(struct openai_choice *c, enum openai_item kind, const char *text, size_t n)
{
    struct openai_items *i = &c->items;
    struct buf *logprobs = &c->logprobs.tokens;
    open_item(c, kind);
    buf_put(&i->text, text, n);
    if (logprobs->len && kind == ITEM_TEXT) {
        buf_puts(&i->logprobs, i->logprobs.len ? "," : "");
        buf_put(&i->logprobs, logprobs->data, logprobs->len);
    }
    if (is_stream(c)) {
        struct buf *out = part_event(c, kinds[kind].delta);
        buf_puts(out, ",\"delta\":");
        buf_put_json(out, text, n);
        if (kind == ITEM_TEXT) {
            buf_puts(out, ",\"logprobs\":[");
            buf_put(out, logprobs->data, logprobs->len);
            buf_putc(out, ']');
        }
        event_end(out);
    }
    shape_logprobs_clear(&c->logprobs);
}

/* A call comes whole. */
static void add_call(struct openai_choice *c, const struct tool_call *call)
{
    struct buf json = {0};
    close_item(c, "completed");
    c->items.open = ITEM_CALL;
    if (is_stream(c)) {
        put_call(c, call, NULL, &json);
        tell_item(c, "response.output_item.added", &json);
        buf_free(&json);
        struct buf *out = part_event(c, kinds[ITEM_CALL].delta);
        buf_puts(out, ",\"delta\":");
        put_string(out, call->arguments);
        event_end(out);
        out = part_event(c, kinds[ITEM_CALL].done);
        put_function(call->name, false, out);
        buf_puts(out, ",\"arguments\":");
        put_string(out, call->arguments);
        event_end(out);
    }
    put_call(c, call, "completed", &json);
    end_item(c, &json);
}

/* ---- the API */

static void prepare(struct openai_answer *a)
{
    (void)a;
}

static void open_stream(struct openai_choice *c)
{
    struct openai_answer *a = c->answer;
    if (!a->x->streaming)
        http_stream_begin(a->x, 200, "text/event-stream; charset=utf-8");
    tell_response(a, "response.created", "in_progress", NULL);
    tell_response(a, "response.in_progress", "in_progress", NULL);
}

static void thought(struct openai_choice *c)
{
    struct buf *t = &c->thoughts.thought;
    add(c, ITEM_THOUGHT, t->data, t->len);
    buf_clear(t);
}

static void text(struct openai_choice *c, size_t n)
{
    add(c, ITEM_TEXT, openai_choice_shown(c)->data, n);
    openai_choice_take(c, n);
}

static void calls(struct openai_choice *c)
{
    for (int i = 0; i < c->tools.n_calls; i++)
        add_call(c, &c->tools.calls[i]);
    tool_reader_drop_calls(&c->tools);
    shape_logprobs_clear(&c->logprobs);
}

static void last(struct openai_choice *c)
{
    size_t n = openai_choice_shown(c)->len;
    if (c->thoughts.thought.len)
        thought(c);
    if (n)
        text(c, n);
    calls(c);
    if (!c->items.n && c->items.open == ITEM_NONE) /* it said nothing */
        open_item(c, ITEM_TEXT);
    close_item(c, status_of(c));
}

static void close_stream(struct openai_answer *a)
{
    const char *status = status_of(a->choices);
    tell_response(a, strcmp(status, "completed") == 0 ? "response.completed" : "response.incomplete", status, NULL);
    http_stream_end(a->x);
}

static void whole(struct openai_answer *a)
{
    struct buf out = {.limit = a->most};
    struct fault f;
    put_response(a, status_of(a->choices), NULL, &out);
    if (out.over)
        openai_answer_fault(a, openai_answer_too_large(&f));
    else
        front_json(a->x, &out);
    buf_free(&out);
}

static void fail(struct openai_answer *a, const struct fault *f)
{
    tell_response(a, "response.failed", "failed", f);
}

static const char *const names[][2] = {{"messages", "input"},       {"max_tokens", "max_output_tokens"},
                                       {"response_format", "text"}, {"reasoning_effort", "reasoning"},
                                       {"logprobs", "include"},     {NULL, NULL}};

const struct openai_api responses_api = {.route = ROUTE_CHAT,
                                         .id = "resp_",
                                         .gathers = true,
                                         .translate = responses_translate,
                                         .names = names,
                                         .prepare = prepare,
                                         .open = open_stream,
                                         .thought = thought,
                                         .text = text,
                                         .calls = calls,
                                         .last = last,
                                         .close = close_stream,
                                         .whole = whole,
                                         .fault = fail,
                                         .ping = ": ping\n\n"};
