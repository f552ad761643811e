/* What the files of a plan share: plan.c (the transaction, verbs, apply), plan_batch.c (what goes into a step),
 * plan_ffn.c (the ways of pooled FFN layers) and plan_side.c (whose verbs are called). Included by these only. The
 * rules are those of plan.h. */
#ifndef WORLD_PLAN_INNER_H
#define WORLD_PLAN_INNER_H

#include "engine/world/plan.h"

bool plan_no(struct plan *p, const char *why); /* refuses: false, with the reason kept */
/* plan_side.c: the verbs are those of this side from now on. */
void plan_take_side(struct plan *p, enum side s);
/* Two policies decide: only an order for what is so already is no change. NULL: it may be given. */
const char *plan_side_refusal(const struct plan *p, const struct switch_order *o);
/* Is it of the other side (side.h)? Then refuses, and the reason is kept. */
bool plan_is_others(struct plan *p, const struct request *r);
bool plan_is_others_group(struct plan *p, const struct group *g);
/* True, with the reason kept: two policies decide, and this verb is about what both have. */
bool plan_is_shared(struct plan *p);
bool plan_touched(const struct plan *p, const struct request *r); /* has this plan used it? */
/* The request, if a verb may use it now; else NULL, with the reason kept. */
struct request *plan_usable(struct plan *p, req_id id);
/* Room for one more element in an arena array: the old copy stays behind, the arena dies with the step. */
void *plan_grown(struct plan *p, void *old, int n, int *cap, size_t size);
struct plan_verb *plan_add_verb(struct plan *p, enum plan_verb_kind kind, struct request *r);
int plan_available(const struct plan *p, int place);   /* what the plan may still take of a place's blocks */
void plan_take(struct plan *p, int place, int blocks); /* negative: they come back */
void plan_apply_ffn(struct world *w, const struct plan_verb *v);
void plan_apply_weights(struct world *w, const struct plan_verb *v);
bool plan_swap_out(struct plan *p, struct request *r); /* one that may be used, and is in no copy */
void plan_do_preempt(struct plan *p, struct request *r, enum preempt_how how);

#endif
