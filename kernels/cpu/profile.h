/* The profile of a CPU device: ops that stand before those of the backend, look at the clock around them and count what
 * they were given. Belongs to the device; counted by the rank's thread, read by any. Invariant: an op that is not
 * watched takes nothing of this: a table of ops has these, or it has not. */
#ifndef CPU_PROFILE_H
#define CPU_PROFILE_H

#include "kernels/backend.h"

void cpu_watch(struct backend_ops *ops); /* backend_ops.watch */

#endif
