/* Converts F32 to every stored type by the definitions of the formats, for dummy weights and tests: plain rounding, no
 * search for better scales. The inverse is in kernels/dtype.h. Pure, any thread. Invariant: the same bytes on every
 * machine. */
#ifndef MODELS_LOAD_QUANTIZE_H
#define MODELS_LOAD_QUANTIZE_H

#include <stdint.h>

#include "kernels/dtype.h"

/* Writes dtype_row_bytes(t, n) bytes; n is a multiple of the type's block; src is finite. */
void quantize_row(enum dtype t, const float *src, void *dst, int64_t n);

#endif
