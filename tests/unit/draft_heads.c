/* The source "heads": a guess is for the timeline that it was made for, and its score is the number of its tokens that
 * are likely right. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "engine/draft/heads.h"
#include "engine/world/request.h"

static void a_guess_is_for_its_timeline(void **state)
{
    (void)state;
    struct draft_source s;
    struct draft_guess g;
    struct request_spec spec = {.n_prompt = 4};
    struct request r = {.spec = &spec, .n_tokens = 9};
    struct draft_made made = {.n = 3, .tokens = {7, 8, 9}, .shares = {0.5f, 0.5f, 0.25f}};
    heads_source(&s);
    s.guess(s.ctx, &r, &r.draft_notes[0], 8, &g);
    assert_int_equal(g.n, 0);
    s.made(s.ctx, &r, &r.draft_notes[0], &made);
    s.guess(s.ctx, &r, &r.draft_notes[0], 8, &g);
    assert_true(g.n == 3 && g.match == 9 && fabsf(g.score - (0.5f + 0.25f + 0.0625f)) < 1e-6f);
    assert_memory_equal(g.tokens, made.tokens, 3 * sizeof *g.tokens);
    s.guess(s.ctx, &r, &r.draft_notes[0], 1, &g);
    assert_true(g.n == 1 && fabsf(g.score - 0.5f) < 1e-6f);
    r.n_tokens++;
    s.guess(s.ctx, &r, &r.draft_notes[0], 8, &g);
    assert_int_equal(g.n, 0);
    made.n = 0;
    s.made(s.ctx, &r, &r.draft_notes[0], &made);
    s.guess(s.ctx, &r, &r.draft_notes[0], 8, &g);
    assert_int_equal(g.n, 0);
    s.end(s.ctx, &r, r.draft_notes[0]);
    s.end(s.ctx, &r, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_guess_is_for_its_timeline)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
