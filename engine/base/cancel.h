/* When to give up long work: somebody asked for it (any thread, at any time), or the working thread has used up its CPU
 * time. The work calls cancel_check in its long loops with how much it has done since the last call (in bytes, or in
 * units that take about as long), and cancel_check looks now and then. Owned by whoever wants the work done; budget and
 * counts belong to the working thread. The limit is CPU time, not wall-clock time, so a busy machine does not make any
 * text too long. Invariant: every loop over a client's bytes calls cancel_check, unless it is linear and short. */
#ifndef BASE_CANCEL_H
#define BASE_CANCEL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/err.h"

enum { CANCEL_STRIDE = 1 << 16 }; /* work between two looks */

struct cancel {
    _Atomic bool asked;
    int64_t budget_ns, until_ns; /* CPU time of the working thread; budget 0: none */
    size_t unlooked;
};

void cancel_begin(struct cancel *c, int64_t budget_ns); /* on the working thread, before the work */
static inline void cancel_ask(struct cancel *c)
{
    atomic_store_explicit(&c->asked, true, memory_order_release);
}
static inline bool cancel_asked(const struct cancel *c)
{
    return atomic_load_explicit(&c->asked, memory_order_acquire);
}
int cancel_look(struct cancel *c, struct err *e);
/* 0: go on. E_GONE: asked; E_FULL: the time is used up. c may be NULL: never cancelled. */
static inline int cancel_check(struct cancel *c, size_t work, struct err *e)
{
    if (!c || (c->unlooked += work) < CANCEL_STRIDE)
        return 0;
    return cancel_look(c, e);
}

#endif
