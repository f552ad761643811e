/* What the threads of a pool can do at most, for profiles and benchmarks: bytes that they read from memory,
 * multiply-adds (counted as two) of bytes, of floats and of pairs of bfloat16 by the widest instructions of a set.
 * Owned and used by the caller of the pool. Invariant: the work of a run is the same each time. */
#ifndef CPU_PROBE_H
#define CPU_PROBE_H

#include "kernels/cpu/pool.h"

enum probe_kind { PROBE_READ, PROBE_INT8, PROBE_F32, PROBE_PAIRS }; /* pairs: for CPUs with AVX512-BF16 or AMX */

struct probe;

/* isa: as in device_facts. mib: of memory to be read, in all. E_FULL. */
int probe_open(struct probe **out, struct pool *pool, const char *isa, int mib, struct err *e);
void probe_close(struct probe *p); /* NULL is fine */
/* Once, milliseconds. Returns how many bytes or operations that was; 0: this set of instructions has no such probe. */
double probe_run(struct probe *p, enum probe_kind what);
/* A second, the best of three runs; 0: as above. */
double probe_rate(struct probe *p, enum probe_kind what);

/* One thread's loop of them: how many operations that was. NULL: there is none. */
typedef double probe_loop(void);
probe_loop *probe_avx2(enum probe_kind what);
probe_loop *probe_avx512(enum probe_kind what);
probe_loop *probe_amx(enum probe_kind what); /* of bytes and pairs */

#endif
