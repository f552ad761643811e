/* What a test may tell the twin of cuBLASLt, and ask it. Process-wide, by one thread while no device works. Invariant:
 * an fp8 product that the library's documentation says is refused is refused here. */
#ifndef EMULATOR_LT_TWIN_H
#define EMULATOR_LT_TWIN_H

#include "kernels/cuda/lt_load.h"

/* Its version (as cublasLtGetVersion has it) from the next loading on; 0: there is no such library. */
void lt_twin_be(int version);
enum { LT_TWIN_VERSION = 130100 };
/* Products of such factors that were enqueued so far. */
int lt_twin_products(cudaDataType_t type);
/* Which of the proposals the latest product was done by. */
int lt_twin_proposal(void);

#endif
