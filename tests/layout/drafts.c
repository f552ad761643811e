/* Drafts never show: while a policy has draft tokens verified at random, right ones and wrong ones, among changes of
 * the partition, stages, host memory, preemptions and cancels, each text is the one that the request has on a single
 * rank without drafts, greedy or sampled, with penalties, stop ids and least lengths, and its logprobs are the same
 * bits. */
#include "engine/draft/suffix.h"
#include "tests/rig/switch_rig.h"

/* Knows the texts, and errs now and then. */
struct oracle {
    const struct run *quiet;
    struct rng rng;
    int vocab, wrong; /* one in so many */
};

static void guess(void *ctx, const struct request *r, void **note, int most, struct draft_guess *g)
{
    struct oracle *o = ctx;
    const struct heard *h = &o->quiet->heard[r->spec->tag];
    int at = request_output(r);
    (void)note;
    for (g->n = 0; g->n < most; g->n++) {
        bool known = at + g->n < h->n_tokens && rng_below(&o->rng, (uint64_t)o->wrong);
        g->tokens[g->n] = known ? h->tokens[at + g->n] : (int32_t)rng_below(&o->rng, (uint64_t)o->vocab);
    }
    g->match = g->n;
    g->score = (float)g->n;
}

static bool is_behind(const struct draft_guess *g, int parent, int32_t token)
{
    for (int i = 0; i < g->n; i++)
        if (g->parents[i] == parent && g->tokens[i] == token)
            return true;
    return false;
}

/* Branches anywhere, of which each goes on with what the text says at its depth, and errs now and then: so the right
 * tokens are right behind the right ones only. */
static void guess_tree(void *ctx, const struct request *r, void **note, int most, struct draft_guess *g)
{
    struct oracle *o = ctx;
    const struct heard *h = &o->quiet->heard[r->spec->tag];
    int depth[MOST_DRAFTS];
    (void)note;
    for (g->n = 0; g->n < most; g->n++) {
        int i = g->n, parent = rng_below(&o->rng, 2) ? i - 1 : (int)rng_below(&o->rng, (uint64_t)i + 1) - 1;
        depth[i] = parent < 0 ? 0 : depth[parent] + 1;
        int at = request_output(r) + depth[i];
        bool known = at < h->n_tokens && rng_below(&o->rng, (uint64_t)o->wrong);
        int32_t token = known ? h->tokens[at] : (int32_t)rng_below(&o->rng, (uint64_t)o->vocab);
        while (is_behind(g, parent, token))
            token = (int32_t)rng_below(&o->rng, (uint64_t)o->vocab);
        g->tokens[i] = token;
        g->parents[i] = (int8_t)parent;
    }
    g->tree = true;
    g->match = g->n;
    g->score = (float)g->n;
}

struct trial {
    const char *config;
    enum dtype type;
    int wrong;   /* 0: by prompt lookup */
    bool suffix; /* by suffix decoding instead */
    bool trees;
    struct chaos chaos;
    struct run_opts opts;
};

/* Prompts, too: what these models say repeats little, and so do their prompts, but those of siblings are alike. */
static struct suffix *open_suffix(struct draft_sources *to)
{
    struct suffix *s = NULL;
    struct err e;
    assert_int_equal(suffix_open(&s, &(struct suffix_opts){.bytes = 1 << 20, .prompts = true}, &e), 0);
    suffix_source(s, &to->items[0]);
    draft_lookup_source(&to->items[1]);
    to->n = 2;
    return s;
}

static void churn(struct trial *x)
{
    static struct run quiet, t;
    static bool cancelled[N + 1];
    struct model *m = open_model(x->config, x->type);
    struct oracle o = {.quiet = &quiet, .vocab = model_config(m)->vocab, .wrong = x->wrong};
    struct draft_sources source = {{{.name = "oracle", .guess = guess, .guess_tree = guess_tree, .ctx = &o}}, 1};
    memset(cancelled, 0, sizeof cancelled);
    x->opts.varied = true;
    x->opts.n_requests = x->opts.n_requests ? x->opts.n_requests : SOME;
    one_rank(&quiet, m, &x->opts);
    rng_init(&o.rng, 5);
    rng_init(&x->chaos.rng, (uint64_t)x->opts.ranks);
    x->chaos.drafts = true;
    x->chaos.trees = x->trees;
    x->chaos.budget = 48;
    x->chaos.every = x->chaos.every ? x->chaos.every : N < 100 ? 8 : 20;
    chaos_partitions(&x->chaos, x->opts.ranks);
    x->opts.policy = chaos_policy(&x->chaos);
    struct suffix *suffix = x->suffix ? open_suffix(&source) : NULL;
    x->opts.drafts = x->wrong || suffix ? &source : NULL;
    start_run(&t, m, &x->opts);
    serve_all(&t, o.vocab, cancelled);
    stop_run(&t);
    compare(&t, &quiet, cancelled);
    const uint64_t *n = engine_world(t.engine)->metrics->counters;
    print_message(
        "%s, %s, %d ranks: %llu steps, %llu times %llu draft tokens, %llu right; %llu switches, %llu preemptions\n",
        x->config, x->trees ? "trees" : "chains", x->opts.ranks, (unsigned long long)n[C_STEPS],
        (unsigned long long)n[C_DRAFTS], (unsigned long long)n[C_DRAFT_TOKENS], (unsigned long long)n[C_DRAFT_ACCEPTED],
        (unsigned long long)n[C_SWITCHES], (unsigned long long)n[C_PREEMPTIONS]);
    if (N >= 10)
        assert_true(n[C_DRAFT_ACCEPTED] > 0 && n[C_DRAFT_ACCEPTED] < n[C_DRAFT_TOKENS]);
    engine_destroy(t.engine);
    suffix_close(suffix);
    model_close(m);
}

static void drafts_never_show_on_one_rank(void **state)
{
    (void)state;
    churn(&(struct trial){.config = "tests/data/layout_gqa.json",
                          .type = DT_F16,
                          .wrong = 6,
                          .opts = {.n_requests = N, .ranks = 1, .kv_blocks = 24}});
}

static void drafts_never_show_on_4_ranks(void **state)
{
    (void)state;
    churn(&(struct trial){.config = "tests/data/layout_9_3.json",
                          .type = DT_F32,
                          .wrong = 4,
                          .chaos = {.base_orders = true},
                          .opts = {.n_requests = N, .ranks = 4, .kv_blocks = 128}});
}

static void drafts_never_show_in_stages_and_host_memory(void **state)
{
    (void)state;
    churn(&(struct trial){.config = "tests/data/layout_9_3.json",
                          .type = DT_Q4_1,
                          .wrong = 4,
                          .chaos = {.base_orders = true, .stages = true, .host = true},
                          .opts = {.ranks = 4, .kv_blocks = 96, .host_blocks = 96}});
}

#if !defined(ON_GPU) && !defined(EMULATED) /* chains only there */
static void trees_never_show_on_one_rank(void **state)
{
    (void)state;
    churn(&(struct trial){.config = "tests/data/layout_gqa.json",
                          .type = DT_F16,
                          .wrong = 4,
                          .trees = true,
                          .opts = {.ranks = 1, .kv_blocks = 24}});
}

static void trees_never_show_on_4_ranks(void **state)
{
    (void)state;
    churn(&(struct trial){.config = "tests/data/layout_9_3.json",
                          .type = DT_Q8_0,
                          .wrong = 4,
                          .trees = true,
                          .chaos = {.base_orders = true},
                          .opts = {.ranks = 4, .kv_blocks = 128, .fail_rank = 1, .fail_at_step = N < 100 ? 10 : 60}});
}

static void trees_never_show_in_stages_and_host_memory(void **state)
{
    (void)state;
    churn(&(struct trial){.config = "tests/data/layout_9_3.json",
                          .type = DT_F32,
                          .wrong = 4,
                          .trees = true,
                          .chaos = {.base_orders = true, .stages = true, .host = true},
                          .opts = {.ranks = 4, .kv_blocks = 96, .host_blocks = 96}});
}

/* Two stages all the time: the first does not hear what is sampled until the step ends. */
static void trees_never_show_with_swiftkv(void **state)
{
    (void)state;
    churn(&(struct trial){.config = "tests/data/layout_swiftkv.json",
                          .type = DT_F16,
                          .wrong = 4,
                          .trees = true,
                          .chaos = {.stages = true, .points = 1, .every = 1 << 30},
                          .opts = {.ranks = 2, .start = {1, 1, 2}, .kv_blocks = 64}});
}

static void by_suffix_decoding_in_trees(void **state)
{
    (void)state;
    churn(&(struct trial){.config = "tests/data/layout_gqa.json",
                          .type = DT_F16,
                          .suffix = true,
                          .trees = true,
                          .opts = {.ranks = 2, .kv_blocks = 64}});
}
#endif

#ifdef ON_8_RANKS
static void drafts_never_show_on_8_ranks(void **state)
{
    (void)state;
    churn(&(struct trial){
        .config = "tests/data/layout_40_8.json", .type = DT_Q8_0, .wrong = 3, .opts = {.ranks = 8, .kv_blocks = 64}});
}
#endif

#ifndef EMULATED /* a minute each there */
/* Rows of drafts give logits, so they go through all layers; wrong ones leave nothing behind. */
static void drafts_never_show_with_swiftkv(void **state)
{
    (void)state;
    churn(&(struct trial){
        .config = "tests/data/layout_swiftkv.json", .type = DT_F16, .wrong = 3, .opts = {.ranks = 2, .kv_blocks = 64}});
}

static void by_prompt_lookup(void **state)
{
    (void)state;
    churn(&(struct trial){.config = "tests/data/layout_gqa.json",
                          .type = DT_F16,
                          .opts = {.n_requests = N, .ranks = 2, .kv_blocks = 64}});
}

static void by_suffix_decoding(void **state)
{
    (void)state;
    churn(&(struct trial){.config = "tests/data/layout_gqa.json",
                          .type = DT_F16,
                          .suffix = true,
                          .opts = {.n_requests = N, .ranks = 2, .kv_blocks = 64}});
}

/* What a failed step has verified does not count. */
static void a_rank_fails_among_drafts(void **state)
{
    (void)state;
    churn(&(struct trial){.config = "tests/data/layout_9_3.json",
                          .type = DT_F32,
                          .wrong = 4,
                          .opts = {.ranks = 4, .kv_blocks = 128, .fail_rank = 2, .fail_at_step = N < 100 ? 10 : 60}});
}
#endif

/* seen: what a request's books said when it was seen last. */
static enum verdict draft_step(void *ctx, const struct view *v, struct plan *p, struct err *e)
{
    struct plan_batch *b = v->n_idle ? plan_batch(p, v->idle[0]) : NULL;
    struct draft_counts *seen = ctx;
    struct draft_guess g;
    (void)e;
    if (!b)
        return VERDICT_OK;
    plan_decodes(b);
    for (int i = 0; i < b->n_items; i++) {
        const struct request *r = b->items[i].request;
        *seen = draft_total(r);
        plan_draft(p, r->id, &(struct draft_wish){.most = 8, .source = -1}, &g);
    }
    plan_prefill(b, NULL, 0, 64);
    if (b->n_tokens)
        plan_forward(b, (struct layout){1, 1, 1});
    return VERDICT_OK;
}

/* One request of 24 tokens that is drafted for all the time. Returns its metrics, which live until the next call. */
static const struct metrics *serve_one(struct model *m, int wrong, int n_tokens, struct draft_counts *seen)
{
    static struct run quiet, t;
    static struct metrics metrics;
    static const struct policy_ops ops = {.step = draft_step};
    struct oracle o = {.quiet = &quiet, .vocab = model_config(m)->vocab, .wrong = wrong};
    struct draft_sources source = {{{.name = "oracle", .guess = guess, .ctx = &o}}, 1};
    struct run_opts opts = {.n_requests = 1, .ranks = 1, .kv_blocks = 64, .alike = true, .drafts = &source};
    one_rank(&quiet, m, &opts);
    opts.policy = (struct policy){.ops = &ops, .ctx = seen, .name = "drafts", .sha256 = "drafts"};
    start_run(&t, m, &opts);
    serve_all(&t, o.vocab, NULL);
    stop_run(&t);
    compare(&t, &quiet, NULL);
    assert_int_equal(t.heard[1].n_tokens, n_tokens);
    metrics = *engine_world(t.engine)->metrics;
    engine_destroy(t.engine);
    return &metrics;
}

/* One token with the prompt, then nine, nine and, since no more are wanted, five. */
static void right_guesses_cost_no_steps(void **state)
{
    (void)state;
    struct draft_counts seen = {0};
    struct model *m = open_model("tests/data/layout_gqa.json", DT_F16);
    const struct metrics *x = serve_one(m, 1 << 30, MAX_OUT, &seen);
    assert_int_equal(x->counters[C_STEPS], 1 + (MAX_OUT - 1 + 8) / 9);
    assert_int_equal(x->counters[C_DRAFT_ACCEPTED], x->counters[C_DRAFT_TOKENS]);
    assert_true(x->histograms[H_ITERATION_TOKENS].sum == MAX_OUT - 1 + 2); /* and the prompt */
    assert_true(seen.drafted == seen.accepted && seen.rejected == 0);
    assert_true(N < 10 || seen.accepted == 16);
    for (int i = 0; i < 8 && N >= 10; i++) /* three times, of which the last one has five, of which four are verified */
        assert_int_equal(x->draft_accepted_at[i], i < 4 ? 3 : 2);
    model_close(m);
}

/* Each of its steps gives at least the token that it would have given anyway. */
static void wrong_guesses_cost_no_tokens(void **state)
{
    (void)state;
    struct draft_counts seen = {0};
    struct model *m = open_model("tests/data/layout_gqa.json", DT_F16);
    const struct metrics *x = serve_one(m, 1, MAX_OUT, &seen);
    assert_true(x->counters[C_STEPS] > MAX_OUT / 2 && x->counters[C_STEPS] <= MAX_OUT);
    assert_int_equal(x->counters[C_STEPS] + x->counters[C_DRAFT_ACCEPTED], MAX_OUT);
    assert_true(seen.rejected > MAX_OUT / 4 && seen.drafted > 4 * seen.accepted);
    model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(drafts_never_show_on_one_rank),
        cmocka_unit_test(drafts_never_show_on_4_ranks),
        cmocka_unit_test(drafts_never_show_in_stages_and_host_memory),
#if !defined(ON_GPU) && !defined(EMULATED)
        cmocka_unit_test(trees_never_show_on_one_rank),
        cmocka_unit_test(trees_never_show_on_4_ranks),
        cmocka_unit_test(trees_never_show_in_stages_and_host_memory),
        cmocka_unit_test(trees_never_show_with_swiftkv),
        cmocka_unit_test(by_suffix_decoding_in_trees),
#endif
#ifdef ON_8_RANKS
        cmocka_unit_test(drafts_never_show_on_8_ranks),
#endif
        cmocka_unit_test(right_guesses_cost_no_steps),
        cmocka_unit_test(wrong_guesses_cost_no_tokens),
#ifndef EMULATED
        cmocka_unit_test(by_prompt_lookup),
        cmocka_unit_test(by_suffix_decoding),
        cmocka_unit_test(drafts_never_show_with_swiftkv),
        cmocka_unit_test(a_rank_fails_among_drafts),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
