/* Products that are being timed: an event on either side of each, in the stream's own order, read when the step has
 * ended. One per device, used by the device's thread. Invariant: nothing waits for an event, so the stream runs as it
 * does while it serves. */
#ifndef CUDA_TRIAL_H
#define CUDA_TRIAL_H

#include "kernels/cuda/tuning.h"

struct device;
struct trials;

/* False: what is to be timed is not (no more events, or the device has failed). */
bool trial_begin(struct device *d, const struct tuning_key *k, int way);
void trial_end(struct device *d); /* of the one that has begun */
/* After the wait for the step. failed: of its times none counts. */
void trials_collect(struct device *d, bool failed);
void trials_close(struct device *d);

#endif
