/* The native policy: first come, first served. It is the default, and it decides whenever another policy may not. */
#include "engine/policy.h"

#include <stdio.h>

static enum verdict step(void *ctx, const struct view *v, struct plan *p, struct err *e)
{
    (void)ctx;
    (void)e;
    for (int i = 0; i < v->n_idle; i++) {
        struct plan_batch *b = plan_batch(p, v->idle[i]);
        if (!b)
            continue;
        plan_decodes(b);
        plan_prefill(b, NULL, 0, v->world->limits.max_num_batched_tokens);
        if (b->n_tokens)
            plan_forward(b, (struct layout){.sp = 1, .tp = view_group(v, v->idle[i])->n_ranks, .pp = 1});
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
    static const char *const names[] = {"ok", "slow", "error", "timeout", "oom", "malformed", "stalled", "starved"};
    return v < VERDICT_COUNT ? names[v] : "unknown";
}

const char *policy_hook_name(enum policy_hook h)
{
    static const char *const names[] = {"start", "admit", "step", "finish", "export", "import"};
    return h < HOOK_COUNT ? names[h] : "unknown";
}
