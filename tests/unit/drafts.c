/* Draft tokens that branch: which of them are right and where they belong, beside a walk through all branches; and
 * plans, which take a tree as it is asked for, cut it to a tree, and refuse one where devices have chains only. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "engine/base/rng.h"
#include "engine/exec/step.h"

enum { MOST = 24, FIRST = 100, SAMPLED = 3 /* the place of the item's results */ };

/* A tree of a few different tokens, no two behind one the same, in which some row says each of them. */
struct made {
    int32_t tokens[MOST];
    int8_t parents[MOST];
    struct drafts d;
    struct sample_result results[SAMPLED + MOST + 1];
};

static bool is_taken(const struct made *m, int parent, int32_t token)
{
    for (int i = 0; i < m->d.n; i++)
        if (m->parents[i] == parent && m->tokens[i] == token)
            return true;
    return false;
}

static void make(struct made *m, struct rng *r, bool chain)
{
    memset(m, 0, sizeof *m);
    m->d = (struct drafts){.tokens = m->tokens, .parents = chain ? NULL : m->parents};
    for (int n = 1 + (int)rng_below(r, MOST); m->d.n < n; m->d.n++) {
        int i = m->d.n, parent = chain || rng_below(r, 2) ? i - 1 : (int)rng_below(r, (uint64_t)i + 1) - 1;
        int32_t token = (int32_t)rng_below(r, 3);
        while (is_taken(m, parent, token))
            token++;
        m->tokens[i] = token;
        m->parents[i] = (int8_t)parent;
    }
    for (int i = 0; i <= m->d.n; i++)
        m->results[SAMPLED + i].token = (int32_t)rng_below(r, 3);
}

/* The longest branch of which every token is what the row before it says. */
static int naive_path(const struct made *m, int8_t path[MOST])
{
    int best = 0;
    for (int i = 0; i < m->d.n; i++) {
        int8_t back[MOST];
        int n = 0, right = 1;
        for (int k = i; k >= 0; k = m->parents[k])
            back[n++] = (int8_t)k;
        for (int k = 0; k < n; k++)
            right &= m->results[SAMPLED + 1 + m->parents[back[k]]].token == m->tokens[back[k]];
        if (!right || n <= best)
            continue;
        best = n;
        for (int k = 0; k < n; k++)
            path[k] = back[n - 1 - k];
    }
    return best;
}

static void what_is_right_is_one_branch(void **state)
{
    struct rng r;
    int n_packed = 0;
    (void)state;
    rng_init(&r, 9);
    for (int round = 0; round < 3000; round++) {
        struct made m;
        make(&m, &r, round % 3 == 0);
        struct row_tree tree = {FIRST, m.d.n, m.parents};
        struct batch_seq seq = {.tree = m.d.parents ? &tree : NULL};
        struct step_part part = {.batch = {.n_seqs = 1, .seqs = &seq}};
        struct step_item it = {.n_tokens = 1, .drafts = m.d, .first_result = SAMPLED - 1, .n_given = 1};
        struct step s = {.parts = &part, .n_ranks = 1, .items = &it, .n_items = 1, .results = m.results};
        int8_t path[MOST_DRAFTS], best[MOST] = {0};
        int32_t from[MOST_DRAFTS], to[MOST_DRAFTS];
        int n = step_path(&s, &it, path), right = naive_path(&m, best), last = n ? path[n - 1] : -1, k = 0;
        assert_int_equal(n, right);
        assert_memory_equal(path, best, (size_t)n);
        assert_int_equal(drafts_depth(&m.d, last), n);
        assert_int_equal(drafts_next(&m.d, last, m.results[SAMPLED + 1 + last].token), -1);
        bool on = false;
        for (int i = 0; i < m.d.n; i++)
            on |= m.parents[i] == last;
        assert_int_equal(drafts_go_on(&m.d, last), on);
        int moves = step_packs(&s, 0, from, to);
        for (int i = 0; i < n; i++)
            if (path[i] != i) {
                assert_true(k < moves && from[k] == FIRST + path[i] && to[k] == FIRST + i);
                k++;
            }
        assert_int_equal(k, moves);
        n_packed += moves;
    }
    assert_true(n_packed > 300);
}

/* ---- plans */

enum { SHOWN = 4 };
static const int32_t tokens[SHOWN] = {5, 6, 7, 8};
static const int8_t forked[SHOWN] = {-1, 0, 0, 1};

static void show(struct draft_guess *g, int most)
{
    g->n = most < SHOWN ? most : SHOWN;
    g->match = 3;
    g->score = 2;
    memcpy(g->tokens, tokens, sizeof tokens);
}

static void guess(void *ctx, const struct request *r, void **note, int most, struct draft_guess *g)
{
    (void)ctx;
    (void)r;
    (void)note;
    show(g, most);
}

static void guess_tree(void *ctx, const struct request *r, void **note, int most, struct draft_guess *g)
{
    const int8_t *parents = ctx;
    (void)r;
    (void)note;
    show(g, most);
    g->tree = true;
    memcpy(g->parents, parents, SHOWN);
}

struct bench {
    struct world w;
    struct metrics m;
    struct plan p;
    struct request *r;
    struct plan_batch *b;
    struct draft_sources sources;
};

/* One request that decodes, in a batch. */
static void set_up(struct bench *b, const int8_t *parents)
{
    struct limits l = {.max_num_seqs = 4, .max_num_batched_tokens = 64, .max_model_len = 256};
    struct request_spec *s = mem_new(sizeof *s);
    struct node_shape shape;
    struct err e;
    memset(b, 0, sizeof *b);
    metrics_init(&b->m);
    node_shape_uniform(&shape, 1, &(struct heads){1, 1, 64}, 8, 16);
    world_init(&b->w, &l, &shape, 16, &b->m);
    partition_ask(&b->w, &(struct switch_order){.mask = 1, .base = {1, 1, 1}}, 0);
    assert_int_equal(partition_advance(&b->w, 0), 1);
    b->sources.items[0] =
        (struct draft_source){.name = "shown", .guess = guess, .guess_tree = guess_tree, .ctx = (void *)parents};
    b->sources.n = 1;
    b->w.drafts = &b->sources;
    b->w.draft_trees = true;
    plan_init(&b->p, &b->w);
    s->n_prompt = 4;
    s->prompt = mem_new_array(4, sizeof(int32_t));
    s->max_tokens = 50;
    s->sampling.n_logprobs = s->sampling.n_prompt_logprobs = -1;
    assert_int_equal(world_submit(&b->w, s, 1, &b->r, &e), 0);
    plan_begin(&b->p, 2);
    struct plan_batch *first = plan_batch(&b->p, b->w.partition.groups[0].id);
    assert_int_equal(plan_prefill(first, NULL, 0, 64), 4);
    assert_true(plan_forward(first, (struct layout){1, 1, 1}));
    plan_apply(&b->p);
    world_commit(&b->w, b->r, 4);
    request_append(b->r, 9);
    plan_begin(&b->p, 2);
    b->b = plan_batch(&b->p, b->w.partition.groups[0].id);
    assert_int_equal(plan_decodes(b->b), 1);
}

static void tear_down(struct bench *b)
{
    world_end(&b->w, b->r, END_ABORT);
    plan_free(&b->p);
    world_free(&b->w);
}

static void a_plan_takes_a_tree_and_cuts_it(void **state)
{
    static struct bench b;
    struct draft_guess g;
    (void)state;
    set_up(&b, forked);
    const struct drafts *d = &b.b->items[0].drafts;
    assert_true(plan_draft(&b.p, b.r->id, &(struct draft_wish){8, -1, true, 0}, &g));
    assert_int_equal(g.n, SHOWN);
    assert_true(d->n == SHOWN && d->parents && b.b->n_tokens == 1 + SHOWN);
    assert_memory_equal(d->parents, forked, SHOWN);
    assert_true(plan_draft(&b.p, b.r->id, &(struct draft_wish){2, -1, true, 0}, &g));
    assert_true(g.n == 2 && d->n == 2 && b.b->n_tokens == 3);
    assert_false(plan_draft(&b.p, b.r->id, &(struct draft_wish){3, -1, true, 0}, &g));
    tear_down(&b);
}

static void a_tree_of_one_branch_is_a_chain(void **state)
{
    static const int8_t line[SHOWN] = {-1, 0, 1, 2};
    static struct bench b;
    struct draft_guess g;
    (void)state;
    for (int i = 0; i < 2; i++) { /* and who asks for a chain gets none */
        set_up(&b, i ? forked : line);
        assert_true(plan_draft(&b.p, b.r->id, &(struct draft_wish){8, -1, !i, 0}, &g));
        assert_int_equal(b.b->items[0].drafts.n, SHOWN);
        assert_null(b.b->items[0].drafts.parents);
        tear_down(&b);
    }
}

static void trees_are_refused_where_devices_have_chains(void **state)
{
    static struct bench b;
    struct draft_guess g;
    (void)state;
    set_up(&b, forked);
    b.w.draft_trees = false;
    assert_false(plan_draft(&b.p, b.r->id, &(struct draft_wish){8, -1, true, 0}, &g));
    assert_non_null(strstr(b.p.reason, "chains"));
    assert_true(b.b->n_tokens == 1 && g.n == 0);
    assert_true(plan_draft(&b.p, b.r->id, &(struct draft_wish){8, -1, false, 0}, &g));
    assert_int_equal(g.n, SHOWN);
    tear_down(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_right_is_one_branch),
        cmocka_unit_test(a_plan_takes_a_tree_and_cuts_it),
        cmocka_unit_test(a_tree_of_one_branch_is_a_chain),
        cmocka_unit_test(trees_are_refused_where_devices_have_chains),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
