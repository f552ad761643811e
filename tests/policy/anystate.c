/* Whoever comes after a policy can serve from any state that it leaves: policies at random, lawful and unlawful, on one
 * to eight ranks, and at a random step another takes over (by a swap, a rollback, a withdrawal for errors or for a call
 * that was stopped). From then on every request ends within a bound of steps and of time, and no group is closed, no
 * order waits, no rank is left out, no KV block is lent, and every group fetches. */
#include "tests/rig/policy_rig.h"

#include "engine/base/file.h"
#include "engine/base/rng.h"

/* Serves like fcfs until `wild`; then it does what the numbers say. `fall`: "error" raises, "loop" never returns. */
static const char wild[] =
    "local node, draw, seeded\n"
    "local function any(list) return #list > 0 and list[draw(#list)] or nil end\n"
    "local function order(view) local w = view.waiting return { when = any { 'hard', 'drain', 'soft' }, kv = any { "
    "'migrate', 'park', 'recompute', 'keep' },\n"
    "  max_wait_ms = any { 1, 20, 3600000 }, requests = w.n > 0 and draw(3) == 1 and { w.id[draw(w.n)] } or nil } end\n"
    "local deeds = {\n"
    "  function(view, act) for _, ranks in ipairs(view.cover(draw(#node.ranks), draw(4))) do act.bind(ranks, "
    "order(view)) end end,\n"
    "  function(view, act) act.bind(any(node.sets), order(view)) end,\n"
    "  function(view, act) local g, o = any(view.groups), order(view) if g then o.requests = nil act.release(g, o) end "
    "end,\n"
    "  function(view, act) for _, g in ipairs(view.groups) do act.release(g, { when = any { 'hard', 'drain' }, kv = "
    "'park', max_wait_ms = 3600000 }) end end,\n"
    "  function(view, act) local g = any(view.groups) if g then act.preempt(g, any { 'drain', 'soft', 'hard' }) end "
    "end,\n"
    "  function(view, act) for _, g in ipairs(view.groups) do act.preempt(g, 'drain') end end,\n"
    "  function(view, act) for i = 1, view.running.n do act.preempt(view.running.id[i], any { 'hard', 'recompute' }) "
    "end end,\n"
    "  function(view, act) local r, g = view.running, any(view.groups) if r.n > 0 and g then\n"
    "    act.remap(r.id[draw(r.n)], g, any { 'migrate', 'park', 'recompute', 'keep' }) end end,\n"
    "  function(view, act) act.comm(any(node.sets), any { 'auto', 'oneshot', 'twoshot' }) end,\n"
    "  function(view, act) act.ffn(any(view.groups) or 'all', any { 'was', 'cas', 'local' }, { layers = { 0, draw(2) - "
    "1 "
    "} }) end,\n"
    "  function(view, act) act.weights('all', any { 'replicated', 'pooled' }, { layers = { draw(2) - 1, 1 } }) end,\n"
    "  function(view, act) act.wake(any { 0.5, 50, 60000 }) return true end,\n"
    "  function(view, act) act.bind({ 63 }) act.open(any(view.groups)) act.preempt(7, 'hard') end,\n"
    "  function(view, act) error('at random') end,\n"
    "}\n"
    "return { api = 1, doc = 'wild', needs = { 'id' },\n"
    "params = { seed = { default = 1 }, wild = { default = false }, every = { default = 10 }, fall = { default = 'no', "
    "choices = { 'no', 'error', 'loop' } } },\n"
    "start = function(facts, act, p) node, draw = facts, rng(1) end,\n"
    "admit = function(request, view, act, p) return p.wild and draw(100) or nil end,\n"
    "step = function(view, act, p)\n"
    "  if p.wild and not seeded then seeded, draw = true, rng(p.seed) end\n"
    "  if p.fall == 'error' then error('as told') end\n"
    "  while p.fall == 'loop' do end\n"
    "  if p.wild and draw(p.every) == 1 and any(deeds)(view, act) then return end\n"
    "  if p.wild and draw(3) == 1 then act.wake(3) end\n"
    "  for _, g in ipairs(view.idle) do local b = act.batch(g)\n"
    "    if b and not (p.wild and draw(4) == 1) then b:decodes() b:prefill(view.waiting, nil, p.wild and draw(2) == 1 "
    "and 'any' or nil)\n"
    "      if b.tokens > 0 then act.forward(g, b, p.wild and any(node.layouts[g.size]) or nil) end end end\n"
    "end }";

enum way { SWAP, ROLLBACK, FALL_TO_THE_ONE_BEFORE, FALL_TO_NATIVE, TORN, N_WAYS };
enum { N_BEFORE = 40, N_AFTER = 20, MAX_TURNS = 20000 };

static struct buf fcfs;

static void tell(struct rig *t, enum engine_in kind, const char *params)
{
    rig_post(t, kind, params ? mem_strdup(params) : NULL, params ? strlen(params) : 0);
    rig_turn(t);
}

static void set(struct rig *t, const char *form, uint64_t a, uint64_t b)
{
    char text[200];
    snprintf(text, sizeof text, form, (int)a, (int)b);
    tell(t, IN_PARAMS, text);
}

static void take_over(struct rig *t, enum way way)
{
    switch (way) {
    case SWAP:
        rig_live(t, "fcfs", fcfs.data);
        break;
    case ROLLBACK:
        tell(t, IN_ROLLBACK, NULL);
        break;
    case FALL_TO_THE_ONE_BEFORE:
    case FALL_TO_NATIVE:
        tell(t, IN_PARAMS, "{\"fall\": \"error\"}");
        break;
    case TORN:
        tell(t, IN_PARAMS, "{\"fall\": \"loop\"}");
        break;
    case N_WAYS:
        break;
    }
}

/* One turn, or the next moment of which anything is known. Returns whether there was something to do. */
static bool go_on(struct rig *t)
{
    bool did = engine_turn(t->engine);
    int64_t next = engine_next_ns(t->engine), now = clock_now(&t->clock);
    rig_listen(t);
    if (!did && next != INT64_MAX)
        clock_advance_to(&t->clock, next > now ? next : now);
    return did || next != INT64_MAX;
}

/* Everybody has ended within so many turns and so much time, and nothing is left in force. */
static void check_bound(struct rig *t, uint64_t seed, enum way way)
{
    const struct partition *p = &engine_world(t->engine)->partition;
    int64_t from = clock_now(&t->clock);
    int turns = 0;
    while (engine_world(t->engine)->requests.n_live && turns++ < MAX_TURNS && go_on(t))
        ;
    if (engine_world(t->engine)->requests.n_live || clock_now(&t->clock) - from > 10000000000)
        fail_msg("seed %d, way %d: %d requests live after %d turns and %.3f s", (int)seed, (int)way,
                 engine_world(t->engine)->requests.n_live, turns, (double)(clock_now(&t->clock) - from) * 1e-9);
    for (int i = 0; i < 10 && way >= FALL_TO_THE_ONE_BEFORE && rig_state(t, "policy.withdrawn") == 0;
         i++) { /* it needs steps to fall in */
        rig_submit(t, "", 5, 5);
        rig_run_until(t, clock_now(&t->clock) + 200000000);
    }
    rig_turn(t);
    bool any_shut = false;
    for (int i = 0; i < p->n_groups; i++)
        any_shut |= partition_group(p, i)->shut || partition_group(p, i)->closed;
    if (any_shut || p->n_pending || p->free_ranks)
        fail_msg("seed %d, way %d: closed groups: %d, orders: %d, free ranks: %llx", (int)seed, (int)way, any_shut,
                 p->n_pending, (unsigned long long)p->free_ranks);
    for (int i = 0; i < MAX_SETS; i++)
        assert_int_equal(p->algorithms[i], 0);
    rig_run_until(t, clock_now(&t->clock) + 1000000); /* what was lent is on its way back */
    for (int i = 0; i < engine_world(t->engine)->kv.n_ranks; i++)
        assert_int_equal(engine_world(t->engine)->kv.ranks[i].n_lent, 0);
    for (int i = 0; i < p->n_groups; i++)
        assert_int_equal(ffn_count_cas(&partition_group(p, i)->ffn, 2), 0);
    rig_check(t);
}

static void run_seed(uint64_t seed, enum way way)
{
    static const int ranks[] = {1, 2, 4, 8};
    struct rig t;
    struct rng rng;
    rng_init(&rng, seed * 100 + (uint64_t)way);
    int n = ranks[rng_below(&rng, 4)];
    struct ffn_setup pool = {.n_ranks = n, .n_layers = 2, .n_slots = 2, .tile_bytes = 1 << 20};
    assert_int_equal(ffn_parse_owners(&pool, "layer-mod", NULL), 0);
    rig_open(&t, &(struct rig_knobs){.ranks = n,
                                     .group_size = n > 1 ? 1 << rng_below(&rng, 2) : 0,
                                     .ffn = n > 1 && seed % 3 ? &pool : NULL,
                                     .blocks = 60 + (int)rng_below(&rng, 200)});
    if (way == ROLLBACK || way == FALL_TO_THE_ONE_BEFORE)
        rig_live(&t, "fcfs", fcfs.data);
    rig_live(&t, "wild", wild);
    set(&t, "{\"seed\": %d, \"wild\": true, \"every\": %d}", seed, 1 + rng_below(&rng, 10));
    int64_t gap = 1000000 + (int64_t)rng_below(&rng, 4000000);
    uint64_t last = N_BEFORE / 4 + rng_below(&rng, N_BEFORE);
    for (uint64_t i = 0; i < last; i++) {
        rig_submit(&t, "", 1 + (int)rng_below(&rng, 120), 1 + (int)rng_below(&rng, 60));
        rig_run_until(&t, clock_now(&t.clock) + gap);
    }
    take_over(&t, way);
    for (int i = seed % 2 ? N_AFTER : 0; i > 0; i--)
        rig_submit(&t, "", 1 + (int)rng_below(&rng, 120), 1 + (int)rng_below(&rng, 60));
    check_bound(&t, seed, way);
    rig_close(&t);
}

static void whoever_comes_next_serves_everybody(void **state)
{
    (void)state;
    uint64_t n = getenv("MOONSHIFT_SLOW") ? 3 : 12;
    for (uint64_t seed = 1; seed <= n; seed++)
        for (int way = 0; way < N_WAYS; way++)
            run_seed(seed, (enum way)way);
}

static int start(void **state)
{
    (void)state;
    int rc = file_read(&fcfs, "policies/fcfs.lua", 1 << 20, NULL);
    buf_putc(&fcfs, 0);
    return rc;
}

static int stop(void **state)
{
    (void)state;
    buf_free(&fcfs);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(whoever_comes_next_serves_everybody)};
    return cmocka_run_group_tests(tests, start, stop);
}
