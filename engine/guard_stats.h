/* The few statistics that guards need: how unlikely a count or a mean is, and the ranks of samples. Pure functions, any
 * thread. */
#ifndef ENGINE_GUARD_STATS_H
#define ENGINE_GUARD_STATS_H

/* The chance that of n things, each of which happens with probability p, k or more happen. 1 for k <= 0. */
double stats_binomial_tail(int n, double p, int k);
/* The chance that Student's t with so many degrees of freedom (>= 1) is above t >= 0, and the t that it is above with
 * this chance (1e-9 to 0.5). */
double stats_student_tail(double t, int freedom);
double stats_student_quantile(double chance, int freedom);
/* The value below which a share q (0 to 1) of the n values lies, n >= 1: the nearest rank, so always one of them. Puts
 * them into another order; O(n) for all but contrived ones. */
float stats_quantile(float *values, int n, double q);

#endif
