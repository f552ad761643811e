/* The GGUF wall: right files read right, and each way to be wrong is refused with its reason. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/base/rng.h"
#include "tests/rig/gguf_build.h"

static void refused(const struct buf *file, int code, const char *why)
{
    struct gguf *g;
    struct err e = {0};
    char *exact = mem_new(file->len); /* its own block, so that a read past the end is seen */
    memcpy(exact, file->data, file->len);
    int rc = gguf_open_memory(&g, exact, file->len, &e);
    if (rc != code || !strstr(e.text, why))
        fail_msg("got %d \"%s\", want %d \"...%s...\"", rc, e.text, code, why);
    assert_null(g);
    mem_free(exact);
}

/* Finishes b as version 3 and expects a refusal. */
static void refuse(struct gguf_build *b, size_t data_bytes, int code, const char *why)
{
    struct buf file = {0};
    build_finish(b, 3, data_bytes, &file);
    refused(&file, code, why);
    buf_free(&file);
}

static void sample(struct buf *out, uint32_t version)
{
    struct gguf_build b = {0};
    build_string(&b, "general.name", "a model");
    build_u32(&b, "n", 7);
    build_bool(&b, "yes", 1);
    build_key(&b, "negative", GGUF_I8);
    build_put(&b.keys, (uint64_t)-5, 1);
    build_key(&b, "big", GGUF_U64);
    build_put(&b.keys, UINT64_MAX, 8);
    double pi = 3.25;
    uint64_t bits;
    memcpy(&bits, &pi, 8);
    build_key(&b, "pi", GGUF_F64);
    build_put(&b.keys, bits, 8);
    build_array(&b, "words", GGUF_STRING, 3);
    build_text(&b.keys, "one", 3);
    build_text(&b.keys, "", 0);
    build_text(&b.keys, "three", 5);
    build_array(&b, "numbers", GGUF_I16, 2);
    build_put(&b.keys, (uint64_t)-2, 2);
    build_put(&b.keys, 300, 2);
    build_tensor(&b, "w", 0, 4, 2, 0);
    build_tensor(&b, "q", 3, 64, 3, 32);
    build_finish(&b, version, 32 + 3 * 2 * 20, out);
}

static void check_sample(const struct gguf *g)
{
    uint64_t u;
    int64_t i;
    double f;
    bool yes;
    struct gguf_string s;
    struct gguf_array a;
    assert_true(gguf_u64(g, "n", &u) && u == 7);
    assert_true(gguf_i64(g, "negative", &i) && i == -5);
    assert_false(gguf_u64(g, "negative", &u));
    assert_true(gguf_u64(g, "big", &u) && u == UINT64_MAX);
    assert_false(gguf_i64(g, "big", &i));
    assert_true(gguf_f64(g, "pi", &f) && f == 3.25);
    assert_true(gguf_f64(g, "n", &f) && f == 7);
    assert_true(gguf_bool(g, "yes", &yes) && yes);
    assert_false(gguf_u64(g, "yes", &u));
    assert_true(gguf_string(g, "general.name", &s) && s.len == 7 && memcmp(s.data, "a model", 7) == 0);
    assert_false(gguf_string(g, "n", &s));
    assert_false(gguf_string(g, "general.nam", &s));
    assert_true(gguf_array(g, "words", &a) && a.type == GGUF_STRING && a.count == 3);
    size_t cursor = 0;
    assert_int_equal(gguf_array_string(&a, &cursor).len, 3);
    assert_int_equal(gguf_array_string(&a, &cursor).len, 0);
    s = gguf_array_string(&a, &cursor);
    assert_memory_equal(s.data, "three", 5);
    assert_true(gguf_array(g, "numbers", &a) && gguf_array_number(&a, 0) == -2 && gguf_array_number(&a, 1) == 300);
    assert_true(gguf_array_number(&a, 2) == 0);
    assert_int_equal(gguf_n_metadata(g), 8);
    assert_int_equal(gguf_metadata_key(g, 1).len, 1);
}

static void test_reads(void **state)
{
    (void)state;
    for (uint32_t version = 2; version <= 3; version++) {
        struct buf file = {0};
        struct gguf *g;
        struct err e;
        sample(&file, version);
        assert_int_equal(gguf_open_memory(&g, file.data, file.len, &e), 0);
        check_sample(g);
        assert_int_equal(gguf_n_tensors(g), 2);
        const struct gguf_tensor *t = gguf_tensor_find(g, "q");
        assert_ptr_equal(t, gguf_tensor_at(g, 1));
        assert_int_equal(t->type, DT_Q4_1);
        assert_true(t->dims[0] == 64 && t->dims[1] == 3 && t->dims[2] == 1 && t->n_dims == 2);
        assert_int_equal(t->bytes, 120);
        assert_true((const char *)t->data + 120 == file.data + file.len);
        assert_null(gguf_tensor_find(g, "nope"));
        assert_null(gguf_tensor_at(g, 2));
        gguf_close(g);
        buf_free(&file);
    }
}

static void test_every_truncation(void **state)
{
    (void)state;
    struct buf file = {0};
    sample(&file, 3);
    size_t whole = file.len;
    for (size_t n = 0; n < whole; n++) {
        file.len = n;
        refused(&file, E_INPUT, "");
    }
    buf_free(&file);
}

static void test_random_damage(void **state)
{
    (void)state;
    struct buf file = {0}, copy = {0};
    struct rng r;
    int opened = 0;
    rng_init(&r, 1);
    sample(&file, 3);
    for (int i = 0; i < 20000; i++) {
        struct gguf *g;
        buf_clear(&copy);
        buf_put(&copy, file.data, file.len);
        for (uint64_t k = 1 + rng_below(&r, 3); k; k--)
            copy.data[rng_below(&r, copy.len)] = (char)rng_next(&r);
        if (gguf_open_memory(&g, copy.data, copy.len, NULL) == 0) {
            for (size_t t = 0; t < gguf_n_tensors(g); t++) {
                const struct gguf_tensor *at = gguf_tensor_at(g, t);
                assert_true((const char *)at->data >= copy.data);
                assert_true((const char *)at->data + at->bytes <= copy.data + copy.len);
            }
            opened++;
        }
        gguf_close(g);
    }
    assert_true(opened > 100 && opened < 19000);
    buf_free(&file);
    buf_free(&copy);
}

static void test_headers(void **state)
{
    (void)state;
    struct {
        uint32_t version;
        int code;
        const char *why;
    } bad[] = {{1, E_UNSUPPORTED, "version 1"},
               {0, E_UNSUPPORTED, "version 0"},
               {4, E_UNSUPPORTED, "version 4"},
               {0x03000000, E_UNSUPPORTED, "big-endian"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct buf file = {0};
        sample(&file, bad[i].version);
        refused(&file, bad[i].code, bad[i].why);
        buf_free(&file);
    }
    struct buf other = {0};
    buf_puts(&other, "PK\x03\x04 something else entirely, and long enough");
    refused(&other, E_INPUT, "not a GGUF file");
    buf_free(&other);
}

static void test_counts(void **state)
{
    (void)state;
    struct gguf_build b = {.n_keys = UINT64_MAX};
    refuse(&b, 0, E_INPUT, "metadata keys cannot be");
    b = (struct gguf_build){.n_tensors = (uint64_t)1 << 40};
    refuse(&b, 0, E_INPUT, "tensors cannot be");
    build_array(&b, "a", GGUF_U64, UINT64_MAX / 8 + 1);
    refuse(&b, 64, E_INPUT, "items do not fit");
    build_array(&b, "a", GGUF_STRING, 4);
    refuse(&b, 16, E_INPUT, "");
    build_array(&b, "a", GGUF_ARRAY, 1);
    refuse(&b, 64, E_UNSUPPORTED, "array of arrays");
    build_array(&b, "a", 99, 1);
    refuse(&b, 64, E_INPUT, "unknown item type");
    build_key(&b, "a", 13);
    refuse(&b, 64, E_INPUT, "unknown type");
    build_key(&b, "s", GGUF_STRING);
    build_put(&b.keys, UINT64_MAX, 8);
    refuse(&b, 64, E_INPUT, "past the end");
    build_bool(&b, "b", 2);
    refuse(&b, 64, E_INPUT, "no boolean");
}

static void test_names(void **state)
{
    (void)state;
    struct gguf_build b = {0};
    build_u32(&b, "twice", 1);
    build_u32(&b, "other", 1);
    build_string(&b, "twice", "x");
    refuse(&b, 0, E_INPUT, "twice");
    build_u32(&b, "", 1);
    refuse(&b, 0, E_INPUT, "empty");
    build_tensor(&b, "t", 0, 8, 1, 0);
    build_tensor(&b, "t", 0, 8, 1, 32);
    refuse(&b, 64, E_INPUT, "two tensors are called t");
    build_tensor(&b, "line\nbreak", 0, 8, 1, 1);
    refuse(&b, 64, E_INPUT, "line?break");
}

static void test_tensors(void **state)
{
    (void)state;
    struct gguf_build b = {0};
    build_tensor(&b, "t", 0, 0, 1, 0);
    refuse(&b, 64, E_INPUT, "dimension 0 is 0");
    build_tensor(&b, "t", 0, (uint64_t)1 << 62, (uint64_t)1 << 62, 0);
    refuse(&b, 64, E_INPUT, "t: ");
    build_tensor(&b, "t", 0, (uint64_t)1 << 40, (uint64_t)1 << 40, 0);
    refuse(&b, 64, E_INPUT, "overflows");
    build_tensor(&b, "t", 2, 33, 1, 0);
    refuse(&b, 64, E_INPUT, "no multiple");
    build_tensor(&b, "t", 0, 8, 1, 8);
    refuse(&b, 64, E_INPUT, "alignment");
    build_tensor(&b, "t", 0, 8, 1, 64);
    refuse(&b, 64, E_INPUT, "past the end of the file");
    build_tensor(&b, "t", 0, 8, 1, UINT64_MAX - 31);
    refuse(&b, 64, E_INPUT, "past the end of the file");
    build_tensor(&b, "t", 0, 8, 2, 0);
    build_tensor(&b, "u", 0, 8, 1, 32);
    refuse(&b, 64, E_INPUT, "overlap");
    build_tensor(&b, "blk.0.iq", 16, 256, 1, 0);
    refuse(&b, 128, E_UNSUPPORTED, "blk.0.iq has type IQ2_XXS (16)");
    build_tensor(&b, "t", 77, 256, 1, 0);
    refuse(&b, 128, E_UNSUPPORTED, "unknown (77)");
}

/* The numbers that the format gives its types, and the bytes of 256 elements. */
static void test_types(void **state)
{
    (void)state;
    static const struct {
        uint32_t number;
        const char *name;
        size_t bytes;
    } types[] = {{0, "F32", 1024},  {1, "F16", 512},   {2, "Q4_0", 144},    {3, "Q4_1", 160},    {6, "Q5_0", 176},
                 {7, "Q5_1", 192},  {8, "Q8_0", 272},  {10, "Q2_K", 84},    {11, "Q3_K", 110},   {12, "Q4_K", 144},
                 {13, "Q5_K", 176}, {14, "Q6_K", 210}, {20, "IQ4_NL", 144}, {23, "IQ4_XS", 136}, {30, "BF16", 512}};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        struct gguf_build b = {0};
        struct buf file = {0};
        struct gguf *g;
        struct err e = {0};
        build_tensor(&b, "t", types[i].number, 256, 1, 0);
        build_finish(&b, 3, (types[i].bytes + 31) / 32 * 32, &file);
        if (gguf_open_memory(&g, file.data, file.len, &e))
            fail_msg("%s: %s", types[i].name, e.text);
        const struct gguf_tensor *t = gguf_tensor_find(g, "t");
        assert_string_equal(dtype_get(t->type)->name, types[i].name);
        assert_int_equal(t->bytes, types[i].bytes);
        gguf_close(g);
        buf_free(&file);
    }
}

static void test_dimensions_and_alignment(void **state)
{
    (void)state;
    struct gguf_build b = {0};
    build_text(&b.tensors, "t", 1);
    build_put(&b.tensors, 5, 4);
    for (int i = 0; i < 7; i++)
        build_put(&b.tensors, 1, 8);
    b.n_tensors = 1;
    refuse(&b, 64, E_INPUT, "5 dimensions");
    uint32_t bad[] = {0, 3, 48, 1u << 31};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        build_u32(&b, "general.alignment", bad[i]);
        refuse(&b, 0, E_INPUT, "general.alignment is");
    }
    build_string(&b, "general.alignment", "32");
    refuse(&b, 0, E_INPUT, "no unsigned integer");
}

static void test_files(void **state)
{
    (void)state;
    struct gguf *g;
    struct err e;
    assert_int_equal(gguf_open(&g, "tests/no-such-file.gguf", &e), E_NOTFOUND);
    assert_int_equal(gguf_open(&g, "tests", &e), E_INPUT);
    assert_int_equal(gguf_open(&g, "README.md", &e), E_INPUT);
    assert_non_null(strstr(e.text, "README.md"));
    assert_int_equal(gguf_open_memory(&g, NULL, 0, &e), E_INPUT);
    struct buf file = {0};
    char path[64];
    snprintf(path, sizeof path, "/tmp/wall_gguf_%ld.gguf", (long)getpid());
    sample(&file, 3);
    assert_int_equal(file_replace(path, file.data, file.len, &e), 0);
    assert_int_equal(gguf_open(&g, path, &e), 0);
    gguf_drop_pages(g);
    check_sample(g);
    gguf_close(g);
    remove(path);
    buf_free(&file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reads),         cmocka_unit_test(test_every_truncation),
        cmocka_unit_test(test_random_damage), cmocka_unit_test(test_headers),
        cmocka_unit_test(test_counts),        cmocka_unit_test(test_names),
        cmocka_unit_test(test_tensors),       cmocka_unit_test(test_dimensions_and_alignment),
        cmocka_unit_test(test_types),         cmocka_unit_test(test_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
