/* Sanitized (MOONSHIFT_SLOW), what plain C takes ten times as long for is fewer cases; but not for `./test wide`. */
#ifndef RIG_SLOW_H
#define RIG_SLOW_H

#include <stdbool.h>
#include <stdlib.h>

static inline bool rig_slow(void)
{
    return getenv("MOONSHIFT_SLOW") && !getenv("MOONSHIFT_WIDE");
}

#endif
