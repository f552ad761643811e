#include "engine/serve/messages/request.h"

#include <string.h>

#include "engine/serve/openai/offer.h"
#include "engine/serve/openai/prompt.h"
#include "engine/serve/openai/turns.h"

static const char chats[] = "it is a field of /v1/chat/completions, not of this route";

static const struct offer_refusal refused[] = {
    {"container", "this server runs no code", 0},
    {"mcp_servers", "this server calls no others; give the client's tools in 'tools'", 0},
    {"n", chats, 1},
    {"best_of", chats, 1},
    {"echo", chats, 0},
    {"stop", "it is called stop_sequences here", 0},
    {"max_completion_tokens", "it is called max_tokens here", 0},
    {"response_format", "it is called output_config.format here", 0},
    {"reasoning_effort", "it is called output_config.effort here", 0},
    {"logprobs", chats, 0},
    {"prompt_logprobs", chats, 0},
    {"return_token_ids", chats, 0},
    {"return_tokens_as_token_ids", chats, 0},
    {NULL, NULL, 0},
};

/* Fields that are translated, or say nothing to this server: all others are those of chat. */
static const char *const own[] = {"messages",
                                  "system",
                                  "stop_sequences",
                                  "tools",
                                  "tool_choice",
                                  "thinking",
                                  "chat_template_kwargs",
                                  "output_config",
                                  "output_format",
                                  "context_management",
                                  "cache_control",
                                  "inference_geo",
                                  "stream_options"};

static bool is_given(const struct json *v)
{
    return json_type(v) != JSON_NULL;
}

static bool is_type(const struct json *v, const char *type)
{
    return strcmp(json_member_text(v, "type"), type) == 0;
}

static void put_copy(struct buf *out, const char *key, const struct json *v)
{
    if (!is_given(v))
        return;
    buf_putc(out, ',');
    buf_put_json(out, key, strlen(key));
    buf_putc(out, ':');
    json_write(out, v, NULL);
}

static int bad(struct fault *f, const char *param, const char *why)
{
    return fault_set(f, 400, "invalid_type", param, "'%s' %s", param, why);
}

/* ---- messages */

/* One block's text, on a line of its own. */
static int add_text(const struct json *block, struct buf *text, struct fault *f)
{
    const char *s = json_text(json_find(block, "text"));
    if (!s)
        return bad(f, "messages", "has a text block without a string 'text'");
    buf_puts(text, text->len ? "\n" : "");
    buf_puts(text, s);
    return 0;
}

static int not_offered(const struct json *block, struct fault *f)
{
    const char *type = json_member_text(block, "type");
    return fault_set(f, 400, "unsupported_content", "messages",
                     "content blocks are of type text, thinking, tool_use and tool_result; '%.40s' is not supported by "
                     "this model",
                     *type ? type : "none");
}

static int take_result(struct turns *t, const struct json *block, struct fault *f)
{
    const char *id = json_text(json_find(block, "tool_use_id"));
    struct buf text = {0};
    if (!id)
        return bad(f, "messages", "has a tool_result block without a string 'tool_use_id'");
    int rc = openai_content_text(json_find(block, "content"), "messages", &text, f);
    if (!rc)
        turns_result(t, id, &text);
    buf_free(&text);
    return rc;
}

static int take_call(struct turns *t, const struct json *block, struct fault *f)
{
    const char *id = json_text(json_find(block, "id")), *name = json_text(json_find(block, "name"));
    const struct json *input = json_find(block, "input");
    struct buf arguments = {0};
    if (!id || !name || json_type(input) != JSON_OBJECT)
        return bad(f, "messages", "has a tool_use block without the strings 'id' and 'name' and the object 'input'");
    json_write(&arguments, input, &(struct json_style){.spaced = true});
    turns_called(t, id, name, arguments.data);
    buf_free(&arguments);
    return 0;
}

/* Results come before what the user says beside them. */
static int take_users(struct turns *t, const struct json *blocks, const char *role, struct fault *f)
{
    struct buf text = {0};
    bool any = false;
    int rc = 0;
    for (const struct json *b = json_first(blocks); b && !rc; b = json_next(b)) {
        if (is_type(b, "tool_result")) {
            rc = take_result(t, b, f);
        } else if (is_type(b, "text")) {
            rc = add_text(b, &text, f);
            any = true;
        } else {
            rc = not_offered(b, f);
        }
    }
    if (!rc && any)
        turns_message(t, role, &text);
    buf_free(&text);
    return rc;
}

/* What the model thought comes before what it said, and that before what it called. */
static int take_models(struct turns *t, const struct json *blocks, struct fault *f)
{
    struct buf text = {0};
    int rc = 0;
    for (const struct json *b = json_first(blocks); b && !rc; b = json_next(b)) {
        if (is_type(b, "thinking"))
            turns_thought(t, json_member_text(b, "thinking"));
        else if (is_type(b, "text"))
            rc = add_text(b, &text, f);
        else if (!is_type(b, "tool_use") && !is_type(b, "redacted_thinking")) /* which is nobody's here */
            rc = not_offered(b, f);
    }
    if (!rc && text.len)
        turns_said(t, &text);
    buf_free(&text);
    for (const struct json *b = json_first(blocks); b && !rc; b = json_next(b))
        if (is_type(b, "tool_use"))
            rc = take_call(t, b, f);
    return rc;
}

static int take_message(struct turns *t, const struct json *m, struct fault *f)
{
    const char *role = json_text(json_find(m, "role"));
    const struct json *content = json_find(m, "content");
    if (!role || (strcmp(role, "user") != 0 && strcmp(role, "assistant") != 0 && strcmp(role, "system") != 0))
        return bad(f, "messages", "must be an array of objects whose 'role' is \"user\" or \"assistant\"");
    bool models = strcmp(role, "assistant") == 0;
    if (json_type(content) == JSON_ARRAY)
        return models ? take_models(t, content, f) : take_users(t, content, role, f);
    if (!json_text(content))
        return bad(f, "messages", "has a message whose 'content' is neither a string nor an array of blocks");
    struct buf text = {.data = (char *)(uintptr_t)json_text(content),
                       .len = strlen(json_text(content))}; /* read only */
    if (models)
        turns_said(t, &text);
    else
        turns_message(t, role, &text);
    return 0;
}

/* A line for the bill, which some clients put first and which is another one in each request: no prompt with it would
 * find its prefix in the cache. */
static bool is_bill(const char *text)
{
    static const char begin[] = "x-anthropic-billing-header:";
    return strncmp(text, begin, sizeof begin - 1) == 0;
}

static int take_system(struct turns *t, const struct json *system, struct fault *f)
{
    struct buf text = {0};
    int rc = 0;
    if (json_text(system))
        buf_puts(&text, json_text(system));
    else if (is_given(system) && json_type(system) != JSON_ARRAY)
        rc = bad(f, "system", "must be a string or an array of text blocks");
    for (const struct json *b = json_type(system) == JSON_ARRAY ? json_first(system) : NULL; b && !rc; b = json_next(b))
        if (!is_bill(json_member_text(b, "text")))
            rc = is_type(b, "text") ? add_text(b, &text, f) : bad(f, "system", "must be an array of text blocks");
    if (!rc && text.len)
        turns_message(t, "system", &text);
    buf_free(&text);
    return rc;
}

static const struct json *last_of(const struct json *list)
{
    const struct json *last = NULL;
    for (const struct json *v = json_first(list); v; v = json_next(v))
        last = v;
    return last;
}

/* A conversation that ends with words of the model goes on with them. */
static bool is_begun(const struct json *messages)
{
    const struct json *m = last_of(messages), *content = json_find(m, "content"), *b = last_of(content);
    return strcmp(json_member_text(m, "role"), "assistant") == 0 && (json_text(content) || is_type(b, "text"));
}

static int put_messages(struct buf *out, const struct json *body, struct fault *f)
{
    const struct json *messages = json_find(body, "messages");
    struct turns t;
    buf_puts(out, "{\"messages\":");
    turns_begin(&t, out);
    int rc = take_system(&t, json_find(body, "system"), f);
    if (!rc && (json_type(messages) != JSON_ARRAY || !json_first(messages)))
        rc = bad(f, "messages", "must be an array of at least one message");
    for (const struct json *m = json_first(messages); m && !rc; m = json_next(m))
        rc = take_message(&t, m, f);
    turns_end(&t);
    if (is_begun(messages))
        buf_puts(out, ",\"continue_final_message\":true,\"add_generation_prompt\":false");
    return rc;
}

/* ---- tools */

static int put_tool(struct buf *out, const struct json *tool, struct fault *f)
{
    const char *type = json_member_text(tool, "type"), *name = json_member_text(tool, "name");
    if (*type && strcmp(type, "custom") != 0)
        return fault_set(f, 400, "unsupported_parameter", "tools",
                         "tools of type '%.40s' are not supported: this server runs none itself, and its models know "
                         "none by their type; give a 'name' and an 'input_schema'",
                         type);
    if (!*name)
        return bad(f, "tools", "must be an array of {\"name\": ..., \"input_schema\": ...}");
    buf_puts(out, "{\"type\":\"function\",\"function\":{\"name\":");
    buf_put_json(out, name, strlen(name));
    put_copy(out, "description", json_find(tool, "description"));
    put_copy(out, "parameters", json_find(tool, "input_schema"));
    buf_puts(out, "}}");
    return 0;
}

static int put_tools(struct buf *out, const struct json *tools, struct fault *f)
{
    if (!is_given(tools))
        return 0;
    if (json_type(tools) != JSON_ARRAY)
        return bad(f, "tools", "must be an array");
    buf_puts(out, ",\"tools\":[");
    for (const struct json *t = json_first(tools); t; t = json_next(t)) {
        buf_puts(out, t == json_first(tools) ? "" : ",");
        TRY(put_tool(out, t, f));
    }
    buf_putc(out, ']');
    return 0;
}

static int put_choice(struct buf *out, const struct json *choice, struct fault *f)
{
    const char *name = json_member_text(choice, "name");
    if (!is_given(choice))
        return 0;
    if (json_true(json_find(choice, "disable_parallel_tool_use")))
        buf_puts(out, ",\"parallel_tool_calls\":false");
    if (is_type(choice, "auto") || is_type(choice, "none")) {
        put_copy(out, "tool_choice", json_find(choice, "type"));
    } else if (is_type(choice, "any")) {
        buf_puts(out, ",\"tool_choice\":\"required\"");
    } else if (is_type(choice, "tool") && *name) {
        buf_puts(out, ",\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":");
        buf_put_json(out, name, strlen(name));
        buf_puts(out, "}}");
    } else {
        return bad(f, "tool_choice", "must be {\"type\": \"auto\"}, \"any\", \"none\", or \"tool\" with a 'name'");
    }
    return 0;
}

/* ---- the rest */

/* Models that may think or not do so when they are asked to; what others think is left out unless it was asked for. */
static int put_thinking(struct buf *out, const struct json *body, struct fault *f)
{
    const struct json *thinking = json_find(body, "thinking"), *kwargs = json_find(body, "chat_template_kwargs");
    bool thinks = is_type(thinking, "enabled") || is_type(thinking, "adaptive");
    if (is_given(thinking) && !thinks && !is_type(thinking, "disabled"))
        return bad(f, "thinking", "must be {\"type\": \"enabled\"}, \"adaptive\" or \"disabled\"");
    if (is_given(kwargs) && json_type(kwargs) != JSON_OBJECT)
        return bad(f, "chat_template_kwargs", "must be an object");
    buf_printf(out, ",\"chat_template_kwargs\":{\"enable_thinking\":%s", thinks ? "true" : "false");
    for (const struct json *v = json_first(kwargs); v; v = json_next(v))
        put_copy(out, json_key(v), v);
    buf_putc(out, '}');
    if (!thinks || strcmp(json_member_text(thinking, "display"), "omitted") == 0)
        buf_puts(out, ",\"include_reasoning\":false");
    return 0;
}

static int put_output(struct buf *out, const struct json *body, struct fault *f)
{
    const struct json *config = json_find(body, "output_config"), *format = json_find(config, "format");
    if (is_given(config) && json_type(config) != JSON_OBJECT)
        return bad(f, "output_config", "must be an object");
    put_copy(out, "reasoning_effort", json_find(config, "effort"));
    format = is_given(format) ? format : json_find(body, "output_format");
    if (!is_given(format))
        return 0;
    if (!is_type(format, "json_schema"))
        return bad(f, "output_config", "can have a format of type json_schema only");
    buf_puts(out, ",\"response_format\":{\"type\":\"json_schema\",\"json_schema\":");
    json_write(out, format, NULL);
    buf_putc(out, '}');
    return 0;
}

/* Edits that keep what was thought change nothing; others would. */
static int check_context(const struct json *context, struct fault *f)
{
    for (const struct json *e = json_first(json_find(context, "edits")); e; e = json_next(e))
        if (strncmp(json_member_text(e, "type"), "clear_thinking_", strlen("clear_thinking_")) != 0 ||
            strcmp(json_member_text(e, "keep"), "all") != 0)
            return fault_set(f, 400, "unsupported_parameter", "context_management",
                             "'context_management' is not supported: a conversation is not cut here; send what fits");
    return 0;
}

static bool is_own(const char *name)
{
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        if (strcmp(name, own[i]) == 0)
            return true;
    for (size_t i = 0; refused[i].name; i++)
        if (strcmp(name, refused[i].name) == 0)
            return true;
    return false;
}

int messages_translate_prompt(const struct json *body, struct buf *request, struct buf *echo, struct fault *f)
{
    (void)echo;
    TRY(openai_refuse(refused, body, f));
    TRY(check_context(json_find(body, "context_management"), f));
    TRY(put_messages(request, body, f));
    TRY(put_tools(request, json_find(body, "tools"), f));
    TRY(put_choice(request, json_find(body, "tool_choice"), f));
    TRY(put_thinking(request, body, f));
    TRY(put_output(request, body, f));
    put_copy(request, "stop", json_find(body, "stop_sequences"));
    for (const struct json *v = json_first(body); v; v = json_next(v))
        if (!is_own(json_key(v)))
            put_copy(request, json_key(v), v);
    buf_putc(request, '}');
    return 0;
}

int messages_translate(const struct json *body, struct buf *request, struct buf *echo, struct fault *f)
{
    if (!is_given(json_find(body, "max_tokens")))
        return fault_set(f, 400, "missing_parameter", "max_tokens", "'max_tokens' is missing");
    return messages_translate_prompt(body, request, echo, f);
}
