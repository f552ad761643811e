/* A front that is slow, or does not look at all: what the engine has to say is bounded, nobody waits for it, and
 * nothing is lost. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "engine/base/rng.h"
#include "engine/engine.h"
#include "tests/rig/engine_rig.h"

enum { N_REQUESTS = 60, BOUND = 16, SEQS = 8 };

static int n_tokens_of(uint64_t tag)
{
    return 1 + (int)(tag * 7 % 40);
}

static struct request_spec *make(struct rig *t, uint64_t tag, bool scored)
{
    struct request_spec *s = spec_new(t, tag, 20, n_tokens_of(tag));
    s->sampling.n_logprobs = scored ? 2 : -1;
    return s;
}

/* As run_until, but nobody listens. */
static void run_unheard(struct rig *t, int64_t until)
{
    for (;;) {
        while (engine_turn(t->engine))
            ;
        assert_true(queue_count(engine_outbox(t->engine)) <= BOUND + SEQS + 2 * N_REQUESTS);
        int64_t next = engine_next_ns(t->engine);
        if (next > until || next == INT64_MAX)
            break;
        clock_advance_to(&t->clock, next > clock_now(&t->clock) ? next : clock_now(&t->clock));
    }
}

static void compare(const struct rig *is, const struct rig *should)
{
    for (uint64_t tag = 1; tag <= N_REQUESTS; tag++) {
        assert_int_equal(is->heard[tag].n_ends, 1);
        assert_int_equal(is->heard[tag].ending, END_LENGTH);
        assert_int_equal(is->heard[tag].n_tokens, n_tokens_of(tag));
        assert_memory_equal(is->heard[tag].tokens, should->heard[tag].tokens,
                            (size_t)n_tokens_of(tag) * sizeof(int32_t));
    }
}

static void begin(struct rig *t, int bound, bool scored)
{
    open_rig(t, &(struct knobs){.seqs = SEQS, .batched = 64, .blocks = 256, .outbox_events = bound});
    for (uint64_t tag = 1; tag <= N_REQUESTS; tag++)
        submit(t, make(t, tag, scored));
}

static void nobody_listens(void **state)
{
    (void)state;
    static struct rig heard, late;
    for (int scored = 0; scored < 2; scored++) {
        begin(&heard, 0, scored);
        run_until(&heard, INT64_MAX);
        begin(&late, BOUND, scored);
        run_unheard(&late, INT64_MAX);
        assert_int_equal(engine_world(late.engine)->requests.n_live, 0); /* nobody has waited */
        assert_true(clock_now(&late.clock) == clock_now(&heard.clock));
        listen_to(&late);
        compare(&late, &heard);
        int runs = 0;
        for (uint64_t tag = 1; tag <= N_REQUESTS; tag++)
            runs += late.heard[tag].n_runs;
        assert_true(runs > N_REQUESTS / 2);
        check_books(&late);
        close_rig(&late);
        close_rig(&heard);
    }
}

/* Looks now and then, and never takes all: order and number stay. */
static void somebody_listens_now_and_then(void **state)
{
    (void)state;
    static struct rig heard, late;
    struct rng rng;
    rng_init(&rng, 5);
    begin(&heard, 0, false);
    run_until(&heard, INT64_MAX);
    begin(&late, BOUND, false);
    for (int i = 0; i < 400; i++) {
        run_unheard(&late, clock_now(&late.clock) + (int64_t)rng_below(&rng, 6000000));
        if (rng_below(&rng, 3) == 0)
            listen_to(&late);
        clock_advance_to(&late.clock, clock_now(&late.clock) + 1000000);
    }
    run_unheard(&late, INT64_MAX);
    listen_to(&late);
    compare(&late, &heard);
    check_books(&late);
    close_rig(&late);
    close_rig(&heard);
}

/* What was kept back is told as soon as there is room, though the request makes no more tokens yet. */
static void what_waits_is_told_when_there_is_room(void **state)
{
    (void)state;
    static struct rig t;
    open_rig(&t, &(struct knobs){.seqs = SEQS, .batched = 64, .blocks = 256, .outbox_events = 2});
    submit(&t, spec_new(&t, 1, 20, 30));
    run_unheard(&t, clock_now(&t.clock) + 12000000);
    assert_int_equal(queue_count(engine_outbox(t.engine)), 2);
    int made = (int)engine_world(t.engine)->metrics->counters[C_GENERATION_TOKENS];
    assert_true(made > 5 && made < 30);
    post(&t, IN_METRICS, 1, 0, NULL);
    engine_turn(t.engine);
    struct engine_event ev;
    while (queue_take(engine_outbox(t.engine), &ev)) {
        if (ev.kind == EV_REPLY)
            assert_non_null(strstr(ev.payload, "\nmoonshift:requests_untold{engine=\"0\",model_name=\"sim\"} 1\n"));
        t.heard[1].n_tokens += ev.kind == EV_TOKEN;
        mem_free(ev.payload);
    }
    assert_int_equal(t.heard[1].n_tokens, 2);
    engine_turn(t.engine);
    listen_to(&t);
    assert_int_equal(t.heard[1].n_tokens, made);
    post(&t, IN_CANCEL, 1, END_ABORT, NULL);
    run_until(&t, INT64_MAX);
    assert_int_equal(t.heard[1].n_ends, 1);
    check_books(&t);
    close_rig(&t);
}

/* Each token's logprobs come with it. */
static void scores_stay_with_their_tokens(void **state)
{
    (void)state;
    static struct rig t;
    struct engine_event ev, one;
    float alone[MAX_OUT];
    for (int bound = 0; bound <= 4; bound += 4) {
        open_rig(&t, &(struct knobs){.seqs = SEQS, .batched = 64, .blocks = 256, .outbox_events = bound});
        submit(&t, make(&t, 5, true));
        run_unheard(&t, INT64_MAX);
        int n = 0;
        while (queue_take(engine_outbox(t.engine), &ev)) {
            for (int i = 0; engine_event_token(&ev, i, &one); i++, n++) {
                const struct token_logprobs *lp = one.payload;
                assert_non_null(lp);
                if (bound)
                    assert_true(lp->logprob == alone[n]);
                alone[n] = lp->logprob;
            }
            mem_free(ev.payload);
        }
        assert_int_equal(n, n_tokens_of(5));
        close_rig(&t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nobody_listens),
        cmocka_unit_test(somebody_listens_now_and_then),
        cmocka_unit_test(what_waits_is_told_when_there_is_room),
        cmocka_unit_test(scores_stay_with_their_tokens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
