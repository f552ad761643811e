/* The worlds on which a policy is tried before it goes live. */
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "lua/rehearse.h"

/* What has happened to the partition before the first step. */
enum twist {
    AS_IT_IS,
    ORDER_WAITS,       /* all ranks are to be one group, when what runs has ended */
    ORDER_CARRIED_OUT, /* the ranks have just become one group: everybody who ran is parked */
    RANK_FAILED,
    SOME_IN_HOST, /* half of those that ran are in host memory */
};

struct scene {
    const char *name;
    struct rehearsal_size size;
    double now_s;
    int n_requests, n_steps;
    bool extreme;  /* priorities, lengths and deadlines at their limits */
    bool must_run; /* there is work and room: running nothing is a fault */
    enum twist twist;
};

#define WORLD(blocks, ranks)                                                                                           \
    .kv_blocks = (blocks), .tokens_per_block = 16, .max_num_seqs = 256, .max_num_batched_tokens = 2048,                \
    .n_ranks = (ranks)
#define SIZE(blocks) .size = {WORLD(blocks, 1)}
#define PLAIN(blocks, ranks, ...) .size = {WORLD(blocks, ranks), .groups = __VA_ARGS__}
#define POOLED(blocks, ranks, layers, ...) .size = {WORLD(blocks, ranks), .groups = __VA_ARGS__, .n_pooled = (layers)}
#define HOSTED(blocks, ranks, host, ...) .size = {WORLD(blocks, ranks), .groups = __VA_ARGS__, .n_host = (host)}

static const struct scene one_rank[] = {
    {"no request", SIZE(1024), 100, 0, 2, false, false, AS_IT_IS},
    {"one request", SIZE(1024), 100, 1, 3, false, true, AS_IT_IS},
    {"8 requests", SIZE(1024), 100, 8, 8, false, true, AS_IT_IS},
    {"512 requests", SIZE(8192), 100, 512, 4, false, true, AS_IT_IS},
    {"512 requests and a full KV cache", SIZE(256), 100, 512, 6, false, false, AS_IT_IS},
    {"host memory for KV, some of it there", HOSTED(256, 1, 512, {0}), 100, 64, 8, false, true, SOME_IN_HOST},
    {"64 requests that have waited for years", SIZE(1024), 1e9, 64, 3, true, true, AS_IT_IS},
    {"64 requests at the limits of their fields, at time 0",
     .size = {.kv_blocks = 1024, .tokens_per_block = 16, .max_num_seqs = 8, .max_num_batched_tokens = 64, .n_ranks = 1},
     0, 64, 3, true, true, AS_IT_IS},
};

static const struct scene several_ranks[] = {
    {"2 ranks, one group", PLAIN(1024, 2, {0}), 100, 8, 6, false, true, AS_IT_IS},
    {"2 ranks, a group each", PLAIN(1024, 2, {1, 2}), 100, 24, 6, false, true, AS_IT_IS},
    {"4 ranks, no request", PLAIN(1024, 4, {0}), 100, 0, 3, false, false, AS_IT_IS},
    {"4 ranks, a group of 2 and 2 of 1", PLAIN(512, 4, {3, 4, 8}), 100, 64, 6, false, true, AS_IT_IS},
    {"4 ranks and a full KV cache", PLAIN(64, 4, {3, 12}), 100, 256, 6, false, false, AS_IT_IS},
    {"4 ranks, an order waits", PLAIN(512, 4, {3, 12}), 100, 32, 6, false, false, ORDER_WAITS},
    {"4 ranks, just bound, with requests parked elsewhere", PLAIN(512, 4, {1, 2, 4, 8}), 100, 32, 8, false, false,
     ORDER_CARRIED_OUT},
    {"4 ranks, one has failed", PLAIN(512, 4, {0}), 100, 32, 6, false, false, RANK_FAILED},
    {"3 ranks in no group", .size = {WORLD(512, 3), .no_group = 7}, 100, 8, 4, false, false, AS_IT_IS},
    {"8 ranks, one group", PLAIN(512, 8, {0}), 100, 64, 6, false, true, AS_IT_IS},
    {"8 ranks, a group each", PLAIN(512, 8, {1, 2, 4, 8, 16, 32, 64, 128}), 100, 128, 6, false, true, AS_IT_IS},
    {"8 ranks, groups of 4, 2 and 1, one free", PLAIN(512, 8, {15, 48, 64}), 100, 64, 6, false, true, AS_IT_IS},
    {"8 ranks, requests at the limits of their fields",
     .size = {.kv_blocks = 256,
              .tokens_per_block = 16,
              .max_num_seqs = 8,
              .max_num_batched_tokens = 64,
              .n_ranks = 8,
              .groups = {15, 240}},
     0, 64, 3, true, false, AS_IT_IS},
    {"2 ranks, pooled weights, one group", POOLED(512, 2, 80, {0}), 100, 8, 6, false, true, AS_IT_IS},
    {"4 ranks, pooled weights, a group each", POOLED(512, 4, 80, {1, 2, 4, 8}), 100, 48, 12, false, true, AS_IT_IS},
    {"8 ranks, pooled weights, groups of 4, 2 and 1, one free", POOLED(512, 8, 3, {15, 48, 64}), 100, 64, 6, false,
     true, AS_IT_IS},
    {"4 ranks, pooled weights, one has failed", POOLED(512, 4, 80, {1, 2, 4, 8}), 100, 32, 6, false, false,
     RANK_FAILED},
    {"4 ranks, host memory for KV, some of it there", HOSTED(256, 4, 2048, {0}), 100, 64, 10, false, true,
     SOME_IN_HOST},
    {"4 ranks in two groups, little host memory", HOSTED(64, 4, 32, {3, 12}), 100, 64, 8, false, false, SOME_IN_HOST},
};

static void fill(struct rehearsal *r, const struct scene *scene)
{
    if (!scene->extreme) {
        if (scene->n_requests == 1)
            rehearsal_add(r, &(struct made_request){
                                 .name = "r0", .arrival_s = scene->now_s - 1, .n_prompt = 50, .max_tokens = 4});
        else
            rehearsal_crowd(r, scene->n_requests, 42);
        return;
    }
    for (int i = 0; i < scene->n_requests; i++)
        rehearsal_add(r, &(struct made_request){.name = "\xff\n\"extreme\"",
                                                .tenant = i % 3 ? "t" : "",
                                                .priority = i % 4 == 0   ? INT_MIN
                                                            : i % 4 == 1 ? INT_MAX
                                                                         : 0,
                                                .n_prompt = i % 5 ? 1 : 4000,
                                                .max_tokens = i % 2 ? INT_MAX / 2 : 1,
                                                .slo_ttft_ms = i % 7 ? 0 : 1e300,
                                                .running = i % 3 == 2,
                                                .n_output = 1});
}

static void twist(struct rehearsal *r, enum twist t)
{
    uint64_t all = rank_range(0, r->world.shape.n_ranks);
    struct switch_order o = {.mask = all,
                             .base = {r->world.shape.n_ranks, 1, 1},
                             .max_wait_ns = 10000000000,
                             .when = t == ORDER_WAITS ? WHEN_DRAIN : WHEN_HARD,
                             .fate = FATE_PARK,
                             .reason = "rehearsal"};
    if (t == ORDER_WAITS || t == ORDER_CARRIED_OUT)
        rehearsal_order(r, &o);
    if (t == RANK_FAILED)
        rehearsal_lose(r, 1);
    for (int i = r->world.running.n - 1; t == SOME_IN_HOST && i >= 0; i -= 2)
        rehearsal_swap_out(r, r->world.running.items[i]);
}

/* Calls of each hook; those that executed too much, and what the first of them did. */
struct toll {
    int n[HOOK_COUNT], n_heavy[HOOK_COUNT];
    char first[HOOK_COUNT][200];
};

struct rehearsing {
    struct script *script;
    struct toll *toll;
    struct rehearsal *r;
    struct buf *out;
    struct err *e;
    const char *scene;
    int rc, n_unfit;
};

static int judge(struct rehearsing *x, enum policy_hook h, enum verdict v)
{
    const char *hook = policy_hook_name(h);
    x->toll->n[h]++;
    if (v == VERDICT_HEAVY && !x->toll->n_heavy[h]++)
        snprintf(x->toll->first[h], sizeof x->toll->first[h], "%.120s (dry run of %s on %s)", x->e->text, hook,
                 x->scene);
    if (x->rc)
        return x->rc;
    if (verdict_stands(v)) {
        *x->e = (struct err){0};
        return 0;
    }
    x->rc = E_POLICY;
    struct err cause = *x->e;
    err_set(x->e, E_POLICY, "%.250s (dry run of %s on %s)", cause.text, hook, x->scene);
    return x->rc;
}

/* False: this is no world for its params, or the call does not stand. */
static bool starts(struct rehearsing *x)
{
    struct rehearsal *r = x->r;
    struct node_facts node = rehearsal_node(r);
    struct view before = rehearsal_view(r);
    plan_begin(&r->plan, r->now_ns);
    enum verdict v = script_start(x->script, &node, &before, &r->plan, x->e);
    if (!verdict_stands(v) && x->e->code == E_INPUT) {
        buf_printf(x->out, "does not fit: %s\n", x->e->text);
        *x->e = (struct err){0};
        x->n_unfit++;
        return false;
    }
    return !judge(x, HOOK_START, v);
}

static void admit_all(struct rehearsing *x)
{
    struct world *w = &x->r->world;
    struct view v = rehearsal_view(x->r);
    int n = w->waiting.n + w->running.n;
    struct request **all = mem_new_array((size_t)n + 1, sizeof *all);
    for (int i = 0; i < n; i++)
        all[i] = i < w->running.n ? w->running.items[i] : w->waiting.items[i - w->running.n];
    for (int i = 0; i < n && !x->rc; i++) {
        struct admission a = {.key = all[i]->key, .retry_after_s = -1};
        judge(x, HOOK_ADMIT, script_admit(x->script, all[i], &v, &a, x->e));
        if (a.refused && all[i]->state == REQ_WAITING) {
            buf_printf(x->out, "turn away %llu %d %d %s\n", (unsigned long long)all[i]->order, a.code, a.retry_after_s,
                       a.why);
            world_end(w, all[i], END_REFUSED);
        } else if (!a.refused) {
            buf_printf(x->out, "key %llu %.17g", (unsigned long long)all[i]->order, a.key);
            if (a.hold_until_ns)
                buf_printf(x->out, " held %lld %s", (long long)a.hold_until_ns, a.why);
            buf_putc(x->out, '\n');
            admission_obey(&a, w, all[i], x->r->now_ns);
        }
    }
    mem_free(all);
}

static void ended(void *ctx, struct request *q, const struct view *v)
{
    struct rehearsing *x = ctx;
    judge(x, HOOK_FINISH, script_finish(x->script, q, END_LENGTH, v, x->e));
}

static bool runs_nothing(const struct rehearsal *r)
{
    return plan_is_empty(&r->plan) && !r->plan.n_verbs && !r->plan.wake_ns;
}

static void run_scene(struct rehearsing *x, const struct scene *scene)
{
    struct rehearsal *r = x->r;
    fill(r, scene);
    twist(r, scene->twist);
    buf_printf(x->out, "-- %s\n", scene->name);
    if (!starts(x))
        return;
    rehearsal_transcribe(r, x->out);
    rehearsal_advance(r, 0, NULL, NULL); /* its orders are carried out */
    admit_all(x);
    for (int i = 0; i < scene->n_steps && !x->rc; i++) {
        struct view v = rehearsal_view(r);
        plan_begin(&r->plan, r->now_ns);
        if (judge(x, HOOK_STEP, script_step(x->script, &v, &r->plan, x->e)))
            return;
        rehearsal_transcribe(r, x->out);
        if (scene->must_run && i == 0 && world_has_work(&r->world) && runs_nothing(r)) {
            x->rc = err_set(x->e, E_POLICY,
                            "step runs nothing, although requests wait and there is room (dry run on %s)", scene->name);
            return;
        }
        rehearsal_advance(r, 3, ended, x);
    }
}

/* A tenth of a hook's calls is what a live policy may have of these, too. */
static int judge_toll(const struct toll *t, struct err *e)
{
    for (int h = 0; h < HOOK_COUNT; h++)
        if (t->n_heavy[h] > 1 && t->n_heavy[h] * 10 > t->n[h])
            return err_set(e, E_POLICY,
                           "%s; %d of %d calls of %s did. What belongs to one request is cheapest in admit",
                           t->first[h], t->n_heavy[h], t->n[h], policy_hook_name((enum policy_hook)h));
    return 0;
}

int rehearse(struct script *s, bool several, struct buf *out, int *n_unfit, struct err *e)
{
    struct err mine = {0};
    struct toll toll = {0};
    const struct scene *scenes = several ? several_ranks : one_rank;
    size_t n = several ? sizeof several_ranks / sizeof *scenes : sizeof one_rank / sizeof *scenes;
    for (size_t i = 0; i < n; i++) {
        struct rehearsal r;
        struct rehearsing x = {
            .script = s, .toll = &toll, .r = &r, .out = out, .e = e ? e : &mine, .scene = scenes[i].name};
        rehearsal_init(&r, scenes[i].size, scenes[i].now_s);
        script_forget(s);
        s->vm.gauge.closely = true;
        run_scene(&x, &scenes[i]);
        rehearsal_free(&r);
        *n_unfit += x.n_unfit;
        if (x.rc)
            return x.rc;
    }
    script_forget(s);
    return judge_toll(&toll, e);
}
