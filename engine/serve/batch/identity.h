/* What tells a model from another one, as text: by it a batch knows, when it goes on after a restart, that the lines
 * that are left would be answered as those before. Any thread. */
#ifndef BATCH_IDENTITY_H
#define BATCH_IDENTITY_H

#include "engine/base/buf.h"

/* The path, and a hash of the names, sizes and times of what lies there: a file that another one has replaced has
 * another hash. What is not there has none; opening the model says so. */
void identity_put(const char *path, struct buf *out);

#endif
