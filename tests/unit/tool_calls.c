/* Calls of tools in the text of an answer: found however the text is cut, in each format; what is none stays text. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/base/rng.h"
#include "models/template/tool_calls.h"

static void names_of(struct tool_names *names)
{
    static const char *const all[] = {"now", "get_weather", "add"};
    *names = (struct tool_names){0};
    for (int i = 0; i < 3; i++)
        tool_names_add(names, all[i]);
    tool_names_ready(names);
}

/* The text, then each call: "text|name(arguments)|...". */
static void put_all(struct tool_reader *r, struct buf *out)
{
    buf_put(out, r->text.data ? r->text.data : "", r->text.len);
    for (int i = 0; i < r->n_calls; i++)
        buf_printf(out, "|%s(%s)", r->calls[i].name, r->calls[i].arguments);
}

/* Pieces of the given length; 0: of random ones. */
static void read_in_pieces(struct tool_reader *r, const char *text, size_t piece, struct rng *rng)
{
    for (size_t done = 0, n = strlen(text), len; done < n; done += len) {
        len = piece ? piece : 1 + (size_t)rng_below(rng, 9);
        len = len < n - done ? len : n - done;
        tool_reader_put(r, text + done, len);
    }
    tool_reader_end(r);
}

static void check(const char *format, bool single, const char *text, const char *want)
{
    struct tool_names names;
    struct rng rng;
    rng_init(&rng, 5);
    names_of(&names);
    for (size_t piece = 0; piece < 9; piece++) {
        struct tool_reader r;
        struct buf out = {0};
        tool_reader_init(&r, tool_format_of(format, NULL), &names, single);
        read_in_pieces(&r, text, piece, &rng);
        put_all(&r, &out);
        assert_string_equal(out.data ? out.data : "", want);
        assert_int_equal(r.n_calls, r.n_found);
        buf_free(&out);
        tool_reader_free(&r);
    }
    tool_names_free(&names);
}

static void hermes_calls_stand_between_tags(void **state)
{
    (void)state;
    check("hermes", false,
          "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}\n</tool_call>",
          "|get_weather({\"city\": \"Paris\"})");
    check("hermes", false,
          "Let me "
          "see.\n\n<tool_call>{\"name\":\"add\",\"arguments\":{\"a\":1,\"b\":[2,{\"c\":\"}]\\\"\"}]}}</tool_call>\n"
          "<tool_call>\n{\"arguments\":{},\"name\":\"now\"}\n</tool_call>\n",
          "Let me see.|add({\"a\": 1, \"b\": [2, {\"c\": \"}]\\\"\"}]})|now({})");
    check("hermes", false, "a <tool_call>{\"name\":\"now\",\"arguments\":{}}</tool_call> b", "a b|now({})");
    check("hermes", false, "<tool_call>{\"name\":\"now\"}", "|now({})"); /* its end is all that was cut off */
    check("hermes", false, "<tool_call>{\"name\":\"now\",\"arguments\":null}</tool_call>", "|now({})");
    check("hermes", false, "<tool_call>{\"name\":\"add\",\"arguments\":\"{\\\"a\\\":9007199254740993}\"}</tool_call>",
          "|add({\"a\": 9007199254740993})");
    check("hermes", false,
          "<tool_call>{\"name\":\"add\",\"arguments\":{\"t\":\"</tool_call><tool_call> \xC3\xA9\"}}</tool_call>",
          "|add({\"t\": \"</tool_call><tool_call> \xC3\xA9\"})");
}

static void what_is_no_call_stays_text(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "",
        "\n\n",
        "plain text, with < and <tool and <tool_ call> in it \n",
        "<<<tool_call",
        "<tool_call>",
        "<tool_call>\n",
        "<tool_call>prose</tool_call>",
        "<tool_call>{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Par",
        "<tool_call>{\"name\": \"nobody\", \"arguments\": {}}</tool_call>",
        "<tool_call>{\"name\": \"now\", \"arguments\": [1]}</tool_call>",
        "<tool_call>{\"name\": \"now\", \"arguments\": \"no JSON\"}</tool_call>",
        "<tool_call>{\"name\": 5, \"arguments\": {}}</tool_call>",
        "<tool_call>{name: now}</tool_call> and so on",
        "<tool_call>{]}</tool_call>",
        "{\"name\":\"now\",\"arguments\":{}}",
        "</tool_call>",
        "<tool_call><tool_call>",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        check("hermes", false, texts[i], texts[i]);
        check("none", false, texts[i], texts[i]);
    }
    check("none", false, "<tool_call>{\"name\":\"now\"}</tool_call>", "<tool_call>{\"name\":\"now\"}</tool_call>");
    /* the next one is found, as is what lies behind half a marker */
    check("hermes", false, "<tool_call>no<tool_call>{\"name\":\"now\"}</tool_call>", "<tool_call>no|now({})");
    check("hermes", false, "<tool_<tool_call>{\"name\":\"now\"}</tool_call>", "<tool_|now({})");
    check("hermes", false, "<tool_call>\n<tool_call>{\"name\":\"now\"}</tool_call>", "<tool_call>\n|now({})");
    /* an end without its call */
    check("hermes", false, "<tool_call>{\"name\":\"now\"}</tool_call></tool_call>", "</tool_call>|now({})");
}

static void llama_answers_with_nothing_else(void **state)
{
    (void)state;
    check("llama3_json", false, "{\"name\": \"get_weather\", \"parameters\": {\"city\": \"Paris\"}}",
          "|get_weather({\"city\": \"Paris\"})");
    check("llama3_json", false, " <|python_tag|>{\"type\":\"function\",\"name\":\"now\",\"parameters\":{}}",
          "|now({})");
    check("llama3_json", false, "{\"name\":\"now\",\"parameters\":{}}; {\"name\":\"add\",\"parameters\":{\"a\":1}}",
          "|now({})|add({\"a\": 1})");
    static const char *const texts[] = {
        "The weather: {\"name\":\"now\",\"parameters\":{}}",
        "{\"name\":\"nobody\",\"parameters\":{}}",
        "{\"city\": \"Paris\"}",
        "<|python_tag|>now.call()",
        " ; {",
        "<|python",
        "  x",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        check("llama3_json", false, texts[i], texts[i]);
    check("llama3_json", false, "{\"name\":\"now\"} is the one", " is the one|now({})");
}

static void mistral_lists_them_or_names_them(void **state)
{
    (void)state;
    check("mistral", false,
          "[TOOL_CALLS] [{\"name\": \"now\", \"arguments\": {}}, {\"name\": \"add\", \"arguments\": {\"a\": 1}}]",
          "|now({})|add({\"a\": 1})");
    check("mistral", false, "Well. [TOOL_CALLS]get_weather[ARGS]{\"city\": \"Paris\"}[TOOL_CALLS]now{}",
          "Well.|get_weather({\"city\": \"Paris\"})|now({})");
    check("mistral", false, "[TOOL_CALLS]add[CALL_ID]a1b2c3d4e[ARGS]{\"name\": 1}", "|add({\"name\": 1})");
    static const char *const texts[] = {
        "[TOOL_CALLS] []",
        "[TOOL_CALLS] [{\"name\": \"now\", \"arguments\": {}}, {\"name\": \"nobody\", \"arguments\": {}}]",
        "[TOOL_CALLS] [5]",
        "[TOOL_CALLS] nobody{}",
        "[TOOL_CALLS]now and then {}",
        "[[TOOL_CALL]]",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        check("mistral", false, texts[i], texts[i]);
}

static void one_call_is_enough_where_one_is_asked_for(void **state)
{
    (void)state;
    check("hermes", true, "a<tool_call>{\"name\":\"now\"}</tool_call><tool_call>{\"name\":\"now\"}</tool_call> b",
          "a|now({})");
    check("mistral", true, "[TOOL_CALLS] [{\"name\": \"now\"}, {\"name\": \"add\"}]", "|now({})");
}

/* Random texts out of what calls are made of: cut anywhere they are read the same, and no byte of a text without calls
 * is lost. */
static void cuts_change_nothing(void **state)
{
    (void)state;
    static const char *const words[] = {"<tool_call>",
                                        "</tool_call>",
                                        "{\"name\":\"now\"",
                                        ",\"arguments\":{",
                                        "}",
                                        "}",
                                        "]",
                                        "[",
                                        "\"",
                                        "\\",
                                        " ",
                                        "\n",
                                        "<",
                                        "[TOOL_CALLS]",
                                        "now",
                                        "[ARGS]",
                                        "{",
                                        ";",
                                        "\xC3\xA9",
                                        "<|python_tag|>"};
    static const char *const formats[] = {"hermes", "llama3_json", "mistral"};
    struct tool_names names;
    struct rng rng;
    int called = 0;
    rng_init(&rng, 11);
    names_of(&names);
    for (int i = 0; i < 30000; i++) {
        struct buf text = {0}, outs[3] = {0};
        buf_puts(&text, "");
        for (uint64_t k = 1 + rng_below(&rng, 14); k; k--)
            buf_puts(&text, words[rng_below(&rng, sizeof words / sizeof *words)]);
        for (size_t piece = 0; piece < 3; piece++) {
            struct tool_reader r;
            tool_reader_init(&r, tool_format_of(formats[i % 3], NULL), &names, false);
            read_in_pieces(&r, text.data, piece, &rng);
            put_all(&r, &outs[piece]);
            if (!r.n_found)
                assert_string_equal(r.text.len ? r.text.data : "", text.data);
            called += r.n_found > 0;
            tool_reader_free(&r);
        }
        assert_true(outs[0].len == outs[1].len && outs[0].len == outs[2].len);
        assert_memory_equal(outs[0].data, outs[1].data, outs[0].len);
        assert_memory_equal(outs[0].data, outs[2].data, outs[0].len);
        for (int k = 0; k < 3; k++)
            buf_free(&outs[k]);
        buf_free(&text);
    }
    assert_true(called > 100);
    tool_names_free(&names);
}

static void templates_say_how_their_models_call(void **state)
{
    (void)state;
    static const struct {
        const char *file, *format;
    } cases[] = {
        {"Qwen-Qwen2.5-7B-Instruct", "hermes"},
        {"Qwen-Qwen3-0.6B", "hermes"},
        {"NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use", "hermes"},
        {"meta-llama-Llama-3.1-8B-Instruct", "llama3_json"},
        {"meta-llama-Llama-3.3-70B-Instruct", "llama3_json"},
        {"mistralai-Mistral-Nemo-Instruct-2407", "mistral"},
        {"Mistral-Small-3.2-24B-Instruct-2506", "mistral"},
        {"GLM-4.6", "none"},
        {"Qwen3-Coder", "none"},
        {"google-gemma-2-2b-it", "none"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char path[256];
        struct buf text = {0};
        snprintf(path, sizeof path, "tests/data/templates/%s.jinja", cases[i].file);
        assert_int_equal(file_read(&text, path, 1 << 20, NULL), 0);
        assert_int_equal(tool_format_of("auto", text.data), tool_format_of(cases[i].format, NULL));
        buf_free(&text);
    }
    assert_int_equal(tool_format_of("auto", NULL), TOOLS_NONE);
    assert_int_equal(tool_format_of("none", "[TOOL_CALLS]"), TOOLS_NONE);
}

static void ids_are_nine_letters_and_no_two_alike(void **state)
{
    (void)state;
    char ids[64][TOOL_ID_BYTES];
    for (int i = 0; i < 64; i++) {
        tool_call_id(ids[i], (uint64_t)(i & 1), i >> 1 & 3, i >> 3);
        assert_int_equal(strlen(ids[i]), 9);
        for (int k = 0; k < i; k++)
            assert_string_not_equal(ids[i], ids[k]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hermes_calls_stand_between_tags),
        cmocka_unit_test(what_is_no_call_stays_text),
        cmocka_unit_test(llama_answers_with_nothing_else),
        cmocka_unit_test(mistral_lists_them_or_names_them),
        cmocka_unit_test(one_call_is_enough_where_one_is_asked_for),
        cmocka_unit_test(cuts_change_nothing),
        cmocka_unit_test(templates_say_how_their_models_call),
        cmocka_unit_test(ids_are_nine_letters_and_no_two_alike),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
