/* Draft heads in groups of any layout: texts are those of a single rank without drafts, bit for bit, while partitions
 * change, requests wait in host memory and groups are pipelined; the guesses, too, are the same in every layout; and
 * heads that are right save steps. */
#include "engine/draft/heads.h"
#include "tests/rig/speculator_build.h"
#include "tests/rig/drafting.h"
#include "tests/rig/switch_rig.h"

/* The source, which notes what steps have guessed. */
struct notes {
    struct draft_source real;
    bool has[N + 1][MAX_OUT + 1];
    struct draft_made made[N + 1][MAX_OUT + 1];
};

static void note_guess(void *ctx, const struct request *r, void **note, int most, struct draft_guess *g)
{
    struct notes *n = ctx;
    int at = request_output(r);
    n->real.guess(n->real.ctx, r, note, most, g);
    if (!g->n) /* of what was said since, nobody has guessed anything */
        return;
    assert_true(g->n <= most && n->has[r->spec->tag][at]);
    assert_memory_equal(g->tokens, n->made[r->spec->tag][at].tokens, (size_t)g->n * sizeof *g->tokens);
}

static void note_made(void *ctx, const struct request *r, void **note, const struct draft_made *m)
{
    struct notes *n = ctx;
    int at = request_output(r);
    n->has[r->spec->tag][at] = true;
    n->made[r->spec->tag][at] = *m;
    n->real.made(n->real.ctx, r, note, m);
}

static void note_end(void *ctx, const struct request *r, void *note)
{
    struct notes *n = ctx;
    n->real.end(n->real.ctx, r, note);
}

static struct draft_sources noting(struct notes *n)
{
    memset(n, 0, sizeof *n);
    heads_source(&n->real);
    return (struct draft_sources){
        {{.name = "heads", .guess = note_guess, .made = note_made, .end = note_end, .ctx = n}}, 1};
}

static void open_heads(struct built_speculator *s, struct spec_build b, const struct model *m)
{
    struct err e = {0};
    b.hidden = model_config(m)->hidden;
    b.vocab = model_config(m)->vocab;
    if (spec_open(s, &b, &e))
        fail_msg("%s", e.text);
}

static const struct spec_build echo = {
    .kind = SPEC_PLAIN, .tied = true, .echoes = true, .n_predict = 3, .inner = 48, .type = DT_F16};

/* ---- texts */

struct trial {
    const char *config;
    enum dtype type;
    struct chaos chaos;
    struct run_opts opts;
};

/* Some of the requests say the same again and again, which these heads guess; others do not. */
static void churn(struct trial *x)
{
    static struct run quiet, t;
    static bool cancelled[N + 1];
    struct built_speculator s;
    struct model *m = open_model(x->config, x->type);
    struct draft_sources source = {.n = 1};
    heads_source(&source.items[0]);
    open_heads(&s, echo, m);
    memset(cancelled, 0, sizeof cancelled);
    x->opts.varied = true;
    x->opts.n_requests = N < 60 ? N / 2 : 120;
    one_rank(&quiet, m, &x->opts);
    rng_init(&x->chaos.rng, (uint64_t)x->opts.ranks);
    x->chaos.drafts = true;
    x->chaos.budget = 48;
    x->chaos.every = 8;
    chaos_partitions(&x->chaos, x->opts.ranks);
    x->opts.policy = chaos_policy(&x->chaos);
    x->opts.drafts = &source;
    x->opts.speculator = s.s;
    start_run(&t, m, &x->opts);
    serve_all(&t, model_config(m)->vocab, cancelled);
    stop_run(&t);
    compare(&t, &quiet, cancelled);
    const uint64_t *n = engine_world(t.engine)->metrics->counters;
    print_message("%s, %d ranks: %llu steps, %llu draft tokens, %llu right; %llu switches, %llu preemptions\n",
                  x->config, x->opts.ranks, (unsigned long long)n[C_STEPS], (unsigned long long)n[C_DRAFT_TOKENS],
                  (unsigned long long)n[C_DRAFT_ACCEPTED], (unsigned long long)n[C_SWITCHES],
                  (unsigned long long)n[C_PREEMPTIONS]);
    assert_true(n[C_DRAFT_ACCEPTED] > 0 && n[C_DRAFT_ACCEPTED] < n[C_DRAFT_TOKENS]);
    engine_destroy(t.engine);
    spec_close(&s);
    model_close(m);
}

static void heads_never_show_on_one_rank(void **state)
{
    (void)state;
    churn(
        &(struct trial){.config = "tests/data/layout_gqa.json", .type = DT_F16, .opts = {.ranks = 1, .kv_blocks = 24}});
}

static void heads_never_show_in_stages_and_host_memory(void **state)
{
    (void)state;
    churn(&(struct trial){.config = "tests/data/layout_9_3.json",
                          .type = DT_Q4_1,
                          .chaos = {.base_orders = true, .stages = true, .host = true},
                          .opts = {.ranks = 4, .kv_blocks = 96, .host_blocks = 96}});
}

static void a_rank_fails_among_them(void **state)
{
    (void)state;
    churn(&(struct trial){.config = "tests/data/layout_9_3.json",
                          .type = DT_F32,
                          .opts = {.ranks = 4, .kv_blocks = 128, .fail_rank = 2, .fail_at_step = 20}});
}

/* ---- guesses */

static void serve_in(struct layout l, struct model *m, const struct speculator *s, struct notes *notes,
                     const struct run *quiet)
{
    static struct run t;
    struct draft_sources source = noting(notes);
    start_run(&t, m,
              &(struct run_opts){.n_requests = 20,
                                 .ranks = layout_size(l),
                                 .start = l,
                                 .kv_blocks = 512,
                                 .drafts = &source,
                                 .speculator = s,
                                 .policy = drafting_policy(&l)});
    serve_all(&t, model_config(m)->vocab, NULL);
    stop_run(&t);
    compare(&t, quiet, NULL);
    engine_destroy(t.engine);
}

static int same(const struct notes *a, const struct notes *b, struct layout l)
{
    int n = 0;
    for (int tag = 1; tag <= 20; tag++)
        for (int at = 0; at <= MAX_OUT; at++)
            if (a->has[tag][at] && b->has[tag][at]) {
                n += a->made[tag][at].n;
                if (memcmp(&a->made[tag][at], &b->made[tag][at], sizeof(struct draft_made)) != 0)
                    fail_msg("{%d,%d,%d}: request %d guesses differently after %d tokens", l.sp, l.tp, l.pp, tag, at);
            }
    return n;
}

static void in_all_layouts(const char *config, struct spec_build b)
{
    static const struct layout layouts[] = {{2, 1, 1}, {1, 2, 1}, {1, 1, 2}, {4, 1, 1}, {2, 2, 1},
                                            {1, 4, 1}, {2, 1, 2}, {1, 2, 2}, {3, 1, 1}};
    static struct notes alone, others;
    static struct run quiet;
    struct built_speculator s;
    struct model *m = open_model(config, DT_F16);
    struct heads h = {model_config(m)->n_heads, model_config(m)->n_kv_heads, model_config(m)->head_dim};
    open_heads(&s, b, m);
    one_rank(&quiet, m, &(struct run_opts){.n_requests = 20});
    serve_in((struct layout){1, 1, 1}, m, s.s, &alone, &quiet);
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++)
        if (!layout_refusal(&h, layout_of_stage(layouts[i]))) {
            serve_in(layouts[i], m, s.s, &others, &quiet);
            assert_true(same(&alone, &others, layouts[i]) > 100);
        }
    spec_close(&s);
    model_close(m);
}

static void mlp_guesses_in_every_layout(void **state)
{
    (void)state;
    in_all_layouts("tests/data/layout_gqa.json",
                   (struct spec_build){.kind = SPEC_PLAIN, .n_predict = 3, .inner = 40, .type = DT_BF16});
}

static void lstm_guesses_in_every_layout(void **state)
{
    (void)state;
    in_all_layouts(
        "tests/data/layout_swiftkv.json",
        (struct spec_build){
            .kind = SPEC_LSTM, .tied = true, .scale_input = true, .n_predict = 4, .inner = 32, .type = DT_F16});
}

/* ---- what they are for */

/* Who may say one token alone is guessed by an echo: after the prompt's step and the first to ask, steps of four
 * tokens, and one of the two that are left. */
static void right_heads_save_steps(void **state)
{
    (void)state;
    static struct run t;
    struct layout l = {1, 1, 1};
    struct built_speculator s;
    struct model *m = open_model("tests/data/layout_gqa.json", DT_F16);
    struct draft_sources source = {.n = 1};
    heads_source(&source.items[0]);
    open_heads(&s, echo, m);
    start_run(&t, m,
              &(struct run_opts){.n_requests = 1,
                                 .ranks = 1,
                                 .kv_blocks = 64,
                                 .alike = true,
                                 .drafts = &source,
                                 .speculator = s.s,
                                 .policy = drafting_policy(&l)});
    struct request_spec *spec = spec_new(&t, 1, model_config(m)->vocab);
    spec->sampling.n_allowed = 1;
    spec->sampling.allowed = shared_new(1, sizeof *spec->sampling.allowed);
    spec->sampling.allowed[0] = 77;
    send(&t, IN_SUBMIT, 1, spec);
    while (!t.n_ends)
        listen_to(&t, 100000000);
    stop_run(&t);
    const struct metrics *x = engine_world(t.engine)->metrics;
    assert_int_equal(t.heard[1].n_tokens, MAX_OUT);
    assert_int_equal(x->counters[C_STEPS], 2 + (MAX_OUT - 4) / 4 + 1);
    assert_int_equal(x->counters[C_DRAFT_TOKENS], (MAX_OUT - 4) / 4 * 3 + 1);
    assert_int_equal(x->counters[C_DRAFT_ACCEPTED], x->counters[C_DRAFT_TOKENS]);
    engine_destroy(t.engine);
    spec_close(&s);
    model_close(m);
}

/* A model of another size is refused before anything is loaded. */
static void heads_of_another_model(void **state)
{
    (void)state;
    struct model *m = open_model("tests/data/layout_gqa.json", DT_F16);
    struct built_speculator s;
    struct spec_build b = echo;
    struct engine *engine;
    struct clock clock;
    struct err e = {0};
    clock_init_real(&clock);
    b.hidden = 64;
    b.vocab = model_config(m)->vocab;
    assert_int_equal(spec_open(&s, &b, &e), 0);
    struct engine_setup setup = {.ops = backend_cpu(),
                                 .model = m,
                                 .limits = {.max_num_seqs = 4, .max_num_batched_tokens = 64},
                                 .block_size = 16,
                                 .memory_share = 0.1,
                                 .clock = &clock,
                                 .speculator = s.s};
    assert_int_equal(engine_create(&engine, &setup, &e), E_INPUT);
    assert_non_null(strstr(e.text, "hidden states of 64 elements, and those of the model have 128"));
    spec_close(&s);
    model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(heads_never_show_on_one_rank), cmocka_unit_test(heads_never_show_in_stages_and_host_memory),
        cmocka_unit_test(a_rank_fails_among_them),      cmocka_unit_test(mlp_guesses_in_every_layout),
        cmocka_unit_test(lstm_guesses_in_every_layout), cmocka_unit_test(right_heads_save_steps),
        cmocka_unit_test(heads_of_another_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
