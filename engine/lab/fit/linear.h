/* A step's time as a sum of terms that are not negative: a + b * rows + c * tokens looked at + d * rows that are
 * sampled, in nanoseconds. Fitted by least squares on the time itself, weighted by 1 / prediction, whose solution has
 * the right total; what takes more than a few times as long as predicted counts as that much, so that a pause of the
 * machine bends nothing. Pure functions, any thread. */
#ifndef LAB_FIT_LINEAR_H
#define LAB_FIT_LINEAR_H

#include "engine/lab/fit/step_fit.h"

enum { LINEAR_TERMS = 4 };

struct linear {
    double terms[LINEAR_TERMS];
};

double linear_ns(const struct linear *l, const struct fit_step *s); /* > 0 */
/* which: n places in steps, at least one. slow: by place, by how much the machine was slower then. */
struct linear linear_fit(const struct fit_step *steps, const double *slow, const uint32_t *which, size_t n);

#endif
