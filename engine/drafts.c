/* The sources of draft tokens that the engine's world has, and the witness that hears what they say. */
#include "engine/engine_state.h"

void engine_open_drafts(struct engine *engine)
{
    const struct engine_setup *s = &engine->setup;
    const struct draft_sources *sources = s->drafts || !s->ops->computes ? s->drafts : draft_lookup();
    if (sources) {
        engine->drafts = *sources;
        engine->world.drafts = &engine->drafts;
    }
    engine->world.draft_trees =
        !witness_is_exact(s->witness) && (s->ops->kv_pack || !s->ops->computes); /* recordings know chains */
    if (s->witness)
        engine->world.draft_listener = (struct draft_listener){s->witness->guessed, s->witness->ctx};
}
