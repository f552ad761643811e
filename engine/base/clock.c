#include "engine/base/clock.h"

#include <time.h>

#include "engine/base/check.h"

void clock_init_real(struct clock *c)
{
    c->is_virtual = false;
    atomic_init(&c->now_ns, 0);
}

void clock_init_virtual(struct clock *c, int64_t start_ns)
{
    c->is_virtual = true;
    atomic_init(&c->now_ns, start_ns);
}

int64_t clock_now(const struct clock *c)
{
    if (c->is_virtual)
        return atomic_load_explicit(&c->now_ns, memory_order_acquire);
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

void clock_advance_to(struct clock *c, int64_t ns)
{
    ASSERT(c->is_virtual && ns >= atomic_load(&c->now_ns));
    atomic_store_explicit(&c->now_ns, ns, memory_order_release);
}

int64_t clock_thread_cpu(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

int64_t clock_wall_seconds(void)
{
    return (int64_t)time(NULL);
}
