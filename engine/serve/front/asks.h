/* Questions to the engine that it answers with one EV_REPLY: who asked, and what to do with the answer. Front thread
 * only. Invariant: an asker is called once, and not after asks_forget. */
#ifndef SERVE_FRONT_ASKS_H
#define SERVE_FRONT_ASKS_H

#include "engine/engine.h"

#define ASK_TAG (1ull << 63) /* tags of questions; requests have it clear */

struct ask_reply {
    int code;         /* 0 or err_code */
    const char *text; /* never NULL */
    size_t n;
};
typedef void (*ask_fn)(void *ctx, const struct ask_reply *r);

struct asks {
    struct queue *inbox;
    struct map by_tag; /* tag -> struct ask * */
    uint64_t next;
};

void asks_init(struct asks *a, struct queue *inbox);
void asks_free(struct asks *a);
/* Sends kind with payload (moves) and remembers the asker. Returns the tag. */
uint64_t asks_send(struct asks *a, enum engine_in kind, void *payload, size_t n, ask_fn fn, void *ctx);
void asks_forget(struct asks *a, uint64_t tag);                /* the asker is no more; the answer is dropped */
void asks_take(struct asks *a, const struct engine_event *ev); /* an EV_REPLY; the payload stays the caller's */

#endif
