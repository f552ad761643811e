/* How a step's attention is cut into CTAs: rows by what fits the queries of one, long caches by what fills the GPU. Pure arithmetic, any thread.
 * Never true: a position of a row in two items, or in none. */
#ifndef CUDA_PLAN_H
#define CUDA_PLAN_H

#include "kernels/backend.h"
#include "kernels/cuda/job.h"

struct flash_shape {
    int most_heads;             /* q heads of a kv head, 1 .. FLASH_QUERIES */
    int n_kv, window, n_sms;
};

struct flash_counts {
    int n_items, n_folds, n_parts;
};

/* Fills items and folds (both NULL: only counts). */
struct flash_counts flash_cut(const struct batch *b, const struct flash_shape *s, struct flash_item *items, struct flash_fold *folds);

#endif
