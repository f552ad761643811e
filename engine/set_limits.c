/* An operator's order for the limits, while requests run: obeyed as a whole or refused as a whole. The policy is asked
 * again, and sees the new ones from its next call on. */
#include "engine/base/mem.h"
#include "engine/engine_state.h"

/* The limits of now and of the start, what each may be set to, and what the order has changed, in words. */
static void put_limits(const struct engine *engine, const struct limits *was, struct buf *json)
{
    const struct limits *built = &engine->setup.limits;
    struct buf words = {0};
    limits_put_change(was, &engine->world.limits, &words);
    buf_puts(json, "{\"limits\":");
    limits_put(&engine->world.limits, json);
    buf_puts(json, ",\"start\":");
    limits_put(built, json);
    buf_puts(json, ",\"ranges\":");
    limits_put_ranges(built, json);
    buf_printf(json, ",\"fixed\":{\"max_model_len\":%d},\"changed\":", built->max_model_len);
    buf_put_json(json, words.len ? words.data : "", words.len);
    buf_putc(json, '}');
    buf_free(&words);
}

/* A policy that goes live later is told of the new ones in its start. */
static void set_limits(struct engine *engine, const struct limits *now)
{
    bool same = true;
    for (int i = 0; i < LIMIT_COUNT; i++)
        same &= limit_of(now, (enum limit)i) == limit_of(&engine->world.limits, (enum limit)i);
    engine->world.n_limits_set += !same;
    engine->world.limits = engine->live.node.limits = *now;
    engine->changed = true;
}

/* Of what is obeyed only: a recording has no order that it could not have obeyed. */
static void tell_witness(const struct engine *engine, const struct engine_message *m)
{
    const struct witness *w = engine->setup.witness;
    if (w && w->ordered)
        w->ordered(w->ctx, engine->now_ns, m);
}

void engine_take_limits(struct engine *engine, const struct engine_message *m)
{
    struct limits was = engine->world.limits, now = was;
    struct err e = {0};
    struct buf out = {0};
    int rc = m->payload ? limits_obey(&now, &engine->setup.limits, m->payload, &e) : 0;
    if (m->payload && !rc) {
        tell_witness(engine, m);
        set_limits(engine, &now);
    }
    if (rc)
        buf_puts(&out, e.text);
    else
        put_limits(engine, &was, &out);
    mem_free(m->payload);
    engine_reply_with(engine, m->tag, rc, &out);
}
