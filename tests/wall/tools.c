/* Calls of tools over HTTP, and the fake engine: what clients find in whole answers and in streams. */
#include "tests/rig/front_fixture.h"

static struct site site;

#define CALL(name, arguments) "<tool_call>{\\\"name\\\":\\\"" name "\\\",\\\"arguments\\\":" arguments "}</tool_call>"
#define CITY "{\\\"city\\\":\\\"Paris\\\"}"

static int setup(void **state)
{
    (void)state;
    site_init(&site);
    site.setup.tools = TOOLS_HERMES;
    site_start(&site);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    site_stop(&site);
    return 0;
}

/* What the route answers when the model says this, with further members of the body. */
static struct reply ask(const char *says, const char *more)
{
    char body[2000];
    snprintf(body, sizeof body,
             "{\"messages\":[{\"role\":\"user\",\"content\":\"SAY:%s\"}],\"max_tokens\":500,\"tools\":["
             "{\"type\":\"function\",\"function\":{\"name\":\"now\"}},"
             "{\"type\":\"function\",\"function\":{\"name\":\"weather\",\"parameters\":{}}}]%s}",
             says, more);
    struct reply r = site_do(site.port, "POST", "/v1/chat/completions", NULL, body);
    if (r.status != 200)
        fail_msg("%s: %s", body, r.body.data);
    return r;
}

static void put_calls(struct buf *out, const struct json *calls)
{
    for (const struct json *c = json_first(calls); c; c = json_next(c)) {
        const struct json *f = json_find(c, "function");
        assert_string_equal(json_text(json_find(c, "type")), "function");
        assert_int_equal(strlen(json_text(json_find(c, "id"))), 9);
        buf_printf(out, "|%s(%s)", json_text(json_find(f, "name")), json_text(json_find(f, "arguments")));
    }
}

/* A whole answer as "text|name(arguments)|... reason"; "-": the content is null. */
static struct buf whole(const char *says, const char *more)
{
    struct reply r = ask(says, more);
    struct json *j = json_parse(r.body.data, r.body.len, NULL, NULL);
    const struct json *c = json_first(json_find(j, "choices")), *m = json_find(c, "message");
    const char *content = json_text(json_find(m, "content"));
    struct buf out = {0};
    assert_non_null(m);
    buf_puts(&out, content ? content : "-");
    put_calls(&out, json_find(m, "tool_calls"));
    buf_printf(&out, " %s", json_text(json_find(c, "finish_reason")));
    json_free(j);
    reply_free(&r);
    return out;
}

/* The same put together from the frames of a stream, as clients do. */
static struct buf streamed(const char *says, const char *more)
{
    char fields[200];
    snprintf(fields, sizeof fields, "%s,\"stream\":true", more);
    struct reply r = ask(says, fields);
    struct buf text = {0}, calls = {0}, out = {0};
    char reason[40] = "";
    int n_calls = 0;
    buf_puts(&calls, "");
    for (const char *p = r.body.data; strncmp(p, "data: [DONE]", 12) != 0; p = strstr(p, "\n\n") + 2) {
        struct json *j = json_parse(p + 6, (size_t)(strstr(p, "\n\n") - p) - 6, NULL, NULL);
        const struct json *c = json_first(json_find(j, "choices")), *d = json_find(c, "delta");
        assert_non_null(d);
        assert_false(json_find(d, "content") && json_find(d, "tool_calls"));
        if (json_text(json_find(d, "content")))
            buf_puts(&text, json_text(json_find(d, "content")));
        put_calls(&calls, json_find(d, "tool_calls"));
        for (const struct json *v = json_first(json_find(d, "tool_calls")); v; v = json_next(v))
            assert_int_equal((int)json_member_number(v, "index"), n_calls++);
        if (json_text(json_find(c, "finish_reason")))
            snprintf(reason, sizeof reason, "%s", json_text(json_find(c, "finish_reason")));
        json_free(j);
    }
    buf_printf(&out, "%s%s %s", text.len ? text.data : n_calls ? "-" : "", calls.data, reason);
    buf_free(&text);
    buf_free(&calls);
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

static void calls_come_as_calls(void **state)
{
    (void)state;
    check(CALL("weather", CITY), "", "-|weather({\"city\": \"Paris\"}) tool_calls");
    check("Let me see.\\n" CALL("weather", CITY) "\\n" CALL("now", "{}"), "",
          "Let me see.|weather({\"city\": \"Paris\"})|now({}) tool_calls");
    check("No call, 2 < 3.\\n", "", "No call, 2 < 3.\n stop");
    check(CALL("nobody", "{}"), "", "<tool_call>{\"name\":\"nobody\",\"arguments\":{}}</tool_call> stop");
}

static void what_else_a_request_asks_for_is_kept(void **state)
{
    (void)state;
    const char *raw = "<tool_call>{\"name\":\"now\",\"arguments\":{}}</tool_call> stop";
    check(CALL("now", "{}"), ",\"tool_choice\":\"none\"", raw);
    check(CALL("now", "{}"), ",\"max_tokens\":15", "<tool_call>{\"na length");
    check("a" CALL("now", "{}") "bEND", ",\"stop\":\"END\"", "ab|now({}) tool_calls");
    check("a" CALL("now", "{\\\"t\\\":\\\"END\\\"}"), ",\"stop\":\"END\"",
          "a<tool_call>{\"name\":\"now\",\"arguments\":{\"t\":\" stop");
    check("a" CALL("now", "{}"), ",\"logprobs\":true,\"return_token_ids\":true", "a|now({}) tool_calls");
}

/* Every token's logprob comes, whatever became of its text. */
static void no_logprob_is_lost(void **state)
{
    (void)state;
    struct reply r = ask("a" CALL("now", "{}") "b", ",\"logprobs\":true,\"stream\":true");
    int n = 0;
    for (const char *p = r.body.data; (p = strstr(p, "\"logprob\":-")); p++)
        n++;
    assert_int_equal(n, (int)strlen("a<tool_call>{'name':'now','arguments':{}}</tool_call>b") + 1); /* and the end */
    reply_free(&r);
}

/* It ends there, so that nothing is computed for nothing. */
static void one_call_ends_the_answer_where_one_is_asked_for(void **state)
{
    (void)state;
    static const char says[] = CALL("now", "{}") CALL("weather", CITY) " and so on";
    atomic_store(&site.engine.pause_us, 2000); /* else it has said everything before it hears of the end */
    check(says, ",\"parallel_tool_calls\":false", "-|now({}) tool_calls");
    atomic_store(&site.engine.pause_us, 0);
    check(says, ",\"parallel_tool_calls\":true", " and so on|now({})|weather({\"city\": \"Paris\"}) tool_calls");
    assert_true(site_settles(&site));
    assert_int_equal(site.engine.n_cancelled, 2);
}

static void choices_call_apart(void **state)
{
    (void)state;
    struct reply r = ask(CALL("now", "{}"), ",\"n\":3");
    struct json *j = json_parse(r.body.data, r.body.len, NULL, NULL);
    char ids[3][10];
    int n = 0;
    for (const struct json *c = json_first(json_find(j, "choices")); c; c = json_next(c), n++) {
        const struct json *call = json_first(json_find(json_find(c, "message"), "tool_calls"));
        snprintf(ids[n], sizeof ids[n], "%s", json_text(json_find(call, "id")));
    }
    assert_int_equal(n, 3);
    assert_string_not_equal(ids[0], ids[1]);
    assert_string_not_equal(ids[1], ids[2]);
    json_free(j);
    reply_free(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(calls_come_as_calls), cmocka_unit_test(what_else_a_request_asks_for_is_kept),
        cmocka_unit_test(no_logprob_is_lost),  cmocka_unit_test(one_call_ends_the_answer_where_one_is_asked_for),
        cmocka_unit_test(choices_call_apart),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
