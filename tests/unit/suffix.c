/* The source of draft tokens by suffix decoding: what a request and its tenant have said is guessed, trees are made
 * beside, requests come and go meanwhile, and nothing is made for a policy that does not ask. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/base/rng.h"
#include "engine/draft/suffix.h"
#include "engine/world/request.h"

enum { MOST = 8, LONGEST = 3000 };

/* A request as far as a source looks at it. */
struct fake {
    struct request_spec spec;
    struct request r;
    void *note;
    int32_t text[LONGEST];
};

static struct fake *begin(const struct draft_source *s, const char *tenant, uint64_t seed, int n_prompt)
{
    struct fake *f = mem_new(sizeof *f);
    struct rng r;
    rng_init(&r, seed);
    for (int i = 0; i < LONGEST; i++)
        f->text[i] = (int32_t)rng_below(&r, 40000);
    snprintf(f->spec.tenant, sizeof f->spec.tenant, "%s", tenant);
    f->spec.n_prompt = n_prompt;
    f->r.spec = &f->spec;
    f->r.tokens = f->text;
    f->r.n_tokens = n_prompt;
    s->begin(s->ctx, &f->r, &f->note);
    return f;
}

static int guess(const struct draft_source *s, struct fake *f, struct draft_guess *g)
{
    g->n = 0;
    s->guess(s->ctx, &f->r, &f->note, MOST, g);
    return g->n;
}

static void end(const struct draft_source *s, struct fake *f)
{
    s->end(s->ctx, &f->r, f->note);
    mem_free(f);
}

static struct suffix *open_source(struct suffix_opts o, struct draft_source *s)
{
    struct suffix *x = NULL;
    struct err e;
    assert_int_equal(suffix_open(&x, &o, &e), 0);
    suffix_source(x, s);
    return x;
}

/* One whose answer repeats the middle of its prompt, as code that is edited does. */
static void a_request_is_guessed_from_its_own_text(void **state)
{
    (void)state;
    struct draft_source s;
    struct draft_guess g;
    struct suffix *x = open_source((struct suffix_opts){.bytes = 8 << 20}, &s);
    struct fake *f = begin(&s, "", 1, 1000);
    for (int i = 0; i < 200; i++)
        f->text[1000 + i] = f->text[300 + i];
    f->r.n_tokens = 1010;
    guess(&s, f, &g); /* the first to ask: its tree is made now */
    suffix_settle(x);
    for (f->r.n_tokens = 1010; f->r.n_tokens < 1100; f->r.n_tokens += 7) {
        assert_int_equal(guess(&s, f, &g), MOST);
        assert_memory_equal(g.tokens, f->text + f->r.n_tokens, MOST * sizeof *g.tokens);
        assert_true(g.match >= 10 && g.score > MOST - 0.01f);
    }
    end(&s, f);
    suffix_close(x);
}

/* What is made ready behind a step changes when trees grow, not what is guessed. */
static void what_is_made_ready_behind_a_step_is_what_would_be_guessed(void **state)
{
    (void)state;
    struct draft_source s[2];
    struct draft_guess g[2];
    struct suffix *x[2];
    struct fake *f[2];
    int guessed = 0;
    for (int k = 0; k < 2; k++) {
        x[k] = open_source((struct suffix_opts){.bytes = 8 << 20}, &s[k]);
        f[k] = begin(&s[k], "", 1, 40);
        for (int i = 40; i < 2000; i++)
            f[k]->text[i] = i % 5 ? f[k]->text[i * 7 % 40] : f[k]->text[i - 5];
        f[k]->r.n_tokens = 41;
    }
    for (int n = 41; n < 2000; n++) {
        for (int k = 0; k < 2; k++) {
            assert_true(guess(&s[k], f[k], &g[k]) <= MOST);
            f[k]->r.n_tokens++;
        }
        s[1].said(s[1].ctx, &f[1]->r, f[1]->note);
        assert_int_equal(g[0].n, g[1].n);
        assert_memory_equal(g[0].tokens, g[1].tokens, (size_t)g[0].n * sizeof *g[0].tokens);
        guessed += g[0].n > 0;
    }
    assert_true(guessed > 100);
    for (int k = 0; k < 2; k++) {
        end(&s[k], f[k]);
        suffix_close(x[k]);
    }
}

static void what_a_tenant_has_said_is_guessed(void **state)
{
    (void)state;
    struct draft_source s;
    struct draft_guess g;
    struct suffix *x = open_source((struct suffix_opts){.bytes = 8 << 20}, &s);
    struct fake *f = begin(&s, "anna", 2, 100);
    guess(&s, f, &g);
    f->r.n_tokens = 600;
    end(&s, f);
    suffix_settle(x);
    assert_int_equal(suffix_stats(x).tree.tokens, 500); /* what it answered, not its prompt */
    for (int i = 0; i < 2; i++) {
        f = begin(&s, i ? "bert" : "anna", 2, 300);
        assert_int_equal(guess(&s, f, &g), i ? 0 : MOST);
        if (!i)
            assert_memory_equal(g.tokens, f->text + 300, MOST * sizeof *g.tokens);
        end(&s, f);
    }
    suffix_close(x);
}

static void what_is_kept_is_as_configured(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++) {
        struct draft_source s;
        struct draft_guess g;
        struct suffix *x =
            open_source((struct suffix_opts){.bytes = 8 << 20, .prompts = i > 0, .no_outputs = i == 1}, &s);
        struct fake *f = begin(&s, "", 3, 100);
        guess(&s, f, &g);
        f->r.n_tokens = 250;
        end(&s, f);
        suffix_settle(x);
        assert_int_equal(suffix_stats(x).tree.tokens, i == 0 ? 150 : i == 1 ? 100 : 250);
        suffix_close(x);
    }
}

/* By the rule that was set last: the one that is guessed from stays. */
static void what_goes_first_is_as_it_was_told(void **state)
{
    (void)state;
    for (int used = 0; used < 2; used++) {
        struct draft_source s;
        struct draft_guess g;
        struct suffix *x = open_source((struct suffix_opts){.bytes = 256 << 10, .prompts = true}, &s);
        s.evict(s.ctx, used ? EVICT_UNUSED : EVICT_LARGEST);
        for (uint64_t i = 0; i < 40; i++) { /* the first text is asked about all the time */
            struct fake *f = begin(&s, "", 100 + i, 200), *first = begin(&s, "", 100, 150);
            guess(&s, f, &g);
            end(&s, f);
            suffix_settle(x);
            guess(&s, first, &g);
            first->r.n_tokens = first->spec.n_prompt = 1; /* it adds nothing */
            end(&s, first);
        }
        struct fake *f = begin(&s, "", 100, 150);
        assert_int_equal(guess(&s, f, &g), used ? MOST : 0);
        end(&s, f);
        suffix_close(x);
    }
}

/* Under a policy that never asks, and again when one has not asked for long. */
static void who_does_not_draft_pays_nothing(void **state)
{
    (void)state;
    struct draft_source s;
    struct draft_guess g;
    struct suffix *x = open_source((struct suffix_opts){.bytes = 8 << 20}, &s);
    for (int i = 0; i < 20; i++) {
        struct fake *f = begin(&s, "", 4, 100);
        f->r.n_tokens = 200;
        assert_null(f->note);
        end(&s, f);
    }
    struct fake *asks = begin(&s, "", 5, 100);
    guess(&s, asks, &g);
    end(&s, asks);
    int made = 0;
    for (int i = 0; i < 1000; i++) {
        struct fake *f = begin(&s, "", 6, 100);
        made += f->note != NULL;
        end(&s, f);
    }
    assert_true(made > 0 && made < 500);
    suffix_settle(x);
    assert_int_equal(suffix_stats(x).tree.tokens, 0);
    suffix_close(x);
}

/* Requests of several tenants come, say something, are guessed for and leave, some before their tree is made; what is
 * guessed may be wrong, but it was said. */
static void requests_come_and_go(void **state)
{
    (void)state;
    enum { LIVE = 12, ROUNDS = 4000 };
    struct draft_source s;
    struct draft_guess g;
    struct suffix *x = open_source((struct suffix_opts){.bytes = 4 << 20}, &s);
    struct fake *live[LIVE] = {0};
    struct rng r;
    int64_t found = 0;
    rng_init(&r, 7);
    for (int i = 0; i < ROUNDS; i++) {
        struct fake **f = &live[rng_below(&r, LIVE)];
        char tenant[8];
        if (i % 16 == 0) /* else it would be over before a tree is made */
            suffix_settle(x);
        snprintf(tenant, sizeof tenant, "t%d", (int)rng_below(&r, 3));
        if (!*f)
            *f = begin(&s, tenant, 20 + rng_below(&r, 9), 1 + (int)rng_below(&r, 1500));
        else if (rng_below(&r, 12) == 0 || (*f)->r.n_tokens > LONGEST - 100) {
            end(&s, *f);
            *f = NULL;
            continue;
        }
        (*f)->r.n_tokens += (int)rng_below(&r, 60);
        found += guess(&s, *f, &g) > 0;
        assert_true(g.n <= MOST);
        for (int k = 0; k < g.n; k++)
            assert_true(g.tokens[k] >= 0 && g.tokens[k] < 40000);
    }
    assert_true(found > ROUNDS / 50);
    for (int i = 0; i < LIVE; i++)
        if (live[i])
            end(&s, live[i]);
    assert_true(suffix_stats(x).tree.bytes <= 4 << 20);
    suffix_close(x);
}

/* What its own trees may take is bounded: who comes then has none, and goes without. */
static void too_long_a_text_has_no_tree(void **state)
{
    (void)state;
    struct draft_source s;
    struct draft_guess g;
    struct suffix *x = open_source((struct suffix_opts){.bytes = 64 << 10}, &s);
    struct fake *f = begin(&s, "", 8, 2000);
    memcpy(f->text + 1900, f->text, 100 * sizeof *f->text);
    assert_int_equal(guess(&s, f, &g), 0);
    suffix_settle(x);
    assert_int_equal(guess(&s, f, &g), 0);
    struct fake *small = begin(&s, "", 9, 150);
    memcpy(small->text + 150, small->text, 50 * sizeof *f->text);
    small->r.n_tokens = 200;
    guess(&s, small, &g);
    suffix_settle(x);
    assert_int_equal(guess(&s, small, &g), MOST);
    end(&s, f);
    end(&s, small);
    suffix_close(x);
}

/* An answer, which the tenant hears again. */
static void say(struct suffix *x, const struct draft_source *s, const char *tenant, uint64_t seed)
{
    struct draft_guess g;
    struct fake *f = begin(s, tenant, seed, 10);
    guess(s, f, &g);
    f->r.n_tokens = 500;
    end(s, f);
    suffix_settle(x);
}

/* Of what was said by `say`. */
static bool knows(struct suffix *x, const struct draft_source *s, const char *tenant, uint64_t seed)
{
    struct draft_guess g;
    struct fake *f = begin(s, tenant, seed, 200);
    suffix_settle(x);
    bool does = guess(s, f, &g) == MOST && memcmp(g.tokens, f->text + 200, MOST * sizeof *f->text) == 0;
    f->r.n_tokens = f->spec.n_prompt; /* it said nothing itself */
    end(s, f);
    return does;
}

static void what_was_said_is_known_in_the_next_process(void **state)
{
    (void)state;
    char path[] = "/tmp/moonshift-said-XXXXXX";
    struct draft_source s, t;
    struct suffix_file_count n;
    struct err e = {0};
    close(mkstemp(path));
    unlink(path);
    struct suffix_opts o = {.bytes = 4 << 20, .file = path, .vocabulary = {hash_sha256("v", 1), 40000}};
    struct suffix *x = open_source(o, &s); /* there was no file */
    assert_true(suffix_load(x, &n, &e) == 0 && n.sequences == 0);
    say(x, &s, "anna", 1);
    say(x, &s, "bert", 2);
    assert_true(knows(x, &s, "anna", 1) && !knows(x, &s, "anna", 2) && knows(x, &s, "bert", 2));
    assert_int_equal(suffix_save(x, &n, &e), 0);
    assert_true(n.sequences == 2 && n.tokens == 2 * 490);

    struct suffix *y = open_source(o, &t);
    assert_int_equal(suffix_save(y, &n, &e), 0); /* behind the load: it wrote what it had read */
    assert_int_equal(n.tokens, 2 * 490);
    assert_true(knows(y, &t, "anna", 1) && !knows(y, &t, "anna", 2) && knows(y, &t, "bert", 2));
    say(x, &s, "anna", 3);
    assert_int_equal(suffix_load(x, &n, &e), 0); /* what was said since goes */
    assert_true(n.sequences == 2 && suffix_stats(x).n_sequences == 2);
    assert_true(knows(x, &s, "anna", 1) && !knows(x, &s, "anna", 3));
    suffix_close(x);
    suffix_close(y);
    unlink(path);
}

static void a_wrong_file_changes_nothing(void **state)
{
    (void)state;
    char path[] = "/tmp/moonshift-said-XXXXXX";
    struct draft_source s;
    struct suffix_file_count n;
    struct suffix *y = NULL;
    struct err e = {0};
    close(mkstemp(path));
    unlink(path);
    struct suffix_opts o = {.bytes = 4 << 20, .file = path, .vocabulary = {hash_sha256("v", 1), 40000}};
    struct suffix *x = open_source(o, &s);
    say(x, &s, "anna", 1);
    assert_int_equal(file_replace(path, "something else", 14, &e), 0);
    assert_int_equal(suffix_load(x, &n, &e), E_INPUT);
    assert_non_null(strstr(e.text, "no file of draft texts"));
    assert_true(knows(x, &s, "anna", 1));
    assert_int_equal(suffix_open(&y, &o, &e), E_INPUT);
    unlink(path);
    assert_int_equal(suffix_load(x, &n, &e), E_NOTFOUND);
    assert_true(knows(x, &s, "anna", 1));
    o.file = "/nowhere/at/all";
    assert_int_equal(suffix_open(&y, &o, &e), E_NOTFOUND);
    suffix_close(x);
    x = open_source((struct suffix_opts){.bytes = 1 << 20}, &s);
    assert_int_equal(suffix_save(x, &n, &e), E_UNSUPPORTED);
    suffix_close(x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_request_is_guessed_from_its_own_text),
        cmocka_unit_test(what_is_made_ready_behind_a_step_is_what_would_be_guessed),
        cmocka_unit_test(what_a_tenant_has_said_is_guessed),
        cmocka_unit_test(what_is_kept_is_as_configured),
        cmocka_unit_test(who_does_not_draft_pays_nothing),
        cmocka_unit_test(requests_come_and_go),
        cmocka_unit_test(too_long_a_text_has_no_tree),
        cmocka_unit_test(what_goes_first_is_as_it_was_told),
        cmocka_unit_test(what_was_said_is_known_in_the_next_process),
        cmocka_unit_test(a_wrong_file_changes_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
