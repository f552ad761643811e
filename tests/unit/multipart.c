/* multipart/form-data: what clients send is read, and each refusal has a body of its own. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "engine/serve/batch/multipart.h"

#define TYPE "multipart/form-data; boundary=b"
#define NAMED "Content-Disposition: form-data; name=\"a\"\r\n"

static struct multipart m;

static int read_text(const char *type, const char *body, struct err *e)
{
    *e = (struct err){0};
    return multipart_read(&m, type, body, strlen(body), e);
}

static void an_upload_as_clients_send_it(void **state)
{
    (void)state;
    struct err e;
    const char *body = "--X-1\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n"
                       "--X-1\r\nContent-Disposition: form-data; name=\"file\"; filename=\"in.jsonl\"\r\n"
                       "Content-Type: application/octet-stream\r\n\r\n{\"a\":1}\n--X\r\n\r\n--X-1--\r\n";
    assert_int_equal(read_text("multipart/form-data; boundary=X-1", body, &e), 0);
    assert_int_equal(m.n, 2);
    const struct multipart_part *purpose = multipart_find(&m, "purpose"), *file = multipart_find(&m, "file");
    assert_int_equal(purpose->n, 5);
    assert_memory_equal(purpose->p, "batch", 5);
    assert_false(purpose->is_file);
    assert_true(file->is_file);
    assert_string_equal(file->filename, "in.jsonl");
    assert_int_equal(file->n, strlen("{\"a\":1}\n--X\r\n")); /* what only looks like the boundary is data */
    assert_null(multipart_find(&m, "other"));
}

static void what_may_vary(void **state)
{
    (void)state;
    struct err e;
    static const char *const types[] = {TYPE, "Multipart/Form-Data;boundary=\"b\"", TYPE "  "};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(read_text(types[i], "--b\r\n" NAMED "\r\n\r\n--b--", &e), 0);
        assert_int_equal(m.n, 1);
        assert_int_equal(m.parts[0].n, 0);
    }
    assert_int_equal(read_text(TYPE, "--b--\r\n", &e), 0);
    assert_int_equal(m.n, 0);
    const char binary[] = "--b\r\n" NAMED "\r\n\0\xff\r\n--b--";
    assert_int_equal(multipart_read(&m, TYPE, binary, sizeof binary - 1, &e), 0);
    assert_int_equal(m.parts[0].n, 2);
}

static void what_is_refused(void **state)
{
    (void)state;
    static const struct {
        const char *type, *body, *says;
    } cases[] = {
        {NULL, "--b--", "Content-Type must be multipart/form-data"},
        {"application/json", "--b--", "Content-Type must be multipart/form-data"},
        {"multipart/form-data", "--b--", "needs a boundary"},
        {"multipart/form-data; charset=utf-8; boundary=b", "--b--", "needs a boundary"},
        {"multipart/form-data; boundary=", "--b--", "1 to 70"},
        {"multipart/form-data; boundary=\"b", "--b--", "1 to 70"},
        {TYPE "; charset=utf-8", "--b--", "behind the boundary in Content-Type"},
        {TYPE, "", "does not begin"},
        {TYPE, "hello\r\n--b--", "does not begin"},
        {TYPE, "--bb\r\n", "behind a boundary"},
        {TYPE, "--b\r\n" NAMED "\r\ndata", "before its last boundary"},
        {TYPE, "--b\r\n" NAMED "\r\ndata\r\n--b--\r\nmore", "behind the last boundary"},
        {TYPE, "--b\r\n\r\ndata\r\n--b--", "no Content-Disposition"},
        {TYPE, "--b\r\n" NAMED NAMED "\r\n\r\n--b--", "two Content-Dispositions"},
        {TYPE, "--b\r\nContent-Disposition: form-data\r\n\r\n\r\n--b--", "must be form-data; name"},
        {TYPE, "--b\r\nContent-Disposition: form-data; name=\"\"\r\n\r\n\r\n--b--", "must be form-data; name"},
        {TYPE, "--b\r\nContent-Disposition: form-data; name=\"a\"; filename*=x\r\n\r\n\r\n--b--", "must be form-data"},
        {TYPE, "--b\r\n" NAMED "Content-Transfer-Encoding: base64\r\n\r\n\r\n--b--", "not taken"},
        {TYPE, "--b\r\n" NAMED "X-Other: 1\r\n\r\n\r\n--b--", "not Content-"},
        {TYPE, "--b\r\n" NAMED "Content-Type: a\x01\r\n\r\n\r\n--b--", "control bytes"},
        {TYPE, "--b\r\n" NAMED "Content-Type: a", "no end within"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct err e;
        assert_int_equal(read_text(cases[i].type, cases[i].body, &e), E_INPUT);
        if (!strstr(e.text, cases[i].says))
            fail_msg("case %zu: '%s', not '%s'", i, e.text, cases[i].says);
    }
}

static void parts_are_bounded(void **state)
{
    (void)state;
    char body[64 * (MULTIPART_PARTS + 1) + 8];
    for (int n = MULTIPART_PARTS; n <= MULTIPART_PARTS + 1; n++) {
        size_t at = 0;
        for (int i = 0; i < n; i++)
            at += (size_t)snprintf(body + at, sizeof body - at, "--b\r\n" NAMED "\r\n\r\n");
        snprintf(body + at, sizeof body - at, "--b--");
        struct err e;
        assert_int_equal(read_text(TYPE, body, &e), n > MULTIPART_PARTS ? E_INPUT : 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_upload_as_clients_send_it),
        cmocka_unit_test(what_may_vary),
        cmocka_unit_test(what_is_refused),
        cmocka_unit_test(parts_are_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
