/* Seeded random weights, tensor by tensor, which give activations of about the size that a trained model has. Pure;
 * the caller owns all memory. Invariant: the same (config, type, seed) gives the same bytes on every machine. */
#ifndef MODELS_LOAD_DUMMY_H
#define MODELS_LOAD_DUMMY_H

#include <stdint.h>

#include "models/load/model.h"

/* E_UNSUPPORTED when a matrix of the model cannot be stored in that type (columns that no whole blocks fill). */
int dummy_check(const struct model_config *c, enum dtype type, struct err *e);
/* Fills dst with the tensor's bytes: rows x cols in `type` (vectors: F32). scratch: cols floats. */
void dummy_fill(const struct model_config *c, enum tensor_role role, int layer, enum dtype type, uint64_t seed,
                void *dst, float *scratch);

#endif
