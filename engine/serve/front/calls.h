/* Calls to the engine, each answered with one EV_REPLY: who called, and what to do with the answer. Front thread only.
 * Invariant: a callback runs at most once, and never after calls_forget. */
#ifndef SERVE_FRONT_CALLS_H
#define SERVE_FRONT_CALLS_H

#include "engine/engine.h"

#define ASK_TAG (1ull << 63) /* tags of questions; requests have it clear */

struct call_reply {
    int code;         /* 0 or err_code */
    const char *text; /* never NULL */
    size_t n;
};
typedef void (*call_fn)(void *ctx, const struct call_reply *r);

struct calls {
    struct queue *inbox;
    struct map by_tag; /* tag -> struct call * */
    uint64_t next;
};

void calls_init(struct calls *a, struct queue *inbox);
void calls_free(struct calls *a);
/* Sends kind with payload (moves) and remembers the caller. Returns the tag. */
uint64_t calls_send(struct calls *a, enum engine_in kind, void *payload, size_t n, call_fn fn, void *ctx);
void calls_forget(struct calls *a, uint64_t tag);                /* the caller is gone; the answer is dropped */
void calls_take(struct calls *a, const struct engine_event *ev); /* an EV_REPLY; the payload stays the caller's */

#endif
