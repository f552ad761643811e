/* From the rows of a sequence to its vector. Pure functions, any thread. Invariant: a vector depends on its rows alone;
 * sums are taken in double, by column, in the order of the tokens. */
#ifndef MODELS_ENCODE_POOL_H
#define MODELS_ENCODE_POOL_H

#include <stddef.h>

#include "models/encode/encoder.h"

/* n rows of dim columns, ld apart. */
void pool_rows(enum encoder_pooling pooling, const float *rows, size_t ld, int n, int dim, float *out);
/* To length 1; one of zeros stays. */
void pool_normalise(float *v, int n);
/* E_DEVICE: it is no vector of a model. */
int pool_check(const float *v, int n, struct err *e);

#endif
