/* A draft model's vocabulary is the model's: as many tokens, and the same text for each; what differs first is named.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "engine/cli/draft_files.h"
#include "tests/rig/tiny_vocab.h"

/* A tokenizer, and the file under it. */
struct words {
    struct buf file;
    struct gguf *g;
    struct tokenizer *t;
};

/* Of the pieces one is another; NULL: none is. */
static void words_open(struct words *w, const char *from, const char *to)
{
    struct err e = {0};
    *w = (struct words){0};
    tiny_byte_level("gpt-2", &w->file);
    for (size_t i = 0; from && i + strlen(from) <= w->file.len; i++)
        if (memcmp(w->file.data + i, from, strlen(from)) == 0) {
            memcpy(w->file.data + i, to, strlen(to));
            break;
        }
    if (gguf_open_memory(&w->g, w->file.data, w->file.len, &e) || tokenizer_from_gguf(&w->t, w->g, &e))
        fail_msg("%s", e.text);
}

static void words_close(struct words *w)
{
    tokenizer_free(w->t);
    gguf_close(w->g);
    buf_free(&w->file);
}

static void the_same_vocabulary(void **state)
{
    (void)state;
    struct words a, b;
    struct err e = {0};
    words_open(&a, NULL, NULL);
    words_open(&b, NULL, NULL);
    assert_int_equal(draft_files_compare(a.t, b.t, &e), 0);
    words_close(&a);
    words_close(&b);
}

static void one_token_differs(void **state)
{
    (void)state;
    struct words a, b;
    struct err e = {0};
    words_open(&a, "<tool>", "<t\"ol>");
    words_open(&b, NULL, NULL);
    assert_int_equal(draft_files_compare(a.t, b.t, &e), E_INPUT);
    assert_non_null(strstr(e.text, "token 266 is \"<t\\x22ol>\" in the draft model and \"<tool>\" in the model"));
    words_close(&a);
    words_close(&b);
}

static void another_number_of_tokens(void **state)
{
    (void)state;
    struct words a;
    struct tokenizer *more;
    struct err e = {0};
    words_open(&a, NULL, NULL);
    assert_int_equal(tokenizer_bytes(&more, 300, &e), 0);
    assert_int_equal(draft_files_compare(a.t, more, &e), E_INPUT);
    assert_non_null(strstr(e.text, "a vocabulary of 267 tokens, and the model one of 300"));
    tokenizer_free(more);
    words_close(&a);
}

static void what_a_path_is(void **state)
{
    (void)state;
    assert_false(draft_files_generate("tests/data/encoder_pairs")); /* a folder, of another kind of model */
    assert_false(draft_files_generate("tests"));
    assert_false(draft_files_generate("nowhere"));
    assert_true(draft_files_generate("README.md")); /* a file, of which its reader will tell */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_same_vocabulary),
        cmocka_unit_test(one_token_differs),
        cmocka_unit_test(another_number_of_tokens),
        cmocka_unit_test(what_a_path_is),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
