/* Draft tokens of guided requests: of a guess what may stand stays, and each row has the list of its own place. Against
 * lists that are found token by token, over random forms, texts and trees. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "engine/base/rng.h"
#include "engine/base/shared.h"
#include "engine/exec/guided.h"
#include "models/guide/outline.h"
#include "tests/rig/guide_rig.h"

enum { PROMPT = 3, OUTPUT = 12, TOKENS = 300, END = 257 };

static struct tokenizer *tokenizer;
static struct guide_tokens *tokens;

static int setup(void **state)
{
    (void)state;
    assert_int_equal(tokenizer_bytes(&tokenizer, TOKENS, NULL), 0);
    tokens = guide_tokens_new(tokenizer);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    guide_tokens_free(tokens);
    tokenizer_free(tokenizer);
    return 0;
}

/* A request amid its answer, a guess behind that, and guides of each side. */
struct fixture {
    struct rng r;
    struct guides *guides, *apart; /* that of the subject; that which the test asks */
    struct grammar *grammar;
    struct request_spec spec;
    struct request request;
    int32_t timeline[PROMPT + OUTPUT];
    struct draft_guess guess;
};

static const char *const forms[] = {"[a-f]{3,9}(-[0-9]{2,4})*", "(ab|ac|ad[xyz]+)*", "\\{\"name\": \"[^\"]{0,9}\"\\}",
                                    "(yes|no|not sure)(, (yes|no|not sure))*"};

/* What may follow output[0..n), as the other side finds it. */
static bool ids_behind(struct fixture *f, const int32_t *output, int n, struct guide_ids *ids)
{
    return guide_next(guides_of(f->apart, f->grammar), &(struct guided){0}, output, n, ids);
}

static bool is_allowed(const struct guide_ids *ids, int32_t id)
{
    for (int i = 0; i < ids->n; i++)
        if (ids->ids[i] == id)
            return ids->allowed;
    return !ids->allowed;
}

/* One that may follow, or, at times, any. */
static int32_t any_token(struct fixture *f, const int32_t *output, int n, bool any)
{
    struct guide_ids ids;
    int32_t id = (int32_t)rng_below(&f->r, TOKENS);
    if (any || !ids_behind(f, output, n, &ids))
        return id;
    while (!is_allowed(&ids, id))
        id = (int32_t)rng_below(&f->r, TOKENS);
    return id;
}

/* The output, and behind it the guessed tokens up to `at`, by the guess's own parents: their number. */
static int text_of(const struct fixture *f, const struct draft_guess *g, int at, int32_t *text)
{
    int n = request_output(&f->request), depth = 0, path[MOST_DRAFTS];
    memcpy(text, f->timeline + PROMPT, (size_t)n * sizeof *text);
    for (; at >= 0; at = g->tree ? g->parents[at] : at - 1)
        path[depth++] = at;
    while (depth)
        text[n++] = g->tokens[path[--depth]];
    return n;
}

static void open_fixture(struct fixture *f, uint64_t seed)
{
    int32_t text[OUTPUT + MOST_DRAFTS];
    *f = (struct fixture){.guides = guides_new(tokens, GUIDE_BYTES), .apart = guides_new(tokens, GUIDE_BYTES)};
    rng_init(&f->r, seed);
    assert_int_equal(outline_regex(forms[seed % 4], &f->grammar, NULL), 0);
    f->spec = (struct request_spec){.grammar = f->grammar, .n_prompt = PROMPT};
    f->request = (struct request){.spec = &f->spec, .tokens = f->timeline, .n_tokens = PROMPT};
    for (int n = (int)rng_below(&f->r, OUTPUT); n > 0; n--) {
        int done = request_output(&f->request);
        int32_t id = any_token(f, f->timeline + PROMPT, done, false);
        if (id == END)
            break;
        f->timeline[f->request.n_tokens++] = id;
    }
    struct draft_guess *g = &f->guess;
    g->tree = rng_below(&f->r, 2);
    g->score = g->n = 1 + (int)rng_below(&f->r, 20);
    for (int i = 0; i < g->n; i++) {
        g->parents[i] = (int8_t)((int)rng_below(&f->r, (uint64_t)i + 1) - 1);
        int n = text_of(f, g, g->tree ? g->parents[i] : i - 1, text);
        g->tokens[i] = any_token(f, text, n, rng_below(&f->r, 8) == 0);
    }
}

static void close_fixture(struct fixture *f)
{
    guides_free(f->guides);
    guides_free(f->apart);
    shared_drop(f->grammar);
}

/* May the guess's token `at` stand where it does, and all those before it? One that ends the answer never stays. */
static bool may_stand(struct fixture *f, const struct draft_guess *g, int at)
{
    int32_t text[OUTPUT + MOST_DRAFTS];
    struct guide_ids ids;
    int n = text_of(f, g, at, text);
    for (int i = request_output(&f->request); i < n; i++)
        if (text[i] == END || !ids_behind(f, text, i, &ids) || !is_allowed(&ids, text[i]))
            return false;
    return true;
}

/* As a source does that walks the grammar. */
static void explore(struct fixture *f)
{
    int32_t text[OUTPUT + MOST_DRAFTS];
    int said = request_output(&f->request);
    guide_state(guides_of(f->guides, f->grammar), &f->request.guided, f->timeline + PROMPT, said);
    for (int i = 0; i < f->guess.n; i++)
        guided_explore(f->guides, &f->request, text + said, text_of(f, &f->guess, i, text) - said);
}

static void what_may_not_stand_is_cut_out(void **state)
{
    (void)state;
    int n_kept = 0, n_cut = 0;
    for (uint64_t seed = 0; seed < 600; seed++) {
        struct fixture f;
        open_fixture(&f, seed);
        struct draft_guess g = f.guess;
        guided_cut(f.guides, &f.request, &g);
        assert_int_equal(g.n, 0); /* nothing is known, and nothing is found */
        g = f.guess;
        explore(&f);
        guided_cut(f.guides, &f.request, &g);
        int n = 0;
        for (int i = 0; i < f.guess.n; i++) {
            int32_t was[OUTPUT + MOST_DRAFTS], is[OUTPUT + MOST_DRAFTS];
            if (!may_stand(&f, &f.guess, i))
                continue;
            assert_true(n < g.n);
            int len = text_of(&f, &f.guess, i, was);
            assert_int_equal(text_of(&f, &g, n++, is), len);
            assert_memory_equal(was, is, (size_t)len * sizeof *is);
        }
        assert_int_equal(n, g.n);
        assert_true(g.score > (float)n - 0.001f && g.score < (float)n + 0.001f);
        n_kept += n;
        n_cut += f.guess.n - n;
        close_fixture(&f);
    }
    assert_true(n_kept > 1000 && n_cut > 1000);
}

/* The row's list is that which is found behind its text. */
static void check_row(struct fixture *f, const struct draft_guess *g, int at, const struct sample_row *row)
{
    int32_t text[OUTPUT + MOST_DRAFTS];
    struct guide_ids ids;
    assert_true(ids_behind(f, text, text_of(f, g, at, text), &ids));
    const int32_t *list = ids.allowed ? row->allowed : row->banned;
    assert_int_equal(ids.allowed ? row->n_allowed : row->n_banned, ids.n);
    assert_memory_equal(list, ids.ids, (size_t)ids.n * sizeof *list);
}

/* Guesses as they came, too: nobody reads the row of a token that may not stand. Where little may be looked at fewer
 * tokens are judged, and each time more, until all are. */
static void each_row_has_the_list_of_its_place(void **state)
{
    (void)state;
    int n_few = 0;
    for (uint64_t seed = 0; seed < 600; seed++) {
        struct fixture f;
        struct arena arena;
        open_fixture(&f, seed);
        arena_init(&arena);
        if (seed % 3) {
            explore(&f);
            guided_cut(f.guides, &f.request, &f.guess);
        }
        struct drafts d = {f.guess.n, f.guess.tokens, f.guess.tree ? f.guess.parents : NULL};
        for (int n = -1, before = -1; n < d.n; before = n) {
            struct sample_row rows[MOST_DRAFTS + 1] = {{0}};
            struct guided_step step = {f.guides, &arena, 2 * TOKENS};
            n = guided_fill(&step, &f.request, &d, rows);
            assert_true(n > before);
            n_few += n < d.n;
            for (int i = -1; i < n; i++)
                if (may_stand(&f, &f.guess, i))
                    check_row(&f, &f.guess, i, &rows[i + 1]);
        }
        arena_free(&arena);
        close_fixture(&f);
    }
    assert_true(n_few > 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_may_not_stand_is_cut_out),
        cmocka_unit_test(each_row_has_the_list_of_its_place),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
