/* What a set of ranks measures of its communicator at start: all-reduces by size and algorithm, and the barrier.
 * Threads of its own that end before it returns; the devices are nobody else's meanwhile. Never true: a number that a
 * policy could not have got by waiting. */
#ifndef EXEC_COMM_MEASURE_H
#define EXEC_COMM_MEASURE_H

#include "engine/exec/comm.h"

/* devices: [n], by member of c. E_SYS when there is no thread to be had. */
int comm_measure_set(struct comm_measure *out, const struct backend_ops *ops, struct comm *c,
                     struct device *const *devices, int n, struct err *e);

#endif
