/* What operators ask of the engine about policies: another one goes live, params, a rollback, one that decides beside
 * the live one; and questions about what was decided. */
#include <string.h>

#include "engine/base/mem.h"
#include "engine/engine_state.h"
#include "engine/profile_report.h"

void engine_reply(struct engine *engine, uint64_t tag, int code, char *text, size_t n)
{
    engine_emit(engine, &(struct engine_event){.kind = EV_REPLY, .tag = tag, .code = code, .payload = text, .n = n});
}

void engine_reply_with(struct engine *engine, uint64_t tag, int rc, struct buf *out)
{
    size_t n = out->len;
    engine_reply(engine, tag, rc, buf_take(out), n);
}

/* Answers with the policy's state, or with why it did not work. */
static void reply_policy(struct engine *engine, uint64_t tag, int rc, const struct err *e)
{
    struct buf out = {0};
    engine_tell_change(engine); /* first: it came first */
    if (rc)
        buf_puts(&out, e->text);
    else
        live_state(&engine->live, engine->now_ns, &out);
    engine_reply_with(engine, tag, rc, &out);
}

void engine_answer_swaps(struct engine *engine)
{
    struct err none = {0};
    for (int i = 0; i < engine->n_unanswered; i++)
        reply_policy(engine, engine->unanswered[i], 0, &none);
    engine->n_unanswered = 0;
}

/* The whole state is an answer that takes longer to write than the swap took. */
static void answer_later(struct engine *engine, uint64_t tag)
{
    if (engine->n_unanswered == (int)(sizeof engine->unanswered / sizeof engine->unanswered[0]))
        engine_answer_swaps(engine);
    engine->unanswered[engine->n_unanswered++] = tag;
}

void engine_end_canary(struct engine *engine, const char *why)
{
    if (!canary_runs(&engine->canary))
        return;
    canary_end(&engine->canary, &engine->live, &engine->world, engine->now_ns, why);
    engine->changed = true;
    engine_tell_canary(engine);
}

static void swap_policy(struct engine *engine, const struct engine_message *m)
{
    struct err e = {0};
    struct policy *p = m->payload;
    bool mine = strcmp(p->sha256, engine->canary.book.sha256) == 0;
    engine_end_canary(engine, mine ? "it goes live for all groups" : "another policy goes live");
    int rc = live_swap(&engine->live, p, &engine->world, engine->now_ns, &e);
    mem_free(p);
    engine->changed = true;
    if (rc)
        reply_policy(engine, m->tag, rc, &e);
    else
        answer_later(engine, m->tag);
    engine->live.last_swap_seconds = (double)(clock_now(engine->setup.clock) - engine->now_ns) * 1e-9;
}

static void set_params(struct engine *engine, const struct engine_message *m)
{
    struct err e = {0};
    if (engine->live.fallen)
        engine_end_canary(engine, "the live policy is withdrawn");
    live_settle(&engine->live, &engine->world, engine->now_ns);
    int rc = engine->live.active.ops->params_set
                 ? engine->live.active.ops->params_set(engine->live.active.ctx, m->payload, m->n, &e)
                 : err_set(&e, E_UNSUPPORTED, "the policy %s has no params", engine->live.active.name);
    mem_free(m->payload);
    if (!rc)
        live_rekey(&engine->live, &engine->world, engine->now_ns);
    engine->changed = true;
    reply_policy(engine, m->tag, rc, &e);
}

static void roll_back(struct engine *engine, uint64_t tag)
{
    struct err e = {0};
    engine_end_canary(engine, "the live policy is rolled back");
    int rc = live_rollback(&engine->live, &engine->world, engine->now_ns, &e);
    engine->changed = true;
    reply_policy(engine, tag, rc, &e);
}

static void tell_history(struct engine *engine, const struct engine_message *m)
{
    struct buf out = {0};
    int rc = m->kind == IN_STORY ? engine_put_story(engine, m->payload, (int)m->n, &out)
                                 : engine_put_decisions(engine, m->payload, &out);
    mem_free(m->payload);
    engine_reply_with(engine, m->tag, rc, &out);
}

static void tell_profile(struct engine *engine, uint64_t tag)
{
    struct buf out = {0};
    struct profile p;
    bool watched = engine_profile(engine, &p);
    if (watched)
        profile_json(&p, &out);
    else
        buf_puts(&out, "no profile is kept: start the server with --profile");
    engine_reply_with(engine, tag, watched ? 0 : E_UNSUPPORTED, &out);
}

/* The one beside the live one, after what was asked for. */
static void reply_shadow(struct engine *engine, uint64_t tag, int rc, const struct err *e)
{
    struct buf out = {0};
    engine_tell_shadow(engine); /* first: another may have ended by it */
    if (rc)
        buf_puts(&out, e->text);
    else
        shadow_put(&engine->shadow, engine->now_ns, &out);
    engine_reply_with(engine, tag, rc, &out);
}

static void begin_shadow(struct engine *engine, const struct engine_message *m)
{
    struct err e = {0};
    struct shadow_order *o = m->payload;
    shadow_end(&engine->shadow, engine->now_ns, "another one has taken its place");
    engine_tell_shadow(engine);
    int rc = shadow_begin(&engine->shadow, o, &engine->facts, &engine->live.active, engine->now_ns, &e);
    mem_free(o);
    reply_shadow(engine, m->tag, rc, &e);
}

static void end_shadow(struct engine *engine, uint64_t tag)
{
    struct err e = {0};
    int rc = shadow_runs(&engine->shadow) ? 0 : err_set(&e, E_NOTFOUND, "no policy decides beside the live one");
    shadow_end(&engine->shadow, engine->now_ns, "an operator has ended it");
    reply_shadow(engine, tag, rc, &e);
}

/* The canary, after what was asked for. */
static void reply_canary(struct engine *engine, uint64_t tag, int rc, const struct err *e)
{
    struct buf out = {0};
    if (rc)
        buf_puts(&out, e->text);
    else
        canary_put(&engine->canary, engine->now_ns, &out);
    engine_reply_with(engine, tag, rc, &out);
}

static void begin_canary(struct engine *engine, const struct engine_message *m)
{
    struct err e = {0};
    struct canary_order *o = m->payload;
    if (live_settle(&engine->live, &engine->world, engine->now_ns))
        engine_tell_change(engine);
    int rc = canary_begin(&engine->canary, o, &engine->live, &engine->world, engine->now_ns, &e);
    mem_free(o);
    engine->changed = true;
    reply_canary(engine, m->tag, rc, &e);
}

static void end_canary(struct engine *engine, uint64_t tag)
{
    struct err e = {0};
    int rc = canary_runs(&engine->canary) ? 0 : err_set(&e, E_NOTFOUND, "no canary runs");
    engine_end_canary(engine, "an operator has ended it");
    reply_canary(engine, tag, rc, &e);
}

void engine_obey(struct engine *engine, struct engine_message *m)
{
    struct err none = {0};
    switch ((int)m->kind) {
    case IN_POLICY:
        swap_policy(engine, m);
        break;
    case IN_PARAMS:
        set_params(engine, m);
        break;
    case IN_ROLLBACK:
        roll_back(engine, m->tag);
        break;
    case IN_SHADOW:
        begin_shadow(engine, m);
        break;
    case IN_SHADOW_END:
        end_shadow(engine, m->tag);
        break;
    case IN_SHADOW_STATE:
        reply_shadow(engine, m->tag, 0, &none);
        break;
    case IN_CANARY:
        begin_canary(engine, m);
        break;
    case IN_CANARY_END:
        end_canary(engine, m->tag);
        break;
    case IN_CANARY_STATE:
        reply_canary(engine, m->tag, 0, &none);
        break;
    case IN_PROFILE:
        tell_profile(engine, m->tag);
        break;
    default:
        tell_history(engine, m);
        break;
    }
}
