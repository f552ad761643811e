/* A trace driven through the engine in virtual time: arrivals are submitted when they are due, the clock jumps from
 * event to event, and what became of each request and of the node is written down. The engine, its world and its policy
 * are those of the server; only the machine is simulated. Several nodes of one kind have an engine and a policy each,
 * under one clock and behind a router; what is counted is counted over all of them. Owned by whoever runs it, one
 * thread. Invariants: memory does not grow with the number of tokens; time does not go back. */
#ifndef LAB_REPLAY_H
#define LAB_REPLAY_H

#include "engine/engine.h"
#include "engine/lab/arrivals.h"
#include "engine/lab/router.h"

enum { REPLAY_MAX_BINS = 1 << 16, REPLAY_MAX_LAYOUTS = 256, REPLAY_MAX_SWITCHES = 1 << 16, REPLAY_TENANTS = 64 };

/* The engine's clock at the first arrival of a trace: 0 it takes for "never". */
static const int64_t REPLAY_START_NS = 1000000000;

/* Times are after the first arrival; -1: it did not come to that. */
struct replay_request {
    int64_t arrival_ns, start_ns, first_ns, last_ns, end_ns;
    int32_t n_prompt, n_asked, n_output, n_cached;
    int32_t priority;
    uint32_t n_preempted : 17;
    enum ending ending : 3; /* END_NONE: the replay was stopped before */
    uint32_t node : 6;
    uint32_t tenant : 6; /* its place among the replay's */
};

/* What ran in one layout on one set of ranks, of any node. */
struct replay_layout {
    uint64_t ranks;
    struct layout layout;
    uint64_t n_steps, n_tokens;
    int64_t busy_ns;
};

/* A stretch of time, REPLAY's bin_ns long. Gauges are those at its last event. */
struct replay_bin {
    uint64_t n_arrived, n_ended, n_prefill_tokens, n_output_tokens;
    int32_t n_running, n_waiting, n_groups;
    double kv_used;         /* share of the fullest rank's blocks that sequences hold, of the fullest node */
    int32_t layout;         /* of the most tokens in it: index into layouts; -1: nothing ran */
    uint64_t layout_tokens; /* of that layout */
    int32_t layout_groups;  /* how many groups there were when it ran last */
};

struct replay_switch {
    int64_t at_ns, wait_ns;
    uint64_t ranks;
    bool release, failure;
    int n_kept, n_moved, n_parked, n_recomputed;
    char reason[REASON_BYTES];
};

struct replay {
    struct replay_request *requests;
    size_t n_requests, cap_requests;
    struct replay_bin *bins;
    size_t n_bins, cap_bins;
    char tenants[REPLAY_TENANTS][NAME_BYTES]; /* as they came; where there are more, the last place has all the rest */
    int n_tenants;
    struct holds holds; /* why the policies held requests, of all nodes: how often */
    int64_t bin_ns;     /* 1 s; doubled whenever there would be more than REPLAY_MAX_BINS */
    struct replay_layout layouts[REPLAY_MAX_LAYOUTS];
    int n_layouts;                  /* past the last one, everything is counted as the last one */
    struct replay_switch *switches; /* at most REPLAY_MAX_SWITCHES are kept */
    size_t n_kept_switches, cap_switches;
    uint64_t counters[COUNTER_COUNT];
    uint64_t n_decisions; /* scheduling points */
    uint64_t n_cas_steps; /* pooled weights: steps that send rows of a layer to its owner */
    uint64_t n_live;      /* without an ending */
    double kv_high;       /* highest kv_used at any event */
    int64_t end_ns;       /* the last event */
    bool stopped;         /* before its end, by `stop` */
    struct limits limits; /* as the engine took them */
    int n_nodes;
    int n_ranks, kv_blocks, tokens_per_block; /* of a node; blocks of a rank; tokens of one that holds all KV heads */
    size_t kv_bytes;                          /* of a rank */
    bool conserved;                           /* the books were right at the end */
    char *states[ROUTER_MAX_NODES];           /* of each node, its engine's own account at the end, JSON */
};

struct replay_setup {
    const struct engine_setup *engine; /* not threaded; its policy moves to the engine; clock is set here */
    int n_nodes;                       /* 0: one, and no router */
    enum router_kind router;
    struct policy *others; /* [n_nodes - 1]: of the nodes but the first; they move to their engines */
    struct arrivals *arrivals;
    uint64_t seed; /* of the prompts' text */
    int vocab;
    int64_t front_ns;    /* from arrival to submission */
    bool recorded_front; /* of each request as it was recorded, instead */
    void (*forwarded)(void *ctx, struct layout l,
                      const struct step_size *size); /* each step that is run; may be NULL */
    bool (*poll)(void *ctx, const struct replay *r, int64_t now_ns,
                 int64_t n_live); /* every few thousand events; true: stop. May be NULL */
    void *ctx;
};

/* Runs to the end of the last request. E_INPUT from the trace or the engine's opening; what was replayed before an
 * error of the trace is in *out all the same. */
int replay_run(struct replay *out, const struct replay_setup *s, struct err *e);
void replay_free(struct replay *r);

#endif
