/* How far the output of a request has been read by the guide that says what may come next (models/guide/guide.h); 0 is
 * not at all. Part of a request. */
#ifndef WORLD_GUIDED_H
#define WORLD_GUIDED_H

#include <stdint.h>

struct guided {
    uint64_t serial; /* of the guide, which begins anew when it has kept too much */
    int n;           /* tokens read */
    int32_t state;
};

#endif
