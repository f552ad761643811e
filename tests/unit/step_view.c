/* A decision of a recording as text (engine/cli/step_view.h). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "engine/cli/step_view.h"

static int render(const char *text, struct buf *out, struct err *e)
{
    struct json *j = json_parse(text, strlen(text), NULL, NULL);
    assert_non_null(j);
    buf_clear(out);
    int rc = step_render(j, "a.rec", out, e);
    json_free(j);
    return rc;
}

#define HEAD                                                                                                           \
    "{\"decision\":7,\"line\":31,\"t_ns\":1500000,\"policy\":{\"name\":\"mine\",\"sha256\":\"0123456789abcdef\"},"     \
    "\"plan\":{\"equal\":true,\"words\":\"nothing is run\",\"recorded\":\"nothing is run\"},"
#define DECIDED                                                                                                        \
    "\"decided\":{\"policy\":{\"verdict\":\"ok\",\"native\":false},\"chunks\":[{\"request\":\"cmpl-a\",\"group\":1,"   \
    "\"tokens\":1,\"starts\":true}],\"verbs\":[{\"verb\":\"hold\",\"request\":\"cmpl-b\",\"words\":\"a bit\"}]},"      \
    "\"error\":null,"
#define VIEW                                                                                                           \
    "\"view\":{\"now\":2.5,\"last_switch_ms\":null,\"idle\":[1],\"groups\":[{\"id\":1,\"idle\":true}],"                \
    "\"waiting\":{\"n\":1,\"columns\":[\"id\",\"key\"],\"rows\":[{\"request\":3,\"name\":\"cmpl-a\",\"key\":-1.5}]},"  \
    "\"running\":{\"n\":0,\"columns\":[],\"rows\":[]}},"
#define CALL                                                                                                           \
    "\"call\":{\"verdict\":\"ok\",\"error\":null,\"bytecodes\":57,\"params\":{\"most\":{\"value\":8}}," VIEW           \
    "\"log\":[\"hello\"],\"sources\":[{\"file\":\"mine.lua\",\"lines\":[{\"line\":1,\"text\":\"return {\"},"           \
    "{\"line\":2,\"count\":12,\"text\":\"\\tx()\"},{\"line\":3,\"count\":0,\"text\":\"  y()\"}]}]}}"

static void all_of_it(void **state)
{
    (void)state;
    struct buf out = {0};
    struct err e = {0};
    static const char should[] = "decision 7, 0.001500 s after the start (line 31 of a.rec), by mine (0123456789ab)\n"
                                 "\n"
                                 "The plan\n"
                                 "  nothing is run\n"
                                 "    1 token of cmpl-a in group 1, which starts\n"
                                 "    hold  request cmpl-b,  words a bit\n"
                                 "  as recorded\n"
                                 "\n"
                                 "What it saw\n"
                                 "  now 2.5,  last_switch_ms inf\n"
                                 "  idle [1]\n"
                                 "  p.most 8\n"
                                 "\n"
                                 "  group 1\n"
                                 "  idle true\n"
                                 "\n"
                                 "  waiting: 1, in the queue's order\n"
                                 "  request    name   key\n"
                                 "        3  cmpl-a  -1.5\n"
                                 "\n"
                                 "  running: 0, in the queue's order (the policy needs no columns of it)\n"
                                 "\n"
                                 "Its call executed 57 bytecodes, and logged\n"
                                 "    hello\n"
                                 "\n"
                                 "The lines that ran: mine.lua\n"
                                 "             1 | return {\n"
                                 "     12x     2 |     x()\n"
                                 "       -     3 |   y()\n";
    assert_int_equal(render(HEAD DECIDED CALL, &out, &e), 0);
    assert_string_equal(out.data, should);
    buf_free(&out);
}

static void without_a_script(void **state)
{
    (void)state;
    struct buf out = {0};
    struct err e = {0};
    assert_int_equal(render(HEAD DECIDED "\"call\":null}", &out, &e), 0);
    assert_non_null(strstr(out.data, "Nothing is known of its call"));
    assert_int_equal(
        render("{\"policy\":{\"sha256\":\"native\"},\"plan\":{\"equal\":false,\"recorded\":\"x\"}}", &out, &e), 0);
    assert_non_null(strstr(out.data, "The native policy decided"));
    assert_non_null(strstr(out.data, "recorded was another: x\n"));
    assert_int_equal(
        render("{\"plan\":{},\"decided\":{\"policy\":{\"verdict\":\"timeout\",\"native\":true}}}", &out, &e), 0);
    assert_non_null(strstr(out.data, "its call: timeout\n"));
    assert_non_null(strstr(out.data, "cut off"));
    assert_int_equal(render("{}", &out, &e), E_INPUT);
    assert_non_null(strstr(e.text, "no plan"));
    assert_int_equal(render("[1]", &out, &e), E_INPUT);
    buf_free(&out);
}

/* What others wrote (names, words of a policy, its text) does nothing to a terminal. */
static void nothing_for_a_terminal(void **state)
{
    (void)state;
    struct buf out = {0};
    struct err e = {0};
    static const char bad[] =
        "{\"plan\":{\"words\":\"\\u001b[31m\"},\"call\":{\"error\":\"\\u009b31m\\u007f\",\"log\":[\"a\\nb\"],"
        "\"view\":{\"\\u001bname\":\"\\u001b\",\"waiting\":{\"rows\":[{\"\\u001bk\":\"\\u001b\"}]}},"
        "\"sources\":[{\"file\":\"\\u001b\",\"lines\":[{\"line\":1,\"text\":\"\\u001b\\u0085\"}]}]}}";
    assert_int_equal(render(bad, &out, &e), 0);
    for (const char *c = out.data; *c; c++)
        assert_true((unsigned char)*c >= ' ' || *c == '\n');
    assert_null(strchr(out.data, 0x7f));
    assert_null(strstr(out.data, "\xc2\x9b"));
    assert_null(strstr(out.data, "\xc2\x85"));
    assert_non_null(strstr(out.data, "a?b\n"));
    buf_free(&out);
}

static void long_queues_are_cut(void **state)
{
    (void)state;
    struct buf text = {0}, out = {0};
    struct err e = {0};
    buf_puts(&text, "{\"plan\":{},\"call\":{\"view\":{\"waiting\":{\"n\":100,\"rows\":[");
    for (int i = 0; i < 100; i++)
        buf_printf(&text, "%s{\"request\":%d,\"name\":\"n%d\"}", i ? "," : "", i, i);
    buf_puts(&text, "]}}}}");
    assert_int_equal(render(text.data, &out, &e), 0);
    assert_non_null(strstr(out.data, "  n39\n  and 60 more (--json has all)\n"));
    assert_null(strstr(out.data, "n40"));
    buf_free(&text);
    buf_free(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(all_of_it), cmocka_unit_test(without_a_script),
                                       cmocka_unit_test(nothing_for_a_terminal), cmocka_unit_test(long_queues_are_cut)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
