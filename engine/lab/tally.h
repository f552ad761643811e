/* What a replay comes to: latencies at percentiles, throughput, goodput. Times are whole nanoseconds and percentiles
 * are values that occurred (nearest rank), so two machines agree to the last digit. Owned by whoever made it, any one
 * thread. Invariant: latencies cover finished requests only. */
#ifndef LAB_TALLY_H
#define LAB_TALLY_H

#include "engine/lab/replay.h"

/* TPOT: from the first token to the last, per token after the first (answers of one token have none). Queue: until
 * first scheduled. Completion: until the last token. */
enum tally_latency { TALLY_TTFT, TALLY_TPOT, TALLY_QUEUE, TALLY_COMPLETION, TALLY_COUNT };

struct tally_slo {
    double ttft_ms, tpot_ms; /* 0: none */
};

struct tally {
    int64_t *sorted[TALLY_COUNT];
    size_t n[TALLY_COUNT];
    uint64_t n_requests, n_finished, n_refused, n_failed, n_unfinished;
    uint64_t n_prompt_tokens, n_output_tokens, n_cached_tokens; /* of finished requests */
    uint64_t n_good;                                            /* finished within the objectives */
    double seconds;                                             /* from the first arrival to the last ending */
    double throughput, output_throughput, requests_per_s,
        goodput;    /* tokens/s (prompt and output), tokens/s, requests/s, good requests/s */
    double *spread; /* tokens of each of the replay's bins: prompts evenly over arrival to first token, outputs evenly
                       over first to last */
    size_t n_spread;
    double peak_throughput; /* the most of them in any 10 s (a shorter run: all of it), per second */
    double peak_output;     /* the most output tokens that were made in any 10 s, per second */
};

const char *tally_name(enum tally_latency l); /* "ttft", ... */
void tally_make(struct tally *t, const struct replay *r, struct tally_slo slo);
/* The same of the requests of one priority. */
void tally_make_class(struct tally *t, const struct replay *r, struct tally_slo slo, int priority);
/* The same of the requests of one tenant, by its place in the replay. */
void tally_make_tenant(struct tally *t, const struct replay *r, struct tally_slo slo, int tenant);
/* Of the finished requests that arrived in one of the replay's bins. */
struct tally_arrivals {
    uint64_t n, n_tpot;      /* n_tpot: of more than one token */
    double ttft_ns, tpot_ns; /* sums */
};
void tally_by_arrival(const struct replay *r, struct tally_arrivals *bins); /* [r->n_bins], zeroed */
void tally_free(struct tally *t);
/* The value that `percent` (1..100) of the requests do not exceed; -1: there is none. */
int64_t tally_percentile(const struct tally *t, enum tally_latency l, double percent);
int64_t tally_mean(const struct tally *t, enum tally_latency l);

#endif
