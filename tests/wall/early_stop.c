/* The field early_stop: its types and bounds, where it is refused, and what the engine is told. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "engine/base/mem.h"
#include "engine/serve/openai/frame.h"

static const char *const names[] = {"m"};

/* The fault of a chat or completion body, or, with status 0, what its only sequence asks for. */
static struct fault early(enum openai_route route, const char *think_end, const char *more, int *every, int *window)
{
    static const char source[] = "{% for m in messages %}{{ m['content'] }}{% endfor %}";
    struct tokenizer *t;
    struct chat_template *chat;
    struct err e = {0};
    assert_int_equal(tokenizer_bytes(&t, 512, &e), 0);
    assert_int_equal(chat_compile(&chat, source, strlen(source), &e), 0);
    struct think_marks marks = {.begin = ""};
    if (think_end)
        think_marks_set(&marks, think_end, false);
    const struct front_text text = {.tokenizer = t,
                                    .chat = chat,
                                    .bos = (char *)(uintptr_t) "",
                                    .eos = (char *)(uintptr_t) "",
                                    .n_vocab = 512,
                                    .max_model_len = 200,
                                    .think = think_end ? &marks : NULL,
                                    .can_probe = think_end};
    struct openai_order *o = mem_new(sizeof *o);
    *o = (struct openai_order){.model_text = &text,
                               .names = names,
                               .n_names = 1,
                               .api = route == ROUTE_CHAT ? &openai_chat_api : &openai_completions_api,
                               .max_specs = 9};
    buf_printf(&o->body, "{%s,\"messages\":[{\"role\":\"user\",\"content\":\"%s\"}]}",
               route == ROUTE_CHAT ? more : "\"prompt\":\"a\",\"early_stop\":{\"interval\":8}",
               strstr(more, "\"seed\":7") ? "<think></think>\\n\\n" : "think");
    openai_order_read(&o->job);
    struct fault f = o->fault;
    *every = f.status ? -1 : o->specs[0]->probe_every;
    *window = f.status ? -1 : o->specs[0]->probe_window;
    openai_order_free(o);
    chat_free(chat);
    tokenizer_free(t);
    think_marks_free(&marks);
    return f;
}

static void early_stops_are_checked(void **state)
{
    (void)state;
    static const struct {
        const char *more, *says;
        int every, window;
    } cases[] = {
        {"\"n\":1", NULL, 0, 0},
        {"\"early_stop\":null", NULL, 0, 0},
        {"\"early_stop\":{\"interval\":8}", NULL, 8, 3},
        {"\"early_stop\":{\"interval\":256,\"window\":16}", NULL, 256, 16},
        {"\"early_stop\":{\"interval\":1048576,\"window\":null}", NULL, 1048576, 3},
        {"\"early_stop\":{\"interval\":8},\"seed\":7", NULL, 0, 0}, /* the prompt has closed its thinking */
        {"\"early_stop\":true", "must be an object", 0, 0},
        {"\"early_stop\":256", "must be an object", 0, 0},
        {"\"early_stop\":{}", "needs an \"interval\"", 0, 0},
        {"\"early_stop\":{\"interval\":7}", "from 8 to 1048576, not 7", 0, 0},
        {"\"early_stop\":{\"interval\":1048577}", "from 8 to", 0, 0},
        {"\"early_stop\":{\"interval\":8.5}", "'early_stop.interval' must be an integer", 0, 0},
        {"\"early_stop\":{\"interval\":\"8\"}", "'early_stop.interval' must be an integer", 0, 0},
        {"\"early_stop\":{\"interval\":8,\"window\":1}", "from 2 to 16, not 1", 0, 0},
        {"\"early_stop\":{\"interval\":8,\"window\":17}", "from 2 to 16", 0, 0},
        {"\"early_stop\":{\"interval\":8,\"windows\":3}", "no \"windows\"", 0, 0},
        {"\"early_stop\":{\"interval\":8},\"logprobs\":true", "does not go with 'logprobs'", 0, 0},
    };
    int every, window;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct fault f = early(ROUTE_CHAT, "</think>", cases[i].more, &every, &window);
        if (!cases[i].says != !f.status || (cases[i].says && !strstr(f.text, cases[i].says)))
            fail_msg("%s: %d %s", cases[i].more, f.status, f.text);
        assert_int_equal(f.status, cases[i].says ? 400 : 0);
        if (f.status)
            assert_string_equal(f.param, "early_stop");
        else
            assert_true(every == cases[i].every && window == cases[i].window);
    }
    struct fault f = early(ROUTE_CHAT, NULL, "\"early_stop\":{\"interval\":8}", &every, &window);
    assert_true(f.status == 400 && strstr(f.text, "not offered here"));
    f = early(ROUTE_COMPLETIONS, "</think>", "", &every, &window);
    assert_true(f.status == 400 && strstr(f.text, "is a field of /v1/chat/completions"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(early_stops_are_checked)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
