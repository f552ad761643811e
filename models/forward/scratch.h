/* Where the activations of a step lie in the forward's slab: computed for each step, since layouts differ in what they
 * keep. Pure arithmetic over what forward_init allocated. Never true: a layout that needs more than
 * forward_scratch_bytes said. */
#ifndef MODELS_FORWARD_SCRATCH_H
#define MODELS_FORWARD_SCRATCH_H

#include "models/forward/forward.h"

void scratch_lay_out(struct forward_scratch *to, const struct forward *f, const struct shard *sh);
/* Rows of logits taken at a time. */
int scratch_chunk(int max_rows, int max_logits);

#endif
