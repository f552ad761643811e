/* `moonshift tune`: searches the declared params of a policy on a trace, in virtual time, for what is best under what must be kept; prints the front of compromises that
 * it found and writes the best params. Made-up points on a shortened trace first, the best of them on the whole, then smaller and smaller steps around
 * the best; in rounds whose size does not depend on the machine, so that the same flags and seed give the same bytes. Main thread.
 * Never true: a point in the front that was not run on the whole trace. */
#ifndef FRONT_TUNE_H
#define FRONT_TUNE_H

#include "engine/front/opts.h"

/* declared: the policy's params as its params_get writes them. E_INPUT: a metric, a bound or a param is wrong; E_UNSUPPORTED: nothing to
 * search; E_NOTFOUND: nothing that was tried keeps the bounds (the nearest was shown); E_GONE: interrupted. */
int tune(const struct opts *o, const char *declared, struct err *e);

#endif
