/* A pipeline: which layers each of its stages has, and what each micro-batch of a step holds. Pure functions, any
 * thread. A micro-batch is an even share of the step's rows, as the sizes of a step do not say which rows are whose.
 * Invariant: the layers of all stages are those of the model, and the rows of all micro-batches those of the step. */
#ifndef KERNELS_SIM_STAGES_H
#define KERNELS_SIM_STAGES_H

#include "engine/world/estimate.h"

/* The first n % parts of them have one more. */
static inline int stages_share(int n, int parts, int i)
{
    return n / parts + (i < n % parts);
}

/* The i-th micro-batch of n (step_size_micro). */
struct step_size stages_micro_batch(const struct step_size *s, int n, int i);

#endif
