/* The answer of a what-if, made of what `simulate --json` wrote: what each policy would have given, curves over the
 * window with at most WHATIF_POINTS points, what rests on guesses, and what went wrong with the policy. Pure, any
 * thread. Invariant: what comes in is from our own child, and still anything that it lacks is an error. */
#ifndef SERVE_WHATIF_REPORT_H
#define SERVE_WHATIF_REPORT_H

#include "engine/base/json.h"
#include "engine/prediction.h"
#include "engine/serve/whatif/whatif.h"

enum { WHATIF_POINTS = 120 };

struct whatif_report {
    const struct whatif_window *window;
    const struct whatif_policy *live; /* NULL: it was not run */
    const struct whatif_policy *other;
    double took_s, stretch_s;     /* stretch: of a prediction, foretell.h */
    struct prediction *predicted; /* filled: what it predicts of the swap. is_made stays false where it has problems or
                                     nothing to compare with */
};

/* An object: window; took_s; model: what step times rest on; live (null: it was not run) and other: their figures; ok
 * and problems: whether and why it should not go live; notes. E_INPUT: this is no such result. */
int whatif_report(const struct whatif_report *r, const struct json *result, struct buf *out, struct err *e);

#endif
