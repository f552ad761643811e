/* Files of draft texts that are not what they should be: each is refused with its reason, and nothing is taken from it;
 * also where its sum is right, as that of one who means harm is. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/base/buf.h"
#include "engine/base/file.h"
#include "engine/draft/suffix_file.h"

enum { VOCABULARY = 100, SUM = 16, SUMMED = 48, HEAD = 88, SAID = 72, TENANT = 64 };

static struct suffix_vocabulary vocabulary(void)
{
    return (struct suffix_vocabulary){hash_sha256("abc", 3), VOCABULARY};
}

/* A right file of two sequences. */
static void write_file(struct buf *out)
{
    struct suffix_cache *c = suffix_cache_new(1 << 20);
    struct suffix_vocabulary v = vocabulary();
    struct suffix_file_count n;
    struct err e = {0};
    char path[] = "/tmp/moonshift-said-XXXXXX";
    close(mkstemp(path));
    suffix_cache_add(c, "anna", (int32_t[]){1, 2, 99}, 3);
    while (suffix_cache_work(c))
        ;
    suffix_cache_add(c, "bert", (int32_t[]){7}, 1);
    while (suffix_cache_work(c))
        ;
    assert_int_equal(suffix_file_write(path, &v, c, &n, &e), 0);
    assert_true(n.sequences == 2 && n.tokens == 4);
    assert_int_equal(file_read(out, path, 1 << 20, &e), 0);
    assert_int_equal(out->len, HEAD + 2 * SAID + 4 * sizeof(int32_t));
    unlink(path);
    suffix_cache_free(c);
}

static void sign(struct buf *b)
{
    struct sha256 sum = hash_sha256(b->data + SUMMED, b->len - SUMMED);
    memcpy(b->data + SUM, &sum, sizeof sum);
}

static void never(void *ctx, const char *tenant, const int32_t *tokens, int n)
{
    (void)ctx, (void)tenant, (void)tokens, (void)n;
    fail_msg("something was taken from a wrong file");
}

static void refused(const struct buf *b, const char *why)
{
    struct suffix_vocabulary v = vocabulary();
    struct err e = {0};
    int rc = suffix_file_parse(b->data, b->len, &v, &(struct suffix_reader){never, NULL}, &e);
    if (rc != E_INPUT || !strstr(e.text, why))
        fail_msg("got %d \"%s\", want \"...%s...\"", rc, e.text, why);
}

static void list(void *ctx, const char *tenant, const int32_t *tokens, int n)
{
    buf_printf(ctx, "%s:%d,%d;", tenant, n, tokens[n - 1]);
}

static void a_right_one_is_taken(void **state)
{
    (void)state;
    struct buf b = {0}, said = {0};
    struct suffix_vocabulary v = vocabulary();
    struct err e = {0};
    write_file(&b);
    assert_int_equal(suffix_file_parse(b.data, b.len, &v, NULL, &e), 0);
    assert_int_equal(suffix_file_parse(b.data, b.len, &v, &(struct suffix_reader){list, &said}, &e), 0);
    assert_string_equal(said.data, "anna:3,99;bert:1,7;");
    buf_free(&b);
    buf_free(&said);
}

static void cut_or_changed_anywhere(void **state)
{
    (void)state;
    struct buf b = {0};
    write_file(&b);
    size_t whole = b.len;
    for (b.len = 0; b.len < whole; b.len++)
        refused(&b, b.len < HEAD ? "no file of draft texts" : "SHA-256");
    for (size_t i = 0; i < whole; i++) {
        b.data[i] ^= 0x10;
        refused(&b, i < SUM ? "no file" : i < HEAD && i >= SUMMED ? "" : "SHA-256");
        b.data[i] ^= 0x10;
    }
    buf_free(&b);
}

static void a_right_sum_of_wrong_things(void **state)
{
    (void)state;
    static const struct {
        size_t at;
        const char *why;
        uint32_t value;
    } wrong[] = {
        {SUMMED, "another order of bytes", 0x04030201},
        {SUMMED + 4, "another vocabulary, of 101 (this model's: 100)", 101},
        {SUMMED + 8, "another vocabulary", 1},
        {HEAD + TENANT + 4, "longer than the file", 0},
        {HEAD + TENANT + 4, "longer than the file", 23},
        {HEAD + TENANT + 4, "longer than the file", 1u << 30},
        {HEAD + TENANT + 4, "longer than the file", UINT32_MAX},
        {HEAD + TENANT + 4, "is not in the vocabulary", 8},
        {HEAD + SAID, "is not in the vocabulary", VOCABULARY},
        {HEAD + SAID, "is not in the vocabulary", UINT32_MAX},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct buf b = {0};
        write_file(&b);
        memcpy(b.data + wrong[i].at, &wrong[i].value, sizeof wrong[i].value);
        sign(&b);
        refused(&b, wrong[i].why);
        buf_free(&b);
    }
    struct buf b = {0};
    write_file(&b);
    memset(b.data + HEAD, 'x', TENANT);
    sign(&b);
    refused(&b, "name has no end");
    memset(b.data + HEAD, 0, TENANT);
    b.len -= 3;
    sign(&b);
    refused(&b, "longer than the file");
    b.len = HEAD + SAID - 1;
    sign(&b);
    refused(&b, "ends within a sequence");
    buf_free(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_right_one_is_taken),
        cmocka_unit_test(cut_or_changed_anywhere),
        cmocka_unit_test(a_right_sum_of_wrong_things),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
