/* A canary beside the live policy, in the whole engine in virtual time. Whatever two policies try, neither reaches a
 * group or a request of the other, and the books balance; what comes is dealt by the share of ranks; a call that does
 * not stand takes only its own part along; every end gives everything back; and what cannot be is refused. */
#include "tests/rig/policy_rig.h"

#include "engine/base/file.h"
#include "engine/base/rng.h"
#include "engine/canary.h"
#include "engine/shadow.h"

#define SECOND 1000000000ll
#define UNHURRIED_NS (5 * SECOND) /* a call is not cut off because the machine is slow */
#define HEAD "return { api = 1, doc = 'test', needs = { 'id', 'group', 'priority', 'first', 'last' },\n"
#define SERVES                                                                                                         \
    "for _, g in ipairs(view.idle) do local b = act.batch(g) if b then b:decodes() b:prefill(view.waiting)\n"          \
    "  if b.tokens > 0 then act.forward(g, b) end end end"

static const char plain[] = HEAD "step = function(view, act) " SERVES " end }";

/* ---- who watches */

/* What was wrong with a plan, or with the world between two. */
struct watch {
    struct engine *engine;
    char wrong[200];
    uint64_t n_plans, n_live, n_canary; /* plans while a canary ran; items of either side in them */
    uint64_t n_verbs[2][PLAN_VERB_KINDS];
};

static void fault(struct watch *w, const char *what, const struct plan *p)
{
    if (!w->wrong[0])
        snprintf(w->wrong, sizeof w->wrong, "%s, at %.3f s", what, (double)p->now_ns * 1e-9);
}

static void look_at_verb(struct watch *w, const struct plan *p, const struct plan_verb *v, bool canary)
{
    const struct group *g = v->group > 0 ? partition_find(&p->world->partition, v->group) : NULL;
    w->n_verbs[canary][v->kind]++;
    if (v->canary != canary)
        fault(w, "a verb stands among those of the other", p);
    if (v->request && v->request->canary != canary)
        fault(w, "a verb is about a request of the other", p);
    if (g && g->canary != canary)
        fault(w, "a verb is about a group of the other", p);
    if (v->kind == PLAN_SWITCH || v->kind == PLAN_COMM || v->kind == PLAN_WEIGHTS)
        fault(w, "a verb is about both", p);
}

static void look_at_batch(struct watch *w, const struct plan *p, const struct plan_batch *b, bool canary)
{
    if (b->group->canary != canary)
        fault(w, "a batch is for a group of the other", p);
    for (int i = 0; i < b->n_items; i++) {
        if (b->items[i].request->canary != canary)
            fault(w, "a batch has a request of the other", p);
        if (b->forwarded)
            ++*(canary ? &w->n_canary : &w->n_live);
    }
}

static void turned(void *ctx, int64_t now_ns, const struct plan *p)
{
    struct watch *w = ctx;
    (void)now_ns;
    if (!p || !p->world->sides.ranks)
        return;
    w->n_plans++;
    for (int i = 0; i < p->n_batches; i++)
        look_at_batch(w, p, p->batches[i], i >= p->mark.n_batches);
    for (int i = 0; i < p->n_verbs; i++)
        look_at_verb(w, p, &p->verbs[i], i >= p->mark.n_verbs);
    if (p->n_running > p->world->limits.max_num_seqs)
        fault(w, "more run than there are seats", p);
    if (!world_check(p->world))
        fault(w, "the books do not balance", p);
}

/* ---- the rig */

static int order_on(struct rig *t, const char *name, const char *source, double seconds, const int *groups, int n)
{
    struct err e = {0};
    struct canary_order *o = mem_new(sizeof *o);
    struct lua_opts opts = t->opts;
    opts.again = true; /* what is bad is not found out before */
    o->for_ns = (int64_t)(seconds * 1e9);
    o->n_groups = n;
    memcpy(o->groups, groups, (size_t)n * sizeof *groups);
    if (lua_policy_load(&o->policy, name, source, strlen(source), &opts, NULL, &e))
        fail_msg("%s", e.text);
    rig_post(t, IN_CANARY, o, 0);
    rig_turn(t);
    return t->reply_code;
}

static int group_id(struct rig *t, int i)
{
    return partition_group(&engine_world(t->engine)->partition, i)->id;
}

/* On the last n groups. */
static int begin(struct rig *t, const char *name, const char *source, double seconds, int n)
{
    int groups[MAX_RANKS], all = engine_world(t->engine)->partition.n_groups;
    for (int i = 0; i < n; i++)
        groups[i] = group_id(t, all - 1 - i);
    return order_on(t, name, source, seconds, groups, n);
}

static int end(struct rig *t)
{
    rig_post(t, IN_CANARY_END, NULL, 0);
    rig_turn(t);
    return t->reply_code;
}

static struct json *report(struct rig *t)
{
    rig_post(t, IN_CANARY_STATE, NULL, 0);
    rig_turn(t);
    struct json *j = json_parse(t->reply.data, t->reply.len, NULL, NULL);
    assert_non_null(j);
    return j;
}

/* A number of the report, by a path like "sides.live.came"; -1: it is not there. */
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

static void assert_begins(struct rig *t, const char *name, const char *expected)
{
    struct json *root = report(t);
    const char *text = json_text(json_find(root, name));
    if (!text || strncmp(text, expected, strlen(expected)) != 0)
        fail_msg("%s: %s", name, text);
    json_free(root);
}

static void assert_state(struct rig *t, const char *expected)
{
    assert_begins(t, "state", expected);
}

/* Nothing of it is left. */
static void assert_whole(struct rig *t)
{
    const struct world *w = engine_world(t->engine);
    assert_true(w->sides.ranks == 0 && w->sides.n_waiting == 0 && w->sides.n_running == 0);
    for (int i = 0; i < w->partition.n_groups; i++)
        assert_false(partition_group(&w->partition, i)->canary || partition_group(&w->partition, i)->shut);
    for (int i = 0; i < w->requests.n_slots; i++)
        assert_false(w->requests.slots[i] && w->requests.slots[i]->canary);
    assert_true(world_check(w));
}

struct traffic {
    struct rng rng;
    int64_t next_ns;
    bool leave;
};

/* Requests of some tenants and priorities, of which some leave. */
static void drive(struct rig *t, struct traffic *l, int64_t until_ns)
{
    for (l->next_ns = l->next_ns ? l->next_ns : clock_now(&t->clock); l->next_ns < until_ns;
         l->next_ns += (int64_t)rng_below(&l->rng, 2 * SECOND / 80)) {
        rig_run_until(t, l->next_ns);
        int n_prompt = 8 + (int)rng_below(&l->rng, 300), n_output = 1 + (int)rng_below(&l->rng, 60);
        uint64_t leader = t->n_tags && rng_below(&l->rng, 6) == 0 ? t->n_tags : 0;
        struct request_spec *s = rig_spec(t, rng_below(&l->rng, 3) ? "a" : "b", n_prompt, n_output);
        s->priority = (int)rng_below(&l->rng, 3);
        s->leader = leader;
        rig_post(t, IN_SUBMIT, s, 0);
        if (l->leave && t->n_tags > 8 && rng_below(&l->rng, 10) == 0) {
            struct engine_message m = {.kind = IN_CANCEL, .tag = t->n_tags - rng_below(&l->rng, 8), .code = END_ABORT};
            queue_post(engine_inbox(t->engine), &m);
        }
    }
    rig_run_until(t, until_ns);
}

/* ---- neither reaches the other */

/* Every verb, at random, on whatever it finds and on whatever there may be: ids of requests are numbers that one can
 * guess, as are those of groups. And it looks whether what it sees is one world. */
static const char vandal[] =
    "local d = rng(%d)\n" HEAD "admit = function(r, view, act) local x = d(9)\n"
    "  if x == 1 then act.refuse(r.id, 429, 1, 'no') elseif x == 2 and not r.again then act.hold(r.id, 'wait', "
    "view.now + 1) end\n"
    "  return d(1000) end,\n"
    "step = function(view, act)\n"
    "  local w, r, mine = view.waiting, view.running, {}\n"
    "  if #view.groups == 0 then return end\n"
    "  for _, g in ipairs(view.groups) do mine[g.id] = true end\n"
    "  if w.n ~= view.n_waiting or r.n ~= view.n_running or #w.id ~= w.n or #r.id ~= r.n then error('counts') end\n"
    "  if w.n > 0 and w.first[1] ~= view.row(w, 1) then error('first') end\n"
    "  if r.n > 0 and r.last[1] ~= view.row(r, r.n) then error('last') end\n"
    "  if view.row(r, r.n + 1) then error('row') end\n"
    "  local waiting, running = 0, 0\n"
    "  for _, name in ipairs(view.tenants()) do local a, b = view.tenant(name)\n"
    "    waiting, running = waiting + a, running + b end\n"
    "  if waiting ~= w.n or running ~= r.n then error('tenants') end\n"
    "  for i = 1, r.n do if not mine[r.group[i]] then error('a group of another') end end\n"
    "  for _, g in ipairs(view.idle) do if not mine[g.id] then error('an idle group of another') end end\n"
    "  for _, set in ipairs(view.cover(2, 1)) do if #set > 2 then error('cover') end end\n"
    "  view.forecast() view.narrowest(100)\n"
    "  for i = 1, math.min(w.n, 5) do local x = d(12)\n"
    "    if x == 1 then act.refuse(w.id[i], 503, 2, 'no') elseif x == 2 then act.hold(w.id[i], 'wait', view.now + 1)\n"
    "    elseif x == 3 then act.hold(w.id[i], nil) end\n"
    "  end\n"
    "  for i = 1, math.min(r.n, 5) do local x = d(8)\n"
    "    if x == 1 then act.preempt(r.id[i], 'recompute') elseif x == 2 then act.preempt(r.id[i], 'hard')\n"
    "    elseif x == 3 then act.remap(r.id[i], view.groups[d(#view.groups)], 'migrate') end end\n"
    "  for i = 1, 3 do local id, x = (d(9)) * 65536 + d(40) - 1, d(10)\n"
    "    if x == 1 then act.preempt(id, 'recompute') elseif x == 2 then act.refuse(id, 429)\n"
    "    elseif x == 3 then act.hold(id, 'hm') elseif x == 4 then act.remap(id, view.groups[1], 'migrate')\n"
    "    elseif x == 5 then act.probe(id) elseif x == 6 then act.conclude(id) end\n"
    "    view.cached(id) end\n"
    "  for i = 1, 3 do local g = view.groups[1].id + 65 * (d(7) - 4)\n"
    "    if g > 0 and d(6) == 1 then act.batch(g) end\n"
    "    if g > 0 and d(9) == 1 then act.open(g) end end\n"
    "  if d(5) == 1 then act.bind({ 0, 1 }, { when = 'hard', kv = 'recompute', reason = 'so' }) end\n"
    "  if d(5) == 1 then act.bind({ 2, 3 }, { when = 'drain', reason = 'so' }) end\n"
    "  if d(5) == 1 then act.release(view.groups[1]) end\n"
    "  if d(9) == 1 then act.preempt(view.groups[1], 'drain') end\n"
    "  if d(3) == 1 then act.open(view.groups[1]) end\n"
    "  act.comm({ 0, 1 }, 'oneshot') act.widen()\n"
    "  for _, g in ipairs(view.idle) do if d(4) > 1 then local b = act.batch(g)\n"
    "    if b then b:decodes() b:prefill(w, d(64)) b:add(d(9) * 65536 + d(40) - 1)\n"
    "    for i = 1, math.min(r.n, 3) do act.draft(r.id[i], 4) end\n"
    "    if b.tokens > 0 then act.forward(g, b) end end end end\n"
    "  act.wake(d(50))\n"
    "  if d(60) == 1 then error('at random') end\n"
    "end }";

/* As many groups as there are ranks. */
static const char splitter[] = HEAD "start = function(node, act) for r = 0, node.n_ranks - 1 do\n"
                                    "  act.bind({ r }, { when = 'hard', kv = 'migrate', reason = 'so' }) end end,\n"
                                    "step = function(view, act) " SERVES " end }";

/* Another policy is live, and nothing is decided before the next order. */
static void swap_unseen(struct rig *t, const char *name, const char *source)
{
    struct err e = {0};
    struct policy *p = mem_new(sizeof *p);
    struct lua_opts opts = t->opts;
    opts.again = true; /* what is bad is not found out before */
    if (lua_policy_load(p, name, source, strlen(source), &opts, NULL, &e))
        fail_msg("%s", e.text);
    rig_post(t, IN_POLICY, p, 0);
}

/* An error that either has raised is one that it raises at random. */
static void assert_says_no_lie(struct rig *t)
{
    char live[512];
    struct json *root = report(t);
    const char *mine = json_text(json_find(root, "last_error"));
    rig_last_error(t, live, sizeof live);
    for (int i = 0; i < 2; i++) {
        const char *text = i ? live : mine;
        if (strstr(text, ".lua:") && !strstr(text, "at random"))
            fail_msg("%s", text);
    }
    json_free(root);
}

/* Two vandals for a second, on groups of one rank. */
static void a_round(struct rig *t, struct traffic *l, int seed, int round)
{
    char mine[sizeof vandal + 20], others[sizeof vandal + 20];
    snprintf(mine, sizeof mine, vandal, seed);
    snprintf(others, sizeof others, vandal, seed + 100 + round);
    assert_int_equal(rig_swap(t, "splitter", splitter), 0);
    drive(t, l, clock_now(&t->clock) + SECOND / 10);
    assert_int_equal(engine_world(t->engine)->partition.n_groups, 4);
    assert_whole(t);
    swap_unseen(t, "others", others);
    assert_int_equal(begin(t, "mine", mine, 1000, 1 + round % 3), 0);
    assert_state(t, "on");
    drive(t, l, clock_now(&t->clock) + SECOND);
    assert_says_no_lie(t);
    if (round % 2 && number(t, "left_s") > 0)
        assert_int_equal(end(t), 0);
}

static void neither_reaches_the_other(void **state)
{
    (void)state;
    static const enum plan_verb_kind tried[] = {PLAN_PREEMPT, PLAN_REFUSE, PLAN_HOLD, PLAN_REMAP, PLAN_CLOSE};
    struct watch w = {0};
    struct witness witness = {.ctx = &w, .turned = turned, .only_watches = true};
    for (int seed = 1; seed <= 4; seed++) {
        struct rig t;
        struct traffic l = {.leave = true};
        rng_init(&l.rng, (uint64_t)seed);
        rig_open(&t, &(struct rig_knobs){.ranks = 4,
                                         .hard_ns = UNHURRIED_NS,
                                         .group_size = 1,
                                         .blocks = 40,
                                         .starvation_s = seed % 2,
                                         .witness = &witness});
        for (int round = 0; round < 4; round++)
            a_round(&t, &l, seed, round);
        rig_swap(&t, "plain", plain);
        assert_whole(&t);
        rig_settle(&t);
        rig_check(&t);
        if (w.wrong[0])
            fail_msg("seed %d: %s", seed, w.wrong);
        rig_close(&t);
    }
    assert_true(w.n_plans > 400 && w.n_live > 400 && w.n_canary > 400);
    for (int side = 0; side < 2; side++)
        for (size_t i = 0; i < sizeof tried / sizeof *tried; i++)
            if (w.n_verbs[side][tried[i]] < 10)
                fail_msg("%s of side %d", plan_verb_name(tried[i]), side);
}

/* ---- its own part, and no more */

/* As plain; at two moments it does a lot before, and then raises. */
static const char raises[] =
    "local n = 0\n" HEAD "step = function(view, act)\n"
    "  local late = n < 2 and view.now > 3 + n / 2 and view.running.n > 2 and #view.idle > 0\n"
    "  if late then n = n + 1\n"
    "    for i = 1, view.waiting.n do act.hold(view.waiting.id[i], 'wait', view.now + 9) end\n"
    "    act.preempt(view.running.id[1], 'recompute') act.preempt(view.groups[1], 'drain') act.wake(1) end\n"
    "  " SERVES "\n  if late then error('so') end\nend }";

static void serve(struct rig *t, const char *canary, uint64_t seed)
{
    struct traffic l = {0};
    rng_init(&l.rng, seed);
    rig_open(t, &(struct rig_knobs){.ranks = 4, .hard_ns = UNHURRIED_NS, .group_size = 1, .blocks = 60});
    assert_int_equal(rig_swap(t, "plain", plain), 0);
    drive(t, &l, 2 * SECOND);
    assert_int_equal(begin(t, "it", canary, 1000, 2), 0);
    drive(t, &l, 6 * SECOND);
    assert_state(t, "on");
    rig_settle(t);
    rig_check(t);
}

static void a_call_that_does_not_stand_takes_its_own_part_along(void **state)
{
    (void)state;
    static struct rig with, without;
    for (uint64_t seed = 1; seed <= 2; seed++) {
        serve(&with, raises, seed);
        serve(&without, plain, seed);
        assert_true(number(&with, "calls.error") == 2 && number(&with, "fallbacks") == 2);
        assert_true(number(&without, "calls.error") == -1 && without.n_tags > 200);
        assert_int_equal(with.n_tags, without.n_tags);
        assert_memory_equal(with.heard, without.heard, sizeof with.heard);
        rig_close(&with);
        rig_close(&without);
    }
}

/* ---- who is whose */

static void what_comes_is_dealt_by_the_share_of_ranks(void **state)
{
    (void)state;
    for (int n = 1; n <= 3; n++) {
        struct rig t;
        struct traffic l = {.next_ns = 0};
        rng_init(&l.rng, (uint64_t)n);
        rig_open(&t, &(struct rig_knobs){.ranks = 4, .hard_ns = UNHURRIED_NS, .group_size = 1, .blocks = 200});
        assert_int_equal(begin(&t, "plain", plain, 1000, n), 0);
        assert_true(number(&t, "share") == n / 4.0);
        for (int i = 0; i < 400; i++)
            rig_submit(&t, "a", 16, 2);
        rig_turn(&t);
        double mine = number(&t, "sides.canary.came"), others = number(&t, "sides.live.came");
        assert_true(mine + others == 400 && mine >= 100 * n - 2 && mine <= 100 * n + 2);
        const struct world *w = engine_world(t.engine);
        for (uint64_t tag = 1; tag <= 400; tag += 40) { /* siblings go where the first one has gone */
            struct request_spec *s = rig_spec(&t, "a", 16, 2);
            s->leader = tag;
            const struct request *leader = request_find_tag(&w->requests, tag);
            bool side = leader->canary;
            rig_post(&t, IN_SUBMIT, s, 0);
            rig_turn(&t);
            const struct request *r = request_find_tag(&w->requests, t.n_tags);
            assert_true(r && r->canary == side);
        }
        rig_settle(&t);
        rig_check(&t);
        assert_true(number(&t, "sides.canary.ended") == number(&t, "sides.canary.came"));
        assert_true(number(&t, "sides.live.done") == number(&t, "sides.live.came"));
        rig_close(&t);
    }
}

/* The same policy on both sides: nothing is lost, and neither is better by more than chance. */
static void one_beside_itself(void **state)
{
    (void)state;
    struct rig t;
    struct traffic l = {0};
    rng_init(&l.rng, 11);
    rig_open(&t, &(struct rig_knobs){
                     .ranks = 4, .hard_ns = UNHURRIED_NS, .group_size = 1, .blocks = 100, .starvation_s = 5});
    assert_int_equal(rig_swap(&t, "plain", plain), 0);
    drive(&t, &l, 2 * SECOND);
    assert_int_equal(begin(&t, "plain", plain, 1000, 2), 0);
    drive(&t, &l, 12 * SECOND);
    assert_state(&t, "on");
    rig_settle(&t);
    rig_check(&t);
    double live = number(&t, "sides.live.done"), canary = number(&t, "sides.canary.done");
    assert_true(live > 200 && canary > 200);
    assert_true(number(&t, "calls.ok") > 500 && number(&t, "fallbacks") == 0);
    assert_true(number(&t, "sides.live.ttft_ms.n") == live && number(&t, "sides.canary.queue_ms.n") == canary);
    assert_true(number(&t, "compared.ttft.p") > 0.01 && number(&t, "compared.tpot.p") > 0.01);
    for (uint64_t i = 1; i <= t.n_tags; i++)
        assert_int_equal(t.heard[i].ending, END_LENGTH);
    assert_int_equal(end(&t), 0);
    assert_whole(&t);
    rig_close(&t);
}

/* One that runs a step in ten: its requests take longer, and that is said. */
static const char slow[] = "local n = 0\n" HEAD "step = function(view, act) n = n + 1\n"
                           "  if n % 10 > 0 then act.wake(5) return end " SERVES " end }";

static void a_worse_one_is_seen(void **state)
{
    (void)state;
    struct rig t;
    struct traffic l = {0};
    rng_init(&l.rng, 12);
    rig_open(&t, &(struct rig_knobs){.ranks = 4, .hard_ns = UNHURRIED_NS, .group_size = 1, .blocks = 100});
    assert_int_equal(rig_swap(&t, "plain", plain), 0);
    assert_int_equal(begin(&t, "slow", slow, 1000, 2), 0);
    drive(&t, &l, 6 * SECOND);
    assert_state(&t, "on");
    assert_true(number(&t, "compared.ttft.p") < 0.001 && number(&t, "compared.ttft.canary_longer") > 0.7);
    assert_true(number(&t, "sides.canary.tpot_ms.p50") > 1.5 * number(&t, "sides.live.tpot_ms.p50"));
    rig_settle(&t);
    rig_check(&t);
    assert_true(rig_metric(&t, "policy_canary ") == 1);
    assert_true(rig_metric(&t, "policy_canary_requests{side=\"canary\",ending=\"done\"}") > 50);
    rig_close(&t);
}

/* Those that come along, on either side: what they ask of the partition is refused, and nothing is lost by it. */
static void policies_that_know_nothing_of_it(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        bool live; /* or the canary */
    } names[] = {{"flying", false},     {"shift", false}, {"auto", false}, {"static", false},
                 {"leastwaste", false}, {"flying", true}, {"fair", true},  {"priority", true}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct rig t;
        struct traffic l = {0};
        struct err e = {0};
        struct buf source = {0};
        char path[100];
        rng_init(&l.rng, i + 1);
        snprintf(path, sizeof path, "policies/%s.lua", names[i].name);
        assert_int_equal(file_read(&source, path, LUA_SOURCE_BYTES, &e), 0);
        rig_open(&t, &(struct rig_knobs){
                         .ranks = 4, .hard_ns = UNHURRIED_NS, .group_size = 1, .blocks = 60, .starvation_s = 2});
        if (names[i].live)
            swap_unseen(&t, names[i].name, source.data); /* it has no time to make another partition */
        assert_int_equal(begin(&t, "it", names[i].live ? plain : source.data, 1000, 2), 0);
        drive(&t, &l, 5 * SECOND / 2);
        if (number(&t, "left_s") > 0)
            assert_int_equal(end(&t), 0);
        else
            assert_begins(&t, "why_ended", "?");
        rig_settle(&t);
        rig_check(&t);
        assert_true(t.n_tags > 60);
        buf_free(&source);
        rig_close(&t);
    }
}

/* ---- its end */

enum how { BY_ORDER, BY_TIME, BY_SWAP, BY_ITSELF, BY_ROLLBACK, BY_RANK, BY_PARAMS };

static void it_gives_everything_back(void **state)
{
    (void)state;
    static const struct {
        enum how how;
        const char *canary, *why;
    } ends[] = {
        {BY_ORDER, plain, "an operator has ended it"},
        {BY_TIME, plain, "its time is up"},
        {BY_SWAP, plain, "another policy goes live"},
        {BY_ITSELF, plain, "it goes live for all groups"},
        {BY_ROLLBACK, plain, "the live policy is rolled back"},
        {BY_RANK, plain, "rank 3 failed"},
        {BY_TIME, HEAD "step = function(view, act) if view.now > 2 then error('no') end " SERVES " end }",
         "too many strikes; last: "},
        {BY_TIME,
         HEAD "admit = function(r) if r.arrival > 2 then error('no') end end, step = function(view, act) " SERVES
              " end }",
         "too many strikes; last: admit: error: it.lua:2: no"},
        {BY_TIME, HEAD "step = function(view, act) if view.now > 2 then while true do end end " SERVES " end }",
         "its call was cut off, so its state may be half changed; last: step: timeout: "},
        {BY_TIME,
         HEAD "step = function(view, act) if view.now > 2 then local t = {} for i = 1, 1e7 do t[i] = { i } end "
              "end " SERVES " end }",
         "its call was cut off, so its state may be half changed; last: step: oom: "},
    };
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        struct rig t;
        struct traffic l = {.leave = true};
        rng_init(&l.rng, i + 1);
        rig_open(&t, &(struct rig_knobs){.ranks = 4,
                                         .group_size = 1,
                                         .blocks = 40,
                                         .hard_ns = strstr(ends[i].why, "timeout") ? SECOND / 5 : UNHURRIED_NS,
                                         .fail_rank = 3,
                                         .fail_at_step = ends[i].how == BY_RANK ? 220 : 0});
        assert_int_equal(rig_swap(&t, "before", plain), 0);
        assert_int_equal(rig_swap(&t, "plain", plain), 0);
        drive(&t, &l, 3 * SECOND / 2);
        int told = t.n_told;
        assert_int_equal(begin(&t, "it", ends[i].canary, ends[i].how == BY_TIME ? 1.2 : 1000, 2), 0);
        drive(&t, &l, 5 * SECOND / 2);
        if (ends[i].how == BY_ORDER)
            assert_int_equal(end(&t), 0);
        if (ends[i].how == BY_SWAP)
            assert_int_equal(rig_swap(&t, "vandal", slow), 0);
        if (ends[i].how == BY_ITSELF)
            assert_int_equal(rig_swap(&t, "it", plain), 0);
        if (ends[i].how == BY_ROLLBACK) {
            rig_post(&t, IN_ROLLBACK, NULL, 0);
            rig_turn(&t);
        }
        drive(&t, &l, 3 * SECOND);
        assert_begins(&t, "why_ended", ends[i].why);
        assert_state(&t, "ended");
        assert_whole(&t);
        assert_int_equal(t.n_told, told + 1);
        assert_non_null(strstr(t.told, "\"event\":\"canary-end\",\"name\":\"it\""));
        assert_true(rig_metric(&t, "policy_canary ") == 0);
        double came = number(&t, "sides.live.came");
        drive(&t, &l, 7 * SECOND / 2);
        assert_true(number(&t, "sides.live.came") == came); /* its book is closed */
        rig_settle(&t);
        rig_check(&t);
        rig_close(&t);
    }
}

static void the_live_policy_goes_and_it_ends(void **state)
{
    (void)state;
    struct rig t;
    struct traffic l = {0};
    rng_init(&l.rng, 3);
    rig_open(&t, &(struct rig_knobs){.ranks = 4, .hard_ns = UNHURRIED_NS, .group_size = 1});
    swap_unseen(&t, "bad", HEAD "step = function(view, act) if view.now > 3 then error('no') end " SERVES " end }");
    assert_int_equal(begin(&t, "plain", plain, 1000, 2), 0);
    drive(&t, &l, 5 * SECOND);
    assert_begins(&t, "why_ended", "the live policy is withdrawn");
    assert_string_equal(engine_policy(t.engine)->name, "fcfs");
    assert_whole(&t);
    rig_settle(&t);
    rig_check(&t);
    assert_int_equal(begin(&t, "plain", plain, 1000, 1), 0); /* one that runs ends with the engine */
    rig_close(&t);
}

/* Where nobody holds a request as groups are, the partition has to change for it. */
static void a_request_that_fits_no_group_ends_it(void **state)
{
    (void)state;
    struct rig t;
    rig_open(&t, &(struct rig_knobs){.ranks = 4, .hard_ns = UNHURRIED_NS, .group_size = 1, .blocks = 20});
    assert_int_equal(begin(&t, "plain", plain, 1000, 2), 0);
    rig_submit(&t, "a", 300, 4);
    rig_submit(&t, "a", 300, 4);
    rig_turn(&t);
    assert_state(&t, "on");
    rig_submit(&t, "a", 500, 4);
    rig_turn(&t);
    assert_begins(&t, "why_ended", "a request fits no group of its side");
    assert_whole(&t);
    rig_settle(&t);
    rig_check(&t);
    assert_int_equal(t.heard[3].ending, END_LENGTH);
    rig_close(&t);
}

/* Pairs and singles: what only a pair holds goes to the side that has it. */
static const char pairs[] =
    HEAD "start = function(node, act) act.bind({ 0, 1 }, { when = 'hard', kv = 'migrate' }) end,\n"
         "step = function(view, act) " SERVES " end }";

static void what_only_one_side_holds_goes_there(void **state)
{
    (void)state;
    for (int wide = 0; wide < 2; wide++) { /* the canary has the pair, or a single */
        struct rig t;
        rig_open(&t, &(struct rig_knobs){.ranks = 4, .hard_ns = UNHURRIED_NS, .group_size = 1, .blocks = 20});
        assert_int_equal(rig_swap(&t, "pairs", pairs), 0);
        rig_submit(&t, "a", 8, 1);
        rig_settle(&t);
        const struct world *w = engine_world(t.engine);
        assert_int_equal(w->partition.n_groups, 3);
        int groups[] = {group_id(&t, wide ? 0 : 2)};
        assert_int_equal(order_on(&t, "plain", plain, 1000, groups, 1), 0);
        for (int i = 0; i < 12; i++) {
            rig_submit(&t, "a", i % 2 ? 400 : 100, i % 3 ? 200 : 4);
            rig_turn(&t);
            const struct request *r = request_find_tag(&w->requests, t.n_tags);
            assert_true(!(i % 2) || r->canary == wide);
        }
        rig_settle(&t);
        rig_check(&t);
        assert_state(&t, "on");
        assert_true(number(&t, "sides.live.done") + number(&t, "sides.canary.done") == 12);
        rig_close(&t);
    }
}

/* A shadow is asked about what the live policy decides. */
static void a_shadow_is_beside_the_live_side(void **state)
{
    (void)state;
    struct rig t;
    struct traffic l = {0};
    struct err e = {0};
    struct shadow_order *o = mem_new(sizeof *o);
    char again[sizeof plain + 20];
    rng_init(&l.rng, 4);
    rig_open(&t, &(struct rig_knobs){.ranks = 4, .hard_ns = UNHURRIED_NS, .group_size = 1, .blocks = 100});
    assert_int_equal(rig_swap(&t, "plain", plain), 0);
    snprintf(again, sizeof again, "-- again\n%s", plain);
    assert_int_equal(lua_policy_load(&o->policy, "again", again, strlen(again), &t.opts, NULL, &e), 0);
    o->for_ns = 1000 * SECOND;
    rig_post(&t, IN_SHADOW, o, 0);
    drive(&t, &l, 2 * SECOND);
    assert_int_equal(begin(&t, "slow", slow, 1000, 2), 0);
    drive(&t, &l, 4 * SECOND);
    assert_int_equal(end(&t), 0);
    drive(&t, &l, 5 * SECOND);
    rig_post(&t, IN_SHADOW_STATE, NULL, 0);
    rig_turn(&t);
    struct json *root = json_parse(t.reply.data, t.reply.len, NULL, NULL);
    const struct json *d = json_find(root, "decisions");
    assert_string_equal(json_text(json_find(root, "state")), "on");
    assert_true(json_number(json_find(d, "compared")) > 300);
    assert_true(json_number(json_find(d, "equal")) == json_number(json_find(d, "compared")));
    json_free(root);
    rig_settle(&t);
    rig_check(&t);
    rig_close(&t);
}

/* ---- what cannot be */

static void assert_refused(struct rig *t, int code, const char *words)
{
    assert_int_equal(t->reply_code, code);
    if (!strstr(t->reply.data, words))
        fail_msg("%s", t->reply.data);
    assert_whole(t);
}

static void what_cannot_be_is_refused(void **state)
{
    (void)state;
    static const char wants[] = HEAD "start = function(node, act) local ok, why = act.bind({ 0, 1 }) \n"
                                     "  if not ok then error(why) end end, step = function(view, act) " SERVES " end }";
    struct rig t;
    rig_open(&t, &(struct rig_knobs){.ranks = 4, .hard_ns = UNHURRIED_NS, .group_size = 1, .probation_s = 2});
    rig_submit(&t, "a", 16, 400);
    rig_turn(&t);
    int g = group_id(&t, 0), twice[] = {g, g}, none[] = {g + 1};
    order_on(&t, "plain", plain, 9, twice, 2);
    assert_refused(&t, E_INPUT, "is named twice");
    order_on(&t, "plain", plain, 9, none, 1);
    assert_refused(&t, E_INPUT, "there is no group 2");
    order_on(&t, "plain", plain, 9, none, 0);
    assert_refused(&t, E_INPUT, "needs groups");
    begin(&t, "plain", plain, 9, 4);
    assert_refused(&t, E_INPUT, "keeps a group at least");
    begin(&t, "wants", wants, 9, 2);
    assert_refused(&t, E_POLICY, "start: error: wants.lua:3: the live policy decides for one of these ranks");
    assert_int_equal(end(&t), E_NOTFOUND);
    assert_int_equal(begin(&t, "plain", plain, 9, 1), 0);
    assert_int_equal(begin(&t, "plain", plain, 9, 1), E_INPUT);
    assert_non_null(strstr(t.reply.data, "is the canary already"));
    assert_int_equal(end(&t), 0);
    assert_int_equal(rig_swap(&t, "plain", plain), 0); /* on probation */
    begin(&t, "plain", plain, 9, 1);
    assert_refused(&t, E_INPUT, "is on probation");
    rig_settle(&t);
    rig_check(&t);
    rig_close(&t);
}

/* What is said to it when it reaches for more; both sides note the words in an error. */
static void words_of_refusals(void **state)
{
    (void)state;
    static const struct {
        const char *call, *words;
    } reaches[] = {
        {"act.bind({ 2, 3 })", "the partition stays as it is while a canary runs"},
        {"act.bind({ 0, 1 })", "the live policy decides for one of these ranks, not the canary"},
        {"act.release(view.groups[1])", "the partition stays as it is while a canary runs"},
        {"act.comm({ 2, 3 }, 'oneshot')", "it is about the groups of two policies: not while a canary runs"},
        {"act.batch(1)", "the live policy decides for this group, not the canary"},
        {"act.open(1)", "the live policy decides for this group, not the canary"},
        {"act.preempt(65536, 'hard')", "the live policy decides for this request, not the canary"},
        {"act.hold(65536, 'so')", "the live policy decides for this request, not the canary"},
        {"act.refuse(65536)", "the live policy decides for this request, not the canary"},
        {"view.cached(65536)", "another policy decides for this request while a canary runs"},
        {"act.evict_drafts('oldest')", "what is kept for draft tokens is the live policy's to decide"},
        {"act.embed()", "the encoder is the live policy's to decide"},
    };
    for (size_t i = 0; i < sizeof reaches / sizeof *reaches; i++) {
        struct rig t;
        char source[600], error[300];
        rig_open(&t, &(struct rig_knobs){.ranks = 4, .hard_ns = UNHURRIED_NS, .group_size = 1});
        assert_int_equal(rig_swap(&t, "plain", plain), 0);
        rig_submit(&t, "a", 16, 200); /* has the id 65536, and runs in the first group */
        rig_turn(&t);
        snprintf(source, sizeof source,
                 HEAD "step = function(view, act) " SERVES "\n local ok, why = %s\n"
                      "  if ok then error('done') end error(why) end }",
                 reaches[i].call);
        assert_int_equal(begin(&t, "it", source, 1000, 2), 0);
        rig_submit(&t, "a", 16, 2);
        rig_turn(&t);
        snprintf(error, sizeof error, "step: error: it.lua:5: %s", reaches[i].words);
        assert_begins(&t, "last_error", error);
        assert_int_equal(engine_world(t.engine)->partition.n_groups, 4);
        rig_settle(&t);
        rig_check(&t);
        rig_close(&t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(neither_reaches_the_other),
        cmocka_unit_test(a_call_that_does_not_stand_takes_its_own_part_along),
        cmocka_unit_test(what_comes_is_dealt_by_the_share_of_ranks),
        cmocka_unit_test(one_beside_itself),
        cmocka_unit_test(a_worse_one_is_seen),
        cmocka_unit_test(policies_that_know_nothing_of_it),
        cmocka_unit_test(it_gives_everything_back),
        cmocka_unit_test(the_live_policy_goes_and_it_ends),
        cmocka_unit_test(a_request_that_fits_no_group_ends_it),
        cmocka_unit_test(what_only_one_side_holds_goes_there),
        cmocka_unit_test(a_shadow_is_beside_the_live_side),
        cmocka_unit_test(what_cannot_be_is_refused),
        cmocka_unit_test(words_of_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
