/* A policy on probation, in the whole engine in virtual time: policies that starve a class, halve what is served or
 * make one tenant wait go back to the one before by themselves, with the cause named; who was there loses nothing, the
 * policy before goes on with the state that it had, and nothing that the bad one ordered stays. Policies that do no
 * harm are kept, under noisy load. Whatever else ends the life of a policy ends its probation, with its outcome said.
 */
#include "tests/rig/policy_rig.h"

#include <math.h>

#include "engine/base/file.h"
#include "engine/base/rng.h"

#define SECOND 1000000000ll
enum { RATE = 80 }; /* requests/s: a third of what the two ranks can do */

static const double PROBATION_S = 3; /* spans of 0.1 s */

/* fcfs, with changes: %s are its other members, its queue's prompts, and what it does first. */
#define LIKE_FCFS(members, first, prefill)                                                                             \
    "return { api = 1, doc = 'test', params = { budget = { default = 16 } }, needs = { 'id', 'tenant', 'priority' "    \
    "},\n"                                                                                                             \
    "  " members "\n  step = function(view, act, p) " first "\n"                                                       \
    "    for _, g in ipairs(view.idle) do local b = act.batch(g) b:decodes() " prefill "\n"                            \
    "      if b.tokens > 0 then act.forward(g, b) end end end }"

static const char good[] = LIKE_FCFS("", "", "b:prefill(view.waiting, p.budget)");
static const char halved[] = LIKE_FCFS("", "", "b:prefill(view.waiting, math.max(0, 8 - b.tokens))");
static const char slow_for_b[] = LIKE_FCFS("admit = function(r, view, act) if r.tenant == 'b' and not r.again then "
                                           "act.hold(r, 'wait', view.now + 0.4) end end,",
                                           "", "b:prefill(view.waiting, p.budget)");
/* Low requests never begin; it also closes a group and asks to be woken for ever. */
static const char starves[] = LIKE_FCFS(
    "", "act.wake(20) if #view.groups > 1 and not view.groups[2].closed then act.preempt(view.groups[2], 'drain') end",
    "local w, ids = view.waiting, {} for i = 1, w.n do if w.priority[i] <= 0 then "
    "table.insert(ids, w.id[i]) end end b:prefill(ids)");

struct load {
    struct rng rng;
    bool bursty;
    double rate; /* 0: RATE */
    double next_s;
};

static double gap(struct load *l)
{
    double mean = 1.0 / (l->rate ? l->rate : RATE);
    if (l->bursty) /* half of the requests come in crowds */
        mean = rng_below(&l->rng, 2) ? mean * 0.2 : mean * 1.8;
    return -mean * log(1 - rng_unit(&l->rng));
}

static void drive(struct rig *t, struct load *l, double seconds)
{
    double until = (double)clock_now(&t->clock) * 1e-9 + seconds;
    if (!l->next_s)
        l->next_s = (double)clock_now(&t->clock) * 1e-9;
    for (; l->next_s < until; l->next_s += gap(l)) {
        rig_run_until(t, (int64_t)(l->next_s * 1e9));
        uint64_t dice = rng_below(&l->rng, 4);
        int n_prompt = 40 + (int)rng_below(&l->rng, 120), n_output = 4 + (int)rng_below(&l->rng, 24);
        struct request_spec *s = rig_spec(t, dice == 0 ? "b" : "a", n_prompt, n_output);
        s->priority = dice == 1;
        rig_post(t, IN_SUBMIT, s, 0);
    }
    rig_run_until(t, (int64_t)(until * 1e9));
}

static void open_loaded(struct rig *t, struct load *l, uint64_t seed, int group_size)
{
    rig_open(t, &(struct rig_knobs){
                    .batched = 16, .blocks = 1024, .ranks = 2, .group_size = group_size, .probation_s = PROBATION_S});
    *l = (struct load){0};
    rng_init(&l->rng, seed);
}

/* A member of the policy's state that is a text, "" where it is null. */
static void policy_text(struct rig *t, const char *object, const char *name, char *out, size_t cap)
{
    rig_post(t, IN_STATE, NULL, 0);
    rig_turn(t);
    struct json *root = json_parse(t->reply.data, t->reply.len, NULL, NULL);
    const char *text = json_text(json_find(json_find(json_find(root, "policy"), object), name));
    snprintf(out, cap, "%s", text ? text : "");
    json_free(root);
}

static const char *live_policy(struct rig *t)
{
    return engine_policy(t->engine)->name;
}

/* ---- what does harm */

struct harm {
    const char *name, *source, *says, *or_says;
    double rate;
};

static const struct harm harms[] = {
    {"halved", halved, "throughput: ", "TTFT of all requests: ", 2.2 * RATE},
    {"halved", halved, "throughput: ", "throughput: ", 3.5 * RATE}, /* more than can be done, before and after */
    {"slow_for_b", slow_for_b, "TTFT of tenant b: ", "TTFT of tenant b: ", RATE},
    {"starves", starves, "starvation of low requests: ", "starvation of low requests: ", RATE},
};

static bool begins(const char *text, const char *with)
{
    return strncmp(text, with, strlen(with)) == 0;
}

static void harm_goes_back_by_itself(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof harms / sizeof *harms; i++) {
        struct rig t;
        struct load l;
        char reason[500];
        open_loaded(&t, &l, 5 + i, 1);
        l.rate = harms[i].rate;
        rig_live(&t, "good", good);
        drive(&t, &l, 2 * PROBATION_S);
        rig_live(&t, harms[i].name, harms[i].source);
        policy_text(&t, "last_probation", "reason", reason, sizeof reason);
        assert_non_null(strstr(reason, "not enough before the swap to compare"));
        double swapped = (double)clock_now(&t.clock) * 1e-9;
        for (int k = 0; k < 20 && !strcmp(live_policy(&t), harms[i].name); k++)
            drive(&t, &l, PROBATION_S / 20);
        policy_text(&t, "last_probation", "reason", reason, sizeof reason);
        print_message("%s: %.1f s: %s\n", harms[i].name, (double)clock_now(&t.clock) * 1e-9 - swapped, reason);
        assert_string_equal(live_policy(&t), "good"); /* within its window */
        assert_true(begins(reason, harms[i].says) || begins(reason, harms[i].or_says));
        assert_true(rig_metric(&t, "policy_probations_total{result=\"rolled_back\"}") == 1);
        assert_true(rig_metric(&t, "policy_swaps_total{kind=\"rollback\"}") == 1);
        assert_int_equal(t.n_told, 2); /* the good one was kept */
        assert_non_null(strstr(t.told, "\"event\":\"rollback\""));
        assert_non_null(strstr(t.told, reason));
        const struct world *w = engine_world(t.engine); /* nothing that it has set going is left */
        assert_int_equal(w->n_held, 0);
        for (int g = 0; g < w->partition.n_groups; g++)
            assert_false(partition_group((struct partition *)&w->partition, g)->closed);
        rig_settle(&t);
        rig_check(&t);
        rig_close(&t);
    }
}

/* ---- nobody loses anything */

/* What it has counted is its state: the key of whoever it admits. The next one takes it over and goes far beyond. */
static const char counts[] =
    "local n = 0\n" LIKE_FCFS("admit = function() n = n + 1 return n end, export = function() return { n = n } end,",
                              "", "b:prefill(view.waiting, p.budget)");
static const char counts_on[] =
    "local n = 0\n" LIKE_FCFS("import = function(s) n = s.n + 1e6 end, admit = function(r, view, act) n = n + 1\n"
                              "if r.tenant == 'b' and not r.again then act.hold(r, 'wait', view.now + 0.4) end return "
                              "n end,",
                              "", "b:prefill(view.waiting, p.budget)");

static void keys_of(const struct rig *t, double *least, double *most)
{
    const struct world *w = engine_world(t->engine);
    *least = 1e300;
    *most = 0;
    for (int i = 0; i < w->requests.n_slots; i++) {
        const struct request *r = w->requests.slots[i];
        if (!r)
            continue;
        *least = r->key < *least ? r->key : *least;
        *most = r->key > *most ? r->key : *most;
    }
}

static void state_and_texts_are_those_of_before(void **state)
{
    (void)state;
    static uint64_t texts[RIG_TAGS];
    for (int swapped = 0; swapped < 2; swapped++) {
        struct rig t;
        struct load l;
        double least, most, before;
        open_loaded(&t, &l, 9, 1);
        rig_live(&t, "counts", counts);
        drive(&t, &l, 2 * PROBATION_S);
        keys_of(&t, &least, &before);
        assert_true(before > 100 && before < 1e5);
        if (swapped)
            rig_live(&t, "counts_on", counts_on);
        for (int k = 0; k < 20 && swapped && strcmp(live_policy(&t), "counts"); k++) {
            drive(&t, &l, PROBATION_S / 20);
            keys_of(&t, &least, &most);
            assert_true(strcmp(live_policy(&t), "counts") == 0 || least > 1e6);
        }
        keys_of(&t, &least, &most);
        assert_string_equal(live_policy(&t), "counts");
        assert_true(!swapped ||
                    (least > before && most < before + 200)); /* all asked for again, by the count of then */
        while (t.n_tags < 900)
            drive(&t, &l, 0.01);
        rig_settle(&t);
        rig_check(&t);
        for (uint64_t i = 1; i <= 900; i++) {
            assert_true(!swapped || texts[i] == t.heard[i].text);
            texts[i] = t.heard[i].text;
            assert_int_equal(t.heard[i].ending, END_LENGTH);
        }
        rig_close(&t);
    }
}

/* ---- what does no harm */

static int tries(int usual)
{
    const char *many = getenv("MOONSHIFT_NULLS");
    return many ? atoi(many) : getenv("MOONSHIFT_SLOW") ? 3 : usual;
}

static void the_harmless_are_kept(void **state)
{
    (void)state;
    struct buf shift = {0};
    assert_int_equal(file_read(&shift, "policies/shift.lua", 1 << 20, NULL), 0);
    struct rng rng = {3};
    int n = tries(10), kept = 0, back = 0;
    for (int i = 0; i < n; i++) {
        struct rig t;
        struct load l;
        char outcome[32], reason[500];
        open_loaded(&t, &l, 100 + (uint64_t)i, i % 3 ? 1 : 2); /* shift runs one group, as was before it */
        l.bursty = i % 2;
        l.rate = RATE * (i % 3 ? 2 : 1) * (0.4 + 1.1 * rng_unit(&rng));
        rig_live(&t, "good", good);
        drive(&t, &l, PROBATION_S * (1.1 + rng_unit(&rng)));
        rig_live(&t, "other", i % 3 ? good : shift.data);
        for (int k = 0; k < 12 && t.n_told < 2; k++)
            drive(&t, &l, PROBATION_S / 4);
        policy_text(&t, "last_probation", "outcome", outcome, sizeof outcome);
        policy_text(&t, "last_probation", "reason", reason, sizeof reason);
        back += !strcmp(outcome, "rolled_back");
        kept += !strcmp(outcome, "committed") && t.n_told == 2;
        if (!strcmp(outcome, "rolled_back"))
            print_message("%s, %.0f requests/s%s: %s\n", i % 3 ? "the same" : "shift", l.rate,
                          i % 2 ? " in bursts" : "", reason);
        rig_settle(&t);
        rig_check(&t);
        rig_close(&t);
    }
    print_message("%d harmless swaps under noisy load: %d rolled back, %d kept within three windows\n", n, back, kept);
    assert_int_equal(back, 0);
    assert_true(kept * 2 >= n);
    buf_free(&shift);
}

/* ---- what was predicted */

static void make_live_as_predicted(struct rig *t, const char *source, struct prediction predicted)
{
    struct err e = {0};
    struct policy *p = mem_new(sizeof *p);
    if (lua_policy_load(p, "mine", source, strlen(source), &t->opts, NULL, &e))
        fail_msg("%s", e.text);
    p->predicted = predicted;
    rig_post(t, IN_POLICY, p, 0);
    rig_turn(t);
    assert_int_equal(t->reply_code, 0);
}

struct foretold {
    double tpot;  /* predicted; NAN: nothing is */
    double rises; /* so many times as many come from the swap on; else nothing has changed */
    bool is_strict;
    const char *outcome, *result, *says;
};

static const struct foretold foretold[] = {
    {0, 1, true, "committed", "as_predicted", "no guard has tripped; as predicted: TPOT "},
    {5, 1, false, "committed", "better", "better than predicted: TPOT "},
    {-0.9, 1, false, "committed", "worse", "no guard has tripped; worse than predicted: TPOT "},
    {-0.9, 1, true, "rolled_back", "worse", "held to its prediction, it is worse than predicted: TPOT "},
    {-0.9, 2, false, "committed", "undecided", "undecided whether as predicted: TPOT "},
    {NAN, 1, true, "committed", "unknown", "too little to compare its prediction with"},
};

static void predictions_are_looked_back_at(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof foretold / sizeof *foretold; i++) {
        const struct foretold *x = &foretold[i];
        struct rig t;
        struct load l;
        char text[500];
        struct prediction p = {
            .is_made = true, .is_strict = x->is_strict, .n_requests = 500, .shadow = {.n_asked = 10, .n_equal = 9}};
        p.changes[PREDICTED_TPOT] = (struct predicted_change){x->tpot, x->tpot, x->tpot, !isnan(x->tpot)};
        open_loaded(&t, &l, 40, 1);
        rig_live(&t, "good", good);
        drive(&t, &l, 2 * PROBATION_S);
        make_live_as_predicted(&t, good, p);
        assert_true(rig_state(&t, "policy.probation.prediction.shadow.equal") == 0.9);
        l.rate = RATE * x->rises;
        for (int k = 0; k < 12 && t.n_told < 2; k++)
            drive(&t, &l, PROBATION_S / 4);
        policy_text(&t, "last_probation", "reason", text, sizeof text);
        print_message("%s\n", text);
        assert_non_null(strstr(text, x->says));
        assert_non_null(strstr(t.told, text)); /* the event says the same */
        policy_text(&t, "last_probation", "outcome", text, sizeof text);
        assert_string_equal(text, x->outcome);
        assert_string_equal(live_policy(&t), strcmp(x->outcome, "committed") ? "good" : "mine");
        assert_true(rig_state(&t, "policy.last_probation.prediction.strict") == x->is_strict);
        char line[80];
        snprintf(line, sizeof line, "policy_predictions_total{result=\"%s\"}", x->result);
        assert_true(rig_metric(&t, line) == 1);
        rig_settle(&t);
        rig_check(&t);
        rig_close(&t);
    }
}

/* ---- a rank that fails */

/* Whoever is live then serves with less: more than one rank can do comes in. */
static void a_rank_that_fails_is_no_policys_fault(void **state)
{
    (void)state;
    char outcome[32], reason[500];
    uint64_t fail_at_step = 0;
    for (int i = 0; i < 2; i++) { /* first without: how many steps does a rank take until the swap? */
        struct rig t;
        struct load l = {.rate = 2.2 * RATE};
        rng_init(&l.rng, 3);
        rig_open(&t, &(struct rig_knobs){.batched = 16,
                                         .blocks = 1024,
                                         .ranks = 2,
                                         .group_size = 1,
                                         .probation_s = PROBATION_S,
                                         .fail_rank = 1,
                                         .fail_at_step = fail_at_step});
        drive(&t, &l, 2 * PROBATION_S);
        fail_at_step = (uint64_t)(rig_metric(&t, "moonshift:steps_total{engine=\"0\",model_name=\"sim\"}") * 0.6);
        assert_true(rig_metric(&t, "moonshift:ranks_alive{engine=\"0\",model_name=\"sim\"}") == 2);
        rig_live(&t, "good", good);
        drive(&t, &l, PROBATION_S);
        policy_text(&t, "last_probation", "outcome", outcome, sizeof outcome);
        policy_text(&t, "last_probation", "reason", reason, sizeof reason);
        if (i) {
            assert_true(rig_metric(&t, "moonshift:ranks_alive{engine=\"0\",model_name=\"sim\"}") == 1);
            assert_string_equal(outcome, "committed");
            assert_non_null(strstr(reason, "undecided: a rank has failed since"));
            assert_string_equal(live_policy(&t), "good");
        }
        rig_settle(&t);
        rig_close(&t);
    }
}

/* ---- other ends */

static void ends_as(struct rig *t, const char *outcome, const char *reason)
{
    char text[500];
    policy_text(t, "last_probation", "outcome", text, sizeof text);
    assert_string_equal(text, outcome);
    policy_text(t, "last_probation", "reason", text, sizeof text);
    if (!strstr(text, reason))
        fail_msg("'%s' says nothing of '%s'", text, reason);
}

static void is_on(struct rig *t, const char *want)
{
    char text[32];
    policy_text(t, "probation", "state", text, sizeof text);
    assert_string_equal(text, want);
}

static void whatever_comes_ends_it_first(void **state)
{
    (void)state;
    static const char broken[] =
        LIKE_FCFS("", "if p.budget == 7 then error('as told') end", "b:prefill(view.waiting, p.budget)");
    struct rig t;
    struct load l;
    open_loaded(&t, &l, 1, 1);
    is_on(&t, "off"); /* the policy of the start is on no probation */
    rig_live(&t, "one", good);
    is_on(&t, "on");
    assert_int_equal(t.n_told, 0);
    assert_int_not_equal(rig_swap(&t, "bad", "return { api = 1, step = 5 }"), 0); /* a refused swap ends nothing */
    is_on(&t, "on");
    rig_live(&t, "two", good);
    ends_as(&t, "replaced", "two has taken its place");
    is_on(&t, "on");
    rig_post(&t, IN_ROLLBACK, NULL, 0);
    rig_turn(&t);
    assert_string_equal(live_policy(&t), "one");
    ends_as(&t, "recalled", "an operator has rolled it back");
    is_on(&t, "off");              /* what was live before is on none */
    assert_int_equal(t.n_told, 0); /* who ordered it knows */
    rig_live(&t, "broken", broken);
    rig_post(&t, IN_PARAMS, mem_strdup("{\"budget\":7}"), 12);
    drive(&t, &l, 0.5);
    assert_string_equal(live_policy(&t), "one");
    ends_as(&t, "withdrawn", "strikes");
    is_on(&t, "off");
    assert_non_null(strstr(t.told, "\"event\":\"withdraw\""));
    assert_int_equal(t.n_told, 1);
    rig_live(&t, "two", good);
    rig_settle(&t);
    rig_run_until(&t, clock_now(&t.clock) + (int64_t)(PROBATION_S * 9.5e9)); /* nobody comes: it waits, up to a limit */
    is_on(&t, "on");
    rig_run(&t);
    is_on(&t, "off");
    ends_as(&t, "committed", "not enough traffic to judge");
    assert_non_null(strstr(t.told, "\"event\":\"commit\""));
    static const char *const results[] = {"committed", "rolled_back", "withdrawn", "recalled", "replaced"};
    static const int counts_of[] = {1, 0, 1, 1, 1};
    for (int i = 0; i < 5; i++) {
        char line[80];
        snprintf(line, sizeof line, "policy_probations_total{result=\"%s\"}", results[i]);
        assert_true(rig_metric(&t, line) == counts_of[i]);
    }
    rig_check(&t);
    rig_close(&t);
}

/* With 0 s nothing is watched, and the engine falls asleep as ever. */
static void it_can_be_off(void **state)
{
    (void)state;
    struct rig t;
    rig_open(&t, &(struct rig_knobs){.ranks = 1});
    rig_live(&t, "slow", slow_for_b);
    is_on(&t, "disabled");
    rig_turn(&t);
    assert_true(engine_next_ns(t.engine) == INT64_MAX);
    rig_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(harm_goes_back_by_itself),       cmocka_unit_test(state_and_texts_are_those_of_before),
        cmocka_unit_test(the_harmless_are_kept),          cmocka_unit_test(a_rank_that_fails_is_no_policys_fault),
        cmocka_unit_test(whatever_comes_ends_it_first),   cmocka_unit_test(it_can_be_off),
        cmocka_unit_test(predictions_are_looked_back_at),
    };
    return cmocka_run_group_tests_name("probation", tests, NULL, NULL);
}
