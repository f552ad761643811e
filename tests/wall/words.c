/* Hugging Face folders' tokenizers: what they become, and what is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "engine/base/mem.h"
#include "models/tokenizer/hf_words.h"
#include "models/tokenizer/tokenizer.h"

#define LLAMA3                                                                                                         \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|\\\\p{N}{1,3}| "                             \
    "?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+"                                                      \
    "|\\\\s+(?!\\\\S)|\\\\s+"
#define CUT_LLAMA3                                                                                                     \
    "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":\"" LLAMA3                   \
    "\"},\"behavior\":\"Isolated\",\"invert\":false},"                                                                 \
    "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":false}]}"
#define CUT_GPT2 "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true}"

/* A byte-level tokenizer of printable ASCII (ids 0 .. 94), "he" and "hel", with the parts that a test wants to be
 * otherwise. */
struct parts {
    const char *pre, *normalizer, *processor, *merges, *added, *more_vocab, *model; /* model: members after merges */
};

static void write_tokenizer(struct buf *out, const struct parts *p)
{
    int id = 0;
    buf_puts(out, "{\"version\":\"1.0\",\"model\":{\"type\":\"BPE\",\"vocab\":{\"\\u0120\":0");
    for (char c = '!'; c <= '~'; c++) {
        buf_puts(out, ",");
        buf_put_json(out, &c, 1);
        buf_printf(out, ":%d", ++id);
    }
    buf_printf(out, ",\"he\":95,\"hel\":96%s},\"merges\":%s%s}", p->more_vocab ? p->more_vocab : "",
               p->merges ? p->merges : "[\"h e\",[\"he\",\"l\"]]", p->model ? p->model : "");
    buf_printf(out, ",\"pre_tokenizer\":%s,\"normalizer\":%s,\"post_processor\":%s,\"added_tokens\":%s}",
               p->pre ? p->pre : CUT_GPT2, p->normalizer ? p->normalizer : "null", p->processor ? p->processor : "null",
               p->added ? p->added
                        : "[{\"id\":98,\"content\":\"<|begin|>\",\"special\":true,\"normalized\":false},{\"id\":99,"
                          "\"content\":\"<|end|>\",\"special\":true},"
                          "{\"id\":100,\"content\":\"<tool>\",\"special\":false}]");
}

static struct hf_text text_of(const char *s)
{
    return (struct hf_text){s, s ? strlen(s) : 0};
}

struct made {
    struct gguf *words;
    struct tokenizer *t;
};

static int make(struct made *m, const struct parts *p, const char *config, const char *generation, const char *chat,
                struct err *e)
{
    struct buf json = {0}, bytes = {0};
    write_tokenizer(&json, p);
    struct hf_text files[HF_FILES] = {text_of(json.data), text_of(config), text_of(generation), text_of(chat)};
    memset(m, 0, sizeof *m);
    int rc = hf_words_write(&bytes, files, e);
    if (rc)
        assert_int_equal(bytes.len, 0);
    if (!rc)
        rc = gguf_adopt(&m->words, &bytes, e);
    if (!rc)
        rc = tokenizer_from_gguf(&m->t, m->words, e);
    buf_free(&bytes);
    buf_free(&json);
    return rc;
}

static void drop(struct made *m)
{
    tokenizer_free(m->t);
    gguf_close(m->words);
}

static void makes(struct made *m, const struct parts *p, const char *config, const char *generation, const char *chat)
{
    struct err e = {0};
    if (make(m, p, config, generation, chat, &e))
        fail_msg("%s", e.text);
}

/* wanted: ids, ended by -1. */
static void encodes(const struct tokenizer *t, const char *text, const int32_t *wanted)
{
    struct tokens ids = {0};
    struct err e;
    size_t n = 0;
    assert_int_equal(tokenizer_encode(t, text, strlen(text),
                                      (struct tokenize_how){.flags = TOKENIZE_BOS | TOKENIZE_SPECIAL}, &ids, &e),
                     0);
    while (wanted[n] >= 0)
        n++;
    assert_int_equal(ids.len, n);
    assert_memory_equal(ids.ids, wanted, n * sizeof *wanted);
    tokens_free(&ids);
}

static void a_folder_is_read(void **state)
{
    (void)state;
    struct made m;
    struct gguf_string chat;
    const int32_t *ends;
    makes(&m, &(struct parts){0},
          "{\"bos_token\":\"<|begin|>\",\"eos_token\":{\"content\":\"<|end|>\"},\"chat_template\":\"{{ config }}\"}",
          NULL, NULL);
    assert_int_equal(tokenizer_n_vocab(m.t), 101);
    assert_int_equal(tokenizer_bos(m.t), 98);
    assert_int_equal(tokenizer_eos(m.t), 99);
    assert_false(tokenizer_adds_bos(m.t));
    encodes(m.t, "hello<tool><|end|>", (const int32_t[]){96, 76, 79, 100, 99, -1});
    assert_true(tokenizer_is_special(m.t, 98) && !tokenizer_is_special(m.t, 100) && !tokenizer_is_special(m.t, 97));
    assert_int_equal(tokenizer_end_ids(m.t, &ends), 1);
    assert_true(gguf_string(m.words, "tokenizer.chat_template", &chat) && chat.len == 12 &&
                !memcmp(chat.data, "{{ config }}", 12));
    drop(&m);
}

static void a_template_of_its_own_comes_first(void **state)
{
    (void)state;
    struct made m;
    struct gguf_string chat;
    const char *several =
        "{\"chat_template\":[{\"name\":\"rag\",\"template\":\"r\"},{\"name\":\"default\",\"template\":\"d\"}]}";
    makes(&m, &(struct parts){0}, several, NULL, "own");
    assert_true(gguf_string(m.words, "tokenizer.chat_template", &chat) && chat.len == 3);
    drop(&m);
    makes(&m, &(struct parts){0}, several, NULL, NULL);
    assert_true(gguf_string(m.words, "tokenizer.chat_template", &chat) && chat.len == 1 && *chat.data == 'd');
    drop(&m);
    makes(&m, &(struct parts){0}, NULL, NULL, NULL);
    assert_false(gguf_string(m.words, "tokenizer.chat_template", &chat));
    drop(&m);
}

static void what_goes_around_a_text(void **state)
{
    (void)state;
    static const char both[] =
        "{\"type\":\"Sequence\",\"processors\":[{\"type\":\"ByteLevel\"},{\"type\":\"TemplateProcessing\",\"single\":["
        "{\"SpecialToken\":{\"id\":\"<|begin|>\",\"type_id\":0}},{\"Sequence\":{\"id\":\"A\",\"type_id\":0}},"
        "{\"SpecialToken\":{\"id\":\"<|end|>\",\"type_id\":0}}]}]}";
    struct made m;
    makes(&m, &(struct parts){.processor = both}, "{\"eos_token\":\"<|end|>\"}", NULL, NULL);
    encodes(m.t, "he", (const int32_t[]){98, 95, 99, -1});
    drop(&m);
    makes(&m, &(struct parts){.processor = both},
          "{\"eos_token\":\"<|end|>\",\"add_bos_token\":false,\"add_eos_token\":null}", NULL, NULL);
    encodes(m.t, "he", (const int32_t[]){95, 99, -1});
    drop(&m);
    makes(&m, &(struct parts){0}, "{\"bos_token\":\"<|begin|>\",\"add_bos_token\":true}", NULL, NULL);
    encodes(m.t, "he", (const int32_t[]){98, 95, -1});
    drop(&m);
}

static void all_ends_are_found(void **state)
{
    (void)state;
    struct made m;
    const int32_t *ends;
    makes(&m, &(struct parts){0}, "{\"eos_token\":\"<|end|>\"}", "{\"eos_token_id\":[-4294967296,100,99,5000,\"x\"]}",
          NULL);
    assert_int_equal(tokenizer_end_ids(m.t, &ends), 2);
    assert_true(ends[0] == 99 && ends[1] == 100);
    drop(&m);
    makes(&m, &(struct parts){0}, NULL, "{\"eos_token_id\":100}", NULL);
    assert_int_equal(tokenizer_eos(m.t), 100);
    drop(&m);
}

static void known_ways_to_cut(void **state)
{
    (void)state;
    static const struct parts ways[] = {
        {.pre = CUT_LLAMA3, .model = ",\"ignore_merges\":true"},
        {.pre = CUT_GPT2, .normalizer = "{\"type\":\"NFC\"}"},
        {.pre = "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Digits\",\"individual_digits\":true}," CUT_GPT2
                "]}"},
    };
    static const char *const names[] = {"llama-bpe", "mpt", "smollm"};
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        struct made m;
        struct gguf_string pre;
        makes(&m, &ways[i], NULL, NULL, NULL);
        assert_true(gguf_string(m.words, "tokenizer.ggml.pre", &pre));
        assert_true(pre.len == strlen(names[i]) && !memcmp(pre.data, names[i], pre.len));
        drop(&m);
    }
}

static void refused(const struct parts *p, int code, const char *says)
{
    struct made m;
    struct err e = {0};
    int rc = make(&m, p, "{\"bos_token\":\"<|begin|>\"}", NULL, NULL, &e);
    drop(&m);
    if (rc != code || !strstr(e.text, says))
        fail_msg("%d \"%s\" instead of %d \"%s\"", rc, e.text, code, says);
}

static void what_is_not_known_is_refused(void **state)
{
    (void)state;
    refused(&(struct parts){.pre = CUT_LLAMA3}, E_UNSUPPORTED,
            "cuts words as \"llama-bpe\" does, but does not ignore merges where that does");
    refused(&(struct parts){.pre = CUT_LLAMA3, .normalizer = "{\"type\":\"NFC\"}", .model = ",\"ignore_merges\":true"},
            E_UNSUPPORTED, "composes text (NFC) where that does not");
    refused(&(struct parts){.pre = "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{"
                                   "\"Regex\":\"x+\"},\"behavior\":\"Isolated\"}," CUT_GPT2 "]}"},
            E_UNSUPPORTED, "in a way that no known model does (split x+");
    refused(&(struct parts){.pre = "{\"type\":\"ByteLevel\",\"add_prefix_space\":true}"}, E_UNSUPPORTED,
            "the step ByteLevel, or how it is set");
    refused(
        &(struct parts){.pre = "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Whitespace\"}," CUT_GPT2 "]}"},
        E_UNSUPPORTED, "the step Whitespace");
    refused(&(struct parts){.pre = "{\"type\":\"Sequence\",\"pretokenizers\":[{}," CUT_GPT2 "]}"}, E_UNSUPPORTED,
            "without a type");
    refused(&(struct parts){.pre = "null"}, E_UNSUPPORTED, "neither byte-level nor SentencePiece's");
    refused(&(struct parts){.normalizer = "{\"type\":\"Lowercase\"}"}, E_UNSUPPORTED, "normalizer: the step Lowercase");
    refused(&(struct parts){.normalizer = "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"},7]}"},
            E_UNSUPPORTED, "without a type");
    refused(&(struct parts){.model = ",\"byte_fallback\":true"}, E_UNSUPPORTED,
            "byte-level and SentencePiece's at once");
    refused(&(struct parts){.model = ",\"end_of_word_suffix\":\"</w>\""}, E_UNSUPPORTED, "prefixes or suffixes");
    refused(&(struct parts){.model = ",\"dropout\":0.1"}, E_UNSUPPORTED, "dropout");
    refused(&(struct parts){.model = ",\"type\":\"Unigram\""}, E_UNSUPPORTED, "\"Unigram\"");
    refused(&(struct parts){.processor = "{\"type\":\"RobertaProcessing\"}"}, E_UNSUPPORTED, "RobertaProcessing");
    refused(&(struct parts){.processor = "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<|"
                                         "end|>\"}},{\"Sequence\":{\"id\":\"A\"}}]}"},
            E_UNSUPPORTED, "other tokens around a text");
    refused(&(struct parts){.added = "[{\"id\":98,\"content\":\"<x>\",\"lstrip\":true}]"}, E_UNSUPPORTED,
            "\"<x>\" is lstrip");
    refused(&(struct parts){.added = "[{\"id\":98,\"content\":\"<\xC3\xA9>\",\"normalized\":true}]"}, E_UNSUPPORTED,
            "is normalized");
}

static void nonsense_is_refused(void **state)
{
    (void)state;
    refused(&(struct parts){.added = "7"}, E_INPUT, "added_tokens is a number, not an array");
    refused(&(struct parts){.added = "[{\"id\":98}]"}, E_INPUT, "a token without content");
    refused(&(struct parts){.added = "[{\"id\":98,\"content\":\"\"}]"}, E_INPUT, "a token without content");
    refused(&(struct parts){.added = "[{\"id\":-1,\"content\":\"<x>\"}]"}, E_INPUT, "is not a number from 0 to");
    refused(&(struct parts){.added = "[{\"id\":1e30,\"content\":\"<x>\"}]"}, E_INPUT, "is not a number from 0 to");
    refused(&(struct parts){.added = "[{\"id\":2097151,\"content\":\"<x>\"}]"}, E_INPUT, "is not a number from 0 to");
    refused(&(struct parts){.added = "[{\"id\":2000000,\"content\":\"<x>\"}]"}, E_INPUT, "so many holes");
    refused(&(struct parts){.added = "[{\"id\":95,\"content\":\"<x>\"}]"}, E_INPUT,
            "two tokens have the id 95: \"he\" and \"<x>\"");
    refused(&(struct parts){.more_vocab = ",\"xy\":3"}, E_INPUT, "two tokens have the id 3");
    refused(&(struct parts){.more_vocab = ",\"xy\":\"3\""}, E_INPUT, "the id of the token \"xy\"");
    refused(&(struct parts){.merges = "{}"}, E_INPUT, "merges is an object");
    refused(&(struct parts){.merges = "null"}, E_INPUT, "no model with merges");
    refused(&(struct parts){.merges = "[[\"h\"]]"}, E_INPUT, "neither two pieces nor");
    refused(&(struct parts){.merges = "[[\"h\",\"e\",\"l\"]]"}, E_INPUT, "neither two pieces nor");
    refused(&(struct parts){.merges = "[[\"h x\",\"e\"]]"}, E_INPUT, "neither two pieces nor");
    refused(&(struct parts){.merges = "[7]"}, E_INPUT, "neither two pieces nor");
    refused(&(struct parts){.merges = "[\"he\"]"}, E_INPUT, "not two pieces with a space between");
    refused(&(struct parts){.merges = "[\"h q\"]"}, E_INPUT, "not in the vocabulary");
}

static void tokens_that_the_config_names_are_there(void **state)
{
    (void)state;
    struct made m;
    struct err e = {0};
    assert_int_equal(make(&m, &(struct parts){0}, "{\"bos_token\":\"<s>\"}", NULL, NULL, &e), E_INPUT);
    assert_non_null(strstr(e.text, "the bos_token of tokenizer_config.json, \"<s>\", is none of its tokens"));
    assert_int_equal(make(&m, &(struct parts){0}, "{\"eos_token\":{\"content\":\"</s>\"}}", NULL, NULL, &e), E_INPUT);
    assert_non_null(strstr(e.text, "eos_token"));
    makes(&m, &(struct parts){0}, "{\"bos_token\":null}", NULL, NULL);
    drop(&m);
}

static void files_that_are_missing_or_broken(void **state)
{
    (void)state;
    struct buf out = {0};
    struct gguf *g;
    struct err e = {0};
    struct hf_text files[HF_FILES] = {{0}};
    assert_int_equal(hf_words_write(&out, files, &e), E_INPUT);
    static const char *const broken[] = {
        "", "{", "7", "[]", "{}", "{\"model\":7}", "{\"model\":{\"type\":\"BPE\",\"vocab\":[],\"merges\":[]}}"};
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++) {
        files[HF_TOKENIZER] = text_of(broken[i]);
        assert_true(hf_words_write(&out, files, &e) < 0);
        assert_non_null(strstr(e.text, "tokenizer.json"));
        assert_int_equal(out.len, 0);
    }
    struct buf good = {0};
    write_tokenizer(&good, &(struct parts){0});
    files[HF_TOKENIZER] = text_of(good.data);
    files[HF_TOKENIZER_CONFIG] = text_of("{\"bos_token\":");
    assert_int_equal(hf_words_write(&out, files, &e), E_INPUT);
    assert_non_null(strstr(e.text, "tokenizer_config.json"));
    assert_int_equal(hf_words_open(&g, "tests/data", &e), E_NOTFOUND);
    assert_non_null(strstr(e.text, "tests/data: there is no tokenizer.json"));
    assert_null(g);
    buf_free(&good);
    buf_free(&out);
}

/* SentencePiece's form: all bytes, U+2581 and three letters; "▁a" and "▁ab". */
static void spaces_in_four_ways(void **state)
{
    (void)state;
    static const struct {
        const char *normalizer, *pre;
        int32_t ids[8];
    } ways[] = {
        /* of " ab<s>b" */
        {"{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Prepend\",\"prepend\":\"\\u2581\"},"
         "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"\\u2581\"}]}",
         "null",
         {259, 263, 1, 259, 261, -1}},
        {"{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"\\u2581\"}", "null", {263, 1, 261, -1}},
        {"null",
         "{\"type\":\"Metaspace\",\"replacement\":\"\\u2581\",\"prepend_scheme\":\"always\",\"split\":false}",
         {263, 1, 259, 261, -1}},
        {"null",
         "{\"type\":\"Metaspace\",\"replacement\":\"\\u2581\",\"prepend_scheme\":\"first\",\"split\":false}",
         {263, 1, 261, -1}}};
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        struct buf json = {0}, bytes = {0};
        struct made m = {0};
        struct err e = {0};
        buf_puts(&json, "{\"model\":{\"unk_token\":\"<unk>\",\"byte_fallback\":true,\"fuse_unk\":true,\"vocab\":{\"<"
                        "unk>\":0,\"<s>\":1,\"</s>\":2");
        for (int b = 0; b < 256; b++)
            buf_printf(&json, ",\"<0x%02X>\":%d", b, 3 + b);
        buf_printf(&json,
                   ",\"\\u2581\":259,\"a\":260,\"b\":261,\"\\u2581a\":262,\"\\u2581ab\":263},\"merges\":[\"\\u2581 "
                   "a\",\"\\u2581a b\"]},"
                   "\"normalizer\":%s,\"pre_tokenizer\":%s,\"added_tokens\":[{\"id\":0,\"content\":\"<unk>\","
                   "\"special\":true},"
                   "{\"id\":1,\"content\":\"<s>\",\"special\":true},{\"id\":2,\"content\":\"</s>\",\"special\":true}]}",
                   ways[i].normalizer, ways[i].pre);
        struct hf_text files[HF_FILES] = {text_of(json.data)};
        if (hf_words_write(&bytes, files, &e) || gguf_adopt(&m.words, &bytes, &e) ||
            tokenizer_from_gguf(&m.t, m.words, &e))
            fail_msg("%s", e.text);
        encodes(m.t, " ab<s>b", ways[i].ids);
        encodes(m.t, "\n", i == 1 ? (const int32_t[]){13, -1} : (const int32_t[]){259, 13, -1});
        drop(&m);
        buf_free(&json);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_folder_is_read),
        cmocka_unit_test(a_template_of_its_own_comes_first),
        cmocka_unit_test(what_goes_around_a_text),
        cmocka_unit_test(all_ends_are_found),
        cmocka_unit_test(known_ways_to_cut),
        cmocka_unit_test(what_is_not_known_is_refused),
        cmocka_unit_test(nonsense_is_refused),
        cmocka_unit_test(tokens_that_the_config_names_are_there),
        cmocka_unit_test(files_that_are_missing_or_broken),
        cmocka_unit_test(spaces_in_four_ways),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
