/* The sources of draft tokens that the engine's world has, and the witness that hears what they say. */
#include "engine/engine_state.h"

const struct draft_sources *engine_open_drafts(struct engine *engine)
{
    const struct engine_setup *s = &engine->setup;
    const struct draft_sources *from = s->drafts || !s->ops->computes ? s->drafts : draft_lookup();
    if (!from)
        return NULL;
    engine->drafts = *from;
    if (s->witness && s->witness->guessed) {
        engine->drafts.told = s->witness->guessed;
        engine->drafts.told_ctx = s->witness->ctx;
    }
    return &engine->drafts;
}
