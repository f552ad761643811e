/* Pooling on demand, carried out: has the ranks make copies of FFN layers that shall lie everywhere, and give them up
 * again (engine/world/replica.h). Engine thread. */
#include "engine/base/check.h"
#include "engine/base/log.h"
#include "engine/engine_state.h"

static void tell_ranks(struct engine *engine, struct replica_task *t)
{
    const struct engine_play *play = engine->setup.play;
    for (int r = 0; r < engine->node.n_ranks && !play; r++)
        if (t->ranks >> r & 1)
            rank_post_replica(engine->node.ranks[r], t);
    if (engine->setup.threaded)
        return;
    if (play && !play->replica_ns) {
        timetable_hold(&engine->under_way, (struct timetable_entry){.replica = t});
        return;
    }
    if (play)
        t->ns = play->replica_ns(play->ctx, t);
    timetable_add_replica(&engine->under_way, t);
}

static void post(struct engine *engine, int layer)
{
    struct replica *x = &engine->world.replicas.layers[layer];
    struct replica_task *t = mem_new(sizeof *t);
    *t = (struct replica_task){.layer = layer,
                               .gives_up = x->state == REPLICA_GOING,
                               .ranks = x->ranks,
                               .n_blocks = engine->world.replicas.blocks,
                               .lent = x->lent,
                               .posted_ns = engine->now_ns,
                               .done = engine->setup.threaded ? engine->replica_done : NULL,
                               .ctx = engine};
    atomic_store(&t->left, __builtin_popcountll(t->ranks));
    x->posted = true;
    engine->replicas[layer] = t;
    engine->n_replicating++;
    tell_ranks(engine, t);
}

bool engine_post_replicas(struct engine *engine)
{
    bool did = false;
    for (int l = 0; engine->world.ffn && l < engine->ffn.n_layers; l++)
        if (world_replica_due(&engine->world, l)) {
            post(engine, l);
            did = true;
        }
    return did;
}

void engine_replica_done(struct engine *engine, struct replica_task *t)
{
    int rc = atomic_load(&t->rc), layer = t->layer;
    ASSERT(engine->replicas[layer] == t);
    if (engine->setup.witness && engine->setup.witness->replicated)
        engine->setup.witness->replicated(engine->setup.witness->ctx, engine->now_ns, t);
    metrics_add(&engine->metrics, C_LAYER_COPIES, !rc && !t->gives_up);
    if (rc && !engine->setup.quiet)
        log_warn("engine", "Layer %d could not be copied to every rank: %s; it stays pooled", layer,
                 rc == E_FULL ? "the system has no memory for it" : "the rank that holds it has failed");
    engine->replicas[layer] = NULL;
    engine->n_replicating--;
    mem_free(t);
    world_replica_done(&engine->world, layer, !rc);
    engine_note_change(engine);
}

void engine_drop_replicas(struct engine *engine)
{
    for (int l = 0; l < FFN_MAX_LAYERS; l++)
        mem_free(engine->replicas[l]);
}
