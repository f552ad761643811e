/* What guides let through: regular expressions, schemas, choices and calls, byte by byte and token by token. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "engine/base/mem.h"
#include "engine/base/rng.h"
#include "engine/base/shared.h"
#include "engine/base/utf8.h"
#include "models/guide/guide.h"
#include "models/guide/outline.h"
#include "tests/rig/guide_rig.h"

static struct tokenizer *tokenizer;
static struct guide_tokens *tokens;
static struct guides *guides;

static int setup(void **state)
{
    (void)state;
    assert_int_equal(tokenizer_bytes(&tokenizer, 300, NULL), 0);
    tokens = guide_tokens_new(tokenizer);
    guides = guides_new(tokens, 1 << 26);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    guides_free(guides);
    guide_tokens_free(tokens);
    tokenizer_free(tokenizer);
    return 0;
}

static struct json *parse(const char *text)
{
    struct err e = {0};
    struct json *j = json_parse(text, strlen(text), NULL, &e);
    if (!j)
        fail_msg("%s: %s", text, e.text);
    return j;
}

static struct grammar *of_schema(const char *schema)
{
    struct json *j = parse(schema);
    struct grammar *g = NULL;
    struct err e = {0};
    if (outline_schema(j, &g, &e))
        fail_msg("%s: %s", schema, e.text);
    json_free(j);
    return g;
}

static struct grammar *of_regex(const char *regex)
{
    struct grammar *g = NULL;
    struct err e = {0};
    if (outline_regex(regex, &g, &e))
        fail_msg("%s: %s", regex, e.text);
    return g;
}

static bool takes(struct grammar *g, const char *text)
{
    struct guide *guide = guides_of(guides, g);
    return guide_may_end(guide, guide_read(guide, text, strlen(text)));
}

struct said {
    const char *what; /* a schema, or a regular expression */
    const char *good[8], *bad[10];
};

static void check_all(const struct said *cases, size_t n, struct grammar *(*make)(const char *))
{
    for (size_t i = 0; i < n; i++) {
        struct grammar *g = make(cases[i].what);
        for (int k = 0; k < 8 && cases[i].good[k]; k++)
            if (!takes(g, cases[i].good[k]))
                fail_msg("%s does not take %s", cases[i].what, cases[i].good[k]);
        for (int k = 0; k < 10 && cases[i].bad[k]; k++)
            if (takes(g, cases[i].bad[k]))
                fail_msg("%s takes %s", cases[i].what, cases[i].bad[k]);
        shared_drop(g);
    }
}

static void regular_expressions(void **state)
{
    (void)state;
    static const struct said cases[] = {
        {"abc", {"abc"}, {"", "ab", "abcd", "xabc"}},
        {"^a|bc?$", {"a", "b", "bc"}, {"", "ac", "abc"}},
        {"(ab)*", {"", "ab", "abab"}, {"a", "aba"}},
        {"(?:a|b)+c", {"ac", "babc"}, {"c", "ab"}},
        {"[a-c]{2,3}", {"ab", "cab"}, {"a", "abca", "ad"}},
        {"x{2}", {"xx"}, {"x", "xxx"}},
        {"x{2,}", {"xx", "xxxxx"}, {"x"}},
        {"[^a]", {"b", "\xC3\xA9", "\xF0\x9F\x98\x80"}, {"a", "", "bb", "\xC3"}},
        {".", {"a", "\xE2\x82\xAC"}, {"\n", "ab"}},
        {"\\d+\\.\\d{2}", {"3.14", "00.00"}, {"3.1", "3,14"}},
        {"\\w+@\\w+", {"a_1@b"}, {"a b@c", "@b"}},
        {"\\S\\s\\D", {"a\tb", "- x"}, {"a b1", "a1b"}},
        {"[\\]\\-x]+", {"]-x"}, {"y"}},
        {"[]a]", {"]", "a"}, {"b"}},
        {"\xC3\xA9?z", {"\xC3\xA9z", "z"}, {"\xC3z"}},
        {"[\xC3\xA9-\xC3\xBC-]+", {"\xC3\xA9\xC3\xBC", "-"}, {"\xC3\xA8", "\xC3\xBD", "\xC3"}},
        {"[^\xC3\xA9\\w]", {"\xC3\xA8", "-", "\n", "\xF0\x9F\x98\x80"}, {"\xC3\xA9", "a", "_"}},
        {"(a*)*b", {"b", "aaab"}, {"a"}},
        {"(|a)b", {"b", "ab"}, {"aab"}},
        {"\\^\\$\\|\\(", {"^$|("}, {"^$|"}},
    };
    check_all(cases, sizeof cases / sizeof *cases, of_regex);
}

/* A class has the characters of its ranges, whatever their bytes are. */
static void classes_of_any_characters(void **state)
{
    (void)state;
    static const uint32_t edges[] = {1, 0x7F, 0x80, 0x7FF, 0x800, 0xD7FF, 0xE000, 0xFFFF, 0x10000, 0x10FFFF};
    struct rng r;
    rng_init(&r, 5);
    for (int round = 0; round < 300; round++) {
        bool inverted = rng_below(&r, 2);
        uint32_t ends[4];
        struct buf text = {0};
        buf_puts(&text, inverted ? "root ::= [^" : "root ::= [");
        for (int i = 0; i < 4; i++) {
            ends[i] = edges[rng_below(&r, 10)] + (uint32_t)rng_below(&r, 3) - 1;
            if (ends[i] > 0x10FFFF || (ends[i] >= 0xD800 && ends[i] < 0xE000) || rng_below(&r, 3) == 0)
                ends[i] = 0x100 + (uint32_t)rng_below(&r, 0xC000);
            if (i % 2 && ends[i] < ends[i - 1])
                ends[i] = ends[i - 1];
            buf_printf(&text, i % 2 ? "-\\U%08x" : "\\U%08x", ends[i]);
        }
        buf_puts(&text, "]");
        struct grammar *g = NULL;
        assert_int_equal(outline_gbnf(text.data, &g, NULL), 0);
        for (int k = 0; k < 400; k++) {
            uint32_t c = k < 60    ? edges[k % 10] + (uint32_t)(k / 10) - 3
                         : k < 100 ? ends[k % 4] + (uint32_t)rng_below(&r, 5) - 2
                                   : (uint32_t)rng_below(&r, k < 250 ? 0x11000 : 0x110000);
            char bytes[5] = {0};
            if (c - 1 >= 0x10FFFF || (c >= 0xD800 && c < 0xE000))
                continue;
            utf8_encode(c, bytes);
            bool has = (c >= ends[0] && c <= ends[1]) || (c >= ends[2] && c <= ends[3]);
            if (takes(g, bytes) != (has != inverted))
                fail_msg("%s and %x", text.data, c);
        }
        shared_drop(g);
        buf_free(&text);
    }
}

static struct grammar *of_gbnf(const char *text)
{
    struct grammar *g = NULL;
    struct err e = {0};
    if (outline_gbnf(text, &g, &e))
        fail_msg("%s: %s", text, e.text);
    return g;
}

static void grammars(void **state)
{
    (void)state;
    static const struct said cases[] = {
        {"root ::= \"a\" | b\nb ::= \"bc\"?", {"a", "bc", ""}, {"b", "abc"}},
        {"# sums\nroot ::= term (op term)*\nop ::= [-+*]\nterm ::= [0-9]+ | \"(\" root \")\"",
         {"1", "1+2", "(1+22)*3"},
         {"", "1+", "(1", "1)"}},
        {"root::=item list?\nlist ::=\n  \",\" item # rest\n  | \",\" item list\nitem ::= \"x\"",
         {"x", "x,x", "x,x,x,x"},
         {"", "x,", ",x"}},
        {"root ::= ws root2\nroot2 ::= \"a\" root2 | ws\nws ::= [ \\t]*", {"", " a", "aa \t"}, {"a a"}},
        {"root ::= \"\\x41\\u00e9\\n\\\"\\\\\" . [\\]^a]{2}", {"A\xC3\xA9\n\"\\\n]^"}, {"A\xC3\xA9\n\"\\]^"}},
        {"root ::= (\"a\" | (\"b\"){2,3}){1,2} \"\"", {"a", "bb", "bbba", "aa"}, {"b", "aaa", ""}},
        {"root ::= [\xD0\xB0-\xD1\x8F]+ [^\xD0\xB0]", {"\xD0\xB1\xD0\xB0x", "\xD0\xB0\xD1\x8F"}, {"\xD0\xB0", "x"}},
    };
    check_all(cases, sizeof cases / sizeof *cases, of_gbnf);
}

/* A rule that ends with itself does not nest: lists of any length. */
static void lists_have_any_length(void **state)
{
    (void)state;
    struct grammar *g = of_gbnf("root ::= item | item \",\" root\nitem ::= [0-9] | [0-9] item");
    struct buf text = {0};
    for (int i = 0; i < 2000; i++)
        buf_puts(&text, i ? ",12345" : "1");
    assert_true(takes(g, text.data));
    buf_puts(&text, ",");
    assert_false(takes(g, text.data));
    shared_drop(g);
    buf_free(&text);
}

static void grammars_that_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *text, *why;
    } cases[] = {
        {"", "no rule 'root'"},
        {"a ::= \"b\"", "no rule 'root'"},
        {"root ::= a", "line 1: a rule is named"},
        {"root ::= \"a\"\n\nroot ::= \"b\"", "line 3: this rule is there"},
        {"root = \"a\"", "line 1: a rule is missing"},
        {"?start: \"a\"", "a rule is missing"},
        {"root ::= \"a", "literal has no end"},
        {"root ::= \"a\n\"", "literal has no end"},
        {"root ::= [a", "class has no end"},
        {"root ::= [b-a]", "backwards"},
        {"root ::= (\"a\"", "group has no end"},
        {"root ::= \"a\")", "no group"},
        {"root ::= \"a\"**", "behind another"},
        {"root ::= *", "nothing to repeat"},
        {"root ::= \"a\"{3,2}", "second number"},
        {"root ::= \"a\"{2000}", "1000 is the most"},
        {"root ::= \"\\q\"", "no such escape"},
        {"root ::= \"\\uD800\"", "no such character"},
        {"root ::= \"\\x4\"", "hexadecimal"},
        {"root ::= root \"a\" | \"b\"", "itself"},
        {"root ::= ws a\nws ::= \" \"*\na ::= ws b\nb ::= a | \"x\"", "itself"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct grammar *g = NULL;
        struct err e = {0};
        if (outline_gbnf(cases[i].text, &g, &e) != E_INPUT || !strstr(e.text, cases[i].why))
            fail_msg("%s: %s", cases[i].text, e.text);
    }
}

static void regular_expressions_that_are_refused(void **state)
{
    (void)state;
    static const char *const texts[] = {"(",           ")",      "a**",     "a+?",   "*a",           "a{2", "a{3,2}",
                                        "a{2000}",     "[a",     "[b-a]",   "(?=a)", "\\b",          "\\1", "a^b",
                                        "[[:digit:]]", "\\p{L}", "(?<n>a)", "a{,2}", "[\xC3\xA9-a]", "\\"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct grammar *g = NULL;
        struct err e = {0};
        if (outline_regex(texts[i], &g, &e) != E_INPUT)
            fail_msg("%s was taken", texts[i]);
        assert_true(strstr(e.text, "at byte"));
    }
    struct grammar *g = NULL;
    struct err e = {0};
    assert_int_equal(outline_regex("((a{1000}){1000}){1000}", &g, &e), E_INPUT);
    assert_true(strstr(e.text, "too large"));
    struct buf long_one = {0};
    for (int i = 0; i < 300000; i++)
        buf_putc(&long_one, 'a');
    assert_int_equal(outline_regex(long_one.data, &g, &e), E_INPUT);
    assert_true(strstr(e.text, "more than 256 KiB"));
    buf_free(&long_one);
}

static void schemas(void **state)
{
    (void)state;
    static const struct said cases[] = {
        {"{\"type\":\"string\"}",
         {"\"\"", "\"a\\n\\u00e9\xC3\xA9\""},
         {"\"\n\"", "\"", "a", "\"\\x\"", "\"\\ud800\"", "\"\xFF\""}},
        {"{\"type\":\"string\",\"minLength\":1,\"maxLength\":2}", {"\"a\"", "\"\xC3\xA9\\n\""}, {"\"\"", "\"abc\""}},
        {"{\"type\":\"string\",\"pattern\":\"^[a\\\"]{2}$\"}", {"\"a\\\"\"", "\"aa\""}, {"\"a\"\"", "\"a\""}},
        {"{\"type\":\"integer\"}", {"0", "-17", "9007199254740993"}, {"01", "1.0", "1e3", "-", "12345678901234567"}},
        {"{\"type\":\"number\"}", {"0", "-1.5", "2e-7", "1E+5"}, {".5", "1.", "1e999", "00", "NaN"}},
        {"{\"type\":\"integer\",\"minimum\":-3,\"maximum\":12}",
         {"-3", "0", "9", "10", "12"},
         {"-4", "13", "-0", "100", "-30"}},
        {"{\"type\":\"integer\",\"exclusiveMinimum\":0}", {"1", "99999"}, {"0", "-1"}},
        {"{\"type\":\"number\",\"minimum\":0,\"maximum\":1}",
         {"0", "0.5", "1", "1.0", "0.0"},
         {"1.1", "-0.1", "2", "-0"}},
        {"{\"type\":\"number\",\"exclusiveMinimum\":0,\"exclusiveMaximum\":2}",
         {"0.1", "1", "1.999"},
         {"0", "0.0", "2", "2.0"}},
        {"{\"type\":\"number\",\"exclusiveMaximum\":-1}", {"-1.5", "-2"}, {"-1", "-1.0", "0", "-0.5"}},
        {"{\"type\":[\"boolean\",\"null\"]}", {"true", "false", "null"}, {"0", "\"true\""}},
        {"{\"enum\":[\"a\",1,null,{\"b\":[1]}]}", {"\"a\"", "1", "null", "{\"b\": [1]}"}, {"a", "2", "\"b\""}},
        {"{\"const\":\"x\"}", {"\"x\""}, {"\"y\""}},
        {"{\"type\":\"array\",\"items\":{\"type\":\"integer\"}}",
         {"[]", "[1]", "[1, 2,3]", "[\n  1\n]"},
         {"[,]", "[1,]", "[\"a\"]", "[1"}},
        {"{\"type\":\"array\",\"items\":{\"type\":\"null\"},\"minItems\":2,\"maxItems\":3}",
         {"[null,null]", "[null, null, null]"},
         {"[]", "[null]", "[null,null,null,null]"}},
        {"{\"type\":\"array\",\"maxItems\":0}", {"[]", "[ ]"}, {"[1]"}},
        {"{\"type\":\"array\",\"minItems\":1}", {"[1]", "[{}, \"a\"]"}, {"[]"}},
        {"{\"type\":\"array\",\"prefixItems\":[{\"const\":1},{\"const\":2}],\"items\":false,\"minItems\":2}",
         {"[1,2]"},
         {"[1]", "[1,2,3]", "[2,1]"}},
        {"{\"type\":\"array\",\"prefixItems\":[{\"const\":1}],\"items\":{\"const\":2}}",
         {"[]", "[1]", "[1,2,2]"},
         {"[2]", "[1,1]"}},
        {"{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{\"type\":\"string\"},\"c\":{}},"
         "\"required\":[\"b\"]}",
         {"{\"b\": \"\"}", "{\"a\":1,\"b\":\"\"}", "{\"b\":\"x\", \"c\":[1]}", "{\n  \"a\": 1,\n  \"b\": \"\"\n}"},
         {"{}", "{\"a\":1}", "{\"b\":\"\",\"a\":1}", "{\"b\":\"\",}", "{\"b\":\"\",\"d\":1}", "{\"b\":1}"}},
        {"{\"type\":\"object\",\"properties\":{\"a\":{\"const\":1}}}",
         {"{}", "{\"a\":1}"},
         {"{,}", "{\"a\":1,\"a\":1}"}},
        {"{\"type\":\"object\",\"required\":[\"z\"]}", {"{\"z\": [null]}"}, {"{}", "{\"y\":1}"}},
        {"{\"type\":\"object\",\"additionalProperties\":{\"type\":\"integer\"}}",
         {"{}", "{\"x\": 1, \"y\":2}"},
         {"{\"x\":\"1\"}"}},
        {"{\"type\":\"object\",\"additionalProperties\":false}", {"{}"}, {"{\"x\":1}"}},
        {"{\"type\":\"object\"}", {"{}", "{\"a\": {\"b\": [1, {}]}}"}, {"[]", "1"}},
        {"{}", {"1", "[]", "{\"a\":null}", "\"s\"", "true"}, {"", "tru", "'a'"}},
        {"{\"anyOf\":[{\"type\":\"integer\"},{\"type\":\"null\"}]}", {"1", "null"}, {"true"}},
        {"{\"oneOf\":[{\"const\":1},{\"const\":2}]}", {"1", "2"}, {"3"}},
        {"{\"$defs\":{\"a/b\":{\"const\":5}},\"allOf\":[{\"$ref\":\"#/$defs/a~1b\"}]}", {"5"}, {"6"}},
        {"{\"type\":\"object\",\"properties\":{\"next\":{\"anyOf\":[{\"$ref\":\"#\"},{\"type\":\"null\"}]}},"
         "\"required\":[\"next\"]}",
         {"{\"next\":null}", "{\"next\":{\"next\":{\"next\":null}}}"},
         {"{\"next\":{}}", "null"}},
        {"{\"type\":\"string\",\"format\":\"date\"}", {"\"2024-12-31\""}, {"\"2024-13-01\"", "\"x\""}},
        {"{\"type\":\"string\",\"format\":\"email\"}", {"\"x\""}, {"1"}},
        {"{\"properties\":{\"\\\"\":true},\"required\":[\"\\\"\"]}", {"{\"\\\"\": 1}"}, {"{\"\"\": 1}"}},
    };
    check_all(cases, sizeof cases / sizeof *cases, of_schema);
}

static void schemas_that_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *schema, *says;
    } cases[] = {
        {"false", "object"},
        {"{\"type\":\"thing\"}", "type"},
        {"{\"type\":5}", "type"},
        {"{\"not\":{}}", "'not' is not supported"},
        {"{\"type\":\"array\",\"uniqueItems\":true}", "uniqueItems"},
        {"{\"type\":\"object\",\"properties\":{\"a\":{\"multipleOf\":2}}}", "multipleOf"},
        {"{\"$ref\":\"#/$defs/no\"}", "there is no #/$defs/no"},
        {"{\"$ref\":\"http://x\"}", "$ref"},
        {"{\"$ref\":\"#\"}", "itself"},
        {"{\"anyOf\":[{\"$ref\":\"#\"},{\"type\":\"null\"}]}", "itself"},
        {"{\"anyOf\":[],\"x\":1}", "anyOf"},
        {"{\"anyOf\":[{}],\"properties\":{}}", "beside"},
        {"{\"allOf\":[{},{}]}", "allOf"},
        {"{\"enum\":[]}", "enum"},
        {"{\"type\":\"string\",\"pattern\":\"(\"}", "regular expression"},
        {"{\"type\":\"string\",\"minLength\":-1}", "minLength"},
        {"{\"type\":\"string\",\"minLength\":5,\"maxLength\":2}", "maxLength"},
        {"{\"type\":\"string\",\"maxLength\":100000000}", "too large"},
        {"{\"type\":\"integer\",\"minimum\":5,\"maximum\":4}", "no integer"},
        {"{\"type\":\"number\",\"minimum\":0.5}", "minimum"},
        {"{\"type\":\"array\",\"minItems\":3,\"maxItems\":2}", "minItems"},
        {"{\"type\":\"object\",\"required\":\"a\"}", "required"},
        {"{\"type\":\"object\",\"properties\":{\"a\":5}}", "object"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct json *j = parse(cases[i].schema);
        struct grammar *g = NULL;
        struct err e = {0};
        if (outline_schema(j, &g, &e) != E_INPUT || !strstr(e.text, cases[i].says))
            fail_msg("%s: %s", cases[i].schema, e.text);
        json_free(j);
    }
}

/* Every bound within a thousand: the integers that are taken are those between. */
static void integers_between_bounds(void **state)
{
    (void)state;
    struct rng r;
    rng_init(&r, 3);
    for (int i = 0; i < 60; i++) {
        int a = (int)rng_below(&r, 2000) - 1000, b = a + (int)rng_below(&r, i % 3 ? 40 : 1500);
        char schema[100], text[20];
        snprintf(schema, sizeof schema, "{\"type\":\"integer\",\"minimum\":%d,\"maximum\":%d}", a, b);
        struct grammar *g = of_schema(schema);
        for (int v = -2600; v <= 2600; v++) {
            snprintf(text, sizeof text, "%d", v);
            if (takes(g, text) != (a <= v && v <= b))
                fail_msg("%s: %d", schema, v);
        }
        shared_drop(g);
    }
}

/* More than may be alive at once, but for what they begin with alike. */
static void many_values(void **state)
{
    (void)state;
    struct buf schema = {0};
    char text[20];
    buf_puts(&schema, "{\"enum\":[\"\"");
    for (int i = 0; i < 9000; i++)
        buf_printf(&schema, ",\"v%d\",%d", i * 7, i * 11);
    buf_puts(&schema, "]}");
    struct grammar *g = of_schema(schema.data);
    struct guided at = {0};
    struct guide_ids ids;
    assert_true(guide_next(guides_of(guides, g), &at, NULL, 0, &ids));
    for (int v = 0; v < 100000; v++) {
        snprintf(text, sizeof text, "\"v%d\"", v);
        assert_int_equal(takes(g, text), v % 7 == 0 && v < 63000);
        snprintf(text, sizeof text, "%d", v);
        assert_int_equal(takes(g, text), v % 11 == 0 && v < 99000);
    }
    assert_true(takes(g, "\"\""));
    shared_drop(g);
    buf_free(&schema);
}

/* What cannot be followed is not followed in part. */
static void too_many_ways_are_given_up(void **state)
{
    (void)state;
    struct buf schema = {0};
    buf_puts(&schema, "{\"anyOf\":[{\"const\":0}");
    for (int i = 0; i < 5000; i++)
        buf_printf(&schema, ",{\"const\":%d}", i);
    buf_puts(&schema, "]}");
    struct grammar *g = of_schema(schema.data);
    struct guide_ids ids;
    for (int i = 0; i < 2; i++)
        assert_false(guide_next(guides_of(guides, g), &(struct guided){0}, NULL, 0, &ids));
    shared_drop(g);
    buf_free(&schema);
}

static void choices_and_objects(void **state)
{
    (void)state;
    struct json *j = parse("[\"yes\",\"no\",\"not sure\"]");
    struct grammar *g = NULL;
    assert_int_equal(outline_choice(j, &g, NULL), 0);
    assert_true(takes(g, "yes") && takes(g, "no") && takes(g, "not sure"));
    assert_false(takes(g, "not") || takes(g, "maybe") || takes(g, "") || takes(g, "yesno"));
    shared_drop(g);
    json_free(j);
    assert_int_equal(outline_object(&g, NULL), 0);
    assert_true(takes(g, "{\"a\": [1, {\"b\": null}]}") && takes(g, "{}"));
    assert_false(takes(g, "[]") || takes(g, "{} "));
    shared_drop(g);
    static const char *const bad[] = {"[]", "{}", "[1]", "[\"\"]", "\"a\""};
    for (int i = 0; i < 5; i++) {
        j = parse(bad[i]);
        assert_int_equal(outline_choice(j, &g, NULL), E_INPUT);
        json_free(j);
    }
}

static void forced_calls(void **state)
{
    (void)state;
    struct json *tools =
        parse("[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\","
              "\"properties\":{\"a\":{\"type\":\"integer\"}},\"required\":[\"a\"]}}},"
              "{\"type\":\"function\",\"function\":{\"name\":\"g\"}}]");
    static const char f[] = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>",
                      g2[] = "<tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>";
    char both[300];
    struct grammar *g = NULL;
    snprintf(both, sizeof both, "%s\n%s", f, g2);
    assert_int_equal(outline_calls(TOOLS_HERMES, tools, NULL, true, &g, NULL), 0);
    assert_true(takes(g, f) && takes(g, g2) && takes(g, both));
    assert_false(takes(g, "") || takes(g, "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>"));
    shared_drop(g);
    assert_int_equal(outline_calls(TOOLS_HERMES, tools, "g", false, &g, NULL), 0);
    assert_true(takes(g, g2) && !takes(g, f) && !takes(g, both));
    shared_drop(g);
    assert_int_equal(outline_calls(TOOLS_LLAMA3, tools, "f", false, &g, NULL), 0);
    assert_true(takes(g, "{\"name\": \"f\", \"parameters\": {\"a\": 5}}"));
    shared_drop(g);
    assert_int_equal(outline_calls(TOOLS_HERMES, tools, "h", false, &g, NULL), E_INPUT);
    assert_int_equal(outline_calls(TOOLS_MISTRAL, tools, NULL, false, &g, NULL), E_UNSUPPORTED);
    json_free(tools);
}

/* ---- lists of tokens */

static bool is_allowed(const struct guide_ids *ids, int32_t id)
{
    for (int i = 0; i < ids->n; i++)
        if (ids->ids[i] == id)
            return ids->allowed;
    return !ids->allowed;
}

/* With tokens of a byte the list is: those bytes that leave something alive, and the end where it may be. */
/* Is all of text a and b, some of them? */
static bool is_word(const char *text)
{
    return *text && !text[strspn(text, "ab")];
}

static bool is_behind_thought(const char *text)
{
    const char *end = strstr(text, "</think>");
    if (!end)
        return false;
    end += strlen("</think>");
    return is_word(end + (*end == '\n')) || (strncmp(end, "\n\n", 2) == 0 && is_word(end + 2));
}

static void thoughts_come_first(void **state)
{
    (void)state;
    static const char *const pieces[] = {"<think>", "</think>", "</",       "<", "think>", "a",
                                         "b",       "\n",       "\xC3\xA4", "/", " "};
    struct grammar *inner = of_regex("[ab]+"), *open, *begun;
    struct err e = {0};
    struct rng rng;
    rng_init(&rng, 5);
    assert_int_equal(outline_thought("<think>", "</think>", inner, &open, &e), 0);
    assert_int_equal(outline_thought(NULL, "</think>", inner, &begun, &e), 0);
    shared_drop(inner);
    for (int round = 0; round < 20000; round++) {
        struct buf text = {0};
        buf_puts(&text, rng_below(&rng, 2) ? "<think>" : "");
        for (int n = (int)rng_below(&rng, 8); n > 0; n--)
            buf_puts(&text, pieces[rng_below(&rng, sizeof pieces / sizeof *pieces)]);
        buf_puts(&text, rng_below(&rng, 2) ? "</think>\n\nab" : "");
        bool may = is_word(text.data) || (strncmp(text.data, "<think>", 7) == 0 && is_behind_thought(text.data + 7));
        if (takes(open, text.data) != may || takes(begun, text.data) != is_behind_thought(text.data))
            fail_msg("'%s'", text.data);
        buf_free(&text);
    }
    assert_false(takes(begun, "\xC3</think>a")); /* half a character */
    shared_drop(open);
    shared_drop(begun);
}

static void a_thoughts_end_may_repeat_itself(void **state)
{
    (void)state;
    struct grammar *inner = of_regex("x"), *g;
    struct err e = {0};
    assert_int_equal(outline_thought(NULL, "aab", inner, &g, &e), 0);
    shared_drop(inner);
    static const char *const good[] = {"aabx", "aaabx", "aaaaabx", "caabx", "abaabx", "aab\nx"};
    static const char *const bad[] = {"abx", "x", "aab", "aabaabx", "aab\n\n\nx"};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        assert_true(takes(g, good[i]));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_false(takes(g, bad[i]));
    shared_drop(g);
}

static void lists_are_what_may_follow(void **state)
{
    (void)state;
    struct grammar *g = of_schema("{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"array\",\"items\":{}}}}");
    static const char text[] = "{\"a\": [1.5, \"\xC3\xA9\\n\", {\"b\": null}]}";
    int32_t output[sizeof text];
    struct guided at = {0};
    struct guide_ids ids;
    for (int n = 0; n < (int)sizeof text; n++) {
        struct guide *guide = guides_of(guides, g);
        assert_true(guide_next(guide, &at, output, n, &ids));
        int32_t here = guide_read(guide, text, (size_t)n);
        for (int32_t id = 0; id < 300; id++) {
            char more[sizeof text + 20];
            memcpy(more, text, (size_t)n);
            int len = id < 256 ? 1 : snprintf(more + n, 20, "<unused%d>", (int)id);
            if (id < 256)
                more[n] = (char)id;
            bool want = id == 256 || id == 257 ? id == 257 && guide_may_end(guide, here)
                                               : guide_read(guide, more, (size_t)(n + len)) >= 0;
            if (is_allowed(&ids, id) != want)
                fail_msg("token %d behind %.*s", (int)id, n, text);
        }
        output[n] = (unsigned char)text[n];
    }
    assert_true(ids.allowed && ids.n == 1 && ids.ids[0] == 257); /* nothing but the end */
    output[0] = 'x';
    assert_false(guide_next(guides_of(guides, g), &(struct guided){0}, output, 1, &ids));
    shared_drop(g);
}

/* Too much is kept: the oldest guide begins anew, and its requests read their output again. */
static void what_is_kept_is_bounded(void **state)
{
    (void)state;
    struct guides *few = guides_new(tokens, 400000);
    struct grammar *all[6];
    struct guided at[6] = {{0}};
    int32_t output[6][64];
    int n[6] = {0};
    struct rng r;
    rng_init(&r, 9);
    for (int i = 0; i < 6; i++)
        all[i] = of_schema("{\"type\":\"array\",\"items\":{\"type\":\"integer\"}}");
    for (int round = 0; round < 400; round++) {
        int i = (int)rng_below(&r, 6);
        struct guide_ids ids, again;
        struct guide *g = guides_of(few, all[i]);
        assert_true(guide_next(g, &at[i], output[i], n[i], &ids));
        assert_true(guide_next(g, &(struct guided){0}, output[i], n[i], &again));
        assert_ptr_equal(ids.ids, again.ids);
        assert_true(ids.allowed && ids.n);
        int32_t id = ids.ids[rng_below(&r, (uint64_t)ids.n)];
        output[i][n[i]] = id;
        n[i] = id == 257 || n[i] == 60 ? 0 : n[i] + 1;
        if (!n[i])
            at[i] = (struct guided){0};
    }
    assert_true(guides_bytes(few) < 900000);
    for (int i = 0; i < 6; i++)
        shared_drop(all[i]);
    guides_free(few);
}

/* At the deepest nesting there is, what is open can still be closed. */
static void nesting_ends(void **state)
{
    (void)state;
    struct grammar *g = NULL;
    int32_t output[2000];
    int n = 0;
    struct guided at = {0};
    struct guide_ids ids;
    assert_int_equal(outline_object(&g, NULL), 0);
    output[n++] = '{';
    for (const char *p = "\"a\":"; *p; p++)
        output[n++] = *p;
    for (;; n++) { /* arrays in arrays, as long as there may be */
        assert_true(guide_next(guides_of(guides, g), &at, output, n, &ids));
        if (!is_allowed(&ids, '['))
            break;
        output[n] = '[';
    }
    assert_true(n > 60);
    while (assert_true(guide_next(guides_of(guides, g), &at, output, n, &ids)), !is_allowed(&ids, 257))
        output[n] = is_allowed(&ids, ']') ? ']' : is_allowed(&ids, '}') ? '}' : '1', n++;
    shared_drop(g);
}

/* An expression whose states are without number is given up, not followed. */
static void too_much_work_is_given_up(void **state)
{
    (void)state;
    struct grammar *g = of_regex("(.|a)*a(.|a){400}b(.|a)*(a|b)(.|a){300}");
    struct guided at = {0};
    struct guide_ids ids;
    int32_t output[3000];
    int n = 0;
    struct rng r;
    rng_init(&r, 1);
    while (n < 3000 && guide_next(guides_of(guides, g), &at, output, n, &ids))
        output[n++] = 'a' + (int32_t)rng_below(&r, 2);
    assert_in_range(n, 1, 2999);
    shared_drop(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(regular_expressions),
        cmocka_unit_test(regular_expressions_that_are_refused),
        cmocka_unit_test(classes_of_any_characters),
        cmocka_unit_test(grammars),
        cmocka_unit_test(lists_have_any_length),
        cmocka_unit_test(grammars_that_are_refused),
        cmocka_unit_test(schemas),
        cmocka_unit_test(schemas_that_are_refused),
        cmocka_unit_test(integers_between_bounds),
        cmocka_unit_test(many_values),
        cmocka_unit_test(too_many_ways_are_given_up),
        cmocka_unit_test(choices_and_objects),
        cmocka_unit_test(forced_calls),
        cmocka_unit_test(thoughts_come_first),
        cmocka_unit_test(a_thoughts_end_may_repeat_itself),
        cmocka_unit_test(lists_are_what_may_follow),
        cmocka_unit_test(what_is_kept_is_bounded),
        cmocka_unit_test(nesting_ends),
        cmocka_unit_test(too_much_work_is_given_up),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
