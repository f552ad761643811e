/* A search under way: what tune.c, which finds points, and tune_plateau.c, which looks around the best, share. Included
 * by these two only. */
#ifndef LAB_SEARCH_TUNE_INNER_H
#define LAB_SEARCH_TUNE_INNER_H

#include "engine/base/rng.h"
#include "engine/lab/search/jobs.h"
#include "engine/lab/search/tune.h"
#include "engine/lab/search/tune_metric.h"
#include "engine/lab/search/tune_space.h"
#include "engine/lab/search/tune_window.h"

enum { MAX_BOUNDS = 8, MAX_VALUES = 2 + MAX_BOUNDS };

struct point {
    double u[TUNE_MAX];
    double values[MAX_VALUES];    /* objectives, then what is bounded */
    double excess;                /* how far past the bounds, summed; 0: all are kept */
    bool plain;                   /* with the policy's own params, not those of u */
    bool whole, known, withdrawn; /* run on the whole trace; it has values; the policy did not live to the end */
    bool refused; /* it cannot be run at all: failure says why. Costs nothing, and is in no way better or worse than
                     another */
    const struct tune_window *window; /* what of the trace it was run on, unless whole */
    double outside;                   /* share of its step time that was priced outside of what was measured */
    char *failure;
};

/* Of one param, around the best: where it makes no difference. */
struct plateau {
    bool low, high, home; /* the low end of its range, the high end, its default does as well */
    double edge;          /* one end of two does as well: all from there to this coordinate do */
};

struct search {
    const struct tune_ask *ask;
    struct tune_space space;
    struct tune_metric objectives[2];
    struct tune_bound bounds[MAX_BOUNDS];
    int n_objectives, n_bounds;
    struct job_signals signals;
    struct point *points;
    int n_points;
    int n_spent, n_planned; /* simulations */
    double n_finished;      /* of the default's run: a point that loses requests is not better */
    struct tune_windows windows;
    struct tune_limits limits;                 /* by the plain point's run */
    struct point elsewhere[2 * TUNE_QUARTERS]; /* by quarter: the default's, the best's; filled by tune_try_elsewhere */
    struct plateau plateaus[TUNE_MAX];
    struct rng rng;
};

/* Each in a simulation of its own; values, failures and what they cost are written down. */
int tune_run_points(struct search *s, struct point *points, int n, struct err *e);
bool tune_same_values(const struct search *s, const struct point *a, const struct point *b);
int tune_best(const struct search *s); /* its index; -1: nothing has values */

/* tune_elsewhere.c. Does it hold elsewhere what was found? The default and the best on each quarter of the trace, or on
 * four other seeds of a generator: a fit to one burst shows there. */
int tune_try_elsewhere(struct search *s, struct err *e);
void tune_put_elsewhere(const struct search *s, struct buf *out);
void tune_json_elsewhere(const struct search *s, struct buf *out); /* [{"from":..,"default":{..},"best":{..}},...] */
void tune_json_values(const struct search *s, const struct point *p, struct buf *out); /* {"p99 TTFT":..,...} */

/* tune_plateau.c. A search ends anywhere on a plateau, and calls it the best: so each param of the best is tried at
 * both ends of its range and at its default. Those that do as well there go back. */
int tune_look_around(struct search *s, struct err *e);
bool tune_makes_no_difference(const struct plateau *p);
/* In words: where the best could as well be elsewhere. */
void tune_put_plateaus(const struct search *s, int best, struct buf *out);

#endif
