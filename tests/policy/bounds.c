/* Whatever a policy does or leaves undone, and whatever fails: every request ends within a bound, the clock moves on,
 * and nobody spins. */
#include "tests/rig/policy_rig.h"

#include "engine/base/file.h"
#include "engine/live.h"

static void swap_to_shipped(struct rig *t, const char *path)
{
    struct buf source = {0};
    struct err e = {0};
    if (file_read(&source, path, 1 << 20, &e))
        fail_msg("%s", e.text);
    rig_live(t, "bounds", source.data);
    buf_free(&source);
}

/* Returns how often the policy was asked. */
static uint64_t run_for(struct rig *t, int64_t ns)
{
    uint64_t before = engine_world(t->engine)->step;
    rig_run_for(t, ns);
    return engine_world(t->engine)->step - before;
}

#define SERVE                                                                                                          \
    "for _, g in ipairs(view.idle) do local b = act.batch(g) b:decodes() b:prefill() if b.tokens > 0 then "            \
    "act.forward(g, b) end end "

/* ---- who fits nowhere */

/* Two ranks hold a request together, one fails: the request is told so, and those behind it are served, by the policy
 * itself. */
static void lose_a_rank_under(const char *path)
{
    struct rig t;
    rig_open(&t, &(struct rig_knobs){.ranks = 2, .blocks = 20, .fail_rank = 1, .fail_at_step = 3});
    if (path)
        swap_to_shipped(&t, path);
    uint64_t big = rig_submit(&t, "", 450, 50);
    for (int i = 0; i < 5; i++)
        rig_submit(&t, "", 20, 10);
    run_for(&t, SECONDS(5));
    assert_int_equal(t.heard[big].ending, END_ERROR);
    assert_int_equal(t.heard[big].status, 503);
    for (uint64_t i = big + 1; i <= t.n_tags; i++)
        assert_int_equal(t.heard[i].ending, END_LENGTH);
    uint64_t late = rig_submit(&t, "", 450, 50), small = rig_submit(&t, "", 20, 10);
    run_for(&t, SECONDS(5));
    assert_int_equal(t.heard[late].ending, END_REFUSED);
    assert_int_equal(t.heard[late].status, 503);
    assert_int_equal(t.heard[small].ending, END_LENGTH);
    assert_int_equal(rig_state(&t, "policy.withdrawn"), 0);
    assert_int_equal(rig_metric(&t, "policy_fallback_total{reason=\"stalled\"}"), 0);
    rig_check(&t);
    rig_close(&t);
}

static void a_lost_rank_ends_what_the_others_cannot_hold(void **state)
{
    (void)state;
    static const char *const shipped[] = {NULL,
                                          "policies/fcfs.lua",
                                          "policies/priority.lua",
                                          "policies/fair.lua",
                                          "policies/shift.lua",
                                          "policies/flying.lua",
                                          "policies/static.lua",
                                          "policies/auto.lua",
                                          "policies/sidp.lua",
                                          "policies/bucket.lua",
                                          "policies/daynight.lua",
                                          "policies/leastwaste.lua",
                                          "policies/ontime.lua",
                                          "policies/prefix.lua",
                                          "policies/session.lua",
                                          "policies/shortest.lua",
                                          "policies/tiers.lua"};
    for (size_t i = 0; i < sizeof shipped / sizeof *shipped; i++)
        lose_a_rank_under(shipped[i]);
}

/* It has begun, and outgrows what is left of the node: it ends then, not before. */
static void who_outgrows_the_node_ends(void **state)
{
    (void)state;
    struct rig t;
    rig_open(&t, &(struct rig_knobs){.ranks = 2, .blocks = 20, .fail_rank = 1, .fail_at_step = 12});
    uint64_t grows = rig_submit(&t, "", 300, 150);
    rig_submit(&t, "", 20, 10);
    run_for(&t, SECONDS(5));
    assert_int_equal(t.heard[grows].ending, END_ERROR);
    assert_int_equal(t.heard[grows].n_tokens, 21); /* 320 tokens are cached, one more is known */
    assert_int_equal(t.heard[grows + 1].ending, END_LENGTH);
    rig_check(&t);
    rig_close(&t);
}

/* Nobody binds the two ranks that the first in the queue needs: the others go on, and it is served when it has waited
 * too long. */
static void a_misfit_at_the_head_bars_nobody(void **state)
{
    (void)state;
    struct rig t;
    rig_open(&t, &(struct rig_knobs){.ranks = 2, .group_size = 1, .blocks = 20, .starvation_s = 1});
    rig_live(&t, "bounds", "return { api = 1, doc = 'x', step = function(view, act) " SERVE "end }");
    uint64_t big = rig_submit(&t, "", 450, 20);
    for (int i = 0; i < 900; i++) {
        rig_submit(&t, "", 20, 10);
        run_for(&t, SECONDS(0.005));
    }
    assert_true(t.heard[big + 1].end_ns < SECONDS(1.2));
    assert_int_equal(t.heard[big].ending, END_LENGTH);
    assert_true(t.heard[big].end_ns < SECONDS(2.5));
    run_for(&t, SECONDS(5));
    assert_true(rig_metric(&t, "policy_fallback_total{reason=\"starved\"}") > 0);
    assert_int_equal(rig_metric(&t, "policy_fallback_total{reason=\"stalled\"}"), 0);
    rig_check(&t);
    rig_close(&t);
}

/* ---- orders given again and again */

/* Somebody runs, somebody waits, and the policy says in each step what it has said before. */
static void say_again(const char *what, uint64_t at_most)
{
    struct rig t;
    char source[1024];
    rig_open(&t, &(struct rig_knobs){.ranks = 2, .group_size = 1});
    snprintf(source, sizeof source,
             "return { api = 1, doc = 'x', step = function(view, act) " SERVE "if view.step > 5 then %s end end }",
             what);
    rig_live(&t, "bounds", source);
    rig_submit(&t, "", 30, 200);
    run_for(&t, SECONDS(0.02));
    rig_submit(&t, "", 30, 20);
    uint64_t asked = run_for(&t, SECONDS(0.1));
    if (asked > at_most)
        fail_msg("asked %d times in 100 ms: %s", (int)asked, what);
    run_for(&t, SECONDS(60));
    rig_check(&t);
    rig_close(&t);
}

static void asking_again_is_no_change(void **state)
{
    (void)state;
    say_again("act.bind({ 0, 1 }, { when = 'drain' })", 400);
    say_again("act.release(view.groups[1], { when = 'drain' })", 400);
    say_again("if view.groups[2] then act.preempt(view.groups[2], 'drain') end", 400);
    say_again("act.open(view.groups[1])", 400); /* a step takes a millisecond */
    say_again("local g = view.groups[2] if g and g.closed then act.open(g) elseif g then act.preempt(g, 'drain') end",
              100 * LIVE_MAX_BARREN * 2);
}

/* What a policy changes in each call, and runs nothing by, is a reason to ask it again: but not without end at one
 * moment. Somebody's step is under way meanwhile, or is held. */
static void nothing_goes_on_for_ever_at_one_moment(void **state)
{
    (void)state;
    static const char *const ways[] = {
        "n = n + 1 for _, ranks in ipairs(n % 2 == 0 and { { 0 }, { 1 } } or { { 0, 1 } }) do\n"
        "  act.bind(ranks, { when = n % 2 == 0 and 'soft' or 'drain', max_wait_ms = 50, kv = 'keep' }) end",
        "act.weights('all', n % 2 == 0 and 'replicated' or 'pooled') n = n + 1",
        "local w = view.waiting n = n + 1 for i = 1, view.now < 20 and w.n or 0 do\n"
        "  act.hold(w.id[i], (i + n) % 2 == 0 and 'later' or nil, view.now + 5) end",
        "for i = 1, view.now < 20 and view.waiting.n or 0 do act.hold(view.waiting.id[i], 'later', view.now + 1e-9) "
        "end",
        "act.wake(1e-6) if view.now < 4 then return end",
        "for _, g in ipairs(view.groups) do n = n + 1 if g.closed then act.open(g) else act.preempt(g, 'drain') end "
        "end",
    };
    struct ffn_setup pool = {.n_ranks = 2, .n_layers = 2, .n_slots = 2, .tile_bytes = 1 << 20};
    assert_int_equal(ffn_parse_owners(&pool, "layer-mod", NULL), 0);
    for (size_t i = 0; i < 2 * sizeof ways / sizeof *ways; i++) {
        struct rig t;
        char source[1024];
        rig_open(&t, &(struct rig_knobs){.ranks = 2, .group_size = 1, .ffn = &pool});
        snprintf(source, sizeof source,
                 "local n = 0 return { api = 1, doc = 'x', needs = { 'id' }, step = function(view, act)\n"
                 "  if view.step > 5 then %s end if view.step < 6 or not %s then " SERVE "end end }",
                 ways[i / 2], i % 2 ? "true" : "false");
        rig_live(&t, "bounds", source);
        for (int k = 0; k < 5; k++)
            rig_submit(&t, "", 30, 40);
        uint64_t asked = run_for(&t, SECONDS(1));
        if (asked > 65000)
            fail_msg("asked %d times in a second: %s", (int)asked, ways[i / 2]);
        for (int k = 0; k < 5; k++)
            rig_submit(&t, "", 30, 40);
        run_for(&t, SECONDS(60));
        for (uint64_t k = 1; k <= t.n_tags; k++)
            if (t.heard[k].n_ends != 1)
                fail_msg("request %d has no end after a minute: %s", (int)k, ways[i / 2]);
        rig_check(&t);
        rig_close(&t);
    }
}

/* The layers of a rank that has failed are loaded again when no step runs any more: until then nothing is decided, also
 * for a policy that wants to be woken. */
static void nobody_is_woken_before_weights_are_whole(void **state)
{
    (void)state;
    struct rig t;
    struct ffn_setup pool = {.n_ranks = 4, .n_layers = 2, .n_slots = 2, .tile_bytes = 1 << 20};
    assert_int_equal(ffn_parse_owners(&pool, "layer-mod", NULL), 0);
    rig_open(&t, &(struct rig_knobs){.ranks = 4, .group_size = 1, .ffn = &pool, .fail_rank = 1, .fail_at_step = 5});
    rig_live(&t, "bounds",
             "return { api = 1, doc = 'x', step = function(view, act) for _, g in ipairs(view.idle) do\n"
             "  local b = act.batch(g) b:decodes() b:prefill(view.n_running < 2 and view.waiting or {}, 9 + "
             "8 * g.ranks[1], 'any')\n"
             "  if b.tokens > 0 then act.forward(g, b) end end act.wake(0.01) end }");
    for (int i = 0; i < 12; i++)
        rig_submit(&t, "", 20 + i * 30, 20 + i);
    run_for(&t, SECONDS(5));
    for (uint64_t i = 1; i <= t.n_tags; i++)
        assert_int_equal(t.heard[i].ending, END_LENGTH);
    assert_int_equal(rig_metric(&t, "policy_fallback_total{reason=\"stalled\"}"), 0);
    rig_check(&t);
    rig_close(&t);
}

/* Its KV lies where there is no group any more, it is told to begin again, and that is all that the plan says: it is
 * asked again, since the request can run now. */
static void who_begins_again_can_run_at_once(void **state)
{
    (void)state;
    struct rig t;
    rig_open(&t, &(struct rig_knobs){.ranks = 2});
    rig_live(&t, "bounds",
             "local bound return { api = 1, doc = 'x', needs = { 'waiting.parked' }, step = function(view, act)\n"
             "  local w = view.waiting\n"
             "  for i = 1, w.n do if w.parked[i] then act.remap(w.id[i], view.groups[1], 'recompute') return end end\n"
             "  if not bound and view.n_running == 1 and view.step > 8 then bound = true\n"
             "    for r = 0, 1 do act.bind({ r }, { kv = 'park' }) end return end\n"
             "  " SERVE "end }");
    uint64_t only = rig_submit(&t, "", 60, 40);
    run_for(&t, SECONDS(0.15)); /* --max-park-seconds would end it at 0.2 */
    assert_int_equal(t.heard[only].ending, END_LENGTH);
    assert_int_equal(rig_metric(&t, "policy_fallback_total{reason=\"stalled\"}"), 0);
    rig_check(&t);
    rig_close(&t);
}

/* An order that changes all the time waits no longer than it would have as it was; and one that has somebody wait for
 * requests that it does not run is a stall. */
static void pending_orders_hide_no_stall(void **state)
{
    (void)state;
    static const char *const steps[] = {
        "n = n + 1 act.release(view.groups[1], { when = 'drain', max_wait_ms = 3600000, kv = n % 2 == 0 and 'park' or "
        "'migrate' })",
        "act.release(view.groups[1], { when = 'drain', max_wait_ms = 3600000 })",
        "n = n + 1 act.bind(n % 2 == 0 and { 0, 1 } or { 0 }, { when = 'soft', max_wait_ms = 3600000 })",
        "n = n + 1 act.bind(n % 2 == 0 and { 0, 1 } or { 0 }) act.wake(10)",
    };
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        struct rig t;
        char source[1024];
        rig_open(&t, &(struct rig_knobs){.ranks = 2});
        snprintf(source, sizeof source,
                 "local n = 0 return { api = 1, doc = 'x', step = function(view, act) if view.step > 5 and "
                 "#view.groups > 0 then %s else " SERVE "end end }",
                 steps[i]);
        rig_live(&t, "bounds", source);
        rig_submit(&t, "", 30, 40);
        run_for(&t, SECONDS(0.01));
        rig_submit(&t, "", 30, 40);
        uint64_t asked = run_for(&t, SECONDS(30));
        if (asked > 12000)
            fail_msg("asked %d times: %s", (int)asked, steps[i]);
        for (uint64_t k = 1; k <= t.n_tags; k++)
            if (t.heard[k].n_ends != 1)
                fail_msg("request %d has no end after 30 s: %s", (int)k, steps[i]);
        assert_true(rig_metric(&t, "policy_fallback_total{reason=\"stalled\"}") > 0);
        rig_check(&t);
        rig_close(&t);
    }
}

static int64_t slow_move(const struct device *d, const struct kv_move *m)
{
    (void)d;
    (void)m;
    return 200000;
}

/* Nothing can start while KV is copied from rank to rank: it holds its old blocks yet, and its new ones already. */
static void waiting_for_a_copy_is_no_stall(void **state)
{
    (void)state;
    struct rig t;
    struct backend_ops ops = *backend_sim();
    ops.kv_move_ns = slow_move;
    rig_open(&t, &(struct rig_knobs){.ranks = 2, .group_size = 1, .blocks = 12, .ops = &ops});
    rig_live(&t, "bounds",
             "local moved return { api = 1, doc = 'x', needs = { 'running.group', 'waiting.parked', 'waiting.home' },\n"
             "step = function(view, act) local r, w, g = view.running, view.waiting, view.groups\n"
             "  if not moved and w.n == 2 and r.n == 1 then\n"
             "    if #view.idle == 2 and act.preempt(r.id[1], 'hard') then moved = r.group[1] act.wake(1) end\n"
             "    return\n"
             "  end\n"
             "  for i = 1, w.n do if moved and w.parked[i] and w.home[i] == moved then\n"
             "    act.remap(w.id[i], g[1].id == moved and g[2] or g[1]) moved = -1 return end end\n"
             "  " SERVE "end }");
    rig_submit(&t, "", 100, 40);
    run_for(&t, SECONDS(0.02));
    rig_submit(&t, "", 150, 5);
    rig_submit(&t, "", 150, 5);
    run_for(&t, SECONDS(2));
    for (uint64_t k = 1; k <= t.n_tags; k++)
        assert_int_equal(t.heard[k].n_ends, 1);
    assert_true(rig_metric(&t, "moonshift:kv_moves_total{engine=\"0\",model_name=\"sim\"}") == 1);
    assert_int_equal(rig_metric(&t, "policy_fallback_total{reason=\"stalled\"}"), 0);
    rig_check(&t);
    rig_close(&t);
}

/* The deadline of the first of a row of orders for the same ranks stands for all. */
static void a_changed_order_keeps_its_deadline(void **state)
{
    (void)state;
    struct rig t;
    rig_open(&t, &(struct rig_knobs){.ranks = 2, .group_size = 1});
    rig_live(&t, "bounds",
             "local n = 0 return { api = 1, doc = 'x', step = function(view, act) n = n + 1 " SERVE
             "if #view.groups == 2 and view.n_running > 0 then act.bind({ 0, 1 }, { when = 'drain', max_wait_ms = "
             "50, kv = n % 2 == 0 and 'park' or 'migrate' }) end end }");
    rig_submit(&t, "", 30, 400);
    run_for(&t, SECONDS(0.2));
    assert_int_equal(rig_state(&t, "n_switches"), 3); /* two groups at the start, and the order */
    run_for(&t, SECONDS(2));
    rig_check(&t);
    rig_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_lost_rank_ends_what_the_others_cannot_hold),
        cmocka_unit_test(who_outgrows_the_node_ends),
        cmocka_unit_test(a_misfit_at_the_head_bars_nobody),
        cmocka_unit_test(asking_again_is_no_change),
        cmocka_unit_test(nothing_goes_on_for_ever_at_one_moment),
        cmocka_unit_test(nobody_is_woken_before_weights_are_whole),
        cmocka_unit_test(who_begins_again_can_run_at_once),
        cmocka_unit_test(pending_orders_hide_no_stall),
        cmocka_unit_test(waiting_for_a_copy_is_no_stall),
        cmocka_unit_test(a_changed_order_keeps_its_deadline),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
