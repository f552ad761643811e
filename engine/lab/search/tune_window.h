/* Parts of a trace that a search looks at: the quarter of its time in which most work arrives, for a wide look, since
 * what is best there is best where it matters; and all its quarters, or other seeds of a generator, on which what was
 * found has to hold as well. Read from the arrivals once, by whoever searches. Invariant: depends on the trace alone.
 */
#ifndef LAB_SEARCH_TUNE_WINDOW_H
#define LAB_SEARCH_TUNE_WINDOW_H

#include "engine/lab/arrivals.h"

enum { TUNE_QUARTERS = 4 };

struct tune_window {
    double from, seconds; /* seconds 0: all */
    uint64_t seed_more;   /* of a generator: its seed is so much larger */
    double rows;          /* that arrive in it */
};

struct tune_windows {
    double rows, tokens, span_s; /* of all; span: from the first arrival to the last */
    bool generated;
    struct tune_window busiest, quarters[TUNE_QUARTERS]; /* of span 0: all of it, each */
};

/* E_INPUT, E_SYS from the trace. The busiest window begins at an arrival and counts prompts and answers alike. */
int tune_windows_read(struct tune_windows *w, const struct arrivals_setup *trace, struct err *e);

#endif
