/* `moonshift simulate`: a trace through the engine in virtual time, once for each policy; a table of what clients would have seen, and on
 * request JSON, a CSV of requests and pictures. Progress goes to stderr, results to stdout; Ctrl-C ends the present run and shows what is there.
 * Main thread. Never true: a result that depends on the wall clock or on the machine. */
#ifndef FRONT_SIMULATE_H
#define FRONT_SIMULATE_H

#include "engine/engine.h"
#include "engine/front/opts.h"
#include "engine/front/simulate_recorded.h"
#include "engine/front/tally.h"
#include "kernels/sim/machine.h"

struct simulate_setup {
    const struct opts *opts;
    const struct engine_setup *engine;  /* the node and the limits; no policy */
    const struct recorded_machine *recorded; /* the trace is a recording, on its own machine; NULL: not so. Its setups take the place of engine */
    const char *machine;            /* the machine in words, for the head of the table */
    const struct sim_machine *described; /* its kernels; NULL: two costs, or a recording */
    int64_t front_ns;               /* from a request's arrival until the engine hears of it: HTTP and tokenizer */
    /* asked: NAME or FILE; params: NAME=VALUE. The policy is the caller's. */
    int (*open_policy)(void *ctx, const char *asked, const struct opts_list *params, struct policy *out, struct err *e);
    void *ctx;
};

/* One policy's run. */
struct simulate_run {
    const char *label;              /* as asked for, without folder and ".lua" */
    char sha256[65];
    struct replay replay;
    struct tally tally;
    struct recorded_result recorded;
    struct sim_outside *outside;    /* of a described machine, else NULL */
};

struct simulate_report {
    const struct simulate_setup *setup;
    const char *trace;              /* in words */
    struct simulate_run *runs;
    int n_runs;
};

int simulate(const struct simulate_setup *s, struct err *e);
/* simulate_report.c */
void simulate_table(const struct simulate_report *r, struct buf *out);
void simulate_json(const struct simulate_report *r, struct buf *out);
int simulate_request_log(const struct simulate_report *r, const char *path, struct err *e);

#endif
