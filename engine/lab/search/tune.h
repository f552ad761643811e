/* `moonshift tune`: searches the declared params of a policy on a trace, in virtual time, for what is best within the
 * bounds that were set; prints the Pareto front that it found and writes the best params. Random points on a shortened
 * trace come first, then the best of them on the whole trace, then smaller and smaller steps around the best; in rounds
 * whose size does not depend on the machine, so that the same flags and seed give the same bytes. Main thread.
 * Invariant: every point of the front was run on the whole trace. */
#ifndef LAB_SEARCH_TUNE_H
#define LAB_SEARCH_TUNE_H

#include <stdint.h>

#include "engine/base/err.h"
#include "engine/base/strings.h"
#include "engine/lab/arrivals.h"

struct tune_ask {
    const char *policy, *trace;             /* for the report */
    const char *declared;                   /* the policy's params, as its params_get writes them */
    struct strings objectives, constraints; /* metrics by name; bounds on them */
    struct strings params,
        fixed;           /* NAME or NAME=LOW..HIGH to search, none: all that have bounds; NAME=VALUE that stay */
    struct strings args; /* the command line of one simulation, but for the policy's params: `moonshift` left out */
    struct arrivals_setup arrivals; /* the same trace */
    int64_t budget, jobs;           /* simulations in all; at once, 0: as many as there are cores */
    uint64_t seed;
    double starvation_s;
    const char *json, *params_out; /* files to write; NULL: none */
};

/* E_INPUT: a metric, a bound or a param is wrong; E_UNSUPPORTED: nothing to
 * search; E_NOTFOUND: nothing that was tried keeps the bounds (the nearest was shown); E_GONE: interrupted. */
int tune(const struct tune_ask *ask, struct err *e);

#endif
