/* The sources of draft tokens that the engine's world has, and the witness that hears what they say. */
#include "engine/base/check.h"
#include "engine/engine_state.h"
#include "engine/exec/form.h"
#include "engine/exec/guided.h"

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
    if (engine->world.guides && engine->world.drafts) {
        ASSERT(engine->drafts.n < MOST_SOURCES);
        form_source(engine->world.guides, &engine->drafts.items[engine->drafts.n++]);
    }
    if (engine->world.guides)
        engine->world.draft_filter = (struct draft_filter){guided_cut, engine->world.guides};
    if (s->witness)
        engine->world.draft_listener = (struct draft_listener){s->witness->guessed, s->witness->ctx};
}
