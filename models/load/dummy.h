/* Seeded random weights, tensor by tensor: the same bytes on every machine for the same (config, type, seed), and sizes
 * of activations like a trained model's. Pure: the caller owns all memory. */
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
