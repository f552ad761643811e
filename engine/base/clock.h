/* Time in nanoseconds since an arbitrary start. A clock is real (CLOCK_MONOTONIC) or virtual (moved by whoever
 * simulates); everything above base asks the clock it was handed, never the system. Virtual: one writer, any readers.
 */
#ifndef BASE_CLOCK_H
#define BASE_CLOCK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct clock {
    bool is_virtual;
    _Atomic int64_t now_ns; /* virtual only */
};

void clock_init_real(struct clock *c);
void clock_init_virtual(struct clock *c, int64_t start_ns);
int64_t clock_now(const struct clock *c);
void clock_advance_to(struct clock *c, int64_t ns); /* virtual only; going back is a bug */
int64_t clock_thread_cpu(void);                     /* CPU time that the calling thread has used, ns */
int64_t clock_wall_seconds(void);                   /* Unix time, for "created" fields and logs only */

#endif
