/* What `moonshift tune` looks at: metrics of a simulation by name ("p99 TTFT", "throughput") and bounds on them ("p99
 * TPOT <= 50ms"). Plain values, any thread. Invariant: for every metric it is known which direction is better. */
#ifndef LAB_SEARCH_TUNE_METRIC_H
#define LAB_SEARCH_TUNE_METRIC_H

#include <stdbool.h>

#include "engine/base/err.h"
#include "engine/base/json.h"

struct tune_metric {
    char name[48];         /* "p99 TTFT" */
    const char *path;      /* in a run's JSON; of a latency: its object */
    int percent;           /* of a latency: 1 to 100, 0: the mean */
    bool is_latency, more; /* in ms; more is better */
};

struct tune_bound {
    struct tune_metric metric;
    bool at_least;
    double limit;
};

/* E_INPUT lists what there is. */
int tune_metric_read(struct tune_metric *m, const char *text, struct err *e);
/* "METRIC <= VALUE" or ">="; VALUE of a latency may end in us, ms or s (without: ms). */
int tune_bound_read(struct tune_bound *b, const char *text, struct err *e);
/* Of one run's JSON. False: it has none (no request came so far). */
bool tune_metric_of(const struct tune_metric *m, const struct json *run, double *out);
/* By how much a value is past the bound, as a share of it; 0: it is kept. */
double tune_bound_excess(const struct tune_bound *b, double v);

#endif
