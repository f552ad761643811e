/* Draft tokens of virtual time: right ones are what the simulated device says, as often as was asked for, and whether
 * one is right does not depend on who asked for how many. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "engine/lab/drafts.h"
#include "engine/world/request.h"
#include "kernels/sim/token.h"

enum { LENGTH = 4000, VOCAB = 1000, MOST = 8 };

/* How many of a guess are what is said behind n tokens. */
static int n_right(const struct draft_guess *g, const int32_t *text, int n)
{
    int right = 0;
    while (right < g->n && g->tokens[right] == text[n + right])
        right++;
    return right;
}

static void as_many_are_right_as_was_asked_for(void **state)
{
    (void)state;
    static int32_t text[LENGTH + MOST];
    text[0] = 7;
    for (int i = 1; i < LENGTH + MOST; i++)
        text[i] = sim_token(text[i - 1], i - 1, VOCAB);
    for (int tenths = 1; tenths <= 10; tenths += 3) {
        struct modelled_drafts d;
        struct request r = {.tokens = text, .order = (uint64_t)tenths};
        const struct draft_source *s = &d.sources.items[0];
        void *note = NULL;
        int right = 0, tried = 0;
        modelled_drafts_open(&d, &(struct modelled_drafts_setup){.chance = tenths / 10.0, .seed = 5, .vocab = VOCAB});
        assert_int_equal(d.sources.n, 1);
        for (r.n_tokens = 1; r.n_tokens <= LENGTH; r.n_tokens++) {
            struct draft_guess many = {0}, few = {0};
            s->guess(s->ctx, &r, &note, MOST, &many);
            s->guess(s->ctx, &r, &note, 2, &few);
            assert_true(many.n == MOST && few.n == 2);
            int all = n_right(&many, text, r.n_tokens);
            assert_int_equal(n_right(&few, text, r.n_tokens), all < 2 ? all : 2);
            right += all > 0;
            tried++;
            double expected = 0;
            for (double p = tenths / 10.0, i = 0; i < MOST; i++, p *= tenths / 10.0)
                expected += p;
            assert_true(many.score > expected - 0.01 && many.score < expected + 0.01);
        }
        double share = (double)right / tried;
        assert_true(share > tenths / 10.0 - 0.03 && share < tenths / 10.0 + 0.03);
        modelled_drafts_close(&d);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(as_many_are_right_as_was_asked_for)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
