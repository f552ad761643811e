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

/* The simulated device, whose copies of KV take time. */
static int64_t slow_move(const struct device *d, const struct kv_move *m)
{
    (void)d;
    (void)m;
    return 3 * MS;
}

static const struct backend_ops *slow_ops(void)
{
    static struct backend_ops ops;
    ops = *backend_sim();
    ops.kv_move_ns = slow_move;
    return &ops;
}

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

struct traffic {
    struct knobs knobs;
    uint64_t seed;
    int gap_us;
};

static double serve_random(const struct traffic *l)
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
    } cases[] = {{2, 64, 0}, {4, 40, 0}, {4, 48, 200}, {4, 48, 200}, {8, 512, 0}, {8, 512, 0}};
    for (int i = 0; i < 6; i++) {
        const struct backend_ops *ops = i % 2 ? slow_ops() : NULL;
        struct chaos c = {.every = 12, .budget = 96, .base_orders = true, .host = cases[i].host > 0, .bad = i == 1};
        rng_init(&c.rng, (uint64_t)i + 7);
        chaos_partitions(&c, cases[i].ranks);
        double lost = serve_random(&(struct traffic){.knobs = {.seqs = 24,
                                                               .batched = 128,
                                                               .blocks = cases[i].blocks,
                                                               .ranks = cases[i].ranks,
                                                               .host_blocks = cases[i].host,
                                                               .park_ns = 200 * MS,
                                                               .stories = N_REQUESTS,
                                                               .ops = ops,
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
        double lost = serve_random(&(struct traffic){.knobs = k, .seed = (uint64_t)i + 1, .gap_us = 3000});
        assert_true(lost == 0);
    }
}

/* ---- each cause, made to happen */

enum scene { NATIVE, HOLDS, CLOSES, LAST_FIRST, SLEEPS, SWAPS, DRAINS, LEAVES_GROUP, STAYS_NARROW };

struct director {
    enum scene scene;
    uint64_t calls;
};

static void serve_group(const struct view *v, struct plan *p, int i, const req_id *list, int n)
{
    struct plan_batch *b = plan_batch(p, v->idle[i]);
    if (!b)
        return;
    plan_decodes(b);
    plan_prefill(b, list, n, v->world->limits.max_num_batched_tokens);
    if (b->n_tokens)
        plan_forward(b, group_usual_layout(v->world, b->group));
}

static void hold_second(const struct view *v, struct plan *p)
{
    for (int i = 0; i < v->world->waiting.n; i++)
        if (v->world->waiting.items[i]->spec->tag == 2 && !v->world->waiting.items[i]->held_first_ns)
            plan_hold(p, v->world->waiting.items[i]->id, v->now_ns + 20 * MS, "quota of the red ones");
}

/* The request that decodes goes to host memory once. */
static void swap_first(struct director *d, const struct view *v, struct plan *p)
{
    const struct req_queue *q = &v->world->running;
    if (d->calls > 3 && d->calls < 6 && q->n && q->items[0]->spec->tag == 1)
        plan_remap(p, q->items[0]->id, 0, FATE_HOST);
}

static enum verdict direct(void *ctx, const struct view *v, struct plan *p, struct err *e)
{
    struct director *d = ctx;
    const struct req_queue *q = &v->world->waiting;
    req_id last[1] = {q->n ? q->items[q->n - 1]->id : 0};
    bool narrow = d->scene == LEAVES_GROUP && v->n_idle == 2;
    (void)e;
    d->calls++;
    if (d->scene == HOLDS)
        hold_second(v, p);
    if (d->scene == SWAPS)
        swap_first(d, v, p);
    if (d->scene == CLOSES && d->calls == 3)
        plan_preempt_group(p, v->idle[0], WHEN_DRAIN);
    if (d->scene == CLOSES && !v->world->running.n && d->calls > 3)
        plan_open_group(p, v->idle[0]);
    if (d->scene == SLEEPS && d->calls == 1) {
        plan_wake(p, 7);
        return VERDICT_OK;
    }
    if (d->scene == DRAINS && d->calls == 3) {
        struct switch_order o = {.mask = 3, .base = {2, 1, 1}, .when = WHEN_DRAIN, .max_wait_ns = 1000 * MS};
        plan_switch(p, &o);
    }
    for (int i = 0; i < v->n_idle; i++)
        if (d->scene != LEAVES_GROUP || narrow || !v->world->waiting.n)
            serve_group(v, p, i, d->scene == LAST_FIRST ? last : NULL, q->n > 0);
    return VERDICT_OK;
}

static struct policy directed(struct director *d)
{
    static const struct policy_ops ops = {.step = direct};
    struct policy p = {.ops = d->scene == NATIVE ? NULL : &ops, .ctx = d};
    snprintf(p.name, sizeof p.name, "scene");
    snprintf(p.sha256, sizeof p.sha256, "scene");
    return p;
}

struct cast {
    const char *name;
    enum scene scene;
    struct knobs knobs;
    int prompts[3], outputs[3], gap_us, host;
    uint64_t who;    /* whose wait it is */
    uint64_t behind; /* 0: nobody's in particular */
    enum story_part part;
    bool after; /* its first token */
};

static const struct story_span *find_span(const struct story *t, enum story_part part)
{
    for (int i = 0; i < t->n; i++)
        if (t->spans[i].part == part)
            return &t->spans[i];
    return NULL;
}

static void play(const struct cast *c)
{
    static struct rig t;
    struct director d = {.scene = c->scene};
    struct knobs k = c->knobs;
    k.stories = 16;
    k.ops = slow_ops();
    k.policy = directed(&d);
    open_rig(&t, &k);
    for (uint64_t tag = 1; tag <= 3 && c->prompts[tag - 1]; tag++) {
        struct request_spec *s = named(&t, tag, c->prompts[tag - 1], c->outputs[tag - 1]);
        s->leader = c->part == PART_SIBLING && tag > 1 ? 1 : 0;
        submit(&t, s);
        run_until(&t, clock_now(&t.clock) + c->gap_us * 1000);
    }
    run_until(&t, INT64_MAX);
    const struct story *x = stories_find(&t.engine->stories, engine_world(t.engine), c->who);
    const struct story_span *span = x ? find_span(x, c->part) : NULL;
    if (!span || (c->after ? x->after : x->ttft)[c->part] <= 0)
        fail_msg("%s: request %d never waits so", c->name, (int)c->who);
    if (c->behind && span->behind != c->behind)
        fail_msg("%s: behind %d, not %d", c->name, (int)span->behind, (int)c->behind);
    if (c->part == PART_HELD)
        assert_string_equal(x->words[span->words], "quota of the red ones");
    check_spans(x);
    close_rig(&t);
}

static const struct cast casts[] = {
    {"step", NATIVE, {.seqs = 8, .batched = 64, .blocks = 64}, {60, 20}, {4, 4}, 500, 0, 2, 0, PART_STEP, false},
    {"seat", NATIVE, {.seqs = 1, .batched = 64, .blocks = 64}, {20, 20}, {9, 4}, 1500, 0, 2, 0, PART_SEAT, false},
    {"kv", NATIVE, {.seqs = 8, .batched = 256, .blocks = 12}, {100, 90}, {9, 4}, 1500, 0, 2, 0, PART_KV, false},
    {"budget", NATIVE, {.seqs = 8, .batched = 64, .blocks = 64}, {500, 20}, {4, 4}, 500, 0, 2, 0, PART_BUDGET, false},
    {"sibling", NATIVE, {.seqs = 8, .batched = 64, .blocks = 64}, {500, 20}, {4, 4}, 0, 0, 2, 1, PART_SIBLING, false},
    {"behind",
     NATIVE,
     {.seqs = 8, .batched = 256, .blocks = 12},
     {100, 90, 4},
     {30, 4, 4},
     900,
     0,
     3,
     2,
     PART_BEHIND,
     false},
    {"preempted",
     NATIVE,
     {.seqs = 8, .batched = 256, .blocks = 12},
     {80, 80},
     {50, 50},
     0,
     0,
     2,
     1,
     PART_PREEMPTED,
     true},
    {"held", HOLDS, {.seqs = 8, .batched = 64, .blocks = 64}, {20, 20}, {4, 4}, 500, 0, 2, 0, PART_HELD, false},
    {"closed", CLOSES, {.seqs = 8, .batched = 64, .blocks = 64}, {20, 20}, {9, 4}, 3500, 0, 2, 0, PART_CLOSED, false},
    {"passed",
     LAST_FIRST,
     {.seqs = 1, .batched = 64, .blocks = 64},
     {60, 20, 20},
     {2, 4, 4},
     500,
     0,
     2,
     3,
     PART_PASSED,
     false},
    {"idle", SLEEPS, {.seqs = 8, .batched = 64, .blocks = 64}, {20}, {4}, 500, 0, 1, 0, PART_IDLE, false},
    {"swap",
     SWAPS,
     {.seqs = 8, .batched = 64, .blocks = 64, .host_blocks = 64},
     {20, 500},
     {30, 9},
     0,
     0,
     1,
     0,
     PART_SWAP,
     true},
    {"switch",
     DRAINS,
     {.seqs = 8, .batched = 64, .blocks = 64, .ranks = 2, .start = {1, 1, 1}},
     {20, 20, 40},
     {30, 4, 4},
     3500,
     0,
     3,
     0,
     PART_SWITCH,
     false},
    {"no group",
     STAYS_NARROW,
     {.seqs = 8, .batched = 64, .blocks = 16, .ranks = 2, .start = {1, 1, 1}, .model_len = 512},
     {20, 400},
     {30, 4},
     500,
     0,
     2,
     0,
     PART_NO_GROUP,
     false},
    {"unexplained",
     LEAVES_GROUP,
     {.seqs = 8, .batched = 64, .blocks = 64, .ranks = 2, .start = {1, 1, 1}},
     {60, 20},
     {1, 4},
     500,
     0,
     2,
     0,
     PART_UNEXPLAINED,
     false},
};

static void each_cause_has_its_scene(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof casts / sizeof *casts; i++)
        play(&casts[i]);
}

/* ---- bounds */

static void what_is_kept_is_bounded(void **state)
{
    (void)state;
    enum { KEPT = 100, BATCH = 1000, ALL = 100000 };
    static struct rig t;
    open_rig(&t, &(struct knobs){.seqs = 256, .batched = 4096, .blocks = 512, .stories = KEPT});
    for (int i = 0; i < ALL; i += BATCH) {
        memset(t.heard, 0, sizeof t.heard);
        for (uint64_t tag = 1; tag <= BATCH; tag++)
            submit(&t, named(&t, tag, 1 + (int)(tag % 9), 1 + (int)(tag % 3)));
        run_until(&t, INT64_MAX);
    }
    const struct stories *s = &t.engine->stories;
    assert_int_equal(s->n_ended, ALL);
    assert_int_equal(s->n_open, 0);
    size_t spans = 0;
    for (int i = 0; i < KEPT; i++) {
        assert_true(s->ended[i]->n <= STORY_SPANS && s->ended[i]->cap == s->ended[i]->n);
        spans += (size_t)s->ended[i]->n * sizeof(struct story_span);
    }
    print_message("%zu bytes a story, of them %zu of spans\n", sizeof(struct story) + spans / KEPT, spans / KEPT);
    assert_true(sizeof(struct story) + STORY_SPANS * sizeof(struct story_span) + STORY_WORDS * 512 < 8192);
    check_books(&t);
    close_rig(&t);
}

/* One that waits in a thousand ways has no more spans than any, and its parts add up all the same. */
static void a_long_life_has_few_spans(void **state)
{
    (void)state;
    static struct rig t;
    static struct watcher w;
    struct chaos c = {.every = 2, .budget = 32};
    memset(&w, 0, sizeof w);
    rng_init(&c.rng, 3);
    chaos_partitions(&c, 4);
    open_rig(
        &t,
        &(struct knobs){
            .seqs = 8, .batched = 64, .blocks = 300, .ranks = 4, .stories = N_REQUESTS, .policy = chaos_policy(&c)});
    for (uint64_t tag = 1; tag <= 6; tag++) {
        struct request_spec *s = named(&t, tag, 3000, 60);
        w.arrived[tag] = s->arrival_ns;
        submit(&t, s);
    }
    watch_until(&t, &w, clock_now(&t.clock) + (int64_t)60000000000);
    check_stories(&t, &w, 6);
    bool mixed = false;
    for (int i = 0; i < 6; i++) {
        const struct story *x = t.engine->stories.ended[i];
        assert_true(x->n <= STORY_SPANS);
        mixed |= x->spans[x->n - 1].mixed;
    }
    assert_true(mixed);
    close_rig(&t);
}

/* ---- what an operator is shown */

static struct json *ask(struct rig *t, const char *id, size_t n, int code)
{
    struct engine_message m = {.kind = IN_STORY, .tag = 9, .n = n, .payload = id ? mem_strdup(id) : NULL};
    struct json *j = NULL;
    struct engine_event ev;
    assert_int_equal(queue_post(engine_inbox(t->engine), &m), 0);
    engine_turn(t->engine);
    while (queue_take(engine_outbox(t->engine), &ev)) {
        if (ev.kind == EV_REPLY) {
            if (ev.code != code)
                fail_msg("%s", (char *)ev.payload);
            j = ev.code ? NULL : json_parse(ev.payload, ev.n, NULL, NULL);
        }
        mem_free(ev.payload);
    }
    assert_int_equal(j != NULL, code == 0);
    return j;
}

static int n_asked(struct rig *t, const char *id)
{
    struct json *j = ask(t, id, 0, 0);
    int n = (int)json_count(json_find(j, "requests"));
    json_free(j);
    return n;
}

static void they_are_found_by_any_of_their_names(void **state)
{
    (void)state;
    static struct rig t;
    open_rig(&t, &(struct knobs){.seqs = 8, .batched = 64, .blocks = 64, .stories = 4});
    static const char *const names[] = {"chatcmpl-order-66-00112233445566aa", "chatcmpl-order-66-00112233445566aa",
                                        "cmpl-1234"};
    for (int i = 0; i < 3; i++) {
        struct request_spec *s = spec_new(&t, (uint64_t)i + 1, 20, 3);
        snprintf(s->name, sizeof s->name, "%s", names[i]);
        s->choice = i % 2;
        submit(&t, s);
    }
    run_until(&t, clock_now(&t.clock) + 100);
    assert_int_equal(n_asked(&t, "cmpl-1234"), 1); /* live */
    run_until(&t, INT64_MAX);
    assert_int_equal(n_asked(&t, "cmpl-1234"), 1);
    assert_int_equal(n_asked(&t, "1234"), 1); /* X-Request-Id */
    assert_int_equal(n_asked(&t, "cmpl-1234-0"), 1);
    assert_int_equal(n_asked(&t, "chatcmpl-order-66"), 2);
    assert_int_equal(n_asked(&t, "order-66"), 2);
    assert_int_equal(n_asked(&t, "chatcmpl-order-66-1"), 1);
    assert_int_equal(n_asked(&t, names[0]), 2);
    assert_null(ask(&t, "chatcmpl-order-6", 0, E_NOTFOUND));
    assert_null(ask(&t, "cmpl-1234-1", 0, E_NOTFOUND));
    assert_null(ask(&t, "", 0, E_NOTFOUND));
    struct json *j = ask(&t, NULL, 2, 0);
    const struct json *first = json_first(json_find(j, "requests")), *second = json_next(first);
    assert_int_equal(json_count(json_find(j, "requests")), 2);
    int64_t a, b;
    assert_true(json_i64(json_find(first, "ttft_ns"), &a) && json_i64(json_find(second, "ttft_ns"), &b));
    assert_true(a >= b && b > 0);
    json_free(j);
    for (uint64_t tag = 4; tag < 8; tag++) { /* four more: the others are forgotten */
        submit(&t, named(&t, tag, 20, 3));
        run_until(&t, INT64_MAX);
    }
    assert_null(ask(&t, "cmpl-1234", 0, E_NOTFOUND));
    close_rig(&t);
    open_rig(&t, &(struct knobs){.seqs = 8, .batched = 64, .blocks = 64});
    assert_null(ask(&t, "cmpl-1234", 0, E_UNSUPPORTED));
    close_rig(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_cause_has_its_scene),         cmocka_unit_test(what_is_kept_is_bounded),
        cmocka_unit_test(a_long_life_has_few_spans),        cmocka_unit_test(they_are_found_by_any_of_their_names),
        cmocka_unit_test(parts_of_ttft_add_up_under_chaos), cmocka_unit_test(ordinary_traffic_is_explained),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
