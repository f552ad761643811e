/* Linear layers by AMX, which multiplies tiles: 16 rows by 16 outputs by 32 columns at once, of bytes (quantised
 * weights and fast inputs, where there are rows enough) and of bfloat16 (pairs, whatever the rows). Any thread; a call
 * touches only what its job names, and the thread's tiles, which are free again afterwards. Invariant: of quantised
 * weights the same bits as the kernels of kernels.h, whose table it goes with; of pairs the same however the work is
 * cut. */
#ifndef CPU_LINEAR_AMX_H
#define CPU_LINEAR_AMX_H

#include "kernels/cpu/kernels.h"

/* The rows of a tile of inputs, and from how many on those of bytes gain: what they store takes as long for fewer. */
enum { AMX_TILE = 16, AMX_ROWS = 32 };

/* As cpu_kernels.linear, of a job of fast inputs whose row0 is a multiple of its tile; which is AMX_TILE, unless the
 * weights are pairs. */
typedef void linear_fn(const struct linear_job *j, int g, int groups, int row0, int n, struct linear_scratch *s);

/* NULL where the program was not built for it. */
linear_fn *linear_amx(void);

#endif
