/* Steps ahead of their decisions. A step of decodes that is to be repeated, each sequence with the token that it has
 * just sampled, need not wait until the engine has seen those tokens: the next one is posted behind it while it runs,
 * so that the device goes from one to the other by itself. At most one step waits so, and only as long as nothing
 * happens that a policy would want to know: no arrival, ending, cancel, order, wake or switch since it decided. Then no
 * more follow, and it is asked when the last has ended. A sequence that ends in the first of two steps ends when the
 * second has been absorbed, in which it takes part for nothing. */
#include "engine/engine_state.h"

static bool nothing_happened(const struct engine *engine)
{
    return !engine->changed && !engine->stopping && !engine->world.partition.n_pending &&
           !(engine->live.wake_ns && engine->now_ns >= engine->live.wake_ns);
}

/* Blocks for the token that s samples, and for the one after it. */
static bool reserve(struct engine *engine, const struct step *s)
{
    for (int i = 0; i < s->n_items; i++) {
        struct request *r = request_find(&engine->world.requests, s->items[i].id);
        if (!world_reserve(&engine->world, r, r->n_computed + 2))
            return false; /* what others have got by now they will need anyway */
    }
    return true;
}

void engine_follow(struct engine *engine, struct step *s)
{
    struct group *grp = partition_find_slot(&engine->world.partition, s->group);
    struct step_context context = {
        .world = &engine->world, .group = grp, .comms = s->comms, .no_blocks = !engine->setup.ops->computes};
    if (s->ahead <= 0 || s->next || !engine->setup.threaded || witness_is_exact(engine->setup.witness) ||
        !nothing_happened(engine))
        return;
    if (!step_can_be_followed(s, &context) || !reserve(engine, s))
        return;
    engine_post(engine, step_follow(s, &context));
    metrics_add(&engine->metrics, C_STEPS_AHEAD, 1);
}
