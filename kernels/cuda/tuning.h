/* Which way a product takes where it has several (product.c), by what each took when it was tried in rehearsed steps. A
 * way that is not clearly faster than the one that a rule would take is not chosen, so that luck decides little. One
 * for all devices of a program: they are of one kind, and choose alike. Trials come from the ranks' threads, under a
 * lock; once it is settled it is read only. The file names GPU, driver, library and build, and is ignored by any other.
 * Invariant: what is in a file cannot do more harm than a slow way; a way that a device does not have is not taken. */
#ifndef CUDA_TUNING_H
#define CUDA_TUNING_H

#include <stddef.h>
#include <stdint.h>

#include "engine/base/err.h"
#include "kernels/tuning.h"

/* Two of SLIM: its columns cut into as many parts as fill the device once, or twice. */
enum product_way { WAY_SKINNY, WAY_SLIM, WAY_SLIM_FINER, WAY_WIDE, WAY_WIDENED, WAY_KINDS };
/* Of WAY_WIDE several: by the library's first proposal, its second, and so on. A way is kind + WAY_KINDS * proposal. */
enum { WAY_PROPOSALS = 3, TUNING_WAYS = 8, TUNING_MOST = 4096 };

/* A product; no padding, compared as bytes. */
struct tuning_key {
    int32_t family, rows, outs, cols; /* rows: tuning_round of them; outs: of all outputs */
    int32_t n_out, flags;             /* of those below */
};
enum { TUNING_GATED = 1, TUNING_ADDED = 2, TUNING_MIXED = 4 }; /* mixed: the last outputs are of another family */

/* The next of the rows that are tried; those above the last are the last. */
int tuning_round(int rows);

const struct tuning_ops *tuning_ops(void);
/* Says what the devices are; the first that does so has the file read. Any thread. */
void tuning_meet(struct tuning *t, const char *machine);
/* Shall this product be tried now, and how? ways[0]: that of the rule; n > 1. Any thread. */
bool tuning_next(struct tuning *t, const struct tuning_key *k, const int *ways, int n, int *way);
/* What a trial took. Any thread. */
void tuning_add(struct tuning *t, const struct tuning_key *k, int way, float us);
/* The way to take, one of these. Any thread. */
int tuning_choice(struct tuning *t, const struct tuning_key *k, const int *ways, int n);

#endif
