#include "lua/watchdog.h"

#include <errno.h>
#include <sched.h>
#include <string.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include "engine/base/check.h"
#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/base/thread.h"

enum { MAX_WATCHES = 256 };

/* The phases of a watch. Its own thread moves SHUT -> OPEN and OPEN/FIRED -> SHUT or OPEN; only the watchdog
 * moves OPEN -> PINNED -> FIRED. */
enum phase { SHUT, OPEN, PINNED, FIRED };

struct watch {
    _Atomic int phase;
    _Atomic bool taken;
    _Atomic int64_t deadline_ns;
    struct lua_State *L;
    watch_fire fire;
    struct lua_watchdog *dog;
};

struct lua_watchdog {
    int timer_fd;
    _Atomic bool stop;
    _Atomic int64_t armed_ns; /* when the timer rings; INT64_MAX: it does not */
    _Atomic int n_used;       /* watches[0..n_used) were ever taken */
    struct clock clock;
    struct thread *thread;
    struct watch watches[MAX_WATCHES];
};

static void timer_set(struct lua_watchdog *d, int64_t at_ns)
{
    struct itimerspec t = {.it_value = {at_ns / 1000000000, at_ns % 1000000000}};
    timerfd_settime(d->timer_fd, TFD_TIMER_ABSTIME, &t, NULL);
}

/* Makes the timer ring at at_ns or sooner. Two threads may do this at once: each goes on until what it set is
 * what is asked for. */
static void ring_by(struct lua_watchdog *d, int64_t at_ns)
{
    int64_t armed = atomic_load(&d->armed_ns);
    while (at_ns < armed)
        if (atomic_compare_exchange_weak(&d->armed_ns, &armed, at_ns)) {
            do {
                armed = atomic_load(&d->armed_ns);
                if (armed != INT64_MAX)
                    timer_set(d, armed);
            } while (atomic_load(&d->armed_ns) != armed);
            return;
        }
}

/* Fires what is late. Returns the earliest deadline still to come. */
static int64_t scan(struct lua_watchdog *d, int64_t now_ns)
{
    int64_t next = INT64_MAX;
    int n = atomic_load(&d->n_used);
    for (int i = 0; i < n; i++) {
        struct watch *w = &d->watches[i];
        if (atomic_load(&w->phase) != OPEN)
            continue;
        int64_t deadline = atomic_load(&w->deadline_ns);
        if (deadline > now_ns) {
            if (deadline < next)
                next = deadline;
            continue;
        }
        int open = OPEN;
        if (!atomic_compare_exchange_strong(&w->phase, &open, PINNED))
            continue;
        /* The watch may have been shut and opened again since its deadline was read: pinned, it cannot change
         * any more. */
        deadline = atomic_load(&w->deadline_ns);
        if (deadline <= now_ns) {
            w->fire(w->L);
            atomic_store(&w->phase, FIRED);
        } else {
            atomic_store(&w->phase, OPEN);
            if (deadline < next)
                next = deadline;
        }
    }
    return next;
}

static void body(void *arg)
{
    struct lua_watchdog *d = arg;
    while (!atomic_load(&d->stop)) {
        uint64_t rings;
        if (read(d->timer_fd, &rings, sizeof rings) < 0 && errno != EINTR)
            return;
        /* From here on whoever opens a watch sets the timer itself; whoever did before is seen by the scan.
         */
        atomic_store(&d->armed_ns, INT64_MAX);
        int64_t next = scan(d, clock_now(&d->clock));
        if (next != INT64_MAX)
            ring_by(d, next);
    }
}

int lua_watchdog_start(struct lua_watchdog **out, struct err *e)
{
    struct lua_watchdog *d = mem_new(sizeof *d);
    d->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC);
    if (d->timer_fd < 0) {
        mem_free(d);
        return err_set(e, E_SYS, "watchdog: timerfd_create: %s", strerror(errno));
    }
    atomic_store(&d->armed_ns, INT64_MAX);
    clock_init_real(&d->clock);
    int rc = thread_start(&d->thread, "watchdog", body, d, e);
    if (rc) {
        close(d->timer_fd);
        mem_free(d);
        return rc;
    }
    *out = d;
    return 0;
}

void lua_watchdog_stop(struct lua_watchdog *d)
{
    if (!d)
        return;
    atomic_store(&d->stop, true);
    timer_set(d, 1);
    thread_join(d->thread);
    for (int i = 0; i < MAX_WATCHES; i++)
        ASSERT(!atomic_load(&d->watches[i].taken));
    close(d->timer_fd);
    mem_free(d);
}

struct watch *watch_new(struct lua_watchdog *d, struct lua_State *L, watch_fire fire)
{
    for (int i = 0; i < MAX_WATCHES; i++) {
        struct watch *w = &d->watches[i];
        if (atomic_exchange(&w->taken, true))
            continue;
        w->L = L;
        w->fire = fire;
        w->dog = d;
        int n = atomic_load(&d->n_used);
        while (n < i + 1 && !atomic_compare_exchange_weak(&d->n_used, &n, i + 1))
            ;
        return w;
    }
    return NULL;
}

void watch_free(struct watch *w)
{
    if (!w)
        return;
    ASSERT(atomic_load(&w->phase) == SHUT);
    w->L = NULL;
    atomic_store(&w->taken, false);
}

void watch_open(struct watch *w, int64_t deadline_ns)
{
    atomic_store_explicit(&w->deadline_ns, deadline_ns, memory_order_relaxed);
    atomic_store(&w->phase, OPEN);
    ring_by(w->dog, deadline_ns);
}

bool watch_shut(struct watch *w)
{
    for (;;) {
        int phase = atomic_load(&w->phase);
        if (phase == FIRED) {
            atomic_store(&w->phase, SHUT);
            return true;
        }
        if (phase == OPEN && atomic_compare_exchange_strong(&w->phase, &phase, SHUT))
            return false;
        ASSERT(phase != SHUT);
        sched_yield(); /* pinned: the watchdog is between two stores */
    }
}
