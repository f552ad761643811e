#include "engine/lab/trace/portable_math.h"

#include <stdint.h>
#include <string.h>

/* ln 2 in two parts: k * high is exact for the exponents of doubles. */
static const double ln2_high = 0x1.62e42fee00000p-1, ln2_low = 0x1.a39ef35793c76p-33;

static double two_to(int k) /* -1022 <= k <= 1023 */
{
    uint64_t bits = (uint64_t)(k + 1023) << 52;
    double v;
    memcpy(&v, &bits, sizeof v);
    return v;
}

/* x = m * 2^k with m in [sqrt(1/2), sqrt(2)); ln m = 2 artanh((m - 1) / (m + 1)). */
double portable_ln(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    int k = (int)(bits >> 52) - 1023;
    bits = (bits & 0x000fffffffffffffu) | 0x3ff0000000000000u;
    double m;
    memcpy(&m, &bits, sizeof m);
    if (m > 1.4142135623730951) {
        m *= 0.5;
        k++;
    }
    double s = (m - 1) / (m + 1), s2 = s * s, sum = 0;
    for (int i = 23; i >= 3; i -= 2)
        sum = (sum + 1.0 / i) * s2;
    return k * ln2_high + (k * ln2_low + 2 * s * sum + 2 * s);
}

double portable_exp(double x)
{
    double scaled = x * 1.4426950408889634;
    int k = (int)(scaled < 0 ? scaled - 0.5 : scaled + 0.5);
    double r = x - k * ln2_high - k * ln2_low, sum = 1;
    for (int i = 16; i >= 1; i--)
        sum = 1 + sum * r / i;
    return k < -1021 ? sum * two_to(k + 100) * two_to(-100) : sum * two_to(k);
}

double portable_cos_turns(double u)
{
    int quarter = (int)(u * 4 + 0.5);
    double a = (u - quarter * 0.25) * 6.283185307179586, a2 = a * a, sum = 1; /* |a| <= pi / 4 */
    int odd = quarter & 1;
    for (int i = 18; i >= 2; i -= 2)
        sum = 1 - sum * a2 / ((double)(i + odd) * (i + odd - 1));
    double v = odd ? a * sum : sum; /* sine, cosine of a */
    return quarter % 4 == 1 || quarter % 4 == 2 ? -v : v;
}
