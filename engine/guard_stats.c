#include "engine/guard_stats.h"

#include <math.h>

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

/* The finite sums of Abramowitz and Stegun, 26.7.3 and 26.7.4. */
double stats_student_tail(double t, int freedom)
{
    double angle = atan(t / sqrt(freedom)), cosine = cos(angle), square = cosine * cosine;
    double term = freedom % 2 ? cosine : 1, sum = freedom > 1 ? term : 0;
    for (int i = freedom % 2 ? 3 : 2; i < freedom; i += 2) {
        term *= square * (i - 1) / i;
        sum += term;
    }
    double within = freedom % 2 ? 2 / acos(-1) * (angle + sin(angle) * sum) : sin(angle) * sum;
    return within < 1 ? (1 - within) / 2 : 0;
}

double stats_student_quantile(double chance, int freedom)
{
    double low = 0, high = 1;
    while (stats_student_tail(high, freedom) > chance && high < 1e10)
        high *= 2;
    for (int i = 0; i < 60; i++) {
        double middle = (low + high) / 2;
        *(stats_student_tail(middle, freedom) > chance ? &low : &high) = middle;
    }
    return high;
}

static void swap(float *a, float *b)
{
    float x = *a;
    *a = *b;
    *b = x;
}

/* The k-th smallest, of values that are put into another order: Hoare's selection, which looks at about 3n of them. */
static float select_kth(float *v, int n, int k)
{
    int low = 0, high = n - 1;
    while (low < high) {
        float middle = v[low + (high - low) / 2];
        int i = low, j = high;
        while (i <= j) {
            while (v[i] < middle)
                i++;
            while (v[j] > middle)
                j--;
            if (i <= j)
                swap(&v[i++], &v[j--]);
        }
        if (k <= j)
            high = j;
        else if (k >= i)
            low = i;
        else
            break;
    }
    return v[k];
}

float stats_quantile(float *values, int n, double q)
{
    int at = (int)ceil(q * n) - 1;
    return select_kth(values, n, at < 0 ? 0 : at >= n ? n - 1 : at);
}
