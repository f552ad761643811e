/* What a policy leaves behind ends with it, whichever way it ceases to be live: a swap, a rollback, a withdrawal; and
 * stays where it goes on: a refused swap, a change of params. Then the same at random: whatever scripted policies have
 * done to the partition, lawful or not, whoever comes next serves everybody within a bound. */
#include "tests/rig/policy_rig.h"

#include "engine/base/rng.h"
#include "tests/rig/slow.h"

#define SECOND 1000000000ll

/* A policy that serves like fcfs. `p.go`: it does one thing, once; `p.fall`: it raises from then on. */
static const char meddler[] =
    "local done = false\n"
    "return { api = 1, doc = 'meddler', params = { go = { default = false }, fall = { default = false }, other = { "
    "default = 1 } },\n"
    "step = function(view, act, p)\n"
    "  if p.fall then error('as told') end\n"
    "  local function meddle() %s end\n"
    "  if p.go and not done then done = true meddle() return end\n"
    "  for _, g in ipairs(view.idle) do local b = act.batch(g) if b then b:decodes() b:prefill(view.waiting)\n"
    "    if b.tokens > 0 then act.forward(g, b) end end end\n"
    "  act.wake(5)\n"
    "end }";

static const char plain[] =
    "return { api = 1, doc = 'plain', step = function(view, act) for _, g in ipairs(view.idle) do local b = "
    "act.batch(g)\n"
    "  b:decodes() b:prefill(view.waiting) if b.tokens > 0 then act.forward(g, b) end end end }";

static const struct {
    const char *what, *code;
    const char *leaves; /* as state_of says it */
    int n_groups;       /* when it has gone */
} deeds[] = {
    {"closes every group", "for _, g in ipairs(view.groups) do act.preempt(g, 'drain') end",
     "closed 4, ordered 0, chosen 0, free 0, parked 0", 4},
    {"closes one softly", "act.preempt(view.groups[1], 'soft')", "closed 1, ordered 0, chosen 0, free 0, parked 0", 4},
    {"orders a release for in an hour", "act.release(view.groups[2], { when = 'drain', max_wait_ms = 3600000 })",
     "closed 0, ordered 1, chosen 0, free 0, parked 0", 4},
    {"orders two of them", "for i = 1, 2 do act.release(view.groups[i], { when = 'drain', max_wait_ms = 3600000 }) end",
     "closed 0, ordered 2, chosen 0, free 0, parked 0", 4},
    {"orders all ranks into one group, softly", "act.bind({ 0, 1, 2, 3 }, { when = 'soft', max_wait_ms = 3600000 })",
     "closed 0, ordered 1, chosen 0, free 0, parked 0", 4},
    {"leaves ranks out", "for i = 1, 3 do act.release(view.groups[i], 'recompute') end",
     "closed 0, ordered 0, chosen 0, free 7, parked 0", 3},
    {"leaves all ranks out", "for i = 1, 4 do act.release(view.groups[i], 'park') end",
     "closed 0, ordered 0, chosen 0, free f, parked 8", 1},
    {"chooses how ranks reduce", "act.comm({ 0, 1, 2, 3 }, 'twoshot') act.comm({ 0, 1 }, 'oneshot') act.wake(5)",
     "closed 0, ordered 0, chosen 2, free 0, parked 0", 4},
    {"parks everybody, and sleeps", "for _, g in ipairs(view.groups) do act.preempt(g, 'hard') end act.wake(60000)",
     "closed 0, ordered 0, chosen 0, free 0, parked 8", 4},
};
enum { N_DEEDS = sizeof deeds / sizeof *deeds, N_REQUESTS = 8 };

static const char *source_of(int deed)
{
    static char text[4096];
    snprintf(text, sizeof text, meddler, deeds[deed].code);
    return text;
}

static void tell(struct rig *t, enum engine_in kind, const char *params)
{
    rig_post(t, kind, params ? mem_strdup(params) : NULL, params ? strlen(params) : 0);
    rig_turn(t);
}

static const struct partition *partition_of(const struct rig *t)
{
    return &engine_world(t->engine)->partition;
}

/* What is in force here that somebody has ordered. */
static const char *state_of(const struct rig *t)
{
    static char text[200];
    const struct world *w = engine_world(t->engine);
    const struct partition *p = &w->partition;
    int n_shut = 0, n_chosen = 0, n_parked = 0;
    for (int i = 0; i < p->n_groups; i++)
        n_shut += partition_group(p, i)->shut;
    for (int i = 0; i < MAX_SETS; i++)
        n_chosen += p->algorithms[i] != 0;
    for (int i = 0; i < w->waiting.n; i++)
        n_parked += w->waiting.items[i]->parked;
    snprintf(text, sizeof text, "closed %d, ordered %d, chosen %d, free %llx, parked %d", n_shut, p->n_pending,
             n_chosen, (unsigned long long)p->free_ranks, n_parked);
    return text;
}

/* Four groups, requests that run, and a policy that has just done its deed; before it another was live, or only the
 * native one. */
static void open_after(struct rig *t, int deed, bool another)
{
    rig_open(t, &(struct rig_knobs){.ranks = 4, .group_size = 1, .seqs = 17});
    if (another)
        rig_live(t, "plain", plain);
    rig_live(t, "meddler", source_of(deed));
    for (int i = 0; i < N_REQUESTS; i++)
        rig_submit(t, "", 20, 60);
    rig_run_until(t, clock_now(&t->clock) + 20000000);
    tell(t, IN_PARAMS, "{\"go\": true}");
    rig_run_until(t, clock_now(&t->clock) + 10000000);
    assert_int_equal(rig_state(t, "policy.strikes"), 0);
    if (strcmp(state_of(t), deeds[deed].leaves))
        fail_msg("%s: %s, and should be %s", deeds[deed].what, state_of(t), deeds[deed].leaves);
}

/* Nothing is left of it, newcomers are served, and everybody ends. */
static void check_served(struct rig *t, int deed)
{
    for (int i = 0; i < N_REQUESTS; i++)
        rig_submit(t, "", 20, 10);
    rig_turn(t);
    if (strncmp(state_of(t), "closed 0, ordered 0, chosen 0, free 0", 37) ||
        partition_of(t)->n_groups != deeds[deed].n_groups)
        fail_msg("%s: afterwards %s, %d groups", deeds[deed].what, state_of(t), partition_of(t)->n_groups);
    rig_run_until(t, clock_now(&t->clock) + 2 * SECOND);
    for (uint64_t i = 1; i <= t->n_tags; i++)
        if (t->heard[i].n_ends != 1 || t->heard[i].ending != END_LENGTH)
            fail_msg("%s: request %d has not ended", deeds[deed].what, (int)i);
    rig_check(t);
}

static void swap(struct rig *t)
{
    rig_live(t, "successor", plain);
}

static void roll_back(struct rig *t)
{
    tell(t, IN_ROLLBACK, NULL);
    assert_int_equal(t->reply_code, 0);
}

static void be_withdrawn(struct rig *t)
{
    tell(t, IN_PARAMS, "{\"fall\": true}");
    rig_run_until(t, clock_now(&t->clock) + 20000000);
    assert_int_equal(rig_state(t, "policy.withdrawn"), 1);
}

static void what_it_leaves_behind_ends_with_it(void **state)
{
    (void)state;
    static void (*const ways[])(struct rig *) = {swap, roll_back, be_withdrawn};
    for (int deed = 0; deed < N_DEEDS; deed++)
        for (int way = 0; way < 3; way++) {
            struct rig t;
            open_after(&t, deed, true);
            ways[way](&t);
            check_served(&t, deed);
            rig_close(&t);
        }
}

static void the_native_one_serves_from_any_state(void **state)
{
    (void)state;
    for (int deed = 0; deed < N_DEEDS; deed++) {
        struct rig t;
        open_after(&t, deed, false);
        be_withdrawn(&t);
        check_served(&t, deed);
        assert_string_equal(engine_policy(t.engine)->sha256, "native");
        rig_close(&t);
    }
}

/* A swap that is refused, in start at the latest, takes nothing from who goes on; nor does a change of params. */
static void what_goes_on_keeps_it(void **state)
{
    (void)state;
    for (int deed = 0; deed < N_DEEDS; deed++)
        for (int way = 0; way < 2; way++) {
            struct rig t;
            open_after(&t, deed, true);
            const struct partition before = *partition_of(&t);
            uint64_t n_live = 0;
            if (way == 0) {
                assert_int_equal(rig_swap(&t, "bad",
                                          "return { api = 1, doc = 'x', start = function(node, act, p, view)\n"
                                          "  act.bind(node.ranks) act.comm(node.ranks, 'oneshot') if node.max_num_seqs "
                                          "== 17 then error('no') end end,\n"
                                          "  step = function(view, act) for _, g in ipairs(view.idle) do local b = "
                                          "act.batch(g) b:decodes() b:prefill()\n"
                                          "  if b.tokens > 0 then act.forward(g, b) end end end }"),
                                 E_POLICY);
                assert_int_equal(rig_state(&t, "policy.refused"), 1);
            } else {
                tell(&t, IN_PARAMS, "{\"other\": 2}");
            }
            n_live = engine_world(t.engine)->n_submitted - engine_world(t.engine)->n_ended;
            const struct partition *now = partition_of(&t);
            assert_true(n_live > 0);
            assert_int_equal(now->n_pending, before.n_pending);
            assert_int_equal(now->n_groups, before.n_groups);
            assert_true(now->free_ranks == before.free_ranks && now->left_out == before.left_out);
            assert_memory_equal(now->algorithms, before.algorithms, sizeof before.algorithms);
            for (int i = 0; i < MAX_RANKS; i++)
                assert_true(now->groups[i].id == before.groups[i].id && now->groups[i].shut == before.groups[i].shut);
            for (int i = 0; i < now->n_pending; i++)
                assert_true(now->pending[i].serial == before.pending[i].serial &&
                            now->pending[i].deadline_ns == before.pending[i].deadline_ns);
            swap(&t);
            check_served(&t, deed);
            rig_close(&t);
        }
}

/* One step is decided by the native policy, for whatever cause: what the live one has closed and ordered binds it only
 * as long as it can run something. */
static void one_step_of_the_native_one_serves_too(void **state)
{
    (void)state;
    static const char *const bad[] = {"error('now')", "return", "act.wake(60000) return",
                                      "for _, g in ipairs(view.idle) do act.batch(g) end return"};
    for (int i = 0; i < 4; i++) {
        char source[1000];
        struct rig t;
        snprintf(source, sizeof source,
                 "return { api = 1, doc = 'x', params = { go = { default = 0 } }, step = function(view, act, p)\n"
                 "  if p.go == 1 then for _, g in ipairs(view.groups) do act.preempt(g, 'drain') end end\n"
                 "  if p.go == 2 then %s end\n"
                 "  for _, g in ipairs(view.idle) do local b = act.batch(g) b:decodes() b:prefill() if b.tokens > 0 "
                 "then act.forward(g, b) end end end }",
                 bad[i]);
        rig_open(&t, &(struct rig_knobs){.ranks = 4, .group_size = 1});
        rig_live(&t, "bad", source);
        uint64_t first = rig_submit(&t, "", 20, 5);
        rig_turn(&t);
        tell(&t, IN_PARAMS, "{\"go\": 1}");
        rig_run_until(&t, clock_now(&t.clock) + SECOND);
        assert_int_equal(t.heard[first].n_ends, 1); /* closed for newcomers only */
        assert_memory_equal(state_of(&t), "closed 4", 8);
        tell(&t, IN_PARAMS, "{\"go\": 2}");
        uint64_t only = rig_submit(&t, "", 20, 5);
        rig_run_until(&t, clock_now(&t.clock) + 6 * SECOND);
        if (t.heard[only].n_ends != 1)
            fail_msg("'%s': nobody serves; %s", bad[i], state_of(&t));
        rig_check(&t);
        rig_close(&t);
    }
}

/* The watch sees who waits for a group that the policy has closed, or has ordered away for ever so long. */
static void a_closed_group_counts_as_room(void **state)
{
    (void)state;
    static const char *const bad[] = {"act.preempt(view.groups[1], 'drain')",
                                      "act.release(view.groups[1], { when = 'drain', max_wait_ms = 3600000 })"};
    for (int i = 0; i < 2; i++) {
        char source[1000];
        struct rig t;
        snprintf(source, sizeof source,
                 "local done return { api = 1, doc = 'x', params = { go = { default = false } }, step = function(view, "
                 "act, p)\n"
                 "  if p.go and not done then done = true %s end\n"
                 "  for _, g in ipairs(view.idle) do local b = act.batch(g) b:decodes() b:prefill() if b.tokens > 0 "
                 "then act.forward(g, b) end end end }",
                 bad[i]);
        rig_open(&t, &(struct rig_knobs){.ranks = 2, .group_size = 1, .blocks = 40, .starvation_s = 0.05});
        rig_live(&t, "closes", source);
        uint64_t small = rig_submit(&t, "", 100, 500), large = rig_submit(&t, "", 380, 230);
        rig_run_until(&t, clock_now(&t.clock) + 20000000);
        tell(&t, IN_PARAMS, "{\"go\": true}");
        rig_run_until(&t, clock_now(&t.clock) + 5000000);
        uint64_t waits = rig_submit(&t, "", 280, 5);
        rig_settle(&t);
        if (t.heard[waits].end_ns > t.heard[large].end_ns || t.heard[waits].end_ns > t.heard[small].end_ns)
            fail_msg("%s: it waits until there is room elsewhere", bad[i]);
        assert_true(rig_metric(&t, "policy_fallback_total{reason=\"starved\"}") > 0);
        rig_check(&t);
        rig_close(&t);
    }
}

/* Whose KV lies where the policy that has gone had its groups begins again: it would hold blocks that nobody can use,
 * so that newcomers found no room and the next policy, which can do nothing about it, counted as stalled. */
static void widen(struct rig *t)
{
    rig_live(t, "wide",
             "return { api = 1, doc = 'wide', start = function(node, act) act.bind(node.ranks) end,\n"
             "step = function(view, act) for _, g in ipairs(view.idle) do local b = act.batch(g) b:decodes()\n"
             "  b:prefill(view.waiting) if b.tokens > 0 then act.forward(g, b) end end end }");
}

static void who_is_parked_nowhere_begins_again(void **state)
{
    (void)state;
    static const struct {
        const char *parks;
        void (*goes)(struct rig *);
    } ways[] = {
        {"act.bind({ 0, 1, 2, 3 }, { when = 'hard', kv = 'park' })", swap},
        {"act.bind({ 0, 1, 2, 3 }, { when = 'hard', kv = 'park' })", roll_back},
        {"for _, g in ipairs(view.groups) do act.preempt(g, 'hard') end act.wake(60000)", widen},
    };
    for (int way = 0; way < 3; way++) {
        struct rig t;
        char source[2000];
        snprintf(source, sizeof source, meddler, ways[way].parks);
        rig_open(&t, &(struct rig_knobs){.ranks = 4, .group_size = 1, .blocks = 12});
        rig_live(&t, "plain", plain);
        rig_live(&t, "parks", source);
        for (int i = 0; i < 4; i++)
            rig_submit(&t, "", 150, 20);
        rig_run_until(&t, clock_now(&t.clock) + 12000000);
        tell(&t, IN_PARAMS, "{\"go\": true}");
        rig_run_until(&t, clock_now(&t.clock) + 5000000);
        assert_string_equal(state_of(&t), "closed 0, ordered 0, chosen 0, free 0, parked 4");
        for (int i = 0; i < 3; i++)
            rig_submit(&t, "", 150, 5);
        ways[way].goes(&t);
        int64_t began = clock_now(&t.clock);
        rig_settle(&t);
        for (uint64_t i = 1; i <= t.n_tags; i++)
            assert_true(t.heard[i].n_ends == 1 && t.heard[i].ending == END_LENGTH);
        assert_int_equal(rig_metric(&t, "policy_fallback_total{reason=\"stalled\"}"), 0);
        assert_true(clock_now(&t.clock) - began < 190000000); /* before the time to be parked is up */
        rig_check(&t);
        rig_close(&t);
    }
}

/* Whoever runs when a policy comes that binds its groups at its start: where the cache is nearly full some find no room
 * in them, are parked, and would wait for groups that do not come back; others have no room beside them; a copy takes
 * room until it ends, and a prefix that has no room to be copied is computed. None of that is a policy's fault. */
static void who_binds_its_groups_in_a_full_cache_is_never_stalled(void **state)
{
    (void)state;
    static const char *const bound[] = {"act.bind(node.ranks)", "act.bind({ 0, 1 }) act.bind({ 2, 3 })",
                                        "for _, rank in ipairs(node.ranks) do act.bind({ rank }) end"};
    struct rng rng = {.state = 7};
    for (int round = 0; round < (rig_slow() ? 26 : 80); round++) {
        struct rig t;
        rig_open(&t, &(struct rig_knobs){.ranks = 4, .group_size = 1, .blocks = 11 + (int)rng_below(&rng, 4)});
        for (int swap = 0; swap < 4; swap++) {
            char source[1000];
            snprintf(source, sizeof source,
                     "return { api = 1, doc = 'binds', needs = { 'waiting.parked', 'waiting.home' }, start = "
                     "function(node, act) %s end,\n"
                     "step = function(view, act) local w = view.waiting for _, g in ipairs(view.idle) do\n"
                     "  for i = 1, %d * w.n do if w.parked[i] and w.home[i] == 0 then act.remap(w.id[i], g) end end\n"
                     "  local b = act.batch(g) b:decodes()\n"
                     "  b:prefill(view.waiting) if b.tokens > 0 then act.forward(g, b) end end end }",
                     bound[rng_below(&rng, 3)], (int)rng_below(&rng, 2));
            rig_live(&t, "binds", source);
            for (int i = 0; i < 6; i++)
                rig_submit(&t, "", 20 + (int)rng_below(&rng, 110), 1 + (int)rng_below(&rng, 40));
            rig_run_until(&t, clock_now(&t.clock) + 1000000 * (1 + (int64_t)rng_below(&rng, 30)));
        }
        rig_settle(&t);
        for (uint64_t i = 1; i <= t.n_tags; i++)
            assert_true(t.heard[i].n_ends == 1 && t.heard[i].ending == END_LENGTH);
        assert_int_equal(rig_metric(&t, "policy_fallback_total{reason=\"stalled\"}"), 0);
        rig_check(&t);
        rig_close(&t);
    }
}

/* start is called each time: shift comes back to one group of all ranks, and not to those of who was live meanwhile. */
static void who_comes_back_begins_again(void **state)
{
    (void)state;
    const char *wide = "return { api = 1, doc = 'wide', params = { fall = { default = false } },\n"
                       "start = function(node, act, p) act.bind(node.ranks, { reason = 'wide' }) act.comm(node.ranks, "
                       "'twoshot') end,\n"
                       "step = function(view, act, p) if p.fall then error('as told') end "
                       "for _, g in ipairs(view.idle) do local b = act.batch(g) b:decodes() b:prefill(view.waiting)\n"
                       "  if b.tokens > 0 then act.forward(g, b) end end end }";
    const char *narrow =
        "return { api = 1, doc = 'narrow', params = { fall = { default = false } },\n"
        "start = function(node, act, p) for _, rank in ipairs(node.ranks) do act.bind({ rank }) end end,\n"
        "step = function(view, act, p) if p.fall then error('as told') end "
        "for _, g in ipairs(view.idle) do local b = act.batch(g) b:decodes() b:prefill(view.waiting)\n"
        "  if b.tokens > 0 then act.forward(g, b) end end end }";
    static void (*const ways[])(struct rig *) = {roll_back, be_withdrawn};
    for (int way = 0; way < 2; way++) {
        struct rig t;
        rig_open(&t, &(struct rig_knobs){.ranks = 4, .group_size = 2});
        for (int i = 0; i < N_REQUESTS; i++)
            rig_submit(&t, "", 20, 200);
        rig_live(&t, "wide", wide);
        rig_run_until(&t, clock_now(&t.clock) + 20000000);
        assert_int_equal(partition_of(&t)->n_groups, 1);
        assert_int_equal(partition_algorithm(engine_world(t.engine), 15), 2); /* also by act.comm in start */
        rig_live(&t, "narrow", narrow);
        rig_run_until(&t, clock_now(&t.clock) + 20000000);
        assert_int_equal(partition_of(&t)->n_groups, 4);
        assert_int_equal(partition_algorithm(engine_world(t.engine), 15), 0);
        ways[way](&t);
        rig_run_until(&t, clock_now(&t.clock) + 20000000);
        assert_int_equal(partition_of(&t)->n_groups, 1);
        assert_int_equal(partition_algorithm(engine_world(t.engine), 15), 2);
        rig_settle(&t);
        rig_check(&t);
        rig_close(&t);
    }
}

/* Who cannot begin again is not live: the engine's own policy is, and says why. */
static void who_cannot_begin_again_is_passed_over(void **state)
{
    (void)state;
    const char *once = "return { api = 1, doc = 'once', start = function(node, act, p, view) if node.max_num_seqs == "
                       "17 and view.n_running > 0 then error('only once') end end,\n"
                       "step = function(view, act) "
                       "for _, g in ipairs(view.idle) do local b = act.batch(g) b:decodes() b:prefill() if b.tokens > "
                       "0 then act.forward(g, b) end end end }";
    for (int way = 0; way < 2; way++) {
        struct rig t;
        char error[600];
        rig_open(&t, &(struct rig_knobs){.ranks = 4, .group_size = 1, .seqs = 17});
        rig_live(&t, "once", once);
        rig_live(&t, "meddler", source_of(0));
        for (int i = 0; i < N_REQUESTS; i++)
            rig_submit(&t, "", 20, 60);
        rig_run_until(&t, clock_now(&t.clock) + 20000000);
        tell(&t, IN_PARAMS, "{\"go\": true}");
        rig_run_until(&t, clock_now(&t.clock) + 10000000);
        if (way) {
            be_withdrawn(&t);
        } else {
            tell(&t, IN_ROLLBACK, NULL);
            assert_int_equal(t.reply_code, E_POLICY);
            assert_non_null(strstr(
                t.reply.data,
                "once cannot begin again, so the engine's own policy decides: start: error: once.lua:1: only once"));
        }
        assert_string_equal(engine_policy(t.engine)->sha256, "native");
        rig_last_error(&t, error, sizeof error);
        assert_non_null(strstr(error, "once cannot begin again"));
        check_served(&t, 0);
        if (!way) { /* what was rolled back from is there to go back to */
            roll_back(&t);
            assert_string_equal(engine_policy(t.engine)->name, "meddler");
        }
        rig_close(&t);
    }
}

/* Keys that another policy gave meanwhile are no answers of the one that comes back. */
static void keys_are_asked_for_anew(void **state)
{
    (void)state;
    const char *again = "return { api = 1, doc = 'x', params = { fall = { default = false } }, admit = function(r) "
                        "return r.again and r.key or %s end,\n"
                        "step = function(view, act, p) if p.fall then error('as told') end for _, g in "
                        "ipairs(view.idle) do local b = act.batch(g)\n"
                        "  b:decodes() b:prefill() if b.tokens > 0 then act.forward(g, b) end end end }";
    static void (*const ways[])(struct rig *) = {roll_back, be_withdrawn};
    for (int way = 0; way < 2; way++) {
        struct rig t;
        char source[600];
        rig_open(&t, &(struct rig_knobs){0});
        rig_submit(&t, "", 20, 200);
        snprintf(source, sizeof source, again, "5");
        rig_live(&t, "five", source);
        assert_true(engine_world(t.engine)->running.items[0]->key == 5);
        snprintf(source, sizeof source, again, "7");
        rig_live(&t, "seven", source);
        assert_true(engine_world(t.engine)->running.items[0]->key == 7);
        ways[way](&t);
        assert_true(engine_world(t.engine)->running.items[0]->key == 5);
        rig_settle(&t);
        rig_check(&t);
        rig_close(&t);
    }
}

/* Serves, and says that each call was too slow; ctx counts how often it is destroyed. */
static enum verdict slow_step(void *ctx, const struct view *v, struct plan *p, struct err *e)
{
    struct policy native;
    (void)ctx;
    policy_fcfs(&native);
    native.ops->step(native.ctx, v, p, e);
    return VERDICT_SLOW;
}

static void count_end(void *ctx)
{
    ++*(int *)ctx;
}

/* One rests, to be tried again, and the one before it is withdrawn for slowness, too: only one can rest, and both end
 * once. */
static void who_rests_gives_way_to_the_next(void **state)
{
    (void)state;
    static const struct policy_ops ops = {.step = slow_step, .destroy = count_end};
    int n_ends[2] = {0};
    struct rig t;
    rig_open(&t, &(struct rig_knobs){0});
    for (int i = 0; i < 2; i++) {
        struct policy *p = mem_new(sizeof *p);
        *p = (struct policy){.ops = &ops, .ctx = &n_ends[i], .name = "slow", .sha256 = "slow"};
        rig_post(&t, IN_POLICY, p, 0);
        rig_turn(&t);
        assert_int_equal(t.reply_code, 0);
    }
    rig_submit(&t, "", 20, 400);
    rig_settle(&t);
    assert_int_equal(rig_state(&t, "policy.withdrawn"), 2);
    assert_int_equal(n_ends[1], 1); /* it rested first */
    assert_int_equal(n_ends[0], 0);
    assert_int_equal(rig_state(&t, "policy.retry.number"), 1);
    rig_check(&t);
    rig_close(&t);
    assert_true(n_ends[0] == 1 && n_ends[1] == 1);
}

static void note_rule(void *ctx, enum draft_evict rule)
{
    *(enum draft_evict *)ctx = rule;
}

/* What of that which is kept for draft tokens goes first is a policy's word, and ends with it. */
static void what_goes_first_is_its_word(void **state)
{
    (void)state;
    static char source[4096];
    struct rig t;
    enum draft_evict rule = EVICT_OLDEST;
    struct draft_sources sources = {{{.name = "kept", .evict = note_rule, .ctx = &rule}}, 1};
    snprintf(source, sizeof source, meddler, "assert(act.evict_drafts('largest')) act.wake(5)");
    rig_open(&t, &(struct rig_knobs){.ranks = 1, .seqs = 17});
    ((struct world *)engine_world(t.engine))->drafts = &sources; /* virtual time has none */
    rig_live(&t, "meddler", source);
    rig_run_until(&t, clock_now(&t.clock) + 20000000);
    assert_int_equal(rule, EVICT_OLDEST);
    tell(&t, IN_PARAMS, "{\"go\": true}");
    rig_submit(&t, "", 20, 60);
    rig_run_until(&t, clock_now(&t.clock) + 20000000);
    assert_int_equal(rig_state(&t, "policy.strikes"), 0);
    assert_int_equal(rule, EVICT_LARGEST);
    rig_live(&t, "plain", plain);
    assert_int_equal(rule, EVICT_OLDEST);
    ((struct world *)engine_world(t.engine))->drafts = NULL;
    rig_run(&t);
    rig_check(&t);
    rig_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_it_leaves_behind_ends_with_it),
        cmocka_unit_test(the_native_one_serves_from_any_state),
        cmocka_unit_test(what_goes_on_keeps_it),
        cmocka_unit_test(a_closed_group_counts_as_room),
        cmocka_unit_test(one_step_of_the_native_one_serves_too),
        cmocka_unit_test(who_is_parked_nowhere_begins_again),
        cmocka_unit_test(who_binds_its_groups_in_a_full_cache_is_never_stalled),
        cmocka_unit_test(who_comes_back_begins_again),
        cmocka_unit_test(who_cannot_begin_again_is_passed_over),
        cmocka_unit_test(keys_are_asked_for_anew),
        cmocka_unit_test(what_goes_first_is_its_word),
        cmocka_unit_test(who_rests_gives_way_to_the_next),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
