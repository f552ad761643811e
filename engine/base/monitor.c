#include "engine/base/monitor.h"

#include <errno.h>
#include <pthread.h>
#include <time.h>

#include "engine/base/check.h"
#include "engine/base/clock.h"
#include "engine/base/mem.h"

struct monitor {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct clock clock;
};

struct monitor *monitor_new(void)
{
    struct monitor *m = mem_new(sizeof *m);
    pthread_condattr_t how;
    ASSERT(pthread_mutex_init(&m->lock, NULL) == 0);
    ASSERT(pthread_condattr_init(&how) == 0);
    ASSERT(pthread_condattr_setclock(&how, CLOCK_MONOTONIC) == 0);
    ASSERT(pthread_cond_init(&m->changed, &how) == 0);
    pthread_condattr_destroy(&how);
    clock_init_real(&m->clock);
    return m;
}

void monitor_free(struct monitor *m)
{
    if (!m)
        return;
    pthread_cond_destroy(&m->changed);
    pthread_mutex_destroy(&m->lock);
    mem_free(m);
}

void monitor_lock(struct monitor *m)
{
    pthread_mutex_lock(&m->lock);
}

bool monitor_try(struct monitor *m)
{
    return pthread_mutex_trylock(&m->lock) == 0;
}

void monitor_unlock(struct monitor *m)
{
    pthread_mutex_unlock(&m->lock);
}

void monitor_wake(struct monitor *m)
{
    pthread_cond_broadcast(&m->changed);
}

bool monitor_wait(struct monitor *m, int64_t timeout_ns)
{
    if (timeout_ns < 0) {
        pthread_cond_wait(&m->changed, &m->lock);
        return true;
    }
    int64_t until = clock_now(&m->clock) + timeout_ns;
    struct timespec t = {.tv_sec = until / 1000000000, .tv_nsec = until % 1000000000};
    return pthread_cond_timedwait(&m->changed, &m->lock, &t) != ETIMEDOUT;
}
