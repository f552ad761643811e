/* GET /admin/events: what the engine does, as server-sent events, for the control room and for scripts. While anybody
 * watches, the engine is asked four times a second what happened since the last time; each answer goes to all watchers.
 * So the engine's work does not grow with the watchers, and with the load only by one walk over the waiting requests. A
 * slow watcher costs memory that is bounded: events pass it by, and the next one that reaches it says how many did; one
 * that takes nothing at all loses its connection (http.h). Front thread only. Invariant: one question is under way at
 * most; what watchers are told is complete events.
 *
 * The data of each is one line, {"missed": N, "it": ...}:
 * - pulse: the JSON of IN_PULSE (engine_pulse_json)
 * - policy: what became of a policy that was sent, read or ordered, as a line of GET /admin/audit without its number
 * and hash
 * - bye: the server ends */
#ifndef SERVE_ROOM_EVENTS_H
#define SERVE_ROOM_EVENTS_H

#include "engine/serve/front/front.h"

enum { EVENTS_WATCHERS = 16 };

struct events {
    struct front *front;
    struct watcher *watchers; /* newest first */
    int n;
    bool asked;             /* a question is under way */
    uint64_t newest_switch; /* the newest that watchers know */
};

void events_init(struct events *ev, struct front *front);
/* Answers with a stream that ends with the server. 503 when EVENTS_WATCHERS watch already. */
void events_watch(struct events *ev, struct http_exchange *x);
/* Four times a second. When the server drains, all streams end. */
void events_tick(struct events *ev);
/* To all watchers; data: one line of JSON. */
void events_tell(struct events *ev, const char *event, const char *data, size_t n);

#endif
