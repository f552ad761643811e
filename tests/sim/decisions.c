/* The decision log (engine/decisions.h): what it says is what was decided, and it never grows. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "engine/base/json.h"
#include "engine/base/rng.h"
#include "engine/engine_state.h"
#include "tests/rig/chaos.h"
#include "tests/rig/engine_rig.h"

static struct json *log_of(struct rig *t, uint64_t from, int n)
{
    struct buf out = {0};
    struct err e = {0};
    assert_int_equal(engine_put_decisions(t->engine, &(struct decisions_ask){from, n}, &out), 0);
    struct json *j = json_parse(out.data, out.len, NULL, &e);
    if (!j)
        fail_msg("%s: %s", e.text, out.data);
    buf_free(&out);
    return j;
}

static int64_t number(const struct json *o, const char *name)
{
    int64_t n = -1;
    json_i64(json_find(o, name), &n);
    return n;
}

/* One request of 100 tokens, in steps of 64: two chunks, then nine decodes. */
static void what_was_decided_is_in_it(void **state)
{
    (void)state;
    static struct rig t;
    open_rig(&t, &(struct knobs){.seqs = 8, .batched = 64, .blocks = 64, .stories = 8, .decision_bytes = 1 << 16});
    struct request_spec *s = spec_new(&t, 1, 100, 10);
    snprintf(s->name, sizeof s->name, "cmpl-one");
    submit(&t, s);
    run_until(&t, INT64_MAX);
    struct json *j = log_of(&t, 1, 100);
    const struct json *d = json_first(json_find(j, "decisions"));
    static const int rows[] = {64, 36, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    for (int i = 0; i < 11; i++, d = json_next(d)) {
        const struct json *g = json_first(json_find(d, "groups")), *c = json_first(json_find(d, "chunks"));
        const struct json *facts = json_find(d, "facts");
        assert_int_equal(number(d, "step"), i + 1);
        assert_int_equal(number(g, "rows"), rows[i]);
        assert_int_equal(number(g, "decodes"), i > 1);
        assert_int_equal(number(g, "steps"), 1);
        assert_int_equal(number(g, "measured_ns"), 1000000 + rows[i] * 10000);
        assert_int_equal(json_count(json_find(d, "chunks")), i < 2);
        if (i < 2) {
            assert_string_equal(json_text(json_find(c, "request")), "cmpl-one");
            assert_int_equal(number(c, "tokens"), rows[i]);
        }
        assert_int_equal(number(facts, "waiting"), i == 0);
        assert_int_equal(number(facts, "running"), i > 0);
        assert_int_equal(number(facts, "came"), i == 0);
        assert_int_equal(number(facts, "free_seats"), i ? 7 : 8);
        assert_int_equal(number(facts, "free_blocks"), i == 0 ? 64 : i == 1 ? 60 : i < 14 ? 57 : 0);
        assert_string_equal(json_text(json_find(json_find(d, "policy"), "name")), "fcfs");
        assert_true(json_true(json_find(json_find(d, "policy"), "native")));
    }
    json_free(j);
    j = log_of(&t, 5, 2);
    assert_int_equal(json_count(json_find(j, "decisions")), 2);
    assert_int_equal(number(json_first(json_find(j, "decisions")), "step"), 5);
    json_free(j);
    close_rig(&t);
}

/* A ring of any size: all that is there is whole, in order and without a gap, and no step is measured as another. */
static void the_ring_keeps_the_newest(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 6; seed++) {
        static struct rig t;
        struct chaos c = {.every = 12, .budget = 96};
        struct rng rng;
        rng_init(&rng, seed);
        rng_init(&c.rng, seed + 50);
        chaos_partitions(&c, 4);
        size_t bytes = 4096 + rng_below(&rng, 20000);
        open_rig(&t, &(struct knobs){.seqs = 24,
                                     .batched = 128,
                                     .blocks = 64,
                                     .ranks = 4,
                                     .stories = 100,
                                     .decision_bytes = bytes,
                                     .policy = chaos_policy(&c)});
        for (uint64_t tag = 1; tag <= 300; tag++) {
            submit(&t, spec_new(&t, tag, 1 + (int)rng_below(&rng, 200), 1 + (int)rng_below(&rng, 20)));
            run_until(&t, clock_now(&t.clock) + (int64_t)rng_below(&rng, 3000000));
            if (tag % 30)
                continue;
            struct json *j = log_of(&t, 0, DECISIONS_ASKED_MOST);
            int64_t last = 0;
            for (const struct json *d = json_first(json_find(j, "decisions")); d; d = json_next(d)) {
                assert_true(!last || number(d, "step") == last + 1);
                last = number(d, "step");
                for (const struct json *g = json_first(json_find(d, "groups")); g; g = json_next(g))
                    if (json_find(g, "steps"))
                        assert_true(number(g, "steps") == 1 && number(g, "measured_ns") >= 1000000);
            }
            assert_int_equal(last, number(j, "newest"));
            json_free(j);
        }
        run_until(&t, clock_now(&t.clock) + (int64_t)60000000000);
        const struct decisions *d = &t.engine->decisions;
        assert_true(d->next - d->oldest <= d->cap && d->cap <= bytes);
        assert_true(d->n > 500 && d->next > 4 * d->cap);
        check_books(&t);
        close_rig(&t);
    }
}

/* With room for all of them: every step is some decision's, and took as long as the metrics say. */
static void every_step_is_measured_once(void **state)
{
    (void)state;
    static struct rig t;
    struct chaos c = {.every = 12, .budget = 96};
    rng_init(&c.rng, 9);
    chaos_partitions(&c, 4);
    open_rig(&t, &(struct knobs){.seqs = 24,
                                 .batched = 128,
                                 .blocks = 64,
                                 .ranks = 4,
                                 .decision_bytes = 16 << 20,
                                 .policy = chaos_policy(&c)});
    for (uint64_t tag = 1; tag <= 200; tag++)
        submit(&t, spec_new(&t, tag, 1 + (int)(tag * 37 % 200), 1 + (int)(tag % 20)));
    run_until(&t, clock_now(&t.clock) + (int64_t)60000000000);
    const struct decisions *d = &t.engine->decisions;
    uint64_t steps = 0, rows = 0;
    for (uint64_t at = d->oldest; at < d->next;) {
        const struct decision *x = decisions_at(d, &at);
        const struct decision_group *g = (const void *)(x + 1);
        for (int i = 0; i < x->n_groups; i++) {
            steps += (uint64_t)g[i].steps;
            rows += (uint64_t)g[i].rows;
        }
        at += x->size;
    }
    const struct metrics *m = engine_world(t.engine)->metrics;
    assert_int_equal(steps, m->counters[C_STEPS]);
    assert_int_equal(rows, (uint64_t)m->histograms[H_ITERATION_TOKENS].sum);
    close_rig(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_was_decided_is_in_it),
        cmocka_unit_test(the_ring_keeps_the_newest),
        cmocka_unit_test(every_step_is_measured_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
