#include "engine/exec/ffn_link.h"

#include <stdatomic.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/base/monitor.h"
#include "engine/world/ids.h"

/* A sleep ends late: what is lost by that is caught up with. */
static const int64_t BURST_NS = 300000;

struct ffn_link {
    double ns_per_byte; /* 0: no bound */
    struct clock clock;
    struct monitor *lock;
    int64_t out_free_ns[MAX_RANKS], in_free_ns[MAX_RANKS]; /* when the end has sent, or got, all that it was given */
    atomic_int readers[MAX_RANKS], most;
};

struct ffn_link *ffn_link_new(double gbps)
{
    struct ffn_link *l = mem_new(sizeof *l);
    l->ns_per_byte = gbps > 0 ? 1 / gbps : 0;
    l->lock = monitor_new();
    clock_init_real(&l->clock);
    return l;
}

void ffn_link_free(struct ffn_link *l)
{
    if (!l)
        return;
    monitor_free(l->lock);
    mem_free(l);
}

static int64_t later(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

void ffn_link_cross(struct ffn_link *l, int owner, int reader, size_t bytes)
{
    if (l->ns_per_byte == 0 || owner == reader)
        return;
    int64_t takes = (int64_t)((double)bytes * l->ns_per_byte), left;
    monitor_lock(l->lock);
    int64_t begins = later(clock_now(&l->clock) - BURST_NS, later(l->out_free_ns[owner], l->in_free_ns[reader]));
    int64_t ends = begins + takes;
    l->out_free_ns[owner] = l->in_free_ns[reader] = ends;
    while ((left = ends - clock_now(&l->clock)) > 0) /* nobody wakes it: the lock is what the others need meanwhile */
        monitor_wait(l->lock, left);
    monitor_unlock(l->lock);
}

void ffn_link_begin(struct ffn_link *l, int owner)
{
    int now = atomic_fetch_add(&l->readers[owner], 1) + 1, most = atomic_load(&l->most);
    while (now > most && !atomic_compare_exchange_weak(&l->most, &most, now))
        ;
}

void ffn_link_end(struct ffn_link *l, int owner)
{
    atomic_fetch_sub(&l->readers[owner], 1);
}

int ffn_link_most_readers(const struct ffn_link *l)
{
    return atomic_load(&l->most);
}
