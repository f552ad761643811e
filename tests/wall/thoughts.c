/* What a model thinks over HTTP, and the fake engine: apart from its answer, whole and streamed, and before forms. */
#include "tests/rig/front_fixture.h"

#include "engine/base/mem.h"
#include "engine/serve/openai/frame.h"
#include "engine/serve/openai/order.h"
#include "models/guide/grammar.h"

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

static struct reply ask(const char *says, const char *more)
{
    char body[2000];
    snprintf(body, sizeof body, "{\"messages\":[{\"role\":\"user\",\"content\":\"SAY:%s\"}],\"max_tokens\":500%s}",
             says, more);
    struct reply r = site_do(site.port, "POST", "/v1/chat/completions", NULL, body);
    if (r.status != 200)
        fail_msg("%s: %s", body, r.body.data);
    return r;
}

static const char *or_none(const struct json *v)
{
    return json_text(v) ? json_text(v) : "-";
}

/* A whole answer as "thought|content reason, thought's tokens"; "-": null or not there. */
static struct buf whole(const char *says, const char *more)
{
    struct reply r = ask(says, more);
    struct json *j = json_parse(r.body.data, r.body.len, NULL, NULL);
    const struct json *c = json_first(json_find(j, "choices")), *m = json_find(c, "message"),
                      *details = json_find(json_find(j, "usage"), "completion_tokens_details");
    struct buf out = {0};
    buf_printf(&out, "%s|%s %s %d", or_none(json_find(m, "reasoning_content")), or_none(json_find(m, "content")),
               json_member_text(c, "finish_reason"),
               details ? (int)json_member_number(details, "reasoning_tokens") : -1);
    json_free(j);
    reply_free(&r);
    return out;
}

static struct buf streamed(const char *says, const char *more)
{
    char fields[200];
    snprintf(fields, sizeof fields, "%s,\"stream\":true,\"stream_options\":{\"include_usage\":true}", more);
    struct reply r = ask(says, fields);
    struct buf thought = {0}, text = {0}, out = {0};
    char reason[40] = "";
    int n = -1;
    for (const char *p = r.body.data; strncmp(p, "data: [DONE]", 12) != 0; p = strstr(p, "\n\n") + 2) {
        struct json *j = json_parse(p + 6, (size_t)(strstr(p, "\n\n") - p) - 6, NULL, NULL);
        const struct json *c = json_first(json_find(j, "choices")), *d = json_find(c, "delta"),
                          *details = json_find(json_find(j, "usage"), "completion_tokens_details");
        buf_puts(&thought, json_member_text(d, "reasoning_content"));
        buf_puts(&text, json_member_text(d, "content"));
        assert_false(text.len && json_find(d, "reasoning_content")); /* a thought comes first */
        if (json_text(json_find(c, "finish_reason")))
            snprintf(reason, sizeof reason, "%s", json_text(json_find(c, "finish_reason")));
        n = details ? (int)json_member_number(details, "reasoning_tokens") : n;
        json_free(j);
    }
    buf_printf(&out, "%s|%s %s %d", thought.len ? thought.data : "-",
               text.len      ? text.data
               : thought.len ? "-"
                             : "",
               reason, n);
    buf_free(&thought);
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

/* A token of the fake engine's is a byte: "<think>" and what follows it up to the last one of its end. */
static void thoughts_come_apart(void **state)
{
    (void)state;
    check("Paris.", "", "-|Paris. stop 0");
    check("<think>\\nWell.\\n</think>\\n\\nParis.", "", "Well.|Paris. stop 15");
    check("<think></think>Paris.", "", "-|Paris. stop 8");
    check("<think>Well", ",\"max_tokens\":10", "Wel|- length 4");
    check("<think>Well.</think>Paris.", ",\"separate_reasoning\":false", "-|<think>Well.</think>Paris. stop -1");
    check("<think>Well.</think>Paris.", ",\"include_reasoning\":false", "-|Paris. stop 13");
    check("<think>a END b</think>c END d", ",\"stop\":\"END\"", "a|- stop 6");
}

static void where_the_prompt_has_begun_or_ended_one(void **state)
{
    (void)state;
    check("Well.<think>", "", "Well.<think>|- stop 13"); /* as the prompt ends; 13: with the token that ends it */
    check("Paris.</think>", "", "-|Paris.</think> stop -1");
}

/* ---- before forms */

/* Nodes of the grammar of a request, whose prompt is this text. */
static int nodes_of(const char *prompt, const struct think_marks *marks)
{
    static const char *const names[] = {"m"};
    const struct front_text text = {
        site.tokenizer, site.chat, (char *)(uintptr_t) "", (char *)(uintptr_t) "", 512, 200, TOOLS_HERMES, marks,
        marks != NULL,  false};
    struct openai_order *o = mem_new(sizeof *o);
    o->model_text = &text;
    o->names = names;
    o->n_names = 1;
    o->api = &openai_chat_api;
    o->max_specs = 1;
    buf_printf(&o->body, "{\"messages\":[{\"role\":\"user\",\"content\":\"%s\"}],\"guided_choice\":[\"x\"]}", prompt);
    openai_order_read(&o->job);
    assert_int_equal(o->fault.status, 0);
    int n = o->params.grammar->n_nodes;
    openai_order_free(o);
    return n;
}

static void forms_begin_behind_a_thought(void **state)
{
    (void)state;
    struct think_marks marks, control;
    think_marks_set(&marks, "</think>", false);
    think_marks_set(&control, "</think>", true);
    int form = nodes_of("q", NULL), begun = nodes_of("q<think>\\n", &marks), may = nodes_of("q", &marks);
    assert_int_equal(nodes_of("q</think>\\n\\n", &marks), form);
    assert_int_equal(nodes_of("q", &control), form); /* nobody can ask for control tokens as text */
    assert_true(begun > form);
    assert_int_equal(may, begun + (int)strlen("<think>") + 1);
    think_marks_free(&marks);
    think_marks_free(&control);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(thoughts_come_apart),
        cmocka_unit_test(where_the_prompt_has_begun_or_ended_one),
        cmocka_unit_test(forms_begin_behind_a_thought),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
