/* Properties of replays on random traffic, with lawful policies, policies that change the partition all the time, and
 * policies that break their contract in every way: every request ends once, KV is conserved, no rank is in two steps at
 * once, time never goes back, and work that waits beside idle ranks goes on. Also what a tally makes of a replay whose
 * numbers are known. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "engine/base/mem.h"
#include "engine/base/rng.h"
#include "engine/lab/tally.h"
#include "tests/rig/chaos.h"

struct bench {
    struct model *model;
    struct engine_setup setup;
    struct replay replay;
};

struct shape {
    int ranks, seqs, batched, blocks, queued, fail_rank;
    uint64_t fail_at_step;
    struct layout start;
    struct policy policy;
    const char *trace;
    uint64_t seed;
};

static void replay_shape(struct bench *b, const struct shape *s)
{
    struct err e = {0};
    struct arrivals *arrivals = NULL;
    memset(b, 0, sizeof *b);
    if (model_open_dummy(&b->model, s->ranks > 1 ? "tests/data/sim_ranks.json" : "tests/data/sim_model.json", DT_BF16,
                         1, &e))
        fail_msg("%s", e.text);
    const struct model_config *c = model_config(b->model);
    b->setup = (struct engine_setup){.ops = backend_sim(),
                                     .device = {.sim_step_ns = 1000000, .sim_row_ns = 10000},
                                     .model = b->model,
                                     .limits = {.max_num_seqs = s->seqs,
                                                .max_num_batched_tokens = s->batched,
                                                .max_model_len = s->blocks * 16,
                                                .max_num_queued_reqs = s->queued,
                                                .prefix_caching = true,
                                                .starvation_ns = INT64_C(30000000000),
                                                .park_ns = 500000000},
                                     .n_ranks = s->ranks,
                                     .start = s->start,
                                     .fail_rank = s->fail_rank,
                                     .fail_at_step = s->fail_at_step,
                                     .kv_dtype = DT_F16,
                                     .block_size = 16,
                                     .policy = s->policy,
                                     .quiet = true};
    b->setup.kv_bytes =
        (size_t)s->blocks * (size_t)c->n_layers * backend_sim()->kv_block_bytes(DT_F16, 16, c->n_kv_heads, c->head_dim);
    if (arrivals_open(&arrivals, &(struct arrivals_setup){.spec = s->trace, .seed = s->seed}, &e))
        fail_msg("%s", e.text);
    struct replay_setup r = {.engine = &b->setup, .arrivals = arrivals, .seed = s->seed, .vocab = c->vocab};
    if (replay_run(&b->replay, &r, &e))
        fail_msg("%s", e.text);
    arrivals_close(arrivals);
}

static void drop(struct bench *b)
{
    replay_free(&b->replay);
    model_close(b->model);
}

/* ---- what must always hold */

static void check_request(const struct replay_request *x)
{
    assert_int_not_equal(x->ending, END_NONE);
    assert_true(x->end_ns >= x->arrival_ns);
    if (x->ending == END_REFUSED)
        return;
    assert_int_equal(x->ending, END_LENGTH);
    assert_int_equal(x->n_output, x->n_asked);
    assert_true(x->arrival_ns <= x->start_ns && x->start_ns < x->first_ns && x->first_ns <= x->last_ns &&
                x->last_ns <= x->end_ns);
    if (x->n_cached < 0 ||
        (x->n_cached >= x->n_prompt && !x->n_preempted)) /* who was preempted may find its own answer again */
        fail_msg("%d of %d cached, %d preempted", x->n_cached, x->n_prompt, x->n_preempted);
}

/* Sums that two accounts must agree on, and that no rank was busy for longer than there was time. */
static void check_replay(const struct replay *r)
{
    uint64_t arrived = 0, ended = 0, output = 0, tokens = 0, steps = 0, asked = 0;
    int64_t busy[MAX_RANKS] = {0};
    assert_true(r->conserved && !r->stopped);
    assert_int_equal(r->n_live, 0);
    for (size_t i = 0; i < r->n_requests; i++) {
        check_request(&r->requests[i]);
        asked += (uint64_t)r->requests[i].n_output;
    }
    for (size_t i = 0; i < r->n_bins; i++) {
        arrived += r->bins[i].n_arrived;
        ended += r->bins[i].n_ended;
        output += r->bins[i].n_output_tokens;
        assert_true(r->bins[i].kv_used >= 0 && r->bins[i].kv_used <= 1);
    }
    for (int i = 0; i < r->n_layouts; i++) {
        steps += r->layouts[i].n_steps;
        tokens += r->layouts[i].n_tokens;
        for (int k = 0; k < MAX_RANKS; k++)
            if (r->layouts[i].ranks >> k & 1)
                busy[k] += r->layouts[i].busy_ns;
    }
    for (int k = 0; k < MAX_RANKS; k++)
        assert_true(busy[k] <= r->end_ns);
    assert_true(arrived == r->n_requests && ended == r->n_requests && output == asked);
    assert_int_equal(steps, r->counters[C_STEPS]);
    assert_true(tokens >= asked);
}

/* ---- policies. A guard watches each of them: time, and ranks that are free or idle before a step. */

struct guard {
    struct policy inner;
    int64_t last_ns;
};

static enum verdict guarded_step(void *ctx, const struct view *v, struct plan *p, struct err *e)
{
    struct guard *g = ctx;
    const struct partition *parts = &v->world->partition;
    uint64_t seen = 0;
    assert_true(v->now_ns >= g->last_ns);
    g->last_ns = v->now_ns;
    for (int i = 0; i < parts->n_groups; i++) { /* no rank in two groups, so in two steps */
        const struct group *grp = partition_group(parts, i);
        assert_true(!(seen & grp->mask));
        seen |= grp->mask;
    }
    assert_true(!(seen & parts->free_ranks));
    enum verdict verdict = g->inner.ops->step(g->inner.ctx, v, p, e);
    for (int i = 0; i < p->n_batches; i++) /* only idle groups take steps */
        assert_true(!p->batches[i]->forwarded || p->batches[i]->group->idle);
    return verdict;
}

static struct policy guarded(struct guard *g, struct policy inner)
{
    static const struct policy_ops ops = {.step = guarded_step};
    *g = (struct guard){.inner = inner};
    return (struct policy){.ops = &ops, .ctx = g, .name = "guarded", .sha256 = "guarded"};
}

/* One lawful or unlawful thing after another, at random. */
struct hostile {
    struct rng rng;
    int budget;
};

static enum verdict hostile_step(void *ctx, const struct view *v, struct plan *p, struct err *e)
{
    struct hostile *h = ctx;
    const struct world *w = v->world;
    uint64_t dice = rng_below(&h->rng, 24);
    struct switch_order o = {.mask = rng_next(&h->rng),
                             .base = {1 + (int)rng_below(&h->rng, 9), (int)rng_below(&h->rng, 3), 1},
                             .when = (enum switch_when)rng_below(&h->rng, 3),
                             .fate = (enum kv_fate)rng_below(&h->rng, 4),
                             .max_wait_ns = 20000000};
    if (dice == 0)
        plan_switch(p, &o);
    if (dice == 1 && w->running.n)
        plan_preempt(p, w->running.items[rng_below(&h->rng, (uint64_t)w->running.n)]->id,
                     (enum preempt_how)rng_below(&h->rng, 2));
    struct plan_batch *any = dice == 2 && v->n_idle ? plan_batch(p, v->idle[0]) : NULL;
    if (any)
        plan_add(any, rng_next(&h->rng), 3);
    if (dice == 3)
        plan_batch(p, (int)rng_below(&h->rng, 1000));
    if (dice == 4)
        return err_set(e, E_POLICY, "an error") ? VERDICT_ERROR : VERDICT_OK;
    if (dice == 5)
        return VERDICT_OK; /* nothing at all, whatever waits */
    for (int i = 0; i < v->n_idle; i++) {
        struct plan_batch *b = plan_batch(p, v->idle[i]);
        if (!b)
            continue;
        plan_decodes(b);
        plan_prefill(b, NULL, 0, (int)rng_below(&h->rng, (uint64_t)h->budget * 2));
        struct layout l = {1 + (int)rng_below(&h->rng, 4), 1 + (int)rng_below(&h->rng, 4), 1};
        if (b->n_tokens && !plan_forward(b, l))
            plan_forward(b, (struct layout){b->group->n_ranks, 1, 1});
    }
    return VERDICT_OK;
}

static struct policy hostile_policy(struct hostile *h, uint64_t seed)
{
    static const struct policy_ops ops = {.step = hostile_step};
    rng_init(&h->rng, seed);
    h->budget = 128;
    return (struct policy){.ops = &ops, .ctx = h, .name = "hostile", .sha256 = "hostile"};
}

static void random_trace(struct rng *rng, char out[200])
{
    int rate = 5 + (int)rng_below(rng, 200), low = 1 + (int)rng_below(rng, 200), answers = 1 + (int)rng_below(rng, 60);
    int n = snprintf(out, 200, "%s,rate=%d", rng_below(rng, 2) ? "gamma:burstiness=1" : "gamma:burstiness=0.2", rate);
    snprintf(out + n, 200 - (size_t)n, ",requests=%d,input=%d-%d,output=1-%d", 50 + (int)rng_below(rng, 250), low,
             low + (int)rng_below(rng, 400), answers);
}

/* kind: 0 the native policy, 1 chaos, 2 hostile. */
static void replay_random(uint64_t seed, int kind)
{
    struct bench b;
    struct rng rng;
    struct guard guard;
    struct chaos chaos = {.every = 10, .budget = 128, .base_orders = seed % 2};
    struct hostile hostile;
    char trace[200];
    rng_init(&rng, seed);
    random_trace(&rng, trace);
    int ranks = 1 << rng_below(&rng, 4);
    struct shape s = {.ranks = kind == 1 && ranks == 1 ? 4 : ranks,
                      .seqs = 1 + (int)rng_below(&rng, 40),
                      .batched = 256,
                      .blocks = 50 + (int)rng_below(&rng, 200),
                      .queued = rng_below(&rng, 4) ? 0 : 20,
                      .trace = trace,
                      .seed = seed};
    if (rng_below(&rng, 3) == 0)
        s.start = (struct layout){1, 1, 1};
    policy_fcfs(&s.policy);
    rng_init(&chaos.rng, seed + 1);
    if (kind == 1)
        chaos_partitions(&chaos, s.ranks);
    if (kind)
        s.policy = guarded(&guard, kind == 1 ? chaos_policy(&chaos) : hostile_policy(&hostile, seed + 2));
    replay_shape(&b, &s);
    check_replay(&b.replay);
    drop(&b);
}

static void every_request_ends_once(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 30; seed++)
        for (int kind = 0; kind < 3; kind++)
            replay_random(seed, kind);
}

static void a_rank_that_fails_ends_nobody(void **state)
{
    (void)state;
    struct bench b;
    struct shape s = {.ranks = 4,
                      .seqs = 32,
                      .batched = 256,
                      .blocks = 128,
                      .fail_rank = 2,
                      .fail_at_step = 40,
                      .start = {1, 2, 1},
                      .trace = "poisson:rate=50,requests=200,input=10-300,output=1-40"};
    policy_fcfs(&s.policy);
    replay_shape(&b, &s);
    check_replay(&b.replay);
    assert_int_equal(b.replay.counters[C_RANK_FAILURES], 1);
    bool noted = false;
    for (size_t i = 0; i < b.replay.n_kept_switches; i++)
        noted |= b.replay.switches[i].failure;
    assert_true(noted);
    drop(&b);
}

/* Two replays of the same, field by field. */
static void the_same_again(void **state)
{
    (void)state;
    struct bench a, b;
    struct chaos ca = {.every = 10, .budget = 128}, cb;
    rng_init(&ca.rng, 4);
    chaos_partitions(&ca, 4);
    cb = ca;
    struct shape s = {.ranks = 4,
                      .seqs = 16,
                      .batched = 256,
                      .blocks = 128,
                      .trace = "gamma:rate=40,requests=300,input=10-300,output=1-40",
                      .policy = chaos_policy(&ca)};
    replay_shape(&a, &s);
    s.policy = chaos_policy(&cb);
    replay_shape(&b, &s);
    assert_int_equal(a.replay.n_requests, b.replay.n_requests);
    for (size_t i = 0; i < a.replay.n_requests; i++) {
        const struct replay_request *x = &a.replay.requests[i], *y = &b.replay.requests[i];
        assert_true(x->start_ns == y->start_ns && x->first_ns == y->first_ns && x->last_ns == y->last_ns &&
                    x->n_preempted == y->n_preempted && x->n_cached == y->n_cached);
    }
    assert_int_equal(a.replay.end_ns, b.replay.end_ns);
    assert_int_equal(a.replay.n_kept_switches, b.replay.n_kept_switches);
    assert_true(a.replay.n_kept_switches > 20); /* something was compared */
    assert_string_equal(a.replay.states[0], b.replay.states[0]);
    drop(&a);
    drop(&b);
}

/* Costs of 1 ms a step and 10 us a token make every time below known by hand. */
static void times_are_those_of_the_machine(void **state)
{
    (void)state;
    struct bench b;
    struct shape s = {.ranks = 1,
                      .seqs = 8,
                      .batched = 256,
                      .blocks = 64,
                      .trace = "batch:requests=2,batches=2,every=1,input=100,output=5"};
    policy_fcfs(&s.policy);
    replay_shape(&b, &s);
    check_replay(&b.replay);
    struct tally t;
    tally_make(&t, &b.replay, (struct tally_slo){.ttft_ms = 3.1});
    assert_int_equal(tally_percentile(&t, TALLY_TTFT, 50), 3000000); /* both prompts in one step: 1 ms and 200 tokens */
    assert_int_equal(tally_percentile(&t, TALLY_TPOT, 99), 1020000);
    assert_int_equal(tally_percentile(&t, TALLY_COMPLETION, 100), 3000000 + 4 * 1020000);
    assert_int_equal(tally_percentile(&t, TALLY_QUEUE, 100), 0);
    assert_int_equal(b.replay.end_ns, 1000000000 + 7080000);
    assert_true(t.n_finished == 4 && t.n_good == 4 && t.n_prompt_tokens == 400 && t.n_output_tokens == 20);
    assert_int_equal(b.replay.n_layouts, 1);
    assert_int_equal(b.replay.layouts[0].busy_ns, 2 * 7080000);
    assert_true(t.peak_throughput > 209.9 && t.peak_throughput < 210.1); /* all of a batch falls into one second */
    tally_free(&t);
    tally_make(&t, &b.replay, (struct tally_slo){.ttft_ms = 2.9});
    assert_int_equal(t.n_good, 0);
    tally_free(&t);
    tally_make(&t, &b.replay, (struct tally_slo){.tpot_ms = 1.0});
    assert_int_equal(t.n_good, 0);
    tally_free(&t);
    drop(&b);
}

static int by_size(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}

/* Against libc's sort: random times of every magnitude, with many that are equal. */
static void times_are_sorted(void **state)
{
    (void)state;
    enum { MOST = 3000 };
    static int64_t expected[MOST];
    struct rng rng;
    struct replay r = {.bin_ns = 1000000000, .n_bins = 1};
    r.requests = mem_new_array(MOST, sizeof *r.requests);
    r.bins = mem_new(sizeof *r.bins);
    rng_init(&rng, 11);
    for (int round = 0; round < 200; round++) {
        struct tally t;
        uint64_t mask = UINT64_MAX >> (1 + rng_below(&rng, 63));
        r.n_requests = round < 40 ? (size_t)round : (size_t)rng_below(&rng, MOST);
        for (size_t i = 0; i < r.n_requests; i++) {
            expected[i] = (int64_t)(rng_next(&rng) & mask);
            r.requests[i] =
                (struct replay_request){.first_ns = expected[i], .last_ns = expected[i], .ending = END_STOP};
        }
        tally_make(&t, &r, (struct tally_slo){0});
        qsort(expected, r.n_requests, sizeof *expected, by_size);
        assert_int_equal(t.n[TALLY_TTFT], r.n_requests);
        assert_memory_equal(t.sorted[TALLY_TTFT], expected, r.n_requests * sizeof *expected);
        tally_free(&t);
    }
    mem_free(r.requests);
    mem_free(r.bins);
}

/* Nearest rank, against a replay made by hand. */
static void percentiles_are_values_that_occurred(void **state)
{
    (void)state;
    struct replay r = {.bin_ns = 1000000000};
    struct tally t;
    r.requests = mem_new_array(100, sizeof *r.requests);
    for (int i = 0; i < 100; i++) /* TTFT 100, 99, ... 1 ms */
        r.requests[r.n_requests++] = (struct replay_request){.arrival_ns = 0,
                                                             .start_ns = 0,
                                                             .first_ns = (100 - i) * 1000000,
                                                             .last_ns = 2000000000,
                                                             .end_ns = 2000000000,
                                                             .n_prompt = 10,
                                                             .n_asked = 1,
                                                             .n_output = 1 + i % 2,
                                                             .ending = END_LENGTH};
    r.requests[99].ending = END_REFUSED;
    r.bins = mem_new_array(3, sizeof *r.bins);
    r.n_bins = 3;
    tally_make(&t, &r, (struct tally_slo){0});
    assert_int_equal(t.n[TALLY_TTFT], 99);
    assert_int_equal(tally_percentile(&t, TALLY_TTFT, 1), 2000000);
    assert_int_equal(tally_percentile(&t, TALLY_TTFT, 50), 51000000);
    assert_int_equal(tally_percentile(&t, TALLY_TTFT, 100), 100000000);
    assert_int_equal(t.n[TALLY_TPOT], 49);
    double all = 0;
    for (size_t i = 0; i < t.n_spread; i++)
        all += t.spread[i];
    assert_true(all > 990 + 148 - 0.001 && all < 990 + 148 + 0.001); /* spreading loses nothing */
    tally_free(&t);
    r.n_requests = 0;
    tally_make(&t, &r, (struct tally_slo){0});
    assert_int_equal(tally_percentile(&t, TALLY_TTFT, 50), -1);
    tally_free(&t);
    replay_free(&r);
}

/* Bins double instead of growing without bound, and lose nothing. */
static void a_year_of_trace_fits(void **state)
{
    (void)state;
    struct bench b;
    struct shape s = {.ranks = 1,
                      .seqs = 8,
                      .batched = 256,
                      .blocks = 64,
                      .trace = "poisson:rate=0.00001,requests=300,input=10,output=3"};
    policy_fcfs(&s.policy);
    replay_shape(&b, &s);
    check_replay(&b.replay);
    assert_true(b.replay.n_bins <= REPLAY_MAX_BINS && b.replay.bin_ns > 1000000000 &&
                b.replay.end_ns > INT64_C(20000000) * 1000000000);
    drop(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_request_ends_once), cmocka_unit_test(a_rank_that_fails_ends_nobody),
        cmocka_unit_test(the_same_again),          cmocka_unit_test(times_are_those_of_the_machine),
        cmocka_unit_test(times_are_sorted),        cmocka_unit_test(percentiles_are_values_that_occurred),
        cmocka_unit_test(a_year_of_trace_fits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
