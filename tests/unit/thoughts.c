/* What a model thinks is told from its answer however the text is cut; what is no thought stays, byte for byte. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "engine/base/rng.h"
#include "engine/serve/openai/thoughts.h"

static struct think_marks marks;

static int setup(void **state)
{
    (void)state;
    think_marks_set(&marks, "</think>", false);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    think_marks_free(&marks);
    return 0;
}

/* Pieces of the given length; 0: of random ones. "thought|text". */
static struct buf read_in_pieces(const char *s, size_t n, enum think_state state, size_t piece, struct rng *rng)
{
    struct thought_reader r;
    struct buf out = {0};
    thought_reader_init(&r, &marks, state);
    for (size_t done = 0, len; done < n; done += len) {
        len = piece ? piece : 1 + (size_t)rng_below(rng, 9);
        len = len < n - done ? len : n - done;
        thought_reader_put(&r, s + done, len);
        assert_true(thought_reader_bytes(&r) <= done + len);
    }
    thought_reader_end(&r);
    buf_put(&out, r.thought.data, r.thought.len);
    buf_putc(&out, '|');
    buf_put(&out, r.text.data, r.text.len);
    thought_reader_free(&r);
    return out;
}

static void check(enum think_state state, const char *s, const char *want)
{
    struct rng rng;
    rng_init(&rng, 3);
    for (size_t piece = 0; piece < 12; piece++) {
        struct buf out = read_in_pieces(s, strlen(s), state, piece, &rng);
        assert_string_equal(out.data, want);
        buf_free(&out);
    }
}

static void thoughts_are_told_from_the_answer(void **state)
{
    (void)state;
    check(THINK_FIRST, "<think>\nParis? Yes.\n</think>\n\nParis.", "Paris? Yes.|Paris.");
    check(THINK_FIRST, " \n<think>a  b\n\nc </think>d", "a  b\n\nc|d");
    check(THINK_FIRST, "<think></think>d", "|d");
    check(THINK_FIRST, "<think>\n\n</think>\n\n d\n", "|d\n");
    check(THINK_INSIDE, "\nwell </thin </thinker> </think>\n\nyes", "well </thin </thinker>|yes");
    check(THINK_INSIDE, "<think>a</think>b", "<think>a|b");
    check(THINK_FIRST, "<think>a</think>b</think><think>c</think>", "a|b</think><think>c</think>");
}

static void what_is_none_stays(void **state)
{
    (void)state;
    check(THINK_FIRST, "Paris.", "|Paris.");
    check(THINK_FIRST, " \n Paris <think>no</think>", "| \n Paris <think>no</think>");
    check(THINK_FIRST, "<thin", "|<thin");
    check(THINK_FIRST, " <thinker>", "| <thinker>");
    check(THINK_FIRST, "", "|");
    check(THINK_FIRST, "  ", "|  ");
    check(THINK_TEXT, "<think>a</think>b", "|<think>a</think>b");
}

static void what_is_cut_off_is_a_thought(void **state)
{
    (void)state;
    check(THINK_INSIDE, "I wonder ", "I wonder|");
    check(THINK_INSIDE, "I wonder </thi", "I wonder </thi|");
    check(THINK_FIRST, "<think>", "|");
    check(THINK_INSIDE, "done</think>", "done|");
}

/* What it has to be, written down another way. */
static struct buf expected(const char *s, enum think_state state)
{
    struct buf out = {0};
    const char *space = " \n", *p = s + strspn(s, space), *end;
    if (state == THINK_FIRST && strncmp(p, "<think>", 7) != 0) {
        buf_printf(&out, "|%s", s);
        return out;
    }
    p += state == THINK_FIRST ? 7 : 0;
    p += strspn(p, space);
    end = strstr(p, "</think>");
    size_t n = end ? (size_t)(end - p) : strlen(p);
    while (n && strchr(space, p[n - 1]))
        n--;
    buf_put(&out, p, n);
    buf_putc(&out, '|');
    if (end)
        buf_puts(&out, end + 8 + strspn(end + 8, space));
    return out;
}

static void many_texts_however_they_are_cut(void **state)
{
    (void)state;
    static const char *const pieces[] = {"<think>", "</think>", "<", "</",      "think", ">",
                                         " ",       "\n",       "a", "b</thin", "/"};
    struct rng rng;
    rng_init(&rng, 11);
    for (int round = 0; round < 30000; round++) {
        struct buf s = {0};
        buf_puts(&s, "");
        for (int n = (int)rng_below(&rng, 12); n > 0; n--)
            buf_puts(&s, pieces[rng_below(&rng, sizeof pieces / sizeof *pieces)]);
        enum think_state from = rng_below(&rng, 2) ? THINK_FIRST : THINK_INSIDE;
        struct buf out = read_in_pieces(s.len ? s.data : "", s.len, from, rng_below(&rng, 3), &rng),
                   want = expected(s.len ? s.data : "", from);
        if (strcmp(out.data, want.data) != 0)
            fail_msg("'%s' from %d: '%s', not '%s'", s.data, (int)from, out.data, want.data);
        buf_free(&s);
        buf_free(&out);
        buf_free(&want);
    }
}

static void the_prompt_says_where_it_begins(void **state)
{
    (void)state;
    static const struct {
        const char *end;
        enum think_state state;
    } cases[] = {
        {"<|im_start|>assistant\n", THINK_FIRST},
        {"<|im_start|>assistant\n<think>\n", THINK_INSIDE},
        {"<|im_start|>assistant\n<think>\n\n</think>\n\n", THINK_TEXT},
        {"", THINK_FIRST},
        {"think>", THINK_FIRST},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(think_state_after(&marks, cases[i].end, strlen(cases[i].end)), cases[i].state);
}

static void marks_are_made_from_their_end(void **state)
{
    (void)state;
    struct think_marks m;
    think_marks_set(&m, "[/THINK]", true);
    assert_string_equal(m.begin, "[THINK]");
    assert_true(m.is_control && !m.is_text);
    think_marks_free(&m);
    think_marks_set(&m, "\xE2\x97\x81/think\xE2\x96\xB7", false);
    assert_string_equal(m.begin, "\xE2\x97\x81think\xE2\x96\xB7");
    assert_false(m.is_text);
    think_marks_free(&m);
    think_marks_set(&m, "Answer:", false);
    assert_string_equal(m.begin, "");
    assert_int_equal(think_state_after(&m, "so Answer:", 10), THINK_TEXT);
    assert_int_equal(think_state_after(&m, "so", 2), THINK_FIRST);
    think_marks_free(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(thoughts_are_told_from_the_answer), cmocka_unit_test(what_is_none_stays),
        cmocka_unit_test(what_is_cut_off_is_a_thought),      cmocka_unit_test(many_texts_however_they_are_cut),
        cmocka_unit_test(the_prompt_says_where_it_begins),   cmocka_unit_test(marks_are_made_from_their_end),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
