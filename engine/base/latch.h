/* A lock for a thread that must never be kept from its work: it tries, and goes on without if somebody is inside; and
 * letting go is one store, since whoever waits looks again by itself and has not to be woken. Waiting costs those who
 * do more than with a monitor, so what is done inside takes microseconds. Any thread. */
#ifndef BASE_LATCH_H
#define BASE_LATCH_H

#include <stdatomic.h>
#include <stdbool.h>

struct latch {
    _Atomic bool held;
};

bool latch_try(struct latch *l); /* false: somebody else is inside */
void latch_wait(struct latch *l);
void latch_release(struct latch *l);

#endif
