/* What the groups did since somebody last looked: steps, rows and time by group and layout. A watcher that looks four
 * times a second gets exact sums without a message for each step. Owned by the engine, engine thread only. Invariant:
 * sums over all rows and `missed` are those of all steps since the last pulse_clear. */
#ifndef ENGINE_PULSE_H
#define ENGINE_PULSE_H

#include <stdint.h>

#include "engine/world/layout.h"

enum { PULSE_ROWS = 128 };

struct pulse_row {
    int group; /* its id */
    struct layout layout;
    uint64_t steps, rows; /* rows: tokens that the steps computed */
    int64_t ns;           /* which they took */
};

struct pulse {
    struct pulse_row rows[PULSE_ROWS];
    int n;
    uint64_t missed; /* steps of more groups and layouts than there are rows */
    int64_t since_ns;
};

void pulse_clear(struct pulse *p, int64_t now_ns);
/* A step of this group has ended. */
void pulse_note(struct pulse *p, int group, struct layout layout, int rows, int64_t ns);

#endif
