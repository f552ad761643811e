/* A step's time as a sum of terms that are not negative, in nanoseconds: a * the weights that it reads + b * rows + c *
 * tokens looked at + d * rows that give a token + e * what its rows multiply with weights, beyond what hides behind
 * their reading. A step that gives no token leaves the head's weights alone: what share they have is given, as
 * recordings in which every step gives one cannot tell. Fitted by least squares on the time itself, weighted by 1 /
 * prediction; what is farther from its prediction than most steps weighs less (Huber 1964), so that pauses of the
 * machine bend nothing. Pure functions, any thread. */
#ifndef LAB_FIT_LINEAR_H
#define LAB_FIT_LINEAR_H

#include "engine/lab/fit/step_fit.h"

enum { LINEAR_TERMS = 5 };

struct linear {
    double head_share; /* of the weights */
    double knot;       /* of so many rows products hide behind the reading of all weights */
    double terms[LINEAR_TERMS];
};

double linear_ns(const struct linear *l, const struct fit_step *s); /* > 0 */
/* Sets the terms, for its knot. which: n places in steps, at least one. slow: by place, by how much the machine was
 * slower then. */
void linear_fit(struct linear *l, const struct fit_step *steps, const double *slow, const uint32_t *which, size_t n);
/* The knot that leaves least over; 0 where none explains more than luck. Of many steps a part is looked at. */
void linear_find_knot(struct linear *l, const struct fit_step *steps, const double *slow, const uint32_t *which,
                      size_t n);

#endif
