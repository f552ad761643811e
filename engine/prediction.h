/* What was said beforehand of a policy that goes live, and whether it came out so. Before the swap a simulation ran the
 * live policy and the other one on the same traffic, so what it predicts are changes: the other's mean over the live
 * one's, less 1; what the simulator gets wrong of both cancels. What came is compared span by span of guards.h: the
 * mean before the swap and since, each with the spread that stretches of time show. Pure values and functions, any
 * thread. Invariants: a prediction is told to be missed only where chance alone is next to impossible as the reason,
 * and neither more nor less traffic than before explains it; the same spans give the same answer. */
#ifndef ENGINE_PREDICTION_H
#define ENGINE_PREDICTION_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/buf.h"

enum predicted {
    PREDICTED_TTFT, /* means over requests */
    PREDICTED_TPOT,
    PREDICTED_THROUGHPUT, /* tokens/s, of prompts and of answers */
    PREDICTED_COUNT
};

enum { PREDICTION_STRETCH = 3, PREDICTION_WORDS = 300 };

/* 0.1: a tenth more than with the live policy. */
struct predicted_change {
    double change;
    double least, most; /* of single stretches of the simulated time, about as long as a probation; change is between */
    int n_stretches;    /* 0: nothing is predicted of it */
};

struct prediction {
    bool is_made;                /* by a simulation of exactly these two policies */
    bool is_strict;              /* a policy that misses it goes back */
    double ago_s;                /* how old it was at the swap */
    double window_s, n_requests; /* the traffic that it rests on */
    double guessed;              /* share of the simulated time that rests on no measured step */
    struct predicted_change changes[PREDICTED_COUNT];
    struct { /* it was asked beside the live policy */
        uint64_t n_asked, n_equal, n_failed;
    } shadow; /* n_asked 0: it was not */
};

/* What requests met in a span. */
struct span_sums {
    double ttft_s, tpot_s, tokens; /* sums */
    double n_ttft, n_tpot;         /* of so many requests */
};

/* More or less than before, so that what came is no measure. */
struct load_change {
    bool more, less;
};

enum came_out {
    CAME_UNKNOWN, /* nothing was predicted, or what there is to compare is too little to say */
    CAME_AS_PREDICTED,
    CAME_BETTER,
    CAME_UNDECIDED, /* it differs, and chance or the load may be why */
    CAME_WORSE,
    CAME_COUNT
};

struct came_out_change {
    enum came_out how;
    bool is_seen;               /* the rest is known */
    double change, least, most; /* observed; that it is in between is 95% sure */
    double chance;              /* that chance alone brings what differs that much; 1: it does not */
};

struct prediction_seen {
    enum came_out how; /* the worst that is known */
    struct came_out_change changes[PREDICTED_COUNT];
};

/* What came: spans, the oldest first; those since the swap without what its beginning still brought from before. */
struct what_came {
    const struct span_sums *before, *since;
    int n_before, n_since;
    struct load_change load;
};

void prediction_compare(const struct prediction *p, const struct what_came *w, struct prediction_seen *out);
/* "worse than predicted: TTFT +35% (95% sure of +20% to +52%), predicted -10%"; "" where nothing was predicted. */
void prediction_words(const struct prediction *p, const struct prediction_seen *s, char out[PREDICTION_WORDS]);
/* The object of GET /admin/policy; failed: calls of the policy that did not stand since, for each step. "null" when
 * there was neither a simulation nor a shadow. */
void prediction_put(const struct prediction *p, const struct prediction_seen *s, double failed, struct buf *json);
const char *predicted_name(enum predicted which); /* as JSON has it: "ttft" */
const char *came_out_name(enum came_out how);     /* "as_predicted" */

#endif
