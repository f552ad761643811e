/* A search for regret under way: what regret.c (running, and who is best), regret_search.c (which schedules are tried),
 * regret_schedule.c (a schedule as a policy) and regret_report.c share. Included by these only. */
#ifndef LAB_SEARCH_REGRET_INNER_H
#define LAB_SEARCH_REGRET_INNER_H

#include "engine/base/buf.h"
#include "engine/base/json.h"
#include "engine/base/scratch.h"
#include "engine/lab/search/jobs.h"
#include "engine/lab/search/regret.h"
#include "engine/lab/search/tune_metric.h"

enum { REGRET_METRICS = 4, REGRET_MODES = 64, REGRET_BINS = 256, REGRET_SPANS = 60, REGRET_SHIFT_BELOW = 256 };

/* What a schedule chooses from: a partition, and a rule for the layout of each step. */
struct mode {
    int groups, sp, tp;
    int below; /* steps of fewer tokens run in full tensor parallelism; 0: all run in {sp, tp} */
};

enum run_kind { RUN_POLICY, RUN_STATIC, RUN_SCHEDULE };

/* One simulation of the whole trace. */
struct run {
    enum run_kind kind;
    char *asked;                /* after --policy; of a schedule: its words */
    uint8_t modes[REGRET_BINS]; /* of a schedule: in each stretch of time */
    bool known;                 /* it has values, and ended as many requests as any */
    bool withdrawn;
    double values[REGRET_METRICS], finished, n_requests, seconds, outside;
    /* what requests that came in a span waited, in ms, by metric: the latency that it speaks of, else completion */
    double costs[REGRET_METRICS][REGRET_BINS], spans[REGRET_METRICS][REGRET_SPANS];
    char *failure;
};

struct regret {
    const struct regret_ask *ask;
    struct tune_metric metrics[REGRET_METRICS];
    int n_metrics, n_bins, n_ranks;
    double horizon_s, span_s; /* of the bins; of a span of the report, of which there are n_spans. 0: not known yet */
    int n_spans;
    struct job_signals signals;
    struct run **runs;
    int n_runs, n_spent, n_planned;
    struct mode modes[REGRET_MODES];
    int by_mode[REGRET_MODES]; /* the run that has one mode from beginning to end */
    int n_modes;
    double most_finished;
    struct scratch scratch; /* for the files of a run */
};

/* ---- regret.c */

struct run *regret_add(struct regret *g, enum run_kind kind, const char *asked);
int regret_run(struct regret *g, int first, int n, struct err *e); /* runs [first, first + n) beside one another */
bool regret_counts(const struct regret *g, const struct run *r);   /* may it be called good? */
/* By how much a is worse than b, as a factor; below 1: it is better. */
double regret_ratio(const struct regret *g, int metric, const struct run *a, const struct run *b);
const struct run *regret_best(const struct regret *g, int metric, unsigned kinds); /* bits of 1 << kind; NULL: none */

/* ---- regret_search.c: runs the fixed partitions, and then schedules for each metric in turn. */
int regret_search(struct regret *g, struct err *e);

/* ---- regret_schedule.c */

void regret_mode_words(const struct mode *m, struct buf *out);
void regret_schedule_words(const struct regret *g, const struct run *r, struct buf *out);
void regret_schedule_json(const struct regret *g, const struct run *r, struct buf *out);
void regret_schedule_lua(const struct regret *g, const struct run *r, struct buf *out);
int regret_switches(const struct regret *g, const struct run *r); /* how often its mode changes */

/* ---- regret_report.c */

int regret_report(const struct regret *g, struct err *e);

#endif
