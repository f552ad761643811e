/* A thread that has the system read a model's files while its weights are loaded: who packs them would else wait for
 * each piece of the disk. Pages come into the cache and into the maps; nothing is copied. Made by whoever opens the
 * engine, and ended before the maps are closed; what it cannot do is no error, as loading reads the files anyway. */
#ifndef LOAD_READ_AHEAD_H
#define LOAD_READ_AHEAD_H

#include "models/load/model.h"

struct read_ahead;

/* From the first byte on, file by file; m outlives it. NULL: there is no file, or no thread. */
struct read_ahead *read_ahead_start(const struct model *m);
void read_ahead_end(struct read_ahead *r); /* waits for one piece at most. NULL is fine */

#endif
