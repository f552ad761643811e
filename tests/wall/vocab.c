/* Vocabularies as a wall: what is wrong is refused with its reason, what is odd makes a working tokenizer. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "models/tokenizer/tokenizer.h"
#include "tests/rig/tiny_vocab.h"

static void refuse(struct gguf_build *b, int code, const char *why)
{
    struct buf file = {0};
    struct gguf *g;
    struct tokenizer *t;
    struct err e = {0};
    build_finish(b, 3, 0, &file);
    assert_int_equal(gguf_open_memory(&g, file.data, file.len, &e), 0);
    int rc = tokenizer_from_gguf(&t, g, &e);
    if (rc != code || !strstr(e.text, why))
        fail_msg("got %d \"%s\", want %d \"...%s...\"", rc, e.text, code, why);
    assert_null(t);
    gguf_close(g);
    buf_free(&file);
}

static void list(struct gguf_build *b, const char *key, const char *const *items, size_t n)
{
    build_array(b, key, GGUF_STRING, n);
    for (size_t i = 0; i < n; i++)
        build_text(&b->keys, items[i], strlen(items[i]));
}

static void byte_tokens(struct gguf_build *b, const char *pre, const char *extra)
{
    build_string(b, "tokenizer.ggml.model", "gpt2");
    build_string(b, "tokenizer.ggml.pre", pre);
    build_array(b, "tokenizer.ggml.tokens", GGUF_STRING, 256 + !!extra);
    for (int i = 0; i < 256; i++) {
        char s[4];
        build_text(&b->keys, s, (size_t)tiny_spell(i, s));
    }
    if (extra)
        build_text(&b->keys, extra, strlen(extra));
}

static void test_wrong_models(void **state)
{
    (void)state;
    struct gguf_build b = {0};
    refuse(&b, E_INPUT, "tokenizer.ggml.model");
    build_string(&b, "tokenizer.ggml.model", "t5");
    refuse(&b, E_UNSUPPORTED, "\"t5\" is not supported");
    build_string(&b, "tokenizer.ggml.model", "gpt2");
    build_string(&b, "tokenizer.ggml.pre", "made-up");
    refuse(&b, E_UNSUPPORTED, "\"made-up\" is not supported");
    build_string(&b, "tokenizer.ggml.model", "gpt2");
    build_string(&b, "tokenizer.ggml.pre", "made-up");
    refuse(&b, E_UNSUPPORTED, "smollm");
    build_string(&b, "tokenizer.ggml.model", "gpt2");
    refuse(&b, E_INPUT, "tokenizer.ggml.tokens");
    build_string(&b, "tokenizer.ggml.model", "llama");
    build_array(&b, "tokenizer.ggml.tokens", GGUF_U8, 0);
    refuse(&b, E_INPUT, "tokenizer.ggml.tokens");
}

static void test_wrong_merges(void **state)
{
    (void)state;
    struct gguf_build b = {0};
    byte_tokens(&b, "gpt-2", NULL);
    refuse(&b, E_INPUT, "tokenizer.ggml.merges");
    const char *bad[] = {"a b", "ab", "a ", " a", "", "zz b", "a b c"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        byte_tokens(&b, "gpt-2", "ac");
        list(&b, "tokenizer.ggml.merges", bad + i, 1);
        refuse(&b, E_INPUT, "merge 0");
    }
    const char *some[] = {"a", "b"};
    build_string(&b, "tokenizer.ggml.model", "gpt2");
    list(&b, "tokenizer.ggml.tokens", some, 2);
    list(&b, "tokenizer.ggml.merges", some, 0);
    refuse(&b, E_INPUT, "no token for the byte 0x20");
}

static void test_wrong_ids_and_kinds(void **state)
{
    (void)state;
    struct gguf_build b = {0};
    byte_tokens(&b, "gpt-2", NULL);
    list(&b, "tokenizer.ggml.merges", NULL, 0);
    build_u32(&b, "tokenizer.ggml.eos_token_id", 256);
    refuse(&b, E_INPUT, "eos_token_id is 256, and there are 256 tokens");
    byte_tokens(&b, "gpt-2", NULL);
    list(&b, "tokenizer.ggml.merges", NULL, 0);
    build_array(&b, "tokenizer.ggml.token_type", GGUF_I32, 1);
    build_put(&b.keys, 1, 4);
    refuse(&b, E_INPUT, "token_type has 1 items for 256 tokens");
    const char *some[] = {"<unk>", "x"};
    for (int kind = 0; kind <= 7; kind += 7) {
        build_string(&b, "tokenizer.ggml.model", "llama");
        list(&b, "tokenizer.ggml.tokens", some, 2);
        build_array(&b, "tokenizer.ggml.token_type", GGUF_I32, 2);
        build_put(&b.keys, 2, 4);
        build_put(&b.keys, (uint64_t)kind, 4);
        refuse(&b, E_INPUT, "unknown kind");
    }
}

/* Each was once read as if the key were not there, and served. */
static void test_keys_that_are_something_else(void **state)
{
    (void)state;
    static const char *const ids[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.bos_token_id",
                                      "tokenizer.ggml.eot_token_id"};
    struct gguf_build b = {0};
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++) {
        char why[64];
        snprintf(why, sizeof why, "%s is ", ids[i]);
        byte_tokens(&b, "gpt-2", NULL);
        list(&b, "tokenizer.ggml.merges", NULL, 0);
        build_u32(&b, ids[i], UINT32_MAX);
        refuse(&b, E_INPUT, "is 4294967295, and there are 256 tokens");
        byte_tokens(&b, "gpt-2", NULL);
        list(&b, "tokenizer.ggml.merges", NULL, 0);
        build_string(&b, ids[i], "2");
        refuse(&b, E_INPUT, why);
    }
    byte_tokens(&b, "gpt-2", NULL);
    list(&b, "tokenizer.ggml.merges", NULL, 0);
    build_u32(&b, "tokenizer.chat_template", 7);
    refuse(&b, E_INPUT, "tokenizer.chat_template is not a text");
    byte_tokens(&b, "gpt-2", NULL);
    list(&b, "tokenizer.ggml.merges", NULL, 0);
    build_u32(&b, "tokenizer.ggml.add_bos_token", 1);
    refuse(&b, E_INPUT, "add_bos_token is not true or false");
    byte_tokens(&b, "gpt-2", NULL);
    list(&b, "tokenizer.ggml.merges", NULL, 0);
    build_array(&b, "tokenizer.ggml.scores", GGUF_F32, 255);
    for (int i = 0; i < 255; i++)
        build_put(&b.keys, 0, 4);
    refuse(&b, E_INPUT, "scores has 255 items for 256 tokens");
}

static void test_wrong_pieces(void **state)
{
    (void)state;
    struct gguf_build b = {0};
    const char *bad_utf8[] = {"<unk>", "\xFF\xFE"}, *not_byte[] = {"<unk>", "<0xZZ>"};
    build_string(&b, "tokenizer.ggml.model", "llama");
    list(&b, "tokenizer.ggml.tokens", bad_utf8, 2);
    build_u32(&b, "tokenizer.ggml.unknown_token_id", 0);
    build_array(&b, "tokenizer.ggml.scores", GGUF_F32, 2);
    build_put(&b.keys, 0, 8);
    refuse(&b, E_INPUT, "not UTF-8");
    build_string(&b, "tokenizer.ggml.model", "llama");
    list(&b, "tokenizer.ggml.tokens", not_byte, 2);
    build_array(&b, "tokenizer.ggml.token_type", GGUF_I32, 2);
    build_put(&b.keys, 2, 4);
    build_put(&b.keys, 6, 4);
    refuse(&b, E_INPUT, "marked as a byte");
    build_string(&b, "tokenizer.ggml.model", "llama");
    list(&b, "tokenizer.ggml.tokens", not_byte, 2);
    refuse(&b, E_INPUT, "no unknown token");
    build_string(&b, "tokenizer.ggml.model", "llama");
    list(&b, "tokenizer.ggml.tokens", not_byte, 2);
    build_u32(&b, "tokenizer.ggml.unknown_token_id", 0);
    refuse(&b, E_INPUT, "no scores");
    build_string(&b, "tokenizer.ggml.model", "llama");
    build_array(&b, "tokenizer.ggml.tokens", GGUF_STRING, 1);
    build_put(&b.keys, 5000, 8);
    for (int i = 0; i < 5000; i++)
        build_put(&b.keys, 'x', 1);
    refuse(&b, E_INPUT, "5000 bytes long");
}

static void check_round_trip(const struct tokenizer *t, const char *text)
{
    struct tokens ids = {0};
    struct buf out = {0};
    assert_int_equal(tokenizer_encode(t, text, strlen(text), (struct tokenize_how){0}, &ids, NULL), 0);
    tokenizer_decode(t, ids.ids, ids.len, false, &out);
    assert_string_equal(out.data, text);
    tokens_free(&ids);
    buf_free(&out);
}

/* Duplicates, empty pieces and pieces outside the alphabet make a working tokenizer. */
static void test_odd_but_usable(void **state)
{
    (void)state;
    const char *extras[] = {"", "a", " raw space", "\xFF", "\xE4\xB8\xAD"};
    for (size_t i = 0; i < sizeof extras / sizeof *extras; i++) {
        struct gguf_build b = {0};
        struct buf file = {0}, piece = {0};
        byte_tokens(&b, "", extras[i]);
        list(&b, "tokenizer.ggml.merges", NULL, 0);
        build_finish(&b, 3, 0, &file);
        struct gguf *g;
        struct tokenizer *t;
        assert_int_equal(gguf_open_memory(&g, file.data, file.len, NULL), 0);
        assert_int_equal(tokenizer_from_gguf(&t, g, NULL), 0);
        gguf_close(g);
        check_round_trip(t, "abc \xE4\xB8\xAD");
        tokenizer_piece(t, 256, &piece);
        buf_puts(&piece, "");
        assert_string_equal(piece.data, extras[i]);
        tokenizer_free(t);
        buf_free(&file);
        buf_free(&piece);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_wrong_models),        cmocka_unit_test(test_wrong_merges),
        cmocka_unit_test(test_wrong_ids_and_kinds), cmocka_unit_test(test_keys_that_are_something_else),
        cmocka_unit_test(test_wrong_pieces),        cmocka_unit_test(test_odd_but_usable),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
