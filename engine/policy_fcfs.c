/* The native policy: first come, first served. It is the default, and it decides whenever another policy may not. */
#include "engine/policy.h"

#include <stdio.h>

/* When there is no group, the widest that can be; when none could hold the first request in the queue, the narrowest
 * that could. */
static void widen(const struct view *v, struct plan *p)
{
    const struct world *w = v->world;
    const struct request *r = world_head_of(w, v->side);
    struct switch_order o = {.when = WHEN_HARD, .fate = FATE_MIGRATE, .reason = "no group can hold the first request"};
    if (v->side != SIDE_ALL) /* the partition stays as it is */
        return;
    for (int i = 0; i < w->partition.n_groups; i++)
        if (!r ||
            kv_blocks_for(&w->kv, w->partition.groups[w->partition.order[i]].place, r->n_tokens) <= w->kv.n_blocks)
            return;
    bool none = w->partition.n_groups == 0;
    int best = none ? 0 : MAX_RANKS + 1;
    for (int i = 0; i < w->shape.n_sets; i++) {
        int n = __builtin_popcountll(w->shape.sets[i]);
        bool holds = !r || r->n_tokens <= (int64_t)w->kv.n_blocks * w->shape.tokens_per_block[n];
        if ((none ? n > best : n < best) && holds && !(w->shape.sets[i] & w->partition.dead_ranks) &&
            shape_runs(&w->shape, n)) {
            best = n;
            o.mask = w->shape.sets[i];
        }
    }
    o.base = (struct layout){best, 1, 1};
    if (w->residency.facts)
        residency_usual(w, best, 1, &o.weights);
    if (o.mask)
        plan_switch(p, &o);
}

/* Whom the policy in whose stead it decides has parked where no group is any more would wait until the time to be
 * parked is up: moves to a group that has room, or begins again. */
static void bring_home(const struct view *v, struct plan *p)
{
    const struct world *w = v->world;
    for (int i = 0; i < w->waiting.n && w->n_parked; i++) { /* a queue of none parked may be long */
        const struct request *r = w->waiting.items[i];
        if (!side_has(v->side, r->canary) || !world_strands(w, r) || r->n_moving)
            continue;
        bool moves = false;
        for (int k = 0; k < v->n_idle && !moves; k++)
            moves = plan_remap(p, r->id, v->idle[k], FATE_MIGRATE);
        if (!moves && v->n_idle)
            plan_preempt(p, r->id, PREEMPT_RECOMPUTE);
    }
}

static enum verdict step(void *ctx, const struct view *v, struct plan *p, struct err *e)
{
    (void)ctx;
    (void)e;
    widen(v, p);
    bring_home(v, p);
    for (int i = 0; i < v->n_idle; i++) {
        struct plan_batch *b = plan_batch(p, v->idle[i]);
        if (!b)
            continue;
        plan_decodes(b);
        plan_prefill(b, NULL, 0, v->world->limits.max_num_batched_tokens);
        if (b->n_tokens)
            plan_forward(b, group_usual_layout(v->world, b->group));
    }
    return VERDICT_OK;
}

void policy_fcfs(struct policy *out)
{
    static const struct policy_ops ops = {.step = step};
    *out = (struct policy){.ops = &ops};
    snprintf(out->name, sizeof out->name, "fcfs");
    snprintf(out->sha256, sizeof out->sha256, "native");
    snprintf(out->doc, sizeof out->doc, "First come, first served; decodes first, then prefill chunks.");
}

const char *verdict_name(enum verdict v)
{
    static const char *const names[] = {"ok",  "slow",      "heavy",   "error",   "timeout",
                                        "oom", "malformed", "stalled", "starved", "crashed"};
    return v < VERDICT_COUNT ? names[v] : "unknown";
}

const char *policy_hook_name(enum policy_hook h)
{
    static const char *const names[] = {"start", "admit", "step", "finish", "export", "import"};
    return h < HOOK_COUNT ? names[h] : "unknown";
}
