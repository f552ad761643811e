/* A few threads that copy memory together. One thread alone fills only a fifth of the bandwidth of a GPU's link, and
 * waits for each page of a file that is not in memory yet. Made by the first load of a rank, used by the rank's
 * thread, closed with its device; the threads sleep between copies. Invariant: when copier_copy returns, the copy is
 * complete. */
#ifndef CUDA_COPIER_H
#define CUDA_COPIER_H

#include <stddef.h>

struct copier;

/* So many threads, the caller's included. NULL: no threads are to be had (or one is asked for), and copier_copy works
 * alone. */
struct copier *copier_open(int n_threads);
void copier_close(struct copier *c); /* NULL is fine */
void copier_copy(struct copier *c, void *to, const void *from, size_t bytes);

#endif
