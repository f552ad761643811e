/* A draft model in groups of any layout: texts are those of a single rank without drafts, bit for bit, while partitions
 * change, requests wait in host memory, groups are pipelined, ranks fail and the draft model's cache is too small; the
 * guesses are what the draft model says by itself, in every layout; one that is right saves steps; and no block of its
 * cache is left behind. */
#include "engine/draft/model.h"
#include "tests/rig/drafting.h"
#include "tests/rig/switch_rig.h"

/* A draft model beside the engine. */
struct small {
    struct model *model;
    struct drafter_plan plan;
    struct model_drafts *books;
    struct draft_source source;
};

static void small_open(struct small *s, struct model *m, int n_blocks, int most)
{
    s->model = m;
    s->plan = (struct drafter_plan){m, DT_F16, n_blocks};
    s->books = model_drafts_new(&(struct model_drafts_setup){n_blocks, DRAFTER_BLOCK, model_config(m)->context, most});
    model_drafts_source(s->books, &s->source);
}

/* Returns how often a request has lost its blocks to another. */
static uint64_t small_close(struct small *s)
{
    uint64_t n_lost;
    assert_int_equal(model_drafts_n_free(s->books, &n_lost), s->plan.n_blocks);
    model_drafts_free(s->books);
    model_close(s->model);
    return n_lost;
}

static struct model *dummy(const char *config, enum dtype type, uint64_t seed)
{
    struct model *m;
    struct err e = {0};
    if (model_open_dummy(&m, config, type, seed, &e))
        fail_msg("%s", e.text);
    return m;
}

/* ---- texts */

struct trial {
    const char *config, *small;
    enum dtype type, small_type;
    uint64_t seed; /* of the draft model: 3 has the weights of the model, in another type */
    int n_blocks;
    struct chaos chaos;
    struct run_opts opts;
};

static void churn(struct trial *x)
{
    static struct run quiet, t;
    static bool cancelled[N + 1];
    struct small s;
    struct model *m = open_model(x->config, x->type);
    small_open(&s, dummy(x->small, x->small_type, x->seed), x->n_blocks, 0);
    struct draft_sources sources = {{s.source}, 1};
    memset(cancelled, 0, sizeof cancelled);
    x->opts.varied = true;
    one_rank(&quiet, m, &x->opts);
    rng_init(&x->chaos.rng, (uint64_t)x->opts.ranks);
    x->chaos.drafts = true;
    x->chaos.budget = 48;
    x->chaos.every = 8;
    chaos_partitions(&x->chaos, x->opts.ranks);
    x->opts.policy = chaos_policy(&x->chaos);
    x->opts.drafts = &sources;
    x->opts.drafter = &s.plan;
    start_run(&t, m, &x->opts);
    serve_all(&t, model_config(m)->vocab, cancelled);
    stop_run(&t);
    compare(&t, &quiet, cancelled);
    const uint64_t *n = engine_world(t.engine)->metrics->counters;
    uint64_t made = n[C_DRAFT_TOKENS], right = n[C_DRAFT_ACCEPTED], steps = n[C_STEPS], switches = n[C_SWITCHES],
             preempted = n[C_PREEMPTIONS];
    engine_destroy(t.engine);
    uint64_t lost = small_close(&s);
    print_message("%s, %d ranks: %llu steps, %llu draft tokens, %llu right; %llu switches, %llu preemptions, "
                  "%llu evictions\n",
                  x->config, x->opts.ranks, (unsigned long long)steps, (unsigned long long)made,
                  (unsigned long long)right, (unsigned long long)switches, (unsigned long long)preempted,
                  (unsigned long long)lost);
    assert_true(made > 0 && right < made && (x->seed != 3 || right > 0));
    model_close(m);
}

static void drafts_never_show_on_one_rank(void **state)
{
    (void)state;
    churn(&(struct trial){.config = "tests/data/layout_gqa.json",
                          .small = "tests/data/layout_gqa.json",
                          .type = DT_F16,
                          .small_type = DT_Q8_0,
                          .seed = 3,
                          .n_blocks = 200,
                          .opts = {.ranks = 1, .kv_blocks = 24}});
}

static void drafts_never_show_on_two_ranks(void **state)
{
    (void)state;
    churn(&(struct trial){.config = "tests/data/layout_gqa.json",
                          .small = "tests/data/layout_swiftkv.json",
                          .type = DT_Q8_0,
                          .small_type = DT_F16,
                          .seed = 8,
                          .n_blocks = 40,
                          .chaos = {.base_orders = true, .trees = true},
                          .opts = {.ranks = 2, .kv_blocks = 48}});
}

static void drafts_never_show_in_stages_and_host_memory(void **state)
{
    (void)state;
    churn(&(struct trial){.config = "tests/data/layout_9_3.json",
                          .small = "tests/data/layout_9_3.json",
                          .type = DT_Q4_1,
                          .small_type = DT_F16,
                          .seed = 3,
                          .n_blocks = 24,
                          .chaos = {.base_orders = true, .stages = true, .host = true},
                          .opts = {.ranks = 4, .kv_blocks = 96, .host_blocks = 96}});
}

static void a_rank_fails_among_them(void **state)
{
    (void)state;
    churn(&(struct trial){
        .config = "tests/data/layout_9_3.json",
        .small = "tests/data/layout_9_3.json",
        .type = DT_F32,
        .small_type = DT_Q8_0,
        .seed = 3,
        .n_blocks = 60,
        .opts = {
            .n_requests = N < 60 ? N / 2 : 120, .ranks = 4, .kv_blocks = 128, .fail_rank = 2, .fail_at_step = 20}});
}

/* Now and then the draft model's forward fails; the model's own never does. */
static int fail_some(struct device *d, const struct batch *b, const struct rope *rope, struct err *e)
{
    static atomic_uint n;
    const struct sampling *how = b->n_logits ? b->samples[0].how : NULL;
    bool ours = how && how->temperature == 0 && how->n_prompt_logprobs == 0; /* that of requests is -1 */
    if (ours && atomic_fetch_add(&n, 1) % 3 == 0)
        return err_set(e, E_FULL, "injected");
    return backend_cpu()->begin(d, b, rope, e);
}

static void a_draft_model_that_fails_loses_nothing(void **state)
{
    (void)state;
    static struct backend_ops ops;
    ops = *backend_cpu();
    ops.begin = fail_some;
    churn(&(struct trial){.config = "tests/data/layout_gqa.json",
                          .small = "tests/data/layout_gqa.json",
                          .type = DT_F16,
                          .small_type = DT_Q8_0,
                          .seed = 3,
                          .n_blocks = 100,
                          .opts = {.n_requests = N < 60 ? N / 2 : 200, .ranks = 2, .kv_blocks = 48, .ops = &ops}});
}

/* ---- guesses */

enum { REQUESTS = N < 60 ? 10 : 20, GUESSED = 4, LENGTH = LONG + 1 + MAX_OUT };

/* The source, which notes what steps have guessed, and of what. */
struct notes {
    struct draft_source real;
    bool has[REQUESTS + 1][MAX_OUT + 1];
    struct draft_made made[REQUESTS + 1][MAX_OUT + 1];
    int n_prompt[REQUESTS + 1];
    int32_t tokens[REQUESTS + 1][LENGTH];
};

static void note_made(void *ctx, const struct request *r, void **note, const struct draft_made *m)
{
    struct notes *n = ctx;
    uint64_t tag = r->spec->tag;
    int at = request_output(r);
    if (m->n) { /* else it is not there yet */
        n->has[tag][at] = true;
        n->made[tag][at] = *m;
    }
    assert_true(r->n_tokens <= LENGTH);
    n->n_prompt[tag] = r->spec->n_prompt;
    memcpy(n->tokens[tag], r->tokens, (size_t)r->n_tokens * sizeof *r->tokens);
    n->real.made(n->real.ctx, r, note, m);
}

static void note_guess(void *ctx, const struct request *r, void **note, int most, struct draft_guess *g)
{
    struct notes *n = ctx;
    n->real.guess(n->real.ctx, r, note, most, g);
}

static bool note_lend(void *ctx, const struct request *r, void **note, int n_new, struct draft_cache *c)
{
    struct notes *n = ctx;
    return n->real.lend(n->real.ctx, r, note, n_new, c);
}

static void note_end(void *ctx, const struct request *r, void *note)
{
    struct notes *n = ctx;
    n->real.end(n->real.ctx, r, note);
}

static struct draft_sources noting(struct notes *n, const struct small *s)
{
    memset(n, 0, sizeof *n);
    n->real = s->source;
    struct draft_source x = s->source;
    x.guess = note_guess;
    x.lend = note_lend;
    x.made = note_made;
    x.end = note_end;
    x.ctx = n;
    return (struct draft_sources){{x}, 1};
}

static void serve_in(struct layout l, struct model *m, const struct small *s, struct notes *notes,
                     const struct run *quiet)
{
    static struct run t;
    struct draft_sources source = noting(notes, s);
    start_run(&t, m,
              &(struct run_opts){.n_requests = REQUESTS,
                                 .ranks = layout_size(l),
                                 .start = l,
                                 .kv_blocks = 512,
                                 .drafts = &source,
                                 .drafter = &s->plan,
                                 .policy = drafting_policy(&l)});
    serve_all(&t, model_config(m)->vocab, NULL);
    stop_run(&t);
    compare(&t, quiet, NULL);
    engine_destroy(t.engine);
}

/* When a prompt has been caught up with depends on how many ranks share the work; what is guessed does not. */
static int same(const struct notes *a, const struct notes *b, struct layout l)
{
    int n = 0;
    for (int tag = 1; tag <= REQUESTS; tag++)
        for (int at = 0; at <= MAX_OUT; at++) {
            const struct draft_made *x = &a->made[tag][at], *y = &b->made[tag][at];
            if (!a->has[tag][at] || !b->has[tag][at])
                continue;
            n += x->n;
            if (x->n != y->n || memcmp(x->tokens, y->tokens, (size_t)x->n * sizeof *x->tokens) != 0 ||
                memcmp(x->shares, y->shares, (size_t)x->n * sizeof *x->shares) != 0)
                fail_msg("{%d,%d,%d}: request %d guesses differently after %d tokens", l.sp, l.tp, l.pp, tag, at);
        }
    return n;
}

static void in_all_layouts(const char *config, const char *small, uint64_t seed)
{
    static const struct layout layouts[] = {{2, 1, 1}, {1, 2, 1}, {1, 1, 2}, {4, 1, 1}, {2, 2, 1},
                                            {1, 4, 1}, {2, 1, 2}, {1, 2, 2}, {3, 1, 1}};
    static struct notes alone, others;
    static struct run quiet;
    struct small s;
    struct model *m = open_model(config, DT_F16);
    struct heads h = {model_config(m)->n_heads, model_config(m)->n_kv_heads, model_config(m)->head_dim};
    small_open(&s, dummy(small, DT_F16, seed), 512, GUESSED);
    one_rank(&quiet, m, &(struct run_opts){.n_requests = REQUESTS});
    serve_in((struct layout){1, 1, 1}, m, &s, &alone, &quiet);
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++)
        if (!layout_refusal(&h, layout_of_stage(layouts[i]))) {
            serve_in(layouts[i], m, &s, &others, &quiet);
            assert_true(same(&alone, &others, layouts[i]) > 100);
        }
    small_close(&s);
    model_close(m);
}

static void guesses_in_every_layout(void **state)
{
    (void)state;
    in_all_layouts("tests/data/layout_gqa.json", "tests/data/layout_gqa.json", 5);
}

static void guesses_of_and_for_swiftkv_in_every_layout(void **state)
{
    (void)state;
    in_all_layouts("tests/data/layout_swiftkv.json", "tests/data/layout_swiftkv.json", 3);
}

/* What the small model says behind the first n tokens of the timeline, served alone. */
static void ask_alone(struct run *t, uint64_t tag, const int32_t *timeline, int n, int most)
{
    struct request_spec *spec = mem_new(sizeof *spec);
    spec->tag = tag;
    spec->arrival_ns = clock_now(&t->clock);
    spec->n_prompt = n;
    spec->max_tokens = most;
    spec->prompt = mem_new_array((size_t)n, sizeof *spec->prompt);
    memcpy(spec->prompt, timeline, (size_t)n * sizeof *timeline);
    spec->sampling = (struct sampling){.top_p = 1, .repetition_penalty = 1, .n_prompt_logprobs = -1};
    send(t, IN_SUBMIT, tag, spec);
    while (!t->heard[tag].n_ends)
        listen_to(t, 100000000);
}

static void a_guess_is_what_the_small_model_says(void **state)
{
    (void)state;
    static struct notes notes;
    static struct run quiet, small;
    struct small s;
    struct model *m = open_model("tests/data/layout_gqa.json", DT_F16);
    uint64_t tag = 0;
    small_open(&s, dummy("tests/data/layout_swiftkv.json", DT_Q8_0, 9), 100, GUESSED);
    one_rank(&quiet, m, &(struct run_opts){.n_requests = REQUESTS});
    serve_in((struct layout){2, 1, 1}, m, &s, &notes, &quiet);
    start_run(&small, s.model, &(struct run_opts){.n_requests = 1, .ranks = 1, .kv_blocks = 64, .waits = true});
    for (int q = 1; q <= REQUESTS; q++)
        for (int at = 0; at <= MAX_OUT && tag < N; at++) {
            const struct draft_made *made = &notes.made[q][at];
            if (!notes.has[q][at])
                continue;
            ask_alone(&small, ++tag, notes.tokens[q], notes.n_prompt[q] + at, made->n);
            const struct heard *h = &small.heard[tag];
            assert_true(made->n <= GUESSED && h->n_tokens == made->n);
            assert_memory_equal(h->tokens, made->tokens, (size_t)made->n * sizeof *made->tokens);
        }
    stop_run(&small);
    engine_destroy(small.engine);
    assert_true(tag > 15);
    small_close(&s);
    model_close(m);
}

/* ---- what they are for */

/* The model's own weights guess all of it: after the prompt's step and the first to ask, steps of four tokens, and one
 * of the two that are left. */
static void a_right_model_saves_steps(void **state)
{
    (void)state;
    static struct run quiet, t;
    struct layout l = {1, 1, 1};
    struct small s;
    struct run_opts opts = {.n_requests = 1, .ranks = 1, .kv_blocks = 64, .alike = true};
    struct model *m = open_model("tests/data/layout_gqa.json", DT_F16);
    small_open(&s, open_model("tests/data/layout_gqa.json", DT_F16), 64, 3);
    struct draft_sources sources = {{s.source}, 1};
    one_rank(&quiet, m, &opts);
    opts.drafts = &sources;
    opts.drafter = &s.plan;
    opts.policy = drafting_policy(&l);
    start_run(&t, m, &opts);
    serve_all(&t, model_config(m)->vocab, NULL);
    stop_run(&t);
    compare(&t, &quiet, NULL);
    const struct world *w = engine_world(t.engine);
    const struct metrics *x = w->metrics;
    assert_int_equal(t.heard[1].n_tokens, MAX_OUT);
    assert_int_equal(x->counters[C_STEPS], 2 + (MAX_OUT - 4) / 4 + 1);
    assert_int_equal(x->counters[C_DRAFT_TOKENS], (MAX_OUT - 4) / 4 * 3 + 1);
    assert_int_equal(x->counters[C_DRAFT_ACCEPTED], x->counters[C_DRAFT_TOKENS]);
    assert_true(x->counters[C_DRAFT_MODEL_NS] > 0);
    assert_true(w->draft_estimate.n_cells == 1 && w->draft_estimate.cells[0].n_seen >= 2);
    engine_destroy(t.engine);
    small_close(&s);
    model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_right_model_saves_steps),
        cmocka_unit_test(a_guess_is_what_the_small_model_says),
        cmocka_unit_test(guesses_in_every_layout),
        cmocka_unit_test(guesses_of_and_for_swiftkv_in_every_layout),
        cmocka_unit_test(drafts_never_show_on_one_rank),
        cmocka_unit_test(drafts_never_show_on_two_ranks),
        cmocka_unit_test(drafts_never_show_in_stages_and_host_memory),
        cmocka_unit_test(a_rank_fails_among_them),
        cmocka_unit_test(a_draft_model_that_fails_loses_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
