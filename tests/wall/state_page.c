/* The page of a server's state, from any JSON: what is no answer of /admin/state is told, what a terminal would obey
 * does not come out, and odd values break nothing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "engine/cli/state_page.h"

static int render(const char *text, const char *before, struct buf *out, struct err *e)
{
    struct json *now = json_parse(text, strlen(text), NULL, e);
    struct json *was = before ? json_parse(before, strlen(before), NULL, e) : NULL;
    assert_non_null(now);
    int rc = state_page(now, was, out, e);
    json_free(now);
    json_free(was);
    return rc;
}

static void what_is_no_answer_is_told(void **state)
{
    (void)state;
    static const char *const texts[] = {"[]", "{}", "7", "null", "{\"engine\":{}}", "{\"front\":[]}"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct buf out = {0};
        struct err e = {0};
        assert_int_equal(render(texts[i], NULL, &out, &e), E_INPUT);
        assert_non_null(strstr(e.text, "/admin/state"));
        buf_free(&out);
    }
}

/* Every text that it shows, with an escape in it. */
static void nothing_comes_out_that_a_terminal_obeys(void **state)
{
    (void)state;
    static const char text[] =
        "{\"front\":{\"connections\":-1,\"draining\":true},\"engine\":{\"uptime_s\":1e300,"
        "\"policy\":{\"active\":{\"name\":\"a\\u001b[31m\",\"sha256\":\"b\\u001b[32m\"},\"last_error\":\"c\\u001b\\n\","
        "\"probation\":{\"state\":\"on\"}},"
        "\"limits\":{\"d\\u001b\":1e300,\"e\":2},\"limits_at_start\":{\"e\":3},\"n_running\":\"x\","
        "\"queue\":[{\"priority\":-5,\"n\":2,\"oldest_s\":-1},7,null],\"totals\":{\"ended\":1},"
        "\"holds\":[{\"reason\":\"f\\u001b\",\"now\":1,\"times\":99999999999},{\"reason\":\"\"},{\"reason\":5}],"
        "\"groups\":[{\"id\":1,\"ranks\":[0,1,2,5,7,8,\"x\",9.5],\"layout\":[]},3],"
        "\"pending\":[{\"verb\":\"g\\u001b\",\"when\":\"h\\u007f\",\"reason\":\"i\\r\",\"ranks\":{}}],"
        "\"ranks\":[{\"id\":123456789012345,\"alive\":false,\"kv\":{\"total\":0,\"held\":5}},{}],\"host_kv\":[]}}";
    struct buf out = {0};
    struct err e = {0};
    assert_int_equal(render(text, text, &out, &e), 0);
    for (size_t i = 0; i < out.len; i++)
        assert_true(out.data[i] == '\n' || ((unsigned char)out.data[i] >= ' ' && out.data[i] != 0x7f));
    static const char *const shown[] = {
        "policy     a?[31m (b?[32m), ", "last error: c??\n", "f?\n",  "(it gives none)\n", "0-2,5,7-8",
        "order      g? of ranks ",      ", h?, waits",       "failed"};
    for (size_t i = 0; i < sizeof shown / sizeof *shown; i++)
        if (!strstr(out.data, shown[i]))
            fail_msg("'%s' is not in\n%s", shown[i], out.data);
    buf_free(&out);
}

static void rates_are_those_between_two_answers(void **state)
{
    (void)state;
    static const char before[] = "{\"front\":{},\"engine\":{\"uptime_s\":10,\"totals\":{\"prompt_tokens\":100,"
                                 "\"generation_tokens\":50,\"ended\":3}}}";
    static const char now[] = "{\"front\":{},\"engine\":{\"uptime_s\":12,\"totals\":{\"prompt_tokens\":300,"
                              "\"generation_tokens\":51,\"ended\":4}}}";
    struct buf out = {0};
    struct err e = {0};
    assert_int_equal(render(now, before, &out, &e), 0);
    assert_non_null(strstr(out.data, "rates      100.0 prompt tokens/s, 0.5 output tokens/s, 0.50 requests ended/s\n"));
    buf_clear(&out);
    assert_int_equal(render(now, now, &out, &e), 0); /* no time has gone by */
    assert_null(strstr(out.data, "rates"));
    buf_clear(&out);
    assert_int_equal(render("{\"front\":{\"connections\":2},\"engine\":null}", NULL, &out, &e), 0);
    assert_string_equal(out.data, "an encoder is served alone; 2 connections\n");
    buf_free(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_no_answer_is_told),
        cmocka_unit_test(nothing_comes_out_that_a_terminal_obeys),
        cmocka_unit_test(rates_are_those_between_two_answers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
