/* The weights of one rank: loaded once from a model into its device, shown as views. Owned by whoever loaded them (the rank), on the
 * rank's thread; read-only afterwards. */
#ifndef EXEC_WEIGHTS_H
#define EXEC_WEIGHTS_H

#include "models/forward.h"

struct weights;

/* Loads every tensor with a progress line (quiet: none). E_FULL names what did not fit. */
int weights_load(struct weights **out, struct model *m, const struct backend_ops *ops, struct device *d, bool quiet, struct err *e);
void weights_free(struct weights *w);
const struct model_weights *weights_view(const struct weights *w);
size_t weights_bytes(const struct weights *w);

#endif
