/* The view is the world: after any sequence of changes the columns hold what the requests say, without
 * rewriting what did not change; memory and stack stay flat over many steps; and memory that runs out at any
 * point of a call ends as a verdict. */
#include "tests/rig/policy_rig.h"

#include <lauxlib.h>

#include "engine/base/rng.h"
#include "lua/rehearse.h"

static struct lua_watchdog *dog;
static const struct rehearsal_size small_world = {
    .kv_blocks = 400, .tokens_per_block = 16, .max_num_seqs = 60, .max_num_batched_tokens = 256};
static const struct rehearsal_size large_world = {
    .kv_blocks = 4000, .tokens_per_block = 16, .max_num_seqs = 60, .max_num_batched_tokens = 256};

static const char watcher[] =
    "return { api = 1, doc = 'x', needs = { 'id', 'tenant', 'priority', 'arrival', 'prompt', 'max_tokens', "
    "'slo_ttft_ms', 'slo_tpot_ms', 'preempted',\n"
    "  'waiting_since', 'started', 'key', 'computed', 'output', 'remaining', 'blocks', 'first', 'last' },\n"
    "  step = function(view, act, p) if view.idle[1] then local b = act.batch(1) b:decodes() "
    "b:prefill(view.waiting)\n"
    "    if b.tokens > 0 then act.forward(1, b) end end end }";

static struct script *open_script(const char *source, size_t heap)
{
    struct script *s;
    struct err e = {0};
    struct lua_opts in = {.watchdog = dog, .heap_bytes = heap, .hard_ns = 5000000000, .quiet = true}, o;
    assert_int_equal(script_opts(&o, &in, &e), 0);
    if (script_open(&s, "view", source, strlen(source), &o, &e))
        fail_msg("%s", e.text);
    return s;
}

static double field(lua_State *L, int ref, const char *name, int row)
{
    lua_rawgeti(L, LUA_REGISTRYINDEX, ref);
    lua_getfield(L, -1, name);
    if (row)
        lua_rawgeti(L, -1, row);
    double v = lua_type(L, -1) == LUA_TNUMBER ? lua_tonumber(L, -1) : -12345;
    lua_settop(L, 2);
    return v;
}

static void check_text(lua_State *L, int ref, int row, const char *want)
{
    lua_rawgeti(L, LUA_REGISTRYINDEX, ref);
    lua_getfield(L, -1, "tenant");
    lua_rawgeti(L, -1, row);
    assert_string_equal(lua_tostring(L, -1), want);
    lua_settop(L, 2);
}

/* Every row is a request of the queue, every request has one row, every cell is right, and both ends are in
 * order. */
static void check_queue(struct script *s, const struct columns *c, const struct req_queue *q)
{
    lua_State *L = s->vm.L;
    assert_int_equal(field(L, c->view_ref, "n", 0), q->n);
    for (int i = 0; i < q->n; i++) {
        const struct request *r = q->items[i];
        int row = 0;
        for (int k = 1; k <= q->n && !row; k++)
            row = field(L, c->view_ref, "id", k) == lua_req_id(r->id) ? k : 0;
        assert_true(row > 0);
        assert_true(lua_req_id_back(lua_req_id(r->id)) == r->id);
        const struct {
            const char *name;
            double want;
        } cells[] = {
            {"priority", r->spec->priority},
            {"arrival", (double)r->spec->arrival_ns * 1e-9},
            {"prompt", r->spec->n_prompt},
            {"max_tokens", r->spec->max_tokens},
            {"preempted", r->n_preempted},
            {"waiting_since", (double)r->waiting_since_ns * 1e-9},
            {"started", (double)r->first_scheduled_ns * 1e-9},
            {"key", r->key},
            {"computed", r->n_computed},
            {"output", request_output(r)},
            {"remaining", request_remaining(r)},
            {"blocks", r->n_blocks},
        };
        for (size_t k = 0; k < sizeof cells / sizeof *cells; k++)
            if (field(L, c->view_ref, cells[k].name, row) != cells[k].want)
                fail_msg("%s of row %d is %g, not %g", cells[k].name, row, field(L, c->view_ref, cells[k].name, row),
                         cells[k].want);
        check_text(L, c->view_ref, row, r->spec->tenant);
        if (i < COLUMN_ENDS)
            assert_int_equal(field(L, c->view_ref, "first", i + 1), row);
        if (q->n - 1 - i < COLUMN_ENDS)
            assert_int_equal(field(L, c->view_ref, "last", q->n - i), row);
    }
    assert_true(field(L, c->view_ref, "id", q->n + 1) == -12345);
    if (q->n < COLUMN_ENDS)
        assert_true(field(L, c->view_ref, "first", q->n + 1) == -12345);
}

static struct request *any(struct req_queue *q, struct rng *g)
{
    return q->n ? q->items[rng_below(g, (uint64_t)q->n)] : NULL;
}

static void change(struct rehearsal *r, struct rng *g)
{
    struct world *w = &r->world;
    static const char *const tenants[] = {"", "a", "b", "a long name of a tenant \xc3\xa9"};
    struct request *q;
    switch (rng_below(g, 6)) {
    case 0:
    case 1:
        rehearsal_add(r, &(struct made_request){.tenant = tenants[rng_below(g, 4)],
                                                .priority = (int)rng_below(g, 9),
                                                .n_prompt = 1 + (int)rng_below(g, 90),
                                                .max_tokens = 50,
                                                .arrival_s = (double)rng_below(g, 50),
                                                .n_output = (int)rng_below(g, 5),
                                                .running = rng_below(g, 2)});
        break;
    case 2:
        if ((q = any(rng_below(g, 2) ? &w->running : &w->waiting, g)))
            world_end(w, q, END_ABORT);
        break;
    case 3:
        if ((q = any(&w->running, g)))
            world_preempt(w, q, rng_below(g, 2), r->now_ns);
        break;
    case 4:
        if ((q = any(rng_below(g, 2) ? &w->running : &w->waiting, g)))
            world_rekey(w, q, (double)rng_below(g, 60));
        break;
    default:
        if ((q = any(&w->running, g)) && q->n_blocks &&
            kv_blocks_for(&w->kv, q->place, q->n_tokens + 1) <= q->n_blocks) {
            world_commit(w, q, q->n_tokens);
            request_append(q, 3);
        }
    }
    r->now_ns += 1000000;
}

static void columns_follow_the_world(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 4; seed++) {
        struct script *s = open_script(watcher, 0);
        struct rehearsal r;
        struct rng g;
        struct err e = {0};
        rng_init(&g, seed);
        rehearsal_init(&r, small_world, 100);
        for (int i = 0; i < 150; i++) {
            int n = (int)rng_below(&g, 10) ? (int)rng_below(&g, 6)
                                           : (int)rng_below(&g, 200); /* at times more than a journal holds */
            for (int k = 0; k < n; k++)
                change(&r, &g);
            struct view v = rehearsal_view(&r);
            r.world.step = (uint64_t)(i == 100 ? 4095 : i + 1);
            v.n_idle = 0; /* look, and decide nothing */
            plan_begin(&r.plan, r.now_ns);
            if (!verdict_stands(script_step(s, &v, &r.plan, &e)))
                fail_msg("%s", e.text);
            check_queue(s, &s->bind.waiting, &r.world.waiting);
            check_queue(s, &s->bind.running, &r.world.running);
            assert_true(field(s->vm.L, s->bind.view_ref, "now", 0) == (double)r.now_ns * 1e-9);
            assert_int_equal(field(s->vm.L, s->bind.view_ref, "kv_free", 0), kv_available(&r.world.kv, 0));
            assert_int_equal(field(s->vm.L, s->bind.view_ref, "n_waiting", 0), r.world.waiting.n);
        }
        rehearsal_free(&r);
        script_close(s);
    }
}

/* A policy that writes a cell is found out, sooner or later, and the cell is put right at once. */
static void a_changed_cell_is_found(void **state)
{
    (void)state;
    struct script *s =
        open_script("return { api = 1, doc = 'x', needs = { 'waiting.prompt' }, step = function(view) if "
                    "view.step == 5 then\n"
                    "  for i = 1, 30 do view.waiting.prompt[i] = view.waiting.prompt[i] + 1 end end end }",
                    0);
    struct rehearsal r;
    struct err e = {0};
    rehearsal_init(&r, small_world, 100);
    for (int i = 0; i < 60; i++)
        rehearsal_add(&r, &(struct made_request){.n_prompt = 10 + i});
    int found = 0;
    for (int i = 0; i < 100; i++) {
        struct view v = rehearsal_view(&r);
        r.world.step = (uint64_t)i;
        plan_begin(&r.plan, r.now_ns);
        enum verdict verdict = script_step(s, &v, &r.plan, &e);
        found += verdict == VERDICT_MALFORMED;
        assert_true(verdict == VERDICT_MALFORMED || verdict_stands(verdict));
        for (int row = 1; found && row <= 60; row++)
            assert_true(field(s->vm.L, s->bind.waiting.view_ref, "prompt", row) >= 10);
    }
    assert_int_equal(found, 1);
    rehearsal_free(&r);
    script_close(s);
}

/* A flood of requests is the engine's, not the policy's: its columns grow by megabytes under a small cap. */
static void a_flood_is_not_the_policys_debt(void **state)
{
    (void)state;
    struct script *s = open_script(watcher, 64 << 10);
    struct rehearsal r;
    struct err e = {0};
    rehearsal_init(&r, large_world, 100);
    for (int i = 0; i < 3; i++) {
        for (int k = 0; k < 15000; k++)
            assert_non_null(rehearsal_add(
                &r, &(struct made_request){.tenant = "t", .n_prompt = 3, .arrival_s = i * 20 + k * 1e-3}));
        struct view v = rehearsal_view(&r);
        plan_begin(&r.plan, r.now_ns);
        if (!verdict_stands(script_step(s, &v, &r.plan, &e)))
            fail_msg("%s", e.text);
        assert_int_equal(field(s->vm.L, s->bind.waiting.view_ref, "n", 0), r.world.waiting.n);
        assert_true(field(s->vm.L, s->bind.waiting.view_ref, "prompt", r.world.waiting.n) == 3);
    }
    while (r.world.waiting.n > 10)
        world_end(&r.world, r.world.waiting.items[r.world.waiting.n - 1], END_ABORT);
    struct view v = rehearsal_view(&r);
    plan_begin(&r.plan, r.now_ns);
    assert_true(verdict_stands(script_step(s, &v, &r.plan, &e)));
    check_queue(s, &s->bind.waiting, &r.world.waiting);
    rehearsal_free(&r);
    script_close(s);
}

/* Many steps: the stack is where it was, and the heap does not grow. */
static void flat(void **state)
{
    (void)state;
    struct script *s = open_script("local t = {} return { api = 1, doc = 'x', needs = { 'tenant', 'first' }, "
                                   "step = function(view, act, p)\n"
                                   "  t = { view.now, { view.step } } log(tostring(view.step)) local b = "
                                   "act.batch(1) b:decodes() b:prefill(view.waiting)\n"
                                   "  if b.tokens > 0 then act.forward(1, b) end end, admit = function(r) "
                                   "return r.arrival end, finish = function(r) t = { r.tenant } end }",
                                   0);
    struct rehearsal r;
    struct err e = {0};
    rehearsal_init(&r, small_world, 100);
    size_t after_warming = 0;
    int top = lua_gettop(s->vm.L);
    for (int i = 0; i < 30000; i++) {
        struct view v = rehearsal_view(&r);
        struct admission a = {.key = 0};
        struct request *q = rehearsal_add(
            &r,
            &(struct made_request){.tenant = i % 2 ? "a" : "b", .max_tokens = 2, .n_prompt = 5, .arrival_s = i * 1e-3});
        assert_true(!q || verdict_stands(script_admit(s, q, &v, &a, &e)));
        plan_begin(&r.plan, r.now_ns);
        if (!verdict_stands(script_step(s, &v, &r.plan, &e)))
            fail_msg("%s", e.text);
        rehearsal_advance(&r, 2, NULL, NULL);
        vm_collect(&s->vm);
        assert_int_equal(lua_gettop(s->vm.L), top);
        if (i == 3000)
            after_warming = s->vm.peak;
    }
    assert_true(s->vm.peak <= after_warming + (64 << 10));
    rehearsal_free(&r);
    script_close(s);
}

static void collect_all(lua_State *L, void *arg)
{
    (void)arg;
    lua_gc(L, LUA_GCCOLLECT, 0);
    lua_gc(L, LUA_GCSTOP, 0);
}

/* The heap's end is moved through every point of a call: host code, library code and the policy's own all end
 * as a verdict, and nothing else happens. */
static void memory_ends_anywhere(void **state)
{
    (void)state;
    static const char source[] = "local kept = {} return { api = 1, doc = 'x', needs = { 'tenant', 'first', "
                                 "'key' }, params = { m = { default = { a = 1 } } },\n"
                                 "  start = function(node) kept[1] = node.model .. 'x' end, admit = "
                                 "function(r) kept[r.id] = { r.name .. r.tenant } return 1 end,\n"
                                 "  finish = function(r) kept[r.id] = nil end, export = function() return { "
                                 "a = { 1, 2 }, b = 'text' } end, import = function(s) kept[2] = s end,\n"
                                 "  step = function(view, act, p) for k, v in sorted_pairs { a = 1, b = "
                                 "view.step } do kept[k] = string.format('%s-%d', k, v) end\n"
                                 "    local r = rng(view.step) table.insert(kept, r(5)) local ids = {} for i "
                                 "= 1, view.waiting.n do ids[i] = view.waiting.id[i] end\n"
                                 "    local b = act.batch(1) b:decodes() b:prefill(ids) if b.tokens > 0 then "
                                 "act.forward(1, b, { tp = 1 }) end log(tostring(#kept)) end }";
    int n_oom = 0, n_ok = 0;
    for (size_t room = 0; room < 24000; room += 56) {
        struct script *s = open_script(source, 0);
        struct rehearsal r;
        struct err e = {0};
        rehearsal_init(&r, small_world, 100);
        rehearsal_crowd(&r, 30, room);
        vm_call(&s->vm, script_generous(s), collect_all, NULL, &e);
        s->vm.floor = s->vm.used; /* not a byte to spare but these */
        s->bind.groups.tables[0].counted = true;
        s->vm.cap = room;
        struct node_facts node = rehearsal_node(&r);
        struct view v = rehearsal_view(&r);
        struct admission a = {.key = 0};
        struct buf out = {0};
        plan_begin(&r.plan, r.now_ns);
        enum verdict verdicts[] = {script_start(s, &node, &v, &r.plan, &e),
                                   script_admit(s, r.world.waiting.items[0], &v, &a, &e),
                                   script_step(s, &v, &r.plan, &e),
                                   script_finish(s, r.world.waiting.items[0], END_STOP, &v, &e),
                                   script_export(s, &out, &e),
                                   script_import(s, "{\"a\":[1,2,{\"b\":\"c\"}]}", 21, &e)};
        for (size_t i = 0; i < sizeof verdicts / sizeof *verdicts; i++) {
            assert_true(s->vm.used <= s->vm.floor + s->vm.cap + VM_RESERVE_BYTES);
            if (verdicts[i] != VERDICT_OOM && !verdict_stands(verdicts[i]))
                fail_msg("%zu bytes, call %zu: %s: %s", room, i, verdict_name(verdicts[i]), e.text);
            n_oom += verdicts[i] == VERDICT_OOM;
            n_ok += verdicts[i] == VERDICT_OK;
        }
        script_params_set(s, "{\"m\":{\"x\":1,\"y\":2}}", 20, &e);
        vm_collect(&s->vm);
        buf_free(&out);
        rehearsal_free(&r);
        script_close(s);
    }
    if (n_oom < 100 || n_ok < 100)
        fail_msg("%d calls ran out of memory, %d did not", n_oom, n_ok);
}

/* What a plan made in a call that did not stand leaves behind: nothing. */
static void a_dropped_plan_leaves_no_trace(void **state)
{
    (void)state;
    struct script *s =
        open_script("return { api = 1, doc = 'x', needs = { 'id' }, step = function(view, act) local r = view.running\n"
                    "  act.preempt(r.id[1], 'recompute') act.refuse(view.waiting.id[1], 429) local b = act.batch(1) "
                    "b:decodes() b:prefill()\n"
                    "  act.forward(1, b) act.wake(5) error('after all') end }",
                    0);
    struct rehearsal r;
    struct err e = {0};
    rehearsal_init(&r, small_world, 100);
    rehearsal_crowd(&r, 30, 3);
    int waiting = r.world.waiting.n, running = r.world.running.n, available = kv_available(&r.world.kv, 0);
    struct view v = rehearsal_view(&r);
    plan_begin(&r.plan, r.now_ns);
    assert_int_equal(script_step(s, &v, &r.plan, &e), VERDICT_ERROR);
    assert_string_equal(e.text, "view.lua:3: after all");
    assert_int_equal(r.world.waiting.n, waiting);
    assert_int_equal(r.world.running.n, running);
    assert_int_equal(kv_available(&r.world.kv, 0), available);
    plan_begin(&r.plan, r.now_ns);
    assert_true(plan_is_empty(&r.plan) && !r.plan.n_verbs && !r.plan.wake_ns);
    assert_int_equal(plan_decodes(plan_batch(&r.plan, 1)), running);
    assert_true(world_check(&r.world));
    rehearsal_free(&r);
    script_close(s);
}

static int start(void **state)
{
    (void)state;
    return lua_watchdog_start(&dog, NULL);
}

static int stop(void **state)
{
    (void)state;
    lua_watchdog_stop(dog);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(columns_follow_the_world),
        cmocka_unit_test(a_changed_cell_is_found),
        cmocka_unit_test(a_flood_is_not_the_policys_debt),
        cmocka_unit_test(flat),
        cmocka_unit_test(memory_ends_anywhere),
        cmocka_unit_test(a_dropped_plan_leaves_no_trace),
    };
    return cmocka_run_group_tests(tests, start, stop);
}
