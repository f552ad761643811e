/* `moonshift simulate`: a trace through the engine in virtual time, once for each policy; a table of what clients would
 * have seen, and on request JSON, a CSV of requests and pictures. Progress goes to stderr, results to stdout; Ctrl-C
 * ends the present run and shows what is there. Main thread. Invariant: results do not depend on the wall clock or on
 * the machine. */
#ifndef LAB_SIMULATE_H
#define LAB_SIMULATE_H

#include "engine/engine.h"
#include "engine/base/strings.h"
#include "engine/lab/simulate_recorded.h"
#include "engine/lab/tally.h"
#include "kernels/sim/machine.h"

/* What was asked for. */
struct simulate_ask {
    const char *trace, *hashes; /* a file or a generator; hashes beside it, NULL: none */
    uint64_t seed;
    int64_t requests;                       /* of the trace; 0: all */
    double seconds;                         /* of the trace; 0: all */
    struct strings policies;                /* NAME|FILE[:param=value,...] */
    struct strings params;                  /* NAME=VALUE, for all of them */
    double slo_ttft_ms, slo_tpot_ms;        /* 0: none */
    const char *json, *plots, *request_log; /* files to write; NULL: none */
    int weight_tp;                          /* over how many ranks the machine's weights are sharded; 0: by layout */
    int weight_pp;                          /* in how many stages they are cut */
};

struct simulate_setup {
    const struct simulate_ask *ask;
    const struct engine_setup *engine; /* the node and the limits; no policy */
    const struct recorded_machine
        *recorded; /* the trace is a recording, on its own machine; NULL: not so. Its setups take the place of engine */
    const char *machine;                 /* the machine in words, for the head of the table */
    const struct sim_machine *described; /* its kernels; NULL: two costs, or a recording */
    const char *drafts;                  /* what stands for sources of draft tokens, in words; NULL: nothing */
    int64_t front_ns;                    /* from a request's arrival until the engine hears of it: HTTP and tokenizer */
    /* asked: NAME or FILE; params: NAME=VALUE. The policy is the caller's. */
    int (*open_policy)(void *ctx, const char *asked, const struct strings *params, struct policy *out, struct err *e);
    void *ctx;
};

/* One policy's run. */
struct simulate_run {
    const char *label; /* as asked for, without folder and ".lua" */
    char sha256[65];
    struct replay replay;
    struct tally tally;
    struct recorded_result recorded;
    struct sim_outside *outside; /* of a described machine, else NULL */
    struct sim_step decodes[2];  /* pooled weights: the step of most rows without prompts, and the last one; no rows:
                                    there was none */
};

struct simulate_report {
    const struct simulate_setup *setup;
    const char *trace; /* in words */
    struct simulate_run *runs;
    int n_runs;
};

int simulate(const struct simulate_setup *s, struct err *e);
/* simulate_report.c */
void simulate_table(const struct simulate_report *r, struct buf *out);
void simulate_json(const struct simulate_report *r, struct buf *out);
int simulate_request_log(const struct simulate_report *r, const char *path, struct err *e);

#endif
