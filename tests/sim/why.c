/* Where the time of requests went, and why they waited (engine/story.h), on the simulated device. What the parts of a
 * time to first token must add up to, and how long a request was in steps, is taken from outside: from the events that
 * a client gets and from the clock between turns. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "engine/base/json.h"
#include "engine/base/rng.h"
#include "engine/engine.h"
#include "engine/engine_state.h"
#include "tests/rig/chaos.h"
#include "tests/rig/engine_rig.h"

enum { N_REQUESTS = 1000, MS = 1000000 };

/* What a client saw, and what was busy when. */
struct watcher {
    int64_t arrived[N_REQUESTS + 1], first[N_REQUESTS + 1], busy[N_REQUESTS + 1];
    int64_t last_ns;
};

static struct request_spec *named(struct rig *t, uint64_t tag, int n_prompt, int max_tokens)
{
    struct request_spec *s = spec_new(t, tag, n_prompt, max_tokens);
    snprintf(s->name, sizeof s->name, "cmpl-%llu", (unsigned long long)tag);
    return s;
}

/* Before the clock moves on: who is busy now is so until then. */
static void watch(struct rig *t, struct watcher *w, int64_t until)
{
    const struct request_table *all = &engine_world(t->engine)->requests;
    for (int i = 0; i < all->n_slots; i++)
        if (all->slots[i] && all->slots[i]->busy)
            w->busy[all->slots[i]->spec->tag] += until - clock_now(&t->clock);
    for (int i = 1; i <= N_REQUESTS; i++)
        if (!w->first[i] && t->heard[i].n_tokens)
            w->first[i] = clock_now(&t->clock);
    clock_advance_to(&t->clock, until);
}

static void watch_until(struct rig *t, struct watcher *w, int64_t until)
{
    for (;;) {
        while (engine_turn(t->engine))
            ;
        listen_to(t);
        int64_t next = engine_next_ns(t->engine), now = clock_now(&t->clock);
        if (next > until || next == INT64_MAX)
            break;
        watch(t, w, next > now ? next : now);
    }
    watch(t, w, until > clock_now(&t->clock) ? until : clock_now(&t->clock));
}

static int64_t sum(const int64_t *parts)
{
    int64_t n = 0;
    for (int i = 0; i < PART_COUNT; i++)
        n += parts[i];
    return n;
}

static void check_spans(const struct story *t)
{
    int64_t at = t->arrival_ns;
    for (int i = 0; i < t->n; i++) {
        assert_int_equal(t->spans[i].from_ns, at);
        assert_true(t->spans[i].to_ns >= at);
        at = t->spans[i].to_ns;
    }
    assert_int_equal(at, t->end_ns);
}

/* Unexplained time, of all time to first token. */
static double check_stories(struct rig *t, const struct watcher *w, int n)
{
    const struct stories *s = &t->engine->stories;
    int64_t lost = 0, all = 0;
    assert_int_equal(s->n_open, 0);
    assert_int_equal(s->n_between, 0);
    assert_int_equal(s->n_ended, n);
    for (int i = 0; i < n; i++) {
        const struct story *x = s->ended[i];
        check_spans(x);
        assert_int_equal(x->arrival_ns, w->arrived[x->tag]);
        assert_int_equal(x->first_token_ns, w->first[x->tag]);
        int64_t until = x->first_token_ns ? x->first_token_ns : x->end_ns;
        assert_int_equal(sum(x->ttft), until - x->arrival_ns);
        assert_int_equal(sum(x->after), x->end_ns - until);
        assert_int_equal(x->ttft[PART_PREFILL] + x->ttft[PART_DECODE] + x->after[PART_PREFILL] + x->after[PART_DECODE],
                         w->busy[x->tag]);
        for (int k = 0; k < PART_COUNT; k++)
            assert_true(x->ttft[k] >= 0 && x->after[k] >= 0);
        lost += x->ttft[PART_UNEXPLAINED];
        all += sum(x->ttft);
    }
    return (double)lost / (double)all;
}

static void put_parts(struct rig *t)
{
    for (int i = 0; i < PART_COUNT; i++)
        if (t->engine->stories.ttft[i])
            print_message(" %s %.1f", story_part_name((enum story_part)i), (double)t->engine->stories.ttft[i] * 1e-6);
    print_message(" ms\n");
}

struct load {
    struct knobs knobs;
    uint64_t seed;
    int gap_us;
};

static double serve_random(const struct load *l)
{
    static struct rig t;
    static struct watcher w;
    struct rng rng;
    memset(&w, 0, sizeof w);
    rng_init(&rng, l->seed);
    open_rig(&t, &l->knobs);
    for (uint64_t tag = 1; tag <= N_REQUESTS; tag++) {
        struct request_spec *s =
            named(&t, tag, 1 + (int)rng_below(&rng, rng_below(&rng, 4) ? 40 : 200), 1 + (int)rng_below(&rng, 40));
        s->priority = (int)rng_below(&rng, 3);
        if (tag > 1 && rng_below(&rng, 10) == 0)
            s->leader = tag - 1;
        w.arrived[tag] = s->arrival_ns;
        submit(&t, s);
        watch_until(&t, &w, clock_now(&t.clock) + (int64_t)rng_below(&rng, (uint64_t)l->gap_us * 1000));
        if (rng_below(&rng, 8) == 0)
            post(&t, IN_CANCEL, 1 + rng_below(&rng, tag), END_ABORT, NULL);
    }
    watch_until(&t, &w, clock_now(&t.clock) + (int64_t)60000000000);
    check_books(&t);
    double lost = check_stories(&t, &w, N_REQUESTS);
    if (!l->knobs.policy.ops && l->knobs.ranks < 2) { /* first come, first served: nobody is passed over */
        assert_int_equal(t.engine->stories.ttft[PART_PASSED], 0);
        assert_int_equal(t.engine->stories.ttft[PART_IDLE], 0);
    }
    put_parts(&t);
    close_rig(&t);
    return lost;
}

static void parts_of_ttft_add_up_under_chaos(void **state)
{
    (void)state;
    static const struct {
        int ranks, blocks, host;
    } cases[] = {{2, 64, 0}, {4, 40, 0}, {4, 48, 200}, {8, 512, 0}};
    for (int i = 0; i < 4; i++) {
        struct chaos c = {.every = 12, .budget = 96, .base_orders = true, .host = cases[i].host > 0, .bad = i == 1};
        rng_init(&c.rng, (uint64_t)i + 7);
        chaos_partitions(&c, cases[i].ranks);
        double lost = serve_random(&(struct load){.knobs = {.seqs = 24,
                                                            .batched = 128,
                                                            .blocks = cases[i].blocks,
                                                            .ranks = cases[i].ranks,
                                                            .host_blocks = cases[i].host,
                                                            .park_ns = 200 * MS,
                                                            .stories = N_REQUESTS,
                                                            .policy = chaos_policy(&c)},
                                                  .seed = (uint64_t)i + 1,
                                                  .gap_us = 3000});
        print_message("case %d: unexplained %.4f\n", i, lost);
        assert_true(lost < 0.05);
    }
}

static void ordinary_traffic_is_explained(void **state)
{
    (void)state;
    static const struct knobs cases[] = {{.seqs = 64, .batched = 256, .blocks = 512},
                                         {.seqs = 4, .batched = 256, .blocks = 512},
                                         {.seqs = 64, .batched = 64, .blocks = 512},
                                         {.seqs = 64, .batched = 256, .blocks = 40},
                                         {.seqs = 64, .batched = 256, .blocks = 64, .ranks = 4, .start = {1, 1, 1}}};
    for (int i = 0; i < 5; i++) {
        struct knobs k = cases[i];
        k.stories = N_REQUESTS;
        double lost = serve_random(&(struct load){.knobs = k, .seed = (uint64_t)i + 1, .gap_us = 3000});
        assert_true(lost == 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_of_ttft_add_up_under_chaos),
        cmocka_unit_test(ordinary_traffic_is_explained),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
