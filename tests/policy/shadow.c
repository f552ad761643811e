/* A policy beside the live one, in the whole engine in virtual time: whatever it would do, nothing is other than
 * without it, to the nanosecond; what it would do is counted as it is; one that is like the live one decides alike; and
 * it ends by its failures, by its time, by an order, and when it goes live itself. */
#include "tests/rig/policy_rig.h"

#include "engine/base/file.h"
#include "engine/base/rng.h"
#include "engine/shadow.h"

#define SECOND 1000000000ll
#define HEAD "return { api = 1, doc = 'test', needs = { 'id', 'tenant', 'priority' },\n"
#define SERVES                                                                                                         \
    "for _, g in ipairs(view.idle) do local b = act.batch(g) if b then b:decodes() b:prefill(view.waiting)\n"          \
    "  if b.tokens > 0 then act.forward(g, b) end end end"

static const char plain[] = HEAD "step = function(view, act) " SERVES " end }";

static int begin(struct rig *t, const char *name, const char *source, double seconds)
{
    struct err e = {0};
    struct shadow_order *o = mem_new(sizeof *o);
    struct lua_opts opts = t->opts;
    opts.again = true; /* what is bad is not found out before */
    o->for_ns = (int64_t)(seconds * 1e9);
    if (lua_policy_load(&o->policy, name, source, strlen(source), &opts, NULL, &e))
        fail_msg("%s", e.text);
    rig_post(t, IN_SHADOW, o, 0);
    rig_turn(t);
    return t->reply_code;
}

static struct json *report(struct rig *t)
{
    rig_post(t, IN_SHADOW_STATE, NULL, 0);
    rig_turn(t);
    struct json *j = json_parse(t->reply.data, t->reply.len, NULL, NULL);
    assert_non_null(j);
    return j;
}

/* A number of the report, by a path like "verbs.preempt.live". */
static double number(struct rig *t, const char *path)
{
    char copy[100], *rest = copy;
    struct json *root = report(t);
    const struct json *j = root;
    snprintf(copy, sizeof copy, "%s", path);
    for (char *key; j && (key = strsep(&rest, "."));)
        j = json_find(j, key);
    double n = j ? json_number(j) : -1;
    json_free(root);
    return n;
}

static void text(struct rig *t, const char *name, char *out, size_t cap)
{
    struct json *root = report(t);
    snprintf(out, cap, "%s", json_text(json_find(root, name)));
    json_free(root);
}

static void assert_text(struct rig *t, const char *name, const char *expected)
{
    char found[300];
    text(t, name, found, sizeof found);
    assert_string_equal(found, expected);
}

struct load {
    struct rng rng;
    int64_t next_ns;
};

/* Requests of some tenants and priorities, of which some leave. */
static void drive(struct rig *t, struct load *l, int64_t until_ns)
{
    for (l->next_ns = l->next_ns ? l->next_ns : clock_now(&t->clock); l->next_ns < until_ns;
         l->next_ns += (int64_t)rng_below(&l->rng, 2 * SECOND / 60)) {
        rig_run_until(t, l->next_ns);
        int n_prompt = 8 + (int)rng_below(&l->rng, 300), n_output = 1 + (int)rng_below(&l->rng, 60);
        struct request_spec *s = rig_spec(t, rng_below(&l->rng, 3) ? "a" : "b", n_prompt, n_output);
        s->priority = (int)rng_below(&l->rng, 3);
        rig_post(t, IN_SUBMIT, s, 0);
        if (t->n_tags > 8 && rng_below(&l->rng, 10) == 0) {
            struct engine_message m = {.kind = IN_CANCEL, .tag = t->n_tags - rng_below(&l->rng, 8), .code = END_ABORT};
            queue_post(engine_inbox(t->engine), &m);
        }
    }
    rig_run_until(t, until_ns);
}

/* ---- nothing is other with it */

/* Every verb, at random, on whatever it finds. */
static const char vandal[] =
    "local d = rng(7)\n" HEAD "admit = function(r, view, act) local x = d(6)\n"
    "  if x == 1 then act.refuse(r.id, 429, 1, 'no') elseif x == 2 and not r.again then act.hold(r.id, 'wait', "
    "view.now + 1) end\n"
    "  return d(1000) end,\n"
    "step = function(view, act)\n"
    "  local w, r = view.waiting, view.running\n"
    "  for i = 1, math.min(w.n, 5) do local x = d(8)\n"
    "    if x == 1 then act.refuse(w.id[i], 503, 2, 'no') elseif x == 2 then act.hold(w.id[i], 'wait', view.now + 1) "
    "end\n"
    "  end\n"
    "  for i = 1, math.min(r.n, 5) do local x = d(8)\n"
    "    if x == 1 then act.preempt(r.id[i], 'recompute') elseif x == 2 then act.preempt(r.id[i], 'hard')\n"
    "    elseif x == 3 and #view.groups > 0 then act.remap(r.id[i], view.groups[1], 'migrate') end end\n"
    "  if d(5) == 1 then act.bind({ 0, 1 }, { when = 'hard', kv = 'recompute', reason = 'so' }) end\n"
    "  if d(5) == 1 then act.bind({ 0, 1, 2, 3 }, { when = 'drain', reason = 'so' }) end\n"
    "  if d(9) == 1 and #view.groups > 0 then act.preempt(view.groups[1], 'drain') end\n"
    "  act.comm({ 0, 1 }, 'oneshot')\n"
    "  for _, g in ipairs(view.idle) do if d(4) > 1 then local b = act.batch(g)\n"
    "    if b then b:decodes() b:prefill(w, d(64))\n"
    "    for i = 1, math.min(r.n, 3) do act.draft(r.id[i], 4) end\n"
    "    if b.tokens > 0 then act.forward(g, b) end end end end\n"
    "  act.wake(d(50))\n"
    "end }";

static void read_policy(const char *name, struct buf *out)
{
    struct err e = {0};
    char path[100];
    snprintf(path, sizeof path, "policies/%s.lua", name);
    buf_clear(out);
    if (file_read(out, path, LUA_SOURCE_BYTES, &e))
        fail_msg("%s", e.text);
}

/* What became of everything. */
struct outcome {
    struct rig rig; /* what clients heard */
    uint64_t counters[COUNTER_COUNT], steps;
};

/* fails: a rank does, in the middle. */
static void run(struct outcome *out, const char *live, const char *shadow, uint64_t seed, bool fails)
{
    struct rig *t = &out->rig;
    struct load l = {0};
    struct buf source = {0};
    memset(out, 0, sizeof *out);
    rng_init(&l.rng, seed);
    rig_open(t, &(struct rig_knobs){.ranks = 4,
                                    .group_size = 1,
                                    .blocks = 40,
                                    .starvation_s = 1,
                                    .probation_s = 1,
                                    .fail_rank = 2,
                                    .fail_at_step = fails ? 900 : 0});
    read_policy(live, &source);
    assert_int_equal(rig_swap(t, live, source.data), 0);
    drive(t, &l, 3 * SECOND);
    if (shadow == vandal) {
        assert_int_equal(begin(t, "vandal", vandal, 1000), 0);
    } else if (shadow) {
        read_policy(shadow, &source);
        assert_int_equal(begin(t, shadow, source.data, 1000), 0);
    }
    drive(t, &l, 6 * SECOND);
    assert_int_equal(rig_swap(t, "plain", plain), 0); /* it goes on beside another one */
    drive(t, &l, 8 * SECOND);
    rig_settle(t);
    rig_check(t);
    if (shadow) {
        assert_text(t, "why_ended", "");
        assert_true(number(t, "decisions.compared") > 100);
        assert_true(number(t, "decisions.passed_over") == 0);
    }
    for (int i = 0; shadow == vandal && i < 5; i++) { /* it would have done all that */
        static const char *const verbs[] = {"preempt", "refuse", "hold", "switch", "comm"};
        char path[60];
        snprintf(path, sizeof path, "verbs.%s.shadow", verbs[i]);
        if (number(t, path) < 5)
            fail_msg("%s", path);
    }
    const struct world *w = engine_world(t->engine);
    memcpy(out->counters, w->metrics->counters, sizeof out->counters);
    out->steps = w->step;
    rig_close(t);
    buf_free(&source);
}

static void nothing_is_other_with_a_shadow(void **state)
{
    (void)state;
    static const char *const pairs[][2] = {{"flying", vandal}, {"shift", "seesaw"}, {"priority", "flying"},
                                           {"fair", vandal},   {"auto", "shift"},   {"leastwaste", vandal}};
    static struct outcome with, without;
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        bool fails = i % 2;
        run(&without, pairs[i][0], NULL, 3 + i, fails);
        run(&with, pairs[i][0], pairs[i][1], 3 + i, fails);
        assert_true(with.counters[C_RANK_FAILURES] == fails);
        assert_true(without.rig.n_tags > 100);
        assert_int_equal(with.rig.n_tags, without.rig.n_tags);
        assert_memory_equal(with.rig.heard, without.rig.heard, sizeof with.rig.heard);
        assert_memory_equal(with.counters, without.counters, sizeof with.counters);
        assert_int_equal(with.steps, without.steps);
    }
}

/* ---- what is counted */

static void one_that_is_like_the_live_one_decides_alike(void **state)
{
    (void)state;
    struct rig t;
    struct load l = {0};
    char source[sizeof plain + 40];
    rng_init(&l.rng, 5);
    rig_open(&t, &(struct rig_knobs){.ranks = 2, .group_size = 1, .blocks = 60});
    assert_int_equal(rig_swap(&t, "plain", plain), 0);
    snprintf(source, sizeof source, "-- another hash\n%s", plain);
    assert_int_equal(begin(&t, "plain2", source, 1000), 0);
    uint64_t before = engine_world(t.engine)->step;
    drive(&t, &l, 5 * SECOND);
    rig_settle(&t);
    double n = (double)(engine_world(t.engine)->step - before);
    assert_true(n > 200);
    assert_true(number(&t, "decisions.compared") == n);
    assert_true(number(&t, "decisions.equal") == n);
    assert_true(number(&t, "decisions.other_first") == 0);
    assert_true(number(&t, "arrivals.n") == (double)t.n_tags);
    assert_true(number(&t, "arrivals.alike") == (double)t.n_tags);
    assert_true(number(&t, "batches.equal") > 200);
    assert_true(number(&t, "batches.other_requests") == 0 && number(&t, "batches.live") == 0);
    assert_true(number(&t, "verbs.start.both") >= (double)t.n_tags / 2);
    assert_true(number(&t, "tokens.live") == number(&t, "tokens.shadow"));
    rig_close(&t);
}

/* It refuses tenant b, takes the newest first, preempts whoever decodes, and runs nothing. */
static const char other[] =
    HEAD "admit = function(r, view, act) if r.tenant == 'b' then act.refuse(r.id, 429, 1, 'no') end\n"
         "  return -r.arrival end,\n"
         "step = function(view, act) for i = 1, view.running.n do\n"
         "  act.preempt(view.running.id[i], 'recompute') end end }";

static void differences_are_counted_and_said(void **state)
{
    (void)state;
    struct rig t;
    rig_open(&t, &(struct rig_knobs){.seqs = 2, .batched = 16});
    assert_int_equal(rig_swap(&t, "plain", plain), 0);
    rig_submit(&t, "a", 16, 40);
    rig_run_until(&t, clock_now(&t.clock) + 20 * SECOND / 1000);
    assert_int_equal(begin(&t, "other", other, 1000), 0);
    uint64_t before = engine_world(t.engine)->step;
    rig_submit(&t, "b", 64, 4);
    rig_submit(&t, "a", 64, 4); /* waits, for there are two seats; the other one would have it first */
    rig_settle(&t);
    rig_check(&t);
    double n = (double)(engine_world(t.engine)->step - before);
    assert_true(number(&t, "decisions.compared") == n);
    assert_true(number(&t, "decisions.equal") <= 1); /* the last one, about nobody */
    assert_true(number(&t, "arrivals.n") == 2);
    assert_true(number(&t, "arrivals.alike") == 1);
    assert_true(number(&t, "arrivals.refused.shadow") == 1);
    assert_true(number(&t, "arrivals.refused.live") == 0);
    assert_true(number(&t, "verbs.start.live") == 2);
    assert_true(number(&t, "verbs.start.shadow") == 0);
    assert_true(number(&t, "verbs.preempt.shadow") >= 15);
    assert_true(number(&t, "verbs.preempt.live") == -1 || number(&t, "verbs.preempt.live") == 0);
    assert_true(number(&t, "batches.live") >= 15);
    assert_true(number(&t, "batches.equal") == 0);
    assert_true(number(&t, "decisions.other_first") > 0);
    assert_true(number(&t, "tokens.shadow") == 0 && number(&t, "tokens.live") > 100);
    struct json *root = report(&t);
    const struct json *d = json_first(json_find(root, "differences"));
    assert_int_equal(json_count(json_find(root, "differences")), SHADOW_DIFFERENCES);
    assert_string_equal(json_text(json_find(d, "live")), "group 1: sp 1 tp 1, 1 rows of 1 requests, 0 of them new");
    assert_string_equal(json_text(json_find(d, "shadow")), "group 1: nothing; preempt r1");
    json_free(root);
    rig_close(&t);
}

/* ---- its end */

static void it_ends_when_its_calls_fail(void **state)
{
    (void)state;
    static const struct {
        const char *step, *why;
        int calls;
    } bad[] = {
        {"if view.now > 2 then error('no') end", "its calls fail: step: error: bad.lua:2: no", SHADOW_STRIKES},
        {"if view.now > 2 then while true do end end", "a call was cut off: step: timeout: ", 1},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct rig t;
        struct load l = {0};
        char source[500], why[300];
        rng_init(&l.rng, 7);
        rig_open(&t, &(struct rig_knobs){0});
        snprintf(source, sizeof source, HEAD "step = function(view, act) %s end }", bad[i].step);
        assert_int_equal(begin(&t, "bad", source, 1000), 0);
        drive(&t, &l, 3 * SECOND);
        text(&t, "why_ended", why, sizeof why);
        if (strncmp(why, bad[i].why, strlen(bad[i].why)) != 0)
            fail_msg("%s", why);
        assert_text(&t, "state", "ended");
        assert_int_equal(t.n_told, 1);
        assert_non_null(strstr(t.told, "\"event\":\"shadow-end\",\"name\":\"bad\""));
        assert_true(rig_metric(&t, "policy_shadow ") == 0);
        assert_string_equal(engine_policy(t.engine)->name, "fcfs");
        assert_true(number(&t, i ? "calls.timeout" : "calls.error") == bad[i].calls);
        rig_settle(&t);
        rig_check(&t);
        rig_close(&t);
    }
}

static void it_ends_with_its_time_by_an_order_and_when_it_goes_live(void **state)
{
    (void)state;
    struct rig t;
    rig_open(&t, &(struct rig_knobs){0});
    assert_text(&t, "state", "none");
    rig_post(&t, IN_SHADOW_END, NULL, 0);
    rig_turn(&t);
    assert_int_equal(t.reply_code, E_NOTFOUND);
    assert_int_equal(begin(&t, "plain", plain, 2), 0);
    assert_true(rig_metric(&t, "policy_shadow ") == 1);
    rig_run_until(&t, clock_now(&t.clock) + 3 * SECOND); /* nothing else happens */
    assert_text(&t, "why_ended", "its time is up");
    assert_true(number(&t, "ran_s") == 2);
    assert_int_equal(begin(&t, "plain", plain, 2000), 0);
    assert_int_equal(begin(&t, "vandal", vandal, 2000), 0);
    assert_non_null(strstr(t.told, "another one has taken its place"));
    assert_text(&t, "name", "vandal");
    rig_post(&t, IN_SHADOW_END, NULL, 0);
    rig_turn(&t);
    assert_int_equal(t.reply_code, 0);
    assert_text(&t, "why_ended", "an operator has ended it");
    assert_int_equal(begin(&t, "plain", plain, 2000), 0);
    assert_int_equal(rig_swap(&t, "plain", plain), 0);
    assert_text(&t, "why_ended", "it is the live policy now");
    assert_int_equal(t.n_told, 4);
    rig_close(&t); /* one that runs ends with the engine */
}

static void one_that_cannot_start_is_refused(void **state)
{
    (void)state;
    static const char wants[] = HEAD "start = function(node) if node.n_ranks < 3 then error('three ranks') end end,\n"
                                     "step = function(view, act) " SERVES " end }";
    struct rig t;
    rig_open(&t, &(struct rig_knobs){.ranks = 2});
    assert_int_not_equal(begin(&t, "wants", wants, 10), 0);
    assert_non_null(strstr(t.reply.data, "three ranks"));
    assert_text(&t, "state", "ended");
    rig_close(&t);
}

/* ---- its share of the time */

struct slow {
    struct clock *clock;
    int n_calls;
};

static enum verdict slow_step(void *ctx, const struct view *v, struct plan *p, struct err *e)
{
    struct slow *s = ctx;
    (void)v;
    (void)p;
    (void)e;
    s->n_calls++;
    clock_advance_to(s->clock, clock_now(s->clock) + 1000000);
    return VERDICT_OK;
}

static void decisions_for_which_it_has_no_time_are_passed_over(void **state)
{
    (void)state;
    static const struct policy_ops ops = {.step = slow_step};
    struct rig t;
    struct load l = {0};
    rng_init(&l.rng, 7);
    rig_open(&t, &(struct rig_knobs){.shadow_share = 0.05});
    assert_int_equal(rig_swap(&t, "plain", plain), 0);
    struct slow slow = {.clock = &t.clock};
    struct shadow_order *o = mem_new(sizeof *o);
    *o = (struct shadow_order){.policy = {.ops = &ops, .ctx = &slow, .name = "slow", .sha256 = "s"},
                               .for_ns = 1000 * SECOND};
    int64_t from = clock_now(&t.clock);
    rig_post(&t, IN_SHADOW, o, 0);
    drive(&t, &l, from + 5 * SECOND);
    double ms = (double)(clock_now(&t.clock) - from) * 1e-6, passed = number(&t, "decisions.passed_over");
    assert_true(slow.n_calls > 0.045 * ms && slow.n_calls <= 0.05 * ms + 3); /* a burst of 2 ms, and one call more */
    assert_true(number(&t, "decisions.compared") == slow.n_calls);
    assert_true(passed > 500);
    rig_settle(&t);
    rig_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_is_other_with_a_shadow),
        cmocka_unit_test(one_that_is_like_the_live_one_decides_alike),
        cmocka_unit_test(differences_are_counted_and_said),
        cmocka_unit_test(it_ends_when_its_calls_fail),
        cmocka_unit_test(it_ends_with_its_time_by_an_order_and_when_it_goes_live),
        cmocka_unit_test(one_that_cannot_start_is_refused),
        cmocka_unit_test(decisions_for_which_it_has_no_time_are_passed_over),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
