/* Probes in the engine: they come by a plan, and end by themselves, with their parent, or when there is no use in them.
 * See world/probe.h. */
#include "engine/base/check.h"
#include "engine/engine_state.h"

/* Told and counted as if the model had said them; no step computes them before the next one. */
static void conclude(struct engine *engine, struct request *r)
{
    const struct thinking *t = engine->world.thinking;
    engine_look_at_outbox(engine);
    r->probes->closed = true;
    for (int i = 0; i < t->n_suffix; i++) {
        request_append(r, t->suffix[i]);
        r->ends_with_stop = false;
        engine_tell_token(engine, r, false, NULL);
    }
    metrics_add(&engine->metrics, C_GENERATION_TOKENS, (uint64_t)t->n_suffix);
    metrics_add(&engine->metrics, C_EARLY_STOPS, 1);
}

void engine_think(struct engine *engine, const struct plan_verb *v)
{
    struct request *r = v->request;
    engine->changed = true;
    if (v->kind == PLAN_CONCLUDE) {
        conclude(engine, r);
    } else if (!probe_refusal(&engine->world, r)) { /* it may have given way to another by this plan */
        engine->probes_by = engine->live.active.generation;
        world_probe(&engine->world, r, engine->now_ns);
    }
}

static void end(struct engine *engine, struct request *probe)
{
    probe->finishing = probe->busy;
    probe->finish_as = END_ABORT;
    if (!probe->busy)
        engine_end_request(engine, probe, &(struct request_end){.how = END_ABORT, .retry_after_s = -1});
}

void engine_tend_probes(struct engine *engine)
{
    struct world *w = &engine->world;
    const struct req_queue *queues[] = {&w->waiting, &w->running};
    bool all = engine->probes_by != engine->live.active.generation || engine->live.fallen;
    for (int q = 0; q < 2; q++)
        for (int i = queues[q]->n - 1; i >= 0 && w->n_probes_waiting + w->n_probes_running; i--) {
            struct request *r = queues[q]->items[i];
            if (r->parent && !r->finishing && (all || probe_is_over(w, r)))
                end(engine, r);
        }
}

enum ending engine_take_probe_token(struct engine *engine, struct request *probe, int32_t token)
{
    const struct thinking *t = engine->world.thinking;
    struct buf text = {0};
    request_append(probe, token);
    metrics_add(&engine->metrics, C_PROBE_TOKENS, 1);
    if (engine_is_stop_id(probe, token))
        return END_STOP;
    t->piece(t->ctx, token, &text);
    probe_say(t, probe->said, text.data, text.len);
    buf_free(&text);
    return request_output(probe) >= probe->spec->max_tokens ? END_LENGTH : END_NONE;
}
