/* WordPiece: words and pieces by hand, what a tokenizer.json may not say, giving up. The library's own ids are compared
 * by tests/oracle/wordpiece_oracle.py. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "engine/base/mem.h"
#include "models/tokenizer/hf_words.h"
#include "models/tokenizer/tokenizer.h"
#include "tests/rig/tiny_vocab.h"

static struct tokenizer *from_file(const struct buf *file)
{
    struct gguf *g;
    struct tokenizer *t;
    struct err e;
    assert_int_equal(gguf_open_memory(&g, file->data, file->len, &e), 0);
    assert_int_equal(tokenizer_from_gguf(&t, g, &e), 0);
    gguf_close(g);
    return t;
}

/* want: the pieces, each after a space. */
static void check(const struct tokenizer *t, const char *text, int flags, const char *want)
{
    struct tokens ids = {0};
    struct buf got = {0};
    struct err e;
    assert_int_equal(tokenizer_encode(t, text, strlen(text), (struct tokenize_how){.flags = flags}, &ids, &e), 0);
    for (size_t i = 0; i < ids.len; i++) {
        struct buf piece = {0};
        tokenizer_piece(t, ids.ids[i], &piece);
        buf_printf(&got, "%s|", piece.data);
        buf_free(&piece);
    }
    assert_string_equal(got.data ? got.data : "", want);
    tokens_free(&ids);
    buf_free(&got);
}

static void words_and_pieces(void **state)
{
    struct buf file = {0};
    (void)state;
    tiny_wordpiece(&file);
    struct tokenizer *t = from_file(&file);
    check(t, "Hello, HE!", 0, " hello| ,| he| !|");
    check(t, "helloing hellolll", 0, " hello|ing| hello|lll|");
    check(t, "h\xC3\xA9llo \xE1\xBA\xB9\xCC\x81", 0, " hello| e|"); /* accents go */
    check(t,
          "a\x01\x02"
          "b\x7F",
          0, " a|b|"); /* controls go, and part nothing */
    check(t,
          "a\xC2\xA0"
          "b\xE3\x80\x80"
          "c",
          0, " a| b| c|"); /* spaces of any kind part */
    check(t,
          "a\xE4\xB8\xAD"
          "b",
          0, " a| \xE4\xB8\xAD| b|"); /* Chinese characters are words */
    check(t,
          "a\xFF"
          "b",
          0, " a|b|");                                      /* U+FFFD goes, too */
    check(t, "\xC3\x86\xC3\x86", 0, " \xC3\xA6|\xC3\xA6|"); /* lower case */
    check(t, "he\xE6\x96\x87 he", 0, " he|[UNK]| he|");
    check(t, "[CLS]", 0, " [| c|l|s| ]|");
    check(t, "a[SEP]b", TOKENIZE_SPECIAL | TOKENIZE_BOS, "[CLS]| a|[SEP]| b|[SEP]|");
    check(t, "", TOKENIZE_BOS, "[CLS]|[SEP]|");
    struct buf text = {0};
    tokenizer_decode(t, (int32_t[]){tokenizer_find(t, " hello", 6), tokenizer_find(t, "ing", 3)}, 2, false, &text);
    assert_true(buf_equals(&text, "helloing"));
    buf_free(&text);
    tokenizer_free(t);
    buf_free(&file);
}

static void words_have_a_length(void **state)
{
    struct buf file = {0}, text = {0};
    struct tokens ids = {0};
    struct err e;
    (void)state;
    tiny_wordpiece(&file);
    struct tokenizer *t = from_file(&file);
    for (int n = 100; n <= 101; n++) {
        buf_clear(&text);
        for (int i = 0; i < n; i++)
            buf_putc(&text, 'x');
        ids.len = 0;
        assert_int_equal(tokenizer_encode(t, text.data, text.len, (struct tokenize_how){0}, &ids, &e), 0);
        assert_int_equal(ids.len, n == 100 ? 100 : 1);
        assert_true(n == 100 || ids.ids[0] == tokenizer_find(t, "[UNK]", 5));
    }
    tokens_free(&ids);
    buf_free(&text);
    buf_free(&file);
    tokenizer_free(t);
}

/* A million marks in one run, a million gaps, a million words: all are given up when asked, and linear when not. */
static void long_texts_end(void **state)
{
    static const char *const parts[] = {"\xCC\x81\xCC\xA3", " ", "a ", "\xE4\xB8\xAD", "x", "!"};
    struct buf file = {0}, text = {0};
    struct tokens ids = {0};
    struct err e;
    (void)state;
    tiny_wordpiece(&file);
    struct tokenizer *t = from_file(&file);
    for (size_t k = 0; k < sizeof parts / sizeof *parts; k++) {
        struct cancel cancel = {0};
        buf_clear(&text);
        for (int i = 0; i < 500000; i++)
            buf_puts(&text, parts[k]);
        ids.len = 0;
        assert_int_equal(tokenizer_encode(t, text.data, text.len, (struct tokenize_how){0}, &ids, &e), 0);
        cancel_begin(&cancel, 0);
        cancel_ask(&cancel);
        ids.len = 0;
        struct tokenize_how how = {.cancel = &cancel};
        assert_int_equal(tokenizer_encode(t, text.data, text.len, how, &ids, &e), E_GONE);
        assert_int_equal(ids.len, 0);
        how = (struct tokenize_how){.max_tokens = 3};
        int rc = tokenizer_encode(t, text.data, text.len, how, &ids, &e);
        assert_int_equal(rc, k == 0 || k == 1 || k == 4 ? 0 : E_INPUT); /* nothing, or one unknown word */
        assert_true(ids.len == (k == 4 ? 1u : 0u));
    }
    tokens_free(&ids);
    buf_free(&text);
    buf_free(&file);
    tokenizer_free(t);
}

/* ---- tokenizer.json ---- */

struct parts {
    const char *normalizer, *pre, *processor, *model; /* model: further members, the last of two counts */
};

static int open_parts(const struct parts *p, struct tokenizer **t, struct err *e)
{
    struct buf text = {0}, file = {0};
    buf_printf(
        &text,
        "{\"added_tokens\":[{\"id\":0,\"content\":\"[UNK]\",\"special\":true},{\"id\":1,\"content\":\"[CLS]\","
        "\"special\":true},{\"id\":2,\"content\":\"[SEP]\",\"special\":true}],\"normalizer\":%s,"
        "\"pre_tokenizer\":%s,\"post_processor\":%s,\"model\":{\"type\":\"WordPiece\",\"unk_token\":\"[UNK]\","
        "\"continuing_subword_prefix\":\"##\",\"max_input_chars_per_word\":100,\"vocab\":{\"[UNK]\":0,\"[CLS]\":1,"
        "\"[SEP]\":2,\"A\":3,\"a\":4,\"##a\":5,\"#\":6,\"##\":7,\"\\u00e4\":8}%s}}",
        p->normalizer ? p->normalizer : "null", p->pre ? p->pre : "{\"type\":\"BertPreTokenizer\"}",
        p->processor ? p->processor : "null", p->model ? p->model : "");
    struct hf_text files[HF_FILES] = {{text.data, text.len}};
    struct gguf *g;
    *t = NULL;
    int rc = hf_words_write(&file, files, e);
    if (!rc && (rc = gguf_adopt(&g, &file, e)) == 0) {
        rc = tokenizer_from_gguf(t, g, e);
        gguf_close(g);
    }
    buf_free(&text);
    buf_free(&file);
    return rc;
}

static void normalizers_are_obeyed(void **state)
{
    struct tokenizer *t;
    struct err e;
    (void)state;
    assert_int_equal(open_parts(&(struct parts){0}, &t, &e), 0);
    check(t, "Aa a## \xC3\xA4", TOKENIZE_BOS, " A|a| a| #| #| \xC3\xA4|"); /* no template: nothing goes around it */
    tokenizer_free(t);
    const char *cased = "{\"type\":\"BertNormalizer\",\"clean_text\":false,\"handle_chinese_chars\":false,"
                        "\"strip_accents\":true,\"lowercase\":false}";
    assert_int_equal(open_parts(&(struct parts){.normalizer = cased}, &t, &e), 0);
    check(t, "A\xC3\xA4", 0, " A|a|");
    tokenizer_free(t);
    const char *lower = "{\"type\":\"BertNormalizer\",\"strip_accents\":false,\"lowercase\":true}";
    assert_int_equal(open_parts(&(struct parts){.normalizer = lower}, &t, &e), 0);
    check(t, "AA \xC3\x84", 0, " a|a| \xC3\xA4|");
    tokenizer_free(t);
}

static void what_is_not_known_is_refused(void **state)
{
#define TOKEN(id) "{\"SpecialToken\":{\"id\":\"" id "\",\"type_id\":0}}"
#define TEXT_A "{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}"
    static const struct {
        struct parts parts;
        int rc;
        const char *why;
    } cases[] = {
        {{.normalizer = "{\"type\":\"NFKC\"}"}, E_UNSUPPORTED, "NFKC"},
        {{.pre = "{\"type\":\"Whitespace\"}"}, E_UNSUPPORTED, "Whitespace"},
        {{.pre = "null"}, E_UNSUPPORTED, "pre_tokenizer"},
        {{.model = ",\"continuing_subword_prefix\":\"x\""}, E_UNSUPPORTED, "prefix"},
        {{.model = ",\"continuing_subword_prefix\":\"\""}, E_UNSUPPORTED, "prefix"},
        {{.model = ",\"unk_token\":\"[NO]\""}, E_INPUT, "[NO]"},
        {{.model = ",\"unk_token\":null"}, E_INPUT, "unk_token"},
        {{.model = ",\"max_input_chars_per_word\":0"}, E_INPUT, "max_input_chars_per_word"},
        {{.model = ",\"max_input_chars_per_word\":1e6"}, E_INPUT, "max_input_chars_per_word"},
        {{.model = ",\"vocab\":[]"}, E_INPUT, "vocab"},
        {{.processor = "{\"type\":\"RobertaProcessing\"}"}, E_UNSUPPORTED, "RobertaProcessing"},
        {{.processor = "{\"type\":\"BertProcessing\"}"}, E_INPUT, "no cls"},
        {{.processor = "{\"type\":\"BertProcessing\",\"cls\":[\"[NO]\",1],\"sep\":[\"[SEP]\",2]}"}, E_INPUT, "[NO]"},
        {{.processor = "{\"type\":\"TemplateProcessing\",\"single\":[" TEXT_A "," TOKEN("[SEP]") "],\"pair\":[]}"},
         E_UNSUPPORTED,
         "templates"},
        {{.processor = "{\"type\":\"TemplateProcessing\",\"single\":[" TOKEN("[CLS]") "," TEXT_A "," TOKEN(
              "[SEP]") "],\"pair\":[]}"},
         E_UNSUPPORTED,
         "templates"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct tokenizer *t;
        struct err e = {0};
        int rc = open_parts(&cases[i].parts, &t, &e);
        if (rc != cases[i].rc || !strstr(e.text, cases[i].why))
            fail_msg("%d: %d \"%s\", not %d \"%s\"", (int)i, rc, e.text, cases[i].rc, cases[i].why);
        assert_null(t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(words_and_pieces),
        cmocka_unit_test(words_have_a_length),
        cmocka_unit_test(long_texts_end),
        cmocka_unit_test(normalizers_are_obeyed),
        cmocka_unit_test(what_is_not_known_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
