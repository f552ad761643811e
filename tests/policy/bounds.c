/* Whatever a policy does or leaves undone, and whatever fails: every request ends within a bound, the clock moves on,
 * and nobody spins. */
#include "tests/rig/policy_rig.h"

#include "engine/base/file.h"
#include "engine/live.h"

enum { MANY_TURNS = 20000 };

static void swap_to(struct rig *t, const char *source)
{
    if (rig_swap(t, "bounds", source))
        fail_msg("%s\n%s", source, t->reply.data);
}

static void swap_to_shipped(struct rig *t, const char *path)
{
    struct buf source = {0};
    struct err e = {0};
    if (file_read(&source, path, 1 << 20, &e))
        fail_msg("%s", e.text);
    swap_to(t, source.data);
    buf_free(&source);
}

/* As rig_run_until, but fails where the engine turns and turns without end. Returns how often the policy was asked. */
static uint64_t run_for(struct rig *t, int64_t ns)
{
    int64_t until = clock_now(&t->clock) + ns, next = 0;
    uint64_t before = engine_world(t->engine)->step;
    for (int n = 0; next <= until; n++) {
        if (n == MANY_TURNS)
            fail_msg("%d turns and the clock has not moved; the policy was asked %d times", n,
                     (int)(engine_world(t->engine)->step - before));
        if (engine_turn(t->engine))
            continue;
        rig_listen(t);
        int64_t now = clock_now(&t->clock);
        next = engine_next_ns(t->engine);
        if (next <= until && next > now) {
            clock_advance_to(&t->clock, next);
            n = 0;
        }
    }
    clock_advance_to(&t->clock, until);
    return engine_world(t->engine)->step - before;
}

#define SECONDS(n) ((int64_t)((n)*1e9))
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
    swap_to(&t, "return { api = 1, doc = 'x', step = function(view, act) " SERVE "end }");
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
    swap_to(&t, source);
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
        swap_to(&t, source);
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
    swap_to(&t,
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
    swap_to(&t, "local n = 0 return { api = 1, doc = 'x', step = function(view, act) n = n + 1 " SERVE
                "if #view.groups == 2 and view.n_running > 0 then act.bind({ 0, 1 }, { when = 'drain', max_wait_ms = "
                "50, kv = n % 2 == 0 and 'park' or 'migrate' }) end end }");
    rig_submit(&t, "", 30, 400);
    run_for(&t, SECONDS(0.2));
    assert_int_equal(rig_state(&t, "n_switches"), 3); /* two groups at the start, and the order */
    run_for(&t, SECONDS(2));
    rig_check(&t);
    rig_close(&t);
}

/* ---- who gets no further */

/* One request is served so that it never ends, others come and go beside it; the policy is withdrawn when that one has
 * starved twice, and it ends. */
static void starve_by(const char *step)
{
    struct rig t;
    char source[1024];
    rig_open(&t, &(struct rig_knobs){.starvation_s = 0.5});
    snprintf(source, sizeof source,
             "local odd return { api = 1, doc = 'x', needs = { 'tenant' }, step = function(view, act) odd = not odd\n"
             "  local b, w, r = act.batch(view.groups[1]), view.waiting, view.running\n"
             "  for i = 1, r.n do if r.tenant[i] ~= 'red' then b:add(r.id[i]) end end\n"
             "  for i = 1, w.n do if w.tenant[i] ~= 'red' then b:add(w.id[i]) end end\n"
             "  local function red(q) for i = 1, q.n do if q.tenant[i] == 'red' then return q.id[i] end end end\n"
             "  if view.step < 20 then for i = 1, w.n do b:add(w.id[i]) end for i = 1, r.n do b:add(r.id[i]) end else "
             "%s end\n"
             "  if b.tokens > 0 then act.forward(view.groups[1], b) else act.wake(5) end end }",
             step);
    swap_to(&t, source);
    run_for(&t, SECONDS(0.1));
    for (int i = 0; i < 40; i++)
        rig_submit(&t, "blue", 20, 2);
    run_for(&t, SECONDS(0.1));
    uint64_t red = rig_submit(&t, "red", 40, 30);
    for (int i = 0; i < 150; i++) {
        rig_submit(&t, "blue", 20, 4);
        run_for(&t, SECONDS(0.02));
    }
    if (t.heard[red].ending != END_LENGTH)
        fail_msg("%d tokens after 3 s: %s", t.heard[red].n_tokens, step);
    assert_true(t.heard[red].end_ns < SECONDS(1 + 0.2 + 1.5));
    assert_true(rig_metric(&t, "policy_fallback_total{reason=\"starved\"}") >= 1);
    assert_int_equal(rig_state(&t, "policy.withdrawn"), 1);
    run_for(&t, SECONDS(5));
    rig_check(&t);
    rig_close(&t);
}

static void giving_way_for_ever_is_starvation(void **state)
{
    (void)state;
    starve_by(
        "if odd then if red(w) then b:add(red(w), 1) end elseif red(r) then act.preempt(red(r), 'recompute') end");
    starve_by("if red(w) then b:add(red(w), 1) elseif red(r) and odd then act.preempt(red(r), 'recompute') end");
    starve_by("if red(w) then b:add(red(w), 7) end"); /* begun, and never gone on with */
    starve_by("if red(w) then act.batch(view.groups[1]) end");
}

static int64_t very_slow_move(const struct device *d, const struct kv_move *m)
{
    (void)d;
    (void)m;
    return 150000000;
}

/* One request goes from group to group as long as it is let. Beside it others are served; or nobody is, and nothing
 * looks for who starves. */
static void carry_about(const char *step, bool alone)
{
    struct rig t;
    struct backend_ops ops = *backend_sim();
    char source[1536], metric[64];
    ops.kv_move_ns = very_slow_move; /* few plans meet it where it could run */
    rig_open(&t, &(struct rig_knobs){
                     .ranks = 4, .group_size = 1, .blocks = 64, .starvation_s = alone ? 0 : 0.5, .ops = &ops});
    snprintf(source, sizeof source,
             "local begun return { api = 1, doc = 'x',\n"
             "needs = { 'running.group', 'waiting.parked', 'waiting.home', 'tenant' }, step = function(view, act)\n"
             "  local w, r, g = view.waiting, view.running, view.groups\n"
             "  local function other(id) return g[1].id == id and g[2] or g[1] end\n"
             "  local function red(q) for i = 1, q.n do if q.tenant[i] == 'red' then return i end end end\n"
             "  begun = begun or red(r)\n"
             "  if begun then %s end\n"
             "  for _, group in ipairs(view.idle) do local b = act.batch(group)\n"
             "    for i = 1, r.n do if not begun or r.tenant[i] ~= 'red' then b:add(r.id[i]) end end\n"
             "    for i = 1, w.n do if not begun or w.tenant[i] ~= 'red' then b:add(w.id[i]) end end\n"
             "    if b.tokens > 0 then act.forward(group, b) end end act.wake(1) end }",
             step);
    swap_to(&t, source);
    uint64_t red = rig_submit(&t, "red", 40, 30);
    for (int i = 0; i < 1000 && !t.heard[red].n_ends; i++) {
        if (!alone)
            rig_submit(&t, "blue", 20, 4);
        run_for(&t, SECONDS(0.02));
    }
    if (t.heard[red].ending != END_LENGTH)
        fail_msg("%d tokens after 20 s: %s", t.heard[red].n_tokens, step);
    snprintf(metric, sizeof metric, "policy_fallback_total{reason=\"%s\"}", alone ? "stalled" : "starved");
    assert_true(rig_metric(&t, metric) >= 1);
    assert_true(rig_metric(&t, "moonshift:kv_moves_total{engine=\"0\",model_name=\"sim\"}") > 1);
    run_for(&t, SECONDS(5));
    rig_check(&t);
    rig_close(&t);
}

static void being_moved_for_ever_ends(void **state)
{
    (void)state;
    static const char *const ways[] = {
        /* running it is parked, parked it is moved */
        "local i = red(r) if i then act.preempt(r.id[i], 'hard') end i = red(w)\n"
        "if i and w.parked[i] then act.remap(w.id[i], other(w.home[i])) end",
        /* running it is moved at once */
        "local i = red(r) if i then act.remap(r.id[i], other(r.group[i])) end",
        /* its ranks are bound anew */
        "local i, h = red(r) for _, x in ipairs(g) do if i and x.id == r.group[i] then h = x end end\n"
        "if h and h.idle then act.bind(#h.ranks == 1 and { 0, 1 } or { 0 }) end",
    };
    for (size_t i = 0; i < 2 * sizeof ways / sizeof *ways; i++)
        carry_about(ways[i / 2], i % 2);
}

/* Moved often, and then held back: a hold has an end of its own. */
static void who_is_held_is_not_carried_about(void **state)
{
    (void)state;
    struct rig t;
    struct backend_ops ops = *backend_sim();
    ops.kv_move_ns = slow_move;
    rig_open(&t, &(struct rig_knobs){.ranks = 2, .group_size = 1, .blocks = 64, .starvation_s = 0.5, .ops = &ops});
    swap_to(&t, "local n = 0 return { api = 1, doc = 'x', needs = { 'running.group', 'tenant' },\n"
                "step = function(view, act) local r, w, g = view.running, view.waiting, view.groups\n"
                "  for i = 1, r.n do if r.tenant[i] == 'red' then\n"
                "    if n < 12 and act.remap(r.id[i], r.group[i] == g[1].id and g[2] or g[1]) then n = n + 1\n"
                "    elseif n == 12 and act.preempt(r.id[i], 'hard') then n = 13 end end end\n"
                "  for i = 1, w.n do if n == 13 and w.tenant[i] == 'red' and act.hold(w.id[i], 'later', view.now + 2) "
                "then n = 14\n"
                "  end end\n"
                "  for _, group in ipairs(view.idle) do local b = act.batch(group)\n"
                "    for i = 1, r.n do if r.tenant[i] ~= 'red' or n == 14 then b:add(r.id[i]) end end\n"
                "    b:prefill() if b.tokens > 0 then act.forward(group, b) end end act.wake(1) end }");
    uint64_t red = rig_submit(&t, "red", 40, 30);
    for (int i = 0; i < 150; i++) {
        rig_submit(&t, "blue", 20, 4);
        run_for(&t, SECONDS(0.02));
    }
    assert_int_equal(t.heard[red].ending, END_LENGTH);
    assert_true(t.heard[red].end_ns > SECONDS(1 + 2));
    assert_true(rig_metric(&t, "moonshift:kv_moves_total{engine=\"0\",model_name=\"sim\"}") > LIVE_MAX_MOVES);
    assert_int_equal(rig_metric(&t, "policy_fallback_total{reason=\"starved\"}"), 0);
    rig_check(&t);
    rig_close(&t);
}

/* Whom one policy passes over the next one has as long as any: what was waited for before does not count against it. */
static void a_new_policy_has_its_own_time(void **state)
{
    (void)state;
    struct rig t;
    const char *serve = "return { api = 1, doc = 'x', needs = { 'tenant' }, step = function(view, act)\n"
                        "  local b, w = act.batch(view.groups[1]), view.waiting b:decodes()\n"
                        "  for i = 1, w.n do if w.tenant[i] ~= 'red' or view.now > %g then b:add(w.id[i]) end end\n"
                        "  if b.tokens > 0 then act.forward(view.groups[1], b) else act.wake(5) end end }";
    char source[1024];
    rig_open(&t, &(struct rig_knobs){.starvation_s = 1});
    snprintf(source, sizeof source, serve, 1e9);
    swap_to(&t, source);
    uint64_t red = rig_submit(&t, "red", 40, 5);
    for (int i = 0; i < 57; i++) { /* it is late from 1 s on, and would be starved at 1.2 s */
        rig_submit(&t, "blue", 20, 4);
        run_for(&t, SECONDS(0.02));
    }
    assert_int_equal(rig_metric(&t, "policy_fallback_total{reason=\"starved\"}"), 0);
    snprintf(source, sizeof source, serve, (double)clock_now(&t.clock) * 1e-9 + 0.1);
    swap_to(&t, source);
    for (int i = 0; i < 20; i++) {
        rig_submit(&t, "blue", 20, 4);
        run_for(&t, SECONDS(0.02));
    }
    assert_int_equal(t.heard[red].ending, END_LENGTH);
    assert_int_equal(rig_metric(&t, "policy_fallback_total{reason=\"starved\"}"), 0);
    rig_check(&t);
    rig_close(&t);
}

/* Getting on slowly is not starving: a token in every tenth step. */
static void getting_on_slowly_is_lawful(void **state)
{
    (void)state;
    struct rig t;
    rig_open(&t, &(struct rig_knobs){.starvation_s = 0.5});
    swap_to(&t, "return { api = 1, doc = 'x', step = function(view, act) local b = act.batch(view.groups[1])\n"
                "  if view.step % 10 == 0 then b:decodes() b:prefill() else act.wake(20) end\n"
                "  if b.tokens > 0 then act.forward(view.groups[1], b) end end }");
    for (int i = 0; i < 5; i++)
        rig_submit(&t, "", 20, 40);
    run_for(&t, SECONDS(20));
    assert_int_equal(rig_metric(&t, "policy_fallback_total{reason=\"starved\"}"), 0);
    rig_check(&t);
    rig_close(&t);
}

/* Many more than the node can serve at once, in groups whose steps end at different times: everybody waits long, in
 * order, and nobody is passed over. */
static void a_long_queue_in_order_is_not_starvation(void **state)
{
    (void)state;
    struct rig t;
    rig_open(&t, &(struct rig_knobs){.ranks = 4, .group_size = 1, .seqs = 24, .blocks = 48, .starvation_s = 0.2});
    swap_to(&t,
            "return { api = 1, doc = 'x', step = function(view, act) for _, g in ipairs(view.idle) do\n"
            "  local b = act.batch(g) b:decodes() b:prefill() if b.tokens > 0 then act.forward(g, b) end end end }");
    for (int i = 0; i < 900; i++)
        rig_submit(&t, "", 20 + i * 37 % 90, 20 + i * 13 % 80);
    rig_settle(&t);
    assert_true(clock_now(&t.clock) > SECONDS(1 + 1));
    for (uint64_t i = 1; i <= t.n_tags; i++)
        assert_int_equal(t.heard[i].ending, END_LENGTH);
    assert_int_equal(rig_metric(&t, "policy_fallback_total{reason=\"starved\"}"), 0);
    rig_check(&t);
    rig_close(&t);
}

/* Each of two groups leaves a request to the other one where that would be done with it sooner. The second one here
 * never is, as it takes no prompt but its first: half-way to starving, who was left to it goes to the first. */
static void nobody_starves_left_to_another_group(void **state)
{
    (void)state;
    struct rig t;
    int waiting = 0;
    rig_open(&t, &(struct rig_knobs){.ranks = 2, .group_size = 1, .blocks = 2048, .starvation_s = 1});
    swap_to(&t, "local first = true\n"
                "return { api = 1, doc = 'x', step = function(view, act) for _, g in ipairs(view.idle) do\n"
                "  local b = act.batch(g) b:decodes()\n"
                "  if g.id == view.groups[1].id then b:prefill() elseif first then first = b:prefill() == 0 end\n"
                "  if b.tokens > 0 then act.forward(g, b) end end end }");
    rig_submit(&t, "", 50, 3000);
    rig_submit(&t, "", 50, 3000);
    for (int i = 0; i < 12; i++) {
        run_for(&t, SECONDS(0.03));
        rig_submit(&t, "", 5, 2000);
    }
    run_for(&t, SECONDS(0.03));
    for (uint64_t i = 1; i <= t.n_tags; i++)
        waiting += t.heard[i].n_tokens == 0;
    assert_in_range(waiting, 1, 8);
    rig_settle(&t);
    for (uint64_t i = 1; i <= t.n_tags; i++)
        assert_int_equal(t.heard[i].ending, END_LENGTH);
    assert_int_equal(rig_metric(&t, "policy_fallback_total{reason=\"stalled\"}"), 0);
    assert_int_equal(rig_metric(&t, "policy_fallback_total{reason=\"starved\"}"), 0);
    rig_check(&t);
    rig_close(&t);
}

/* Two groups, a prompt at a time in each: one computes what ranks first (blue), the other as well (pink), then so many
 * long prompts that rank last (green), then red, who waits late for all of them. Returns how often it was starved. */
static int let_pass(int greens)
{
    struct rig t;
    char source[1400];
    rig_open(&t, &(struct rig_knobs){.ranks = 2, .group_size = 1, .starvation_s = 0.5});
    snprintf(
        source, sizeof source,
        "local greens = 0\n"
        "return { api = 1, doc = 'x', needs = { 'waiting.tenant', 'running.group' },\n"
        "  admit = function(r) return (({ blue = -1e6, pink = -1e6, green = 1e6, red = 0 })[r.tenant] or 0) + "
        "r.arrival end,\n"
        "  step = function(view, act) for _, g in ipairs(view.idle) do\n"
        "    local b, w, r = act.batch(g), view.waiting, view.running\n"
        "    for i = 1, r.n do if r.group[i] == g.id then b:add(r.id[i], 1) end end\n"
        "    local turns = g.id == view.groups[1].id and { 'blue' } or { 'pink', greens < %d and 'green' or 'red' }\n"
        "    for _, who in ipairs(turns) do for k = 1, w.n do\n"
        "      local i = view.row(w, k)\n"
        "      if b.tokens == 0 and w.tenant[i] == who and b:add(w.id[i], 1) > 0 and who == 'green' then\n"
        "        greens = greens + 1 end\n"
        "    end end\n"
        "    if b.tokens > 0 then act.forward(g, b) end\n"
        "  end act.wake(1) end }",
        greens);
    swap_to(&t, source);
    rig_submit(&t, "blue", 200, 1);
    for (int i = 0; i < 5; i++)
        rig_submit(&t, "pink", 150, 1);
    uint64_t red = rig_submit(&t, "red", 40, 5);
    for (int i = 0; i < greens; i++)
        rig_submit(&t, "green", 200, 1);
    for (int i = 0; i < 15; i++) {
        rig_submit(&t, "blue", 200, 1);
        run_for(&t, SECONDS(0.2));
    }
    assert_int_equal(t.heard[red].ending, END_LENGTH);
    int starved = (int)rig_metric(&t, "policy_fallback_total{reason=\"starved\"}");
    run_for(&t, SECONDS(3));
    rig_check(&t);
    rig_close(&t);
    return starved;
}

/* A prompt that was for another group takes longer than the moment for which one may be passed over. */
static void one_long_prompt_is_no_habit(void **state)
{
    (void)state;
    assert_int_equal(let_pass(0), 0);
    assert_int_equal(let_pass(1), 0);
    assert_true(let_pass(8) > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_lost_rank_ends_what_the_others_cannot_hold),
        cmocka_unit_test(who_outgrows_the_node_ends),
        cmocka_unit_test(a_misfit_at_the_head_bars_nobody),
        cmocka_unit_test(asking_again_is_no_change),
        cmocka_unit_test(pending_orders_hide_no_stall),
        cmocka_unit_test(waiting_for_a_copy_is_no_stall),
        cmocka_unit_test(a_changed_order_keeps_its_deadline),
        cmocka_unit_test(giving_way_for_ever_is_starvation),
        cmocka_unit_test(a_long_queue_in_order_is_not_starvation),
        cmocka_unit_test(nobody_starves_left_to_another_group),
        cmocka_unit_test(one_long_prompt_is_no_habit),
        cmocka_unit_test(getting_on_slowly_is_lawful),
        cmocka_unit_test(a_new_policy_has_its_own_time),
        cmocka_unit_test(being_moved_for_ever_ends),
        cmocka_unit_test(who_is_held_is_not_carried_about),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
