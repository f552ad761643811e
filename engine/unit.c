#include "engine/unit.h"

#include <math.h>
#include <string.h>

#include "engine/base/nearest.h"

static const char *const names[] = {"",
                                    "ms",
                                    "s",
                                    "share",
                                    "ratio",
                                    "tokens",
                                    "tokens/request",
                                    "tokens/step",
                                    "tokens/s",
                                    "s/1000 tokens",
                                    "requests",
                                    "requests/step",
                                    "requests/s",
                                    "steps",
                                    "blocks",
                                    "ranks",
                                    "groups",
                                    "stages",
                                    "batches",
                                    "layer",
                                    "priority",
                                    "status"};
_Static_assert(sizeof names / sizeof *names == N_UNITS, "each unit has a name");

const char *unit_name(enum unit u)
{
    return names[u];
}

enum unit unit_named(const char *name)
{
    for (int u = UNIT_NONE + 1; u < N_UNITS; u++)
        if (!strcmp(names[u], name))
            return (enum unit)u;
    return UNIT_NONE;
}

const char *unit_nearest(const char *name)
{
    return nearest_word(name, names + 1, N_UNITS - 1);
}

void unit_range(enum unit u, double *low, double *high)
{
    bool counts = u != UNIT_NONE && u != UNIT_LAYER && u != UNIT_PRIORITY; /* those may be -1 */
    *low = counts ? 0 : -INFINITY;
    *high = u == UNIT_SHARE ? 1 : INFINITY;
}
