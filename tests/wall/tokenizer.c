/* The tokenizer: expected ids of real vocabularies, scanners held to their patterns, text back from ids,
 * hostile texts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/base/rng.h"
#include "engine/base/thread.h"
#include "models/tokenizer/pretok.h"
#include "models/tokenizer/tokenizer.h"
#include "models/tokenizer/unicode.h"
#include "tests/rig/pcre_known.h"
#include "tests/rig/tiny_vocab.h"

#define VOCABS TEST_DATA "/vocab/ggml-vocab-"
#define MARK "\n__ggml_vocab_test__\n"

static struct tokenizer *from_bytes(const struct buf *file)
{
    struct gguf *g;
    struct tokenizer *t = NULL;
    struct err e = {0};
    if (gguf_open_memory(&g, file->data, file->len, &e) || tokenizer_from_gguf(&t, g, &e))
        fail_msg("%s", e.text);
    gguf_close(g);
    return t;
}

static struct tokenizer *tiny(const char *pre)
{
    struct buf file = {0};
    if (pre)
        tiny_byte_level(pre, &file);
    else
        tiny_sentencepiece(true, &file);
    struct tokenizer *t = from_bytes(&file);
    buf_free(&file);
    return t;
}

static struct tokenizer *real(const char *name)
{
    struct buf path = {0};
    struct gguf *g;
    struct tokenizer *t = NULL;
    struct err e = {0};
    buf_printf(&path, VOCABS "%s.gguf", name);
    if (gguf_open(&g, path.data, &e) || tokenizer_from_gguf(&t, g, &e))
        fail_msg("%s", e.text);
    gguf_close(g);
    buf_free(&path);
    return t;
}

static void check_ids(const struct tokenizer *t, const char *text, size_t n, int flags, const char *want)
{
    struct tokens ids = {0};
    struct buf got = {0};
    struct err e = {0};
    if (tokenizer_encode(t, text, n, (struct tokenize_how){.flags = flags}, &ids, &e))
        fail_msg("%s", e.text);
    for (size_t i = 0; i < ids.len; i++)
        buf_printf(&got, "%s%d", i ? " " : "", ids.ids[i]);
    buf_puts(&got, "");
    if (!buf_equals(&got, want))
        fail_msg("\"%.*s\": got %s, want %s", (int)n, text, got.data, want);
    buf_free(&got);
    tokens_free(&ids);
}

/* ---- expected ids ---- */

static void check_vocab(const char *name)
{
    struct buf path = {0}, in = {0}, out = {0};
    struct err e = {0};
    struct tokenizer *t = real(name);
    buf_printf(&path, VOCABS "%s.gguf.inp", name);
    assert_int_equal(file_read(&in, path.data, 1 << 20, &e), 0);
    buf_clear(&path);
    buf_printf(&path, VOCABS "%s.gguf.out", name);
    assert_int_equal(file_read(&out, path.data, 1 << 20, &e), 0);
    int n = 0;
    char *line = out.data, *text = in.data;
    for (char *end; (end = strstr(text, MARK)); text = end + strlen(MARK), n++) {
        char *stop = strchr(line, '\n');
        assert_non_null(stop);
        *stop = 0;
        line += *line == ' ';
        check_ids(t, text, (size_t)(end - text), 0, line);
        line = stop + 1;
    }
    assert_true(n >= 40);
    tokenizer_free(t);
    buf_free(&path);
    buf_free(&in);
    buf_free(&out);
}

static void test_expected_ids(void **state)
{
    (void)state;
    const char *names[] = {"deepseek-llm", "falcon", "gpt-2", "phi-3", "qwen2", "starcoder"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        check_vocab(names[i]);
}

/* ---- scanners are their patterns ---- */

struct words {
    struct buf ends; /* each word's length, as text */
    size_t bytes;
};

static int note_word(void *ctx, const char *s, size_t n)
{
    struct words *w = ctx;
    (void)s;
    assert_true(n > 0);
    w->bytes += n;
    buf_printf(&w->ends, "%zu ", n);
    return 0;
}

static void check_split(const struct pretok *p, const char *name, const struct buf *text)
{
    struct words fast = {0}, defined = {0};
    struct err e = {0};
    assert_int_equal(pretok_split(p, text->data, text->len, (struct word_sink){note_word, &fast}, &e), 0);
    assert_int_equal(pretok_split_patterns(p, text->data, text->len, (struct word_sink){note_word, &defined}, &e), 0);
    assert_int_equal(fast.bytes, text->len);
    if (fast.ends.len != defined.ends.len ||
        (fast.ends.len && memcmp(fast.ends.data, defined.ends.data, fast.ends.len) != 0))
        fail_msg("%s: \"%s\": scanner %s, pattern %s", name, text->data, fast.ends.data, defined.ends.data);
    buf_free(&fast.ends);
    buf_free(&defined.ends);
}

static uint32_t random_char(struct rng *r, const struct pcre_known *k)
{
    static const uint32_t from[] = {0,      0x20,   0x30,   0x41,    0x80,    0x250,   0x370,  0x590,
                                    0x900,  0x1100, 0x1E00, 0x2000,  0x2150,  0x2460,  0x3000, 0x4E00,
                                    0xA640, 0xFB00, 0xFF00, 0x10400, 0x1D400, 0x1F300, 0};
    static const uint32_t to[] = {0x80,   0x7F,   0x3A,    0x7B,    0x250,   0x370,   0x590,   0x900,
                                  0x1100, 0x1E00, 0x2000,  0x2070,  0x2200,  0x2500,  0x3100,  0xA000,
                                  0xABC0, 0xFE00, 0x10000, 0x10D00, 0x1D800, 0x1FA00, 0x110000};
    for (;;) {
        uint64_t i = rng_below(r, sizeof from / sizeof *from);
        uint32_t cp = from[i] + (uint32_t)rng_below(r, to[i] - from[i]);
        if ((cp < 0xD800 || cp >= 0xE000) && known_char(k, cp))
            return cp;
    }
}

static void random_text(struct rng *r, const struct pcre_known *k, struct buf *out)
{
    static const char *const bits[] = {" ",
                                       "  ",
                                       "\n",
                                       "\r\n",
                                       "\t",
                                       "\xC2\xA0",
                                       "\xE3\x80\x80",
                                       "'s",
                                       "'LL",
                                       "'\xC5\xBF",
                                       "'re",
                                       "'",
                                       "123",
                                       "4567",
                                       "\xC2\xB2",
                                       "e\xCC\x81",
                                       "abc",
                                       "ABC",
                                       "aBc",
                                       " the",
                                       "!",
                                       "...",
                                       "/",
                                       "=/\n",
                                       "\xE2\x80\xA8",
                                       "\xE1\xA0\x8E",
                                       "\xE4\xB8\xAD",
                                       "\xEF\xBC\x81",
                                       "\xC7\x85",
                                       "\xCA\xB0"};
    buf_clear(out);
    for (uint64_t n = rng_below(r, 24); n; n--) {
        char s[4];
        if (rng_below(r, 3))
            buf_puts(out, bits[rng_below(r, sizeof bits / sizeof *bits)]);
        else
            buf_put(out, s, (size_t)utf8_encode(random_char(r, k), s));
    }
}

static void test_scanners_are_patterns(void **state)
{
    (void)state;
    uint16_t *classes = unicode_build_classes();
    struct pcre_known k;
    struct buf text = {0};
    struct rng r;
    known_init(&k, classes);
    rng_init(&r, 2);
    for (size_t i = 0; pretok_name(i); i++) {
        struct pretok *p;
        struct err e = {0};
        assert_int_equal(pretok_create(&p, pretok_name(i), strlen(pretok_name(i)), classes, &e), 0);
        for (int n = 0; n < 3000; n++) {
            random_text(&r, &k, &text);
            check_split(p, pretok_name(i), &text);
        }
        pretok_free(p);
    }
    buf_free(&text);
    known_free(&k);
    mem_free(classes);
}

/* Every assigned character of an older Unicode is classed as PCRE2 classes it. */
static void test_classes(void **state)
{
    (void)state;
    uint16_t *classes = unicode_build_classes();
    struct pcre_known k;
    int unknown = 0;
    known_init(&k, classes);
    for (uint32_t cp = 0; cp < 0x500; cp++)
        assert_true(known_char(&k, cp));
    for (uint32_t cp = 0x500; cp < 0x110000; cp += 7)
        unknown += (cp < 0xD800 || cp >= 0xE000) && !known_char(&k, cp);
    assert_true(unknown < 3000); /* of 158,000: what is newer than PCRE2 */
    known_free(&k);
    mem_free(classes);
}

/* ---- NFC ---- */

static void check_nfc(const char *in, const char *want)
{
    uint16_t *classes = unicode_build_classes();
    struct buf out = {0};
    assert_int_equal(unicode_nfc(classes, in, strlen(in), &out, NULL), 0);
    assert_string_equal(out.data, want);
    buf_free(&out);
    mem_free(classes);
}

static void test_nfc(void **state)
{
    (void)state;
    check_nfc("e\xCC\x81", "\xC3\xA9");
    check_nfc("\xC3\x95\xCC\xA8", "\xC7\xAA\xCC\x83");                 /* the ogonek goes under the tilde */
    check_nfc("\xE1\x84\x80\xE1\x85\xA1\xE1\x86\xA8", "\xEA\xB0\x81"); /* Hangul */
    check_nfc("\xE2\x84\xAB", "\xC3\x85");                             /* the Angstrom sign */
    check_nfc("a\xCC\x81\xCC\xA3", "\xE1\xBA\xA1\xCC\x81");            /* marks are put in order */
    check_nfc("\xE0\xA5\x98", "\xE0\xA4\x95\xE0\xA4\xBC");             /* excluded from composition */
    check_nfc("\xCC\x81", "\xCC\x81");
    struct buf marks = {0}, out = {0};
    uint16_t *classes = unicode_build_classes();
    for (int i = 0; i < 200000; i++)
        buf_puts(&marks, i % 2 ? "\xCC\x81" : "\xCC\xA3");
    assert_int_equal(unicode_nfc(classes, marks.data, marks.len, &out, NULL), 0);
    assert_int_equal(out.len, marks.len);
    assert_memory_equal(out.data, "\xCC\xA3\xCC\xA3", 4);
    buf_free(&marks);
    buf_free(&out);
    mem_free(classes);
}

/* ---- small vocabularies, ids by hand ---- */

static void test_merges(void **state)
{
    (void)state;
    struct tokenizer *t = tiny("gpt-2");
    check_ids(t, "hello hello", 11, 0, "259 261");
    check_ids(t, "hell", 4, 0, "256 257");
    check_ids(t, "aaaaaaa", 7, 0, "264 263 97");
    check_ids(t, "", 0, 0, "");
    check_ids(t, "<|end|><tool>", 13, 0, "60 124 101 110 100 124 62 266");
    check_ids(t, "<|end|><tool>", 13, TOKENIZE_SPECIAL, "265 266");
    check_ids(t,
              "\xFF\xFE"
              "hello",
              7, 0, "255 254 259");
    assert_int_equal(tokenizer_find(t, "<|end|>", 7), 265);
    assert_int_equal(tokenizer_find(t, " hello", 6), 261);
    assert_int_equal(tokenizer_find(t, "nothing", 7), -1);
    assert_int_equal(tokenizer_eos(t), 265);
    assert_int_equal(tokenizer_bos(t), -1);
    assert_true(tokenizer_is_special(t, 265) && !tokenizer_is_special(t, 266) && !tokenizer_is_special(t, 9999));
    const int32_t *ends;
    assert_int_equal(tokenizer_end_ids(t, &ends), 1);
    assert_int_equal(ends[0], 265);
    tokenizer_free(t);
}

static void test_sentencepiece(void **state)
{
    (void)state;
    struct tokenizer *t = tiny(NULL);
    check_ids(t, "abc", 3, 0, "259 266"); /* ab scores best, then abc before " ab" */
    check_ids(t, "abc", 3, TOKENIZE_BOS, "1 259 266");
    check_ids(t, "z", 1, 0, "259 125");
    check_ids(t, "\xC3\xA9\xC3\xA8", 4, 0, "259 268 198 171");
    check_ids(t, "\xFF", 1, 0, "259 258");
    struct buf text = {0};
    const int32_t ids[] = {1, 264, 265, 268, 198, 171};
    tokenizer_decode(t, ids, 6, true, &text);
    assert_string_equal(text.data, "abc\xC3\xA9\xC3\xA8");
    buf_free(&text);
    tokenizer_free(t);
}

static void test_bytes(void **state)
{
    (void)state;
    struct tokenizer *t = NULL;
    struct err e = {0};
    assert_int_equal(tokenizer_bytes(&t, 100, &e), E_INPUT);
    assert_int_equal(tokenizer_bytes(&t, 1000, &e), 0);
    check_ids(t, "a\xFF<|eos|>", 9, TOKENIZE_SPECIAL, "97 255 257");
    check_ids(t, "<|", 2, TOKENIZE_SPECIAL, "60 124");
    struct buf text = {0};
    const int32_t ids[] = {104, 105, 257, 300, -1, 5000};
    tokenizer_decode(t, ids, 6, true, &text);
    assert_string_equal(text.data, "hi<unused300>");
    buf_free(&text);
    assert_int_equal(tokenizer_find(t, "a", 1), 97);
    tokenizer_free(t);
}

static void test_limits(void **state)
{
    (void)state;
    struct tokenizer *t = tiny("gpt-2");
    struct tokens ids = {0};
    struct err e = {0};
    tokens_put(&ids, 7);
    assert_int_equal(tokenizer_encode(t, "hello hello x", 13, (struct tokenize_how){.max_tokens = 2}, &ids, &e),
                     E_INPUT);
    assert_non_null(strstr(e.text, "longer than 2 tokens"));
    assert_int_equal(ids.len, 1);
    assert_int_equal(tokenizer_encode(t, "hello hello", 11, (struct tokenize_how){.max_tokens = 2}, &ids, &e), 0);
    assert_int_equal(ids.len, 3);
    tokens_free(&ids);
    tokenizer_free(t);
}

/* ---- text back ---- */

static void check_stream(const struct tokenizer *t, const char *text, size_t n, const char *want)
{
    struct tokens ids = {0};
    struct buf out = {0};
    struct detok d;
    assert_int_equal(tokenizer_encode(t, text, n, (struct tokenize_how){.flags = TOKENIZE_SPECIAL}, &ids, NULL), 0);
    detok_init(&d, t, false);
    for (size_t i = 0; i < ids.len; i++) {
        size_t before = out.len;
        detok_put(&d, ids.ids[i], &out);
        assert_true(out.len == before || utf8_valid(out.data + before, out.len - before));
        assert_true(d.n_held >= 0 && d.n_held <= 3);
    }
    detok_flush(&d, &out);
    buf_puts(&out, "");
    assert_string_equal(out.data, want);
    buf_free(&out);
    tokens_free(&ids);
}

static void test_stream(void **state)
{
    (void)state;
    struct tokenizer *byte_level = tiny("gpt-2"), *pieces = tiny(NULL);
    const char *same[] = {"hello", "\xF0\x9F\xA6\x99 \xE4\xB8\xAD\xC3\xA9", "<|end|> x", " a  b", "\n\t"};
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        check_stream(byte_level, same[i], strlen(same[i]), same[i]);
        check_stream(pieces, same[i], strlen(same[i]), same[i]);
    }
    check_stream(byte_level, "\xE4\xB8", 2, "\xEF\xBF\xBD"); /* one character cut off: one U+FFFD */
    check_stream(byte_level, "\xE4\xB8x", 3, "\xEF\xBF\xBDx");
    check_stream(byte_level, "\xF0\x9F\xA6", 3, "\xEF\xBF\xBD");
    check_stream(byte_level, "\xFF\xC0\x80", 3, "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD");
    check_stream(byte_level, "\xED\xA0\x80z", 4, "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBDz"); /* a surrogate */
    check_stream(byte_level, "\xF0\x9F\xE4\xB8\xAD", 5, "\xEF\xBF\xBD\xE4\xB8\xAD");
    tokenizer_free(byte_level);
    tokenizer_free(pieces);
}

/* Those that have a token for every byte of UTF-8 and do not compose. */
static void test_round_trip(void **state)
{
    (void)state;
    const char *names[] = {"gpt-2", "deepseek-llm", "phi-3"};
    uint16_t *classes = unicode_build_classes();
    struct pcre_known k;
    struct rng r;
    struct buf text = {0};
    known_init(&k, classes);
    rng_init(&r, 3);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct tokenizer *t = real(names[i]);
        for (int n = 0; n < 500; n++) {
            random_text(&r, &k, &text);
            buf_puts(&text, "");
            check_stream(t, text.data, text.len, text.data);
        }
        tokenizer_free(t);
    }
    buf_free(&text);
    known_free(&k);
    mem_free(classes);
}

/* ---- hostile texts ---- */

static void check_long(const struct tokenizer *t, const char *unit, size_t repeats)
{
    struct buf text = {0};
    for (size_t i = 0; i < repeats; i++)
        buf_puts(&text, unit);
    check_stream(t, text.data, text.len, text.data);
    buf_free(&text);
}

static void test_long_words(void **state)
{
    (void)state;
    const char *units[] = {"a", " ", "\n", "ab", "'", "1", "\xE4\xB8\xAD", "<|", "a b", "\t \xE3\x80\x80"};
    const char *names[] = {"gpt-2", "falcon", "deepseek-llm", "phi-3"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct tokenizer *t = real(names[i]);
        for (size_t u = 0; u < sizeof units / sizeof *units; u++)
            check_long(t, units[u], (1 << 20) / strlen(units[u]));
        tokenizer_free(t);
    }
}

/* A short word is merged by another routine than a long one, and a cached one by none: the ids agree. */
static void test_cache_and_length_do_not_matter(void **state)
{
    (void)state;
    struct tokenizer *t = real("gpt-2");
    struct buf word = {0}, text = {0};
    struct tokens one = {0}, all = {0};
    struct rng r;
    rng_init(&r, 4);
    for (int n = 0; n < 300; n++) {
        buf_clear(&word);
        buf_clear(&text);
        one.len = all.len = 0;
        buf_putc(&word, ' ');
        for (uint64_t k = 1 + rng_below(&r, 70); k; k--)
            buf_putc(&word, (char)('a' + rng_below(&r, rng_below(&r, 2) ? 26 : 3)));
        for (int i = 0; i < 100 || text.len < 5000; i++)
            buf_put(&text, word.data, word.len);
        assert_int_equal(tokenizer_encode(t, word.data, word.len, (struct tokenize_how){0}, &one, NULL), 0);
        assert_int_equal(tokenizer_encode(t, text.data, text.len, (struct tokenize_how){0}, &all, NULL), 0);
        assert_int_equal(all.len, one.len * (text.len / word.len));
        for (size_t i = 0; i < all.len; i++)
            assert_int_equal(all.ids[i], one.ids[i % one.len]);
    }
    tokens_free(&one);
    tokens_free(&all);
    buf_free(&word);
    buf_free(&text);
    tokenizer_free(t);
}

struct job {
    const struct tokenizer *t;
    struct tokens ids;
};

static void encode_job(void *arg)
{
    struct job *j = arg;
    struct buf text = {0};
    for (int i = 0; i < 3000; i++)
        buf_printf(&text, "word%d and some more, it's \xC3\xA9\xCC\x81 ", i % 37);
    tokenizer_encode(j->t, text.data, text.len, (struct tokenize_how){0}, &j->ids, NULL);
    buf_free(&text);
}

static void test_threads(void **state)
{
    (void)state;
    struct tokenizer *t = real("qwen2");
    struct job jobs[4] = {{0}};
    struct thread *threads[4];
    for (int i = 0; i < 4; i++) {
        jobs[i].t = t;
        assert_int_equal(thread_start(threads + i, "tokenize", encode_job, jobs + i, NULL), 0);
    }
    for (int i = 0; i < 4; i++)
        thread_join(threads[i]);
    for (int i = 0; i < 4; i++) {
        assert_true(jobs[i].ids.len > 10000);
        assert_int_equal(jobs[i].ids.len, jobs[0].ids.len);
        assert_memory_equal(jobs[i].ids.ids, jobs[0].ids.ids, jobs[0].ids.len * sizeof(int32_t));
    }
    for (int i = 0; i < 4; i++)
        tokens_free(&jobs[i].ids);
    tokenizer_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_expected_ids), cmocka_unit_test(test_scanners_are_patterns),
        cmocka_unit_test(test_classes),      cmocka_unit_test(test_nfc),
        cmocka_unit_test(test_merges),       cmocka_unit_test(test_sentencepiece),
        cmocka_unit_test(test_bytes),        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_stream),       cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_long_words),   cmocka_unit_test(test_cache_and_length_do_not_matter),
        cmocka_unit_test(test_threads),
    };
#if defined(__SANITIZE_THREAD__) /* has nothing to say of the others */
    const struct CMUnitTest threaded[] = {cmocka_unit_test(test_threads)};
    return sizeof tests ? cmocka_run_group_tests(threaded, NULL, NULL) : 0;
#endif
    return cmocka_run_group_tests(tests, NULL, NULL);
}
