/* `moonshift regret`: how much policies leave on the table on a trace. Beside the policies named, fixed partitions are
 * simulated, and a schedule of partitions over time is searched with the trace known: the best one found is what a
 * policy could have reached, since the same engine ran it. A policy's regret is what it is worse than that by. Each
 * simulation is a process of its own; the same flags give the same bytes. Main thread. Invariant: the bound is the best
 * of all that was run, so no policy is better than it. */
#ifndef LAB_SEARCH_REGRET_H
#define LAB_SEARCH_REGRET_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/err.h"
#include "engine/base/strings.h"

struct regret_ask {
    const char *trace;               /* for the report */
    struct strings policies;         /* as --policy has them */
    bool named;                      /* by the user: one that cannot be run is an error; else it is left out */
    struct strings metrics;          /* by name; what each policy's regret is counted in */
    struct strings args;             /* the command line of one simulation, but for the policy: `moonshift` left out */
    int64_t budget, jobs;            /* simulations of schedules; at once, 0: as many as there are cores */
    int64_t bins;                    /* stretches of time that a schedule chooses for */
    const char *json, *schedule_out; /* files to write; NULL: none */
};

/* E_INPUT: a metric is wrong, or a named policy cannot be run; E_NOTFOUND: nothing could be run; E_GONE: interrupted
 * (what is there was shown). */
int regret(const struct regret_ask *ask, struct err *e);

#endif
