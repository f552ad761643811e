/* Who gets no further, by whatever a policy does or leaves undone, is seen and run; who is merely behind others is not.
 */
#include "tests/rig/policy_rig.h"

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
    rig_live(&t, "starve", source);
    rig_run_for(&t, SECONDS(0.1));
    for (int i = 0; i < 40; i++)
        rig_submit(&t, "blue", 20, 2);
    rig_run_for(&t, SECONDS(0.1));
    uint64_t red = rig_submit(&t, "red", 40, 30);
    for (int i = 0; i < 150; i++) {
        rig_submit(&t, "blue", 20, 4);
        rig_run_for(&t, SECONDS(0.02));
    }
    if (t.heard[red].ending != END_LENGTH)
        fail_msg("%d tokens after 3 s: %s", t.heard[red].n_tokens, step);
    assert_true(t.heard[red].end_ns < SECONDS(1 + 0.2 + 1.5));
    assert_true(rig_metric(&t, "policy_fallback_total{reason=\"starved\"}") >= 1);
    assert_int_equal(rig_state(&t, "policy.withdrawn"), 1);
    rig_run_for(&t, SECONDS(5));
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

static int64_t slow_move(const struct device *d, const struct kv_move *m)
{
    (void)d;
    (void)m;
    return 200000;
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
    rig_live(&t, "starve", source);
    uint64_t red = rig_submit(&t, "red", 40, 30);
    for (int i = 0; i < 1000 && !t.heard[red].n_ends; i++) {
        if (!alone)
            rig_submit(&t, "blue", 20, 4);
        rig_run_for(&t, SECONDS(0.02));
    }
    if (t.heard[red].ending != END_LENGTH)
        fail_msg("%d tokens after 20 s: %s", t.heard[red].n_tokens, step);
    snprintf(metric, sizeof metric, "policy_fallback_total{reason=\"%s\"}", alone ? "stalled" : "starved");
    assert_true(rig_metric(&t, metric) >= 1);
    assert_true(rig_metric(&t, "moonshift:kv_moves_total{engine=\"0\",model_name=\"sim\"}") > 1);
    rig_run_for(&t, SECONDS(5));
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
    rig_live(&t, "starve",
             "local n = 0 return { api = 1, doc = 'x', needs = { 'running.group', 'tenant' },\n"
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
        rig_run_for(&t, SECONDS(0.02));
    }
    assert_int_equal(t.heard[red].ending, END_LENGTH);
    assert_true(t.heard[red].end_ns > SECONDS(1 + 2));
    assert_true(rig_metric(&t, "moonshift:kv_moves_total{engine=\"0\",model_name=\"sim\"}") > 8);
    assert_int_equal(rig_metric(&t, "policy_fallback_total{reason=\"starved\"}"), 0);
    rig_check(&t);
    rig_close(&t);
}

/* Everybody is stopped in turn and begins again, in steps that are full: all is computed for nothing. */
static void who_is_stopped_each_time_ends(void **state)
{
    (void)state;
    struct rig t;
    rig_open(&t, &(struct rig_knobs){.blocks = 40, .starvation_s = 0.5});
    rig_live(&t, "starve",
             "return { api = 1, doc = 'x', needs = { 'running.id', 'waiting.parked' }, step = function(view, act)\n"
             "  local w, r, g = view.waiting, view.running, view.groups[1]\n"
             "  local newest for i = 1, r.n do if not newest or r.id[i] > newest then newest = r.id[i] end end\n"
             "  if newest and view.step > 20 then act.preempt(newest, 'hard') end\n"
             "  for i = 1, w.n do if w.parked[i] then act.remap(w.id[i], g, 'recompute') end end\n"
             "  local b = act.batch(g) b:decodes() b:prefill() if b.tokens > 0 then act.forward(g, b) end act.wake(1) "
             "end }");
    for (int i = 0; i < 40; i++)
        rig_submit(&t, "", 100 + i * 37 % 220, 20);
    rig_run_for(&t, SECONDS(20));
    for (uint64_t i = 1; i <= t.n_tags; i++)
        assert_int_equal(t.heard[i].ending, END_LENGTH);
    assert_true(rig_metric(&t, "policy_fallback_total{reason=\"starved\"}") >= 1);
    rig_check(&t);
    rig_close(&t);
}

/* More come than there are seats for, and the newest one is always next: who came first is passed over, in steps that
 * have no room. By its keys the same order is lawful, and nobody is. */
static void the_newest_first_for_ever(bool by_key)
{
    struct rig t;
    char source[1024];
    rig_open(&t, &(struct rig_knobs){.seqs = 4, .blocks = 1024, .starvation_s = 0.5});
    snprintf(source, sizeof source,
             "return { api = 1, doc = 'x', needs = { 'id' }, %s step = function(view, act)\n"
             "  local g, ids = view.groups[1], {}\n"
             "  for i = 1, view.waiting.n do ids[i] = view.row(view.waiting, %s) end\n"
             "  for i = 1, view.waiting.n do ids[i] = view.waiting.id[ids[i]] end\n"
             "  local b = act.batch(g) b:decodes() b:prefill(ids)\n"
             "  if b.tokens > 0 then act.forward(g, b) end end }",
             by_key ? "admit = function(r) return -r.arrival end," : "", by_key ? "i" : "view.waiting.n + 1 - i");
    rig_live(&t, "starve", source);
    for (int i = 0; i < 10; i++)
        rig_submit(&t, "", 20, 20);
    for (int i = 0; i < 1200; i++) {
        rig_submit(&t, "", 20, 20);
        rig_run_for(&t, SECONDS(0.005));
    }
    int ended = 0;
    for (int i = 1; i <= 10; i++)
        ended += t.heard[i].n_ends;
    double starved = rig_metric(&t, "policy_fallback_total{reason=\"starved\"}");
    assert_true(by_key ? ended < 10 && starved == 0 : ended == 10 && starved >= 1);
    rig_run_for(&t, SECONDS(20));
    rig_check(&t);
    rig_close(&t);
}

static void who_is_overtaken_without_room_starves(void **state)
{
    (void)state;
    the_newest_first_for_ever(false);
}

static void who_ranks_behind_does_not(void **state)
{
    (void)state;
    the_newest_first_for_ever(true);
}

/* It runs, and each step of its group is filled by those that began after it. */
static void who_is_left_out_of_full_steps_starves(void **state)
{
    (void)state;
    struct rig t;
    rig_open(&t, &(struct rig_knobs){.blocks = 1024, .starvation_s = 0.5});
    rig_live(&t, "starve",
             "return { api = 1, doc = 'x', needs = { 'tenant', 'running.computed' }, step = function(view, act)\n"
             "  local b, w, r = act.batch(view.groups[1]), view.waiting, view.running\n"
             "  local function add(q, red) for i = 1, q.n do\n"
             "    if (q.tenant[i] == 'red') == red then b:add(q.id[i], red and 1 or nil) end end end\n"
             "  if view.step < 10 then add(w, true) end\n"
             "  add(r, false) add(w, false)\n"
             "  if b.tokens > 0 then act.forward(view.groups[1], b) else act.wake(5) end end }");
    uint64_t red = rig_submit(&t, "red", 40, 5);
    rig_run_for(&t, SECONDS(0.1));
    for (int i = 0; i < 400; i++) {
        rig_submit(&t, "blue", 400, 2);
        rig_submit(&t, "blue", 400, 2);
        rig_run_for(&t, SECONDS(0.01));
    }
    assert_int_equal(t.heard[red].ending, END_LENGTH);
    assert_true(rig_metric(&t, "policy_fallback_total{reason=\"starved\"}") >= 1);
    rig_run_for(&t, SECONDS(40));
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
    rig_live(&t, "starve", source);
    uint64_t red = rig_submit(&t, "red", 40, 5);
    for (int i = 0; i < 57; i++) { /* it is late from 1 s on, and would be starved at 1.2 s */
        rig_submit(&t, "blue", 20, 4);
        rig_run_for(&t, SECONDS(0.02));
    }
    assert_int_equal(rig_metric(&t, "policy_fallback_total{reason=\"starved\"}"), 0);
    snprintf(source, sizeof source, serve, (double)clock_now(&t.clock) * 1e-9 + 0.1);
    rig_live(&t, "starve", source);
    for (int i = 0; i < 20; i++) {
        rig_submit(&t, "blue", 20, 4);
        rig_run_for(&t, SECONDS(0.02));
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
    rig_live(&t, "starve",
             "return { api = 1, doc = 'x', step = function(view, act) local b = act.batch(view.groups[1])\n"
             "  if view.step % 10 == 0 then b:decodes() b:prefill() else act.wake(20) end\n"
             "  if b.tokens > 0 then act.forward(view.groups[1], b) end end }");
    for (int i = 0; i < 5; i++)
        rig_submit(&t, "", 20, 40);
    rig_run_for(&t, SECONDS(20));
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
    rig_live(&t, "starve",
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

/* Prompts begin now and then only, in order, so looks mostly find others who make tokens, and a free seat. Red ranks
 * behind all of them and is late for long. */
static void who_ranks_behind_may_wait_between_phases(void **state)
{
    (void)state;
    for (int phase = 50; phase <= 95; phase += 5) {
        struct rig t;
        char source[512];
        rig_open(&t, &(struct rig_knobs){.seqs = 4, .starvation_s = 0.5});
        snprintf(
            source, sizeof source,
            "local last = 0 return { api = 1, doc = 'x',\n"
            "  admit = function(q) return q.tenant == 'red' and 1e9 or nil end,\n"
            "  step = function(view, act) local b, w = act.batch(view.groups[1]), view.waiting b:decodes()\n"
            "  if view.now - last >= %d * 1e-3 and (w.n > 4 or view.now > 5) then last = view.now b:prefill() end\n"
            "  if b.tokens > 0 then act.forward(view.groups[1], b) else act.wake(1) end end }",
            phase);
        rig_live(&t, "starve", source);
        uint64_t red = rig_submit(&t, "red", 20, 5);
        for (int i = 0; i < 80; i++) {
            rig_submit(&t, "blue", 20, 2 + i % 12);
            rig_run_for(&t, SECONDS(0.016));
        }
        double starved = rig_metric(&t, "policy_fallback_total{reason=\"starved\"}");
        if (starved > 0 || t.heard[red].n_ends)
            fail_msg("phases of %d ms: %g starved, red had %d tokens, at %g", phase, starved, t.heard[red].n_tokens,
                     t.heard[red].end_ns / 1e9);
        rig_run_for(&t, SECONDS(5));
        rig_settle(&t);
        rig_close(&t);
    }
}

/* Each of two groups leaves a request to the other one where that would be done with it sooner. The second one here
 * never is, as it takes no prompt but its first: half-way to starving, who was left to it goes to the first. */
static void nobody_starves_left_to_another_group(void **state)
{
    (void)state;
    struct rig t;
    int waiting = 0;
    rig_open(&t, &(struct rig_knobs){.ranks = 2, .group_size = 1, .blocks = 2048, .starvation_s = 1});
    rig_live(&t, "starve",
             "local first = true\n"
             "return { api = 1, doc = 'x', step = function(view, act) for _, g in ipairs(view.idle) do\n"
             "  local b = act.batch(g) b:decodes()\n"
             "  if g.id == view.groups[1].id then b:prefill() elseif first then first = b:prefill() == 0 end\n"
             "  if b.tokens > 0 then act.forward(g, b) end end end }");
    rig_submit(&t, "", 50, 3000);
    rig_submit(&t, "", 50, 3000);
    for (int i = 0; i < 12; i++) {
        rig_run_for(&t, SECONDS(0.03));
        rig_submit(&t, "", 5, 2000);
    }
    rig_run_for(&t, SECONDS(0.03));
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

/* A group without room for the first of the queue leaves it to another one that has some, and serves those behind it;
 * but not once it has waited for as long as one may. Here the other one never asks. */
static void who_is_late_is_left_to_no_other_group(void **state)
{
    (void)state;
    struct rig t;
    rig_open(&t, &(struct rig_knobs){.ranks = 2, .group_size = 1, .blocks = 20, .starvation_s = 1});
    rig_live(&t, "starve",
             "local last = 0 return { api = 1, doc = 'x', step = function(view, act)\n"
             "  local g = view.idle[1] act.wake(5)\n"
             "  if not g or g.ranks[1] ~= 0 or (view.n_running == 1 and view.now - last < 0.025) then return end\n"
             "  local b = act.batch(g) b:decodes() b:prefill() last = view.now\n"
             "  if b.tokens > 0 then act.forward(g, b) end end }");
    uint64_t holder = rig_submit(&t, "", 230, 80);
    rig_run_for(&t, SECONDS(0.1));
    uint64_t large = rig_submit(&t, "", 200, 5), early = rig_submit(&t, "", 20, 2);
    rig_run_for(&t, SECONDS(1.03));
    assert_int_equal(t.heard[early].n_ends, 1);
    uint64_t behind = rig_submit(&t, "", 20, 2);
    rig_run_for(&t, SECONDS(0.12));
    assert_int_equal(t.heard[holder].n_ends + t.heard[large].n_tokens + t.heard[behind].n_tokens, 0);
    rig_run_for(&t, SECONDS(20));
    assert_true(t.heard[large].n_ends == 1 && t.heard[behind].n_ends == 1);
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
    rig_live(&t, "starve", source);
    rig_submit(&t, "blue", 200, 1);
    for (int i = 0; i < 5; i++)
        rig_submit(&t, "pink", 150, 1);
    uint64_t red = rig_submit(&t, "red", 40, 5);
    for (int i = 0; i < greens; i++)
        rig_submit(&t, "green", 200, 1);
    for (int i = 0; i < 15; i++) {
        rig_submit(&t, "blue", 200, 1);
        rig_run_for(&t, SECONDS(0.2));
    }
    assert_int_equal(t.heard[red].ending, END_LENGTH);
    int starved = (int)rig_metric(&t, "policy_fallback_total{reason=\"starved\"}");
    rig_run_for(&t, SECONDS(3));
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
        cmocka_unit_test(giving_way_for_ever_is_starvation),
        cmocka_unit_test(being_moved_for_ever_ends),
        cmocka_unit_test(who_is_held_is_not_carried_about),
        cmocka_unit_test(who_is_stopped_each_time_ends),
        cmocka_unit_test(who_is_overtaken_without_room_starves),
        cmocka_unit_test(who_ranks_behind_does_not),
        cmocka_unit_test(who_is_left_out_of_full_steps_starves),
        cmocka_unit_test(a_new_policy_has_its_own_time),
        cmocka_unit_test(getting_on_slowly_is_lawful),
        cmocka_unit_test(a_long_queue_in_order_is_not_starvation),
        cmocka_unit_test(who_ranks_behind_may_wait_between_phases),
        cmocka_unit_test(nobody_starves_left_to_another_group),
        cmocka_unit_test(who_is_late_is_left_to_no_other_group),
        cmocka_unit_test(one_long_prompt_is_no_habit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
