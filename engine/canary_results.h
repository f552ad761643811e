/* How the requests of the two sides of a canary fared: counts, times in fine classes, and whether the times of one side
 * are longer than the other's by more than chance. Of each time there are classes of 2% from 1 us to 30 h, so that a
 * book has one size however long it is kept; what is said of them (quantiles, ranks) is that exact. Pure counting, no
 * clock, any thread. Invariant: the classes of a measure hold as many values as it has. */
#ifndef ENGINE_CANARY_RESULTS_H
#define ENGINE_CANARY_RESULTS_H

#include <stdbool.h>
#include <stdint.h>

enum { RESULT_CLASSES = 1280, RESULT_LEAST = 20 /* values of each side, to say anything of a difference */ };

enum result_measure { RESULT_TTFT, RESULT_TPOT, RESULT_QUEUE, RESULT_MEASURES };
const char *result_measure_name(enum result_measure m); /* "ttft", "tpot", "queue" */

struct result_times {
    uint64_t n;
    double sum_s;
    uint32_t classes[RESULT_CLASSES];
};

/* Of one side, since the canary's begin. */
struct side_results {
    uint64_t n_came, n_ended, n_done, n_aborted, n_errors, n_refused; /* done: stop or length */
    uint64_t output_tokens, n_preempted;                              /* of those that ended */
    struct result_times times[RESULT_MEASURES];
};

struct canary_results {
    struct side_results live, canary;
};

void results_add(struct result_times *t, double seconds);
double results_mean(const struct result_times *t);               /* 0: there is none */
double results_quantile(const struct result_times *t, double q); /* the upper end of its class; 0: there is none */

/* The rank test of Wilcoxon, Mann and Whitney, with its normal approximation and corrected for ties. p: how likely
 * values as different as these are, or more so, if both sides were alike and requests independent of one another; 1
 * where a side has fewer than RESULT_LEAST. larger: the chance that a value of b is larger than one of a, ties by
 * half. */
struct rank_test {
    bool enough; /* values, to say anything */
    double p, larger;
};
struct rank_test results_compare(const struct result_times *a, const struct result_times *b);
/* The same of a share: n_a of all_a, and n_b of all_b; two-sided, exact but for taking all_a and all_b as given. */
double results_compare_shares(uint64_t n_a, uint64_t all_a, uint64_t n_b, uint64_t all_b);

#endif
