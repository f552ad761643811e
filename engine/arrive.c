/* How a request comes in: it is taken into the queue, or turned away. */
#include <string.h>

#include "engine/engine_state.h"
#include "engine/exec/guided.h"
#include "models/guide/guide.h"

/* Seconds until the queue has probably moved on, for Retry-After. */
static int retry_after(const struct engine *engine, int64_t now)
{
    double age = (double)(now - engine->started_ns) * 1e-9;
    double rate = (double)(engine->metrics.counters[C_PROMPT_TOKENS] + engine->metrics.counters[C_GENERATION_TOKENS]) /
                  (age > 1 ? age : 1);
    double s = rate > 0 ? (double)engine->world.waiting_tokens / rate : 1;
    return s < 1 ? 1 : s > 60 ? 60 : (int)s;
}

/* NULL: it was turned away. */
static void tell_submitted(struct engine *engine, const struct request_spec *s, struct request *r)
{
    const struct witness *w = engine->setup.witness;
    if (w && w->submitted)
        w->submitted(w->ctx, engine->now_ns, s, r);
}

/* The ending of a request that never entered the world. */
static void turn_away(struct engine *engine, struct request_spec *s, int status, int retry_s, const char *why)
{
    struct engine_event ev = {.kind = EV_END,
                              .code = END_REFUSED,
                              .tag = s->tag,
                              .http_status = status,
                              .retry_after_s = retry_s,
                              .n_prompt = s->n_prompt,
                              .payload = mem_strdup(why),
                              .n = strlen(why)};
    tell_submitted(engine, s, NULL);
    metrics_add(&engine->metrics, status == 400 ? C_REFUSED_INPUT : C_REFUSED_FULL, 1);
    request_spec_free(s);
    engine_emit(engine, &ev);
}

/* What its first token may be is found here, so that it is known whether that can be found. NULL: it can. */
static const char *guide_refusal(struct engine *engine, const struct request_spec *s)
{
    if (!engine->world.guides)
        return "this server has no text that could be guided";
    return guided_begins(engine->world.guides, s) ? NULL : GUIDE_TOO_MUCH;
}

void engine_submit(struct engine *engine, struct request_spec *s)
{
    int64_t now = engine->now_ns;
    struct err e = {0};
    struct request *r = NULL;
    guards_arrived(engine->guards, s);
    if (engine->draining || engine->stopping) {
        turn_away(engine, s, 503, -1, "the server is shutting down");
        return;
    }
    if (__builtin_popcountll(engine->world.partition.dead_ranks) == engine->node.n_ranks) {
        turn_away(engine, s, 503, -1, "every rank of the node has failed");
        return;
    }
    if (engine->beyond_mending) {
        turn_away(engine, s, 503, -1, engine->beyond_mending);
        return;
    }
    const char *why = s->grammar ? guide_refusal(engine, s) : NULL;
    if (why) {
        turn_away(engine, s, 400, -1, why);
        return;
    }
    int rc = world_submit(&engine->world, s, now, &r, &e);
    if (rc) {
        turn_away(engine, s, rc == E_INPUT ? 400 : 503, rc == E_FULL ? retry_after(engine, now) : -1, e.text);
        return;
    }
    tell_submitted(engine, s, r);
    metrics_add(&engine->metrics, C_PROMPT_TOKENS, (uint64_t)s->n_prompt);
    struct view v;
    view_init_of(&v, &engine->world, r->canary ? SIDE_CANARY : world_live_side(&engine->world), now);
    bool may = world_eligible(&engine->world, r);
    story_begin(&engine->stories, r, !may ? PART_SIBLING : v.n_idle ? PART_ENGINE : PART_STEP, now);
    engine->saw_empty = false;
    struct admission a = {.key = r->key, .retry_after_s = -1};
    canary_note_came(&engine->canary, r);
    live_admit(canary_of(&engine->canary, &engine->live, r), r, &v, &a);
    if (!r->canary)
        shadow_admit(&engine->shadow, r, &v, &a);
    if (a.refused)
        engine_refuse(engine, r, a.code, a.retry_after_s, a.why);
    else
        admission_obey(&a, &engine->world, r, now);
    if (!a.refused && r->held_until_ns)
        story_hold(&engine->stories, r, now);
    engine->changed = true;
}
