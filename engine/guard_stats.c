#include "engine/guard_stats.h"

#include <math.h>
#include <stdlib.h>

double stats_binomial_tail(int n, double p, int k)
{
    if (k <= 0 || p >= 1)
        return 1;
    if (k > n || p <= 0)
        return 0;
    double log_term = k * log(p) + (n - k) * log1p(-p); /* of exactly k: n over k, one factor at a time */
    for (int i = 1; i <= k; i++)
        log_term += log((double)(n - k + i) / i);
    double term = exp(log_term), sum = 0;
    for (int i = k; i <= n; i++) {
        sum += term;
        term *= (double)(n - i) / (i + 1) * p / (1 - p);
    }
    return sum < 1 ? sum : 1;
}

static int compare(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return x < y ? -1 : x > y;
}

void stats_sort(float *values, int n)
{
    if (n > 1)
        qsort(values, (size_t)n, sizeof *values, compare);
}

float stats_quantile(const float *sorted, int n, double q)
{
    int at = (int)ceil(q * n) - 1;
    return sorted[at < 0 ? 0 : at >= n ? n - 1 : at];
}
