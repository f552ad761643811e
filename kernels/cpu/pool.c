#include "kernels/cpu/pool.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/base/thread.h"
#include "kernels/futex.h"

/* How long to poll with pause, and then how long with yield, before sleeping. A yield that takes longer than SHARED_NS
 * has let another program run. */
enum { PAUSE_LOOKS = 200, YIELD_LOOKS = 200, WAIT_PAUSE_LOOKS = 2000, WAIT_YIELD_LOOKS = 20000, SHARED_NS = 50000 };

/* Of one thread: how long it was inside of items. */
struct busy {
    _Alignas(64) int64_t ns;
};

struct helper {
    struct pool *pool;
    struct thread *thread;
    int index;
};

/* A thread's items. `next` is the job's number (high half) and the next free item (low half), so that a helper that
 * comes late cannot take an item of another job than the one whose fields it read: a job's fields change only once all
 * of its items are taken, and a lane's end only when its number is not the old one any more. Who takes a lane's last
 * item says so in `open` before it says that it is done. */
struct lane {
    _Alignas(64) _Atomic uint64_t next;
    _Atomic uint32_t end;
};

enum { MOST_LANES = 64 }; /* beyond that several threads share one */

struct pool {
    _Alignas(64) _Atomic uint32_t job; /* futex word: helpers sleep on it */
    _Atomic uint32_t sleepers;
    _Atomic(pool_fn *) fn;
    _Atomic(void *) ctx;
    _Atomic int n_lanes; /* that have items */
    _Atomic bool stop;
    _Alignas(64) _Atomic uint32_t left; /* items not yet done, or not yet said to be */
    _Atomic uint32_t caller_sleeps;
    _Atomic uint64_t open; /* bit l: lane l has items that nobody has taken */
    struct lane lanes[MOST_LANES];
    int n_threads;
    struct helper *helpers;
    struct busy *busy; /* [n_threads] when it is watched, else NULL */
    struct clock clock;
    int64_t run_ns; /* when it is watched */
    _Atomic(pool_idle_fn *) idle;
    void *idle_ctx;
};

/* When a thread of a watched pool begins with items (since 0), or has done one, which took from `since` on. The caller
 * sees that, as it comes before `left` is counted down. */
static int64_t note_item(struct pool *p, int thread, int64_t since)
{
    int64_t now = clock_now(&p->clock);
    if (since)
        p->busy[thread].ns += now - since;
    return now;
}

/* What a thread does in a job. */
struct stint {
    struct pool *pool;
    uint32_t number; /* of the job */
    int thread;
    pool_fn *fn;
    void *ctx;
    uint32_t n_done;
    int64_t since; /* when it is watched */
};

/* The next item of lane l, or -1: it has none in this job, or the job is over. */
static int64_t take(const struct stint *s, int l)
{
    struct lane *lane = &s->pool->lanes[l];
    uint64_t c = atomic_load_explicit(&lane->next, memory_order_acquire);
    uint32_t end;
    do {
        end = atomic_load_explicit(&lane->end, memory_order_acquire);
        if ((uint32_t)(c >> 32) != s->number || (uint32_t)c >= end)
            return -1;
    } while (
        !atomic_compare_exchange_weak_explicit(&lane->next, &c, c + 1, memory_order_acq_rel, memory_order_acquire));
    if ((uint32_t)c + 1 == end)
        atomic_fetch_and(&s->pool->open, ~(UINT64_C(1) << l));
    return (uint32_t)c;
}

static void run_lane(struct stint *s, int l)
{
    for (int64_t item; (item = take(s, l)) >= 0; s->n_done++) {
        if (s->pool->busy && !s->since)
            s->since = note_item(s->pool, s->thread, 0);
        s->fn(s->ctx, (int)item, s->thread);
        if (s->pool->busy)
            s->since = note_item(s->pool, s->thread, s->since);
    }
}

/* The first of the lanes from `from` on, around. */
static int first_lane(uint64_t lanes, int from)
{
    uint64_t behind = lanes >> from << from;
    return __builtin_ctzll(behind ? behind : lanes);
}

/* Takes and runs items of job `number` until there are none. */
static void work(struct pool *p, uint32_t number, int thread)
{
    struct stint s = {.pool = p,
                      .number = number,
                      .thread = thread,
                      .fn = atomic_load_explicit(&p->fn, memory_order_acquire),
                      .ctx = atomic_load_explicit(&p->ctx, memory_order_acquire)};
    int own = thread % MOST_LANES;
    if (own < atomic_load_explicit(&p->n_lanes, memory_order_acquire))
        run_lane(&s, own);
    /* One that is seen to be empty stays so; whoever took its last item may be about to say so. */
    uint64_t seen = UINT64_C(1) << own, open;
    while ((open = atomic_load_explicit(&p->open, memory_order_acquire) & ~seen)) {
        int l = first_lane(open, own);
        run_lane(&s, l);
        seen |= UINT64_C(1) << l;
    }
    if (s.n_done && atomic_fetch_sub(&p->left, s.n_done) == s.n_done && atomic_load(&p->caller_sleeps))
        futex_wake(&p->left, 1);
}

/* False: somebody else wants this core. Who polls on would use up his turns of it, and come late when there is work;
 * who sleeps has the next turn when he is woken up. */
static bool yield_core(const struct pool *p)
{
    int64_t from = clock_now(&p->clock);
    sched_yield();
    return clock_now(&p->clock) - from < SHARED_NS;
}

/* From one look to the next. False: there was something to do. */
static bool rest(struct pool *p, int thread)
{
    pool_idle_fn *idle = atomic_load_explicit(&p->idle, memory_order_acquire);
    if (idle && idle(p->idle_ctx, thread))
        return false;
    relax();
    return true;
}

/* Returns the number of a job newer than `seen`, asleep when none comes soon. */
static uint32_t next_job(struct pool *p, uint32_t seen, int thread)
{
    uint32_t now;
    for (int i = 0; i < PAUSE_LOOKS + YIELD_LOOKS;) {
        now = atomic_load_explicit(&p->job, memory_order_acquire);
        if (now != seen)
            return now;
        if (i < PAUSE_LOOKS)
            i += rest(p, thread);
        else if (i++, !yield_core(p))
            break;
    }
    atomic_fetch_add(&p->sleepers, 1);
    while ((now = atomic_load(&p->job)) == seen)
        futex_wait(&p->job, seen);
    atomic_fetch_sub(&p->sleepers, 1);
    return now;
}

static void helper_main(void *arg)
{
    struct helper *h = arg;
    uint32_t seen = 0;
    for (;;) {
        seen = next_job(h->pool, seen, h->index);
        if (atomic_load(&h->pool->stop))
            return;
        work(h->pool, seen, h->index);
    }
}

static void wait_all(struct pool *p)
{
    uint32_t left;
    bool alone = true;
    for (int i = 0; i < WAIT_YIELD_LOOKS && alone; i++) {
        if (!atomic_load_explicit(&p->left, memory_order_acquire))
            return;
        if (i < WAIT_PAUSE_LOOKS)
            rest(p, 0);
        else
            alone = yield_core(p);
    }
    atomic_store(&p->caller_sleeps, 1);
    while ((left = atomic_load(&p->left)))
        futex_wait(&p->left, left);
    atomic_store(&p->caller_sleeps, 0);
}

static void publish(struct pool *p, uint32_t job)
{
    atomic_store(&p->job, job);
    if (atomic_load(&p->sleepers))
        futex_wake(&p->job, p->n_threads);
}

static int n_lanes_of(const struct pool *p, int n_items)
{
    int n = p->n_threads < MOST_LANES ? p->n_threads : MOST_LANES;
    return n < n_items ? n : n_items;
}

int pool_lane(const struct pool *p, int n_items, int thread)
{
    int n = n_lanes_of(p, n_items);
    return thread < n ? (int)((int64_t)n_items * thread / n) : n_items;
}

/* Divides the items. Nobody takes one before the job's number is known. */
static void lay_out(struct pool *p, uint32_t job, int n_items)
{
    int n = n_lanes_of(p, n_items);
    for (int l = 0; l < n; l++) {
        struct lane *lane = &p->lanes[l];
        uint64_t number = (uint64_t)job << 32;
        atomic_store_explicit(&lane->next, number | UINT32_MAX, memory_order_release);
        atomic_store_explicit(&lane->end, (uint32_t)pool_lane(p, n_items, l + 1), memory_order_release);
        atomic_store_explicit(&lane->next, number | (uint32_t)pool_lane(p, n_items, l), memory_order_release);
    }
    atomic_store_explicit(&p->n_lanes, n, memory_order_release);
    atomic_store_explicit(&p->open, ~UINT64_C(0) >> (64 - n), memory_order_release);
}

void pool_run(struct pool *p, int n_items, pool_fn *fn, void *ctx)
{
    if (n_items <= 1 || p->n_threads == 1) {
        for (int i = 0; i < n_items; i++)
            fn(ctx, i, 0);
        return;
    }
    int64_t begun = p->busy ? clock_now(&p->clock) : 0;
    uint32_t job = atomic_load_explicit(&p->job, memory_order_relaxed) + 1;
    atomic_store_explicit(&p->left, (uint32_t)n_items, memory_order_relaxed);
    lay_out(p, job, n_items);
    atomic_store_explicit(&p->fn, fn, memory_order_release);
    atomic_store_explicit(&p->ctx, ctx, memory_order_release);
    publish(p, job);
    work(p, job, 0);
    wait_all(p);
    if (p->busy)
        p->run_ns += clock_now(&p->clock) - begun;
}

void pool_while_idle(struct pool *p, pool_idle_fn *fn, void *ctx)
{
    p->idle_ctx = ctx;
    atomic_store_explicit(&p->idle, fn, memory_order_release);
}

int pool_watch(struct pool *p, struct err *e)
{
    p->busy = mem_try_aligned((size_t)p->n_threads * sizeof *p->busy, 64);
    return p->busy ? 0 : err_set(e, E_FULL, "no memory to watch %d threads", p->n_threads);
}

struct pool_time pool_watched(const struct pool *p)
{
    int64_t busy = 0;
    for (int i = 0; i < p->n_threads && p->busy; i++)
        busy += p->busy[i].ns;
    return (struct pool_time){p->run_ns, p->run_ns - busy / p->n_threads};
}

int pool_open(struct pool **out, int n_threads, struct err *e)
{
    ASSERT(n_threads >= 1);
    struct pool *p = mem_try_aligned(sizeof *p, 64);
    *out = NULL;
    if (!p)
        return err_set(e, E_FULL, "no memory for a thread pool");
    p->n_threads = n_threads;
    clock_init_real(&p->clock);
    p->helpers = mem_new_array((size_t)n_threads, sizeof *p->helpers);
    for (int i = 1; i < n_threads; i++) {
        char name[16];
        snprintf(name, sizeof name, "cpu-%d", i);
        p->helpers[i] = (struct helper){p, NULL, i};
        int rc = thread_start(&p->helpers[i].thread, name, helper_main, &p->helpers[i], e);
        if (rc) {
            pool_close(p);
            return rc;
        }
    }
    *out = p;
    return 0;
}

void pool_close(struct pool *p)
{
    if (!p)
        return;
    atomic_store(&p->stop, true);
    publish(p, atomic_load(&p->job) + 1);
    for (int i = 1; i < p->n_threads; i++)
        thread_join(p->helpers[i].thread);
    mem_free(p->helpers);
    mem_free(p->busy);
    mem_free(p);
}

int pool_threads(const struct pool *p)
{
    return p->n_threads;
}
