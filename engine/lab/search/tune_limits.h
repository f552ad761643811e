/* How far a param can matter at all on this trace and machine, by its unit: a budget above the step's limit is the
 * limit, a group has no more ranks than there are. Read from the first simulation, whose result says what the engine
 * took, and from the trace. Owned by the search, one thread. Invariant: what a hard limit cuts off differs in nothing
 * from the limit itself. */
#ifndef LAB_SEARCH_TUNE_LIMITS_H
#define LAB_SEARCH_TUNE_LIMITS_H

#include "engine/base/json.h"
#include "engine/unit.h"

struct tune_limits {
    double step_tokens, step_requests, request_tokens; /* of the engine; 0: not known, here as below */
    double ranks, blocks;                              /* blocks: of all ranks */
    double requests, tokens;                           /* of the trace */
    double seconds;                                    /* the trace, and what is left to do at its end */
};

struct tune_limit {
    double most;
    bool hard;       /* else a value above it may still differ, in order or in sums: the default stays within reach */
    const char *why; /* "--max-num-batched-tokens", "the trace's requests". Static */
};

/* result: of `moonshift simulate --json`, one policy. */
void tune_limits_read(struct tune_limits *l, const struct json *result, double trace_requests, double trace_tokens);
/* Is there a limit for this unit, whatever it is? Before it is read. */
bool tune_unit_is_limited(enum unit u);
/* False: this unit has none, or it is not known. */
bool tune_limit_of(const struct tune_limits *l, enum unit u, struct tune_limit *out);

#endif
