/* The story of a request as text (engine/cli/why.h). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "engine/cli/why.h"

static int render(const char *text, const char *id, struct buf *out, struct err *e)
{
    struct json *j = json_parse(text, strlen(text), NULL, NULL);
    assert_non_null(j);
    buf_clear(out);
    int rc = why_render(j, id, out, e);
    json_free(j);
    return rc;
}

static const char story[] =
    "{\"requests\":[{\"id\":\"cmpl-a\",\"choice\":1,\"state\":\"ended\",\"ending\":\"stop\",\"prompt_tokens\":500,"
    "\"cached_tokens\":16,\"output_tokens\":9,\"preempted\":1,\"ttft_ns\":100000000,\"age_ns\":150000000,"
    "\"ttft\":{\"front\":1000000,\"held\":24000000,\"no_kv\":75000000},\"after\":{\"decode\":50000000},"
    "\"spans\":[{\"part\":\"front\",\"from_ns\":0,\"to_ns\":1000000},"
    "{\"part\":\"held\",\"from_ns\":1000000,\"to_ns\":25000000,\"words\":\"quota\"},"
    "{\"part\":\"no_kv\",\"from_ns\":25000000,\"to_ns\":100000000,\"behind\":\"cmpl-b\",\"others\":2,\"again\":true},"
    "{\"part\":\"decode\",\"from_ns\":100000000,\"to_ns\":150000000,\"steps\":9,\"tokens\":9,\"group\":3,"
    "\"layout\":{\"sp\":1,\"tp\":2,\"pp\":1},\"mixed\":true}]}]}";

static void the_longest_part_comes_first(void **state)
{
    (void)state;
    struct buf out = {0};
    struct err e = {0};
    assert_int_equal(render(story, NULL, &out, &e), 0);
    static const char should[] =
        "cmpl-a (choice 1): ended, stop\n"
        "500 prompt tokens, 16 of them cached; 9 of output; gave way 1 times\n"
        "\n"
        "first token after 100.000 ms\n"
        "        75.000 ms   75%  ##################        waits: no room in the KV cache\n"
        "        24.000 ms   24%  ######                    held by the policy\n"
        "         1.000 ms    1%  #                         at the front: read, made tokens of, handed to the engine\n"
        "\n"
        "from then on 50.000 ms\n"
        "        50.000 ms  100%  ########################  in steps that make its tokens\n"
        "\n"
        "     at (ms)         took\n"
        "         0.000       +1.000 ms  at the front: read, made tokens of, handed to the engine\n"
        "         1.000      +24.000 ms  held by the policy: quota\n"
        "        25.000      +75.000 ms  (after giving way) waits: no room in the KV cache; behind cmpl-b and 2 "
        "others\n"
        "       100.000      +50.000 ms  in steps that make its tokens; 9 tokens in 9 steps of group 3 (sp 1, tp 2, pp "
        "1); and whatever came after (too many spans to keep)\n";
    assert_string_equal(out.data, should);
    assert_int_equal(render(story, "cmpl-a", &out, &e), 0);
    assert_string_equal(out.data, should);
    buf_free(&out);
}

/* Names and words were chosen by clients and policies. */
static void nothing_comes_out_that_a_terminal_obeys(void **state)
{
    (void)state;
    struct buf out = {0};
    struct err e = {0};
    assert_int_equal(
        render("{\"requests\":[{\"id\":\"a\\u001b[2J\",\"state\":\"x\\u0007\",\"ttft\":{\"no\\u001bkv\":5},"
               "\"spans\":[{\"part\":\"held\",\"words\":\"\\u001b]0;x\\u0007\",\"behind\":null}]}]}",
               NULL, &out, &e),
        0);
    for (const char *c = out.data; *c; c++)
        assert_true((unsigned char)*c >= ' ' || *c == '\n');
    assert_non_null(strstr(out.data, "behind one that is forgotten"));
    buf_free(&out);
}

static void what_is_no_story_is_refused(void **state)
{
    (void)state;
    static const char *const wrong[] = {"{}",
                                        "[]",
                                        "{\"requests\":3}",
                                        "{\"requests\":[1]}",
                                        "{\"requests\":[{\"id\":3}]}",
                                        "{\"requests\":[{\"id\":\"a\"}]}",
                                        "{\"requests\":[{\"ttft\":{}}]}"};
    struct buf out = {0};
    struct err e = {0};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_int_equal(render(wrong[i], NULL, &out, &e), E_INPUT);
    assert_int_equal(render(story, "cmpl-x", &out, &e), E_NOTFOUND);
    assert_int_equal(render("{\"requests\":[]}", NULL, &out, &e), 0);
    assert_string_equal(out.data, "no requests\n");
    /* Odd values are shown as nothing, not believed. */
    assert_int_equal(render("{\"requests\":[{\"id\":\"a\",\"ttft\":{\"front\":-5,\"no_kv\":9223372036854775807,"
                            "\"held\":1e300,\"x\":1},\"spans\":[{},{\"from_ns\":9,\"to_ns\":1}]}]}",
                            NULL, &out, &e),
                     0);
    buf_free(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_longest_part_comes_first),
        cmocka_unit_test(nothing_comes_out_that_a_terminal_obeys),
        cmocka_unit_test(what_is_no_story_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
