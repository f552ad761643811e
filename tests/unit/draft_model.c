/* The books of a draft model's cache: what of a timeline is cached after which step, who loses blocks to whom, and that
 * each block is free or one request's. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "engine/base/rng.h"
#include "engine/draft/model.h"
#include "engine/world/request.h"

enum { BLOCK = 16, MOST = 200, REQUESTS = 12 };

struct fake {
    struct request_spec spec;
    struct request r;
    int32_t tokens[MOST];
};

static void fake_open(struct fake *f, int n_tokens)
{
    *f = (struct fake){.spec = {.n_prompt = n_tokens}};
    f->r = (struct request){.spec = &f->spec, .tokens = f->tokens, .n_tokens = n_tokens, .busy = true};
    for (int i = 0; i < MOST; i++)
        f->tokens[i] = i;
}

static struct model_drafts *open_books(int n_blocks, struct draft_source *s)
{
    struct model_drafts *d = model_drafts_new(&(struct model_drafts_setup){n_blocks, BLOCK, 128, 4});
    model_drafts_source(d, s);
    return d;
}

static int n_free(const struct model_drafts *d)
{
    uint64_t n_lost;
    return model_drafts_n_free(d, &n_lost);
}

static bool lend(const struct draft_source *s, struct fake *f, struct draft_cache *c)
{
    f->r.busy = true;
    return s->lend(s->ctx, &f->r, &f->r.draft_notes[0], 5, c);
}

/* The step has said n tokens, and guesses these behind them. */
static void step(const struct draft_source *s, struct fake *f, int n, struct draft_made m)
{
    f->r.n_tokens += n;
    m.n_cached = m.n_cached ? m.n_cached : f->r.n_tokens;
    s->made(s->ctx, &f->r, &f->r.draft_notes[0], &m);
    f->r.busy = false;
}

static void end(const struct draft_source *s, struct fake *f)
{
    s->end(s->ctx, &f->r, f->r.draft_notes[0]);
    f->r.draft_notes[0] = NULL;
}

static void what_is_cached(void **state)
{
    (void)state;
    struct draft_source s;
    struct draft_cache c;
    struct fake f;
    struct model_drafts *d = open_books(8, &s);
    fake_open(&f, 20);
    assert_true(lend(&s, &f, &c) && c.n_cached == 0 && c.n_ahead == 0);
    step(&s, &f, 1, (struct draft_made){.n = 3, .tokens = {21, 22, 99}}); /* says 20; 21 and 22 come true */
    assert_true(lend(&s, &f, &c) && c.n_cached == 21 && c.n_ahead == 2);
    assert_true(c.ahead[0] == 21 && c.ahead[1] == 22);
    f.r.busy = false; /* that step has failed: what lay ahead is written over, the rest stands */
    assert_true(lend(&s, &f, &c) && c.n_cached == 21 && c.n_ahead == 0);
    step(&s, &f, 1, (struct draft_made){.n = 4, .tokens = {22, 23, 99, 24}}); /* of it the last is not cached */
    f.r.n_tokens += 1;                                                        /* by a step that did not ask */
    assert_true(lend(&s, &f, &c) && c.n_cached == 23 && c.n_ahead == 2 && c.ahead[0] == 23 && c.ahead[1] == 99);
    step(&s, &f, 1, (struct draft_made){.n = 4, .tokens = {24, 99, 26, 27}});
    f.r.n_tokens += 3; /* of which the first was guessed */
    assert_true(lend(&s, &f, &c) && c.n_cached == 25 && c.n_ahead == 0);
    step(&s, &f, 1, (struct draft_made){.n_cached = 26}); /* not caught up with yet */
    assert_true(lend(&s, &f, &c) && c.n_cached == 26 && c.n_ahead == 0);
    step(&s, &f, 1, (struct draft_made){0});
    end(&s, &f);
    assert_int_equal(n_free(d), 8);
    model_drafts_free(d);
}

static void who_loses_blocks(void **state)
{
    (void)state;
    struct draft_source s;
    struct draft_cache c;
    static struct fake a, b, x;
    struct model_drafts *d = open_books(6, &s);
    fake_open(&a, 40); /* with what a step adds 3 blocks */
    fake_open(&b, 20); /* 2 */
    fake_open(&x, 20);
    assert_true(lend(&s, &a, &c) && lend(&s, &b, &c) && !lend(&s, &x, &c)); /* nobody has been idle for long */
    step(&s, &a, 1, (struct draft_made){0});
    for (int i = 0; i < 4; i++) {
        step(&s, &b, 1, (struct draft_made){0});
        assert_true(!lend(&s, &x, &c) && lend(&s, &b, &c));
    }
    a.r.busy = true; /* it is in a step that asks nothing */
    step(&s, &b, 1, (struct draft_made){0});
    assert_true(lend(&s, &b, &c) && !lend(&s, &x, &c));
    a.r.busy = false;
    assert_true(lend(&s, &x, &c));
    uint64_t lost;
    assert_true(model_drafts_n_free(d, &lost) == 2 && lost == 1);
    assert_true(!lend(&s, &a, &c));
    x.r.n_tokens = 124; /* with what comes it is longer than the draft model's context: it gives back what it had */
    assert_true(!lend(&s, &x, &c) && n_free(d) == 4);
    assert_true(lend(&s, &a, &c) && c.n_cached == 0);
    end(&s, &a);
    end(&s, &b);
    end(&s, &x);
    assert_int_equal(n_free(d), 6);
    model_drafts_free(d);
}

/* Whatever happens, blocks that are lent are different ones, and all come back. */
static void blocks_are_conserved(void **state)
{
    (void)state;
    enum { BLOCKS = 20 };
    static struct fake all[REQUESTS];
    struct draft_source s;
    struct draft_cache c[REQUESTS];
    bool lent[REQUESTS] = {false};
    struct rng rng;
    struct model_drafts *d = open_books(BLOCKS, &s);
    rng_init(&rng, 1);
    for (int i = 0; i < REQUESTS; i++)
        fake_open(&all[i], 1 + (int)rng_below(&rng, 60));
    for (int k = 0; k < 20000; k++) {
        int i = (int)rng_below(&rng, REQUESTS), seen[BLOCKS] = {0}, held = 0;
        struct fake *f = &all[i];
        if (lent[i] && rng_below(&rng, 4)) {
            step(&s, f, 1, (struct draft_made){0});
            lent[i] = false;
        } else if (lent[i] || rng_below(&rng, 20) == 0 || f->r.n_tokens > 120) {
            end(&s, f);
            fake_open(f, 1 + (int)rng_below(&rng, 60));
            f->r.busy = lent[i] = false;
        } else {
            lent[i] = lend(&s, f, &c[i]);
            f->r.busy = lent[i];
        }
        for (int q = 0; q < REQUESTS; q++)
            for (int n = 0; lent[q] && n < (all[q].r.n_tokens + 5 + BLOCK - 1) / BLOCK; n++, held++)
                assert_true(c[q].blocks[n] >= 0 && c[q].blocks[n] < BLOCKS && !seen[c[q].blocks[n]]++);
        assert_true(held + n_free(d) <= BLOCKS);
    }
    uint64_t lost;
    for (int i = 0; i < REQUESTS; i++)
        end(&s, &all[i]);
    assert_int_equal(model_drafts_n_free(d, &lost), BLOCKS);
    assert_true(lost > 100);
    model_drafts_free(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_cached),
        cmocka_unit_test(who_loses_blocks),
        cmocka_unit_test(blocks_are_conserved),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
