/* The rule of an encoder beside the model (engine/world/embed.h), as a plan orders it. */
#include "engine/world/plan_inner.h"

bool plan_embed(struct plan *p, struct embed_rule r)
{
    const struct embed_link *l = p->world->embed;
    if (p->side == SIDE_CANARY)
        return plan_no(p, "the encoder is the live policy's to decide");
    if (!l)
        return plan_no(p, "no encoder is served beside this model, or the server records");
    if (r.replicas > l->n_replicas)
        return plan_no(p, "the encoder has not so many replicas");
    if (r.way == EMBED_BY_LENGTH && r.n_short >= (r.replicas ? r.replicas : l->n_replicas))
        return plan_no(p, "texts that are not short need a replica, too: short_replicas must be fewer than may run");
    plan_add_verb(p, PLAN_EMBED, NULL)->embed = r;
    return true;
}
