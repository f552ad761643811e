/* The threads of one CPU rank. The rank's own thread works, too: it publishes numbered items, and pool_run returns when
 * all are done. Each thread has a lane of them, one after the other, so that what it asks for ahead behind the end of
 * an item is what it reads next, and that no other thread's cache has to be asked for the next number; who is done with
 * his own goes on with what others have left, so a thread that lost its core holds up only the item it is in. Owned by
 * the device; pool_run is called by the rank's thread only. Invariants: every item is run once; an idle thread polls
 * for a few microseconds, then yields, and sleeps after a fraction of a millisecond. */
#ifndef CPU_POOL_H
#define CPU_POOL_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/err.h"

struct pool;

/* fn(ctx, item, thread): thread is 0 (the caller) .. n_threads-1, for per-thread memory. */
typedef void pool_fn(void *ctx, int item, int thread);

int pool_open(struct pool **out, int n_threads, struct err *e);
void pool_close(struct pool *p);
int pool_threads(const struct pool *p);
/* Of n_items, where the lane of this thread begins: there it begins, too. For thread n_threads: n_items. */
int pool_lane(const struct pool *p, int n_items, int thread);
/* What a thread does while it polls for items, from one look to the next: some nanoseconds' work, which does not wait
 * for anything. False: there was nothing to do; true again and again it must not be, as such a thread does not sleep.
 * Once, before the first pool_run. */
typedef bool pool_idle_fn(void *ctx, int thread);
void pool_while_idle(struct pool *p, pool_idle_fn *fn, void *ctx);
/* Runs fn for items 0 .. n_items-1, in any order, on any threads. Writes of the items are visible when it returns. Best
 * where items that follow one another lie in memory one behind the other. */
void pool_run(struct pool *p, int n_items, pool_fn *fn, void *ctx);

/* What pool_run has taken since pool_watch where it had items for more than one thread, in ns: all of it, and of that
 * what a thread was without an item for, on average: until it woke up, and until the last one was done. */
struct pool_time {
    int64_t run_ns, wait_ns;
};
/* From now on pool_run looks at the clock, once for each item. E_FULL. Neither this nor pool_watched while it runs. */
int pool_watch(struct pool *p, struct err *e);
struct pool_time pool_watched(const struct pool *p); /* zeros: nobody watches */

#endif
