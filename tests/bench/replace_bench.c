/* What a swap of policies costs the engine's thread with requests in its queues: p10, p50 and p99 of the whole and of
 * each part (export, import, start, all admits), of the first step behind it, which
 * fills the new machine's tables, and of the one after that. A swap between each two of the policies named, with a
 * fresh machine each time, over a made-up world with half of the requests running. `cold`: between loading and swapping
 * 48 MiB are read, as a step reads its weights. usage: replace_bench [--cold] [--requests N] [POLICY.lua POLICY.lua] */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/live.h"
#include "lua/rehearse.h"

enum { SWAPS = 400, WARM_UP = 20, LINE = 64 };
static const size_t WEIGHT_BYTES = (size_t)48 << 20;

enum part {
    PART_LOAD,
    PART_SWAP,
    PART_EXPORT,
    PART_IMPORT,
    PART_START,
    PART_ADMITS,
    PART_FIRST_STEP,
    PART_STEP,
    PART_COUNT
};
static const char *const part_names[PART_COUNT] = {"load",    "swap, as a whole", "  export",   "  import",
                                                   "  start", "  admit, all",     "first step", "second step"};

/* Times of the swap under way. */
struct parts {
    struct clock clock;
    int64_t ns[PART_COUNT];
};

/* A policy whose calls are timed. */
struct timed {
    struct policy inner;
    struct parts *parts;
};

static void add(struct parts *p, enum part which, int64_t since_ns)
{
    p->ns[which] += clock_now(&p->clock) - since_ns;
}

static enum verdict timed_start(void *ctx, const struct node_facts *node, const struct view *v, struct plan *p,
                                struct err *e)
{
    struct timed *t = ctx;
    int64_t from = clock_now(&t->parts->clock);
    enum verdict verdict = t->inner.ops->start(t->inner.ctx, node, v, p, e);
    add(t->parts, PART_START, from);
    return verdict;
}

static enum verdict timed_admit(void *ctx, const struct request *r, const struct view *v, struct admission *a,
                                struct err *e)
{
    struct timed *t = ctx;
    int64_t from = clock_now(&t->parts->clock);
    enum verdict verdict = t->inner.ops->admit(t->inner.ctx, r, v, a, e);
    add(t->parts, PART_ADMITS, from);
    return verdict;
}

static enum verdict timed_step(void *ctx, const struct view *v, struct plan *p, struct err *e)
{
    struct timed *t = ctx;
    return t->inner.ops->step(t->inner.ctx, v, p, e);
}

static enum verdict timed_export(void *ctx, struct buf *out, struct err *e)
{
    struct timed *t = ctx;
    int64_t from = clock_now(&t->parts->clock);
    enum verdict verdict = t->inner.ops->export_state(t->inner.ctx, out, e);
    add(t->parts, PART_EXPORT, from);
    return verdict;
}

static enum verdict timed_import(void *ctx, const char *json, size_t n, struct err *e)
{
    struct timed *t = ctx;
    int64_t from = clock_now(&t->parts->clock);
    enum verdict verdict = t->inner.ops->import_state(t->inner.ctx, json, n, e);
    add(t->parts, PART_IMPORT, from);
    return verdict;
}

static void timed_destroy(void *ctx)
{
    struct timed *t = ctx;
    t->inner.ops->destroy(t->inner.ctx);
    mem_free(t);
}

static const struct policy_ops timed_ops = {.start = timed_start,
                                            .admit = timed_admit,
                                            .step = timed_step,
                                            .export_state = timed_export,
                                            .import_state = timed_import,
                                            .destroy = timed_destroy};

static void stop(const struct err *e)
{
    fprintf(stderr, "%s\n", e->text);
    exit(1);
}

struct source {
    const char *name;
    struct buf text;
};

static struct policy load(const struct source *s, struct lua_watchdog *dog, struct parts *parts)
{
    struct lua_opts o = {.watchdog = dog, .folder = "policies", .again = true, .quiet = true};
    struct timed *t = mem_new(sizeof *t);
    struct err e = {0};
    t->parts = parts;
    if (lua_policy_load(&t->inner, s->name, s->text.data, s->text.len, &o, NULL, &e))
        stop(&e);
    struct policy p = t->inner;
    p.ops = &timed_ops;
    p.ctx = t;
    return p;
}

static unsigned read_weights(const unsigned char *bytes)
{
    unsigned sum = 0;
    for (size_t i = 0; bytes && i < WEIGHT_BYTES; i += LINE)
        sum += bytes[i];
    return sum;
}

static void step(struct live *l, struct rehearsal *r)
{
    struct view v = rehearsal_view(r);
    live_step(l, &v, &r->plan);
    r->world.step++;
    r->now_ns += 10000000;
}

static int compare(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* One swap to the policy and two steps of it. */
static void swap_once(struct live *l, struct rehearsal *r, struct policy *p, struct parts *parts)
{
    struct err e = {0};
    int64_t from = clock_now(&parts->clock);
    if (live_swap(l, p, &r->world, r->now_ns, &e))
        stop(&e);
    add(parts, PART_SWAP, from);
    int64_t first = clock_now(&parts->clock);
    step(l, r);
    add(parts, PART_FIRST_STEP, first);
    int64_t second = clock_now(&parts->clock);
    step(l, r);
    add(parts, PART_STEP, second);
}

static void measure(const struct source s[2], int n_requests, struct lua_watchdog *dog, const unsigned char *cold)
{
    static int64_t times[PART_COUNT][SWAPS];
    struct parts parts = {0};
    struct rehearsal r;
    struct live l;
    unsigned sum = 0;
    clock_init_real(&parts.clock);
    rehearsal_init(
        &r,
        (struct rehearsal_size){
            .kv_blocks = 1 << 16, .tokens_per_block = 16, .max_num_seqs = 64, .max_num_batched_tokens = 2048},
        100);
    rehearsal_crowd(&r, n_requests, 5);
    struct node_facts node = rehearsal_node(&r);
    live_init(&l, &node, true);
    struct err e = {0};
    if (retired_start(&l.retired, &e))
        stop(&e);
    for (int i = -WARM_UP; i < SWAPS; i++) {
        memset(parts.ns, 0, sizeof parts.ns);
        int64_t from = clock_now(&parts.clock);
        struct policy p = load(&s[i & 1], dog, &parts);
        add(&parts, PART_LOAD, from);
        sum += read_weights(cold);
        swap_once(&l, &r, &p, &parts);
        retired_wake(l.retired);
        for (int k = 0; i >= 0 && k < PART_COUNT; k++)
            times[k][i] = parts.ns[k];
    }
    printf("%s and %s, %d requests, %s%s\n", s[0].name, s[1].name, n_requests, cold ? "cold" : "warm",
           sum == 1 ? "." : "");
    for (int k = 0; k < PART_COUNT; k++) {
        qsort(times[k], SWAPS, sizeof *times[k], compare);
        printf("  %-18s p10 %8.1f us   p50 %8.1f us   p99 %8.1f us\n", part_names[k],
               (double)times[k][SWAPS / 10] * 1e-3, (double)times[k][SWAPS / 2] * 1e-3,
               (double)times[k][SWAPS * 99 / 100] * 1e-3);
    }
    live_free(&l);
    retired_stop(l.retired);
    rehearsal_free(&r);
}

static void run_pair(const char *a, const char *b, int n_requests, struct lua_watchdog *dog, const unsigned char *cold)
{
    const char *paths[] = {a, b};
    struct source s[2] = {0};
    struct err e = {0};
    for (int i = 0; i < 2; i++) {
        const char *slash = strrchr(paths[i], '/');
        s[i].name = slash ? slash + 1 : paths[i];
        if (file_read(&s[i].text, paths[i], LUA_SOURCE_BYTES, &e))
            stop(&e);
    }
    measure(s, n_requests, dog, cold);
    buf_free(&s[0].text);
    buf_free(&s[1].text);
}

int main(int argc, char **argv)
{
    static const char *const pairs[][2] = {{"policies/fcfs.lua", "policies/priority.lua"},
                                           {"policies/fair.lua", "policies/priority.lua"},
                                           {"policies/fair.lua", "policies/auto.lua"}};
    struct lua_watchdog *dog;
    struct err e = {0};
    int n_requests = 64, first = 1;
    unsigned char *cold = NULL;
    for (; first < argc && argv[first][0] == '-'; first++)
        if (!strcmp(argv[first], "--cold")) {
            cold = mem_new_array(WEIGHT_BYTES, 1);
            memset(cold, 1, WEIGHT_BYTES);
        } else if (first + 1 < argc) {
            n_requests = atoi(argv[++first]);
        }
    if (lua_watchdog_start(&dog, &e))
        stop(&e);
    if (argc - first == 2)
        run_pair(argv[first], argv[first + 1], n_requests, dog, cold);
    else
        for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
            run_pair(pairs[i][0], pairs[i][1], n_requests, dog, cold);
    lua_watchdog_stop(dog);
    mem_free(cold);
    return 0;
}
