/* `moonshift simulate`: a trace through the engine in virtual time, once for each policy; a table of what clients would
 * have seen, and on request JSON, a CSV of requests and pictures. Policies run beside one another, each with an engine
 * and in a thread of its own. Progress goes to stderr, results to stdout; Ctrl-C ends what runs and shows what is
 * there. Main thread. Invariant: results do not depend on the wall clock, on the machine or on how many run at once. */
#ifndef LAB_SIMULATE_H
#define LAB_SIMULATE_H

#include "engine/engine.h"
#include "engine/base/strings.h"
#include "engine/lab/bands.h"
#include "engine/lab/simulate_recorded.h"
#include "engine/lab/tally.h"
#include "kernels/sim/machine.h"

/* What was asked for. */
struct simulate_ask {
    const char *trace, *hashes; /* a file or a generator; hashes beside it, NULL: none */
    uint64_t seed;
    int64_t requests;                       /* of the trace; 0: all */
    double from_s, seconds;                 /* of the trace; 0: from its beginning; all */
    double rate;                            /* requests a second, instead of the trace's; 0: as they come */
    int64_t nodes;                          /* of the machine's kind, each with a policy of its own */
    enum router_kind router;                /* in front of several */
    struct strings policies;                /* NAME|FILE[:param=value,...] */
    struct strings params;                  /* NAME=VALUE, for all of them */
    double slo_ttft_ms, slo_tpot_ms;        /* 0: none */
    const char *json, *plots, *request_log; /* files to write; NULL: none */
    int64_t jobs;                           /* policies at once; 0: as many as there are cores */
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
    /* asked: NAME or FILE; params: NAME=VALUE; again: it was opened with these before. The policy is the caller's. */
    int (*open_policy)(void *ctx, const char *asked, const struct strings *params, bool again, struct policy *out,
                       struct err *e);
    int (*sample)(void *ctx, struct bands *out, struct err *e); /* after the plain run; NULL: no bands. E_GONE:
                                                                   interrupted */
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
    const struct bands *bands; /* NULL: none */
};

int simulate(const struct simulate_setup *s, struct err *e);
/* simulate_report.c */
void simulate_table(const struct simulate_report *r, struct buf *out);
void simulate_json(const struct simulate_report *r, struct buf *out);
int simulate_request_log(const struct simulate_report *r, const char *path, struct err *e);

#endif
