#include "engine/engine.h"

#include <stdio.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/log.h"
#include "engine/engine_state.h"

/* ---- opening */

static void step_done(void *ctx, struct step *s)
{
    struct engine *g = ctx;
    struct engine_message m = {.kind = IN_STEP_DONE, .payload = s};
    queue_post(g->inbox, &m);
}

/* How many blocks the budget buys, and whether a sequence of max_model_len fits. */
static int size_kv(struct engine *g, int *n_blocks, struct err *e)
{
    const struct engine_setup *s = &g->setup;
    struct limits *l = &g->setup.limits;
    const struct device_facts *f = rank_facts(g->rank);
    size_t used = rank_weight_bytes(g->rank) + rank_scratch_bytes(g->rank), budget = s->kv_bytes;
    if (!budget) {
        double share = (double)f->memory_bytes * s->memory_share;
        budget = share > (double)used ? (size_t)(share - (double)used) : 0;
    }
    g->kv_block_bytes = rank_kv_block_bytes(g->rank);
    size_t blocks = budget / g->kv_block_bytes;
    *n_blocks = blocks > 1 << 24 ? 1 << 24 : (int)blocks;
    int64_t capacity = (int64_t)*n_blocks * s->block_size;
    int context = model_config(s->model)->context;
    if (!l->max_model_len)
        l->max_model_len = capacity < context ? (int)capacity : context;
    if (l->max_model_len < 16 || l->max_model_len > capacity) {
        double need = (double)((l->max_model_len + s->block_size - 1) / s->block_size) * (double)g->kv_block_bytes / 0x1p30;
        return err_set(e, E_FULL,
                       "max-model-len %d needs %.2f GiB of KV cache, %.2f GiB available: lower --max-model-len to %lld or raise "
                       "--kv-cache-memory-bytes (or --gpu-memory-utilization)",
                       l->max_model_len, need, (double)budget / 0x1p30, (long long)capacity);
    }
    return 0;
}

static void fill_node(struct engine *g, int n_blocks)
{
    const struct engine_setup *s = &g->setup;
    g->node = (struct node_facts){.n_ranks = 1, .memory_bytes = rank_facts(g->rank)->memory_bytes,
                                  .weight_bytes = rank_weight_bytes(g->rank), .kv_bytes = g->kv_block_bytes * (size_t)n_blocks,
                                  .kv_blocks = n_blocks, .tokens_per_block = s->block_size, .limits = s->limits};
    snprintf(g->node.model, sizeof g->node.model, "%s", s->model_name);
    snprintf(g->node.device, sizeof g->node.device, "%s", rank_facts(g->rank)->name);
}

static int check_setup(const struct engine_setup *s, struct err *e)
{
    const struct limits *l = &s->limits;
    if (s->block_size < 16 || s->block_size > 256 || s->block_size % 16)
        return err_set(e, E_INPUT, "--block-size %d: use a multiple of 16 from 16 to 256", s->block_size);
    if (l->max_num_seqs < 1 || l->max_num_seqs > MAX_REQUESTS)
        return err_set(e, E_INPUT, "--max-num-seqs %d: use 1 to %d", l->max_num_seqs, MAX_REQUESTS);
    if (l->max_num_batched_tokens < 1 || l->max_num_batched_tokens > 1 << 20)
        return err_set(e, E_INPUT, "--max-num-batched-tokens %d: use 1 to %d", l->max_num_batched_tokens, 1 << 20);
    if (s->kv_dtype != DT_F16 && s->kv_dtype != DT_BF16 && s->kv_dtype != DT_F32)
        return err_set(e, E_INPUT, "--kv-cache-dtype: use auto, f16, bf16 or f32");
    if (!s->kv_bytes && !(s->memory_share > 0 && s->memory_share < 1))
        return err_set(e, E_INPUT, "--gpu-memory-utilization: use a share above 0 and below 1");
    int context = model_config(s->model)->context;
    if (l->max_model_len > context)
        return err_set(e, E_INPUT, "--max-model-len %d is above the model's context of %d tokens", l->max_model_len, context);
    return 0;
}

static int open_rank(struct engine *g, struct err *e)
{
    const struct engine_setup *s = &g->setup;
    struct rank_setup rs = {.ops = s->ops, .device = s->device, .model = s->model, .n_ranks = 1, .kv_dtype = s->kv_dtype,
                            .block_size = s->block_size, .threaded = s->threaded, .quiet = s->quiet, .step_done = step_done, .ctx = g};
    rs.device.max_rows = s->limits.max_num_batched_tokens;
    if (!rs.device.max_logits)
        rs.device.max_logits = 64;
    int n_blocks;
    TRY(rank_open(&g->rank, &rs, e));
    TRY(size_kv(g, &n_blocks, e));
    TRY(rank_start(g->rank, n_blocks, e));
    world_init(&g->world, &g->setup.limits, &g->metrics);
    kv_init(&g->world.kv, n_blocks, s->block_size);
    g->world.n_groups = g->world.n_ranks = 1;
    g->world.groups[0] = (struct group){.id = 1, .n_ranks = 1, .layout = {1, 1, 1}, .idle = true};
    fill_node(g, n_blocks);
    return 0;
}

int engine_create(struct engine **out, const struct engine_setup *s, struct err *e)
{
    struct engine *g = mem_new(sizeof *g);
    g->setup = *s;
    metrics_init(&g->metrics);
    int rc = check_setup(s, e);
    if (!rc)
        rc = open_rank(g, e);
    if (!rc) {
        g->started_ns = g->rates.since_ns = clock_now(s->clock);
        g->was_idle = true;
        plan_init(&g->plan, &g->world);
        live_init(&g->live, &g->node, s->quiet);
        g->inbox = queue_create(sizeof(struct engine_message), 0, false);
        g->outbox = queue_create(sizeof(struct engine_event), 0, s->threaded);
        if (!g->outbox)
            rc = err_set(e, E_SYS, "cannot make an eventfd");
    }
    memset(&g->setup.policy, 0, sizeof g->setup.policy);
    struct policy first = s->policy;
    if (!rc && first.ops && first.ops != g->live.native.ops) {
        rc = live_swap(&g->live, &first, &g->world, g->started_ns, e);
    } else if (first.ops && first.ops->destroy) {
        first.ops->destroy(first.ctx);
    }
    if (rc) {
        engine_destroy(g);
        return rc;
    }
    *out = g;
    return 0;
}

static void free_event(const struct engine_event *ev)
{
    mem_free(ev->payload);
}

static void free_message(struct engine_message *m)
{
    if (m->kind == IN_SUBMIT) {
        request_spec_free(m->payload);
    } else if (m->kind == IN_POLICY) {
        struct policy *p = m->payload;
        if (p->ops->destroy)
            p->ops->destroy(p->ctx);
        mem_free(p);
    } else {
        mem_free(m->payload);
    }
}

void engine_destroy(struct engine *g)
{
    if (!g)
        return;
    rank_close(g->rank); /* first: its thread posts to the inbox */
    step_free(g->in_flight);
    live_free(&g->live);
    plan_free(&g->plan);
    struct engine_message m;
    while (g->inbox && queue_take(g->inbox, &m))
        free_message(&m);
    struct engine_event ev;
    while (g->outbox && queue_take(g->outbox, &ev))
        free_event(&ev);
    queue_destroy(g->inbox);
    queue_destroy(g->outbox);
    world_free(&g->world);
    mem_free(g);
}

struct queue *engine_inbox(struct engine *g)
{
    return g->inbox;
}

struct queue *engine_outbox(struct engine *g)
{
    return g->outbox;
}

const struct node_facts *engine_node(const struct engine *g)
{
    return &g->node;
}

const struct plan *engine_plan(const struct engine *g)
{
    return &g->plan;
}

const struct world *engine_world(const struct engine *g)
{
    return &g->world;
}

/* ---- ingest */

/* Seconds until the queue has probably moved on, for Retry-After. */
static int retry_after(const struct engine *g, int64_t now)
{
    double age = (double)(now - g->started_ns) * 1e-9;
    double rate = (double)(g->metrics.counters[C_PROMPT_TOKENS] + g->metrics.counters[C_GENERATION_TOKENS]) / (age > 1 ? age : 1);
    double s = rate > 0 ? (double)g->world.waiting_tokens / rate : 1;
    return s < 1 ? 1 : s > 60 ? 60 : (int)s;
}

/* The ending of a request that never entered the world. */
static void turn_away(struct engine *g, struct request_spec *s, int status, int retry_s, const char *why)
{
    struct engine_event ev = {.kind = EV_END, .code = END_REFUSED, .tag = s->tag, .http_status = status, .retry_after_s = retry_s,
                              .n_prompt = s->n_prompt, .payload = mem_strdup(why), .n = strlen(why)};
    metrics_add(&g->metrics, status == 400 ? C_REFUSED_INPUT : C_REFUSED_FULL, 1);
    request_spec_free(s);
    engine_emit(g, &ev);
}

static void submit(struct engine *g, struct request_spec *s)
{
    int64_t now = clock_now(g->setup.clock);
    struct err e = {0};
    struct request *r = NULL;
    if (g->draining || g->stopping) {
        turn_away(g, s, 503, -1, "the server is shutting down");
        return;
    }
    int rc = world_submit(&g->world, s, now, &r, &e);
    if (rc) {
        turn_away(g, s, rc == E_FULL ? 503 : 400, rc == E_FULL ? retry_after(g, now) : -1, e.text);
        return;
    }
    metrics_add(&g->metrics, C_PROMPT_TOKENS, (uint64_t)s->n_prompt);
    struct view v = {.world = &g->world, .now_ns = now};
    struct admission a = {.key = r->key, .retry_after_s = -1};
    live_admit(&g->live, r, &v, &a);
    if (a.refused)
        engine_end_request(g, r, &(struct farewell){END_REFUSED, a.code, a.retry_after_s, *a.why ? a.why : "refused by the policy"});
    else
        world_rekey(&g->world, r, a.key);
    g->changed = true;
}

static void cancel(struct engine *g, uint64_t tag, enum ending how)
{
    struct request *r = request_find_tag(&g->world.requests, tag);
    if (!r)
        return; /* it has had its ending */
    g->changed = true;
    if (r->busy) {
        r->cancelled = true;
        r->cancel_as = how;
    } else {
        engine_end_request(g, r, &(struct farewell){.how = how, .retry_after_s = -1});
    }
}

static void reply(struct engine *g, uint64_t tag, int code, char *text, size_t n)
{
    engine_emit(g, &(struct engine_event){.kind = EV_REPLY, .tag = tag, .code = code, .payload = text, .n = n});
}

/* Answers with the policy's state, or with why it did not work. */
static void reply_policy(struct engine *g, uint64_t tag, int rc, const struct err *e)
{
    struct buf out = {0};
    if (rc)
        buf_puts(&out, e->text);
    else
        live_state(&g->live, &out);
    size_t n = out.len;
    reply(g, tag, rc, buf_take(&out), n);
}

static void swap_policy(struct engine *g, const struct engine_message *m)
{
    struct err e = {0};
    struct policy *p = m->payload;
    int64_t t0 = clock_now(g->setup.clock);
    int rc = live_swap(&g->live, p, &g->world, t0, &e);
    g->live.last_swap_seconds = (double)(clock_now(g->setup.clock) - t0) * 1e-9;
    mem_free(p);
    g->wake_ns = 0;
    g->changed = true;
    reply_policy(g, m->tag, rc, &e);
}

static void set_params(struct engine *g, const struct engine_message *m)
{
    struct err e = {0};
    int rc = g->live.active.ops->params_set
                 ? g->live.active.ops->params_set(g->live.active.ctx, m->payload, m->n, &e)
                 : err_set(&e, E_UNSUPPORTED, "the policy %s has no params", g->live.active.name);
    mem_free(m->payload);
    if (!rc)
        live_rekey(&g->live, &g->world, clock_now(g->setup.clock));
    g->changed = true;
    reply_policy(g, m->tag, rc, &e);
}

static void roll_back(struct engine *g, uint64_t tag)
{
    struct err e = {0};
    int rc = live_rollback(&g->live, &g->world, clock_now(g->setup.clock), &e);
    g->changed = true;
    reply_policy(g, tag, rc, &e);
}

static void stop_all(struct engine *g)
{
    g->stopping = true;
    for (int i = 0; i < g->world.requests.n_slots; i++) {
        struct request *r = g->world.requests.slots[i];
        if (r)
            cancel(g, r->spec->tag, END_ABORT);
    }
}

static void take_message(struct engine *g, struct engine_message *m)
{
    size_t n;
    char *text;
    switch (m->kind) {
    case IN_SUBMIT: submit(g, m->payload); break;
    case IN_CANCEL: cancel(g, m->tag, (enum ending)m->code); break;
    case IN_POLICY: swap_policy(g, m); break;
    case IN_PARAMS: set_params(g, m); break;
    case IN_ROLLBACK: roll_back(g, m->tag); break;
    case IN_METRICS:
        text = engine_metrics_text(g, &n);
        reply(g, m->tag, 0, text, n);
        break;
    case IN_STATE:
        text = engine_state_json(g, &n);
        reply(g, m->tag, 0, text, n);
        break;
    case IN_RESET_PREFIX_CACHE:
        kv_forget_cached(&g->world.kv);
        reply(g, m->tag, 0, mem_strdup("{}"), 2);
        break;
    case IN_DRAIN: g->draining = true; break;
    case IN_STOP: stop_all(g); break;
    case IN_STEP_DONE: engine_absorb(g, m->payload); break;
    }
}

static bool ingest(struct engine *g)
{
    struct engine_message batch[64];
    size_t n, total = 0;
    while ((n = queue_take_many(g->inbox, batch, 64)) > 0) {
        for (size_t i = 0; i < n; i++)
            take_message(g, &batch[i]);
        total += n;
    }
    if (g->in_flight && clock_now(g->setup.clock) >= g->in_flight->done_ns) {
        struct step *s = g->in_flight;
        g->in_flight = NULL;
        engine_absorb(g, s);
        total++;
    }
    return total > 0;
}

/* ---- decide and post */

static bool should_decide(const struct engine *g, int64_t now)
{
    if (!g->world.groups[0].idle || g->stopping)
        return false;
    bool woken = g->wake_ns && now >= g->wake_ns;
    return (g->changed || woken) && world_has_work(&g->world);
}

static void post(struct engine *g, struct plan_batch *b)
{
    struct group *grp = &g->world.groups[b->group - 1];
    struct step *s = step_build(b, &(struct step_site){.group = grp, .tokens_per_block = g->world.kv.tokens_per_block});
    for (int i = 0; i < b->n_items; i++)
        b->items[i].request->busy = true;
    grp->idle = false;
    grp->layout = b->layout;
    s->posted_ns = grp->busy_since_ns = clock_now(g->setup.clock);
    rank_post_step(g->rank, s, 0);
    if (!g->setup.threaded) {
        s->done_ns = s->posted_ns + step_ns(s);
        g->in_flight = s;
    }
}

/* What the plan says beyond the world: refusals, log lines, steps. */
static void enact(struct engine *g, struct plan *p)
{
    plan_apply(p);
    for (int i = 0; i < p->n_verbs; i++) {
        const struct plan_verb *v = &p->verbs[i];
        if (v->kind == PLAN_LOG && !g->setup.quiet)
            log_info("policy", "%s: %s", g->live.active.name, v->text);
        if (v->kind == PLAN_REFUSE)
            engine_end_request(g, v->request, &(struct farewell){END_REFUSED, v->code, v->retry_after_s,
                                                                 *v->text ? v->text : "refused by the policy"});
    }
    g->wake_ns = p->wake_ns;
    for (int i = 0; i < p->n_batches; i++)
        if (p->batches[i]->forwarded)
            post(g, p->batches[i]);
}

static void note_idle(struct engine *g)
{
    bool idle = g->world.requests.n_live == 0;
    if (idle && !g->was_idle)
        ASSERT(world_check(&g->world)); /* conservation, recounted whenever there is nothing to do */
    g->was_idle = idle;
    if (idle && g->draining && !g->drained_said) {
        g->drained_said = true;
        engine_emit(g, &(struct engine_event){.kind = EV_DRAINED});
    }
}

bool engine_turn(struct engine *g)
{
    bool did = ingest(g);
    int64_t now = clock_now(g->setup.clock);
    note_idle(g);
    if (!should_decide(g, now))
        return did;
    struct view v = {.world = &g->world, .now_ns = now, .n_idle = 1, .idle = {1}};
    g->changed = false;
    g->world.step++;
    live_step(&g->live, &v, &g->plan);
    enact(g, &g->plan);
    live_idle(&g->live); /* in the shadow of the step just posted */
    return true;
}

/* A wake that falls due while a step runs has to wait for its end, which is a reason to decide by itself. */
static bool can_wake(const struct engine *g)
{
    return g->world.groups[0].idle && world_has_work(&g->world);
}

int64_t engine_next_ns(const struct engine *g)
{
    int64_t t = g->in_flight ? g->in_flight->done_ns : INT64_MAX;
    if (g->wake_ns && g->wake_ns < t && can_wake(g))
        t = g->wake_ns;
    return t;
}

void engine_run(void *arg)
{
    struct engine *g = arg;
    while (!(g->stopping && g->world.requests.n_live == 0)) {
        if (engine_turn(g))
            continue;
        int64_t now = clock_now(g->setup.clock), wait = 1000000000;
        engine_log_rates(g, now);
        if (g->wake_ns && can_wake(g) && g->wake_ns - now < wait)
            wait = g->wake_ns > now ? g->wake_ns - now : 0;
        queue_wait(g->inbox, g->world.requests.n_live ? wait : -1);
    }
}
