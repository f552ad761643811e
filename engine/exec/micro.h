/* Cuts a batch into micro-batches, which go through the stages of a pipelined group one behind another. Plain data in
 * an arena, any thread. Invariant: the micro-batches have all rows and all results of the batch, in order, each once; a
 * sequence that is cut goes on in the next one, so its rows find the cached positions of those before. */
#ifndef EXEC_MICRO_H
#define EXEC_MICRO_H

#include "engine/base/mem.h"
#include "kernels/backend.h"

/* Into n of nearly the same number of rows; n is at most the rows. [n], in the arena, pointing into the batch. */
struct batch *micro_split(struct arena *a, const struct batch *b, int n);

#endif
