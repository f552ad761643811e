#include "engine/serve/http/loop.h"

#include <event2/event.h>

#include "engine/base/mem.h"

struct loop {
    struct event_base *base;
    loop_fn after;
    void *after_ctx;
};

struct loop_event {
    struct loop *loop;
    struct event *event;
    loop_fn fn;
    void *ctx;
    bool armed;
};

int loop_create(struct loop **out, struct err *e)
{
    *out = NULL;
    struct event_config *cfg = event_config_new();
    if (!cfg)
        return err_set(e, E_SYS, "no memory for the event loop");
    event_config_set_flag(cfg, EVENT_BASE_FLAG_NOLOCK);
    struct event_base *base = event_base_new_with_config(cfg);
    event_config_free(cfg);
    if (!base)
        return err_set(e, E_SYS, "no event loop");
    *out = mem_new(sizeof **out);
    (*out)->base = base;
    return 0;
}

void loop_destroy(struct loop *l)
{
    if (!l)
        return;
    event_base_free(l->base);
    mem_free(l);
}

void loop_after(struct loop *l, loop_fn fn, void *ctx)
{
    l->after = fn;
    l->after_ctx = ctx;
}

static void on_event(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    struct loop_event *v = arg;
    struct loop *l = v->loop; /* the callback may free v */
    v->fn(v->ctx);
    if (l->after)
        l->after(l->after_ctx);
}

static struct loop_event *make(struct loop *l, int fd, short what, loop_fn fn, void *ctx)
{
    struct loop_event *v = mem_new(sizeof *v);
    *v = (struct loop_event){.loop = l, .fn = fn, .ctx = ctx};
    v->event = event_new(l->base, fd, what, on_event, v);
    if (!v->event) {
        mem_free(v);
        return NULL;
    }
    return v;
}

struct loop_event *loop_fd(struct loop *l, int fd, enum loop_kind kind, loop_fn fn, void *ctx)
{
    short what = kind == LOOP_READ ? EV_READ : EV_WRITE;
    return make(l, fd, (short)(what | EV_PERSIST), fn, ctx);
}

struct loop_event *loop_every(struct loop *l, int ms, loop_fn fn, void *ctx)
{
    struct loop_event *v = make(l, -1, EV_PERSIST, fn, ctx);
    struct timeval tv = {ms / 1000, ms % 1000 * 1000};
    if (v && event_add(v->event, &tv) == 0)
        v->armed = true;
    return v;
}

void loop_arm(struct loop_event *v)
{
    if (!v->armed)
        v->armed = event_add(v->event, NULL) == 0;
}

void loop_disarm(struct loop_event *v)
{
    if (v->armed)
        event_del(v->event);
    v->armed = false;
}

void loop_again(struct loop_event *v)
{
    event_active(v->event, EV_READ, 1);
}

void loop_event_free(struct loop_event *v)
{
    if (!v)
        return;
    event_free(v->event);
    mem_free(v);
}

void loop_run(struct loop *l)
{
    event_base_loop(l->base, EVLOOP_NO_EXIT_ON_EMPTY);
}

void loop_turn(struct loop *l)
{
    event_base_loop(l->base, EVLOOP_NONBLOCK);
}

void loop_stop(struct loop *l)
{
    event_base_loopbreak(l->base);
}
