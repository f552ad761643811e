/* What the front is told, and what waits to be told. Nothing that the engine says is lost, and it never waits for the
 * front; yet what lies in the outbox is bounded when the front is slow: from OUTBOX_EVENTS on, tokens stay with their
 * request and go together in one event, when there is room again or the request ends. So there are at most a few events
 * more than that for each request, and those it may have anyway. */
#include <string.h>

#include "engine/engine_state.h"

enum { OUTBOX_EVENTS = 16384 };

void engine_emit(struct engine *engine, const struct engine_event *ev)
{
    queue_post(engine->outbox, ev);
}

/* A driver in virtual time takes what there is whenever it looks. */
static size_t limit(const struct engine *engine)
{
    return engine->setup.outbox_events ? (size_t)engine->setup.outbox_events
           : engine->setup.threaded    ? OUTBOX_EVENTS
                                       : SIZE_MAX;
}

void engine_tell_down(struct engine *engine, const char *why)
{
    engine_emit(engine, &(struct engine_event){.kind = EV_DOWN, .payload = mem_strdup(why), .n = strlen(why)});
}

void engine_look_at_outbox(struct engine *engine)
{
    engine->outbox_full = queue_count(engine->outbox) >= limit(engine);
}

static void keep_token(struct engine *engine, struct request *r, const struct token_logprobs *lp)
{
    if (!r->n_untold)
        engine->n_behind++;
    if (lp) {
        if (r->n_untold == r->cap_untold) {
            r->cap_untold = r->cap_untold ? r->cap_untold * 2 : 16;
            r->untold_lp = mem_resize(r->untold_lp, (size_t)r->cap_untold, sizeof *r->untold_lp);
        }
        r->untold_lp[r->n_untold] = *lp;
    }
    r->n_untold++;
}

void engine_tell_token(struct engine *engine, struct request *r, bool is_stop, const struct token_logprobs *lp)
{
    struct engine_event ev = {
        .kind = EV_TOKEN, .tag = r->spec->tag, .token = r->tokens[r->n_tokens - 1], .is_stop = is_stop};
    if (r->n_untold || engine->outbox_full) {
        keep_token(engine, r, lp);
        return;
    }
    if (lp) {
        ev.payload = mem_new(sizeof *lp);
        memcpy(ev.payload, lp, sizeof *lp);
    }
    engine_emit(engine, &ev);
}

void engine_tell_rest(struct engine *engine, struct request *r)
{
    if (!r->n_untold)
        return;
    size_t n = (size_t)r->n_untold, lp_bytes = r->spec->sampling.n_logprobs >= 0 ? n * sizeof *r->untold_lp : 0;
    struct token_run *run = mem_new(sizeof *run + lp_bytes + n * sizeof *run->tokens);
    run->n = r->n_untold;
    run->logprobs = lp_bytes ? (struct token_logprobs *)(run + 1) : NULL;
    run->tokens = (int32_t *)((char *)(run + 1) + lp_bytes);
    if (lp_bytes)
        memcpy(run->logprobs, r->untold_lp, lp_bytes);
    memcpy(run->tokens, r->tokens + r->n_tokens - r->n_untold, n * sizeof *run->tokens);
    r->n_untold = 0;
    engine->n_behind--;
    engine_emit(engine, &(struct engine_event){
                            .kind = EV_TOKENS, .tag = r->spec->tag, .is_stop = r->ends_with_stop, .payload = run});
}

bool engine_catch_up(struct engine *engine)
{
    if (!engine->n_behind || queue_count(engine->outbox) > limit(engine) / 2)
        return false;
    for (int i = 0; i < engine->world.requests.n_slots; i++)
        if (engine->world.requests.slots[i])
            engine_tell_rest(engine, engine->world.requests.slots[i]);
    return true;
}

bool engine_event_token(const struct engine_event *ev, int i, struct engine_event *out)
{
    const struct token_run *run = ev->payload;
    *out = *ev;
    out->kind = EV_TOKEN;
    if (ev->kind == EV_TOKEN)
        return i == 0;
    if (ev->kind != EV_TOKENS || i >= run->n)
        return false;
    out->token = run->tokens[i];
    out->is_stop = ev->is_stop && i == run->n - 1;
    out->payload = run->logprobs ? &run->logprobs[i] : NULL;
    return true;
}

static void tell_of_policy(struct engine *engine, struct buf *json)
{
    size_t n = json->len;
    engine_emit(engine, &(struct engine_event){.kind = EV_POLICY, .payload = buf_take(json), .n = n});
}

void engine_tell_change(struct engine *engine)
{
    struct buf out = {0};
    if (live_take_change(&engine->live, &out))
        tell_of_policy(engine, &out);
}

void engine_tell_canary(struct engine *engine)
{
    struct buf out = {0};
    if (canary_take_end(&engine->canary, &out))
        tell_of_policy(engine, &out);
}

void engine_tell_shadow(struct engine *engine)
{
    struct buf out = {0};
    if (shadow_take_end(&engine->shadow, &out))
        tell_of_policy(engine, &out);
}
