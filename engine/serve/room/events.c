#include "engine/serve/room/events.h"

#include <inttypes.h>
#include <string.h>

#include "engine/base/json.h"
#include "engine/base/mem.h"

enum { SLOW_BYTES = 256 << 10 }; /* unsent, from which on events pass a watcher by */

struct watcher {
    struct events *events;
    struct http_exchange *x;
    uint64_t missed;
    struct watcher *next, **link;
};

void events_init(struct events *ev, struct front *front)
{
    *ev = (struct events){.front = front};
}

static void leave(struct watcher *w)
{
    *w->link = w->next;
    if (w->next)
        w->next->link = w->link;
    w->events->n--;
    mem_free(w);
}

static void gone(struct http_exchange *x)
{
    leave(x->user);
}

void events_watch(struct events *ev, struct http_exchange *x)
{
    if (x->head.method == HTTP_HEAD) {
        http_answer(x, 200, "text/event-stream", NULL, 0);
        return;
    }
    if (ev->n >= EVENTS_WATCHERS) {
        front_refuse_busy(x, "as many watch the events as may");
        return;
    }
    struct watcher *w = mem_new(sizeof *w);
    *w = (struct watcher){.events = ev, .x = x, .next = ev->watchers, .link = &ev->watchers};
    if (w->next)
        w->next->link = &w->next;
    ev->watchers = w;
    ev->n++;
    x->user = w;
    x->gone = gone;
    x->drop_on_eof = true;
    http_stream_begin(x, 200, "text/event-stream");
    buf_puts(http_stream_put(x), "retry: 2000\n\n");
}

void events_tell(struct events *ev, const char *event, const char *data, size_t n)
{
    for (struct watcher *w = ev->watchers; w; w = w->next) {
        if (http_unsent(w->x) > SLOW_BYTES) {
            w->missed++;
            continue;
        }
        struct buf *out = http_stream_put(w->x);
        buf_printf(out, "event: %s\ndata: {\"missed\":%" PRIu64 ",\"it\":", event, w->missed);
        buf_put(out, data, n);
        buf_puts(out, "}\n\n");
        w->missed = 0;
    }
}

static void pulse_came(void *ctx, const struct call_reply *r)
{
    struct events *ev = ctx;
    ev->asked = false;
    if (r->code)
        return;
    struct json *j = json_parse(r->text, r->n, NULL, NULL);
    ev->newest_switch = (uint64_t)json_member_number(j, "newest_switch");
    json_free(j);
    events_tell(ev, "pulse", r->text, r->n);
}

static void end_all(struct events *ev)
{
    events_tell(ev, "bye", "null", 4);
    while (ev->watchers) {
        struct http_exchange *x = ev->watchers->x;
        x->gone = NULL;
        leave(ev->watchers);
        http_stream_end(x);
    }
}

void events_tick(struct events *ev)
{
    struct front *f = ev->front;
    if (!ev->watchers)
        return;
    if (f->draining || f->stopped) {
        end_all(ev);
        return;
    }
    if (ev->asked || !f->inbox)
        return;
    ev->asked = true;
    calls_send(&f->calls, IN_PULSE, NULL, ev->newest_switch, pulse_came, ev);
}
