/* Probes never show: while requests are asked at random what they would answer by now, among changes of the partition,
 * stages, host memory, preemptions, cancels and a rank that fails, each text is the one that the request has on a
 * single rank without probes, and its logprobs are the same bits. What a probe says is the same in every layout. A
 * request whose thinking is closed goes on as one whose prompt ended with all that it had said. */
#include "tests/rig/switch_rig.h"

/* Every token is a letter, seldom a brace, and never a part of the marker. */
static void piece(const void *ctx, int32_t token, struct buf *text)
{
    (void)ctx;
    buf_putc(text, token % 11 == 0 ? '}' : (char)('a' + token % 26));
}

static struct thinking make_thinking(void)
{
    struct thinking t = {.piece = piece};
    assert_true(thinking_set(&t, "</think>", "The answer is {", (const int32_t[]){5, 9, 2}, 3));
    return t;
}

struct trial {
    const char *config;
    enum dtype type;
    struct chaos chaos;
    struct run_opts opts;
};

static void churn(struct trial *x)
{
    static struct run quiet, t;
    static bool cancelled[N + 1];
    struct model *m = open_model(x->config, x->type);
    struct thinking thinking = make_thinking();
    memset(cancelled, 0, sizeof cancelled);
    x->opts.varied = true;
    x->opts.n_requests = SOME < 100 ? SOME : 100;
    one_rank(&quiet, m, &x->opts);
    rng_init(&x->chaos.rng, (uint64_t)x->opts.ranks);
    x->chaos.probes = true;
    x->chaos.budget = 48;
    x->chaos.every = N < 100 ? 8 : 40;
    chaos_partitions(&x->chaos, x->opts.ranks);
    x->opts.policy = chaos_policy(&x->chaos);
    x->opts.thinking = &thinking;
    start_run(&t, m, &x->opts);
    serve_all(&t, model_config(m)->vocab, cancelled);
    stop_run(&t);
    compare(&t, &quiet, cancelled);
    const uint64_t *n = engine_world(t.engine)->metrics->counters;
    print_message("%s, %d ranks: %llu steps, %llu probes with %llu tokens; %llu switches, %llu preemptions\n",
                  x->config, x->opts.ranks, (unsigned long long)n[C_STEPS], (unsigned long long)n[C_PROBES],
                  (unsigned long long)n[C_PROBE_TOKENS], (unsigned long long)n[C_SWITCHES],
                  (unsigned long long)n[C_PREEMPTIONS]);
    assert_true(world_check(engine_world(t.engine)) && x->chaos.n_over == 0);
    assert_true(n[C_PROBES] <= x->chaos.n_probes && n[C_EARLY_STOPS] == 0);
    if (N >= 100) /* elsewhere too few come for one to be sure of */
        assert_true(n[C_PROBES] > 0 && n[C_PROBE_TOKENS] > 0 && (x->opts.ranks > 1 || x->chaos.n_said > 0));
    engine_destroy(t.engine);
    model_close(m);
}

static void probes_never_show_on_one_rank(void **state)
{
    (void)state;
    churn(
        &(struct trial){.config = "tests/data/layout_gqa.json", .type = DT_F16, .opts = {.ranks = 1, .kv_blocks = 24}});
}

static void probes_never_show_in_stages_and_host_memory(void **state)
{
    (void)state;
    churn(&(struct trial){.config = "tests/data/layout_9_3.json",
                          .type = DT_Q4_1,
                          .chaos = {.base_orders = true, .stages = true, .host = true},
                          .opts = {.ranks = 4, .kv_blocks = 96, .host_blocks = 96}});
}

#ifndef EMULATED
static void a_rank_fails_among_probes(void **state)
{
    (void)state;
    churn(&(struct trial){.config = "tests/data/layout_9_3.json",
                          .type = DT_F32,
                          .opts = {.ranks = 4, .kv_blocks = 128, .fail_rank = 2, .fail_at_step = N < 100 ? 10 : 60}});
}
#endif

/* ---- asked at fixed places, and closed at one */

enum { ASK_AT = 1, FEW = N < 8 ? N : 8 };

struct asker {
    int close_at;                    /* 0: never */
    char said[FEW + 1][PROBE_BYTES]; /* by tag */
    int n_said[FEW + 1];
};

static void ask(struct asker *a, struct plan *p, struct request *r)
{
    const struct probe_said *s = probe_last(r, 1);
    if (r->parent || !r->probes)
        return;
    if (s) {
        memcpy(a->said[r->spec->tag], s->text, sizeof s->text);
        a->n_said[r->spec->tag] = s->n;
    }
    if (!a->close_at && !r->probes->asked_at && request_output(r) == ASK_AT)
        assert_true(plan_probe(p, r->id));
    if (a->close_at && !r->probes->closed && request_output(r) == a->close_at)
        assert_true(plan_conclude(p, r->id));
}

static enum verdict ask_step(void *ctx, const struct view *v, struct plan *p, struct err *e)
{
    struct plan_batch *b = v->n_idle ? plan_batch(p, v->idle[0]) : NULL;
    (void)e;
    if (!b)
        return VERDICT_OK;
    for (int i = 0; i < v->world->running.n; i++)
        ask(ctx, p, v->world->running.items[i]);
    plan_decodes(b);
    plan_prefill(b, NULL, 0, 64);
    b->ahead = 0;
    if (b->n_tokens)
        plan_forward(b, (struct layout){1, b->group->n_ranks, 1});
    return VERDICT_OK;
}

/* Requests whose answers end together. */
static void serve_asked(struct run *t, struct model *m, struct asker *a, int ranks)
{
    static const struct policy_ops ops = {.step = ask_step};
    struct thinking thinking = make_thinking();
    struct run_opts o = {.n_requests = FEW, .ranks = ranks, .kv_blocks = 128, .alike = true};
    o.thinking = &thinking;
    o.policy = (struct policy){.ops = &ops, .ctx = a, .name = "asker", .sha256 = "asker"};
    start_run(t, m, &o);
    serve_all(t, model_config(m)->vocab, NULL);
    stop_run(t);
    assert_int_equal(engine_world(t->engine)->metrics->counters[C_EARLY_STOPS], a->close_at ? t->n : 0);
    engine_destroy(t->engine);
}

/* Unless their parents, who have 24 tokens, end before them. */
static void a_probe_says_the_same_in_every_layout(void **state)
{
    (void)state;
    static struct run t;
    static struct asker one, two;
    int n_heard = 0;
    struct model *m = open_model("tests/data/layout_gqa.json", DT_F16);
    one = two = (struct asker){0};
    serve_asked(&t, m, &one, 1);
    serve_asked(&t, m, &two, 2);
    for (int i = 1; i <= t.n; i++)
        if (one.n_said[i] && two.n_said[i]) {
            assert_int_equal(one.n_said[i], two.n_said[i]);
            assert_memory_equal(one.said[i], two.said[i], (size_t)one.n_said[i]);
            n_heard++;
        }
    assert_true(N < 10 || n_heard == t.n);
    assert_true(N < 10 || memcmp(one.said[1], one.said[2], PROBE_BYTES) != 0);
    model_close(m);
}

/* The same request again, with what was said up to its new beginning as its prompt. */
static struct request_spec *continued(struct run *t, const struct heard *h, uint64_t tag, int n_said, int vocab)
{
    struct request_spec *s = spec_new(t, tag, vocab);
    s->prompt = mem_resize(s->prompt, (size_t)(s->n_prompt + n_said), sizeof *s->prompt);
    memcpy(s->prompt + s->n_prompt, h->tokens, (size_t)n_said * sizeof *s->prompt);
    s->n_prompt += n_said;
    s->max_tokens -= n_said;
    return s;
}

static void who_is_concluded_goes_on_as_if_it_had_said_so(void **state)
{
    (void)state;
    static struct run t, again;
    static struct asker a;
    struct thinking thinking = make_thinking();
    struct model *m = open_model("tests/data/layout_gqa.json", DT_F16);
    int vocab = model_config(m)->vocab, n_said = 5 + thinking.n_suffix;
    a = (struct asker){.close_at = 5};
    serve_asked(&t, m, &a, 2);
    start_run(&again, m, &(struct run_opts){.n_requests = t.n, .ranks = 1, .kv_blocks = 128, .alike = true});
    for (int i = 1; i <= t.n; i++) {
        const struct heard *h = &t.heard[i];
        assert_int_equal(h->n_tokens, MAX_OUT);
        assert_memory_equal(h->tokens + 5, thinking.suffix, (size_t)thinking.n_suffix * sizeof(int32_t));
        send(&again, IN_SUBMIT, (uint64_t)i, continued(&again, h, (uint64_t)i, n_said, vocab));
    }
    while (again.n_ends < again.n)
        listen_to(&again, 100000000);
    stop_run(&again);
    for (int i = 1; i <= t.n; i++)
        for (int k = 0; k < MAX_OUT - n_said && i % 3; k++) /* greedy: a draw depends on its place in the output */
            assert_int_equal(t.heard[i].tokens[n_said + k], again.heard[i].tokens[k]);
    engine_destroy(again.engine);
    model_close(m);
}

/* ---- another policy */

static bool has_probe(const struct req_queue *q)
{
    for (int i = 0; i < q->n; i++)
        if (q->items[i]->parent)
            return true;
    return false;
}

/* Knows nothing of probes, and never sees one. */
static enum verdict plain_step(void *ctx, const struct view *v, struct plan *p, struct err *e)
{
    struct plan_batch *b = v->n_idle ? plan_batch(p, v->idle[0]) : NULL;
    int *n_seen = ctx;
    (void)e;
    *n_seen += has_probe(&v->world->waiting) || has_probe(&v->world->running);
    if (!b)
        return VERDICT_OK;
    plan_decodes(b);
    plan_prefill(b, NULL, 0, 64);
    if (b->n_tokens)
        plan_forward(b, (struct layout){1, b->group->n_ranks, 1});
    return VERDICT_OK;
}

static void another_policy_sees_no_probe(void **state)
{
    (void)state;
    static struct run quiet, t;
    static struct asker a;
    static const struct policy_ops asks = {.step = ask_step}, plain = {.step = plain_step};
    int n_seen = 0;
    struct thinking thinking = make_thinking();
    struct model *m = open_model("tests/data/layout_gqa.json", DT_F16);
    struct run_opts o = {.n_requests = FEW, .ranks = 2, .kv_blocks = 128, .alike = true};
    one_rank(&quiet, m, &o);
    a = (struct asker){0};
    o.thinking = &thinking;
    o.policy = (struct policy){.ops = &asks, .ctx = &a, .name = "asker", .sha256 = "asker"};
    start_run(&t, m, &o);
    for (uint64_t tag = 1; tag <= FEW; tag++)
        send(&t, IN_SUBMIT, tag, spec_new(&t, tag, model_config(m)->vocab));
    while (t.heard[1].n_tokens < 3)
        listen_to(&t, 100000000);
    struct policy *p = mem_new(sizeof *p);
    *p = (struct policy){.ops = &plain, .ctx = &n_seen, .name = "plain", .sha256 = "plain"};
    send(&t, IN_POLICY, 0, p);
    while (t.n_ends < t.n || !t.n_replies)
        listen_to(&t, 100000000);
    t.n_replies = 0;
    stop_run(&t);
    compare(&t, &quiet, NULL);
    assert_int_equal(n_seen, 0);
    assert_true(engine_world(t.engine)->metrics->counters[C_PROBES] > 0);
    engine_destroy(t.engine);
    model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(probes_never_show_on_one_rank),
        cmocka_unit_test(probes_never_show_in_stages_and_host_memory),
#ifndef EMULATED
        cmocka_unit_test(a_rank_fails_among_probes),
#endif
        cmocka_unit_test(a_probe_says_the_same_in_every_layout),
        cmocka_unit_test(another_policy_sees_no_probe),
        cmocka_unit_test(who_is_concluded_goes_on_as_if_it_had_said_so),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
