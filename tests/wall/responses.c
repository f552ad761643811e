/* /v1/responses over HTTP, and the fake engine: what a request becomes, what is refused, what answers and streams are.
 */
#include "tests/rig/front_fixture.h"

#include "engine/serve/responses/request.h"

static struct site site;

static int setup(void **state)
{
    (void)state;
    site_init(&site);
    site.setup.tools = TOOLS_HERMES;
    site.setup.think_end = "</think>";
    site.setup.splits_thoughts = true;
    site_start(&site);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    site_stop(&site);
    return 0;
}

/* ---- the request */

/* A body as a chat request; with a fault, its words. */
static struct buf translated(const char *body)
{
    struct json *j = json_parse(body, strlen(body), NULL, NULL);
    struct buf out = {0}, echo = {0};
    struct fault f = {0};
    assert_non_null(j);
    if (responses_translate(j, &out, &echo, &f)) {
        buf_clear(&out);
        buf_puts(&out, f.text);
    } else {
        struct json *request = json_parse(out.data, out.len, NULL, NULL), *response;
        buf_puts(&echo, "}");
        struct buf whole = {0};
        buf_printf(&whole, "{%s", echo.data);
        response = json_parse(whole.data, whole.len, NULL, NULL);
        assert_true(request && response);
        json_free(request);
        json_free(response);
        buf_free(&whole);
    }
    buf_free(&echo);
    json_free(j);
    return out;
}

static void requests_become_those_of_chat(void **state)
{
    (void)state;
    static const struct {
        const char *body, *is;
    } cases[] = {
        {"{\"input\":\"Hi\"}", "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}]}"},
        {"{\"input\":\"Hi\",\"instructions\":\"Be "
         "short.\",\"model\":\"m\",\"stream\":true,\"top_k\":3,\"max_output_tokens\":9}",
         "{\"messages\":[{\"role\":\"system\",\"content\":\"Be short.\"},{\"role\":\"user\",\"content\":\"Hi\"}],"
         "\"max_tokens\":9,\"model\":\"m\",\"stream\":true,\"top_k\":3}"},
        {"{\"instructions\":\"A\",\"input\":[{\"role\":\"developer\",\"content\":\"B\"},{\"type\":\"message\",\"role\":"
         "\"user\","
         "\"content\":[{\"type\":\"input_text\",\"text\":\"x\"},{\"type\":\"input_text\",\"text\":\"y\"}]}]}",
         "{\"messages\":[{\"role\":\"system\",\"content\":\"A\\n\\nB\"},{\"role\":\"user\",\"content\":\"x\\ny\"}]}"},
        /* what the model thought, said and called is one message */
        {"{\"input\":[{\"role\":\"user\",\"content\":\"q\"},"
         "{\"type\":\"reasoning\",\"summary\":[],\"content\":[{\"type\":\"reasoning_text\",\"text\":\"hm\"}]},"
         "{\"type\":\"message\",\"role\":\"assistant\",\"content\":[{\"type\":\"output_text\",\"text\":\"I look.\"}]},"
         "{\"type\":\"function_call\",\"call_id\":\"1\",\"name\":\"f\",\"arguments\":\"{}\"},"
         "{\"type\":\"function_call\",\"call_id\":\"2\",\"name\":\"g\",\"arguments\":\"{\\\"a\\\":1}\"},"
         "{\"type\":\"function_call_output\",\"call_id\":\"1\",\"output\":\"one\"},"
         "{\"type\":\"function_call_output\",\"call_id\":\"2\",\"output\":[{\"type\":\"input_text\",\"text\":\"two\"}]}"
         ","
         "{\"role\":\"assistant\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"b\"}]}",
         "{\"messages\":[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":\"I look.\","
         "\"reasoning_content\":\"hm\",\"tool_calls\":["
         "{\"id\":\"1\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}},"
         "{\"id\":\"2\",\"type\":\"function\",\"function\":{\"name\":\"g\",\"arguments\":\"{\\\"a\\\":1}\"}}]},"
         "{\"role\":\"tool\",\"content\":\"one\",\"tool_call_id\":\"1\"},{\"role\":\"tool\",\"content\":\"two\","
         "\"tool_call_id\":\"2\"},{\"role\":\"assistant\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"b\"}"
         "]}"},
        {"{\"input\":\"q\",\"tools\":[{\"type\":\"function\",\"name\":\"f\",\"description\":\"d\",\"parameters\":{},"
         "\"strict\":true}],\"tool_choice\":{\"type\":\"function\",\"name\":\"f\"},\"parallel_tool_calls\":false}",
         "{\"messages\":[{\"role\":\"user\",\"content\":\"q\"}],\"tools\":[{\"type\":\"function\",\"function\":{"
         "\"name\":\"f\","
         "\"description\":\"d\",\"parameters\":{},\"strict\":true}}],\"tool_choice\":{\"type\":\"function\","
         "\"function\":"
         "{\"name\":\"f\"}},\"parallel_tool_calls\":false}"},
        {"{\"input\":[{\"type\":\"function_call\",\"call_id\":\"1\",\"name\":\"f\",\"namespace\":\"n\",\"arguments\":"
         "\"{}\"}],"
         "\"tools\":[{\"type\":\"namespace\",\"name\":\"n\",\"tools\":[{\"type\":\"function\",\"name\":\"f\"},{"
         "\"type\":"
         "\"function\",\"name\":\"g\"}]}],\"tool_choice\":{\"type\":\"function\",\"namespace\":\"n\",\"name\":\"f\"}}",
         "{\"messages\":[{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{\"id\":\"1\",\"type\":\"function\","
         "\"function\":{\"name\":\"n.f\",\"arguments\":\"{}\"}}]}],\"tools\":[{\"type\":\"function\",\"function\":{"
         "\"name\":"
         "\"n.f\"}},{\"type\":\"function\",\"function\":{\"name\":\"n.g\"}}],\"tool_choice\":{\"type\":\"function\","
         "\"function\":{\"name\":\"n.f\"}}}"},
        {"{\"input\":\"q\",\"text\":{\"format\":{\"type\":\"json_schema\",\"name\":\"n\",\"schema\":{\"type\":"
         "\"object\"}},"
         "\"verbosity\":\"low\"},\"reasoning\":{\"effort\":\"low\"},\"tool_choice\":\"required\"}",
         "{\"messages\":[{\"role\":\"user\",\"content\":\"q\"}],\"tool_choice\":\"required\",\"response_format\":{"
         "\"type\":"
         "\"json_schema\",\"json_schema\":{\"type\":\"json_schema\",\"name\":\"n\",\"schema\":{\"type\":\"object\"}}},"
         "\"reasoning_effort\":\"low\"}"},
        {"{\"input\":\"q\",\"include\":[\"reasoning.encrypted_content\",\"message.output_text.logprobs\"],\"top_"
         "logprobs\":2,"
         "\"truncation\":\"disabled\",\"prompt_cache_key\":\"k\",\"store\":true,\"previous_response_id\":null}",
         "{\"messages\":[{\"role\":\"user\",\"content\":\"q\"}],\"logprobs\":true,\"top_logprobs\":2,\"store\":true}"},
        {"{\"input\":\"q\",\"top_logprobs\":2,\"text\":null,\"tools\":null,\"reasoning\":null,\"include\":null}",
         "{\"messages\":[{\"role\":\"user\",\"content\":\"q\"}]}"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct buf out = translated(cases[i].body);
        assert_string_equal(out.data, cases[i].is);
        buf_free(&out);
    }
}

static void what_is_not_offered_is_refused_by_name(void **state)
{
    (void)state;
    static const struct {
        const char *more, *param;
    } cases[] = {
        {"\"previous_response_id\":\"resp_1\"", "previous_response_id"},
        {"\"conversation\":{\"id\":\"c\"}", "conversation"},
        {"\"prompt\":{\"id\":\"p\"}", "prompt"},
        {"\"background\":true", "background"},
        {"\"truncation\":\"auto\"", "truncation"},
        {"\"n\":2", "n"},
        {"\"max_tokens\":5", "max_tokens"},
        {"\"max_output_tokens\":0", "max_output_tokens"},
        {"\"max_output_tokens\":\"many\"", "max_output_tokens"},
        {"\"messages\":[{}]", "messages"},
        {"\"tools\":[{\"type\":\"web_search\"}]", "tools"},
        {"\"tools\":[{\"type\":\"function\"}]", "tools"},
        {"\"tools\":[{\"type\":\"function\",\"name\":\"a.b\"}]", "tools"},
        {"\"tools\":[{\"type\":\"namespace\",\"name\":\"a\",\"tools\":[{\"type\":\"custom\",\"name\":\"b\"}]}]",
         "tools"},
        {"\"tools\":{}", "tools"},
        {"\"tool_choice\":{\"type\":\"file_search\"}", "tool_choice"},
        {"\"tool_choice\":\"sometimes\"", "tool_choice"},
        {"\"tool_choice\":\"required\"", "tool_choice"},
        {"\"text\":{\"format\":{\"type\":\"grammar\"}}", "text"},
        {"\"text\":{\"format\":{\"type\":\"json_schema\"}}", "text"},
        {"\"text\":\"short\"", "text"},
        {"\"reasoning\":\"low\"", "reasoning"},
        {"\"reasoning\":{\"effort\":3}", "reasoning"},
        {"\"include\":\"logprobs\"", "include"},
        {"\"instructions\":[]", "instructions"},
        {"\"temperature\":-1", "temperature"},
        {"\"input\":7", "input"},
        {"\"input\":[]", "input"},
        {"\"input\":[7]", "input"},
        {"\"input\":[{\"content\":\"x\"}]", "input"},
        {"\"input\":[{\"type\":\"item_reference\",\"id\":\"x\"}]", "input"},
        {"\"input\":[{\"type\":\"function_call\",\"name\":\"x\"}]", "input"},
        {"\"input\":[{\"type\":\"function_call_output\",\"output\":\"x\"}]", "input"},
        {"\"input\":[{\"role\":\"user\",\"content\":[{\"type\":\"input_image\",\"image_url\":\"x\"}]}]", "input"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char body[400];
        snprintf(body, sizeof body, "{\"input\":\"SAY:x\",%s}", cases[i].more);
        struct reply r = site_do(site.port, "POST", "/v1/responses", NULL, body);
        struct json *j = json_parse(r.body.data, r.body.len, NULL, NULL);
        const struct json *error = json_find(j, "error");
        if (r.status != 400 || strcmp(json_member_text(error, "param"), cases[i].param) != 0)
            fail_msg("%s: %d %s", body, r.status, r.body.data);
        json_free(j);
        reply_free(&r);
    }
}

/* ---- the answer */

#define WEATHER                                                                                                        \
    "{\"type\":\"function\",\"name\":\"weather\",\"parameters\":{}},{\"type\":\"namespace\",\"name\":\"clock\","       \
    "\"tools\":["                                                                                                      \
    "{\"type\":\"function\",\"name\":\"now\"}]}"

static struct reply ask(const char *says, const char *more)
{
    char body[2000];
    snprintf(body, sizeof body, "{\"input\":\"SAY:%s\",\"max_output_tokens\":500,\"tools\":[" WEATHER "]%s}", says,
             more);
    struct reply r = site_do(site.port, "POST", "/v1/responses", NULL, body);
    if (r.status != 200)
        fail_msg("%s: %s", body, r.body.data);
    return r;
}

/* A response as "status: kind(text) kind(text) ...". */
static void put_response(struct buf *out, const struct json *r)
{
    assert_string_equal(json_member_text(r, "object"), "response");
    buf_printf(out, "%s:", json_member_text(r, "status"));
    for (const struct json *item = json_first(json_find(r, "output")); item; item = json_next(item)) {
        const struct json *part = json_first(json_find(item, "content"));
        const char *type = json_member_text(item, "type");
        if (strcmp(type, "function_call") == 0)
            buf_printf(out, " call(%s%s%s)", json_member_text(item, "namespace"), json_member_text(item, "name"),
                       json_member_text(item, "arguments"));
        else
            buf_printf(out, " %s(%s)", type, json_member_text(part, "text"));
    }
}

static struct buf whole(const char *says, const char *more)
{
    struct reply r = ask(says, more);
    struct json *j = json_parse(r.body.data, r.body.len, NULL, NULL);
    struct buf out = {0};
    put_response(&out, j);
    assert_true(json_member_number(json_find(j, "usage"), "output_tokens") > 0);
    json_free(j);
    reply_free(&r);
    return out;
}

/* The same from a stream's last event; what its deltas make is what its items say. */
static struct buf streamed(const char *says, const char *more)
{
    char fields[200];
    snprintf(fields, sizeof fields, "%s,\"stream\":true", more);
    struct reply r = ask(says, fields);
    struct buf out = {0}, text = {0};
    int number = 0;
    buf_puts(&text, "");
    for (const char *p = r.body.data, *end; p && *p; p = end + 2) {
        end = strstr(p, "\n\n");
        const char *data = strstr(p, "\ndata: ") + 7;
        struct json *j = json_parse(data, (size_t)(end - data), NULL, NULL);
        const char *type = json_member_text(j, "type");
        assert_true(strncmp(p, "event: ", 7) == 0 && strncmp(p + 7, type, strlen(type)) == 0);
        assert_int_equal((int)json_member_number(j, "sequence_number"), number++);
        const char *whole_text = json_text(json_find(j, "text"));
        whole_text = whole_text ? whole_text : json_text(json_find(j, "arguments"));
        if (json_text(json_find(j, "delta"))) {
            buf_puts(&text, json_text(json_find(j, "delta")));
        } else if (whole_text) {
            assert_string_equal(text.data, whole_text);
            buf_clear(&text);
            buf_puts(&text, "");
        }
        if (json_find(j, "response"))
            buf_clear(&out);
        if (json_find(j, "response"))
            put_response(&out, json_find(j, "response"));
        json_free(j);
    }
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

static void answers_are_lists_of_items(void **state)
{
    (void)state;
    check("Paris.", "", "completed: message(Paris.)");
    check("<think>Well.</think>\\n\\nParis.", "", "completed: reasoning(Well.) message(Paris.)");
    check("<think>Well.</think>\\n\\n" CALL, "", "completed: reasoning(Well.) call(weather{\"c\": 1})");
    check("I look." CALL "\\n" CALL, "", "completed: message(I look.) call(weather{\"c\": 1}) call(weather{\"c\": 1})");
    check("I look." CALL "\\n" CALL, ",\"parallel_tool_calls\":false",
          "completed: message(I look.) call(weather{\"c\": 1})");
    check("<think>" CALL "</think>x", "",
          "completed: reasoning(<tool_call>{\"name\":\"weather\",\"arguments\":{\"c\":1}}</tool_call>) message(x)");
    check("<tool_call>{\\\"name\\\":\\\"clock.now\\\",\\\"arguments\\\":{}}</tool_call>", "",
          "completed: call(clocknow{})");
    check("a STOP b", ",\"stop\":\"STOP\"", "completed: message(a )");
    check("<think>Well.</think>x", ",\"separate_reasoning\":false", "completed: message(<think>Well.</think>x)");
    check("<think>Well.</think>x", ",\"include_reasoning\":false", "completed: message(x)");
}

static void one_that_is_cut_off_says_so(void **state)
{
    (void)state;
    struct reply r = site_do(site.port, "POST", "/v1/responses", NULL,
                             "{\"input\":\"SAY:A long answer\",\"max_output_tokens\":6,\"metadata\":{\"a\":\"b\"}}");
    struct json *j = json_parse(r.body.data, r.body.len, NULL, NULL);
    assert_int_equal(r.status, 200);
    assert_string_equal(json_member_text(j, "status"), "incomplete");
    assert_string_equal(json_member_text(json_find(j, "incomplete_details"), "reason"), "max_output_tokens");
    assert_string_equal(json_member_text(json_first(json_find(j, "output")), "status"), "incomplete");
    assert_string_equal(json_member_text(json_find(j, "metadata"), "a"), "b");
    assert_int_equal((int)json_member_number(j, "max_output_tokens"), 6);
    assert_false(json_true(json_find(j, "store")));
    json_free(j);
    reply_free(&r);
}

static void long_members_are_not_repeated(void **state)
{
    (void)state;
    for (int bytes = 100000; bytes <= 200000; bytes += 100000) {
        struct buf body = {0};
        buf_puts(&body,
                 "{\"input\":\"SAY:x\",\"tool_choice\":\"none\",\"tools\":[{\"type\":\"function\",\"name\":\"f\","
                 "\"description\":\"");
        for (int i = 0; i < bytes; i++)
            buf_putc(&body, 'x');
        buf_puts(&body, "\"}]}");
        struct reply r = site_do(site.port, "POST", "/v1/responses", NULL, body.data);
        struct json *j = json_parse(r.body.data, r.body.len, NULL, NULL);
        assert_int_equal(r.status, 200);
        assert_int_equal(json_count(json_find(j, "tools")), bytes < 131072);
        json_free(j);
        reply_free(&r);
        buf_free(&body);
    }
}

static void other_bodies_and_routes(void **state)
{
    (void)state;
    struct reply r = site_do(site.port, "POST", "/v1/responses", NULL, "[1]");
    assert_int_equal(r.status, 400);
    assert_non_null(strstr(r.body.data, "must be a JSON object"));
    reply_free(&r);
    r = site_do(site.port, "GET", "/v1/responses/resp_1", NULL, "");
    assert_int_equal(r.status, 404);
    reply_free(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(requests_become_those_of_chat), cmocka_unit_test(what_is_not_offered_is_refused_by_name),
        cmocka_unit_test(answers_are_lists_of_items),    cmocka_unit_test(one_that_is_cut_off_says_so),
        cmocka_unit_test(long_members_are_not_repeated), cmocka_unit_test(other_bodies_and_routes),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
