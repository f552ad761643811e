/* Policies and threads: the watchdog at the very moment of return, machines made and retired beside each
 * other, and swaps from several threads into a live engine. Meant for TSan, and true without it. */
#include "tests/rig/policy_rig.h"

#include <stdatomic.h>

#include "engine/base/rng.h"
#include "engine/base/thread.h"
#include "lua/script.h"

static const char good[] = "return { api = 1, doc = 'x', needs = { 'tenant' }, step = function(view, act)\n"
                           "  local b = act.batch(1) b:decodes() b:prefill(view.waiting) if b.tokens > 0 "
                           "then act.forward(1, b) end end }";

/* ---- the watchdog */

struct caller {
    struct lua_watchdog *dog;
    struct thread *thread;
    uint64_t seed;
    int n_calls, n_vms, n_stopped, n_wrong;
};

static void spin(lua_State *L, void *arg)
{
    lua_rawgeti(L, LUA_REGISTRYINDEX, *(int *)arg);
    lua_call(L, 0, 0);
}

/* Calls of random length around a random deadline: some are stopped, some just make it. A call that ran to
 * its end is never called stopped, and the next call of the same machine is not hit by the last one's hook.
 */
static void call_a_lot(void *arg)
{
    struct caller *c = arg;
    struct rng g;
    rng_init(&g, c->seed);
    for (int m = 0; m < c->n_vms; m++) {
        struct script *s;
        struct lua_opts o = {.watchdog = c->dog, .heap_bytes = 1 << 20, .hard_ns = 1000000000, .quiet = true};
        char source[300];
        struct err e = {0};
        snprintf(source, sizeof source, "return { api = 1, doc = 'x', step = function() for i = 1, %d do end end }",
                 (int)rng_below(&g, 20000));
        if (script_open(&s, "spin", source, strlen(source), &o, &e)) {
            c->n_wrong++;
            continue;
        }
        for (int i = 0; i < c->n_calls; i++) {
            struct vm_budget b = {.hard_ns = 1000 + (int64_t)rng_below(&g, 60000)};
            enum verdict v = vm_call(&s->vm, b, spin, &s->hooks[HOOK_STEP], &e);
            c->n_stopped += v == VERDICT_TIMEOUT;
            c->n_wrong += v != VERDICT_OK && v != VERDICT_TIMEOUT;
            v = vm_call(&s->vm, (struct vm_budget){.hard_ns = 10000000000}, spin, &s->hooks[HOOK_STEP], &e);
            c->n_wrong += v != VERDICT_OK;
        }
        script_close(s);
    }
}

static void the_watchdog_at_return(void **state)
{
    (void)state;
    struct caller callers[4];
    struct lua_watchdog *dog;
    struct err e = {0};
    assert_int_equal(lua_watchdog_start(&dog, &e), 0);
    for (int i = 0; i < 4; i++) {
        callers[i] = (struct caller){.dog = dog, .seed = (uint64_t)i, .n_calls = 400, .n_vms = 40};
        assert_int_equal(thread_start(&callers[i].thread, "caller", call_a_lot, &callers[i], &e), 0);
    }
    int stopped = 0;
    for (int i = 0; i < 4; i++) {
        thread_join(callers[i].thread);
        assert_int_equal(callers[i].n_wrong, 0);
        stopped += callers[i].n_stopped;
    }
    assert_true(stopped > 0);
    lua_watchdog_stop(dog);
}

/* ---- swaps */

struct swapper {
    struct rig *rig;
    struct thread *thread;
    uint64_t seed;
    int n, n_refused;
};

static _Atomic int n_replies, n_refused, n_ends, n_tokens;

/* Good policies, policies that cannot load, and policies that turn bad after some steps. */
static void swap_a_lot(void *arg)
{
    struct swapper *x = arg;
    struct rng g;
    rng_init(&g, x->seed);
    for (int i = 0; i < x->n; i++) {
        static const char *const sources[] = {
            good,
            "return {",
            "return { api = 1, doc = 'x', export = function() return { n = 1 } end, import = function(s) "
            "assert(s.n) end, step = function(view, act)\n"
            "  local b = act.batch(1) b:decodes() b:prefill() if b.tokens > 0 then act.forward(1, b) end end "
            "}",
            "return { api = 1, doc = 'x', step = function(view, act) if view.step > 50 then while true do "
            "end end\n"
            "  local b = act.batch(1) b:decodes() b:prefill() if b.tokens > 0 then act.forward(1, b) end end "
            "}",
            "return { api = 1, doc = 'x', start = function(node) if node.model == 'sim' then error('not "
            "here') end end, step = function(view, act)\n"
            "  local b = act.batch(1) b:decodes() b:prefill() if b.tokens > 0 then act.forward(1, b) end end "
            "}",
        };
        const char *source = sources[rng_below(&g, 5)];
        struct policy *p = mem_new(sizeof *p);
        struct err e = {0};
        if (lua_policy_load(p, "swap", source, strlen(source), &x->rig->opts, NULL, &e)) {
            mem_free(p);
            x->n_refused++;
            continue;
        }
        struct engine_message m = {.kind = rng_below(&g, 8) ? IN_POLICY : IN_ROLLBACK, .tag = 1, .payload = p};
        if (m.kind == IN_ROLLBACK) {
            p->ops->destroy(p->ctx);
            mem_free(p);
            m.payload = NULL;
        }
        queue_post(engine_inbox(x->rig->engine), &m);
        atomic_fetch_add(&n_replies, 1);
    }
}

static void hear(struct queue *q, int *replies)
{
    struct engine_event ev;
    while (queue_take(q, &ev)) {
        *replies += ev.kind == EV_REPLY;
        atomic_fetch_add(&n_refused, ev.kind == EV_REPLY && ev.code != 0);
        atomic_fetch_add(&n_ends, ev.kind == EV_END && ev.code == END_LENGTH);
        atomic_fetch_add(&n_tokens, ev.kind == EV_TOKEN);
        mem_free(ev.payload);
    }
}

static void open_threaded(struct rig *t)
{
    struct err e = {0};
    memset(t, 0, sizeof *t);
    clock_init_real(&t->clock);
    if (lua_watchdog_start(&t->dog, &e) || model_open_dummy(&t->model, "tests/data/sim_model.json", DT_BF16, 1, &e))
        fail_msg("%s", e.text);
    t->opts = (struct lua_opts){.watchdog = t->dog, .quiet = true, .folder = "policies"};
    struct engine_setup s = {.ops = backend_sim(),
                             .device = {.sim_step_ns = 100000, .sim_row_ns = 100},
                             .model = t->model,
                             .limits = {.max_num_seqs = 32, .max_num_batched_tokens = 256, .prefix_caching = true},
                             .kv_dtype = DT_F16,
                             .block_size = 16,
                             .clock = &t->clock,
                             .threaded = true,
                             .quiet = true};
    policy_fcfs(&s.policy);
    snprintf(s.model_name, sizeof s.model_name, "sim");
    s.kv_bytes = 512 * 2 * backend_sim()->kv_block_bytes(DT_F16, 16, 2, 16);
    if (engine_create(&t->engine, &s, &e))
        fail_msg("%s", e.text);
}

enum { REQUESTS = 400, OUT = 20 };

static void swaps_from_many_threads(void **state)
{
    (void)state;
    struct rig t;
    struct err e = {0};
    struct thread *engine;
    struct swapper swappers[3];
    open_threaded(&t);
    assert_int_equal(thread_start(&engine, "engine", engine_run, t.engine, &e), 0);
    for (int i = 0; i < 3; i++) {
        swappers[i] = (struct swapper){.rig = &t, .seed = (uint64_t)i, .n = 40};
        assert_int_equal(thread_start(&swappers[i].thread, "swapper", swap_a_lot, &swappers[i], &e), 0);
    }
    int replies = 0;
    for (int i = 0; i < REQUESTS; i++) {
        rig_submit(&t, i % 2 ? "a" : "b", 10 + i % 50, OUT);
        queue_wait(engine_outbox(t.engine), 2000000);
        hear(engine_outbox(t.engine), &replies);
    }
    for (int i = 0; i < 3; i++)
        thread_join(swappers[i].thread);
    while (atomic_load(&n_ends) < REQUESTS || replies < atomic_load(&n_replies)) {
        queue_wait(engine_outbox(t.engine), 100000000);
        hear(engine_outbox(t.engine), &replies);
    }
    assert_int_equal(atomic_load(&n_tokens), REQUESTS * OUT);
    assert_true(atomic_load(&n_refused) > 0);
    /* one more load races with the stop */
    struct swapper last = {.rig = &t, .seed = 9, .n = 5};
    assert_int_equal(thread_start(&last.thread, "swapper", swap_a_lot, &last, &e), 0);
    rig_post(&t, IN_STOP, NULL, 0);
    thread_join(last.thread);
    thread_join(engine);
    rig_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_watchdog_at_return),
                                       cmocka_unit_test(swaps_from_many_threads)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
