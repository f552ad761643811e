/* What a request may ask its answer to be, under every name, and what is refused: over HTTP, with an engine that
 * computes nothing. */
#include "tests/rig/front_fixture.h"

#include "engine/serve/openai/frame.h"
#include "engine/serve/openai/grammars.h"
#include "models/guide/grammar.h"

static struct site site;

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

#define TOOLS                                                                                                          \
    "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\","              \
    "\"properties\":{\"a\":{\"type\":\"integer\"}}}}}]"
#define SCHEMA "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\"}}}"
#define FORMAT(schema)                                                                                                 \
    "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"n\",\"schema\":" schema "}}"

/* fields of a chat request; param: the error's; NULL: it is taken. says: part of its message, or NULL. */
struct asked {
    const char *fields, *param, *says;
};

static void check(const struct asked *a)
{
    char body[1000];
    snprintf(body, sizeof body, "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"max_tokens\":2,%s}",
             a->fields);
    struct reply r = site_do(site.port, "POST", "/v1/chat/completions", NULL, body);
    if (r.status != (a->param ? 400 : 200))
        fail_msg("%s: %d %s", a->fields, r.status, r.body.data);
    struct json *j = json_parse(r.body.data, r.body.len, NULL, NULL);
    const struct json *error = json_find(j, "error");
    if (a->param && strcmp(json_member_text(error, "param"), a->param) != 0)
        fail_msg("%s: %s", a->fields, r.body.data);
    if (a->says && !strstr(json_member_text(error, "message"), a->says))
        fail_msg("%s: %s", a->fields, r.body.data);
    json_free(j);
    reply_free(&r);
}

static void every_name_is_understood(void **state)
{
    (void)state;
    static const struct asked cases[] = {
        {FORMAT(SCHEMA), NULL, NULL},
        {"\"response_format\":{\"type\":\"json_object\"}", NULL, NULL},
        {"\"response_format\":{\"type\":\"text\"}", NULL, NULL},
        {"\"structured_outputs\":{\"json\":" SCHEMA "}", NULL, NULL},
        {"\"structured_outputs\":{\"json\":\"{\\\"type\\\":\\\"null\\\"}\"}", NULL, NULL},
        {"\"structured_outputs\":{\"regex\":\"a|b\"}", NULL, NULL},
        {"\"structured_outputs\":{\"choice\":[\"a\",\"b\"],\"regex\":null}", NULL, NULL},
        {"\"structured_outputs\":{\"json_object\":true}", NULL, NULL},
        {"\"guided_json\":" SCHEMA, NULL, NULL},
        {"\"guided_regex\":\"[0-9]+\"", NULL, NULL},
        {"\"guided_choice\":[\"yes\",\"no\"]", NULL, NULL},
        {"\"json_schema\":" SCHEMA, NULL, NULL},
        {"\"regex\":\"x\"", NULL, NULL},
        {TOOLS ",\"tool_choice\":\"required\"", NULL, NULL},
        {TOOLS ",\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"f\"}}", NULL, NULL},
        {"\"guided_json\":null,\"guided_regex\":\"\"", NULL, NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check(&cases[i]);
    assert_true(site_settles(&site));
}

static void what_cannot_be_kept_is_refused(void **state)
{
    (void)state;
    static const struct asked cases[] = {
        {"\"response_format\":5", "response_format", "'type'"},
        {"\"response_format\":{\"type\":\"xml\"}", "response_format", "xml"},
        {"\"response_format\":{\"type\":\"json_schema\"}", "response_format", "schema"},
        {FORMAT("{\"not\":{}}"), "response_format", "'not' is not supported"},
        {FORMAT("{\"$ref\":\"#\"}"), "response_format", "itself"},
        {"\"guided_json\":\"{\"", "guided_json", "no JSON"},
        {"\"guided_json\":[]", "guided_json", "object"},
        {"\"guided_regex\":5", "guided_regex", "string"},
        {"\"guided_regex\":\"(\"", "guided_regex", "at byte"},
        {"\"guided_choice\":[]", "guided_choice", "strings"},
        {"\"structured_outputs\":5", "structured_outputs", "object"},
        {"\"structured_outputs\":{\"grammar\":\"x\"}", "structured_outputs", "in line 1"},
        {"\"structured_outputs\":{\"structural_tag\":\"x\"}", "structured_outputs", "structural_tag"},
        {"\"grammar\":5", "grammar", "string"},
        {"\"structured_outputs\":{\"regex\":\"a\",\"choice\":[\"a\"]}", "structured_outputs", "both"},
        {"\"guided_regex\":\"a\",\"response_format\":{\"type\":\"json_object\"}", "guided_regex", "both"},
        {"\"guided_regex\":\"a\",\"ignore_eos\":true", "ignore_eos", "guided_regex"},
        {"\"guided_regex\":\"a\",\"min_tokens\":1", "min_tokens", "guided_regex"},
        {"\"guided_regex\":\"a\",\"allowed_token_ids\":[1]", "allowed_token_ids", "guided_regex"},
        {"\"tool_choice\":\"required\"", "tool_choice", "'tools' has no function"},
        {"\"tool_choice\":\"always\"", "tool_choice", "required"},
        {TOOLS ",\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"g\"}}", "tool_choice",
         "no such function"},
        {TOOLS ",\"tool_choice\":\"required\",\"guided_regex\":\"a\"", "tool_choice", "both"},
        {"\"ebnf\":\"root ::= root\"", "ebnf", "itself"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check(&cases[i]);
    assert_true(site_settles(&site));
}

static void a_model_that_cannot_be_forced_says_so(void **state)
{
    (void)state;
    static const enum tool_format formats[] = {TOOLS_NONE, TOOLS_MISTRAL};
    for (int i = 0; i < 2; i++) {
        struct site s;
        site_init(&s);
        s.setup.tools = formats[i];
        site_start(&s);
        struct reply r = site_do(s.port, "POST", "/v1/chat/completions", NULL,
                                 "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"max_tokens\":2," TOOLS
                                 ",\"tool_choice\":\"required\"}");
        assert_int_equal(r.status, 400);
        assert_non_null(strstr(r.body.data, i ? "cannot be forced" : "--tool-call-parser"));
        reply_free(&r);
        site_stop(&s);
    }
}

/* ---- grammars are shared */

static struct openai_order *order(const char *body)
{
    static const char *const names[] = {"m"};
    static struct front_text text;
    struct openai_order *o = mem_new(sizeof *o);
    text = (struct front_text){
        site.tokenizer, site.chat, (char *)(uintptr_t) "", (char *)(uintptr_t) "", 512, 100, TOOLS_HERMES, NULL,
        false,          false};
    o->model_text = &text;
    o->names = names;
    o->n_names = 1;
    o->api = &openai_completions_api;
    o->max_specs = 64;
    buf_puts(&o->body, body);
    openai_order_read(&o->job);
    assert_int_equal(o->fault.status, 0);
    return o;
}

static void who_asks_for_the_same_gets_the_same(void **state)
{
    (void)state;
    static struct grammars kept;
    struct openai_order *a = order("{\"prompt\":\"a\",\"n\":2,\"max_tokens\":2,\"guided_json\":" SCHEMA "}"),
                        *b = order("{\"prompt\":\"b\",\"max_tokens\":2,\"guided_json\":" SCHEMA "}"),
                        *c = order("{\"prompt\":\"b\",\"max_tokens\":2,\"guided_regex\":\"a\"}");
    grammars_settle(&kept, a);
    grammars_settle(&kept, b);
    grammars_settle(&kept, c);
    assert_ptr_equal(a->specs[0]->grammar, a->specs[1]->grammar);
    assert_ptr_equal(a->specs[0]->grammar, b->specs[0]->grammar);
    assert_ptr_not_equal(a->specs[0]->grammar, c->specs[0]->grammar);
    struct grammar *first = a->specs[0]->grammar;
    openai_order_free(a);
    openai_order_free(b);
    openai_order_free(c);
    for (int i = 0; i < 2 * GRAMMARS_MOST; i++) { /* others push it out; it is held no more */
        char body[100];
        snprintf(body, sizeof body, "{\"prompt\":\"b\",\"max_tokens\":2,\"guided_regex\":\"a{%d}\"}", i + 1);
        a = order(body);
        grammars_settle(&kept, a);
        openai_order_free(a);
    }
    for (int i = 0; i < GRAMMARS_MOST; i++)
        assert_ptr_not_equal(kept.list[i].grammar, first);
    grammars_free(&kept);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_name_is_understood),
        cmocka_unit_test(what_cannot_be_kept_is_refused),
        cmocka_unit_test(a_model_that_cannot_be_forced_says_so),
        cmocka_unit_test(who_asks_for_the_same_gets_the_same),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
