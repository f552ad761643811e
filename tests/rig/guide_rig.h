/* The list of tokens behind an output, for tests that walk guides one token at a time. Any one thread. */
#ifndef RIG_GUIDE_RIG_H
#define RIG_GUIDE_RIG_H

#include "models/guide/guide.h"

/* false: it cannot be found, or the output is none of the grammar's. ids: until another call of guides_of. */
static inline bool guide_next(struct guide *g, struct guided *at, const int32_t *output, int n, struct guide_ids *ids)
{
    const struct guide_ids *found = guide_ids(g, guide_state(g, at, output, n));
    *ids = found ? *found : (struct guide_ids){0};
    return found;
}

#endif
