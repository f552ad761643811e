#include "engine/canary_results.h"

#include <math.h>

#include "engine/guard_stats.h"

static const double FIRST_S = 1e-6, EACH = 1.02;

const char *result_measure_name(enum result_measure m)
{
    static const char *const names[] = {"ttft", "tpot", "queue"};
    return names[m];
}

void results_add(struct result_times *t, double seconds)
{
    int c = seconds > FIRST_S ? (int)(log(seconds / FIRST_S) / log(EACH)) : 0;
    t->classes[c < RESULT_CLASSES ? c : RESULT_CLASSES - 1]++;
    t->n++;
    t->sum_s += seconds;
}

double results_mean(const struct result_times *t)
{
    return t->n ? t->sum_s / (double)t->n : 0;
}

double results_quantile(const struct result_times *t, double q)
{
    uint64_t rank = (uint64_t)ceil(q * (double)t->n), seen = 0;
    for (int c = 0; c < RESULT_CLASSES && t->n; c++) {
        seen += t->classes[c];
        if (seen >= rank && seen)
            return FIRST_S * pow(EACH, c + 1);
    }
    return 0;
}

struct rank_test results_compare(const struct result_times *a, const struct result_times *b)
{
    double na = (double)a->n, nb = (double)b->n, n = na + nb, below = 0, u = 0, ties = 0;
    struct rank_test t = {.p = 1, .larger = 0.5};
    if (!a->n || !b->n)
        return t;
    for (int c = 0; c < RESULT_CLASSES; c++) {
        double x = a->classes[c], y = b->classes[c], both = x + y;
        u += y * (below + x / 2); /* of a below each of b */
        below += x;
        ties += both * both * both - both;
    }
    t.larger = u / (na * nb);
    double variance = na * nb / 12 * (n + 1 - ties / (n * (n - 1)));
    t.enough = a->n >= RESULT_LEAST && b->n >= RESULT_LEAST;
    if (!t.enough || variance <= 0)
        return t;
    double off = fabs(u - na * nb / 2) - 0.5;
    t.p = erfc((off > 0 ? off : 0) / sqrt(variance) / sqrt(2));
    return t;
}

enum { MOST_SUMMED = 1000 };

/* Of n things that each are b's with this probability, k or more, or as few as k or fewer, whichever is rarer; twice.
 * Of many things by the normal distribution, as the sum over all of them takes too long for the engine's thread. */
double results_compare_shares(uint64_t n_a, uint64_t all_a, uint64_t n_b, uint64_t all_b)
{
    uint64_t n = n_a + n_b;
    if (!all_a || !all_b || !n)
        return 1;
    double share = (double)all_b / (double)(all_a + all_b);
    if (n > MOST_SUMMED) {
        double off = fabs((double)n_b - (double)n * share) - 0.5;
        return erfc((off > 0 ? off : 0) / sqrt(2 * (double)n * share * (1 - share)));
    }
    double many = stats_binomial_tail((int)n, share, (int)n_b),
           few = 1 - stats_binomial_tail((int)n, share, (int)n_b + 1);
    double p = 2 * (many < few ? many : few);
    return p < 1 ? p : 1;
}
