/* How the ranks of one group share a forward: sequence, tensor and pipeline parallel widths. Plain values. */
#ifndef WORLD_LAYOUT_H
#define WORLD_LAYOUT_H

#include <stdbool.h>

struct layout {
    int sp, tp, pp;
};

static inline int layout_size(struct layout l)
{
    return l.sp * l.tp * l.pp;
}

static inline bool layout_equal(struct layout a, struct layout b)
{
    return a.sp == b.sp && a.tp == b.tp && a.pp == b.pp;
}

#endif
