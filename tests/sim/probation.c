/* A probation that ends in a rollback by itself, recorded: the recording says nothing of it, and a replay, which has
 * the same events at the same times, sends the policy back at the same decision. Turns and questions that no recording
 * has in between change nothing. A replay that watches for another time differs, so the probation was in it. One that
 * ends because the policy misses what was predicted of it is the same: the prediction is in the recorded order. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "engine/base/rng.h"
#include "engine/lab/recording/record.h"
#include "engine/lab/reenact.h"
#include "tests/rig/engine_rig.h"

enum { REQUESTS = 900 };

/* What b waits, and what was predicted of that. */
struct waits {
    int64_t ns;
    struct prediction predicted;
};

static struct waits waits;

/* The native policy, which lets tenant b wait. */
static enum verdict let_b_wait(void *ctx, const struct request *r, const struct view *v, struct admission *a,
                               struct err *e)
{
    (void)ctx;
    (void)e;
    if (!strcmp(r->spec->tenant, "b") && r->state == REQ_WAITING) {
        a->hold_until_ns = v->now_ns + waits.ns;
        snprintf(a->why, sizeof a->why, "b waits");
    }
    return VERDICT_OK;
}

static struct policy_ops lazy_ops;

static void lazy(struct policy *p)
{
    policy_fcfs(p);
    lazy_ops = *p->ops;
    lazy_ops.admit = let_b_wait;
    p->ops = &lazy_ops;
    snprintf(p->name, sizeof p->name, "lazy");
    snprintf(p->sha256, sizeof p->sha256, "lazy");
}

static void drive(struct rig *t)
{
    struct rng rng = {4};
    for (uint64_t tag = 1; tag <= REQUESTS; tag++) {
        /* with turns in between of which a recording knows nothing */
        for (int64_t until = clock_now(&t->clock) + (int64_t)rng_below(&rng, 20000000); clock_now(&t->clock) < until;)
            run_until(t, clock_now(&t->clock) + 1 + (int64_t)rng_below(&rng, 9000000));
        if (rng_below(&rng, 4) == 0)
            post(t, IN_STATE, 0, 0, NULL);
        struct request_spec *s = spec_new(t, tag, 20 + (int)rng_below(&rng, 60), 4 + (int)rng_below(&rng, 12));
        snprintf(s->tenant, sizeof s->tenant, "%s", rng_below(&rng, 3) ? "a" : "b");
        submit(t, s);
        if (tag == REQUESTS / 2) {
            struct policy *p = mem_new(sizeof *p);
            lazy(p);
            p->predicted = waits.predicted;
            queue_post(engine_inbox(t->engine), &(struct engine_message){.kind = IN_POLICY, .payload = p});
        }
    }
    run_until(t, INT64_MAX);
}

static int find_policy(void *ctx, const char *name, const char *sha256, const char *params, struct policy *out,
                       struct err *e)
{
    (void)ctx;
    (void)sha256;
    (void)params;
    (void)e;
    assert_string_equal(name, "lazy");
    lazy(out);
    return 0;
}

/* probation_ns: instead of the recorded time; 0: as recorded. */
static bool play(const char *path, int64_t probation_ns, uint64_t *n_decisions)
{
    struct err e = {0};
    struct model *model = NULL;
    struct engine_setup engine;
    struct engine_play how;
    struct reenactment exact = {0};
    struct replay what = {0};
    struct reenact_setup again = {.find_policy = find_policy};
    if (recording_open(&again.recording, path, &e) ||
        model_open_described(&model, recording_head(again.recording)->config, DT_BF16, &e))
        fail_msg("%s", e.text);
    reenact_engine(&engine, &how, recording_head(again.recording), model);
    assert_true(engine.limits.probation_ns == 3000000000);
    if (probation_ns)
        engine.limits.probation_ns = probation_ns;
    struct replay_setup r = {.engine = &engine, .vocab = 1000};
    again.replay = &r;
    if (reenact_run(&exact, &what, &again, &e))
        fail_msg("%s", e.text);
    bool equal = exact.equal && exact.complete;
    *n_decisions = exact.n_decisions;
    reenact_free(&exact);
    replay_free(&what);
    recording_close(again.recording);
    model_close(model);
    return equal;
}

/* Serves, recorded; lazy was the second policy. */
static void record(const char *path, bool goes_back)
{
    struct err e = {0};
    struct rig t;
    struct recorder *rec = NULL;
    if (recorder_open(&rec, path, NULL, &e))
        fail_msg("%s", e.text);
    open_rig(
        &t,
        &(struct knobs){
            .seqs = 16, .batched = 64, .blocks = 512, .probation_ns = 3000000000, .witness = recorder_witness(rec)});
    recorder_begin(
        rec,
        &(struct recorder_start){engine_node(t.engine), model_config(t.model), (struct layout){0, 0, 1}, 16, "test"},
        t.engine);
    drive(&t);
    assert_string_equal(engine_policy(t.engine)->sha256, goes_back ? "native" : "lazy");
    assert_true(engine_policy(t.engine)->generation == (goes_back ? 3 : 2));
    close_rig(&t);
    recorder_close(rec);
}

static void a_recording_need_not_know(void **state)
{
    (void)state;
    char folder[] = "/tmp/moonshift-probation-XXXXXX", path[96];
    uint64_t n, fewer;
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/live.rec", folder);
    waits = (struct waits){.ns = 400000000};
    record(path, true);
    assert_true(play(path, 0, &n));
    assert_true(n > REQUESTS);
    assert_false(play(path, 6000000000, &fewer));
    assert_true(fewer < n);
    unlink(path);
    rmdir(folder);
}

/* The same lines without those of one kind. */
static void leave_out(const char *path, char kind, const char *to)
{
    FILE *in = fopen(path, "r"), *out = fopen(to, "w");
    char *text = NULL;
    size_t cap = 0;
    int n = 0;
    assert_true(in && out);
    while (getline(&text, &cap, in) > 0) {
        n += text[0] == kind;
        if (text[0] != kind)
            fputs(text, out);
    }
    free(text);
    fclose(in);
    fclose(out);
    assert_int_equal(n, 1);
}

/* b waits so little that no guard minds, and the mean is twice what was promised: only a strict order sends it back. */
static void what_was_predicted_is_in_the_order(void **state)
{
    (void)state;
    char folder[] = "/tmp/moonshift-probation-XXXXXX", path[96], without[96];
    uint64_t n, other;
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/live.rec", folder);
    snprintf(without, sizeof without, "%s/without.rec", folder);
    waits = (struct waits){.ns = 40000000,
                           .predicted = {.is_made = true,
                                         .ago_s = 1.0 / 3,
                                         .window_s = 12.5,
                                         .n_requests = 1000,
                                         .guessed = 0.1,
                                         .shadow = {.n_asked = 7, .n_equal = 5, .n_failed = 1}}};
    waits.predicted.changes[PREDICTED_TTFT] = (struct predicted_change){1.0 / 30, -0.1, 0.2 / 3, 9};
    record(path, false);
    assert_true(play(path, 0, &n));
    unlink(path);
    waits.predicted.is_strict = true;
    record(path, true);
    assert_true(play(path, 0, &n));
    assert_true(n > REQUESTS);
    leave_out(path, 'o', without);
    assert_false(play(without, 0, &other));
    assert_true(other < n);
    unlink(path);
    unlink(without);
    rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_recording_need_not_know),
                                       cmocka_unit_test(what_was_predicted_is_in_the_order)};
    return cmocka_run_group_tests_name("probation", tests, NULL, NULL);
}
