/* Chat templates without Python at hand: what jinja2 made of the snippets (tests/data/chat_snippets.json,
 * written by tests/oracle/chat_oracle.py --write), refusals with their line, bounds, and one template in
 * several threads. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/base/file.h"
#include "engine/base/thread.h"
#include "models/template/chat.h"

static struct json *parse(const char *text)
{
    struct err e = {0};
    struct json *j = json_parse(text, strlen(text), NULL, &e);
    if (!j)
        fail_msg("%s", e.text);
    return j;
}

/* Compiles and renders; the error's code, with its text in e. */
static int render(const char *source, const struct json *context, const struct chat_limits *limits, struct buf *out,
                  struct err *e)
{
    struct chat_template *t = NULL;
    struct chat_input in = {.context = context, .now = 1753000000};
    if (limits)
        in.limits = *limits;
    int rc = chat_compile(&t, source, strlen(source), e);
    if (!rc)
        rc = chat_render(t, &in, out, e);
    chat_free(t);
    return rc;
}

static struct json *snippets(void)
{
    struct buf b = {0};
    struct err e = {0};
    if (file_read(&b, "tests/data/chat_snippets.json", (size_t)8 << 20, &e))
        fail_msg("%s", e.text);
    struct json *j = json_parse(b.data, b.len, NULL, &e);
    if (!j)
        fail_msg("%s", e.text);
    buf_free(&b);
    return j;
}

static void test_snippets(void **state)
{
    (void)state;
    struct json *all = snippets();
    const struct json *cases = json_find(all, "cases");
    assert_true(json_count(cases) > 900);
    for (const struct json *c = json_first(cases); c; c = json_next(c)) {
        const char *source = json_text(json_find(c, "template")), *want = json_text(json_find(c, "text"));
        struct buf out = {0};
        struct err e = {0};
        int rc = render(source, json_find(all, "context"), NULL, &out, &e);
        if (want ? rc || !buf_equals(&out, want) : !rc)
            fail_msg("%s\nwanted %s\ngot %s %s", source, want ? want : "an error", out.data ? out.data : "", e.text);
        buf_free(&out);
    }
    json_free(all);
}

static void test_refusals_name_the_line(void **state)
{
    (void)state;
    struct json *all = snippets();
    const struct json *cases = json_find(all, "refused");
    assert_true(json_count(cases) > 80);
    for (const struct json *c = json_first(cases); c; c = json_next(c)) {
        const char *source = json_text(json_find(c, "template")), *code = json_text(json_find(c, "code"));
        struct chat_template *t = (struct chat_template *)source;
        struct err e = {0};
        char where[40] = "line ";
        int64_t line;
        int rc = chat_compile(&t, source, strlen(source), &e);
        if (json_i64(json_find(c, "line"), &line))
            snprintf(where, sizeof where, "line %lld: ", (long long)line);
        if (!rc || t || (code && strcmp(err_name(rc), code) != 0) || strncmp(e.text, where, strlen(where)) != 0)
            fail_msg("%s\nwanted %s %s, got %d: %s", source, code ? code : "a refusal", where, rc, e.text);
    }
    json_free(all);
}

static void expect_failure(const char *source, const struct chat_limits *limits, int code, const char *text)
{
    struct json *context = parse("{\"l\":[1,2,3]}");
    struct buf out = {0};
    struct err e = {0};
    buf_puts(&out, "kept");
    int rc = render(source, context, limits, &out, &e);
    if (rc != code || !strstr(e.text, text) || !buf_equals(&out, "kept"))
        fail_msg("%s: %d %s, output %s", source, rc, e.text, out.data);
    buf_free(&out);
    json_free(context);
}

static void test_failures_say_why_and_where(void **state)
{
    (void)state;
    expect_failure("a\nb{{ raise_exception('Roles must ' ~ 'alternate') }}", NULL, E_INPUT,
                   "line 2: Roles must alternate");
    expect_failure("{% if l %}\n\n{{ nope.x }}{% endif %}", NULL, E_INPUT, "line 3: 'nope' is undefined");
    expect_failure("{{ l.nope.x }}", NULL, E_INPUT, "type 'list' has no attribute 'nope'");
    expect_failure("{{ l.append(1) }}", NULL, E_INPUT, "'append' of 'list' object is unsafe");
    expect_failure("{{ 1 + 'a' }}", NULL, E_INPUT, "'int' and 'str'");
    expect_failure("{{ 9223372036854775807 + 1 }}", NULL, E_INPUT, "past 64 bits");
}

static void test_bounds(void **state)
{
    (void)state;
    const struct chat_limits steps = {.steps = 10000}, bytes = {.bytes = 1000}, memory = {.memory = 1 << 20};
    expect_failure("{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}", NULL, E_FULL,
                   "steps");
    expect_failure("{% for i in range(5000) %}{{ i }}{% endfor %}", &steps, E_FULL, "steps");
    expect_failure("{% for i in range(500) %}abc{% endfor %}", &bytes, E_FULL, "output passes 1000 bytes");
    expect_failure("{{ 'a' * 9999999999999 }}", NULL, E_FULL, "too m");
    expect_failure("{{ 'a' * 2000000 }}", &memory, E_FULL, "memory");
    expect_failure("{{ [1] * 1000000 }}", &memory, E_FULL, "memory");
    expect_failure("{{ 'a'|center(100000000) }}", &memory, E_FULL, "too m");
    expect_failure("{{ '%999999999d' % 1 }}", NULL, E_FULL, "too large");
    expect_failure("{{ '{:<99999999}'.format(1) }}", &memory, E_FULL, "memory");
    expect_failure("{{ range(1000000) }}", NULL, E_INPUT, "Range too big");
    expect_failure("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", NULL, E_FULL, "recurses");
    expect_failure("{% set n = namespace(x=[]) %}{% for i in range(5000) %}{% set n.x = [n.x] %}{% endfor %}{{ n.x }}",
                   NULL, E_FULL, "recurses");
    expect_failure("{% set n = namespace(x='ab') %}{% for i in range(60) %}{% set n.x = n.x + n.x %}{% endfor %}", NULL,
                   E_FULL, "too m");
    expect_failure("{% set n = namespace(x='ab') %}{% for i in range(60) %}{% set n.x = n.x|replace('a', 'aaaab') %}"
                   "{% endfor %}",
                   &memory, E_FULL, "memory");
}

static void test_large_sources_are_refused(void **state)
{
    (void)state;
    struct buf b = {0};
    struct err e = {0};
    struct chat_template *t;
    while (b.len < (size_t)600 << 10)
        buf_puts(&b, "text ");
    assert_int_equal(chat_compile(&t, b.data, b.len, &e), E_UNSUPPORTED);
    assert_null(t);
    assert_int_equal(chat_compile(&t, "a\xFF", 2, &e), E_INPUT);
    buf_clear(&b);
    buf_puts(&b, "{% set x = 1 %}");
    for (int i = 0; b.len < (size_t)500 << 10; i++)
        buf_printf(&b, "{%% if a%d %%}{%% set b%d = 1 %%}{%% endif %%}", i, i);
    assert_int_equal(chat_compile(&t, b.data, b.len, &e), E_UNSUPPORTED);
    assert_non_null(strstr(e.text, "names"));
    buf_free(&b);
}

static void test_context(void **state)
{
    (void)state;
    struct err e = {0};
    struct buf out = {0};
    struct json *list = parse("[]"), *own = parse("{\"range\":5,\"namespace\":\"mine\",\"a\\u00e9\":1}");
    assert_int_equal(render("x", list, NULL, &out, &e), E_INPUT);
    assert_int_equal(render("{{ a is defined }}", NULL, NULL, &out, &e), 0);
    assert_true(buf_equals(&out, "False"));
    assert_int_equal(render(" {{ range }}{{ namespace }}{{ a\xC3\xA9 }}", own, NULL, &out, &e), 0);
    assert_true(buf_equals(&out, "False 5mine1"));
    buf_free(&out);
    json_free(list);
    json_free(own);
}

static void test_built_in_templates(void **state)
{
    (void)state;
    static const struct {
        const char *name, *want;
    } cases[] = {
        {"chatml", "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nQ<|im_end|>\n<|im_start|>assistant\nA<"
                   "|im_end|>\n"
                   "<|im_start|>user\nR<|im_end|>\n<|im_start|>assistant\n"},
        {"llama2", "<s>[INST] <<SYS>>\nS\n<</SYS>>\n\nQ [/INST] A </s><s>[INST] R [/INST]"},
        {"llama3", "<s><|start_header_id|>system<|end_header_id|>\n\nS<|eot_id|><|start_header_id|>user<|end_header_id|"
                   ">\n\nQ"
                   "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\nA<|eot_id|><|start_header_id|>user"
                   "<|end_header_id|>\n\nR<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"},
        {"mistral", "<s>[INST] S\n\nQ [/INST] A</s>[INST] R [/INST]"},
    };
    struct json *context =
        parse("{\"messages\":[{\"role\":\"system\",\"content\":\"S\"},{\"role\":\"user\",\"content\":\"Q\"},"
              "{\"role\":\"assistant\",\"content\":\"A\"},{\"role\":\"user\",\"content\":\"R\"}],"
              "\"add_generation_prompt\":true,\"bos_token\":\"<s>\",\"eos_token\":\"</s>\"}");
    struct json *odd = parse("{\"messages\":[{\"role\":\"assistant\",\"content\":\"A\"}]}");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct buf out = {0};
        struct err e = {0};
        assert_int_equal(render(chat_builtin(cases[i].name), context, NULL, &out, &e), 0);
        assert_string_equal(out.data, cases[i].want);
        buf_free(&out);
    }
    struct buf out = {0};
    struct err e = {0};
    assert_int_equal(render(chat_builtin("llama2"), odd, NULL, &out, &e), E_INPUT);
    assert_non_null(strstr(e.text, "alternate"));
    assert_null(chat_builtin("nosuch"));
    buf_free(&out);
    json_free(context);
    json_free(odd);
}

struct shared {
    const struct chat_template *t;
    const struct json *context;
    int wrong;
};

static void render_often(void *arg)
{
    struct shared *s = arg;
    struct chat_input in = {.context = s->context, .now = 0};
    for (int i = 0; i < 300; i++) {
        struct buf out = {0};
        s->wrong +=
            chat_render(s->t, &in, &out, NULL) != 0 || !buf_equals(&out, "1:\xC3\xA9;2:\xC3\xA9;3:\xC3\xA9;6 [2, 3]");
        buf_free(&out);
    }
}

static void test_one_template_in_many_threads(void **state)
{
    (void)state;
    static const char source[] = "{% macro m(x, y='\xC3\xA9\xC3\xA9') %}{{ x }}:{{ y[1] }};{% endmacro %}"
                                 "{% for i in l %}{{ m(i) }}{% endfor %}{{ l|sum }} {{ l[1:] }}";
    struct json *context = parse("{\"l\":[1,2,3]}");
    struct chat_template *t;
    struct err e = {0};
    assert_int_equal(chat_compile(&t, source, strlen(source), &e), 0);
    struct shared shared[4];
    struct thread *threads[4];
    for (int i = 0; i < 4; i++) {
        shared[i] = (struct shared){t, context, 0};
        assert_int_equal(thread_start(&threads[i], "render", render_often, &shared[i], &e), 0);
    }
    for (int i = 0; i < 4; i++) {
        thread_join(threads[i]);
        assert_int_equal(shared[i].wrong, 0);
    }
    chat_free(t);
    json_free(context);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_snippets),
        cmocka_unit_test(test_refusals_name_the_line),
        cmocka_unit_test(test_failures_say_why_and_where),
        cmocka_unit_test(test_bounds),
        cmocka_unit_test(test_large_sources_are_refused),
        cmocka_unit_test(test_context),
        cmocka_unit_test(test_built_in_templates),
        cmocka_unit_test(test_one_template_in_many_threads),
    };
#if defined(__SANITIZE_THREAD__) /* has nothing to say of the others */
    const struct CMUnitTest threaded[] = {cmocka_unit_test(test_one_template_in_many_threads)};
    return sizeof tests ? cmocka_run_group_tests(threaded, NULL, NULL) : 0;
#endif
    return cmocka_run_group_tests(tests, NULL, NULL);
}
