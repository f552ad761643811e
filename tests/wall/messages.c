/* /v1/messages over HTTP, and the fake engine: what a request becomes, what is refused, what answers and streams are.
 */
#include "tests/rig/front_fixture.h"

#include "engine/serve/messages/request.h"

static struct site site;

static int setup(void **state)
{
    (void)state;
    static const char *const keys[] = {"sk-one=shop"};
    site_init(&site);
    site.setup.tools = TOOLS_HERMES;
    site.setup.think_end = "</think>";
    site.setup.splits_thoughts = true;
    site.setup.api_keys = keys;
    site.setup.n_api_keys = 1;
    site_start(&site);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    site_stop(&site);
    return 0;
}

static struct reply post(const char *path, const char *body)
{
    return site_do(site.port, "POST", path, "X-Api-Key: sk-one\r\nAnthropic-Version: 2023-06-01\r\n", body);
}

/* ---- the request */

/* A body as a chat request; with a fault, its words. */
static struct buf translated(const char *body)
{
    struct json *j = json_parse(body, strlen(body), NULL, NULL);
    struct buf out = {0}, echo = {0};
    struct fault f = {0};
    assert_non_null(j);
    if (messages_translate(j, &out, &echo, &f)) {
        buf_clear(&out);
        buf_puts(&out, f.text);
    } else {
        struct json *request = json_parse(out.data, out.len, NULL, NULL);
        assert_non_null(request);
        json_free(request);
    }
    assert_int_equal(echo.len, 0);
    json_free(j);
    return out;
}

#define QUIET ",\"chat_template_kwargs\":{\"enable_thinking\":false},\"include_reasoning\":false"
#define ASK "\"messages\":[{\"role\":\"user\",\"content\":\"q\"}]"

static void requests_become_those_of_chat(void **state)
{
    (void)state;
    static const struct {
        const char *body, *is;
    } cases[] = {
        {"{" ASK ",\"max_tokens\":9,\"model\":\"m\",\"stream\":true,\"top_k\":3,\"stop_sequences\":[\"X\"]}",
         "{" ASK QUIET ",\"stop\":[\"X\"],\"max_tokens\":9,\"model\":\"m\",\"stream\":true,\"top_k\":3}"},
        {"{\"max_tokens\":9,\"system\":\"Be short.\"," ASK "}",
         "{\"messages\":[{\"role\":\"system\",\"content\":\"Be short.\"},{\"role\":\"user\",\"content\":\"q\"}]" QUIET
         ",\"max_tokens\":9}"},
        /* the line for the bill is another one in each request */
        {"{\"max_tokens\":9,\"system\":[{\"type\":\"text\",\"text\":\"x-anthropic-billing-header: "
         "cch=1;\"},{\"type\":\"text\","
         "\"text\":\"A\",\"cache_control\":{\"type\":\"ephemeral\"}},{\"type\":\"text\",\"text\":\"B\"}]," ASK "}",
         "{\"messages\":[{\"role\":\"system\",\"content\":\"A\\nB\"},{\"role\":\"user\",\"content\":\"q\"}]" QUIET
         ",\"max_tokens\":9}"},
        {"{\"max_tokens\":9,\"thinking\":{\"type\":\"enabled\",\"budget_tokens\":1024},\"messages\":["
         "{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"x\"},{\"type\":\"text\",\"text\":\"y\"}]},"
         "{\"role\":\"assistant\",\"content\":[{\"type\":\"thinking\",\"thinking\":\"hm\",\"signature\":\"\"},"
         "{\"type\":\"tool_use\",\"id\":\"1\",\"name\":\"f\",\"input\":{\"a\":1}},{\"type\":\"text\",\"text\":\"I "
         "look.\"}]},"
         "{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"so\"},{\"type\":\"tool_result\",\"tool_use_"
         "id\":\"1\","
         "\"content\":[{\"type\":\"text\",\"text\":\"one\"}]}]}]}",
         "{\"messages\":[{\"role\":\"user\",\"content\":\"x\\ny\"},{\"role\":\"assistant\",\"content\":\"I look.\","
         "\"reasoning_content\":\"hm\",\"tool_calls\":[{\"id\":\"1\",\"type\":\"function\",\"function\":{\"name\":"
         "\"f\","
         "\"arguments\":\"{\\\"a\\\": 1}\"}}]},{\"role\":\"tool\",\"content\":\"one\",\"tool_call_id\":\"1\"},"
         "{\"role\":\"user\",\"content\":\"so\"}],\"chat_template_kwargs\":{\"enable_thinking\":true},\"max_tokens\":"
         "9}"},
        {"{\"max_tokens\":9,\"messages\":[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":"
         "\"The\"}]}",
         "{\"messages\":[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":\"The\"}],"
         "\"continue_final_message\":true,\"add_generation_prompt\":false" QUIET ",\"max_tokens\":9}"},
        {"{\"max_tokens\":9," ASK
         ",\"tools\":[{\"name\":\"f\",\"description\":\"d\",\"input_schema\":{}}],\"tool_choice\":"
         "{\"type\":\"any\",\"disable_parallel_tool_use\":true}}",
         "{" ASK
         ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"description\":\"d\",\"parameters\":{}}}],"
         "\"parallel_tool_calls\":false,\"tool_choice\":\"required\"" QUIET ",\"max_tokens\":9}"},
        {"{\"max_tokens\":9," ASK
         ",\"tools\":[{\"type\":\"custom\",\"name\":\"f\"}],\"tool_choice\":{\"type\":\"tool\","
         "\"name\":\"f\"},\"thinking\":{\"type\":\"adaptive\",\"display\":\"omitted\"},"
         "\"chat_template_kwargs\":{\"enable_thinking\":false}}",
         "{" ASK
         ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}],\"tool_choice\":{\"type\":\"function\","
         "\"function\":{\"name\":\"f\"}},\"chat_template_kwargs\":{\"enable_thinking\":true,\"enable_thinking\":false},"
         "\"include_reasoning\":false,\"max_tokens\":9}"},
        {"{\"max_tokens\":9," ASK
         ",\"output_config\":{\"effort\":\"low\",\"format\":{\"type\":\"json_schema\",\"schema\":{}}},"
         "\"context_management\":{\"edits\":[{\"type\":\"clear_thinking_20251015\",\"keep\":\"all\"}]}}",
         "{" ASK QUIET
         ",\"reasoning_effort\":\"low\",\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"type\":"
         "\"json_schema\",\"schema\":{}}},\"max_tokens\":9}"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct buf out = translated(cases[i].body);
        assert_string_equal(out.data, cases[i].is);
        buf_free(&out);
    }
}

static void what_is_not_offered_is_refused(void **state)
{
    (void)state;
    static const struct {
        const char *more, *says;
    } cases[] = {
        {"\"max_tokens\":null", "'max_tokens' is missing"},
        {"\"max_tokens\":0", "'max_tokens' must be at least 1"},
        {"\"n\":2", "'n' is not supported"},
        {"\"stop\":\"x\"", "it is called stop_sequences here"},
        {"\"stop_sequences\":[7]", "a string"},
        {"\"system\":7", "'system' must be"},
        {"\"system\":[{\"type\":\"image\"}]", "'system' must be"},
        {"\"mcp_servers\":[{}]", "'mcp_servers' is not supported"},
        {"\"thinking\":{\"type\":\"much\"}", "'thinking' must be"},
        {"\"thinking\":true", "'thinking' must be"},
        {"\"tools\":{}", "'tools' must be an array"},
        {"\"tools\":[{}]", "'tools' must be an array of"},
        {"\"tools\":[{\"type\":\"web_search_20250305\",\"name\":\"web_search\"}]",
         "'web_search_20250305' are not supported"},
        {"\"tool_choice\":{\"type\":\"tool\"}", "'tool_choice' must be"},
        {"\"tool_choice\":\"auto\"", "'tool_choice' must be"},
        {"\"tool_choice\":{\"type\":\"any\"}", "'tools' has no function"},
        {"\"output_config\":{\"format\":{\"type\":\"xml\"}}", "json_schema only"},
        {"\"output_config\":3", "'output_config' must be"},
        {"\"chat_template_kwargs\":3", "'chat_template_kwargs' must be"},
        {"\"context_management\":{\"edits\":[{\"type\":\"clear_tool_uses_20250919\"}]}", "'context_management' is not"},
        {"\"messages\":null", "'messages' must be an array"},
        {"\"messages\":[]", "'messages' must be an array"},
        {"\"messages\":[7]", "whose 'role' is"},
        {"\"messages\":[{\"role\":\"user\"}]", "neither a string nor an array"},
        {"\"messages\":[{\"role\":\"cat\",\"content\":\"x\"}]", "whose 'role' is"},
        {"\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image\"}]}]", "'image' is not supported"},
        {"\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}]", "without a string 'text'"},
        {"\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\"}]}]",
         "without a string 'tool_use_id'"},
        {"\"messages\":[{\"role\":\"assistant\",\"content\":[{\"type\":\"tool_use\",\"id\":\"1\"}]}]",
         "has a tool_use block"},
        {"\"messages\":[{\"role\":\"assistant\",\"content\":[{\"type\":\"tool_result\"}]}]", "'tool_result' is not"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char body[400];
        snprintf(body, sizeof body, "{\"max_tokens\":9,\"messages\":[{\"role\":\"user\",\"content\":\"SAY:x\"}],%s}",
                 cases[i].more);
        struct reply r = post("/v1/messages", body);
        if (r.status != 400 || !strstr(r.body.data, cases[i].says) ||
            strncmp(r.body.data, "{\"type\":\"error\",\"error\":{\"type\":\"invalid_request_error\",", 56) != 0)
            fail_msg("%s: %d %s", body, r.status, r.body.data);
        reply_free(&r);
    }
}

static void keys_come_in_either_header(void **state)
{
    (void)state;
    static const struct {
        const char *headers, *says;
        int status;
    } cases[] = {
        {"", "\"authentication_error\"", 401},
        {"X-Api-Key: sk-two\r\n", "\"authentication_error\"", 401},
        {"X-Api-Key: Bearer sk-one\r\n", "\"authentication_error\"", 401},
        {"Authorization: Bearer sk-two\r\n", "\"authentication_error\"", 401},
        {"X-Api-Key: sk-one\r\n", "\"end_turn\"", 200},
        {"Authorization: Bearer sk-one\r\n", "\"end_turn\"", 200},
        {"Authorization: Bearer sk-one\r\nX-Api-Key: sk-two\r\n", "\"end_turn\"", 200},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct reply r = site_do(site.port, "POST", "/v1/messages", cases[i].headers,
                                 "{\"max_tokens\":99,\"messages\":[{\"role\":\"user\",\"content\":\"SAY:x\"}]}");
        if (r.status != cases[i].status || !strstr(r.body.data, cases[i].says))
            fail_msg("%s: %d %s", cases[i].headers, r.status, r.body.data);
        reply_free(&r);
    }
    struct reply r = post("/v1/messages", "{\"model\":\"other\",\"max_tokens\":9," ASK "}");
    assert_int_equal(r.status, 404);
    assert_non_null(strstr(r.body.data, "\"not_found_error\""));
    reply_free(&r);
}

static void prompts_are_counted(void **state)
{
    (void)state;
    struct reply r =
        post("/v1/messages/count_tokens", "{\"system\":\"ab\",\"messages\":[{\"role\":\"user\",\"content\":\"cde\"}]}");
    assert_int_equal(r.status, 200);
    assert_string_equal(r.body.data, "{\"input_tokens\":5}");
    reply_free(&r);
    struct buf body = {0};
    buf_puts(&body, "{\"messages\":[{\"role\":\"user\",\"content\":\"");
    for (int i = 0; i < 9000; i++)
        buf_putc(&body, 'x');
    buf_puts(&body, "\"}]}");
    r = post("/v1/messages/count_tokens", body.data); /* more than the model can take: that is what is asked */
    assert_string_equal(r.body.data, "{\"input_tokens\":9000}");
    reply_free(&r);
    buf_free(&body);
    r = post("/v1/messages/count_tokens", "{\"messages\":[]}");
    assert_int_equal(r.status, 400);
    assert_non_null(strstr(r.body.data, "\"invalid_request_error\""));
    reply_free(&r);
}

/* ---- the answer */

static struct reply ask(const char *says, const char *more)
{
    char body[2000];
    snprintf(body, sizeof body,
             "{\"messages\":[{\"role\":\"user\",\"content\":\"SAY:%s\"}],\"max_tokens\":500,\"tools\":[{\"name\":"
             "\"weather\"}]%s}",
             says, more);
    struct reply r = post("/v1/messages", body);
    if (r.status != 200)
        fail_msg("%s: %s", body, r.body.data);
    return r;
}

static void put_block(struct buf *out, const struct json *b, const char *text)
{
    const char *type = json_member_text(b, "type");
    buf_printf(out, " %s(", type);
    if (strcmp(type, "tool_use") == 0) {
        assert_int_equal(strlen(json_member_text(b, "id")), 9);
        buf_puts(out, json_member_text(b, "name"));
    }
    buf_printf(out, "%s)", text);
}

/* A message as "reason: kind(text) kind(text) ...". */
static struct buf whole(const char *says, const char *more)
{
    struct reply r = ask(says, more);
    struct json *j = json_parse(r.body.data, r.body.len, NULL, NULL);
    struct buf out = {0};
    buf_printf(&out, "%s%s:", json_member_text(j, "stop_reason"), json_member_text(j, "stop_sequence"));
    for (const struct json *b = json_first(json_find(j, "content")); b; b = json_next(b)) {
        struct buf input = {0};
        json_write(&input, json_find(b, "input"), &(struct json_style){.spaced = true});
        put_block(&out, b,
                  json_find(b, "input")  ? input.data
                  : json_find(b, "text") ? json_member_text(b, "text")
                                         : json_member_text(b, "thinking"));
        buf_free(&input);
    }
    const struct json *u = json_find(j, "usage");
    assert_true(json_member_number(u, "input_tokens") > 0 && json_member_number(u, "output_tokens") > 0);
    json_free(j);
    reply_free(&r);
    return out;
}

/* The same put together from the events of a stream, as clients do. */
static struct buf streamed(const char *says, const char *more)
{
    char fields[200];
    snprintf(fields, sizeof fields, "%s,\"stream\":true", more);
    struct reply r = ask(says, fields);
    struct buf out = {0}, blocks = {0}, text = {0};
    struct json *block = NULL;
    int index = 0;
    bool stopped = false;
    buf_puts(&blocks, "");
    for (const char *p = r.body.data, *end; p && *p; p = end + 2) {
        end = strstr(p, "\n\n");
        const char *data = strstr(p, "\ndata: ") + 7;
        struct json *j = json_parse(data, (size_t)(end - data), NULL, NULL);
        const char *type = json_member_text(j, "type");
        const struct json *d = json_find(j, "delta");
        assert_true(strncmp(p, "event: ", 7) == 0 && strncmp(p + 7, type, strlen(type)) == 0);
        assert_true((p == r.body.data) == (strcmp(type, "message_start") == 0));
        if (json_find(j, "index"))
            assert_int_equal((int)json_member_number(j, "index"), index);
        if (strcmp(type, "content_block_start") == 0) {
            json_free(block);
            block = j;
            buf_clear(&text);
            buf_puts(&text, "");
            continue;
        }
        buf_puts(&text, json_member_text(d, "text"));
        buf_puts(&text, json_member_text(d, "thinking"));
        buf_puts(&text, json_member_text(d, "partial_json"));
        if (strcmp(type, "content_block_stop") == 0) {
            put_block(&blocks, json_find(block, "content_block"), text.data);
            index++;
        } else if (strcmp(type, "message_delta") == 0) {
            buf_printf(&out, "%s%s:%s", json_member_text(d, "stop_reason"), json_member_text(d, "stop_sequence"),
                       blocks.data);
        }
        stopped = strcmp(type, "message_stop") == 0;
        json_free(j);
    }
    assert_true(stopped);
    json_free(block);
    buf_free(&blocks);
    buf_free(&text);
    reply_free(&r);
    return out;
}

static void check(const char *says, const char *more, const char *want)
{
    struct buf a = whole(says, more), b = streamed(says, more);
    assert_string_equal(a.data, want);
    assert_string_equal(b.data, want);
    buf_free(&a);
    buf_free(&b);
}

#define CALL "<tool_call>{\\\"name\\\":\\\"weather\\\",\\\"arguments\\\":{\\\"c\\\":1}}</tool_call>"
#define THINKS ",\"thinking\":{\"type\":\"enabled\",\"budget_tokens\":1024}"

static void answers_are_lists_of_blocks(void **state)
{
    (void)state;
    check("Paris.", "", "end_turn: text(Paris.)");
    check("<think>Well.</think>\\n\\nParis.", THINKS, "end_turn: thinking(Well.) text(Paris.)");
    check("<think>Well.</think>\\n\\nParis.", "", "end_turn: text(Paris.)");
    check("<think>Well.</think>" CALL, THINKS, "tool_use: thinking(Well.) tool_use(weather{\"c\": 1})");
    check("I look." CALL CALL, "", "tool_use: text(I look.) tool_use(weather{\"c\": 1}) tool_use(weather{\"c\": 1})");
    check("I look." CALL CALL, ",\"tool_choice\":{\"type\":\"auto\",\"disable_parallel_tool_use\":true}",
          "tool_use: text(I look.) tool_use(weather{\"c\": 1})");
    check("a STOP b", ",\"stop_sequences\":[\"b\",\"STOP\"]", "stop_sequenceSTOP: text(a )");
    check("STOP", ",\"stop_sequences\":[\"STOP\"]", "stop_sequenceSTOP:");
    check("A long answer", ",\"max_tokens\":6", "max_tokens: text(A long)");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(requests_become_those_of_chat), cmocka_unit_test(what_is_not_offered_is_refused),
        cmocka_unit_test(keys_come_in_either_header),    cmocka_unit_test(prompts_are_counted),
        cmocka_unit_test(answers_are_lists_of_blocks),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
