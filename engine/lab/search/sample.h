/* The samples of a simulation: `moonshift simulate --sample I` for each, in processes side by side, and what they came
 * to as bands. Main thread. Invariant: the result does not depend on how many run at once. */
#ifndef LAB_SEARCH_SAMPLE_H
#define LAB_SEARCH_SAMPLE_H

#include "engine/base/strings.h"
#include "engine/lab/bands.h"

enum { SAMPLE_MOST = 1000 };

struct sample_ask {
    struct strings args; /* the command line of the simulation, but for --samples and where results go */
    int n_samples, n_policies;
    int jobs; /* at once; 0: as many as there are cores */
};

/* Opens b, which is the caller's in every case. E_GONE: interrupted. */
int sample_run(struct bands *b, const struct sample_ask *ask, struct err *e);

#endif
