/* The OpenAI routes over the fake engine: shapes that clients depend on, every parameter's range, errors, keys, CORS,
 * cancelling and draining. */
#include "tests/rig/front_fixture.h"

#include "engine/serve/openai/frame.h"
#include "engine/serve/openai/order.h"

static struct site site;
static const char *const keys[] = {"sk-alpha=tenant-a", "sk-beta=tenant-b", "c2VjcmV0=="};

static int setup(void **state)
{
    (void)state;
    site_init(&site);
    site_start(&site);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    site_stop(&site);
    return 0;
}

static struct json *parsed(const struct buf *b)
{
    struct err e = {0};
    struct json *j = json_parse(b->data, b->len, NULL, &e);
    if (!j)
        fail_msg("not JSON (%s): %s", e.text, b->data);
    return j;
}

static const struct json *at(const struct json *j, const char *key)
{
    const struct json *v = json_find(j, key);
    if (!v)
        fail_msg("no member %s", key);
    return v;
}

static const struct json *item(const struct json *array, int i)
{
    const struct json *v = json_first(array);
    while (v && i--)
        v = json_next(v);
    assert_non_null(v);
    return v;
}

static struct json *post(const char *path, const char *body, int status)
{
    struct reply r = site_do(site.port, "POST", path, NULL, body);
    if (r.status != status)
        fail_msg("%s: %d instead of %d: %s", body, r.status, status, r.body.data);
    struct json *j = parsed(&r.body);
    reply_free(&r);
    return j;
}

static int64_t num(const struct json *j, const char *key)
{
    int64_t v = -1;
    assert_true(json_i64(at(j, key), &v));
    return v;
}

/* ---- whole answers */

static void chat_answers_whole(void **state)
{
    (void)state;
    struct json *j =
        post("/v1/chat/completions",
             "{\"model\":\"fake-model\",\"messages\":[{\"role\":\"user\",\"content\":\"SAY:hi \\u00e9\"}]}", 200);
    assert_string_equal(json_text(at(j, "object")), "chat.completion");
    assert_int_equal(strncmp(json_text(at(j, "id")), "chatcmpl-", 9), 0);
    const struct json *c = item(at(j, "choices"), 0);
    assert_string_equal(json_text(at(at(c, "message"), "content")), "hi \xC3\xA9");
    assert_string_equal(json_text(at(at(c, "message"), "role")), "assistant");
    assert_string_equal(json_text(at(c, "finish_reason")), "stop");
    assert_int_equal(json_type(at(c, "logprobs")), JSON_NULL);
    assert_int_equal(num(at(j, "usage"), "prompt_tokens"), 9);
    assert_int_equal(num(at(j, "usage"), "completion_tokens"), 6);
    assert_int_equal(num(at(j, "usage"), "total_tokens"), 15);
    assert_int_equal(num(at(at(j, "usage"), "prompt_tokens_details"), "cached_tokens"), 0);
    json_free(j);
}

static void content_may_be_parts(void **state)
{
    (void)state;
    struct json *j = post("/v1/chat/completions",
                          "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"SAY:a\"},{"
                          "\"type\":\"text\",\"text\":\"b\"}]}],"
                          "\"max_completion_tokens\":50,\"future_field\":{\"x\":1}}",
                          200);
    assert_string_equal(json_text(at(at(item(at(j, "choices"), 0), "message"), "content")), "a\nb");
    json_free(j);
}

static void prompts_come_in_four_shapes(void **state)
{
    (void)state;
    static const char *const bodies[] = {
        "{\"prompt\":\"SAY:q\"}",
        "{\"prompt\":[\"SAY:q\"]}",
        "{\"prompt\":[83,65,89,58,113]}",
        "{\"prompt\":[[83,65,89,58,113]]}",
    };
    for (int i = 0; i < 4; i++) {
        struct json *j = post("/v1/completions", bodies[i], 200);
        assert_string_equal(json_text(at(j, "object")), "text_completion");
        assert_string_equal(json_text(at(item(at(j, "choices"), 0), "text")), "q");
        json_free(j);
    }
    struct json *j = post("/v1/completions", "{\"prompt\":[\"SAY:a\",\"SAY:b\"],\"n\":3}", 200);
    assert_int_equal(json_count(at(j, "choices")), 6);
    for (int i = 0; i < 6; i++) {
        assert_int_equal(num(item(at(j, "choices"), i), "index"), i);
        assert_string_equal(json_text(at(item(at(j, "choices"), i), "text")), i < 3 ? "a" : "b");
    }
    assert_int_equal(num(at(j, "usage"), "prompt_tokens"), 10); /* a prompt counts once, not once a choice */
    json_free(j);
}

static void completions_default_to_16_tokens(void **state)
{
    (void)state;
    struct json *j = post("/v1/completions", "{\"prompt\":\"y\",\"ignore_eos\":true}", 200);
    const struct json *c = item(at(j, "choices"), 0);
    assert_string_equal(json_text(at(c, "text")), "xxxxxxxxxxxxxxxx");
    assert_string_equal(json_text(at(c, "finish_reason")), "length");
    json_free(j);
}

/* What lm-eval slices: one entry for every token of prompt and output. */
static void echo_and_logprobs_cover_prompt_and_output(void **state)
{
    (void)state;
    struct json *j =
        post("/v1/completions",
             "{\"prompt\":[[83,65,89,58,113]],\"max_tokens\":1,\"logprobs\":1,\"echo\":true,\"temperature\":0,"
             "\"seed\":1234}",
             200);
    const struct json *c = item(at(j, "choices"), 0), *l = at(c, "logprobs");
    assert_string_equal(json_text(at(c, "text")), "SAY:qq");
    assert_int_equal(json_count(at(l, "tokens")), 6);
    assert_int_equal(json_count(at(l, "token_logprobs")), 6);
    assert_int_equal(json_count(at(l, "top_logprobs")), 6);
    assert_int_equal(json_count(at(l, "text_offset")), 6);
    assert_int_equal(json_type(item(at(l, "token_logprobs"), 0)), JSON_NULL);
    for (int i = 1; i < 6; i++)
        assert_true(json_count(item(at(l, "top_logprobs"), i)) >= 1);
    json_free(j);
    j = post("/v1/completions", "{\"prompt\":\"SAY:q\",\"max_tokens\":0,\"echo\":true}", 200);
    assert_string_equal(json_text(at(item(at(j, "choices"), 0), "text")), "SAY:q");
    json_free(j);
}

static void chat_logprobs_have_bytes_and_tops(void **state)
{
    (void)state;
    struct json *j = post(
        "/v1/chat/completions",
        "{\"messages\":[{\"role\":\"user\",\"content\":\"SAY:\\u00e9\"}],\"logprobs\":true,\"top_logprobs\":2}", 200);
    const struct json *list = at(at(item(at(j, "choices"), 0), "logprobs"), "content");
    assert_int_equal(json_count(list), 3);
    assert_int_equal(json_count(at(item(list, 0), "top_logprobs")), 2);
    int64_t byte = 0;
    assert_true(json_i64(item(at(item(list, 0), "bytes"), 0), &byte));
    assert_int_equal(byte, 0xC3);
    json_free(j);
}

static void prompt_logprobs_and_token_ids(void **state)
{
    (void)state;
    struct json *j = post(
        "/v1/chat/completions",
        "{\"messages\":[{\"role\":\"user\",\"content\":\"SAY:z\"}],\"prompt_logprobs\":2,\"return_token_ids\":true}",
        200);
    assert_int_equal(json_count(at(j, "prompt_logprobs")), 5);
    assert_int_equal(json_type(item(at(j, "prompt_logprobs"), 0)), JSON_NULL);
    assert_non_null(json_find(at(item(at(j, "prompt_logprobs"), 1), "65"), "decoded_token"));
    assert_int_equal(json_count(at(j, "prompt_token_ids")), 5);
    assert_int_equal(json_count(at(item(at(j, "choices"), 0), "token_ids")), 2);
    json_free(j);
}

static void stop_strings_and_ids(void **state)
{
    (void)state;
    struct json *j =
        post("/v1/completions", "{\"prompt\":\"SAY:one END two\",\"max_tokens\":50,\"stop\":[\"zzz\",\"END\"]}", 200);
    const struct json *c = item(at(j, "choices"), 0);
    assert_string_equal(json_text(at(c, "text")), "one ");
    assert_string_equal(json_text(at(c, "finish_reason")), "stop");
    assert_string_equal(json_text(at(c, "stop_reason")), "END");
    assert_int_equal(num(at(j, "usage"), "completion_tokens"), 7);
    json_free(j);
    j = post("/v1/completions",
             "{\"prompt\":\"SAY:one END two\",\"max_tokens\":50,\"stop\":\"END\",\"include_stop_str_in_output\":true}",
             200);
    assert_string_equal(json_text(at(item(at(j, "choices"), 0), "text")), "one END");
    json_free(j);
    j = post("/v1/completions", "{\"prompt\":\"SAY:abcd\",\"max_tokens\":50,\"stop_token_ids\":[99]}", 200);
    assert_string_equal(json_text(at(item(at(j, "choices"), 0), "text")), "ab");
    assert_int_equal(num(item(at(j, "choices"), 0), "stop_reason"), 99);
    json_free(j);
    j = post("/v1/completions", "{\"prompt\":\"SAY:aXbXc\",\"max_tokens\":50,\"stop\":\"X\",\"min_tokens\":3}", 200);
    assert_string_equal(json_text(at(item(at(j, "choices"), 0), "text")), "aXb");
    json_free(j);
    assert_true(site_settles(&site));
}

/* ---- streams */

static struct buf stream(const char *path, const char *body)
{
    struct reply r = site_do(site.port, "POST", path, NULL, body);
    assert_int_equal(r.status, 200);
    assert_non_null(reply_header(&r, "content-type: text/event-stream"));
    struct buf b = r.body;
    r.body = (struct buf){0};
    reply_free(&r);
    return b;
}

/* The next frame's JSON; NULL at [DONE]. */
static struct json *frame(const char **at_text)
{
    assert_int_equal(strncmp(*at_text, "data: ", 6), 0);
    const char *end = strstr(*at_text, "\n\n");
    assert_non_null(end);
    struct buf b = {0};
    buf_put(&b, *at_text + 6, (size_t)(end - *at_text) - 6);
    *at_text = end + 2;
    struct json *j = strcmp(b.data, "[DONE]") == 0 ? NULL : parsed(&b);
    buf_free(&b);
    return j;
}

static void chat_streams_as_clients_need(void **state)
{
    (void)state;
    struct buf b = stream("/v1/chat/completions",
                          "{\"messages\":[{\"role\":\"user\",\"content\":\"SAY:h\\u00e9!\"}],\"stream\":true,"
                          "\"stream_options\":{\"include_usage\":true,\"continuous_usage_stats\":true}}");
    const char *p = b.data;
    struct json *j = frame(&p);
    const struct json *c = item(at(j, "choices"), 0);
    assert_string_equal(json_text(at(j, "object")), "chat.completion.chunk");
    assert_string_equal(json_text(at(at(c, "delta"), "role")), "assistant");
    assert_string_equal(json_text(at(at(c, "delta"), "content")), "");
    assert_int_equal(json_type(at(c, "finish_reason")), JSON_NULL);
    json_free(j);
    static const char *const texts[] = {"h", "\xC3\xA9", "!"}; /* two byte tokens, one character, one frame */
    static const int counts[] = {1, 3, 4};
    for (int i = 0; i < 3; i++) {
        j = frame(&p);
        c = item(at(j, "choices"), 0);
        assert_string_equal(json_text(at(at(c, "delta"), "content")), texts[i]);
        assert_int_equal(json_type(at(c, "finish_reason")), JSON_NULL);
        assert_int_equal(num(at(j, "usage"), "completion_tokens"), counts[i]);
        json_free(j);
    }
    j = frame(&p);
    c = item(at(j, "choices"), 0);
    assert_int_equal(json_count(at(c, "delta")), 0);
    assert_string_equal(json_text(at(c, "finish_reason")), "stop");
    json_free(j);
    j = frame(&p);
    assert_int_equal(json_count(at(j, "choices")), 0);
    assert_int_equal(num(at(j, "usage"), "total_tokens"), 13);
    json_free(j);
    assert_null(frame(&p));
    assert_string_equal(p, "");
    buf_free(&b);
}

static void usage_frames_come_only_when_asked_for(void **state)
{
    (void)state;
    struct buf b = stream("/v1/completions", "{\"prompt\":\"SAY:abc\",\"stream\":true}");
    assert_null(strstr(b.data, "usage"));
    assert_null(strstr(b.data, "\"choices\":[]"));
    assert_non_null(strstr(b.data, "\"object\":\"text_completion\""));
    assert_string_equal(b.data + b.len - 14, "data: [DONE]\n\n");
    buf_free(&b);
}

static void streamed_text_equals_the_whole_one(void **state)
{
    (void)state;
    static const char *const bodies[] = {
        "{\"prompt\":[\"SAY:a END b\",\"SAY:ENENEND\"],\"n\":2,\"max_tokens\":50,\"stop\":\"END\",\"stream\":true}",
        "{\"prompt\":\"SAY:\\u4f60\\u597d\\ud83d\\ude00 ok\",\"max_tokens\":50,\"stream\":true,\"logprobs\":1}",
        "{\"prompt\":[83,65,89,58,228,189,65,255],\"max_tokens\":50,\"stream\":true,\"return_token_ids\":true}",
        "{\"prompt\":\"SAY:echoed\",\"echo\":true,\"logprobs\":1,\"max_tokens\":3,\"stream\":true}",
    };
    for (int i = 0; i < 4; i++) {
        struct buf got[4] = {{0}}, b = stream("/v1/completions", bodies[i]);
        size_t logprobs = 0;
        const char *p = b.data;
        for (struct json *j; (j = frame(&p));) {
            const struct json *c = item(at(j, "choices"), 0);
            buf_puts(&got[num(c, "index")], json_text(at(c, "text")));
            logprobs += json_count(json_find(at(c, "logprobs"), "tokens"));
            json_free(j);
        }
        buf_free(&b);
        char whole[400];
        snprintf(whole, sizeof whole, "%s", bodies[i]);
        memcpy(strstr(whole, "\"stream\":true"), "\"seed\" :    1", 13);
        struct json *j = post("/v1/completions", whole, 200);
        for (const struct json *c = json_first(at(j, "choices")); c; c = json_next(c)) {
            int64_t k = num(c, "index");
            assert_string_equal(json_text(at(c, "text")), got[k].data ? got[k].data : "");
            buf_free(&got[k]);
        }
        if (json_find(at(item(at(j, "choices"), 0), "logprobs"), "tokens"))
            assert_int_equal(logprobs, json_count(at(at(item(at(j, "choices"), 0), "logprobs"), "tokens")));
        json_free(j);
    }
}

/* A front that is behind hears of several tokens at once: the answer is the one that it would have been. */
static void tokens_that_come_together_are_the_same(void **state)
{
    (void)state;
    static const char *const rest[] = {"one END two\",\"stop\":\"END\"", "\\u4f60\\u597d ok\",\"logprobs\":2",
                                       "abcdefgh\",\"max_tokens\":5", "a\",\"n\":3"};
    for (int i = 0; i < 4; i++) {
        struct json *answers[2];
        for (int together = 0; together < 2; together++) {
            char body[200];
            snprintf(body, sizeof body, "{\"prompt\":\"%s:%s%s}", together ? "RUN" : "SAY", rest[i],
                     i == 2 ? "" : ",\"max_tokens\":50");
            answers[together] = post("/v1/completions", body, 200);
        }
        const struct json *a = json_first(at(answers[0], "choices")), *b = json_first(at(answers[1], "choices"));
        for (; a && b; a = json_next(a), b = json_next(b)) {
            assert_string_equal(json_text(at(a, "text")), json_text(at(b, "text")));
            assert_string_equal(json_text(at(a, "finish_reason")), json_text(at(b, "finish_reason")));
            if (i == 1)
                assert_int_equal(json_count(at(at(a, "logprobs"), "tokens")),
                                 json_count(at(at(b, "logprobs"), "tokens")));
        }
        assert_true(!a && !b);
        json_free(answers[0]);
        json_free(answers[1]);
    }
    assert_true(site_settles(&site));
}

static void failures_after_the_headers_are_error_events(void **state)
{
    (void)state;
    struct buf b = stream("/v1/completions", "{\"prompt\":\"ERROR\",\"stream\":true}");
    assert_non_null(strstr(b.data, "\"text\":\"e\""));
    const char *e = strstr(b.data, "data: {\"error\":{\"message\":\"the device failed\"");
    assert_non_null(e);
    assert_null(strstr(b.data, "[DONE]"));
    buf_free(&b);
    json_free(post("/v1/completions", "{\"prompt\":\"ERROR\"}", 500));
}

static void refusals_carry_status_and_retry_after(void **state)
{
    (void)state;
    struct reply r = site_do(site.port, "POST", "/v1/completions", NULL, "{\"prompt\":\"REFUSE\",\"stream\":true}");
    assert_int_equal(r.status, 429);
    assert_int_equal(atoi(reply_header(&r, "retry-after:")), 7);
    assert_non_null(strstr(r.body.data, "\"not now\""));
    reply_free(&r);
    r = site_do(site.port, "POST", "/v1/completions", NULL, "{\"prompt\":[\"HANG\",\"FULL\"]}");
    assert_int_equal(r.status, 503);
    assert_non_null(reply_header(&r, "retry-after:"));
    reply_free(&r);
    assert_true(site_settles(&site)); /* the sibling was cancelled */
}

/* ---- parameters */

static void bad_requests_name_what_is_wrong(void **state)
{
    (void)state;
    static const struct {
        const char *path, *body, *param;
        int status;
    } cases[] = {
        {"/v1/completions", "", NULL, 400},
        {"/v1/completions", "{", NULL, 400},
        {"/v1/completions", "[]", NULL, 400},
        {"/v1/completions", "{\"prompt\":\"a\"}x", NULL, 400},
        {"/v1/completions", "{\"prompt\":\"a\xff\"}", NULL, 400},
        {"/v1/completions", "{}", "prompt", 400},
        {"/v1/completions", "{\"prompt\":5}", "prompt", 400},
        {"/v1/completions", "{\"prompt\":\"\"}", "prompt", 400},
        {"/v1/completions", "{\"prompt\":[]}", "prompt", 400},
        {"/v1/completions", "{\"prompt\":[[]]}", "prompt", 400},
        {"/v1/completions", "{\"prompt\":[1,\"a\"]}", "prompt", 400},
        {"/v1/completions", "{\"prompt\":[512]}", "prompt", 400},
        {"/v1/completions", "{\"prompt\":[-1]}", "prompt", 400},
        {"/v1/completions", "{\"prompt\":[1.5]}", "prompt", 400},
        {"/v1/completions", "{\"model\":\"other\",\"prompt\":\"a\"}", "model", 404},
        {"/v1/completions", "{\"model\":1,\"prompt\":\"a\"}", "model", 400},
        {"/v1/completions", "{\"prompt\":\"a\",\"temperature\":-0.1}", "temperature", 400},
        {"/v1/completions", "{\"prompt\":\"a\",\"temperature\":\"1\"}", "temperature", 400},
        {"/v1/completions", "{\"prompt\":\"a\",\"top_p\":0}", "top_p", 400},
        {"/v1/completions", "{\"prompt\":\"a\",\"top_p\":1.01}", "top_p", 400},
        {"/v1/completions", "{\"prompt\":\"a\",\"min_p\":2}", "min_p", 400},
        {"/v1/completions", "{\"prompt\":\"a\",\"top_k\":-2}", "top_k", 400},
        {"/v1/completions", "{\"prompt\":\"a\",\"top_k\":1.5}", "top_k", 400},
        {"/v1/completions", "{\"prompt\":\"a\",\"top_k\":1e300}", "top_k", 400},
        {"/v1/completions", "{\"prompt\":\"a\",\"n\":0}", "n", 400},
        {"/v1/completions", "{\"prompt\":\"a\",\"n\":129}", "n", 400},
        {"/v1/completions", "{\"prompt\":\"a\",\"n\":true}", "n", 400},
        {"/v1/completions", "{\"prompt\":\"a\",\"max_tokens\":0}", "max_tokens", 400},
        {"/v1/completions", "{\"prompt\":\"a\",\"max_tokens\":-1}", "max_tokens", 400},
        {"/v1/completions", "{\"prompt\":\"a\",\"max_tokens\":99999999999999999999}", "max_tokens", 400},
        {"/v1/completions", "{\"prompt\":\"a\",\"max_tokens\":4096}", "prompt", 400},
        {"/v1/completions", "{\"prompt\":\"a\",\"min_tokens\":20}", "min_tokens", 400},
        {"/v1/completions", "{\"prompt\":\"a\",\"frequency_penalty\":2.1}", "frequency_penalty", 400},
        {"/v1/completions", "{\"prompt\":\"a\",\"presence_penalty\":-2.1}", "presence_penalty", 400},
        {"/v1/completions", "{\"prompt\":\"a\",\"repetition_penalty\":0}", "repetition_penalty", 400},
        {"/v1/completions", "{\"prompt\":\"a\",\"seed\":1.5}", "seed", 400},
        {"/v1/completions", "{\"prompt\":\"a\",\"seed\":9223372036854775808}", "seed", 400},
        {"/v1/completions", "{\"prompt\":\"a\",\"stop\":\"\"}", "stop", 400},
        {"/v1/completions", "{\"prompt\":\"a\",\"stop\":[1]}", "stop", 400},
        {"/v1/completions", "{\"prompt\":\"a\",\"stop_token_ids\":[600]}", "stop_token_ids", 400},
        {"/v1/completions", "{\"prompt\":\"a\",\"logit_bias\":{\"x\":1}}", "logit_bias", 400},
        {"/v1/completions", "{\"prompt\":\"a\",\"logit_bias\":{\"1\":101}}", "logit_bias", 400},
        {"/v1/completions", "{\"prompt\":\"a\",\"logit_bias\":{\"1\":1,\"01\":2}}", "logit_bias", 400},
        {"/v1/completions", "{\"prompt\":\"a\",\"logprobs\":21}", "logprobs", 400},
        {"/v1/completions", "{\"prompt\":\"a\",\"logprobs\":true}", "logprobs", 400},
        {"/v1/completions", "{\"prompt\":\"a\",\"allowed_token_ids\":[]}", "allowed_token_ids", 400},
        {"/v1/completions", "{\"prompt\":\"a\",\"cache_salt\":\"\"}", "cache_salt", 400},
        {"/v1/completions", "{\"prompt\":\"a\",\"priority\":1e10}", "priority", 400},
        {"/v1/completions", "{\"prompt\":\"a\",\"stream\":1}", "stream", 400},
        {"/v1/completions", "{\"prompt\":\"a\",\"stream_options\":{\"include_usage\":true}}", "stream_options", 400},
        {"/v1/completions", "{\"prompt\":\"a\",\"stream\":true,\"prompt_logprobs\":1}", "prompt_logprobs", 400},
        {"/v1/completions", "{\"prompt\":\"a\",\"truncate_prompt_tokens\":0}", "truncate_prompt_tokens", 400},
        {"/v1/completions", "{\"prompt\":\"a\",\"suffix\":\"b\"}", "suffix", 400},
        {"/v1/completions", "{\"prompt\":\"a\",\"best_of\":2}", "best_of", 400},
        {"/v1/completions", "{\"prompt\":\"a\",\"use_beam_search\":true}", "use_beam_search", 400},
        {"/v1/completions", "{\"prompt\":\"a\",\"guided_grammar\":\"root ::= a\"}", "guided_grammar", 400},
        {"/v1/chat/completions", "{}", "messages", 400},
        {"/v1/chat/completions", "{\"messages\":[]}", "messages", 400},
        {"/v1/chat/completions", "{\"messages\":[1]}", "messages", 400},
        {"/v1/chat/completions", "{\"messages\":[{\"content\":\"a\"}]}", "messages", 400},
        {"/v1/chat/completions", "{\"messages\":[{\"role\":\"user\",\"content\":5}]}", "messages", 400},
        {"/v1/chat/completions",
         "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\",\"image_url\":{}}]}]}", "messages",
         400},
        {"/v1/chat/completions", "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"top_logprobs\":3}",
         "top_logprobs", 400},
        {"/v1/chat/completions",
         "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"tool_choice\":\"required\",\"tools\":[{}]}", "tools",
         400},
        {"/v1/chat/completions",
         "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"tool_choice\":{\"type\":\"function\"}}",
         "tool_choice", 400},
        {"/v1/chat/completions",
         "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"continue_final_message\":true}",
         "continue_final_message", 400},
        {"/v1/chat/completions", "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"chat_template_kwargs\":1}",
         "chat_template_kwargs", 400},
        {"/tokenize", "{}", "prompt", 400},
        {"/detokenize", "{}", "tokens", 400},
        {"/detokenize", "{\"tokens\":[999]}", "tokens", 400},
    };
    int before = site.engine.n_submitted;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct json *j = post(cases[i].path, cases[i].body, cases[i].status);
        const struct json *e = at(j, "error"), *param = at(e, "param");
        assert_non_null(json_text(at(e, "message")));
        assert_string_equal(json_text(at(e, "type")), "invalid_request_error");
        if (cases[i].param && (!json_text(param) || strcmp(json_text(param), cases[i].param)))
            fail_msg("%s: param %s instead of %s", cases[i].body, json_text(param) ? json_text(param) : "null",
                     cases[i].param);
        json_free(j);
    }
    assert_int_equal(site.engine.n_submitted, before);
}

/* What would change the answer and is not offered here is refused by name; what is off, or has the right type, passes.
 */
static void nothing_is_ignored_in_silence(void **state)
{
    (void)state;
    static const struct {
        const char *path, *field, *param; /* param NULL: it passes */
    } cases[] = {
        {"/v1/completions", "\"lora\":[{\"id\":0,\"scale\":1}]", "lora"},
        {"/v1/completions", "\"lora\":[]", NULL},
        {"/v1/completions", "\"typical_p\":0.9", "typical_p"},
        {"/v1/completions", "\"typical_p\":1.0", NULL},
        {"/v1/completions", "\"mirostat\":2", "mirostat"},
        {"/v1/completions", "\"mirostat\":0", NULL},
        {"/v1/completions", "\"repeat_penalty\":1.1", "repeat_penalty"},
        {"/v1/completions", "\"n_predict\":5", "n_predict"},
        {"/v1/completions", "\"n_predict\":-1", NULL},
        {"/v1/completions", "\"extra_body\":{\"prompt_logprobs\":2}", "extra_body"},
        {"/v1/completions", "\"top_logprobs\":2", "top_logprobs"},
        {"/v1/completions", "\"max_completion_tokens\":9", "max_completion_tokens"},
        {"/v1/completions", "\"continue_final_message\":true", "continue_final_message"},
        {"/v1/completions", "\"continue_final_message\":false", NULL},
        {"/v1/completions", "\"add_generation_prompt\":true", NULL},
        {"/v1/completions", "\"prompt_logprobs\":2,\"stream\":true", "prompt_logprobs"},
        {"/v1/completions", "\"user\":5", "user"},
        {"/v1/completions", "\"request_id\":[1]", "request_id"},
        {"/v1/completions", "\"user\":null", NULL},
        {"/v1/completions", "\"user\":\"me\",\"request_id\":\"r\",\"metadata\":{},\"some_new_field\":7", NULL},
        {"/v1/chat/completions", "\"chat_template\":\"{{ 1 }}\"", "chat_template"},
        {"/v1/chat/completions", "\"tools\":{}", "tools"},
        {"/v1/chat/completions", "\"tools\":[5]", "tools"},
        {"/v1/chat/completions", "\"tools\":[{\"type\":\"function\"}]", "tools"},
        {"/v1/chat/completions", "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]", NULL},
        {"/v1/chat/completions", "\"parallel_tool_calls\":1", "parallel_tool_calls"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bool chat = strcmp(cases[i].path, "/v1/chat/completions") == 0;
        char body[300];
        snprintf(body, sizeof body, "{%s,%s,\"max_tokens\":2}",
                 chat ? "\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]" : "\"prompt\":\"a\"", cases[i].field);
        struct json *j = post(cases[i].path, body, cases[i].param ? 400 : 200);
        if (cases[i].param)
            assert_string_equal(json_text(at(at(j, "error"), "param")), cases[i].param);
        json_free(j);
    }
}

/* A template that never looks at tools would answer with prose. */
static void tools_that_the_template_ignores_are_refused(void **state)
{
    (void)state;
    struct site s;
    struct err e = {0};
    site_init(&s);
    chat_free(s.chat);
    assert_int_equal(chat_compile(&s.chat, "{{ messages }}", 14, &e), 0);
    s.setup.chat = s.chat;
    site_start(&s);
    static const char *const choices[] = {"\"auto\"", "\"required\"", "\"none\""};
    for (int i = 0; i < 3; i++) {
        char body[300];
        snprintf(body, sizeof body,
                 "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"max_tokens\":2,\"tool_choice\":%s,"
                 "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]}",
                 choices[i]);
        struct reply r = site_do(s.port, "POST", "/v1/chat/completions", NULL, body);
        assert_int_equal(r.status, i == 2 ? 200 : 400);
        assert_true(i == 2 || strstr(r.body.data, "--chat-template"));
        reply_free(&r);
    }
    site_stop(&s);
}

/* One request with many sequences: it has half of the places, queues no more than a step of prompts, and leaves room
 * for others. */
static void a_request_takes_no_more_than_its_places(void **state)
{
    (void)state;
    struct site s;
    site_init(&s);
    s.setup.max_num_seqs = 8;
    s.setup.max_num_batched_tokens = 64;
    s.setup.max_live = 40;
    site_start(&s);
    int fd = site_connect(s.port);
    site_post_on(fd, "POST", "/v1/completions", NULL, "{\"prompt\":\"HANG\",\"n\":16,\"max_tokens\":9}");
    assert_true(site_has_seen(&s, 4)); /* each begins as soon as it is there, so only the places count */
    struct reply r = site_do(s.port, "POST", "/v1/completions", NULL, "{\"prompt\":\"SAY:other\"}");
    assert_int_equal(r.status, 200);
    reply_free(&r);
    assert_int_equal(s.engine.n_submitted, 5);
    r = site_do(s.port, "POST", "/v1/completions", NULL,
                "{\"prompt\":\"SAY:a\",\"n\":30}"); /* 16 and 30 are more than 40 */
    assert_int_equal(r.status, 503);
    assert_non_null(strstr(r.body.data, "asks for 30 sequences, and there is room for 24"));
    assert_non_null(reply_header(&r, "retry-after:"));
    reply_free(&r);
    close(fd);
    assert_true(site_settles(&s));
    r = site_do(s.port, "POST", "/v1/completions", NULL,
                "{\"prompt\":[\"SAY:ab\",\"SAY:cd\",\"SAY:ef\"],\"n\":10}"); /* all of them come in the end */
    assert_int_equal(r.status, 200);
    struct json *j = parsed(&r.body);
    assert_int_equal(json_count(at(j, "choices")), 30);
    for (int i = 0; i < 30; i++)
        assert_string_equal(json_text(at(item(at(j, "choices"), i), "text")), i < 10 ? "ab" : i < 20 ? "cd" : "ef");
    json_free(j);
    reply_free(&r);
    assert_true(s.engine.most_live <= 5);
    site_stop(&s);
}

/* The sequences of a request share its lists: they cost memory once. */
static void lists_are_shared_by_sequences(void **state)
{
    (void)state;
    enum { VOCAB = 50000 };
    struct tokenizer *t;
    struct err e = {0};
    assert_int_equal(tokenizer_bytes(&t, VOCAB, &e), 0);
    const struct front_text model_text = {.tokenizer = t,
                                          .bos = (char *)(uintptr_t) "",
                                          .eos = (char *)(uintptr_t) "",
                                          .n_vocab = VOCAB,
                                          .max_model_len = 100};
    struct openai_order *o = mem_new(sizeof *o);
    *o = (struct openai_order){.model_text = &model_text,
                               .names = site_names,
                               .n_names = 1,
                               .api = &openai_completions_api,
                               .max_specs = 4096};
    buf_puts(&o->body,
             "{\"max_tokens\":1,\"n\":4,\"logit_bias\":{\"5\":1},\"prompt\":[\"a\",\"b\"],\"allowed_token_ids\":[0");
    for (int i = VOCAB - 1; i > 0; i--)
        buf_printf(&o->body, ",%d", i);
    buf_puts(&o->body, "]}");
    openai_order_read(&o->job);
    assert_int_equal(o->fault.status, 0);
    assert_int_equal(o->n_specs, 8);
    for (int i = 0; i < 8; i++) {
        assert_ptr_equal(o->specs[i]->sampling.allowed, o->specs[0]->sampling.allowed);
        assert_ptr_equal(o->specs[i]->sampling.bias, o->specs[0]->sampling.bias);
        assert_int_equal(o->specs[i]->sampling.n_allowed, VOCAB);
        assert_int_equal(o->specs[i]->n_siblings, 4);
    }
    struct request_spec *last = o->specs[7];
    o->specs[7] = NULL;
    openai_order_free(o);
    assert_int_equal(last->sampling.allowed[VOCAB - 1], VOCAB - 1); /* it outlives the others */
    request_spec_free(last);
    tokenizer_free(t);
}

static void good_requests_pass(void **state)
{
    (void)state;
    static const char *const bodies[] = {
        "{\"prompt\":\"a\",\"temperature\":0,\"top_p\":1,\"top_k\":-1,\"min_p\":0,\"seed\":-9223372036854775808,\"n\":"
        "1,\"best_of\":1}",
        "{\"prompt\":\"a\",\"logit_bias\":{\"1\":-100,\"511\":100},\"stop\":[],\"suffix\":null,\"logprobs\":null,"
        "\"user\":\"u\",\"priority\":-5}",
        "{\"prompt\":\"a\",\"response_format\":{\"type\":\"text\"},\"structured_outputs\":null,\"max_tokens\":4095,"
        "\"vllm_xargs\":{\"a\":1}}",
        "{\"prompt\":\"a\",\"model\":null,\"stream\":false,\"stream_options\":null,\"cache_salt\":\"s\",\"repetition_"
        "penalty\":1.0}",
        "{\"prompt\":\"abcdef\",\"truncate_prompt_tokens\":3,\"model\":\"alias/of it\",\"n\":2.0,\"bad_words\":[]}",
    };
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++)
        json_free(post("/v1/completions", bodies[i], 200));
    json_free(post(
        "/v1/chat/completions",
        "{\"messages\":[{\"role\":\"developer\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":null,\"tool_"
        "calls\":["
        "{\"id\":\"1\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"a\\\":1}\"}}]},{"
        "\"role\":\"tool\","
        "\"tool_call_id\":\"1\",\"content\":\"b\"}],\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}],"
        "\"tool_choice\":\"auto\",\"max_tokens\":2,\"chat_template_kwargs\":{\"enable_thinking\":false},\"parallel_"
        "tool_calls\":true}",
        200));
    assert_true(site_settles(&site));
}

static void too_long_prompts_say_the_numbers(void **state)
{
    (void)state;
    struct buf b = {0};
    buf_puts(&b, "{\"messages\":[{\"role\":\"user\",\"content\":\"");
    for (int i = 0; i < 5000; i++)
        buf_putc(&b, 'a');
    buf_puts(&b, "\"}]}");
    struct json *j = post("/v1/chat/completions", b.data, 400);
    const struct json *e = at(j, "error");
    assert_string_equal(json_text(at(e, "code")), "context_length_exceeded");
    assert_int_equal(num(e, "n_prompt_tokens"), 5000);
    assert_int_equal(num(e, "n_ctx"), 4096);
    json_free(j);
    buf_free(&b);
}

/* ---- models, tokens, ids, CORS, keys */

static void models_are_listed(void **state)
{
    (void)state;
    struct reply r = site_do(site.port, "GET", "/v1/models", NULL, "");
    struct json *j = parsed(&r.body);
    assert_int_equal(json_count(at(j, "data")), 2);
    assert_string_equal(json_text(at(item(at(j, "data"), 0), "id")), "fake-model");
    assert_string_equal(json_text(at(item(at(j, "data"), 0), "root")), "fake-model");
    assert_int_equal(num(item(at(j, "data"), 0), "max_model_len"), 4096);
    json_free(j);
    reply_free(&r);
    r = site_do(site.port, "GET", "/v1/models/alias%2Fof%20it", NULL, "");
    assert_int_equal(r.status, 200);
    reply_free(&r);
    r = site_do(site.port, "GET", "/v1/models/nope", NULL, "");
    assert_int_equal(r.status, 404);
    reply_free(&r);
    r = site_do(site.port, "POST", "/v1/embeddings", NULL, "{}");
    assert_int_equal(r.status, 501);
    reply_free(&r);
}

static void tokens_go_round(void **state)
{
    (void)state;
    struct json *j =
        post("/tokenize", "{\"prompt\":\"h\\u00e9\",\"add_special_tokens\":false,\"return_token_strs\":true}", 200);
    assert_int_equal(num(j, "count"), 3);
    assert_int_equal(json_count(at(j, "token_strs")), 3);
    json_free(j);
    j = post("/tokenize", "{\"messages\":[{\"role\":\"user\",\"content\":\"abc\"}]}", 200);
    assert_int_equal(num(j, "count"), 3);
    json_free(j);
    j = post("/detokenize", "{\"tokens\":[104,195,169]}", 200);
    assert_string_equal(json_text(at(j, "prompt")), "h\xC3\xA9");
    json_free(j);
}

static void request_ids_are_echoed(void **state)
{
    (void)state;
    struct reply r =
        site_do(site.port, "POST", "/v1/completions", "X-Request-Id: bench-7\r\n", "{\"prompt\":\"SAY:a\"}");
    assert_int_equal(strncmp(reply_header(&r, "x-request-id: "), "bench-7\r\n", 9), 0);
    assert_non_null(strstr(r.body.data, "\"cmpl-bench-7\""));
    reply_free(&r);
    r = site_do(site.port, "POST", "/v1/completions", "X-Request-Id: a\"b\r\n", "{\"prompt\":\"SAY:a\"}");
    assert_null(strstr(r.body.data, "a\"b"));
    reply_free(&r);
}

static void keys_name_tenants_and_cors_is_by_list(void **state)
{
    (void)state;
    struct site s;
    static const char *const origins[] = {"https://a.example"};
    site_init(&s);
    s.setup.api_keys = keys;
    s.setup.n_api_keys = 3;
    s.setup.origins = origins;
    s.setup.n_origins = 1;
    s.setup.admin_key = "root";
    site_start(&s);
    static const struct {
        const char *path, *header;
        int status;
    } cases[] = {
        {"/v1/models", "", 401},
        {"/v1/models", "Authorization: Bearer nope\r\n", 401},
        {"/v1/models", "Authorization: Basic sk-alpha\r\n", 401},
        {"/v1/models", "Authorization: Bearer sk-alpha\r\n", 200},
        {"/v1/models", "authorization: bearer sk-beta\r\n", 200},
        {"/v1/models", "Authorization: Bearer sk-alpha=tenant-a\r\n", 401},
        {"/v1/models", "Authorization: Bearer c2VjcmV0==\r\n", 200},
        {"/health", "", 200},
        {"/metrics", "", 200},
        {"/v1/nope", "", 401},
        {"/tokenizer_info", "", 401},
        {"/nope", "", 401},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct reply r = site_do(s.port, "GET", cases[i].path, cases[i].header, "");
        if (r.status != cases[i].status)
            fail_msg("%s %s: %d", cases[i].path, cases[i].header, r.status);
        reply_free(&r);
    }
    struct reply r = site_do(s.port, "OPTIONS", "/v1/models",
                             "Origin: https://a.example\r\nAccess-Control-Request-Headers: x-a\r\n", "");
    assert_int_equal(r.status, 204);
    assert_non_null(reply_header(&r, "access-control-allow-origin: https://a.example"));
    assert_non_null(reply_header(&r, "access-control-allow-headers: x-a"));
    reply_free(&r);
    r = site_do(s.port, "OPTIONS", "/v1/models", "Origin: https://b.example\r\n", "");
    assert_null(reply_header(&r, "access-control-allow-origin:"));
    reply_free(&r);
    r = site_do(s.admin_port, "GET", "/admin/state", NULL, "");
    assert_int_equal(r.status, 401);
    reply_free(&r);
    r = site_do(s.admin_port, "GET", "/admin/state", "Authorization: Bearer root\r\nOrigin: http://evil\r\n", "");
    assert_int_equal(r.status, 403);
    reply_free(&r);
    r = site_do(s.admin_port, "GET", "/admin/state", "Authorization: Bearer root\r\n", "");
    assert_int_equal(r.status, 200);
    reply_free(&r);
    r = site_do(s.port, "GET", "/admin/state", "Authorization: Bearer sk-alpha\r\n", "");
    assert_int_equal(r.status, 404); /* not on the public listener */
    reply_free(&r);
    site_stop(&s);
}

static void an_open_admin_listener_is_refused(void **state)
{
    (void)state;
    struct site s;
    struct err e = {0};
    site_init(&s);
    fake_start(&s.engine);
    s.setup.inbox = s.engine.inbox;
    s.setup.outbox = s.engine.outbox;
    s.setup.admin_host = "0.0.0.0";
    assert_int_equal(server_create(&s.server, &s.setup, &e), E_INPUT);
    assert_non_null(strstr(e.text, "--admin-key"));
    s.setup.admin_host = NULL;
    s.setup.port = site.port;
    assert_int_equal(server_create(&s.server, &s.setup, &e), E_SYS);
    assert_non_null(strstr(e.text, "in use"));
    fake_stop(&s.engine);
    fake_free(&s.engine);
    chat_free(s.chat);
    tokenizer_free(s.tokenizer);
}

/* ---- load bounds, pings, draining */

static void the_front_bounds_what_it_lets_in(void **state)
{
    (void)state;
    struct site s;
    site_init(&s);
    s.setup.max_live = 2;
    site_start(&s);
    int a = site_connect(s.port), b = site_connect(s.port);
    site_post_on(a, "POST", "/v1/completions", NULL, "{\"prompt\":\"HANG\",\"max_tokens\":9}");
    site_post_on(b, "POST", "/v1/completions", NULL, "{\"prompt\":\"HANG\",\"max_tokens\":9}");
    assert_true(site_has_seen(&s, 2));
    struct reply r = site_do(s.port, "POST", "/v1/completions", NULL, "{\"prompt\":\"SAY:a\"}");
    assert_int_equal(r.status, 503);
    assert_non_null(reply_header(&r, "retry-after:"));
    reply_free(&r);
    close(a);
    close(b);
    assert_true(site_settles(&s));
    site_stop(&s);
}

static void long_prefills_are_bridged_by_comments(void **state)
{
    (void)state;
    struct site s;
    site_init(&s);
    s.setup.ping_s = 1;
    s.engine.prompt_pause_ms = 2500;
    site_start(&s);
    struct reply r = site_do(s.port, "POST", "/v1/chat/completions", NULL,
                             "{\"messages\":[{\"role\":\"user\",\"content\":\"SAY:a\"}],\"stream\":true}");
    assert_int_equal(r.status, 200);
    assert_int_equal(strncmp(r.body.data, ": ping\n\n", 8), 0);
    assert_non_null(strstr(r.body.data, "\"content\":\"a\""));
    assert_non_null(strstr(r.body.data, "data: [DONE]"));
    reply_free(&r);
    site_stop(&s);
}

/* A prompt that takes long to read goes its own way: short requests sent after it are answered before it. */
static void long_prompts_hold_nobody_up(void **state)
{
    (void)state;
    struct buf b = {0};
    buf_puts(&b, "{\"prompt\":\"");
    for (int i = 0; i < 8 << 20; i++)
        buf_putc(&b, (char)('a' + i % 26));
    buf_puts(&b, "\"}");
    int big = site_connect(site.port);
    site_post_on(big, "POST", "/tokenize", NULL, b.data);
    struct reply r = site_do(site.port, "POST", "/v1/completions", NULL, "{\"prompt\":\"SAY:quick\"}");
    struct pollfd p = {big, POLLIN, 0};
    bool first = poll(&p, 1, 0) == 0;
    assert_int_equal(r.status, 200);
    reply_free(&r);
    r = site_reply(big, NULL);
    assert_int_equal(r.status, 200);
    assert_non_null(strstr(r.body.data, "\"count\":8388608,"));
    assert_true(first);
    reply_free(&r);
    close(big);
    buf_free(&b);
}

static void draining_finishes_streams_and_refuses_new_work(void **state)
{
    (void)state;
    struct site s;
    site_init(&s);
    s.engine.pause_us = 2000;
    site_start(&s);
    int fd = site_connect(s.port), idle = site_connect(s.port);
    site_post_on(fd, "POST", "/v1/completions", NULL,
                 "{\"prompt\":\"y\",\"max_tokens\":300,\"stream\":true,\"ignore_eos\":true}");
    struct buf out = {0};
    assert_true(site_read_until(fd, &out, "data: "));
    struct reply r = site_do(s.admin_port, "POST", "/admin/drain", NULL, "");
    reply_free(&r);
    r = site_do(s.port, "GET", "/health", NULL, "");
    assert_int_equal(r.status, 503);
    reply_free(&r);
    r = site_do(s.port, "POST", "/v1/completions", NULL, "{\"prompt\":\"SAY:a\"}");
    assert_int_equal(r.status, 503);
    reply_free(&r);
    site_read_all(fd, &out);
    assert_non_null(strstr(out.data, "data: [DONE]"));
    thread_join(s.thread);
    assert_int_equal(s.rc, 0);
    close(fd);
    close(idle);
    fake_stop(&s.engine);
    server_destroy(s.server);
    assert_int_equal(s.engine.n_submitted, s.engine.n_ended);
    fake_free(&s.engine);
    chat_free(s.chat);
    tokenizer_free(s.tokenizer);
    buf_free(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chat_answers_whole),
        cmocka_unit_test(content_may_be_parts),
        cmocka_unit_test(prompts_come_in_four_shapes),
        cmocka_unit_test(completions_default_to_16_tokens),
        cmocka_unit_test(echo_and_logprobs_cover_prompt_and_output),
        cmocka_unit_test(chat_logprobs_have_bytes_and_tops),
        cmocka_unit_test(prompt_logprobs_and_token_ids),
        cmocka_unit_test(stop_strings_and_ids),
        cmocka_unit_test(tokens_that_come_together_are_the_same),
        cmocka_unit_test(chat_streams_as_clients_need),
        cmocka_unit_test(usage_frames_come_only_when_asked_for),
        cmocka_unit_test(streamed_text_equals_the_whole_one),
        cmocka_unit_test(failures_after_the_headers_are_error_events),
        cmocka_unit_test(refusals_carry_status_and_retry_after),
        cmocka_unit_test(bad_requests_name_what_is_wrong),
        cmocka_unit_test(nothing_is_ignored_in_silence),
        cmocka_unit_test(tools_that_the_template_ignores_are_refused),
        cmocka_unit_test(a_request_takes_no_more_than_its_places),
        cmocka_unit_test(lists_are_shared_by_sequences),
        cmocka_unit_test(good_requests_pass),
        cmocka_unit_test(too_long_prompts_say_the_numbers),
        cmocka_unit_test(models_are_listed),
        cmocka_unit_test(tokens_go_round),
        cmocka_unit_test(request_ids_are_echoed),
        cmocka_unit_test(keys_name_tenants_and_cors_is_by_list),
        cmocka_unit_test(an_open_admin_listener_is_refused),
        cmocka_unit_test(the_front_bounds_what_it_lets_in),
        cmocka_unit_test(long_prefills_are_bridged_by_comments),
        cmocka_unit_test(long_prompts_hold_nobody_up),
        cmocka_unit_test(draining_finishes_streams_and_refuses_new_work),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
