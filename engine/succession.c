/* Who decides next: a swap, a rollback, a withdrawal, the end of a probation. All go through begin(), so that whichever
 * way a policy ceases to be live, the same becomes of what it has set going (docs/policies-reference.md, "What a policy
 * leaves behind"). */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/base/seen.h"
#include "engine/live_inner.h"

static int import_old(struct live *l, struct policy *p, struct err *e)
{
    if (!l->active.ops->export_state || !p->ops->import_state)
        return 0;
    struct buf state = {0};
    struct err why = {0};
    int rc = 0;
    enum verdict v;
    if (!live_cut(l, HOOK_EXPORT, &v))
        v = live_heard(l, HOOK_EXPORT, l->active.ops->export_state(l->active.ctx, &state, &why));
    l->calls[HOOK_EXPORT]++;
    l->verdicts[HOOK_EXPORT][v]++;
    if (!verdict_stands(v)) { /* the old one is on its way out: its failure costs its state, not the swap */
        live_note_error(l, "export", v, &why);
    } else if (state.len) {
        if (!live_cut(l, HOOK_IMPORT, &v))
            v = live_heard(l, HOOK_IMPORT, p->ops->import_state(p->ctx, state.data, state.len, e));
        l->calls[HOOK_IMPORT]++;
        l->verdicts[HOOK_IMPORT][v]++;
        if (!verdict_stands(v))
            rc = err_prefix(e, E_POLICY, "import: %s", verdict_name(v));
    }
    buf_free(&state);
    return rc;
}

int live_call_start(struct live *l, const struct policy *p, struct world *w, int64_t now_ns, struct err *e)
{
    if (!p->ops->start)
        return 0;
    struct view view;
    struct plan *plan = seen_new(sizeof *plan);
    view_init_of(&view, w, live_side(l, w), now_ns);
    plan_init(plan, w);
    plan->serial = UINT64_MAX / 2 + l->next_generation; /* never that of a step's plan */
    plan_begin(plan, now_ns);                           /* a canary's part is behind that */
    if (l->canary)
        plan_begin_canary(plan);
    enum verdict v;
    if (!live_cut(l, HOOK_START, &v))
        v = live_heard(l, HOOK_START, p->ops->start(p->ctx, &l->node, &view, plan, e));
    l->calls[HOOK_START]++;
    l->verdicts[HOOK_START][v]++;
    if (verdict_stands(v))
        plan_apply(plan);
    plan_free(plan);
    mem_free(plan);
    if (!verdict_stands(v) && e && e->code == E_INPUT)
        return E_INPUT; /* what it was asked for cannot be on this node: these are its own words */
    if (v == VERDICT_CRASHED)
        return E_GONE;
    return verdict_stands(v) ? 0 : err_prefix(e, E_POLICY, "start: %s", verdict_name(v));
}

/* Its process may have ended while it was not live, or be killed right now, with others: another one takes its place,
 * a few times. */
static int start_anew(struct live *l, const struct policy *p, struct world *w, int64_t now_ns, struct err *e)
{
    enum { TRIES = 3 };
    int rc = live_call_start(l, p, w, now_ns, e);
    for (int i = 0; i < TRIES && rc == E_GONE; i++) {
        rc = p->ops->renew ? p->ops->renew(p->ctx, e) : E_POLICY;
        rc = rc ? rc : live_call_start(l, p, w, now_ns, e);
    }
    return rc == E_GONE ? err_prefix(e, E_POLICY, "start: %s", verdict_name(VERDICT_CRASHED)) : rc;
}

/* Every FFN layer is pooled, and every group fetches, as at the start. */
static void fetch_all(struct world *w)
{
    world_pool(w, 0, w->ffn ? w->ffn->n_layers : 0);
    w->ffn_usual = (struct ffn_modes){0};
    for (int i = 0; i < w->partition.n_groups; i++)
        partition_slot(&w->partition, i)->ffn = w->ffn_usual;
}

/* p takes the place of the active policy: what that one left behind ends, and p's start is called. When it fails, all
 * is as it was. */
static int begin(struct live *l, const struct policy *p, struct world *w, int64_t now_ns, struct err *e)
{
    struct partition *before = NULL; /* 75 KiB: kept only where there is something to put back */
    if (w->ffn || !partition_is_free(&w->partition)) {
        before = mem_new(sizeof *before);
        *before = w->partition;
    }
    struct ffn_modes usual = w->ffn_usual;
    enum draft_evict evict = w->evict;
    struct embed_rule embed = w->embed_rule;
    uint64_t wanted[sizeof w->replicas.wanted / sizeof w->replicas.wanted[0]];
    memcpy(wanted, w->replicas.wanted, sizeof wanted);
    fetch_all(w);
    world_evict_drafts(w, EVICT_OLDEST);
    w->embed_rule = (struct embed_rule){0};
    partition_let_go(w, now_ns);
    int rc = start_anew(l, p, w, now_ns, e);
    if (rc) {
        if (before)
            w->partition = *before;
        w->ffn_usual = usual;
        world_evict_drafts(w, evict);
        w->embed_rule = embed;
        memcpy(w->replicas.wanted, wanted, sizeof wanted);
    }
    mem_free(before);
    return rc;
}

/* The active policy knows nothing of what was: a clean slate: no request is held, every request gets a new key, and no
 * wake is set. */
static void clean_slate(struct live *l, struct world *w, int64_t now_ns)
{
    int64_t next;
    world_let_go(w, now_ns, true, &next);
    world_leave_behind(w);
    l->n_barren = 0;
    l->barren_since_ns = 0;
    l->wake_ns = 0;
    l->starve.late.id = l->starve.passed.id = 0; /* whom the one before was passing over */
    live_rekey(l, w, now_ns);
}

/* It is another one than before. */
static void count_from_now(struct live *l, struct world *w, int64_t now_ns)
{
    l->active.generation = ++l->next_generation;
    l->fallen = l->crashed = l->may_return = false;
    l->n_strikes = 0;
    l->slow.n = l->heavy.n = 0;
    memset(l->strike_steps, 0, sizeof l->strike_steps);
    l->last_swap_ns = now_ns;
    clean_slate(l, w, now_ns);
}

/* The process of the active policy has crashed, and it may go on: it takes over from itself. */
static void revive(struct live *l, struct world *w, int64_t now_ns)
{
    struct err e = {0};
    l->crashed = false;
    int rc = l->active.ops->renew ? l->active.ops->renew(l->active.ctx, &e) : err_set(&e, E_POLICY, "it has no other");
    if (!rc)
        rc = begin(l, &l->active, w, now_ns, &e);
    if (rc) {
        live_note_error(l, "start", VERDICT_CRASHED, &e);
        live_withdraw(l, "its process has crashed, and no other could take its place");
        return;
    }
    if (!l->quiet)
        log_warn("policy", "%s (%.12s) goes on in a fresh process", l->active.name, l->active.sha256);
    clean_slate(l, w, now_ns);
}

void live_refused(struct live *l, const char *why)
{
    l->n_refused_swaps++;
    snprintf(l->last_error, sizeof l->last_error, "%s", why);
}

/* To write a log line takes long: that is no part of a swap. */
static void say_live(struct live *l)
{
    if (l->unsaid && !l->quiet)
        log_info("policy", "%s (%.12s) is live, generation %" PRIu64 "; before: %s (%.12s)", l->active.name,
                 l->active.sha256, l->active.generation, l->previous.name, l->previous.sha256);
    l->unsaid = false;
}

void live_tend(struct live *l)
{
    say_live(l);
    probation_tend(&l->probation);
}

/* p takes over from the active policy, which becomes the previous one. */
static int replace(struct live *l, struct policy *p, struct world *w, int64_t now_ns, struct err *e)
{
    say_live(l);
    int rc = import_old(l, p, e);
    if (!rc)
        rc = begin(l, p, w, now_ns, e);
    if (rc) {
        l->n_refused_swaps++;
        snprintf(l->last_error, sizeof l->last_error, "swap to %s: %s", p->name, e ? e->text : "refused");
        if (!l->quiet)
            log_warn("policy", "%s (%.12s) is refused: %s; %s goes on", p->name, p->sha256, e ? e->text : "?",
                     l->active.name);
        retired_give(l->retired, p);
        return rc;
    }
    char why[NAME_BYTES + 40];
    snprintf(why, sizeof why, "%s has taken its place", p->name);
    probation_end(&l->probation, PROBATION_REPLACED, &l->active, why, now_ns);
    retired_give(l->retired, &l->previous);
    l->previous = l->active;
    l->has_previous = true;
    l->active = *p;
    memset(p, 0, sizeof *p);
    count_from_now(l, w, now_ns);
    l->unsaid = true;
    return 0;
}

/* An operator has said which policy is to be live: no other is tried again. */
static void forget_rest(struct live *l)
{
    retired_give(l->retired, &l->rest.policy);
    l->rest.n_tries = 0;
}

int live_swap(struct live *l, struct policy *p, struct world *w, int64_t now_ns, struct err *e)
{
    struct prediction predicted = p->predicted;
    live_settle(l, w, now_ns);
    TRY(replace(l, p, w, now_ns, e));
    l->n_swaps++;
    forget_rest(l);
    probation_begin(&l->probation, w, &predicted, now_ns);
    return 0;
}

/* The policy of before takes over from the active one, which is the caller's from now on; the native one does where
 * that cannot start. */
static int go_back(struct live *l, struct world *w, int64_t now_ns, struct err *e)
{
    struct policy before = l->has_previous ? l->previous : l->native;
    say_live(l);
    int rc = begin(l, &before, w, now_ns, e);
    if (rc) {
        err_prefix(e, rc, "%s cannot begin again, so the engine's own policy decides", before.name);
        snprintf(l->last_error, sizeof l->last_error, "%s", e->text);
        if (!l->quiet)
            log_error("policy", "%s", e->text);
        retired_give(l->retired, &before);
        before = l->native;
        begin(l, &before, w, now_ns, NULL); /* it has no start that could fail */
    }
    l->active = before;
    l->has_previous = false;
    memset(&l->previous, 0, sizeof l->previous);
    return rc;
}

/* bad has been withdrawn. For slowness alone it rests, three times as long each time, and is tried again; one that was
 * good for long starts from zero. note: what becomes of it. */
static void put_away(struct live *l, struct policy *bad, bool unproven, int64_t now_ns, char note[80])
{
    int64_t served_ns = now_ns - l->last_swap_ns;
    static const int64_t FIRST_REST_NS = 10000000000, LONG_NS = 600000000000;
    struct live_rest *r = &l->rest;
    int64_t rest_ns = FIRST_REST_NS;
    r->n_tries = served_ns > LONG_NS ? 0 : r->n_tries;
    if (!l->may_return || r->n_tries >= LIVE_TRIES) {
        snprintf(note, 80, l->may_return ? "for good, after %d more tries" : "for good", r->n_tries);
        retired_give(l->retired, bad);
        return;
    }
    if (r->policy.ops) { /* another one rests, whose successor this was: only one can */
        retired_give(l->retired, &r->policy);
        r->n_tries = 0;
    }
    for (int i = 0; i < r->n_tries; i++)
        rest_ns *= 3;
    snprintf(note, 80, "to be tried again in %.0f s, number %d of %d", (double)rest_ns * 1e-9, r->n_tries + 1,
             LIVE_TRIES);
    r->policy = *bad;
    r->unproven = unproven;
    r->until_ns = now_ns + rest_ns;
}

static void note_change(struct live *l, enum live_change_kind kind, const struct policy *from, const char *why)
{
    l->change = (struct live_change){.kind = kind, .rests = l->may_return};
    snprintf(l->change.name, sizeof l->change.name, "%s", from->name);
    snprintf(l->change.sha256, sizeof l->change.sha256, "%s", from->sha256);
    snprintf(l->change.why, sizeof l->change.why, "%s", why);
}

bool live_settle(struct live *l, struct world *w, int64_t now_ns)
{
    struct err e = {0};
    char name[NAME_BYTES], sha256[65], note[80];
    bool revived = false;
    for (; l->crashed && !l->fallen; revived = true) /* each crash is a strike: not for ever */
        revive(l, w, now_ns);
    if (!l->fallen)
        return revived;
    struct policy bad = l->active;
    bool unproven = l->probation.on;
    probation_end(&l->probation, PROBATION_WITHDRAWN, &bad, l->why_fallen, now_ns);
    memcpy(name, bad.name, sizeof name);
    memcpy(sha256, bad.sha256, sizeof sha256);
    note_change(l, CHANGE_WITHDRAWN, &bad, l->why_fallen);
    go_back(l, w, now_ns, &e);
    l->n_reverts++;
    put_away(l, &bad, unproven, now_ns, note);
    size_t n = strlen(l->last_error);
    snprintf(l->last_error + n, sizeof l->last_error - n, "; %s is withdrawn: %s; %s", name, l->why_fallen, note);
    if (!l->quiet)
        log_error("policy", "%s (%.12s) is withdrawn: %s; %s; %s (%.12s) decides from now on", name, sha256,
                  l->why_fallen, note, l->active.name, l->active.sha256);
    count_from_now(l, w, now_ns);
    return true;
}

bool live_retry(struct live *l, struct world *w, int64_t now_ns)
{
    struct live_rest *r = &l->rest;
    struct err e = {0};
    if (!r->policy.ops || now_ns < r->until_ns)
        return false;
    struct policy again = r->policy;
    memset(&r->policy, 0, sizeof r->policy);
    r->n_tries++;
    l->n_retries++;
    if (!l->quiet)
        log_info("policy", "%s (%.12s) is tried again, number %d of %d", again.name, again.sha256, r->n_tries,
                 LIVE_TRIES);
    struct policy before = l->active;
    if (replace(l, &again, w, now_ns, &e))
        return true;
    if (r->unproven)
        probation_begin(&l->probation, w, NULL, now_ns);
    note_change(l, CHANGE_RETRIED, &before, "it has rested");
    return true;
}

/* It is bad for those whom it serves, in ways that no single call of it shows. */
static void send_back(struct live *l, const char *reason, struct world *w, int64_t now_ns)
{
    struct err e = {0};
    struct policy bad = l->active;
    probation_end(&l->probation, PROBATION_ROLLED_BACK, &bad, reason, now_ns);
    go_back(l, w, now_ns, &e);
    note_change(l, CHANGE_SENT_BACK, &bad, reason);
    l->change.rests = false;
    l->n_rollbacks++;
    snprintf(l->last_error, sizeof l->last_error, "%s is rolled back: %.400s", bad.name, reason);
    if (!l->quiet)
        log_error("policy", "%s (%.12s) is rolled back: %s; %s (%.12s) decides from now on", bad.name, bad.sha256,
                  reason, l->active.name, l->active.sha256);
    retired_give(l->retired, &bad);
    count_from_now(l, w, now_ns);
}

bool live_watch(struct live *l, struct world *w, int64_t now_ns, bool *changed)
{
    char reason[PROBATION_REASON_BYTES];
    bool judged;
    enum probation_outcome o = probation_judge(&l->probation, w, now_ns, &judged, reason);
    if (o == PROBATION_ROLLED_BACK) {
        send_back(l, reason, w, now_ns);
        *changed = true;
    } else if (o == PROBATION_COMMITTED) {
        probation_end(&l->probation, o, &l->active, reason, now_ns);
        note_change(l, CHANGE_KEPT, &l->active, reason);
        if (!l->quiet)
            log_info("policy", "%s (%.12s) is %s", l->active.name, l->active.sha256, reason);
    }
    return judged;
}

int live_rollback(struct live *l, struct world *w, int64_t now_ns, struct err *e)
{
    live_settle(l, w, now_ns);
    if (!l->has_previous)
        return err_set(e, E_NOTFOUND, "there is no previous policy to go back to");
    struct policy from = l->active;
    probation_end(&l->probation, PROBATION_RECALLED, &from, "an operator has rolled it back", now_ns);
    int rc = go_back(l, w, now_ns, e);
    l->previous = from;
    l->has_previous = true;
    l->n_rollbacks++;
    forget_rest(l);
    count_from_now(l, w, now_ns);
    if (!l->quiet && !rc)
        log_info("policy", "rolled back to %s (%.12s), generation %" PRIu64, l->active.name, l->active.sha256,
                 l->active.generation);
    return rc;
}

/* Nobody has looked at most of them since the last step, or for long: all come into the caches at once, not one after
 * the other as they are asked for. */
static void fetch(struct request *const *all, int n)
{
    for (int i = 0; i < n; i++) {
        __builtin_prefetch(all[i]);
        __builtin_prefetch(&all[i]->key);
        __builtin_prefetch(&all[i]->held_until_ns);
        __builtin_prefetch(&all[i]->n_preempted);
    }
    for (int i = 0; i < n; i++) {
        __builtin_prefetch(all[i]->spec->name);
        __builtin_prefetch(all[i]->spec->tenant);
        __builtin_prefetch(&all[i]->spec->priority);
        __builtin_prefetch(&all[i]->spec->max_tokens);
    }
}

void live_rekey(struct live *l, struct world *w, int64_t now_ns)
{
    struct view v;
    view_init_of(&v, w, live_side(l, w), now_ns);
    struct req_queue *queues[] = {&w->waiting, &w->running};
    for (int q = 0; q < 2; q++) {
        int n = queues[q]->n;
        if (!n)
            continue;
        struct request **all = mem_new_array((size_t)n, sizeof *all); /* rekeying moves them in the queue */
        memcpy(all, queues[q]->items, (size_t)n * sizeof *all);
        fetch(all, n);
        for (int i = 0; i < n; i++) {
            struct admission a = {.key = (double)all[i]->spec->arrival_ns * 1e-9};
            if (all[i]->parent || !side_has(v.side, all[i]->canary))
                continue; /* no policy admits a probe, nor another's request */
            live_admit(l, all[i], &v, &a);
            v.kept = !a.hold_until_ns;
            admission_obey(&a, w, all[i], now_ns); /* who is in already stays in: a refusal here has no meaning */
        }
        mem_free(all);
    }
}
