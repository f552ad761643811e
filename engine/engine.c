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
    queue_post(g->inbox, &(struct engine_message){.kind = IN_STEP_DONE, .payload = s});
}

static void move_done(void *ctx, struct move *m)
{
    struct engine *g = ctx;
    queue_post(g->inbox, &(struct engine_message){.kind = IN_MOVE_DONE, .payload = m});
}

static int64_t look_at_clock(struct engine *g)
{
    return g->now_ns = clock_now(g->setup.clock);
}

/* The partition to begin with. */
static int start_partition(struct engine *g, struct err *e)
{
    struct layout l = g->setup.start;
    int n = g->devices.n_ranks, size = l.sp && l.tp ? l.sp * l.tp : n;
    for (int first = 0; first + size <= n; first += size) {
        struct switch_order o = {
            .mask = (size == 64 ? ~0ull : (1ull << size) - 1) << first, .base = {size, 1, 1}, .reason = "start"};
        const char *why = partition_refusal(&g->world, &o);
        if (why && l.sp)
            return err_set(e, E_INPUT, "groups of %d ranks: %s", size, why);
        if (!why)
            partition_ask(&g->world, &o, g->now_ns);
    }
    partition_advance(&g->world, g->now_ns);
    return 0;
}

/* A described machine knows what a step takes: what policies ask is answered by it. */
static int64_t known_step_ns(const void *ctx, struct layout l, const struct step_size *s)
{
    const struct engine *g = ctx;
    return g->setup.ops->step_ns(rank_device(g->devices.ranks[0]), l, s);
}

static int open_world(struct engine *g, struct err *e)
{
    struct node_callbacks c = {step_done, move_done, g};
    TRY(node_open(&g->devices, &g->setup, &g->setup.limits, &c, e));
    world_init(&g->world, &g->setup.limits, &g->devices.shape, g->devices.n_blocks, &g->metrics);
    look_at_clock(g);
    node_facts(&g->devices, &g->setup, &g->node);
    if (rank_facts(g->devices.ranks[0])->budget.weight_tp) {
        g->world.estimate.known = known_step_ns;
        g->world.estimate.ctx = g;
    }
    return start_partition(g, e);
}

int engine_create(struct engine **out, const struct engine_setup *s, struct err *e)
{
    struct engine *g = mem_new(sizeof *g);
    g->setup = *s;
    g->setup.n_ranks = s->n_ranks ? s->n_ranks : 1;
    metrics_init(&g->metrics);
    g->inbox = queue_create(sizeof(struct engine_message), 0, false);
    int rc = open_world(g, e);
    if (!rc) {
        g->started_ns = g->rates.since_ns = g->now_ns;
        g->was_idle = g->saw_empty = true;
        g->due_ns = INT64_MAX;
        plan_init(&g->plan, &g->world);
        live_init(&g->live, &g->node, s->quiet);
        g->live.witness = s->witness;
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
    } else if (m->kind == IN_STEP_DONE) {
        step_free(m->payload);
    } else if (m->kind != IN_MOVE_DONE) { /* what is left of a move is taken back below, while there is a world */
        mem_free(m->payload);
    }
}

void engine_destroy(struct engine *g)
{
    if (!g)
        return;
    node_close(&g->devices); /* first: the ranks' threads post to the inbox */
    struct timetable_entry t;
    while (timetable_take(&g->under_way, INT64_MAX, &t)) {
        step_free(t.step);
        if (t.move)
            engine_move_done(g, t.move);
    }
    timetable_free(&g->under_way);
    live_free(&g->live);
    plan_free(&g->plan);
    struct engine_message m;
    while (g->inbox && queue_take(g->inbox, &m)) {
        if (m.kind == IN_MOVE_DONE)
            engine_move_done(g, m.payload);
        free_message(&m);
    }
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

int64_t engine_started_ns(const struct engine *g)
{
    return g->started_ns;
}

const struct policy *engine_policy(const struct engine *g)
{
    return &g->live.active;
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
    double rate =
        (double)(g->metrics.counters[C_PROMPT_TOKENS] + g->metrics.counters[C_GENERATION_TOKENS]) / (age > 1 ? age : 1);
    double s = rate > 0 ? (double)g->world.waiting_tokens / rate : 1;
    return s < 1 ? 1 : s > 60 ? 60 : (int)s;
}

/* NULL: it was turned away. */
static void tell_submitted(struct engine *g, const struct request_spec *s, struct request *r)
{
    const struct witness *w = g->setup.witness;
    if (w && w->submitted)
        w->submitted(w->ctx, g->now_ns, s, r);
}

/* The ending of a request that never entered the world. */
static void turn_away(struct engine *g, struct request_spec *s, int status, int retry_s, const char *why)
{
    struct engine_event ev = {.kind = EV_END,
                              .code = END_REFUSED,
                              .tag = s->tag,
                              .http_status = status,
                              .retry_after_s = retry_s,
                              .n_prompt = s->n_prompt,
                              .payload = mem_strdup(why),
                              .n = strlen(why)};
    tell_submitted(g, s, NULL);
    metrics_add(&g->metrics, status == 400 ? C_REFUSED_INPUT : C_REFUSED_FULL, 1);
    request_spec_free(s);
    engine_emit(g, &ev);
}

static void submit(struct engine *g, struct request_spec *s)
{
    int64_t now = g->now_ns;
    struct err e = {0};
    struct request *r = NULL;
    if (g->draining || g->stopping) {
        turn_away(g, s, 503, -1, "the server is shutting down");
        return;
    }
    if (__builtin_popcountll(g->world.partition.dead_ranks) == g->devices.n_ranks) {
        turn_away(g, s, 503, -1, "every rank of the node has failed");
        return;
    }
    int rc = world_submit(&g->world, s, now, &r, &e);
    if (rc) {
        turn_away(g, s, rc == E_INPUT ? 400 : 503, rc == E_FULL ? retry_after(g, now) : -1, e.text);
        return;
    }
    tell_submitted(g, s, r);
    metrics_add(&g->metrics, C_PROMPT_TOKENS, (uint64_t)s->n_prompt);
    struct view v;
    view_init(&v, &g->world, now);
    g->saw_empty = false;
    struct admission a = {.key = r->key, .retry_after_s = -1};
    live_admit(&g->live, r, &v, &a);
    if (a.refused)
        engine_end_request(
            g, r, &(struct farewell){END_REFUSED, a.code, a.retry_after_s, *a.why ? a.why : "refused by the policy"});
    else
        admission_obey(&a, &g->world, r, now);
    g->changed = true;
}

static void cancel(struct engine *g, uint64_t tag, enum ending how)
{
    struct request *r = request_find_tag(&g->world.requests, tag);
    if (!r || r->cancelled)
        return; /* it has had its ending, or has one that waits for a step */
    if (g->setup.witness && g->setup.witness->cancelled)
        g->setup.witness->cancelled(g->setup.witness->ctx, g->now_ns, r, how);
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
        live_state(&g->live, g->now_ns, &out);
    size_t n = out.len;
    reply(g, tag, rc, buf_take(&out), n);
}

static void swap_policy(struct engine *g, const struct engine_message *m)
{
    struct err e = {0};
    struct policy *p = m->payload;
    int rc = live_swap(&g->live, p, &g->world, g->now_ns, &e);
    g->live.last_swap_seconds = (double)(clock_now(g->setup.clock) - g->now_ns) * 1e-9;
    mem_free(p);
    g->changed = true;
    reply_policy(g, m->tag, rc, &e);
}

static void set_params(struct engine *g, const struct engine_message *m)
{
    struct err e = {0};
    live_settle(&g->live, &g->world, g->now_ns);
    int rc = g->live.active.ops->params_set
                 ? g->live.active.ops->params_set(g->live.active.ctx, m->payload, m->n, &e)
                 : err_set(&e, E_UNSUPPORTED, "the policy %s has no params", g->live.active.name);
    mem_free(m->payload);
    if (!rc)
        live_rekey(&g->live, &g->world, g->now_ns);
    g->changed = true;
    reply_policy(g, m->tag, rc, &e);
}

static void roll_back(struct engine *g, uint64_t tag)
{
    struct err e = {0};
    int rc = live_rollback(&g->live, &g->world, g->now_ns, &e);
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

/* Messages that are neither a request's nor a question's nor a rank's. */
static void tell_ordered(struct engine *g, const struct engine_message *m)
{
    const struct witness *w = g->setup.witness;
    bool order = m->kind == IN_POLICY || m->kind == IN_PARAMS || m->kind == IN_ROLLBACK ||
                 m->kind == IN_RESET_PREFIX_CACHE || m->kind == IN_DRAIN || m->kind == IN_STOP;
    if (order && w && w->ordered)
        w->ordered(w->ctx, g->now_ns, m);
}

void engine_take(struct engine *g, struct engine_message *m)
{
    size_t n;
    char *text;
    look_at_clock(g);
    tell_ordered(g, m);
    switch (m->kind) {
    case IN_SUBMIT:
        submit(g, m->payload);
        break;
    case IN_CANCEL:
        cancel(g, m->tag, (enum ending)m->code);
        break;
    case IN_POLICY:
        swap_policy(g, m);
        break;
    case IN_PARAMS:
        set_params(g, m);
        break;
    case IN_ROLLBACK:
        roll_back(g, m->tag);
        break;
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
    case IN_DRAIN:
        g->draining = true;
        break;
    case IN_STOP:
        stop_all(g);
        break;
    case IN_STEP_DONE:
        engine_absorb(g, m->payload);
        break;
    case IN_MOVE_DONE:
        engine_move_done(g, m->payload);
        break;
    case IN_POLICY_REFUSED:
        live_refused(&g->live, m->payload);
        mem_free(m->payload);
        break;
    }
}

static bool ingest(struct engine *g)
{
    struct engine_message batch[64];
    size_t n, total = 0;
    while ((n = queue_take_many(g->inbox, batch, 64)) > 0) {
        for (size_t i = 0; i < n; i++)
            engine_take(g, &batch[i]);
        total += n;
    }
    struct timetable_entry t;
    look_at_clock(g);
    while (timetable_take(&g->under_way, g->now_ns, &t)) {
        if (t.step)
            engine_absorb(g, t.step);
        else
            engine_move_done(g, t.move);
        total++;
    }
    return total > 0;
}

/* ---- decide and post */

/* A group could take a step, or ranks that are in none could be bound. */
static bool may_decide(const struct engine *g)
{
    struct view v;
    if (g->stopping || (g->setup.lockstep && timetable_has_step(&g->under_way)))
        return false;
    view_init(&v, &g->world, 0);
    return v.n_idle || (g->world.partition.free_ranks && !g->world.partition.n_pending);
}

/* Whom the policy holds back it may want to let go. */
static bool has_work(const struct engine *g)
{
    return world_has_work(&g->world) || g->world.n_held;
}

/* With work, any time; without, a few times: so that a policy can still change the partition of an idle node, and not
 * keep it awake for ever. */
static bool can_wake(const struct engine *g)
{
    return may_decide(g) && (has_work(g) || (!g->world.requests.n_live && g->n_idle_wakes < MAX_IDLE_WAKES));
}

static bool should_decide(const struct engine *g, int64_t now)
{
    bool woken = g->live.wake_ns && now >= g->live.wake_ns;
    if (woken && can_wake(g))
        return true;
    if (!g->changed || !may_decide(g))
        return false;
    return has_work(g) || (!g->saw_empty && !g->world.requests.n_live);
}

void engine_note_change(struct engine *g)
{
    bool awaited = g->live.wake_ns > 0;
    for (int i = 0; i < g->world.partition.n_groups; i++)
        awaited |= !partition_slot(&g->world.partition, i)->idle;
    g->changed |= !live_is_restless(&g->live) || !awaited;
}

/* What the plan says beyond the world: refusals, log lines, steps. */
static void enact(struct engine *g, struct plan *p)
{
    plan_apply(p);
    g->live.wake_ns = p->wake_ns;
    engine_post_moves(g);
    for (int i = 0; i < p->n_verbs; i++) {
        const struct plan_verb *v = &p->verbs[i];
        if (v->kind == PLAN_LOG && !g->setup.quiet)
            log_info("policy", "%s: %s", g->live.active.name, v->text);
        if (v->kind == PLAN_REFUSE)
            engine_end_request(g, v->request,
                               &(struct farewell){END_REFUSED, v->code, v->retry_after_s,
                                                  *v->text ? v->text : "refused by the policy"});
        if (v->kind == PLAN_SWITCH || v->kind == PLAN_REMAP || v->kind == PLAN_CLOSE ||
            (v->kind == PLAN_HOLD && !v->until_ns))
            engine_note_change(g);
    }
    engine_post_plan(g, p);
}

static void note_idle(struct engine *g)
{
    bool idle = g->world.requests.n_live == 0;
    if (idle && !g->was_idle && !g->n_moving)
        ASSERT(world_check(&g->world)); /* conservation, recounted whenever there is nothing to do */
    g->was_idle = idle;
    if (idle && g->draining && !g->drained_said) {
        g->drained_said = true;
        engine_emit(g, &(struct engine_event){.kind = EV_DRAINED});
    }
}

static void tell_turned(struct engine *g, const struct plan *p)
{
    const struct witness *w = g->setup.witness;
    if (w && w->turned)
        w->turned(w->ctx, g->now_ns, p);
}

bool engine_turn(struct engine *g)
{
    bool did = ingest(g), waited = g->world.partition.n_pending > 0;
    int64_t now = look_at_clock(g);
    did |= engine_catch_up(g);
    if (live_settle(&g->live, &g->world, now) || live_retry(&g->live, &g->world, now))
        did = g->changed = true;
    did |= engine_switch(g);
    int64_t unpark_ns, let_go_ns;
    int n_freed = world_unpark(&g->world, now, &unpark_ns) + world_let_go(&g->world, now, false, &let_go_ns);
    g->due_ns = unpark_ns < let_go_ns ? unpark_ns : let_go_ns;
    if (n_freed)
        g->changed = true; /* somebody can run now who could not: asleep, nobody else would say so */
    if (g->world.partition.dead_ranks)
        engine_end_misfits(g);
    note_idle(g);
    if (!should_decide(g, now)) {
        if (did || waited || n_freed)
            tell_turned(g, NULL);
        return did;
    }
    struct view v;
    view_init(&v, &g->world, now);
    g->changed = false;
    g->saw_empty = !g->world.requests.n_live;
    g->n_idle_wakes = g->saw_empty ? g->n_idle_wakes + 1 : 0;
    g->world.step++;
    live_step(&g->live, &v, &g->plan);
    tell_turned(g, &g->plan);
    enact(g, &g->plan);
    live_idle(&g->live); /* in the shadow of the step just posted */
    return true;
}

struct step *engine_take_step(struct engine *g, int group)
{
    struct timetable_entry t;
    return timetable_release(&g->under_way, group, 0, &t) ? t.step : NULL;
}

struct move *engine_take_move(struct engine *g, uint64_t serial)
{
    struct timetable_entry t;
    return timetable_release(&g->under_way, 0, serial, &t) ? t.move : NULL;
}

struct request *engine_find(struct engine *g, uint64_t tag)
{
    return request_find_tag(&g->world.requests, tag);
}

/* A wake that falls due while every rank is busy has to wait for the end of a step, which is a reason to decide by
 * itself. */
int64_t engine_next_ns(const struct engine *g)
{
    int64_t t = timetable_next_ns(&g->under_way), order = partition_next_ns(&g->world.partition);
    if (g->live.wake_ns && g->live.wake_ns < t && can_wake(g))
        t = g->live.wake_ns;
    t = order < t ? order : t;
    if (g->live.rest.policy.ops && g->live.rest.until_ns < t)
        t = g->live.rest.until_ns;
    return g->due_ns < t ? g->due_ns : t;
}

void engine_run(void *arg)
{
    struct engine *g = arg;
    while (!(g->stopping && g->world.requests.n_live == 0 && g->n_moving == 0)) {
        if (engine_turn(g))
            continue;
        int64_t now = clock_now(g->setup.clock), wait = 1000000000;
        engine_log_rates(g, now);
        int64_t next = engine_next_ns(g);
        bool timed = next != INT64_MAX;
        if (g->setup.witness && g->setup.witness->rests && !g->world.requests.n_live)
            g->setup.witness->rests(g->setup.witness->ctx);
        if (g->n_behind)
            wait = 5000000; /* the front does not say when it has caught up */
        if (timed && next - now < wait)
            wait = next > now ? next - now : 0;
        queue_wait(g->inbox, g->world.requests.n_live || timed ? wait : -1);
    }
}
