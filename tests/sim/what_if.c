/* What if, from a recording to the prediction, in virtual time: a made machine with noise, busy spells and groups that
 * slow each other down is recorded under one limit; what the recording predicts for another one is beside what the
 * machine then does, to other luck. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "engine/base/mem.h"
#include "engine/lab/recording/record.h"
#include "engine/lab/recording/recording_steps.h"
#include "engine/lab/reenact.h"
#include "engine/lab/tally.h"
#include "engine/lab/what_if.h"
#include "engine/policy.h"
#include "kernels/backend.h"
#include "tests/rig/engine_rig.h"

enum { RANKS = 4, LIVES = 4, LARGE = 512, SMALL = 48 };
static const char CONFIG[] = "tests/data/sim_ranks.json",
                  TRAFFIC[] = "poisson:rate=24,requests=500,input=20-300,output=10-60";

struct machine {
    struct rng luck;
};

/* What a step of the made machine takes. */
static struct played_step takes(void *ctx, const struct step *s, int beside)
{
    struct machine *m = ctx;
    double ns = 2e6 + 6e4 * s->size.rows / layout_size(s->layout) + 1e5 * s->size.n_logits, luck = 0;
    bool busy = s->posted_ns / 1500000000 % 4 == 1;
    for (int i = 0; i < 4; i++)
        luck += 0.5 * rng_unit(&m->luck);
    if (rng_unit(&m->luck) < 0.02)
        luck /= 0.1 + rng_unit(&m->luck);
    ns *= (0.5 + 0.5 * luck) * (busy ? 1.6 : 1) * (1 + 0.2 * beside);
    return (struct played_step){(int64_t)ns, 100000 + (int64_t)rng_below(&m->luck, 800000)};
}

/* The node: an engine that stays, for its facts. */
struct site {
    struct model *model;
    struct clock clock;
    struct engine_setup setup;
    struct engine *engine;
    struct policy policy;
};

static void open_site(struct site *s)
{
    struct err e = {0};
    memset(s, 0, sizeof *s);
    if (model_open_dummy(&s->model, CONFIG, DT_BF16, 1, &e))
        fail_msg("%s", e.text);
    const struct model_config *c = model_config(s->model);
    clock_init_virtual(&s->clock, REPLAY_START_NS);
    policy_fcfs(&s->policy);
    s->setup = (struct engine_setup){
        .ops = backend_sim(),
        .device = {.sim_step_ns = 1000000},
        .model = s->model,
        .limits = {.max_num_seqs = 32, .max_num_batched_tokens = LARGE, .max_model_len = 1024},
        .n_ranks = RANKS,
        .start = {1, 1, 1},
        .kv_dtype = DT_F16,
        .kv_bytes = 2000 * (size_t)c->n_layers * backend_sim()->kv_block_bytes(DT_F16, 16, c->n_kv_heads, c->head_dim),
        .block_size = 16,
        .clock = &s->clock,
        .policy = s->policy,
        .quiet = true};
    snprintf(s->setup.model_name, sizeof s->setup.model_name, "sim");
    if (engine_create(&s->engine, &s->setup, &e))
        fail_msg("%s", e.text);
}

static void close_site(struct site *s)
{
    engine_destroy(s->engine);
    model_close(s->model);
}

static void replay(const struct engine_setup *engine, const char *trace, bool recorded, struct replay *out)
{
    struct arrivals *arrivals = NULL;
    struct err e = {0};
    if (arrivals_open(&arrivals, &(struct arrivals_setup){.spec = trace, .seed = 5}, &e))
        fail_msg("%s", e.text);
    struct replay_setup r = {.engine = engine,
                             .arrivals = arrivals,
                             .seed = 5,
                             .vocab = 1000,
                             .front_ns = 700000,
                             .recorded_front = recorded};
    if (replay_run(out, &r, &e))
        fail_msg("%s", e.text);
    assert_true(out->conserved);
    arrivals_close(arrivals);
}

/* On the made machine. path: recorded there, window: there, too; NULL: not. */
static void live_in(const struct site *s, uint64_t seed, int budget, const char *path, struct record_window *window,
                    struct replay *out)
{
    struct machine m;
    struct recorder *rec = NULL;
    struct err e = {0};
    struct node_facts facts = *engine_node(s->engine);
    struct engine_play play = {.facts = &facts, .step = takes, .ctx = &m};
    struct engine_setup setup = s->setup;
    rng_init(&m.luck, seed);
    setup.play = &play;
    setup.limits.max_num_batched_tokens = facts.limits.max_num_batched_tokens = budget;
    if (path || window) {
        if (recorder_open(&rec, path, window, &e))
            fail_msg("%s", e.text);
        setup.witness = recorder_witness(rec);
        recorder_begin(rec,
                       &(struct recorder_start){&facts, model_config(s->model), setup.start, setup.block_size, "test"},
                       s->engine);
    }
    replay(&setup, TRAFFIC, false, out);
    recorder_close(rec);
}

static void live(const struct site *s, uint64_t seed, int budget, const char *path, struct replay *out)
{
    live_in(s, seed, budget, path, NULL, out);
}

/* What a recording predicts, with this limit and this start. */
static void predict(const char *path, int budget, struct layout start, struct what_if *w, struct replay *out)
{
    struct recording *r = NULL;
    struct recording_digest digest;
    struct step_fit *fit = NULL;
    struct model *model = NULL;
    struct engine_setup setup;
    struct engine_play play;
    struct err e = {0};
    if (recording_open(&r, path, &e) || recording_digest(&digest, path, &e) ||
        model_open_described(&model, recording_head(r)->config, DT_BF16, &e) ||
        recording_fit_steps(&fit, path, model_config(model), &e))
        fail_msg("%s", e.text);
    reenact_engine(&setup, &play, recording_head(r), model);
    policy_fcfs(&setup.policy);
    setup.limits.max_num_batched_tokens = budget;
    setup.start = start;
    what_if_open(w, &(struct what_if_setup){.fit = fit, .digest = &digest, .head = recording_head(r), .seed = 9});
    what_if_play(w, &play);
    replay(&setup, path, true, out);
    const struct what_if_guess *g = what_if_unseen(w);
    struct buf words = {0};
    what_if_words(w, "x", &words);
    assert_true(!g == (layout_equal(start, (struct layout){1, 1, 1})));
    assert_true(!g || strstr(words.data, "sp 1, tp 2, which the recording never shows"));
    buf_free(&words);
    recording_close(r);
    recording_digest_free(&digest);
    step_fit_free(fit);
    model_close(model);
}

static int64_t value(const struct tally *t, enum tally_latency l, int percent)
{
    return percent ? tally_percentile(t, l, percent) : tally_mean(t, l);
}

/* Percentiles and means, percent 0, within so much of the mean of several lives. */
static void compare_within(double most, const struct replay *predicted, const struct replay *lives, int n)
{
    static const enum tally_latency latencies[] = {TALLY_TTFT, TALLY_TPOT, TALLY_COMPLETION};
    static const int percents[] = {0, 50, 90};
    struct tally p, t[LIVES];
    tally_make(&p, predicted, (struct tally_slo){0});
    for (int i = 0; i < n; i++)
        tally_make(&t[i], &lives[i], (struct tally_slo){0});
    for (int l = 0; l < 3; l++)
        for (int k = 0; k < 3; k++) {
            double mean = 0, said = (double)value(&p, latencies[l], percents[k]);
            for (int i = 0; i < n; i++)
                mean += (double)value(&t[i], latencies[l], percents[k]) / n;
            if (fabs(said / mean - 1) > most)
                fail_msg("%s p%d: %.3f ms predicted, %.3f ms live", tally_name(latencies[l]), percents[k], said * 1e-6,
                         mean * 1e-6);
        }
    for (int i = 0; i < n; i++)
        tally_free(&t[i]);
    tally_free(&p);
}

static void compare(const struct replay *predicted, const struct replay *lives, int n)
{
    compare_within(0.06, predicted, lives, n);
}

static void path_of(char path[64])
{
    snprintf(path, 64, "/tmp/what_if.%ld.rec", (long)getpid());
    unlink(path);
}

static void another_limit_is_predicted(void **state)
{
    (void)state;
    static const int budgets[] = {LARGE, SMALL};
    struct site s;
    char path[64];
    open_site(&s);
    for (int from = 0; from < 2; from++) {
        struct replay recorded, lives[LIVES], predicted;
        struct what_if w;
        path_of(path);
        live(&s, 1, budgets[from], path, &recorded);
        predict(path, budgets[from], s.setup.start, &w, &predicted); /* itself */
        compare(&predicted, &recorded, 1);
        replay_free(&predicted);
        for (int i = 0; i < LIVES; i++)
            live(&s, 2 + (uint64_t)i, budgets[!from], NULL, &lives[i]);
        predict(path, budgets[!from], s.setup.start, &w, &predicted);
        compare(&predicted, lives, LIVES);
        double guessed = what_if_guessed_share(&w);
        assert_true(w.n_steps > 1000 && (from ? guessed > 0.05 : guessed < 0.01)); /* the larger limit: larger steps */
        replay_free(&recorded);
        replay_free(&predicted);
        for (int i = 0; i < LIVES; i++)
            replay_free(&lives[i]);
        unlink(path);
    }
    close_site(&s);
}

static void what_never_ran_is_told(void **state)
{
    (void)state;
    struct site s;
    struct replay recorded, predicted[2];
    struct what_if w;
    char path[64];
    open_site(&s);
    path_of(path);
    live(&s, 1, LARGE, path, &recorded);
    for (int i = 0; i < 2; i++)
        predict(path, LARGE, (struct layout){1, 2, 1}, &w, &predicted[i]);
    assert_true(w.n_guesses == 1 && w.guesses[0].basis == FIT_LAYOUT && w.guesses[0].n_steps == w.n_steps);
    assert_true(what_if_guessed_share(&w) > 0.999);
    assert_true(predicted[0].end_ns == predicted[1].end_ns && predicted[0].n_decisions == predicted[1].n_decisions);
    replay_free(&recorded);
    replay_free(&predicted[0]);
    replay_free(&predicted[1]);
    unlink(path);
    close_site(&s);
}

/* Of a replay that leaves the first seconds away, the busy spells are those of what is left. */
static void a_later_start_has_the_spells_of_its_time(void **state)
{
    (void)state;
    enum { FROM_MS = 5000, STEP_MS = 40, STEPS = 300 };
    struct site s;
    struct replay recorded;
    struct recording *r = NULL;
    struct recording_digest digest;
    struct step_fit *fit = NULL;
    struct what_if w[3];
    struct engine_play play[3];
    struct err e = {0};
    char path[64];
    int differ = 0;
    open_site(&s);
    path_of(path);
    live(&s, 1, LARGE, path, &recorded);
    if (recording_open(&r, path, &e) || recording_digest(&digest, path, &e) ||
        recording_fit_steps(&fit, path, model_config(s.model), &e))
        fail_msg("%s", e.text);
    for (int i = 0; i < 3; i++) { /* all of it; as late a part; the same without saying that it is late */
        struct what_if_setup setup = {.fit = fit, .digest = &digest, .head = recording_head(r), .seed = 9};
        setup.from_ns = i == 1 ? FROM_MS * INT64_C(1000000) : 0;
        what_if_open(&w[i], &setup);
        what_if_play(&w[i], &play[i]);
    }
    for (int k = 0; k < STEPS; k++) {
        struct step step = {.layout = {1, 1, 1}, .size = {.rows = 8, .looked_at = 800, .n_seqs = 8, .n_logits = 8}};
        int64_t at = REPLAY_START_NS + k * STEP_MS * INT64_C(1000000), took[3];
        for (int i = 0; i < 3; i++) {
            step.posted_ns = at + (i == 0 ? FROM_MS * INT64_C(1000000) : 0);
            took[i] = play[i].step(play[i].ctx, &step, 1).ns;
        }
        assert_true(took[0] == took[1]);
        differ += took[1] != took[2];
    }
    assert_true(differ > STEPS / 4);
    replay_free(&recorded);
    recording_close(r);
    recording_digest_free(&digest);
    step_fit_free(fit);
    unlink(path);
    close_site(&s);
}

/* The whole lines of a file, but for its first. */
static char *lines_of(const char *path, char **first)
{
    FILE *f = fopen(path, "r");
    char *text = NULL;
    size_t n = 0;
    assert_true(f && getdelim(&text, &n, 0, f) > 0);
    fclose(f);
    *first = text;
    return strchr(text, '\n') + 1;
}

/* A window of the second half predicts what those saw who came then; its lines are those of the file, to the byte. */
static void a_window_predicts_its_time(void **state)
{
    (void)state;
    struct site s;
    struct replay recorded, predicted, tail = {0};
    struct what_if w;
    struct record_window *window = record_window_new(8 << 20);
    struct record_window_facts all, half;
    struct err e = {0};
    char path[64], part[80], *file, *cut;
    open_site(&s);
    path_of(path);
    snprintf(part, sizeof part, "%s.part", path);
    live_in(&s, 1, LARGE, path, window, &recorded);
    record_window_look(window, &all);
    assert_true(all.n_arrived == 500 && all.from_ns < 1000000000 && all.to_ns > 10 * all.from_ns);
    struct record_window_ask ask = {.last_ns = all.to_ns / 2, .policy = "native", .sha256 = "native"};
    FILE *f = fopen(part, "w");
    assert_non_null(f);
    if (record_window_write(window, &ask, f, &half, &e))
        fail_msg("%s", e.text);
    fclose(f);
    char *lines = lines_of(path, &file), *mine = lines_of(part, &cut);
    char *there = strstr(lines, mine); /* to its end: no line was left out of it */
    assert_true(there && there[-1] == '\n' && strcmp(there, mine) == 0);
    assert_true(half.n_before > 0 && half.n_arrived > 200 && half.n_arrived < 300 && half.n_ended == half.n_arrived);
    tail.requests = mem_new_array(500, sizeof *tail.requests);
    for (size_t i = 0; i < recorded.n_requests; i++)
        if (recorded.requests[i].arrival_ns + 700000 >= half.from_ns) /* it came from the front then */
            tail.requests[tail.n_requests++] = recorded.requests[i];
    tail.bin_ns = recorded.bin_ns;
    tail.n_bins = recorded.n_bins;
    tail.bins = recorded.bins;
    assert_int_equal(tail.n_requests, half.n_arrived);
    predict(part, LARGE, s.setup.start, &w, &predicted);
    assert_int_equal(predicted.n_requests, tail.n_requests);
    compare_within(0.1, &predicted, &tail, 1);
    mem_free(tail.requests);
    free(file);
    free(cut);
    replay_free(&recorded);
    replay_free(&predicted);
    record_window_free(window);
    unlink(path);
    unlink(part);
    close_site(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(another_limit_is_predicted), cmocka_unit_test(a_window_predicts_its_time),
        cmocka_unit_test(a_later_start_has_the_spells_of_its_time), cmocka_unit_test(what_never_ran_is_told)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
