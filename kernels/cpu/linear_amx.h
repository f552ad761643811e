/* Products of quantised weights and many fast inputs by AMX, which multiplies tiles of bytes: 16 rows by 16 outputs by
 * a block at once. Any thread; a call touches only what its job names, and the thread's tiles, which are as before
 * afterwards. Invariant: the same bits as the kernels of kernels.h, whose table it goes with. */
#ifndef CPU_LINEAR_AMX_H
#define CPU_LINEAR_AMX_H

#include "kernels/cpu/kernels.h"

/* The rows of a tile of inputs, and from how many on it gains. */
enum { AMX_TILE = 16, AMX_ROWS = 32 };

/* As cpu_kernels.linear, of a job of fast inputs in tiles of AMX_TILE; row0 is a multiple of that. */
typedef void linear_fn(const struct linear_job *j, int g, int groups, int row0, int n, struct linear_scratch *s);

/* NULL where the program was not built for it. */
linear_fn *linear_amx(void);

#endif
