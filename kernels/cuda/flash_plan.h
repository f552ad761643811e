/* How the attention of a step is divided into the work items of flash.cu: which sequences are narrow, and into how
 * many parts the cache of each is cut so that the whole GPU has work (split KV, as in Flash-Decoding). Pure arithmetic
 * on the host, done once a step for all layers. Invariant: every item has at least one query and one key. */
#ifndef CUDA_FLASH_PLAN_H
#define CUDA_FLASH_PLAN_H

#include "kernels/backend.h"
#include "kernels/cuda/fast.h"

struct flash_shape {
    int kv_heads, most_heads; /* most q heads of one kv head */
    int window, n_sms;
    int tile; /* queries of a wide tile: FLASH_TILE or FLASH_HOPPER_TILE */
};

struct flash_plan {
    int n_wide, n_narrow; /* items */
    int n_slots, n_parts; /* of flash_job */
};

/* CTAs that run side by side. */
int flash_places(const struct flash_shape *s);
/* items NULL: only counts. Else the wide ones come first, n_wide of them, those with most positions in front; then the
 * narrow ones. */
void flash_plan(struct flash_plan *p, const struct batch *b, const struct flash_shape *s, struct flash_item *items);

#endif
