#include "engine/serve/openai/frame.h"

#include <string.h>

#include "engine/base/mem.h"
#include "engine/serve/front/front.h"

static bool is_chat(const struct openai_answer *a)
{
    return a->params.route == ROUTE_CHAT;
}

static void put_string(struct buf *out, const char *s)
{
    buf_put_json(out, s, strlen(s));
}

/* {"id":...,"object":...,"created":...,"model":... */
static void put_envelope(const struct openai_answer *a, const char *object, struct buf *out)
{
    buf_puts(out, "{\"id\":");
    put_string(out, a->id);
    buf_printf(out, ",\"object\":\"%s\",\"created\":%lld,\"model\":", object, (long long)a->created_s);
    put_string(out, a->model);
}

static void frame_prepare(struct openai_answer *a)
{
    buf_puts(&a->head, "data: ");
    put_envelope(a, is_chat(a) ? "chat.completion.chunk" : "text_completion", &a->head);
    buf_puts(&a->head, ",\"choices\":[");
}

static struct shape_usage usage(const struct openai_answer *a, bool final)
{
    struct shape_usage u = {.n_prompt = a->n_prompt, .n_output = a->n_output, .n_cached = final ? 0 : -1};
    for (int i = 0; final && i < a->n_choices; i += a->params.n) /* a prompt counts once, however many choices it has */
        u.n_cached += a->choices[i].n_cached;
    u.n_thought = a->has_thoughts ? 0 : -1;
    for (int i = 0; a->has_thoughts && i < a->n_choices; i++)
        u.n_thought += a->choices[i].n_thought;
    return u;
}

static struct buf *frame_begin(struct openai_choice *c)
{
    struct openai_answer *a = c->answer;
    struct buf *out = http_stream_put(a->x);
    buf_put(out, a->head.data, a->head.len);
    buf_puts(out, "{\"index\":");
    buf_put_u64(out, (unsigned)c->index);
    return out;
}

static void frame_end(struct openai_choice *c, struct buf *out)
{
    buf_puts(out, "}]");
    if (c->answer->params.continuous_usage) {
        struct shape_usage u = usage(c->answer, false);
        buf_puts(out, ",\"usage\":");
        shape_put_usage(out, &u);
    }
    buf_puts(out, "}\n\n");
}

static const char *finish_reason(const struct openai_choice *c)
{
    if (c->ending == END_STOP)
        return c->tools.n_found ? "tool_calls" : "stop";
    return c->ending == END_LENGTH ? "length" : "abort";
}

static void put_stop_reason(const struct openai_choice *c, struct buf *out)
{
    buf_puts(out, ",\"stop_reason\":");
    if (c->scan.found >= 0)
        put_string(out, c->answer->params.stops.items[c->scan.found].text);
    else if (c->stop_id >= 0)
        buf_put_u64(out, (unsigned)c->stop_id);
    else
        buf_puts(out, "null");
}

/* Logprobs and token ids gathered since the last frame. */
static void put_extras(struct openai_choice *c, struct buf *out)
{
    const struct openai_answer *a = c->answer;
    buf_puts(out, ",\"logprobs\":");
    if (!c->logprobs.tokens.len)
        buf_puts(out, "null");
    else if (is_chat(a))
        shape_put_chat(out, &c->logprobs);
    else
        shape_put_completion(out, &c->logprobs);
    shape_logprobs_clear(&c->logprobs);
    if (a->params.return_token_ids) {
        buf_puts(out, ",\"token_ids\":");
        shape_put_ids(out, c->ids.ids, c->ids.len);
        c->ids.len = 0;
    }
}

static void put_prompt_ids(const struct openai_choice *c, struct buf *out)
{
    const struct openai_prompt *p = &c->answer->prompts.items[c->prompt];
    if (!c->answer->params.return_token_ids)
        return;
    buf_puts(out, ",\"prompt_token_ids\":");
    shape_put_ids(out, p->ids, (size_t)p->n);
}

static void frame_open(struct openai_choice *c)
{
    struct openai_answer *a = c->answer;
    if (!a->x->streaming)
        http_stream_begin(a->x, 200, "text/event-stream; charset=utf-8");
    if (!is_chat(a) && !a->params.return_token_ids)
        return;
    struct buf *out = frame_begin(c);
    buf_puts(out, is_chat(a) ? ",\"delta\":{\"role\":\"assistant\",\"content\":\"\"}" : ",\"text\":\"\"");
    put_prompt_ids(c, out);
    buf_puts(out, ",\"logprobs\":null,\"finish_reason\":null");
    frame_end(c, out);
}

static void frame_thought(struct openai_choice *c)
{
    struct buf *out = frame_begin(c), *thought = &c->thoughts.thought;
    buf_puts(out, ",\"delta\":{\"reasoning_content\":");
    buf_put_json(out, thought->data, thought->len);
    buf_putc(out, '}');
    put_extras(c, out);
    buf_puts(out, ",\"finish_reason\":null");
    frame_end(c, out);
    buf_clear(thought);
}

static void frame_text(struct openai_choice *c, size_t n)
{
    bool chat = is_chat(c->answer);
    struct buf *out = frame_begin(c), *text = openai_choice_shown(c);
    buf_puts(out, chat ? ",\"delta\":{\"content\":" : ",\"text\":");
    buf_put_json(out, text->data ? text->data : "", n);
    if (chat)
        buf_putc(out, '}');
    put_extras(c, out);
    buf_puts(out, ",\"finish_reason\":null");
    frame_end(c, out);
    openai_choice_take(c, n);
}

/* [{"index":0,"id":...,"type":"function","function":{"name":...,"arguments":...}},...]; an index is for streams. */
static void put_calls(struct openai_choice *c, bool with_index, struct buf *out)
{
    int before = c->tools.n_found - c->tools.n_calls;
    for (int i = 0; i < c->tools.n_calls; i++) {
        const struct tool_call *call = &c->tools.calls[i];
        char id[TOOL_ID_BYTES];
        tool_call_id(id, c->answer->call_id, c->index, before + i);
        buf_puts(out, i ? ",{" : "[{");
        if (with_index)
            buf_printf(out, "\"index\":%d,", before + i);
        buf_printf(out, "\"id\":\"%s\",\"type\":\"function\",\"function\":{\"name\":", id);
        put_string(out, call->name);
        buf_puts(out, ",\"arguments\":");
        put_string(out, call->arguments);
        buf_puts(out, "}}");
    }
    buf_putc(out, ']');
}

static void frame_calls(struct openai_choice *c)
{
    struct buf *out = frame_begin(c);
    buf_puts(out, ",\"delta\":{\"tool_calls\":");
    put_calls(c, true, out);
    buf_putc(out, '}');
    put_extras(c, out);
    buf_puts(out, ",\"finish_reason\":null");
    frame_end(c, out);
    tool_reader_drop_calls(&c->tools);
}

static void frame_last(struct openai_choice *c)
{
    size_t n = openai_choice_shown(c)->len;
    if (c->thoughts.thought.len)
        frame_thought(c);
    if (n || (!c->tools.n_calls && (c->logprobs.tokens.len || c->ids.len)))
        frame_text(c, n);
    if (c->tools.n_calls)
        frame_calls(c);
    struct buf *out = frame_begin(c);
    buf_puts(out, is_chat(c->answer) ? ",\"delta\":{},\"logprobs\":null" : ",\"text\":\"\",\"logprobs\":null");
    buf_printf(out, ",\"finish_reason\":\"%s\"", finish_reason(c));
    put_stop_reason(c, out);
    frame_end(c, out);
}

static void frame_close(struct openai_answer *a)
{
    struct buf *out = http_stream_put(a->x);
    if (a->params.include_usage || a->force_usage) {
        struct shape_usage u = usage(a, true);
        buf_put(out, a->head.data, a->head.len);
        buf_puts(out, "],\"usage\":");
        shape_put_usage(out, &u);
        buf_puts(out, "}\n\n");
    }
    buf_puts(out, "data: [DONE]\n\n");
    http_stream_end(a->x);
}

static void put_choice(struct openai_choice *c, struct buf *out)
{
    const struct openai_answer *a = c->answer;
    const struct buf *shown = openai_choice_shown(c);
    const char *text = shown->data ? shown->data : "";
    buf_printf(out, "{\"index\":%d,", c->index);
    if (is_chat(a)) {
        buf_puts(out, "\"message\":{\"role\":\"assistant\",\"content\":");
        if (!shown->len && (c->tools.n_calls || c->thoughts.thought.len))
            buf_puts(out, "null");
        else
            buf_put_json(out, text, shown->len);
        buf_puts(out, ",\"refusal\":null");
        if (c->thoughts.thought.len) {
            buf_puts(out, ",\"reasoning_content\":");
            buf_put_json(out, c->thoughts.thought.data, c->thoughts.thought.len);
        }
        if (c->tools.n_calls) {
            buf_puts(out, ",\"tool_calls\":");
            put_calls(c, false, out);
        }
        buf_putc(out, '}');
    } else {
        buf_puts(out, "\"text\":");
        buf_put_json(out, text, shown->len);
    }
    put_extras(c, out);
    if (!is_chat(a)) {
        put_prompt_ids(c, out);
        if (c->prompt_logprobs.len) {
            buf_puts(out, ",\"prompt_logprobs\":");
            buf_put(out, c->prompt_logprobs.data, c->prompt_logprobs.len);
        }
    }
    buf_printf(out, ",\"finish_reason\":\"%s\"", finish_reason(c));
    put_stop_reason(c, out);
    buf_putc(out, '}');
}

static void frame_whole(struct openai_answer *a)
{
    struct buf out = {.limit = a->most};
    struct shape_usage u = usage(a, true);
    put_envelope(a, is_chat(a) ? "chat.completion" : "text_completion", &out);
    buf_puts(&out, ",\"choices\":[");
    for (int i = 0; i < a->n_choices; i++) {
        if (i)
            buf_putc(&out, ',');
        put_choice(&a->choices[i], &out);
    }
    buf_puts(&out, "],\"usage\":");
    shape_put_usage(&out, &u);
    if (is_chat(a)) {
        put_prompt_ids(&a->choices[0], &out);
        if (a->choices[0].prompt_logprobs.len) {
            buf_puts(&out, ",\"prompt_logprobs\":");
            buf_put(&out, a->choices[0].prompt_logprobs.data, a->choices[0].prompt_logprobs.len);
        }
    }
    buf_putc(&out, '}');
    if (out.over) {
        struct fault f;
        openai_answer_fault(a, openai_answer_too_large(&f));
    } else {
        front_json(a->x, &out);
    }
    buf_free(&out);
}

static void frame_fault(struct openai_answer *a, const struct fault *f)
{
    struct buf *out = http_stream_put(a->x);
    buf_puts(out, "data: ");
    fault_put(f, out);
    buf_puts(out, "\n\n");
}

#define FRAMES                                                                                                         \
    .prepare = frame_prepare, .open = frame_open, .thought = frame_thought, .text = frame_text, .calls = frame_calls,  \
    .last = frame_last, .close = frame_close, .whole = frame_whole, .fault = frame_fault, .ping = ": ping\n\n"

const struct openai_api openai_chat_api = {.route = ROUTE_CHAT, .id = "chatcmpl-", FRAMES},
                        openai_completions_api = {.route = ROUTE_COMPLETIONS, .id = "cmpl-", FRAMES};
