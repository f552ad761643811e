/* Measures the communicator of a set of ranks at start: all-reduces by size and algorithm, and the barrier. Uses
 * threads of its own, which end before it returns; nobody else uses the devices meanwhile. Invariant: every number is a
 * median of measured times. */
#ifndef EXEC_COMM_MEASURE_H
#define EXEC_COMM_MEASURE_H

#include "kernels/backend.h"

enum { COMM_SIZES = 4 };
#define COMM_NEVER ((size_t)1 << 40)
struct comm_measure {
    size_t bytes[COMM_SIZES];                               /* of an all-reduce of all ranks */
    int64_t oneshot_ns[COMM_SIZES], twoshot_ns[COMM_SIZES]; /* medians; 0: not measured (sim, or not asked for) */
    int64_t meet_ns;                                        /* a barrier */
    size_t library_bytes; /* from which on the machine's library was faster; COMM_NEVER: nowhere; 0: there is none */
};

/* The least size from which two shots were always faster; unmeasured: 32 KiB, where each rank's reading begins to
 * outweigh a barrier; SIZE_MAX: never. */
size_t comm_twoshot_from(const struct comm_measure *m);
/* What was measured, for the log: the least and the largest size, and which algorithm is taken from which size on. */
enum { COMM_SAID = 256 };
void comm_measure_say(const struct comm_measure *m, char out[COMM_SAID]);
/* devices: [n], by member of c. E_SYS when there is no thread to be had. */
int comm_measure_set(struct comm_measure *out, const struct backend_ops *ops, struct comm *c,
                     struct device *const *devices, int n, struct err *e);

#endif
