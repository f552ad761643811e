/* What a recording says as a whole, for replays that go another way than it did: how long each answer was and who left,
 * what copies took; how long steps take is in recording_steps.h. Owned by whoever made it, one thread. Invariant:
 * memory does not grow with the number of tokens or steps. */
#ifndef LAB_RECORDING_RECORDING_DIGEST_H
#define LAB_RECORDING_RECORDING_DIGEST_H

#include "engine/lab/recording/recording.h"
#include "engine/world/world.h"

struct recording_outcome {
    int64_t order;    /* of the request */
    int32_t n_output; /* -1: unknown: it had not ended */
    enum ending ending;
    int64_t left_ns; /* its client left then; 0: it did not */
};

/* What became of what a source of draft tokens said. */
struct recording_drafts {
    uint64_t n_asked, n_ideas; /* times; of them, those with at least one token */
    uint64_t n_right, n_wrong; /* draft tokens that were right; times that one was wrong */
};

struct recording_digest {
    struct recording_outcome *outcomes; /* in the order of requests; of a window they may have gaps */
    size_t n_outcomes, cap_outcomes;
    int mean_output;             /* of those that finished; at least 1 */
    int64_t first_arrival_ns;    /* the earliest of all; 0: there is none */
    struct ffn_measured fetches; /* of pooled FFN weights, by the last steps that fetched all they lacked */
    uint64_t n_steps, n_failed_steps;
    double mean_ns;             /* of a step, as measured */
    double live_error;          /* mean |said - measured| / measured of what the server's own estimator had said before
                                   each of them */
    double move_bytes, move_ns; /* of all copies of KV */
    struct recording_drafts drafts[MOST_SOURCES]; /* by place */
    uint64_t n_decisions;
    uint64_t n_limits_set; /* orders of an operator for the limits */
    bool complete;
};

static inline int64_t recorded_arrival_ns(const struct recorded *x) /* line of kind a */
{
    return x->arrival_ns > 0 ? x->arrival_ns : 0;
}

int recording_digest(struct recording_digest *d, const char *path, struct err *e);
void recording_digest_free(struct recording_digest *d);
/* What became of a request; NULL: it is from before the window, or was not admitted. */
struct recording_outcome *recording_outcome_of(const struct recording_digest *d, int64_t order);

#endif
