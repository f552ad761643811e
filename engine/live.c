#include "engine/live_inner.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"

static const int64_t MAX_IDLE_WAIT_NS =
    5000000000; /* how long a policy may only set wakes while there is something it could run */

bool live_cut(const struct live *l, enum policy_hook h, enum verdict *v)
{
    const struct witness *w = l->witness;
    return w && w->cut && w->cut(w->ctx, h, v);
}

enum verdict live_heard(const struct live *l, enum policy_hook h, enum verdict v)
{
    if (l->witness && l->witness->judged)
        l->witness->judged(l->witness->ctx, h, &v);
    return v;
}

void live_init(struct live *l, const struct node_facts *node, bool quiet)
{
    memset(l, 0, sizeof *l);
    policy_fcfs(&l->native);
    l->active = l->native;
    l->active.generation = l->next_generation = 1;
    l->node = *node;
    l->quiet = quiet;
}

void live_free(struct live *l)
{
    retired_give(l->retired, &l->active);
    retired_give(l->retired, &l->previous);
    retired_give(l->retired, &l->rest.policy);
}

struct verdict_counts live_verdicts(const struct live *l)
{
    struct verdict_counts n = {0};
    for (int h = 0; h < HOOK_COUNT; h++)
        for (int v = 0; v < VERDICT_COUNT; v++) {
            n.failed += verdict_stands((enum verdict)v) ? 0 : l->verdicts[h][v];
            n.slow += v == VERDICT_SLOW || v == VERDICT_HEAVY ? l->verdicts[h][v] : 0;
        }
    return n;
}

void live_note_error(struct live *l, const char *what, enum verdict v, const struct err *e)
{
    snprintf(l->last_error, sizeof l->last_error, "%s: %s: %s", what, verdict_name(v), e->text);
    if (!l->quiet)
        log_warn("policy", "%s (%.12s) %s: %s: %s", l->active.name, l->active.sha256, what, verdict_name(v), e->text);
}

/* The active policy may not go on: none of its functions is called any more, and live_settle puts another in its place.
 * The native one always may: where it can run nothing, no policy can. */
void live_withdraw(struct live *l, const char *why)
{
    if (l->active.ops == l->native.ops)
        return;
    if (!l->fallen)
        snprintf(l->why_fallen, sizeof l->why_fallen, "%s", why);
    l->may_return = false;
    l->fallen = true;
}

/* Calls that stand and cost too much: the first is told, and many within a window are a reason to withdraw the policy.
 * Returns whether they are. */
static bool strike_costly(struct live *l, enum policy_hook hook, enum verdict v, const struct err *e, uint64_t step)
{
    uint64_t *from = v == VERDICT_HEAVY ? &l->heavy.from : &l->slow.from,
             *n = v == VERDICT_HEAVY ? &l->heavy.n : &l->slow.n;
    if (!*n || step - *from > LIVE_WINDOW) {
        *from = step;
        *n = 0;
        live_note_error(l, policy_hook_name(hook), v, e);
    }
    return ++*n >= LIVE_COSTLY_STRIKES;
}

static void strike(struct live *l, uint64_t step)
{
    int i = l->n_strikes++ % LIVE_STRIKES;
    uint64_t oldest = l->strike_steps[i];
    l->strike_steps[i] = step;
    if (l->n_strikes > LIVE_STRIKES && step - oldest <= LIVE_WINDOW)
        live_withdraw(l, "too many strikes");
}

/* Counts a call's verdict and draws the consequences. Returns whether the call stands. */
static bool judge(struct live *l, enum policy_hook hook, enum verdict v, const struct err *e, uint64_t step)
{
    l->calls[hook]++;
    l->verdicts[hook][v]++;
    if (v == VERDICT_OK)
        return true;
    if (verdict_stands(v)) {
        if (strike_costly(l, hook, v, e, step)) {
            live_note_error(l, policy_hook_name(hook), v, e);
            live_withdraw(l, v == VERDICT_HEAVY ? "too many calls that execute more than a policy may"
                                                : "too many calls that take more time than they are worth");
            l->may_return = v == VERDICT_SLOW;
        }
        return true;
    }
    live_note_error(l, policy_hook_name(hook), v, e);
    l->crashed |= v == VERDICT_CRASHED;
    if (verdict_torn(v))
        live_withdraw(l, "its call was cut off, so its state may be half changed");
    else
        strike(l, step);
    return false;
}

/* ---- calls */

void live_admit(struct live *l, const struct request *r, const struct view *v, struct admission *a)
{
    const struct admission fallback = *a;
    l->n_decisions[0]++;
    if (l->fallen || l->crashed || !l->active.ops->admit)
        return;
    struct err e = {0};
    enum verdict verdict;
    if (!live_cut(l, HOOK_ADMIT, &verdict))
        verdict = live_heard(l, HOOK_ADMIT, l->active.ops->admit(l->active.ctx, r, v, a, &e));
    if (verdict_stands(verdict) && !a->refused && !isfinite(a->key)) {
        verdict = VERDICT_MALFORMED;
        err_set(&e, E_POLICY, "admit returned a key that is not a finite number");
    }
    if (!judge(l, HOOK_ADMIT, verdict, &e, v->world->step))
        *a = fallback;
    l->n_decisions[4] += a->hold_until_ns != 0;
}

/* Is there anything that a plan could run now? Parked requests whose placement no group has, those whose KV is on its
 * way, and those that it holds have to wait in any case. */
static bool could_run(const struct plan *p)
{
    const struct world *w = p->world;
    for (int i = 0; i < w->running.n; i++)
        if (!w->running.items[i]->busy && side_has(p->side, w->running.items[i]->canary))
            return true;
    for (int i = 0; i < w->waiting.n; i++) {
        const struct request *r = w->waiting.items[i];
        if (side_has(p->side, r->canary) && !world_strands(w, r) && !r->n_moving && world_eligible(w, r) &&
            !plan_deals_with(p, r))
            return true;
    }
    return false;
}

/* Is a group in a step, or kept out of one by an order that only waits for steps and copies to end, or is KV being
 * copied whose end leaves room? Then something will happen by itself. */
static bool is_under_way(const struct view *v)
{
    const struct partition *t = &v->world->partition;
    int n = 0;
    for (int i = 0; i < t->n_groups; i++)
        n += side_has(v->side, partition_group(t, i)->canary);
    for (int i = 0; i < v->world->waiting.n && v->world->n_parked; i++)
        if (v->world->waiting.items[i]->n_moving)
            return true;
    return v->n_idle < n;
}

/* Does the plan change what can run next? */
static bool opens_more(const struct plan *p)
{
    for (int i = p->mark.n_verbs; i < p->n_verbs; i++)
        if (plan_opens_more(&p->verbs[i]))
            return true;
    return false;
}

/* Or lets one stop thinking: both are something done. */
static bool refuses_any(const struct plan *p)
{
    for (int i = p->mark.n_verbs; i < p->n_verbs; i++)
        if (p->verbs[i].kind == PLAN_REFUSE || p->verbs[i].kind == PLAN_CONCLUDE)
            return true;
    return false;
}

static void note_progress(struct live *l)
{
    l->n_barren = 0;
    l->barren_since_ns = 0;
}

/* Work could run, and the plan neither runs any nor says when it will: for so long at most may it wait for its wake, or
 * for an order that drains. */
static bool is_stalled(struct live *l, const struct view *v, struct plan *p, struct err *e)
{
    bool changes = opens_more(p), quiet = plan_is_empty(p) && !refuses_any(p);
    if (!quiet || !could_run(p)) {
        note_progress(l);
        return false;
    }
    bool drains = v->world->partition.n_pending > 0;
    l->barren_since_ns = l->barren_since_ns ? l->barren_since_ns : v->now_ns;
    if (changes && ++l->n_barren <= LIVE_MAX_BARREN)
        return false; /* what can run next may be another thing: it is asked again at once, but not for ever */
    if (is_under_way(v))
        return false;
    int64_t until = l->barren_since_ns + MAX_IDLE_WAIT_NS;
    if ((p->wake_ns || (drains && !changes)) && v->now_ns < until) {
        p->wake_ns = p->wake_ns && p->wake_ns < until ? p->wake_ns : until;
        return false;
    }
    err_set(e, E_POLICY, "%d requests wait and %d run, every group is idle, and the plan runs nothing%s",
            side_waiting(v->world, v->side), side_running(v->world, v->side),
            changes      ? " (it changes the partition time and again)"
            : drains     ? " (an order waits for requests to end, and none of them runs)"
            : p->wake_ns ? " (it has only asked to be woken for 5 s)"
                         : " and asks for no wake");
    return true;
}

/* Of a canary only its own part begins again. */
static void begin_part(const struct live *l, struct plan *p, int64_t now_ns)
{
    if (l->canary)
        plan_begin_canary(p);
    else
        plan_begin(p, now_ns);
}

enum side live_side(const struct live *l, const struct world *w)
{
    return l->canary ? SIDE_CANARY : world_live_side(w);
}

static void plan_natively(struct live *l, struct plan *p, int64_t now_ns)
{
    struct view v;
    struct err e;
    view_init_of(&v, p->world, live_side(l, p->world), now_ns);
    begin_part(l, p, now_ns);
    l->native.ops->step(l->native.ctx, &v, p, &e);
}

/* What the policy has set going ends. While two decide that is what it has closed: nothing else can be. */
static void let_go(struct world *w, const struct view *v)
{
    if (v->side == SIDE_ALL)
        partition_let_go(w, v->now_ns);
    else
        side_open_groups(w, v->side);
}

/* The native policy decides this step. What the live one has closed and ordered binds it, too, but not where that is
 * why a request was left to starve, or where nothing could run by it although something could: then it ends. */
static void decide_native(struct live *l, const struct view *v, struct plan *p, enum verdict cause)
{
    l->fallbacks[cause]++;
    if (cause == VERDICT_STARVED)
        let_go(p->world, v);
    plan_natively(l, p, v->now_ns);
    if (!plan_is_empty(p) || p->n_verbs > p->mark.n_verbs || is_under_way(v) || !could_run(p))
        return;
    let_go(p->world, v);
    plan_natively(l, p, v->now_ns);
}

/* Whom it has let starve once it may not let starve again: the native policy would have to run it step by step. */
static void note_starved(struct live *l, struct request *r)
{
    uint64_t policy = l->active.generation;
    if (r->starved_by == policy)
        live_withdraw(l, "it has let the same request starve twice");
    r->starved_by = policy;
}

void live_step(struct live *l, const struct view *v, struct plan *p)
{
    struct err e = {0};
    begin_part(l, p, v->now_ns);
    enum verdict verdict;
    struct request *starved = NULL;
    if (!live_cut(l, HOOK_STEP, &verdict))
        verdict = live_heard(l, HOOK_STEP, l->active.ops->step(l->active.ctx, v, p, &e));
    if (verdict_stands(verdict) && is_stalled(l, v, p, &e))
        verdict = VERDICT_STALLED;
    else if (verdict_stands(verdict) && (starved = starve_find(&l->starve, p, &e)))
        verdict = VERDICT_STARVED;
    l->last_verdict = verdict;
    l->last_native = l->active.ops == l->native.ops || !verdict_stands(verdict);
    if (!judge(l, HOOK_STEP, verdict, &e, v->world->step))
        decide_native(l, v, p, verdict);
    if (starved)
        note_starved(l, starved);
    for (int i = p->mark.n_verbs; i < p->n_verbs; i++) {
        l->n_decisions[1] += p->verbs[i].kind == PLAN_PREEMPT;
        l->n_decisions[2] += p->verbs[i].kind == PLAN_REFUSE;
        l->n_decisions[4] += p->verbs[i].kind == PLAN_HOLD && p->verbs[i].until_ns;
    }
    l->n_decisions[3] += !plan_is_empty(p);
}

void live_finish(struct live *l, const struct request *r, enum ending how, const struct view *v)
{
    struct err e = {0};
    enum verdict verdict;
    if (l->fallen || l->crashed || !l->active.ops->finish)
        return;
    if (!live_cut(l, HOOK_FINISH, &verdict))
        verdict = live_heard(l, HOOK_FINISH, l->active.ops->finish(l->active.ctx, r, how, v, &e));
    judge(l, HOOK_FINISH, verdict, &e, v->world->step);
}

void live_idle(struct live *l)
{
    if (!l->fallen && !l->crashed && l->active.ops->idle)
        l->active.ops->idle(l->active.ctx);
}
