#include "engine/serve/messages/answer.h"

#include <string.h>

#include "engine/serve/front/front.h"
#include "engine/serve/messages/request.h"
#include "engine/serve/openai/answer.h"

static bool is_stream(const struct openai_choice *c)
{
    return c->answer->params.stream;
}

static void put_string(struct buf *out, const char *s)
{
    buf_put_json(out, s, strlen(s));
}

/* ---- what a message is made of */

static const struct {
    const char *type, *text, *delta; /* of a block; the member that its text is; of what it grows by */
} kinds[] = {
    [ITEM_THOUGHT] = {"thinking", "thinking", "thinking_delta"},
    [ITEM_TEXT] = {"text", "text", "text_delta"},
};

/* A block of text or thoughts. Nobody signs thoughts here. */
static void put_block(enum openai_item kind, const struct buf *text, struct buf *out)
{
    buf_printf(out, "{\"type\":\"%s\",\"%s\":", kinds[kind].type, kinds[kind].text);
    buf_put_json(out, text->data ? text->data : "", text->len);
    buf_puts(out, kind == ITEM_THOUGHT ? ",\"signature\":\"\"}" : "}");
}

static void put_call(const struct openai_choice *c, const struct tool_call *call, bool whole, struct buf *out)
{
    char id[TOOL_ID_BYTES];
    tool_call_id(id, c->answer->call_id, c->index, c->items.n);
    buf_printf(out, "{\"type\":\"tool_use\",\"id\":\"%s\",\"name\":", id);
    put_string(out, call->name);
    buf_printf(out, ",\"input\":%s}", whole ? call->arguments : "{}");
}

static void put_usage(const struct openai_choice *c, struct buf *out)
{
    buf_printf(out,
               "{\"input_tokens\":%d,\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":%d,"
               "\"output_tokens\":%d}",
               c->answer->n_prompt - c->n_cached, c->n_cached, c->n_output);
}

static void put_stop(const struct openai_choice *c, struct buf *out)
{
    bool by_text = c->scan.found >= 0;
    buf_printf(out, "\"stop_reason\":\"%s\",\"stop_sequence\":",
               c->ending == END_LENGTH ? "max_tokens"
               : c->tools.n_found      ? "tool_use"
               : by_text               ? "stop_sequence"
                                       : "end_turn");
    if (by_text && c->ending != END_LENGTH && !c->tools.n_found)
        put_string(out, c->answer->params.stops.items[c->scan.found].text);
    else
        buf_puts(out, "null");
}

/* Up to its content. */
static void put_head(const struct openai_answer *a, struct buf *out)
{
    buf_puts(out, "{\"id\":");
    put_string(out, a->id);
    buf_puts(out, ",\"type\":\"message\",\"role\":\"assistant\",\"model\":");
    put_string(out, a->model);
    buf_puts(out, ",\"content\":[");
}

/* ---- events of a stream */

static struct buf *event_begin(struct openai_answer *a, const char *type)
{
    struct buf *out = http_stream_put(a->x);
    buf_printf(out, "event: %s\ndata: {\"type\":\"%s\"", type, type);
    return out;
}

static void event_end(struct buf *out)
{
    buf_puts(out, "}\n\n");
}

/* Of the open block. */
static struct buf *block_event(struct openai_choice *c, const char *type)
{
    struct buf *out = event_begin(c->answer, type);
    buf_printf(out, ",\"index\":%d", c->items.n);
    return out;
}

static void tell_delta(struct openai_choice *c, const char *type, const char *member, const char *text, size_t n)
{
    struct buf *out = block_event(c, "content_block_delta");
    buf_printf(out, ",\"delta\":{\"type\":\"%s\",\"%s\":", type, member);
    buf_put_json(out, text, n);
    buf_putc(out, '}');
    event_end(out);
}

/* ---- blocks as they come */

static void close_block(struct openai_choice *c)
{
    struct openai_items *i = &c->items;
    if (i->open == ITEM_NONE)
        return;
    if (is_stream(c)) {
        event_end(block_event(c, "content_block_stop"));
    } else {
        buf_puts(&i->done, i->done.len ? "," : "");
        put_block(i->open, &i->text, &i->done);
        buf_clear(&i->text);
    }
    i->open = ITEM_NONE;
    i->n++;
}

static void add(struct openai_choice *c, enum openai_item kind, const char *text, size_t n)
{
    static const struct buf nothing;
    if (c->items.open != kind) {
        close_block(c);
        c->items.open = kind;
        if (is_stream(c)) {
            struct buf *out = block_event(c, "content_block_start");
            buf_puts(out, ",\"content_block\":");
            put_block(kind, &nothing, out);
            event_end(out);
        }
    }
    if (is_stream(c))
        tell_delta(c, kinds[kind].delta, kinds[kind].text, text, n);
    else
        buf_put(&c->items.text, text, n);
}

/* A call comes whole. */
static void add_call(struct openai_choice *c, const struct tool_call *call)
{
    struct openai_items *i = &c->items;
    close_block(c);
    if (is_stream(c)) {
        struct buf *out = block_event(c, "content_block_start");
        buf_puts(out, ",\"content_block\":");
        put_call(c, call, false, out);
        event_end(out);
        tell_delta(c, "input_json_delta", "partial_json", call->arguments, strlen(call->arguments));
        event_end(block_event(c, "content_block_stop"));
    } else {
        buf_puts(&i->done, i->done.len ? "," : "");
        put_call(c, call, true, &i->done);
    }
    i->n++;
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
    struct buf *out = event_begin(a, "message_start");
    buf_puts(out, ",\"message\":");
    put_head(a, out);
    buf_puts(out, "],\"stop_reason\":null,\"stop_sequence\":null,\"usage\":");
    put_usage(c, out);
    buf_putc(out, '}');
    event_end(out);
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
}

static void last(struct openai_choice *c)
{
    size_t n = openai_choice_shown(c)->len;
    if (c->thoughts.thought.len)
        thought(c);
    if (n)
        text(c, n);
    calls(c);
    close_block(c);
}

static void close_stream(struct openai_answer *a)
{
    struct openai_choice *c = a->choices;
    struct buf *out = event_begin(a, "message_delta");
    buf_puts(out, ",\"delta\":{");
    put_stop(c, out);
    buf_puts(out, "},\"usage\":");
    put_usage(c, out);
    event_end(out);
    event_end(event_begin(a, "message_stop"));
    http_stream_end(a->x);
}

static void whole(struct openai_answer *a)
{
    const struct openai_choice *c = a->choices;
    struct buf out = {.limit = a->most};
    struct fault f;
    put_head(a, &out);
    buf_put(&out, c->items.done.data, c->items.done.len);
    buf_puts(&out, "],");
    put_stop(c, &out);
    buf_puts(&out, ",\"usage\":");
    put_usage(c, &out);
    buf_putc(&out, '}');
    if (out.over)
        openai_answer_fault(a, openai_answer_too_large(&f));
    else
        front_json(a->x, &out);
    buf_free(&out);
}

static void fail(struct openai_answer *a, const struct fault *f)
{
    struct buf *out = http_stream_put(a->x);
    buf_puts(out, "event: error\ndata: ");
    fault_put_message(f, out);
    buf_puts(out, "\n\n");
}

static const char *const names[][2] = {{"stop", "stop_sequences"},
                                       {"response_format", "output_config"},
                                       {"reasoning_effort", "output_config"},
                                       {NULL, NULL}};

const struct openai_api messages_api = {.route = ROUTE_CHAT,
                                        .id = "msg_",
                                        .gathers = true,
                                        .translate = messages_translate,
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
                                        .ping = "event: ping\ndata: {\"type\":\"ping\"}\n\n"};
