/* Measures the communicator of a set of ranks at start: all-reduces by size and algorithm, and the barrier. Uses
 * threads of its own, which end before it returns; nobody else uses the devices meanwhile. Invariant: every number is a
 * median of measured times. */
#ifndef EXEC_COMM_MEASURE_H
#define EXEC_COMM_MEASURE_H

#include "engine/exec/comm.h"

/* devices: [n], by member of c. E_SYS when there is no thread to be had. */
int comm_measure_set(struct comm_measure *out, const struct backend_ops *ops, struct comm *c,
                     struct device *const *devices, int n, struct err *e);

#endif
