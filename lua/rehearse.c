#include "lua/rehearse.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"

/* ---- a world */

void rehearsal_init(struct rehearsal *r, struct rehearsal_size size, double now_s)
{
    memset(r, 0, sizeof *r);
    struct limits l = {.max_num_seqs = size.max_num_seqs,
                       .max_num_batched_tokens = size.max_num_batched_tokens,
                       .max_model_len = size.kv_blocks * size.tokens_per_block};
    r->metrics = mem_new(sizeof *r->metrics);
    metrics_init(r->metrics);
    world_init(&r->world, &l, r->metrics);
    kv_init(&r->world.kv, size.kv_blocks, size.tokens_per_block);
    r->world.n_groups = r->world.n_ranks = 1;
    r->world.groups[0] = (struct group){.id = 1,
                                        .n_ranks = 1,
                                        .layout = {1, 1, 1},
                                        .idle = true,
                                        .last_step_ns = 20000000,
                                        .last_step_tokens = 64};
    r->world.step = 1;
    r->now_ns = (int64_t)(now_s * 1e9);
    plan_init(&r->plan, &r->world);
}

void rehearsal_free(struct rehearsal *r)
{
    if (!r->metrics)
        return;
    for (int i = 0; i < r->world.requests.n_slots; i++)
        if (r->world.requests.slots[i])
            world_end(&r->world, r->world.requests.slots[i], END_ABORT);
    plan_free(&r->plan);
    world_free(&r->world);
    mem_free(r->metrics);
    memset(r, 0, sizeof *r);
}

struct view rehearsal_view(const struct rehearsal *r)
{
    return (struct view){.world = &r->world, .now_ns = r->now_ns, .n_idle = 1, .idle = {1}};
}

struct node_facts rehearsal_node(const struct rehearsal *r)
{
    struct node_facts n = {.n_ranks = 1,
                           .memory_bytes = (size_t)16 << 30,
                           .weight_bytes = (size_t)1 << 30,
                           .kv_bytes = (size_t)8 << 30,
                           .kv_blocks = r->world.kv.n_blocks,
                           .tokens_per_block = r->world.kv.tokens_per_block,
                           .limits = r->world.limits};
    snprintf(n.model, sizeof n.model, "rehearsal");
    snprintf(n.device, sizeof n.device, "rehearsal");
    return n;
}

/* Its prompt and output so far are computed. Stays waiting when there is no room. */
static void start_running(struct rehearsal *r, struct request *q, int n_output)
{
    struct world *w = &r->world;
    if (w->running.n >= w->limits.max_num_seqs ||
        kv_blocks_for(&w->kv, q->n_tokens + n_output) > kv_available(&w->kv))
        return;
    world_start(w, q, r->now_ns);
    for (int i = 0; i < n_output; i++)
        request_append(q, 7);
    bool ok = world_reserve(w, q, q->n_tokens);
    ASSERT(ok);
    world_commit(w, q, n_output ? q->n_tokens - 1 : q->n_tokens / 2);
}

struct request *rehearsal_add(struct rehearsal *r, const struct made_request *m)
{
    struct request_spec *s = mem_new(sizeof *s);
    s->tag = ++r->next_tag;
    snprintf(s->name, sizeof s->name, "%s", m->name ? m->name : "");
    snprintf(s->tenant, sizeof s->tenant, "%s", m->tenant ? m->tenant : "");
    s->priority = m->priority;
    s->n_prompt = m->n_prompt > 0 ? m->n_prompt : 16;
    s->prompt = mem_new_array((size_t)s->n_prompt, sizeof *s->prompt);
    s->max_tokens = m->max_tokens > 0 ? m->max_tokens : 16;
    s->arrival_ns = (int64_t)(m->arrival_s * 1e9);
    s->slo_ttft_ms = m->slo_ttft_ms;
    s->sampling.n_logprobs = s->sampling.n_prompt_logprobs = -1;
    struct request *q;
    if (world_submit(&r->world, s, s->arrival_ns, &q, NULL)) {
        request_spec_free(s);
        return NULL;
    }
    if (m->running)
        start_running(r, q, m->n_output);
    return q;
}

void rehearsal_crowd(struct rehearsal *r, int n, uint64_t seed)
{
    static const char *const tenants[] = {"", "blue", "green", "red"};
    struct rng g;
    rng_init(&g, seed);
    for (int i = 0; i < n; i++) {
        struct made_request m = {.tenant = tenants[rng_below(&g, 4)],
                                 .priority = (int)rng_below(&g, 5) - 2,
                                 .n_prompt = 1 + (int)rng_below(&g, 200),
                                 .max_tokens = 1 + (int)rng_below(&g, 200),
                                 .n_output = (int)rng_below(&g, 40),
                                 .running = i % 2 == 0,
                                 .arrival_s = (double)r->now_ns * 1e-9 - 2 + (double)i * 0.001};
        char name[32];
        snprintf(name, sizeof name, "r%d", i);
        m.name = name;
        rehearsal_add(r, &m);
    }
}

/* ---- a step */

static void advance_item(struct world *w, const struct plan_item *it, int64_t now_ns)
{
    struct request *q = it->request;
    (void)now_ns;
    world_commit(w, q, q->n_computed + it->n_tokens);
    if (q->n_computed == q->n_tokens)
        request_append(q, 7);
}

void rehearsal_advance(struct rehearsal *r, int end_every, rehearsal_ended ended, void *ctx)
{
    struct plan *p = &r->plan;
    struct world *w = &r->world;
    plan_apply(p);
    r->now_ns += 20000000;
    w->step++;
    struct view v = rehearsal_view(r);
    for (int i = 0; i < p->n_verbs; i++)
        if (p->verbs[i].kind == PLAN_REFUSE)
            world_end(w, p->verbs[i].request, END_REFUSED);
    int n = 0;
    for (int b = 0; b < p->n_batches; b++)
        for (int i = 0; p->batches[b]->forwarded && i < p->batches[b]->n_items; i++) {
            struct request *q = p->batches[b]->items[i].request;
            advance_item(w, &p->batches[b]->items[i], r->now_ns);
            bool full = request_output(q) >= q->spec->max_tokens || q->n_tokens >= w->limits.max_model_len;
            if (full || (end_every && request_decoding(q) && ++n % end_every == 0)) {
                if (ended)
                    ended(ctx, q, &v);
                world_end(w, q, END_LENGTH);
            }
        }
}

void rehearsal_transcribe(const struct rehearsal *r, struct buf *out)
{
    const struct plan *p = &r->plan;
    for (int b = 0; b < p->n_batches; b++) {
        if (!p->batches[b]->forwarded)
            continue;
        buf_printf(out, "forward group %d:", p->batches[b]->group);
        for (int i = 0; i < p->batches[b]->n_items; i++)
            buf_printf(out, " %llu+%d", (unsigned long long)p->batches[b]->items[i].request->order,
                       p->batches[b]->items[i].n_tokens);
        buf_putc(out, '\n');
    }
    for (int i = 0; i < p->n_verbs; i++) {
        const struct plan_verb *v = &p->verbs[i];
        if (v->kind == PLAN_LOG)
            buf_printf(out, "log %s\n", v->text);
        else
            buf_printf(out, "%s %llu %d %d\n", v->kind == PLAN_PREEMPT ? "preempt" : "refuse",
                       (unsigned long long)v->request->order, v->kind == PLAN_PREEMPT ? (int)v->how : v->code,
                       v->retry_after_s);
    }
    if (p->wake_ns)
        buf_printf(out, "wake in %.3f ms\n", (double)(p->wake_ns - r->now_ns) * 1e-6);
}

/* ---- the dry run */

struct scene {
    const char *name;
    struct rehearsal_size size;
    double now_s;
    int n_requests, n_steps;
    bool extreme;               /* priorities, lengths and deadlines at their limits */
    bool must_run;              /* there is work and room: running nothing is a fault */
};

static const struct scene scenes[] = {
    {"no request", {1024, 16, 256, 2048}, 100, 0, 2, false, false},
    {"one request", {1024, 16, 256, 2048}, 100, 1, 3, false, true},
    {"8 requests", {1024, 16, 256, 2048}, 100, 8, 8, false, true},
    {"512 requests", {8192, 16, 256, 2048}, 100, 512, 4, false, true},
    {"512 requests and a full KV cache", {256, 16, 256, 2048}, 100, 512, 6, false, false},
    {"64 requests that have waited for years", {1024, 16, 256, 2048}, 1e9, 64, 3, true, true},
    {"64 requests at the limits of their fields, at time 0", {1024, 16, 8, 64}, 0, 64, 3, true, true},
};

static void fill(struct rehearsal *r, const struct scene *scene)
{
    if (!scene->extreme) {
        if (scene->n_requests == 1)
            rehearsal_add(r,
                          &(struct made_request){
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

struct rehearsing {
    struct script *script;
    struct rehearsal *r;
    struct buf *out;
    struct err *e;
    const char *scene;
    int rc;
};

static int judge(struct rehearsing *x, const char *hook, enum verdict v)
{
    if (verdict_stands(v) || x->rc)
        return x->rc;
    x->rc = E_POLICY;
    if (x->e) {
        struct err cause = *x->e;
        err_set(x->e, E_POLICY, "%.250s (dry run of %s on %s)", cause.text, hook, x->scene);
    }
    return x->rc;
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
        judge(x, "admit", script_admit(x->script, all[i], &v, &a, x->e));
        if (a.refused && all[i]->state == REQ_WAITING) {
            buf_printf(x->out, "turn away %llu %d %d %s\n", (unsigned long long)all[i]->order, a.code,
                       a.retry_after_s, a.why);
            world_end(w, all[i], END_REFUSED);
        } else if (!a.refused) {
            buf_printf(x->out, "key %llu %.17g\n", (unsigned long long)all[i]->order, a.key);
            world_rekey(w, all[i], a.key);
        }
    }
    mem_free(all);
}

static void ended(void *ctx, struct request *q, const struct view *v)
{
    struct rehearsing *x = ctx;
    judge(x, "finish", script_finish(x->script, q, END_LENGTH, v, x->e));
}

static bool runs_nothing(const struct rehearsal *r)
{
    return plan_is_empty(&r->plan) && !r->plan.n_verbs && !r->plan.wake_ns;
}

static void run_scene(struct rehearsing *x, const struct scene *scene)
{
    struct rehearsal *r = x->r;
    struct node_facts node = rehearsal_node(r);
    fill(r, scene);
    buf_printf(x->out, "-- %s\n", scene->name);
    judge(x, "start", script_start(x->script, &node, x->e));
    admit_all(x);
    for (int i = 0; i < scene->n_steps && !x->rc; i++) {
        struct view v = rehearsal_view(r);
        plan_begin(&r->plan, r->now_ns);
        if (judge(x, "step", script_step(x->script, &v, &r->plan, x->e)))
            return;
        rehearsal_transcribe(r, x->out);
        if (scene->must_run && i == 0 && world_has_work(&r->world) && runs_nothing(r)) {
            x->rc = err_set(x->e, E_POLICY,
                            "step runs nothing, although requests wait and there is room (dry run on %s)",
                            scene->name);
            return;
        }
        rehearsal_advance(r, 3, ended, x);
    }
}

int rehearse(struct script *s, struct buf *out, struct err *e)
{
    struct err mine = {0};
    for (size_t i = 0; i < sizeof scenes / sizeof *scenes; i++) {
        struct rehearsal r;
        struct rehearsing x = {.script = s, .r = &r, .out = out, .e = e ? e : &mine, .scene = scenes[i].name};
        rehearsal_init(&r, scenes[i].size, scenes[i].now_s);
        script_forget(s);
        run_scene(&x, &scenes[i]);
        rehearsal_free(&r);
        if (x.rc)
            return x.rc;
    }
    script_forget(s);
    return 0;
}
