#include "engine/serve/responses/request.h"

#include <string.h>

#include "engine/serve/openai/offer.h"
#include "engine/serve/openai/prompt.h"
#include "engine/serve/openai/turns.h"

enum { ECHO_BYTES = 131072 /* of a member that an answer repeats */ };

static const char resent[] = "responses are not kept here; send the whole conversation in 'input'";
static const char chats[] = "it is a field of /v1/chat/completions, not of this route";

static const struct offer_refusal refused[] = {
    {"previous_response_id", resent, 0},
    {"conversation", resent, 0},
    {"prompt", "prompts are not kept here; send 'instructions' and 'input'", 0},
    {"background", "answers come at once or as a stream; for work that nobody waits for there is /v1/batches", 0},
    {"context_management", "a conversation is not cut here; send what fits", 0},
    {"n", chats, 1},
    {"best_of", chats, 1},
    {"echo", chats, 0},
    {"messages", "it is called input here", 0},
    {"max_tokens", "it is called max_output_tokens here", 0},
    {"max_completion_tokens", "it is called max_output_tokens here", 0},
    {"response_format", "it is called text.format here", 0},
    {"reasoning_effort", "it is called reasoning.effort here", 0},
    {"logprobs", "put \"message.output_text.logprobs\" into 'include'", 0},
    {"prompt_logprobs", chats, 0},
    {"return_token_ids", chats, 0},
    {"return_tokens_as_token_ids", chats, 0},
    {NULL, NULL, 0},
};

/* Fields that are translated, or say nothing to this server: all others are those of chat. */
static const char *const own[] = {
    "input",          "instructions", "max_output_tokens", "max_tool_calls",   "tools",
    "tool_choice",    "text",         "reasoning",         "include",          "top_logprobs",
    "stream_options", "truncation",   "safety_identifier", "prompt_cache_key", "prompt_cache_retention",
    "client_metadata"};

static int bad(struct fault *f, const char *param, const char *what, const struct json *got)
{
    return fault_set(f, 400, "invalid_type", param, "'%s' must be %s, not %s", param, what, json_type_name(got));
}

static bool is_given(const struct json *v)
{
    return json_type(v) != JSON_NULL;
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

/* ---- the items */

static int take_message(struct turns *t, const struct json *item, struct fault *f)
{
    const char *role = json_text(json_find(item, "role"));
    struct buf text = {0};
    if (!role)
        return fault_set(f, 400, "invalid_type", "input", "a message of 'input' must have a string 'role'");
    int rc = openai_content_text(json_find(item, "content"), "input", &text, f);
    if (!rc && strcmp(role, "assistant") == 0)
        turns_said(t, &text);
    else if (!rc)
        turns_message(t, role, &text);
    buf_free(&text);
    return rc;
}

static int take_call(struct turns *t, const struct json *item, struct fault *f)
{
    const char *id = json_text(json_find(item, "call_id")), *name = json_text(json_find(item, "name")),
               *arguments = json_text(json_find(item, "arguments"));
    if (!id || !name || !arguments)
        return fault_set(f, 400, "invalid_type", "input",
                         "a function_call of 'input' must have the strings 'call_id', 'name' and 'arguments'");
    const char *space = json_member_text(item, "namespace");
    struct buf whole = {0};
    buf_printf(&whole, "%s%s%s", space, *space ? "." : "", name);
    turns_called(t, id, whole.data, arguments);
    buf_free(&whole);
    return 0;
}

static int take_result(struct turns *t, const struct json *item, struct fault *f)
{
    const char *id = json_text(json_find(item, "call_id"));
    struct buf text = {0};
    if (!id)
        return fault_set(f, 400, "invalid_type", "input", "a function_call_output of 'input' must have a 'call_id'");
    int rc = openai_content_text(json_find(item, "output"), "input", &text, f);
    if (!rc)
        turns_result(t, id, &text);
    buf_free(&text);
    return rc;
}

/* What the model thought, as this server wrote it; another one's, encrypted or in summary, says nothing to it. */
static int take_thought(struct turns *t, const struct json *item, struct fault *f)
{
    (void)f;
    for (const struct json *part = json_first(json_find(item, "content")); part; part = json_next(part))
        if (strcmp(json_member_text(part, "type"), "reasoning_text") == 0)
            turns_thought(t, json_member_text(part, "text"));
    return 0;
}

static int take_item(struct turns *t, const struct json *item, struct fault *f)
{
    static const struct {
        const char *type;
        int (*take)(struct turns *, const struct json *, struct fault *);
    } kinds[] = {{"message", take_message},
                 {"function_call", take_call},
                 {"function_call_output", take_result},
                 {"reasoning", take_thought}};
    const struct json *type = json_find(item, "type");
    const char *name = type ? json_text(type) : "message";
    for (size_t i = 0; name && i < sizeof kinds / sizeof *kinds; i++)
        if (strcmp(name, kinds[i].type) == 0)
            return kinds[i].take(t, item, f);
    return fault_set(f, 400, "unsupported_content", "input",
                     "items of 'input' are of type message, function_call, function_call_output or reasoning; '%.40s' "
                     "is not supported",
                     name ? name : json_type_name(type));
}

static int take_input(struct turns *t, const struct json *input, struct fault *f)
{
    const char *text = json_text(input);
    if (text) {
        struct buf all = {.data = (char *)(uintptr_t)text, .len = strlen(text)}; /* read only */
        turns_message(t, "user", &all);
        return 0;
    }
    if (json_type(input) != JSON_ARRAY)
        return bad(f, "input", "a string or an array of items", input);
    for (const struct json *item = json_first(input); item; item = json_next(item)) {
        if (json_type(item) != JSON_OBJECT)
            return bad(f, "input", "an array of objects", input);
        TRY(take_item(t, item, f));
    }
    return 0;
}

static int put_messages(struct buf *out, const struct json *body, struct fault *f)
{
    const struct json *first = json_find(body, "instructions");
    struct turns t;
    buf_puts(out, "{\"messages\":");
    turns_begin(&t, out);
    int rc = is_given(first) && !json_text(first) ? bad(f, "instructions", "a string", first) : 0;
    if (!rc && json_text(first)) {
        struct buf text = {.data = (char *)(uintptr_t)json_text(first),
                           .len = strlen(json_text(first))}; /* read only */
        turns_message(&t, "system", &text);
    }
    if (!rc)
        rc = take_input(&t, json_find(body, "input"), f);
    turns_end(&t);
    return rc;
}

/* ---- tools and forms */

/* A function of a namespace is NAMESPACE.NAME to the model: the names of both have no '.', so that answers can tell
 * them apart again. */
static int put_name(struct buf *out, const char *param, const char *space, const char *name, struct fault *f)
{
    if (!*name || strchr(name, '.') || strchr(space, '.'))
        return fault_set(f, 400, "invalid_value", param,
                         "a function must have a 'name' without a '.', and so must its namespace");
    struct buf whole = {0};
    buf_printf(&whole, "%s%s%s", space, *space ? "." : "", name);
    buf_put_json(out, whole.data, whole.len);
    buf_free(&whole);
    return 0;
}

static int put_function(struct buf *out, const char *space, const struct json *tool, struct fault *f)
{
    static const char *const members[] = {"description", "parameters", "strict"};
    const char *type = json_member_text(tool, "type");
    if (strcmp(type, "function") != 0)
        return fault_set(f, 400, "unsupported_parameter", "tools",
                         "tools of type '%.40s' are not supported: this server runs none itself; those of type "
                         "function are called by the client. Switch it off there",
                         *type ? type : "none");
    buf_puts(out, out->data[out->len - 1] == '[' ? "" : ",");
    buf_puts(out, "{\"type\":\"function\",\"function\":{\"name\":");
    TRY(put_name(out, "tools", space, json_member_text(tool, "name"), f));
    for (size_t i = 0; i < sizeof members / sizeof *members; i++)
        put_copy(out, members[i], json_find(tool, members[i]));
    buf_puts(out, "}}");
    return 0;
}

/* A function, or a namespace of some. */
static int put_tool(struct buf *out, const struct json *tool, struct fault *f)
{
    if (strcmp(json_member_text(tool, "type"), "namespace") != 0)
        return put_function(out, "", tool, f);
    for (const struct json *t = json_first(json_find(tool, "tools")); t; t = json_next(t))
        TRY(put_function(out, json_member_text(tool, "name"), t, f));
    return 0;
}

static int put_tools(struct buf *out, const struct json *tools, struct fault *f)
{
    if (!is_given(tools))
        return 0;
    if (json_type(tools) != JSON_ARRAY)
        return bad(f, "tools", "an array", tools);
    buf_puts(out, ",\"tools\":[");
    for (const struct json *t = json_first(tools); t; t = json_next(t))
        TRY(put_tool(out, t, f));
    buf_putc(out, ']');
    return 0;
}

/* {"type": "function", "name": ...} */
static int put_choice(struct buf *out, const struct json *choice, struct fault *f)
{
    const char *type = json_text(json_find(choice, "type")), *name = json_text(json_find(choice, "name"));
    if (json_type(choice) != JSON_OBJECT) {
        put_copy(out, "tool_choice", choice);
        return 0;
    }
    if (!type || strcmp(type, "function") != 0 || !name)
        return fault_set(f, 400, "unsupported_parameter", "tool_choice",
                         "'tool_choice' must be \"none\", \"auto\", \"required\" or {\"type\": \"function\", \"name\": "
                         "...}");
    buf_puts(out, ",\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":");
    TRY(put_name(out, "tool_choice", json_member_text(choice, "namespace"), name, f));
    buf_puts(out, "}}");
    return 0;
}

/* text.format: a schema lies in it, and not below. */
static int put_format(struct buf *out, const struct json *text, struct fault *f)
{
    const struct json *format = json_find(text, "format");
    if (is_given(text) && json_type(text) != JSON_OBJECT)
        return bad(f, "text", "an object", text);
    if (strcmp(json_member_text(format, "type"), "json_schema") != 0) {
        put_copy(out, "response_format", format);
        return 0;
    }
    buf_puts(out, ",\"response_format\":{\"type\":\"json_schema\",\"json_schema\":");
    json_write(out, format, NULL);
    buf_putc(out, '}');
    return 0;
}

/* ---- the rest */

static int put_reasoning(struct buf *out, const struct json *reasoning, struct fault *f)
{
    if (is_given(reasoning) && json_type(reasoning) != JSON_OBJECT)
        return bad(f, "reasoning", "an object", reasoning);
    put_copy(out, "reasoning_effort", json_find(reasoning, "effort"));
    return 0;
}

static int put_logprobs(struct buf *out, const struct json *body, struct fault *f)
{
    const struct json *include = json_find(body, "include");
    if (is_given(include) && json_type(include) != JSON_ARRAY)
        return bad(f, "include", "an array of strings", include);
    for (const struct json *v = json_first(include); v; v = json_next(v))
        if (json_text(v) && strcmp(json_text(v), "message.output_text.logprobs") == 0) {
            buf_puts(out, ",\"logprobs\":true");
            put_copy(out, "top_logprobs", json_find(body, "top_logprobs"));
            return 0;
        }
    return 0;
}

static int check_truncation(const struct json *v, struct fault *f)
{
    if (!is_given(v) || (json_text(v) && strcmp(json_text(v), "disabled") == 0))
        return 0;
    return fault_set(f, 400, "unsupported_parameter", "truncation",
                     "'truncation' can be \"disabled\" only: a conversation is not cut here; send what fits");
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

/* "name":..., as it came or else as `otherwise`; so also where it is long: a stream repeats it in three events, and a
 * client whose line is slow would lose the connection to what it has sent itself. */
static void echo_member(struct buf *echo, const struct json *body, const char *name, const char *otherwise)
{
    struct buf text = {.limit = ECHO_BYTES};
    const struct json *v = json_find(body, name);
    if (is_given(v))
        json_write(&text, v, NULL);
    buf_printf(echo, "\"%s\":%s,", name, text.len && !text.over ? text.data : otherwise);
    buf_free(&text);
}

static void put_echo(struct buf *echo, const struct json *body)
{
    static const char *const members[][2] = {
        {"instructions", "null"},
        {"max_output_tokens", "null"},
        {"max_tool_calls", "null"},
        {"metadata", "{}"},
        {"parallel_tool_calls", "true"},
        {"reasoning", "{\"effort\":null,\"summary\":null}"},
        {"temperature", "1"},
        {"text", "{\"format\":{\"type\":\"text\"}}"},
        {"tool_choice", "\"auto\""},
        {"tools", "[]"},
        {"top_logprobs", "0"},
        {"top_p", "1"},
        {"user", "null"},
    };
    for (size_t i = 0; i < sizeof members / sizeof *members; i++)
        echo_member(echo, body, members[i][0], members[i][1]);
    buf_puts(echo, "\"background\":false,\"previous_response_id\":null,\"service_tier\":\"default\",\"store\":false,"
                   "\"truncation\":\"disabled\"");
}

int responses_translate(const struct json *body, struct buf *request, struct buf *echo, struct fault *f)
{
    TRY(openai_refuse(refused, body, f));
    TRY(check_truncation(json_find(body, "truncation"), f));
    TRY(put_messages(request, body, f));
    TRY(put_tools(request, json_find(body, "tools"), f));
    TRY(put_choice(request, json_find(body, "tool_choice"), f));
    TRY(put_format(request, json_find(body, "text"), f));
    TRY(put_reasoning(request, json_find(body, "reasoning"), f));
    TRY(put_logprobs(request, body, f));
    put_copy(request, "max_tokens", json_find(body, "max_output_tokens"));
    for (const struct json *v = json_first(body); v; v = json_next(v))
        if (!is_own(json_key(v)))
            put_copy(request, json_key(v), v);
    buf_putc(request, '}');
    put_echo(echo, body);
    return 0;
}
