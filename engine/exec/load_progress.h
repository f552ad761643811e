/* The progress line of a load: one for all ranks that load weights at the same time, so that lines do not mix. Made by
 * the node, freed by it when all have loaded. Any thread adds. Invariant: the last line, which says how fast it went,
 * comes once, after all others. */
#ifndef EXEC_LOAD_PROGRESS_H
#define EXEC_LOAD_PROGRESS_H

#include <stdbool.h>

struct load_progress;

/* total: bytes as stored. timed: bytes are really read, so the last line says how fast. */
struct load_progress *load_progress_new(double total, bool timed);
void load_progress_free(struct load_progress *p);              /* NULL is fine */
void load_progress_add(struct load_progress *p, double bytes); /* NULL is fine: nothing is said */

#endif
