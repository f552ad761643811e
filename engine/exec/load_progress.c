#include "engine/exec/load_progress.h"

#include <stdio.h>

#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/base/monitor.h"

struct load_progress {
    struct monitor *lock;
    struct clock clock;
    int64_t begun_ns;
    double done, total;
    bool timed;
};

struct load_progress *load_progress_new(double total, bool timed)
{
    struct load_progress *p = mem_new(sizeof *p);
    *p = (struct load_progress){.lock = monitor_new(), .total = total, .timed = timed};
    clock_init_real(&p->clock);
    p->begun_ns = clock_now(&p->clock);
    return p;
}

void load_progress_free(struct load_progress *p)
{
    if (!p)
        return;
    monitor_free(p->lock);
    mem_free(p);
}

void load_progress_add(struct load_progress *p, double bytes)
{
    const double gib = 1 << 30;
    char unit[64] = "GiB";
    if (!p)
        return;
    monitor_lock(p->lock); /* also while it is written: lines come in the order of what they say */
    double seconds = (double)(clock_now(&p->clock) - p->begun_ns) * 1e-9;
    p->done += bytes;
    if (p->done >= p->total && p->timed && seconds > 0)
        snprintf(unit, sizeof unit, "GiB in %.2f s, %.3g GiB/s", seconds, p->total / gib / seconds);
    log_progress("Loading weights", p->done / gib, p->total / gib, unit);
    monitor_unlock(p->lock);
}
