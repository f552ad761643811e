/* Where the activations of a step lie in the scratch memory of a forward. Layouts need different buffers, so the places
 * are computed anew for each step. Pure arithmetic over the memory that forward_init allocated. Invariant: every layout
 * fits into forward_scratch_bytes. */
#ifndef MODELS_FORWARD_SCRATCH_H
#define MODELS_FORWARD_SCRATCH_H

#include "models/forward/forward.h"

void scratch_lay_out(struct forward_scratch *to, const struct forward *f, const struct shard *sh);
/* Rows of logits taken at a time. */
int scratch_chunk(int max_rows, int max_logits);

#endif
