/* What a policy's process uses after its time is up, as far as that shows that it does not stop: being late on the wall
 * is not enough, as it may just not have been running. Its own watchdog stops Lua code (vm.c), with more patience where
 * the machine stands still; so this gives it longer than that takes, and is for a process that goes on in spite of it.
 * Owned by whoever waits. Invariant: a machine that stands still, which a guest's clocks call CPU time, does not use it
 * up. */
#ifndef LUA_OVERTIME_H
#define LUA_OVERTIME_H

#include <stdbool.h>
#include <stdint.h>

struct overtime {
    bool runs;
    int64_t last_cpu_ns, used_ns;
    int n_turns; /* that the process has taken since: each has to wake it up */
};

/* A turn of the process. */
void overtime_turn(struct overtime *o);
/* A look at a process that is late: cpu_ns is its CPU time from any beginning, most_ns what it was given. True: it does
 * not stop. */
bool overtime_is_over(struct overtime *o, int64_t cpu_ns, int64_t most_ns);

#endif
