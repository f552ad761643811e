#include "engine/serve/openai/prompt.h"

#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/serve/openai/offer.h"

enum { DECODE_WORK = 16 /* of a token, in bytes of plain work */ };

/* ---- messages */

static int put_parts(const struct json *parts, const char *param, struct buf *text, struct fault *f)
{
    bool first = true;
    for (const struct json *part = json_first(parts); part; part = json_next(part)) {
        const char *type = json_text(json_find(part, "type")), *s = json_text(json_find(part, "text"));
        if (json_type(part) == JSON_STRING)
            s = json_text(part);
        else if (type && strcmp(type, "refusal") == 0)
            s = json_text(json_find(part, "refusal"));
        else if (!type ||
                 (strcmp(type, "text") != 0 && strcmp(type, "input_text") != 0 && strcmp(type, "output_text") != 0))
            return fault_set(f, 400, "unsupported_content", param,
                             "content parts must be {\"type\":\"text\",\"text\":...}; '%.40s' is not "
                             "supported by this model",
                             type ? type : json_type_name(part));
        if (!s)
            return fault_set(f, 400, "invalid_type", param, "a text part of 'content' has no string 'text'");
        if (!first)
            buf_putc(text, '\n');
        buf_puts(text, s);
        first = false;
    }
    return 0;
}

int openai_content_text(const struct json *c, const char *param, struct buf *text, struct fault *f)
{
    if (!c || json_type(c) == JSON_NULL)
        return 0;
    if (json_type(c) == JSON_ARRAY)
        return put_parts(c, param, text, f);
    if (json_type(c) != JSON_STRING)
        return fault_set(f, 400, "invalid_type", param, "'content' must be a string or an array of parts, not %s",
                         json_type_name(c));
    buf_puts(text, json_text(c));
    return 0;
}

static void put_member(struct buf *out, const char *key)
{
    if (out->data[out->len - 1] != '{')
        buf_putc(out, ',');
    buf_put_json(out, key, strlen(key));
    buf_putc(out, ':');
}

/* Templates expect a call's arguments as an object; clients send them as a string. */
static void put_function(struct buf *out, const struct json *function)
{
    buf_putc(out, '{');
    for (const struct json *v = json_first(function); v; v = json_next(v)) {
        put_member(out, json_key(v));
        const char *s = strcmp(json_key(v), "arguments") == 0 ? json_text(v) : NULL;
        struct json *parsed = s ? json_parse(s, strlen(s), NULL, NULL) : NULL;
        json_write(out, parsed && json_type(parsed) == JSON_OBJECT ? parsed : v, NULL);
        json_free(parsed);
    }
    buf_putc(out, '}');
}

static void put_tool_calls(struct buf *out, const struct json *calls)
{
    buf_putc(out, '[');
    for (const struct json *call = json_first(calls); call; call = json_next(call)) {
        if (call != json_first(calls))
            buf_putc(out, ',');
        if (json_type(call) != JSON_OBJECT) {
            json_write(out, call, NULL);
            continue;
        }
        buf_putc(out, '{');
        for (const struct json *v = json_first(call); v; v = json_next(v)) {
            put_member(out, json_key(v));
            if (strcmp(json_key(v), "function") == 0 && json_type(v) == JSON_OBJECT)
                put_function(out, v);
            else
                json_write(out, v, NULL);
        }
        buf_putc(out, '}');
    }
    buf_putc(out, ']');
}

static int put_message(struct buf *out, const struct json *m, size_t i, struct fault *f)
{
    const char *role = json_text(json_find(m, "role"));
    if (json_type(m) != JSON_OBJECT || !role)
        return fault_set(f, 400, "invalid_type", "messages", "'messages'[%zu] must be an object with a string 'role'",
                         i);
    struct buf text = {0};
    int rc = openai_content_text(json_find(m, "content"), "messages", &text, f);
    /* developer is the newer name of system; templates know the older one. */
    role = strcmp(role, "developer") == 0 ? "system" : role;
    buf_puts(out, "{\"role\":");
    buf_put_json(out, role, strlen(role));
    put_member(out, "content");
    buf_put_json(out, text.data ? text.data : "", text.len);
    buf_free(&text);
    for (const struct json *v = json_first(m); v && !rc; v = json_next(v)) {
        const char *key = json_key(v);
        if (strcmp(key, "role") == 0 || strcmp(key, "content") == 0)
            continue;
        bool thought = strcmp(key, "reasoning") == 0 && !json_find(m, "reasoning_content"); /* vLLM's newer name */
        put_member(out, thought ? "reasoning_content" : key);
        if (strcmp(key, "tool_calls") == 0 && json_type(v) == JSON_ARRAY)
            put_tool_calls(out, v);
        else
            json_write(out, v, NULL);
    }
    buf_putc(out, '}');
    return rc;
}

static int put_messages(struct buf *out, const struct json *messages, struct fault *f)
{
    if (json_type(messages) != JSON_ARRAY || !json_first(messages))
        return fault_set(f, 400, "invalid_type", "messages", "'messages' must be an array of at least one message");
    size_t i = 0;
    put_member(out, "messages");
    buf_putc(out, '[');
    for (const struct json *m = json_first(messages); m; m = json_next(m), i++) {
        if (i)
            buf_putc(out, ',');
        TRY(put_message(out, m, i, f));
    }
    buf_putc(out, ']');
    return 0;
}

/* ---- the template's context */

static void put_copy(struct buf *out, const struct json *body, const char *key, bool use)
{
    const struct json *v = use ? json_find(body, key) : NULL;
    put_member(out, key);
    if (v)
        json_write(out, v, NULL);
    else
        buf_puts(out, "null");
}

static void put_string(struct buf *out, const char *key, const char *s)
{
    put_member(out, key);
    buf_put_json(out, s, strlen(s));
}

static int put_context(struct buf *out, const struct front_text *t, const struct openai_params *p,
                       const struct json *body, struct fault *f)
{
    const struct json *kwargs = json_find(body, "chat_template_kwargs");
    if (kwargs && json_type(kwargs) != JSON_OBJECT && json_type(kwargs) != JSON_NULL)
        return fault_set(f, 400, "invalid_type", "chat_template_kwargs",
                         "'chat_template_kwargs' must be an object, not %s", json_type_name(kwargs));
    buf_putc(out, '{');
    if (strcmp(json_member_text(body, "reasoning_effort"), "none") == 0) {
        put_member(out, "enable_thinking"); /* what templates of models that may think or not ask for */
        buf_puts(out, "false");
    }
    for (const struct json *v = json_type(kwargs) == JSON_OBJECT ? json_first(kwargs) : NULL; v; v = json_next(v)) {
        put_member(out, json_key(v));
        json_write(out, v, NULL);
    }
    /* Of equal keys the last one counts: what follows cannot be overridden. */
    put_copy(out, body, "tools", openai_wants_tools(body));
    if (json_find(body, "documents"))
        put_copy(out, body, "documents", true);
    if (json_find(body, "reasoning_effort"))
        put_copy(out, body, "reasoning_effort", true);
    put_member(out, "add_generation_prompt");
    buf_puts(out, p->add_generation_prompt ? "true" : "false");
    put_string(out, "bos_token", t->bos);
    put_string(out, "eos_token", t->eos);
    TRY(put_messages(out, json_find(body, "messages"), f));
    buf_putc(out, '}');
    return 0;
}

/* s[0..n) backwards; NULL: no memory. */
static char *backwards(const char *s, size_t n)
{
    char *out = mem_try(n ? n : 1);
    for (size_t i = 0; out && i < n; i++)
        out[i] = s[n - 1 - i];
    return out;
}

/* Where s[0..n) stands last in text. memmem is linear, so the last place is found backwards: looking on behind each
 * place that it finds from the front would cost the product of both lengths when they are all one letter. */
static int find_last(const struct buf *text, const char *s, size_t n, const char **found, struct fault *f)
{
    char *rev_text = backwards(text->data, text->len), *rev_s = backwards(s, n), *at = NULL;
    bool ok = rev_text && rev_s;
    if (ok)
        at = memmem(rev_text, text->len, rev_s, n);
    *found = at ? text->data + text->len - (size_t)(at - rev_text) - n : NULL;
    mem_free(rev_text);
    mem_free(rev_s);
    return ok ? 0 : fault_set(f, 503, "overloaded", NULL, "no memory to read the messages");
}

/* continue_final_message: the text ends where the last message's text ends. */
static int cut_after_final(const struct json *context, struct buf *out, struct fault *f)
{
    const struct json *last = NULL;
    for (const struct json *m = json_first(json_find(context, "messages")); m; m = json_next(m))
        last = m;
    const char *s = json_text(json_find(last, "content")), *at = NULL;
    size_t n = s ? strlen(s) : 0, lead = s ? strspn(s, " \t\r\n") : 0;
    while (n > lead && strchr(" \t\r\n", s[n - 1]))
        n--;
    n -= n > lead ? lead : n;
    if (n)
        TRY(find_last(out, s + lead, n, &at, f));
    if (!at)
        return fault_set(f, 400, "invalid_value", "continue_final_message",
                         "the last message has no text, or the chat template does not show it as it is: it "
                         "cannot be continued");
    out->len = (size_t)(at - out->data) + n;
    out->data[out->len] = 0;
    return 0;
}

static int render(const struct openai_reading *r, const struct json *context, struct buf *out, struct fault *f)
{
    struct err e = {0};
    struct chat_input in = {.context = context, .now = clock_wall_seconds(), .cancel = r->cancel};
    if (chat_render(r->text->chat, &in, out, &e))
        return fault_set(f, 400, "template_error", "messages", "the chat template: %s", e.text);
    return r->params->continue_final ? cut_after_final(context, out, f) : 0;
}

int openai_render(const struct openai_reading *r, const struct json *body, struct buf *out, struct fault *f)
{
    if (!r->text->chat)
        return fault_set(
            f, 400, "no_chat_template", "messages",
            "this model has no chat template; use /v1/completions, or start the server with --chat-template");
    if (openai_wants_tools(body) && !chat_takes(r->text->chat, "tools"))
        return fault_set(f, 400, "unsupported_parameter", "tools",
                         "this model's chat template shows the model no tools, so it could not call one: leave 'tools' "
                         "away, or start the server with a "
                         "--chat-template that has them");
    struct buf text = {0};
    struct err e = {0};
    int rc = put_context(&text, r->text, r->params, body, f);
    struct json *context =
        rc ? NULL : json_parse(text.data, text.len, &(struct json_limits){.bytes = (size_t)1 << 30, .depth = 80}, &e);
    buf_free(&text);
    if (!rc && !context)
        rc = fault_set(f, 400, "invalid_value", "messages", "the messages cannot be given to the chat template: %s",
                       e.text);
    if (!rc)
        rc = render(r, context, out, f);
    json_free(context);
    return rc;
}

/* ---- token ids */

int openai_encode(const struct openai_reading *r, const struct buf *text, bool add_special, struct tokens *out,
                  struct fault *f)
{
    const struct front_text *t = r->text;
    struct err e = {0};
    /* Past the model's length only the count is of interest, and that only within reason. */
    struct tokenize_how how = {.flags = TOKENIZE_SPECIAL | (add_special ? TOKENIZE_BOS : 0),
                               .max_tokens = (size_t)t->max_model_len * 16 + 65536,
                               .cancel = r->cancel};
    if (tokenizer_encode(t->tokenizer, text->data ? text->data : "", text->len, how, out, &e))
        return fault_set(f, 400, "context_length_exceeded", "prompt",
                         "the prompt cannot be used: %s; the model's length is %d tokens", e.text, t->max_model_len);
    return 0;
}

int openai_decode(const struct openai_reading *r, const struct tokens *ids, bool skip_special, struct buf *out,
                  struct fault *f)
{
    struct detok d;
    struct err e = {0};
    detok_init(&d, r->text->tokenizer, skip_special);
    for (size_t i = 0; i < ids->len; i++) {
        size_t before = out->len;
        detok_put(&d, ids->ids[i], out);
        if (cancel_check(r->cancel, out->len - before + DECODE_WORK, &e))
            return fault_set(f, 400, "too_long", NULL, "the text of these tokens: %s", e.text);
    }
    detok_flush(&d, out);
    return 0;
}

static int too_long(const struct front_text *t, const struct openai_params *p, int n, int max_tokens, struct fault *f)
{
    const char *param = p->route == ROUTE_CHAT ? "messages" : "prompt";
    if (max_tokens > 0 && n < t->max_model_len)
        fault_set(f, 400, "context_length_exceeded", param,
                  "This model's maximum context length is %d tokens. However, you requested %lld tokens (%d "
                  "in the %s, %d in the completion). "
                  "Please reduce the length of the %s or max_tokens to %d.",
                  t->max_model_len, (long long)n + max_tokens, n, param, max_tokens, param, t->max_model_len - n);
    else
        fault_set(f, 400, "context_length_exceeded", param,
                  "This model's maximum context length is %d tokens. However, your %s resulted in %d "
                  "tokens%s. Please reduce its length.",
                  t->max_model_len, param, n, n == t->max_model_len ? " and leaves no room for a completion" : "");
    f->n_prompt = n;
    f->n_ctx = t->max_model_len;
    return E_INPUT;
}

/* Cuts and checks the length; takes the ids. */
static int add_prompt(const struct front_text *t, const struct openai_params *p, struct tokens *ids,
                      struct openai_prompts *out, struct fault *f)
{
    int n = (int)ids->len, keep = p->truncate;
    if (keep < 0)
        keep = t->max_model_len - (p->max_tokens > 0 && p->max_tokens < t->max_model_len ? p->max_tokens : 1);
    if (keep > 0 && n > keep) {
        memmove(ids->ids, ids->ids + (n - keep), (size_t)keep * sizeof *ids->ids);
        ids->len = (size_t)(n = keep);
    }
    if (n == 0)
        return fault_set(f, 400, "invalid_value", p->route == ROUTE_CHAT ? "messages" : "prompt",
                         "the prompt is empty");
    int room = t->max_model_len - n, max_tokens = p->max_tokens < 0 ? room : p->max_tokens;
    if (room < max_tokens || room < 0 || (max_tokens == 0 && p->max_tokens != 0))
        return too_long(t, p, n, p->max_tokens, f);
    struct openai_prompt *q = &out->items[out->n++];
    *q = (struct openai_prompt){.ids = ids->ids, .n = n, .max_tokens = max_tokens, .open_ended = p->max_tokens < 0};
    *ids = (struct tokens){0};
    return 0;
}

static int add_text(const struct openai_reading *r, const struct buf *text, struct openai_prompts *out, struct fault *f)
{
    struct tokens ids = {0};
    int rc = openai_encode(r, text, r->params->add_special, &ids, f);
    if (!rc)
        rc = add_prompt(r->text, r->params, &ids, out, f);
    tokens_free(&ids);
    return rc;
}

static int add_ids(const struct openai_reading *r, const struct json *list, struct openai_prompts *out, struct fault *f)
{
    struct tokens ids = {0};
    int rc = openai_read_ids(list, "prompt", r->text->n_vocab, SIZE_MAX, &ids, f);
    if (!rc)
        rc = add_prompt(r->text, r->params, &ids, out, f);
    tokens_free(&ids);
    return rc;
}

static int add_one(const struct openai_reading *r, const struct json *v, struct openai_prompts *out, struct fault *f)
{
    if (json_type(v) == JSON_ARRAY)
        return add_ids(r, v, out, f);
    if (json_type(v) != JSON_STRING)
        return fault_set(f, 400, "invalid_type", "prompt",
                         "'prompt' must be a string, an array of strings, of token ids, or of arrays of "
                         "token ids; it has %s",
                         json_type_name(v));
    struct buf text = {.data = (char *)(uintptr_t)json_text(v), .len = strlen(json_text(v))}; /* read only */
    return add_text(r, &text, out, f);
}

static int read_completions(const struct openai_reading *r, const struct json *body, struct openai_prompts *out,
                            struct fault *f)
{
    const struct json *v = json_find(body, "prompt"), *first = json_first(v);
    if (!v || json_type(v) == JSON_NULL)
        return fault_set(f, 400, "missing_parameter", "prompt", "'prompt' is missing");
    bool many = json_type(v) == JSON_ARRAY && first && json_type(first) != JSON_NUMBER;
    size_t n = many ? json_count(v) : 1;
    if (n > OPENAI_MAX_PROMPTS)
        return fault_set(f, 400, "invalid_value", "prompt", "'prompt' has %zu entries; at most %d are accepted", n,
                         OPENAI_MAX_PROMPTS);
    out->items = mem_new_array(n, sizeof *out->items);
    if (!many)
        return add_one(r, v, out, f);
    for (; first; first = json_next(first))
        TRY(add_one(r, first, out, f));
    return 0;
}

static int read_echo(const struct openai_reading *r, struct openai_prompts *out, struct fault *f)
{
    for (int i = 0; r->params->echo && i < out->n; i++) {
        struct openai_prompt *q = &out->items[i];
        struct buf text = {0};
        const struct tokens ids = {.ids = q->ids, .len = (size_t)q->n};
        int rc = openai_decode(r, &ids, r->params->skip_special, &text, f);
        q->n_echo = text.len;
        q->echo = buf_take(&text);
        TRY(rc);
    }
    return 0;
}

int openai_prompts_read(const struct openai_reading *r, const struct json *body, struct openai_prompts *out,
                        struct fault *f)
{
    *out = (struct openai_prompts){0};
    if (r->params->route == ROUTE_COMPLETIONS) {
        TRY(read_completions(r, body, out, f));
        return read_echo(r, out, f);
    }
    struct buf text = {0};
    out->items = mem_new_array(1, sizeof *out->items);
    int rc = openai_render(r, body, &text, f);
    if (!rc)
        rc = add_text(r, &text, out, f);
    buf_free(&text);
    return rc;
}

void openai_prompts_free(struct openai_prompts *ps)
{
    for (int i = 0; i < ps->n; i++) {
        mem_free(ps->items[i].ids);
        mem_free(ps->items[i].echo);
    }
    mem_free(ps->items);
    *ps = (struct openai_prompts){0};
}
