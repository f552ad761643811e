/* Draft tokens of virtual time: right ones are what the simulated device says, as often as was asked for or recorded,
 * and whether one is right does not depend on who asked for how many. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

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

/* Sources have the names and places of a recording, and are right as often as theirs were. */
static void as_many_are_right_as_were_recorded(void **state)
{
    (void)state;
    static int32_t text[LENGTH + MOST];
    static struct recording_head head = {
        .sources = {{"suffix", false, true}, {"lookup", true, false}, {"new", true, false}}, .n_sources = 3};
    struct recording_digest seen = {
        .drafts = {{.n_asked = 900, .n_ideas = 450, .n_right = 700, .n_wrong = 300}, {10, 10, 2, 8}, {50, 30, 0, 0}}};
    static const double chances[] = {0.7, 0.2, 0}, ideas[] = {0.5, 1, 0};
    struct modelled_drafts d;
    modelled_drafts_open(&d, &(struct modelled_drafts_setup){.seed = 5, .vocab = 1, .head = &head, .seen = &seen});
    assert_true(modelled_drafts_sources(&d) == &d.sources && d.sources.n == 3);
    assert_non_null(strstr(d.words.data, "suffix right with a chance of 0.700 (700 of 1000, as recorded)"));
    assert_non_null(strstr(d.words.data, "new was never judged"));
    for (int i = 0; i < 3; i++) {
        const struct draft_source *s = &d.sources.items[i];
        struct request r = {.tokens = text};
        double n = 0, right = 0;
        assert_string_equal(s->name, head.sources[i].name);
        assert_true(s->by_name == head.sources[i].by_name && !s->evict == !head.sources[i].keeps);
        for (r.n_tokens = 1; r.n_tokens <= LENGTH; r.n_tokens++) {
            struct draft_guess g = {0};
            void *note = NULL;
            s->guess(s->ctx, &r, &note, MOST, &g);
            n += g.n > 0;
            right += n_right(&g, text, r.n_tokens) > 0; /* a played machine says 0 */
        }
        assert_true(n / LENGTH > ideas[i] - 0.03 && n / LENGTH < ideas[i] + 0.03);
        assert_true(n == 0 || (right / n > chances[i] - 0.03 && right / n < chances[i] + 0.03));
    }
    modelled_drafts_close(&d);
    modelled_drafts_open(&d, &(struct modelled_drafts_setup){.chance = 1, .vocab = 1, .head = &head, .seen = &seen});
    assert_true(d.sources.n == 3 && d.each[2].chance == 1 && d.each[0].ideas == 1);
    modelled_drafts_close(&d);
    head.n_sources = 0;
    modelled_drafts_open(&d, &(struct modelled_drafts_setup){.vocab = 1, .head = &head, .seen = &seen});
    assert_true(!modelled_drafts_sources(&d) && !d.words.len);
    modelled_drafts_close(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(as_many_are_right_as_was_asked_for),
                                       cmocka_unit_test(as_many_are_right_as_were_recorded)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
