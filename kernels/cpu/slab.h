/* Memory for the weights of one CPU device. Matrices lie side by side in large areas of huge pages: a matrix alone is
 * often less than such a page, and the system clears ordinary pages one by one, which takes longer than packing. One
 * slab for a device, made and closed with it; thread-safe, since new weights are loaded beside the steps. Invariant:
 * what is free is in the list of holes, sorted by address, and no two of them touch. */
#ifndef CPU_SLAB_H
#define CPU_SLAB_H

#include <stdbool.h>
#include <stddef.h>

struct slab;

/* keeps: memory that was given back stays, written as it is, for the next who asks; else the system gets its pages
 * back. NULL without memory. */
struct slab *slab_open(bool keeps);
void slab_close(struct slab *s); /* all that was taken is gone. NULL is fine */
/* Aligned to 64; the contents are anything. NULL without memory. */
void *slab_take(struct slab *s, size_t bytes);
void slab_give(struct slab *s, void *p, size_t bytes); /* as many bytes as were asked for */

#endif
