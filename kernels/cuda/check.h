/* The trial of a device when it opens, in the default mode. On the rank's thread, before anything else. Invariant: what
 * came out wrong is not used afterwards, and facts.lacks names it. */
#ifndef CUDA_CHECK_H
#define CUDA_CHECK_H

#include "kernels/cuda/device.h"

/* Waits for the device several times; some tens of milliseconds. An error: the device cannot be used. */
int cuda_check(struct device *d, struct err *e);

#endif
