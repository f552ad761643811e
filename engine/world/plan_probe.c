/* Early stopping in a plan: who is asked what it would answer, and who stops thinking. */
#include "engine/world/plan_inner.h"

bool plan_probe(struct plan *p, req_id id)
{
    struct request *r = request_find(&p->world->requests, id);
    p->reason = probe_refusal(p->world, r);
    if (p->reason || plan_is_others(p, r))
        return false;
    for (int i = 0; i < p->n_verbs; i++)
        if (p->verbs[i].request == r && p->verbs[i].kind == PLAN_PROBE)
            return plan_no(p, "this plan probes the request already");
    plan_add_verb(p, PLAN_PROBE, NULL)->request = r; /* which goes on as if nothing were */
    return true;
}

bool plan_conclude(struct plan *p, req_id id)
{
    p->reason = conclude_refusal(p->world, request_find(&p->world->requests, id));
    struct request *r = p->reason ? NULL : plan_usable(p, id);
    if (!r)
        return false;
    plan_add_verb(p, PLAN_CONCLUDE, r);
    return true;
}
