/* The time after a swap in which the new policy is watched: what requests meet now is compared with what they met
 * before, and at the end of each span of guards.h the policy is kept, watched on, or sent back. probation.c is the
 * course of it, probation_judge.c what the guards say. A rollback has to be convincing: a guard trips when what it
 * counts is next to impossible as chance, in many separate stretches of time, and the load alone does not explain it;
 * while the load may explain it, the probation goes on, up to a limit. Where a simulation predicted what the swap would
 * bring (prediction.h), it is also said whether it did; a policy that misses that is kept all the same, unless its
 * order was strict. Part of struct live; engine thread only.
 * Invariants: a probation that has begun ends once, with an outcome and its reason; the same events at the same times
 * end it the same way, so a recording need not know of it. */
#ifndef ENGINE_PROBATION_H
#define ENGINE_PROBATION_H

#include "engine/guards.h"
#include "engine/policy.h"

enum {
    PROBATION_MOST_WINDOWS = 10,   /* it lasts at most so many times as long as it should */
    PROBATION_LEAST_REQUESTS = 20, /* first tokens that it takes to judge anything */
    PROBATION_LEAST_STEPS = 100,
    PROBATION_REASON_BYTES = 400
};

enum probation_outcome {
    PROBATION_COMMITTED,
    PROBATION_ROLLED_BACK, /* by itself */
    PROBATION_WITHDRAWN,   /* by its verdicts (live.c) */
    PROBATION_RECALLED,    /* rolled back by an operator */
    PROBATION_REPLACED,    /* another policy was swapped in */
    PROBATION_OUTCOMES,
    PROBATION_GOES_ON = PROBATION_OUTCOMES
};

/* When several trip at once, the first of them is named: it says most about the cause. */
enum guard {
    GUARD_STARVATION,
    GUARD_THROUGHPUT,
    GUARD_PREEMPTIONS,
    GUARD_REFUSALS,
    GUARD_FIRST_TOKENS,
    GUARD_TOKEN_TIMES,
    GUARD_COUNT
};

enum guard_state {
    GUARD_CALM,    /* nothing that chance would not bring */
    GUARD_UNKNOWN, /* too little to compare, before the swap or since */
    GUARD_WAITS,   /* it is worse, and the load may be why */
    GUARD_TRIPPED
};

enum { LOAD_SCALES = 5 }; /* 2, 4, 8, 16 and 30 spans */

/* The busiest 2, 4, ... spans in a row of a window. */
struct load {
    int n_spans;
    double requests[LOAD_SCALES], tokens[LOAD_SCALES];
    double output_rate; /* tokens of answers in a span, the mean */
};

/* What requests of one key met before the swap. */
struct guard_before {
    uint64_t serial;            /* of the key then */
    int n[GUARD_KINDS];         /* samples; below PROBATION_LEAST_REQUESTS nothing is compared */
    float p90[GUARD_KINDS];     /* seconds */
    float late[GUARD_KINDS];    /* what takes longer than this is late */
    int spans[GUARD_KINDS];     /* of a stretch: requests in it may well be late for one and the same reason */
    double chance[GUARD_KINDS]; /* that most requests of a stretch are late */
    float queue_p99;
    struct load load;
};

/* Flows of the window before the swap, in a span: means. */
struct flows_before {
    double prompt_tokens, output_tokens, n_steps, n_preempted, recomputed_tokens, n_arrived, n_refused;
    int stretch;        /* spans that have five steps or more */
    double slow_chance; /* that little is served in a stretch although more waits */
};

struct guard_report {
    enum guard_state state;
    char words[PROBATION_REASON_BYTES]; /* what it sees; "" while there is nothing to say */
};

/* What a policy that has been on probation came to. */
struct probation_end {
    bool ever;
    enum probation_outcome outcome;
    char name[NAME_BYTES], sha256[65], reason[PROBATION_REASON_BYTES];
    uint64_t generation;
    int64_t ns, took_ns;
    struct prediction predicted;
    struct prediction_seen seen; /* how it had come out by then */
    double failed;               /* calls that did not stand, for each step */
};

struct probation {
    struct guards *guards; /* NULL: no policy is put on probation. The engine's */
    bool on;
    int64_t window_ns, since_ns;
    int64_t first_span;  /* the first that began after the swap */
    int64_t judged;      /* spans before this one have been judged */
    int64_t settled_ns;  /* requests that came from then on count: those before may have found a burst from before the
                            swap; 0: not yet */
    uint64_t dead_ranks; /* that had failed before */
    uint64_t limits_set; /* how often an operator had changed the limits before */
    uint64_t n_first_tokens; /* since */
    uint64_t steps_before;
    double usual_waiting; /* requests that waited at the ends of the spans before, the mean */
    uint64_t busy_tokens; /* as much waiting is more than a span's work */
    struct flows_before flows;
    bool summed; /* `before` is there */
    struct guard_before before[GUARD_KEYS];
    int64_t oldest_ns[GUARD_KEYS]; /* arrival of the oldest request of the key that had not begun at the end of the last
                                      span; 0: none */
    int n_overtook[GUARD_KEYS];    /* that came after it and got their first token, since it was the oldest */
    struct guard_report reports[GUARD_COUNT];
    struct load_change load;     /* since, against before */
    struct prediction predicted; /* is_made: what comes is compared with it, too */
    struct prediction_seen seen;
    struct span_sums sums_before[GUARD_WINDOW];
    int n_before;
    int64_t look_again;           /* the load may be why it misses its prediction: no end before this span */
    uint64_t n_failed, n_decided; /* calls that did not stand, and steps, of the last window since */
    struct probation_end last;
    uint64_t n_ended[PROBATION_OUTCOMES], n_came_out[CAME_COUNT];
};

/* A policy goes live. predicted: of this swap; NULL: nothing was. Nothing where there are no guards. */
void probation_begin(struct probation *p, const struct world *w, const struct prediction *predicted, int64_t now_ns);
/* The end of a turn: what was before is summed up, which takes longer than a step should wait for. Nothing where that
 * is done. */
void probation_tend(struct probation *p);
/* Judges when a span has ended since the last time. Returns the outcome that is due, with its reason, or
 * PROBATION_GOES_ON; *judged: something was looked at, so the turn belongs in a recording. */
enum probation_outcome probation_judge(struct probation *p, const struct world *w, int64_t now_ns, bool *judged,
                                       char reason[PROBATION_REASON_BYTES]);
/* It is over; nothing where it is not on. */
void probation_end(struct probation *p, enum probation_outcome how, const struct policy *policy, const char *reason,
                   int64_t now_ns);
/* r has got its first token: whom has it overtaken? */
void probation_note_first_token(struct probation *p, const struct request *r);
int64_t probation_next_ns(const struct probation *p); /* when it is to be judged next; INT64_MAX: it is not on */
const char *probation_outcome_name(enum probation_outcome o);
void probation_state(const struct probation *p, int64_t now_ns, struct buf *json); /* two members, a comma before */
void probation_metrics(const struct probation *p, struct buf *out);

/* ---- probation_judge.c */
void probation_sum_flows(struct probation *p); /* of the window before now */
void probation_sum_up(struct probation *p);    /* the samples of the window before the swap, first_span being set */
/* Fills the reports. Returns the guard that has tripped first; GUARD_COUNT: none. */
enum guard probation_look(struct probation *p, const struct world *w, int64_t now_ns);
const char *guard_name(enum guard g);

/* ---- probation_predicted.c */

void probation_sum_spans(struct probation *p); /* the window before now, for what is compared with the prediction */
/* What came is compared with what was predicted; nothing where nothing was. */
void probation_look_back(struct probation *p);

#endif
