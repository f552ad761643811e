#include "engine/engine.h"

#include <stdio.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/log.h"
#include "engine/base/seen.h"
#include "engine/engine_state.h"
#include "models/guide/guide.h"

/* ---- opening */

static void step_done(void *ctx, struct step *s)
{
    struct engine *engine = ctx;
    queue_post(engine->inbox, &(struct engine_message){.kind = IN_STEP_DONE, .payload = s});
}

static void move_done(void *ctx, struct move *m)
{
    struct engine *engine = ctx;
    queue_post(engine->inbox, &(struct engine_message){.kind = IN_MOVE_DONE, .payload = m});
}

static void replica_done(void *ctx, struct replica_task *t)
{
    struct engine *engine = ctx;
    queue_post(engine->inbox, &(struct engine_message){.kind = IN_REPLICA_DONE, .payload = t});
}

static void reshard_done(void *ctx, struct reshard_task *t)
{
    struct engine *engine = ctx;
    queue_post(engine->inbox, &(struct engine_message){.kind = IN_RESHARD_DONE, .payload = t});
}

static int64_t look_at_clock(struct engine *engine)
{
    engine->now_ns = clock_now(engine->setup.clock);
    if (engine->guards && guards_is_due(engine->guards, engine->now_ns))
        guards_roll(engine->guards, &engine->world, live_verdicts(&engine->live), engine->now_ns);
    return engine->now_ns;
}

/* From now on swaps are an operator's, and there is traffic to compare with. */
static void begin_watch(struct engine *engine)
{
    if (engine->setup.limits.probation_ns > 0)
        engine->guards = guards_create(engine->setup.limits.probation_ns, engine->started_ns);
    engine->live.probation.guards = engine->guards;
}

/* The partition to begin with. */
static int start_partition(struct engine *engine, struct err *e)
{
    bool sharded = engine->world.residency.facts;
    struct layout l = sharded ? engine->world.residency.facts->start : engine->setup.start;
    int n = engine->node.n_ranks, pp = l.pp ? l.pp : 1, size = l.sp && l.tp ? l.sp * l.tp * pp : n;
    engine->world.partition.start = sharded ? l : (struct layout){0, 0, pp};
    memcpy(engine->cuts, engine->world.residency.held, sizeof engine->cuts);
    for (int first = 0; first + size <= n; first += size) {
        struct switch_order o = {.mask = rank_range(first, size), .base = {size / pp, 1, pp}, .reason = "start"};
        const char *why = partition_refusal(&engine->world, &o);
        if (why && l.sp)
            return err_set(e, E_INPUT, "groups of %d ranks: %s", size, why);
        if (!why)
            partition_ask(&engine->world, &o, engine->now_ns);
    }
    partition_advance(&engine->world, engine->now_ns);
    return 0;
}

/* A described machine knows what a step takes: what policies ask is answered by it. */
static int64_t known_step_ns(const void *ctx, struct layout l, const struct step_size *s)
{
    const struct engine *engine = ctx;
    return engine->setup.ops->step_ns(rank_device(engine->node.ranks[0]), l, s);
}

static int open_world(struct engine *engine, struct err *e)
{
    struct node_callbacks c = {step_done, move_done, engine};
    TRY(node_open(&engine->node, &engine->setup, &engine->setup.limits, &c, e));
    world_init(&engine->world, &engine->setup.limits, &engine->node.shape, engine->node.n_blocks, &engine->metrics);
    engine->world.kv.trusted = !engine->setup.threaded;
    if (engine->node.host.n_blocks)
        kv_open_host(&engine->world.kv, engine->node.host.n_blocks, engine->setup.block_size);
    TRY(engine_open_disk(engine, e));
    engine->world.ffn = engine->setup.ffn;
    if (engine->setup.guide_tokens)
        engine->world.guides = guides_new(engine->setup.guide_tokens, GUIDE_BYTES);
    engine_open_drafts(engine);
    /* No recording says what probes said, which without a prefix cache would each compute all of their parent again. */
    if (!witness_is_exact(engine->setup.witness) && engine->setup.ops->computes && engine->setup.limits.prefix_caching)
        engine->world.thinking = engine->setup.thinking;
    if (!witness_is_exact(engine->setup.witness)) /* nor what waits for an encoder */
        engine->world.embed = engine->setup.embed;
    engine->replica_done = replica_done;
    engine->reshard_done = reshard_done;
    if (engine->node.residency) {
        engine->world.residency.facts = engine->node.residency;
        memcpy(engine->world.residency.held, engine->node.cuts, sizeof engine->node.cuts);
        engine->world.cost.load_ns_per_byte = engine->node.residency->load_ns_per_byte;
    }
    look_at_clock(engine);
    node_facts(&engine->node, &engine->setup, &engine->facts);
    engine->world.replicas.blocks = engine->facts.ffn_replica_blocks;
    if (rank_facts(engine->node.ranks[0])->budget.weight_tp) {
        engine->world.estimate.known = known_step_ns;
        engine->world.estimate.ctx = engine;
    }
    return start_partition(engine, e);
}

int engine_create(struct engine **out, const struct engine_setup *s, struct err *e)
{
    struct engine *engine = seen_new(sizeof *engine); /* policies see the world in it */
    engine->setup = *s;
    engine->setup.n_ranks = s->n_ranks ? s->n_ranks : 1;
    if (s->ffn) {
        engine->ffn = *s->ffn;
        engine->setup.ffn = &engine->ffn;
    }
    metrics_init(&engine->metrics);
    stories_init(&engine->stories, s->story_keep);
    decisions_init(&engine->decisions, s->decision_bytes);
    engine->inbox = queue_create(sizeof(struct engine_message), 0, false);
    int rc = open_world(engine, e);
    if (!rc) {
        engine->started_ns = engine->rates.since_ns = engine->now_ns;
        pulse_clear(&engine->pulse, engine->now_ns);
        engine->was_idle = engine->saw_empty = true;
        engine->due_ns = INT64_MAX;
        plan_init(&engine->plan, &engine->world);
        live_init(&engine->live, &engine->facts, s->quiet);
        engine->live.witness = s->witness;
        shadow_init(&engine->shadow, &engine->world, s->clock, s->shadow_share);
        if (s->threaded)
            rc = retired_start(&engine->retired, e);
        engine->live.retired = engine->shadow.retired = engine->retired;
        engine->outbox = queue_create(sizeof(struct engine_event), 0, s->threaded);
        if (!rc && !engine->outbox)
            rc = err_set(e, E_SYS, "cannot make an eventfd");
    }
    memset(&engine->setup.policy, 0, sizeof engine->setup.policy);
    struct policy first = s->policy;
    if (!rc && first.ops && first.ops != engine->live.native.ops) {
        rc = live_swap(&engine->live, &first, &engine->world, engine->started_ns, e);
    } else if (first.ops && first.ops->destroy) {
        first.ops->destroy(first.ctx);
    }
    if (rc) {
        engine_destroy(engine);
        return rc;
    }
    live_tend(&engine->live);
    begin_watch(engine);
    *out = engine;
    return rc;
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
    } else if (m->kind == IN_SHADOW) {
        struct shadow_order *o = m->payload;
        if (o->policy.ops->destroy)
            o->policy.ops->destroy(o->policy.ctx);
        mem_free(o);
    } else if (m->kind == IN_CANARY) {
        struct canary_order *o = m->payload;
        if (o->policy.ops->destroy)
            o->policy.ops->destroy(o->policy.ctx);
        mem_free(o);
    } else if (m->kind == IN_STEP_DONE) {
        step_free(m->payload);
    } else if (m->kind != IN_MOVE_DONE && m->kind != IN_REPLICA_DONE && m->kind != IN_RESHARD_DONE &&
               m->kind != IN_DISK_DONE) { /* what is left of those is taken back below */
        mem_free(m->payload);
    }
}

void engine_destroy(struct engine *engine)
{
    if (!engine)
        return;
    disk_kv_close(engine->disk); /* before the memory that it reads */
    node_close(&engine->node);   /* first: the ranks' threads post to the inbox */
    struct timetable_entry t;
    while (timetable_take(&engine->under_way, INT64_MAX, &t)) {
        step_free(t.step);
        if (t.move)
            engine_move_done(engine, t.move);
        if (t.replica)
            engine_replica_done(engine, t.replica);
    }
    timetable_free(&engine->under_way);
    engine_drop_replicas(engine);
    engine_drop_reshards(engine);
    live_free(&engine->live);
    shadow_free(&engine->shadow);
    canary_free(&engine->canary);
    retired_stop(engine->retired);
    guards_free(engine->guards);
    plan_free(&engine->plan);
    guides_free(engine->world.guides);
    struct engine_message m;
    while (engine->inbox && queue_take(engine->inbox, &m)) {
        if (m.kind == IN_MOVE_DONE)
            engine_move_done(engine, m.payload);
        else if (m.kind == IN_DISK_DONE)
            engine_disk_done(engine, m.payload);
        free_message(&m);
    }
    struct engine_event ev;
    while (engine->outbox && queue_take(engine->outbox, &ev))
        free_event(&ev);
    queue_destroy(engine->inbox);
    queue_destroy(engine->outbox);
    world_free(&engine->world);
    stories_free(&engine->stories);
    decisions_free(&engine->decisions);
    mem_free(engine);
}

struct queue *engine_inbox(struct engine *engine)
{
    return engine->inbox;
}

struct queue *engine_outbox(struct engine *engine)
{
    return engine->outbox;
}

const struct node_facts *engine_node(const struct engine *engine)
{
    return &engine->facts;
}

int64_t engine_started_ns(const struct engine *engine)
{
    return engine->started_ns;
}

const struct policy *engine_policy(const struct engine *engine)
{
    return &engine->live.active;
}

const struct plan *engine_plan(const struct engine *engine)
{
    return &engine->plan;
}

bool engine_profile(const struct engine *engine, struct profile *out)
{
    return !engine->setup.play && node_profile(&engine->node, out);
}

void engine_probe(const struct engine *engine)
{
    struct err none;
    node_probe(&engine->node, &none);
}

const struct world *engine_world(const struct engine *engine)
{
    return &engine->world;
}

/* ---- ingest */

static void cancel(struct engine *engine, uint64_t tag, enum ending how)
{
    struct request *r = request_find_tag(&engine->world.requests, tag);
    if (!r || r->finishing)
        return; /* it has had its ending, or has one that waits for a step */
    if (engine->setup.witness && engine->setup.witness->cancelled)
        engine->setup.witness->cancelled(engine->setup.witness->ctx, engine->now_ns, r, how);
    engine->changed = true;
    if (r->busy) {
        r->finishing = true;
        r->finish_as = how;
    } else {
        engine_end_request(engine, r, &(struct request_end){.how = how, .retry_after_s = -1});
    }
}

static void stop_all(struct engine *engine)
{
    engine->stopping = true;
    for (int i = 0; i < engine->world.requests.n_slots; i++) {
        struct request *r = engine->world.requests.slots[i];
        if (r)
            cancel(engine, r->spec->tag, END_ABORT);
    }
}

/* Messages that are neither a request's nor a question's nor a rank's. */
static void tell_ordered(struct engine *engine, const struct engine_message *m)
{
    const struct witness *w = engine->setup.witness;
    bool order = m->kind == IN_POLICY || m->kind == IN_PARAMS || m->kind == IN_ROLLBACK ||
                 m->kind == IN_RESET_PREFIX_CACHE || m->kind == IN_DRAIN || m->kind == IN_STOP ||
                 m->kind == IN_CANARY || m->kind == IN_CANARY_END;
    if (order && w && w->ordered)
        w->ordered(w->ctx, engine->now_ns, m);
}

void engine_take(struct engine *engine, struct engine_message *m)
{
    size_t n;
    char *text;
    look_at_clock(engine);
    if (m->kind == IN_POLICY) /* before it is recorded: a replay has no shadow */
        shadow_foretell(&engine->shadow, &engine->live.active, engine->now_ns, m->payload);
    tell_ordered(engine, m);
    switch (m->kind) {
    case IN_SUBMIT:
        engine_submit(engine, m->payload);
        break;
    case IN_CANCEL:
        cancel(engine, m->tag, (enum ending)m->code);
        break;
    case IN_POLICY:
    case IN_PARAMS:
    case IN_ROLLBACK:
    case IN_SHADOW:
    case IN_SHADOW_END:
    case IN_SHADOW_STATE:
    case IN_CANARY:
    case IN_CANARY_END:
    case IN_CANARY_STATE:
    case IN_STORY:
    case IN_DECISIONS:
    case IN_PROFILE:
        engine_obey(engine, m);
        break;
    case IN_LIMITS:
        engine_take_limits(engine, m);
        break;
    case IN_METRICS:
        text = engine_metrics_text(engine, &n);
        engine_reply(engine, m->tag, 0, text, n);
        break;
    case IN_STATE:
        text = engine_state_json(engine, &n);
        engine_reply(engine, m->tag, 0, text, n);
        break;
    case IN_PULSE:
        text = engine_pulse_json(engine, m->n, &n);
        engine_reply(engine, m->tag, 0, text, n);
        break;
    case IN_RESET_PREFIX_CACHE:
        kv_forget_cached(&engine->world.kv);
        if (engine->disk)
            disk_kv_clear(engine->disk);
        engine_reply(engine, m->tag, 0, mem_strdup("{}"), 2);
        break;
    case IN_DRAIN:
        engine->draining = true;
        break;
    case IN_STOP:
        stop_all(engine);
        break;
    case IN_STEP_DONE:
        engine_absorb(engine, m->payload);
        break;
    case IN_MOVE_DONE:
        engine_move_done(engine, m->payload);
        break;
    case IN_REPLICA_DONE:
        engine_replica_done(engine, m->payload);
        break;
    case IN_RESHARD_DONE:
        engine_reshard_done(engine, m->payload);
        break;
    case IN_DISK_DONE:
        engine_disk_done(engine, m->payload);
        break;
    case IN_POLICY_REFUSED:
        live_refused(&engine->live, m->payload);
        mem_free(m->payload);
        break;
    }
}

static bool ingest(struct engine *engine)
{
    struct engine_message batch[64];
    size_t n, total = 0;
    while ((n = queue_take_many(engine->inbox, batch, 64)) > 0) {
        for (size_t i = 0; i < n; i++)
            engine_take(engine, &batch[i]);
        total += n;
    }
    struct timetable_entry t;
    look_at_clock(engine);
    while (timetable_take(&engine->under_way, engine->now_ns, &t)) {
        if (t.step)
            engine_absorb(engine, t.step);
        else if (t.move)
            engine_move_done(engine, t.move);
        else if (t.replica)
            engine_replica_done(engine, t.replica);
        else
            engine_reshard_done(engine, t.reshard);
        total++;
    }
    return total > 0;
}

/* ---- decide and post */

/* A group could take a step, or ranks that are in none could be bound. */
static bool may_decide(const struct engine *engine)
{
    struct view v;
    bool waits = engine->setup.lockstep && timetable_steps(&engine->under_way);
    if (engine->stopping || waits || engine_waits_to_mend(engine))
        return false;
    view_init_of(&v, &engine->world, SIDE_ALL, 0);
    return v.n_idle || (engine->world.partition.free_ranks && !engine->world.partition.n_pending);
}

/* Whom the policy holds back it may want to let go. */
static bool has_work(const struct engine *engine)
{
    return world_has_work(&engine->world) || engine->world.n_held;
}

/* With work, any time; without, a few times: so that a policy can still change the partition of an idle node, and not
 * keep it awake for ever. */
static bool can_wake(const struct engine *engine)
{
    return may_decide(engine) &&
           (has_work(engine) || (!engine->world.requests.n_live && engine->n_idle_wakes < MAX_IDLE_WAKES));
}

static bool should_decide(const struct engine *engine, int64_t now)
{
    bool woken = engine->live.wake_ns && now >= engine->live.wake_ns;
    if (woken && can_wake(engine))
        return true;
    if (!engine->changed || !may_decide(engine))
        return false;
    return has_work(engine) || (!engine->saw_empty && !engine->world.requests.n_live);
}

void engine_note_change(struct engine *engine)
{
    int64_t soon = engine->now_ns + PACE_NS, *wake = &engine->live.wake_ns;
    if (engine->n_fruitless <= MAX_FRUITLESS)
        engine->changed = true;
    else if (!*wake || *wake > soon)
        *wake = soon;
}

/* What the plan says beyond the world: refusals, log lines, steps. */
static void enact(struct engine *engine, struct plan *p)
{
    plan_apply(p);
    if (p->pressed && engine->world.ffn) /* nobody gives way for blocks that layers have borrowed */
        world_pool(&engine->world, 0, engine->ffn.n_layers);
    engine->live.wake_ns = p->wake_ns;
    if (p->wake_ns && engine->n_fruitless > MAX_FRUITLESS && p->wake_ns < engine->now_ns + PACE_NS)
        engine->live.wake_ns = engine->now_ns + PACE_NS;
    world_save_cached(&engine->world, engine->setup.limits.max_num_batched_tokens);
    engine_post_moves(engine);
    engine_post_replicas(engine);
    engine_post_reshards(engine);
    for (int i = 0; i < p->n_verbs; i++) {
        const struct plan_verb *v = &p->verbs[i];
        if (v->kind == PLAN_LOG && !engine->setup.quiet)
            log_info("policy", "%s: %s", v->canary ? engine->canary.book.name : engine->live.active.name, v->text);
        if (v->kind == PLAN_REFUSE)
            engine_refuse(engine, v->request, v->code, v->retry_after_s, v->text);
        if (v->kind == PLAN_PROBE || v->kind == PLAN_CONCLUDE)
            engine_think(engine, v);
        if (plan_opens_more(v))
            engine_note_change(engine);
    }
    engine_post_plan(engine, p);
}

static void note_idle(struct engine *engine)
{
    bool idle = engine->world.requests.n_live == 0, rests = idle && !engine->n_moving;
    if (rests && !engine->was_idle)
        ASSERT(world_check_part(&engine->world, &engine->checked)); /* conservation, whenever there is nothing to do */
    engine->was_idle = rests;
    if (idle && engine->draining && !engine->drained_said) {
        engine->drained_said = true;
        engine_emit(engine, &(struct engine_event){.kind = EV_DRAINED});
    }
}

/* As a whole, so that no batch goes by half a rule. */
static void tell_embed(struct engine *engine)
{
    uint64_t rule = embed_rule_pack(engine->world.embed_rule);
    if (rule != engine->embed_told)
        engine_emit(engine, &(struct engine_event){.kind = EV_EMBED, .tag = rule});
    engine->embed_told = rule;
}

static void tell_turned(struct engine *engine, const struct plan *p)
{
    const struct witness *w = engine->setup.witness;
    if (w && w->turned)
        w->turned(w->ctx, engine->now_ns, p);
}

/* What swaps have left for when the step that they were before has begun, or nothing can begin. */
static void end_turn(struct engine *engine)
{
    live_tend(&engine->live);
    engine_answer_swaps(engine);
    retired_wake(engine->retired);
}

bool engine_turn(struct engine *engine)
{
    bool did = ingest(engine), waited = engine->world.partition.n_pending > 0;
    int64_t now = look_at_clock(engine);
    did |= engine_catch_up(engine);
    if (canary_tend(&engine->canary, &engine->live, &engine->world, now))
        did = engine->changed = true;
    engine_tell_canary(engine);
    if (live_settle(&engine->live, &engine->world, now) || live_retry(&engine->live, &engine->world, now))
        did = engine->changed = true;
    engine_tell_change(engine);
    did |= live_watch(&engine->live, &engine->world, now, &engine->changed);
    engine_tell_change(engine);
    shadow_tend(&engine->shadow, &engine->live.active, now);
    engine_tell_shadow(engine);
    did |= engine_switch(engine);
    did |= engine_post_reshards(engine);
    did |= engine_post_replicas(engine);
    int64_t unpark_ns, let_go_ns;
    int n_freed = world_unpark(&engine->world, now, &unpark_ns) + world_let_go(&engine->world, now, false, &let_go_ns);
    engine->due_ns = unpark_ns < let_go_ns ? unpark_ns : let_go_ns;
    if (n_freed)
        engine_note_change(engine); /* if the policy sleeps, nothing else would wake it */
    if (engine->world.partition.dead_ranks)
        engine_end_misfits(engine);
    engine_tend_disk(engine);
    engine_tend_probes(engine);
    note_idle(engine);
    tell_embed(engine); /* a policy may have begun, or ended */
    engine->stories.stale |= n_freed > 0;
    if (!engine_mend(engine) || !should_decide(engine, now)) {
        stories_look(&engine->stories, &engine->world, now);
        if (did || waited || n_freed)
            tell_turned(engine, NULL);
        end_turn(engine);
        return did;
    }
    struct view v;
    view_init(&v, &engine->world, now);
    engine->changed = false;
    engine->saw_empty = !engine->world.requests.n_live;
    engine->n_idle_wakes = engine->saw_empty ? engine->n_idle_wakes + 1 : 0;
    engine->world.step++;
    shadow_ask(&engine->shadow, &v);
    int64_t asked_ns = engine->decisions.cap ? clock_now(engine->setup.clock) : 0;
    live_step(&engine->live, &v, &engine->plan);
    int64_t call_ns = engine->decisions.cap ? clock_now(engine->setup.clock) - asked_ns : 0;
    shadow_compare(&engine->shadow, &engine->plan);
    canary_step(&engine->canary, &engine->plan);
    decisions_note(&engine->decisions, &engine->plan, &engine->live, call_ns);
    stories_decided(&engine->stories, &engine->plan);
    tell_turned(engine, &engine->plan);
    engine->n_fruitless++;
    enact(engine, &engine->plan);
    tell_embed(engine);
    live_idle(&engine->live); /* while the step just posted runs */
    shadow_idle(&engine->shadow);
    if (canary_runs(&engine->canary))
        live_idle(&engine->canary.live);
    end_turn(engine);
    return true;
}

struct request *engine_find(struct engine *engine, uint64_t tag)
{
    return request_find_tag(&engine->world.requests, tag);
}

/* A wake that falls due while every rank is busy has to wait for the end of a step, which is a reason to decide by
 * itself. */
int64_t engine_next_ns(const struct engine *engine)
{
    int64_t t = timetable_next_ns(&engine->under_way), order = partition_next_ns(&engine->world.partition);
    if (engine->live.wake_ns && engine->live.wake_ns < t && can_wake(engine))
        t = engine->live.wake_ns;
    t = order < t ? order : t;
    if (engine->live.rest.policy.ops && engine->live.rest.until_ns < t)
        t = engine->live.rest.until_ns;
    int64_t judged = probation_next_ns(&engine->live.probation);
    t = judged < t ? judged : t;
    t = shadow_next_ns(&engine->shadow) < t ? shadow_next_ns(&engine->shadow) : t;
    t = canary_next_ns(&engine->canary) < t ? canary_next_ns(&engine->canary) : t;
    return engine->due_ns < t ? engine->due_ns : t;
}

void engine_run(void *arg)
{
    struct engine *engine = arg;
    while (!(engine->stopping && engine->world.requests.n_live == 0 && engine->n_moving == 0)) {
        if (engine_turn(engine))
            continue;
        int64_t now = clock_now(engine->setup.clock), wait = 1000000000;
        engine_log_rates(engine, now);
        int64_t next = engine_next_ns(engine);
        bool timed = next != INT64_MAX;
        if (engine->setup.witness && engine->setup.witness->rests && !engine->world.requests.n_live)
            engine->setup.witness->rests(engine->setup.witness->ctx);
        if (engine->n_behind)
            wait = 5000000; /* the front does not say when it has caught up */
        if (timed && next - now < wait)
            wait = next > now ? next - now : 0;
        queue_wait(engine->inbox, engine->world.requests.n_live || timed ? wait : -1);
    }
}
