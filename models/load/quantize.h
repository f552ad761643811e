/* F32 to every stored type, by the formats' definitions: for dummy weights and tests. Plain rounding, no search for
 * better scales, and the same bytes on every machine. Pure, any thread. The inverse is kernels/dtype.h's. */
#ifndef MODELS_LOAD_QUANTIZE_H
#define MODELS_LOAD_QUANTIZE_H

#include <stdint.h>

#include "kernels/dtype.h"

/* Writes dtype_row_bytes(t, n) bytes; n is a multiple of the type's block; src is finite. */
void quantize_row(enum dtype t, const float *src, void *dst, int64_t n);

#endif
