/* The matrices of an encoder on a CPU; kernels/encode.h says what they do, encode_kernels.h how they lie. Made by any
 * thread, immutable afterwards. Invariant: every weight is -ENCODE_LEVELS .. ENCODE_LEVELS, so that a leaf's sum of
 * products fits 32 bits (ENCODE_INPUT_SUM). */
#ifndef CPU_ENCODE_PACK_H
#define CPU_ENCODE_PACK_H

#include "kernels/cpu/encode_kernels.h"

int encode_matrix_new(struct encode_matrix **out, const struct encode_part *parts, int n_parts, int cols,
                      struct err *e);
void encode_matrix_free(struct encode_matrix *m); /* NULL is fine */

#endif
