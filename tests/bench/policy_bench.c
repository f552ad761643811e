/* What a policy's step costs through the real host, without the engine: p50, p99 and p99.9 of wall time at 8,
 * 64 and 512 requests, of which two end, two start and two arrive between steps. `scan` reads every row (four
 * columns of the waiting, two of the running) and keeps the best four: the dearest thing a sane policy does.
 * `empty` is the floor; `native` is policy_fcfs.c: what the verbs themselves cost. p10 is what a call takes where
 * nothing else wants the cores. Then the same cold, as a server meets it: between two calls 48 MiB are read, as a step
 * reads its weights, and every core is kept busy by a thread that does so, too. --process: policies in processes of
 * their own, whose calls go over a page. usage: policy_bench [--process] [--warm | --cold] [POLICY.lua...] */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/base/seen.h"
#include "engine/base/thread.h"
#include "lua/nursery.h"
#include "lua/rehearse.h"

enum { STEPS = 20000, COLD_STEPS = 300, MAX_CORES = 64, LINE = 64 };
static const size_t WEIGHT_BYTES = (size_t)48 << 20;

/* What empties the caches between calls. NULL: nothing does. */
struct weights {
    _Atomic bool stop;
    _Atomic unsigned sum; /* so that reading is not optimised away */
    int n_cores;
    struct thread *cores[MAX_CORES];
    unsigned char *bytes;
};

static void read_weights(struct weights *w)
{
    unsigned sum = 0;
    for (size_t i = 0; i < WEIGHT_BYTES; i += LINE)
        sum += w->bytes[i];
    atomic_fetch_add(&w->sum, sum);
}

static void keep_busy(void *arg)
{
    struct weights *w = arg;
    while (!atomic_load(&w->stop))
        read_weights(w);
}

static void weights_start(struct weights *w)
{
    struct err e = {0};
    w->bytes = mem_new_array(WEIGHT_BYTES, 1);
    memset(w->bytes, 1, WEIGHT_BYTES);
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    for (long i = 0; i < n && i < MAX_CORES; i++)
        if (thread_start(&w->cores[w->n_cores++], "busy", keep_busy, w, &e)) {
            fprintf(stderr, "%s\n", e.text);
            exit(1);
        }
}

static void weights_stop(struct weights *w)
{
    atomic_store(&w->stop, true);
    for (int i = 0; i < w->n_cores; i++)
        thread_join(w->cores[i]);
    mem_free(w->bytes);
    *w = (struct weights){0};
}

static const char empty[] = "return { api = 1, doc = 'empty', step = function(view, act, p)\n"
                            "  if view.step < 100 then for _, g in ipairs(view.idle) do\n"
                            "    local b = act.batch(g) b:decodes() b:prefill(view.waiting) if b.tokens > 0 "
                            "then act.forward(g, b) end\n"
                            "  end end\nend }";

static const char scan[] =
    "local best, score = {}, {}\n"
    "return { api = 1, doc = 'scan', needs = { 'waiting.priority', 'waiting.arrival', 'waiting.prompt', "
    "'waiting.max_tokens',\n"
    "    'running.priority', 'running.arrival' },\n"
    "  step = function(view, act, p)\n"
    "    local w, r, now = view.waiting, view.running, view.now\n"
    "    local priority, arrival, prompt, max_tokens = w.priority, w.arrival, w.prompt, w.max_tokens\n"
    "    score[1], score[2], score[3], score[4] = -1e300, -1e300, -1e300, -1e300\n"
    "    for i = 1, w.n do\n"
    "      local s = (now - arrival[i]) * 10 - priority[i] * 100 - prompt[i] * 0.01 - max_tokens[i] * 0.001\n"
    "      if s > score[4] then\n"
    "        local k = 4\n"
    "        while k > 1 and s > score[k - 1] do score[k], best[k] = score[k - 1], best[k - 1] k = k - 1 "
    "end\n"
    "        score[k], best[k] = s, i\n"
    "      end\n"
    "    end\n"
    "    local worst, victim = 1e300, 0\n"
    "    priority, arrival = r.priority, r.arrival\n"
    "    for i = 1, r.n do\n"
    "      local s = (now - arrival[i]) - priority[i] * 100\n"
    "      if s < worst then worst, victim = s, i end\n"
    "    end\n"
    "    for _, g in ipairs(view.idle) do\n"
    "      local b = act.batch(g)\n"
    "      if view.step < 100 then b:decodes() end\n"
    "      for k = 1, 4 do if best[k] and best[k] <= w.n then b:add(w.id[best[k]], 16) end end\n"
    "      if b.tokens > 0 then act.forward(g, b, { tp = g.size }) end\n"
    "    end\n"
    "  end }";

static int compare(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* Two running requests end, two waiting ones take their place, two arrive. */
static void churn(struct rehearsal *r, struct rng *g)
{
    struct world *w = &r->world;
    for (int i = 0; i < 2 && w->running.n; i++)
        world_end(w, w->running.items[rng_below(g, (uint64_t)w->running.n)], END_LENGTH);
    for (int i = 0; i < 2 && w->waiting.n; i++) {
        struct request *q = w->waiting.items[0];
        world_start(w, q, partition_slot(&w->partition, (int)(w->step % (uint64_t)w->partition.n_groups)), r->now_ns);
        if (!world_reserve(w, q, q->n_tokens))
            exit(1);
        world_commit(w, q, q->n_tokens - 1);
    }
    for (int i = 0; i < 2; i++)
        rehearsal_add(r, &(struct made_request){.tenant = "blue",
                                                .priority = (int)rng_below(g, 5),
                                                .n_prompt = 20,
                                                .max_tokens = 50,
                                                .arrival_s = (double)r->now_ns * 1e-9});
    r->now_ns += 10000000;
    w->step++;
}

static void measure(const struct policy *p, const char *name, int n, int n_groups, struct weights *cold)
{
    int n_steps = cold ? COLD_STEPS : STEPS;
    static int64_t times[STEPS];
    struct rehearsal *r = seen_new(sizeof *r);
    struct clock clock;
    struct err e = {0};
    struct rng g;
    int bad = 0;
    rng_init(&g, 3);
    clock_init_real(&clock);
    struct rehearsal_size size = {.kv_blocks = 1 << 16,
                                  .tokens_per_block = 16,
                                  .max_num_seqs = 1024,
                                  .max_num_batched_tokens = 2048,
                                  .n_ranks = n_groups};
    for (int i = 0; i < n_groups; i++)
        size.groups[i] = 1ull << i;
    rehearsal_init(r, size, 100);
    rehearsal_crowd(r, n, 5);
    r->world.step = 100; /* past the dry runs: from here on `empty` and `scan` leave the decodes alone */
    for (int i = 0; i < n_steps; i++) {
        if (cold)
            read_weights(cold);
        struct view v = rehearsal_view(r);
        plan_begin(&r->plan, r->now_ns);
        int64_t t0 = clock_now(&clock);
        enum verdict verdict = p->ops->step(p->ctx, &v, &r->plan, bad ? NULL : &e);
        times[i] = clock_now(&clock) - t0;
        bad += !verdict_stands(verdict);
        if (p->ops->idle)
            p->ops->idle(p->ctx);
        churn(r, &g);
    }
    rehearsal_free(r);
    mem_free(r);
    qsort(times, (size_t)n_steps, sizeof *times, compare);
    printf("%-12s %4d requests %2d groups   %s   p10 %7.2f us   p50 %7.2f us   p90 %7.2f us   p99 %7.2f us", name, n,
           n_groups, cold ? "cold" : "warm", (double)times[n_steps / 10] * 1e-3, (double)times[n_steps / 2] * 1e-3,
           (double)times[n_steps * 9 / 10] * 1e-3, (double)times[n_steps * 99 / 100] * 1e-3);
    if (!cold)
        printf("   p99.9 %7.2f us", (double)times[n_steps / 1000 * 999] * 1e-3);
    if (bad)
        printf("   %d steps did not stand: %s", bad, e.text);
    printf("\n");
}

static int run(const struct lua_opts *o, const char *name, const char *source, size_t n, struct weights *cold)
{
    static const int sizes[] = {8, 64, 512};
    for (int i = 0; i < 3; i++) {
        struct policy p;
        struct err e = {0};
        if (lua_policy_load(&p, name, source, n, o, NULL, &e)) {
            fprintf(stderr, "%s\n", e.text);
            return 1;
        }
        struct rehearsal *r = seen_new(sizeof *r);
        struct node_facts *node = seen_new(sizeof *node);
        struct err ignored = {0};
        rehearsal_init(
            r,
            (struct rehearsal_size){
                .kv_blocks = 1 << 16, .tokens_per_block = 16, .max_num_seqs = 1024, .max_num_batched_tokens = 2048},
            100);
        *node = rehearsal_node(r);
        struct view before = rehearsal_view(r);
        plan_begin(&r->plan, r->now_ns);
        p.ops->start(p.ctx, node, &before, &r->plan, &ignored);
        measure(&p, name, sizes[i], 1, cold);
        rehearsal_free(r);
        mem_free(r);
        mem_free(node);
        p.ops->destroy(p.ctx);
    }
    return 0;
}

/* What facts cost as groups come, and what an estimate costs: the step of `ask` less that of `empty`. */
static int run_groups(const struct lua_opts *o, struct weights *cold)
{
    static const char ask[] = "return { api = 1, doc = 'ask', step = function(view, act, p)\n"
                              "  if view.step < 100 then for _, g in ipairs(view.idle) do local b = act.batch(g) "
                              "b:decodes() b:prefill(view.waiting)\n"
                              "    if b.tokens > 0 then act.forward(g, b) end end return end\n"
                              "  local g, layout = view.groups[1], { sp = 1, tp = 1 } for i = 1, 100 do "
                              "view.estimate(g, layout, i) end\nend }";
    static const struct {
        const char *name, *source;
        size_t n;
    } sources[] = {{"empty", empty, sizeof empty - 1}, {"100 estimates", ask, sizeof ask - 1}};
    for (int i = 0; i < 2; i++)
        for (int groups = 1; groups <= 8; groups *= 8) {
            struct policy p;
            struct err e = {0};
            if (lua_policy_load(&p, sources[i].name[0] == '1' ? "ask" : "empty", sources[i].source, sources[i].n, o,
                                NULL, &e)) {
                fprintf(stderr, "%s\n", e.text);
                return 1;
            }
            measure(&p, sources[i].name, 64, groups, cold);
            p.ops->destroy(p.ctx);
        }
    return 0;
}

static int run_all(const struct lua_opts *o, char **files, int n_files, struct weights *cold)
{
    static const char *const shipped[] = {"policies/fcfs.lua",  "policies/priority.lua", "policies/fair.lua",
                                          "policies/shift.lua", "policies/flying.lua",   "policies/static.lua",
                                          "policies/auto.lua",  "policies/sidp.lua"};
    struct err e = {0};
    struct policy native;
    policy_fcfs(&native);
    measure(&native, "native", 8, 1, cold);
    measure(&native, "native", 64, 1, cold);
    measure(&native, "native", 512, 1, cold);
    int rc = run(o, "empty", empty, sizeof empty - 1, cold) || run(o, "scan", scan, sizeof scan - 1, cold) ||
             run_groups(o, cold);
    for (int i = 0; !rc && i < (n_files ? n_files : (int)(sizeof shipped / sizeof *shipped)); i++) {
        const char *path = n_files ? files[i] : shipped[i], *slash = strrchr(path, '/');
        struct buf source = {0};
        rc = file_read(&source, path, LUA_SOURCE_BYTES, &e) ||
             run(o, slash ? slash + 1 : path, source.data, source.len, cold);
        buf_free(&source);
    }
    if (e.text[0])
        fprintf(stderr, "%s\n", e.text);
    return rc;
}

int main(int argc, char **argv)
{
    struct lua_opts o = {.folder = "policies"};
    struct err e = {0};
    bool process = argc > 1 && strcmp(argv[1], "--process") == 0;
    argc -= process;
    argv += process;
    bool only_warm = argc > 1 && strcmp(argv[1], "--warm") == 0, only_cold = argc > 1 && strcmp(argv[1], "--cold") == 0;
    int first = 1 + (only_warm || only_cold), rc = 0;
    if ((process && (seen_open((size_t)1 << 30, &e) || nursery_start(&o.nursery, NULL, NULL, &e))) ||
        lua_watchdog_start(&o.watchdog, &e)) {
        fprintf(stderr, "%s\n", e.text);
        return 1;
    }
    if (!only_cold)
        rc = run_all(&o, argv + first, argc - first, NULL);
    if (!rc && !only_warm) {
        struct weights cold = {0};
        weights_start(&cold);
        rc = run_all(&o, argv + first, argc - first, &cold);
        weights_stop(&cold);
    }
    nursery_stop(o.nursery);
    lua_watchdog_stop(o.watchdog);
    return rc;
}
