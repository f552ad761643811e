/* A policy for tests in which everybody who decodes drafts, by all sources that need no name, in one layout; prompts go
 * in pieces of 64 tokens. Native code. The layout is the caller's, as long as the policy lives. */
#ifndef RIG_DRAFTING_H
#define RIG_DRAFTING_H

#include "engine/policy.h"
#include "engine/world/draft.h"

static inline enum verdict drafting_step(void *ctx, const struct view *v, struct plan *p, struct err *e)
{
    const struct layout *l = ctx;
    struct plan_batch *b = v->n_idle ? plan_batch(p, v->idle[0]) : NULL;
    struct draft_guess g;
    (void)e;
    if (!b)
        return VERDICT_OK;
    plan_decodes(b);
    for (int i = 0; i < b->n_items; i++)
        plan_draft(p, b->items[i].request->id, &(struct draft_wish){8, -1, false, 0}, &g);
    plan_prefill(b, NULL, 0, 64);
    if (b->n_tokens)
        plan_forward(b, *l);
    return VERDICT_OK;
}

static inline struct policy drafting_policy(struct layout *l)
{
    static const struct policy_ops ops = {.step = drafting_step};
    return (struct policy){.ops = &ops, .ctx = l, .name = "drafting", .sha256 = "drafting"};
}

#endif
