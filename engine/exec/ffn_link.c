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

/* Takes so much of both ends; returns when that is over. */
static int64_t take(struct ffn_link *l, int owner, int reader, size_t bytes)
{
    if (l->ns_per_byte == 0 || owner == reader)
        return 0;
    monitor_lock(l->lock);
    int64_t begins = later(clock_now(&l->clock) - BURST_NS, later(l->out_free_ns[owner], l->in_free_ns[reader]));
    int64_t ends = begins + (int64_t)((double)bytes * l->ns_per_byte);
    l->out_free_ns[owner] = l->in_free_ns[reader] = ends;
    monitor_unlock(l->lock);
    return ends;
}

static void wait_until(struct ffn_link *l, int64_t ends)
{
    int64_t left;
    if (ends == 0)
        return;
    monitor_lock(l->lock);
    while ((left = ends - clock_now(&l->clock)) > 0) /* nobody wakes it: the lock is what the others need meanwhile */
        monitor_wait(l->lock, left);
    monitor_unlock(l->lock);
}

void ffn_link_cross(struct ffn_link *l, int owner, int reader, size_t bytes)
{
    wait_until(l, take(l, owner, reader, bytes));
}

int64_t ffn_link_begin(struct ffn_link *l, int owner, int reader, size_t bytes)
{
    int now = atomic_fetch_add(&l->readers[owner], 1) + 1, most = atomic_load(&l->most);
    while (now > most && !atomic_compare_exchange_weak(&l->most, &most, now))
        ;
    return take(l, owner, reader, bytes);
}

void ffn_link_end(struct ffn_link *l, int owner, int64_t begun)
{
    wait_until(l, begun);
    atomic_fetch_sub(&l->readers[owner], 1);
}

uint64_t ffn_link_read(const struct ffn_link *l)
{
    uint64_t read = 0;
    for (int i = 0; i < MAX_RANKS; i++)
        read |= (uint64_t)(atomic_load_explicit(&l->readers[i], memory_order_relaxed) > 0) << i;
    return read;
}

int ffn_link_most_readers(const struct ffn_link *l)
{
    return atomic_load(&l->most);
}
