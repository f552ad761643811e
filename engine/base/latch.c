#include "engine/base/latch.h"

#include <time.h>

enum { LOOK_AGAIN_NS = 20 * 1000 };

bool latch_try(struct latch *l)
{
    return !atomic_load_explicit(&l->held, memory_order_relaxed) &&
           !atomic_exchange_explicit(&l->held, true, memory_order_acquire);
}

void latch_wait(struct latch *l)
{
    while (!latch_try(l))
        nanosleep(&(struct timespec){.tv_nsec = LOOK_AGAIN_NS}, NULL);
}

void latch_release(struct latch *l)
{
    atomic_store_explicit(&l->held, false, memory_order_release);
}
