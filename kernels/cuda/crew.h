/* A few threads that copy memory together: one alone moves a fifth of what a GPU's link takes, and waits for each page
 * of a file that is not in memory yet. Made by the first load of a rank, used by the rank's thread, ended with its
 * device; between copies the threads sleep. Never true: a copy still going on when crew_copy has returned. */
#ifndef CUDA_CREW_H
#define CUDA_CREW_H

#include <stddef.h>

struct crew;

/* So many threads, the caller's included. NULL: no threads are to be had (or one is asked for), and crew_copy works
 * alone. */
struct crew *crew_open(int n_threads);
void crew_close(struct crew *c); /* NULL is fine */
void crew_copy(struct crew *c, void *to, const void *from, size_t bytes);

#endif
