/* The answer of a what-if, made of what `simulate --json` wrote: what each policy would have given, curves over the
 * window with at most WHAT_IF_POINTS points, what rests on guesses, and what went wrong with the policy. Pure, any
 * thread. Invariant: what comes in is from our own child, and still anything that it lacks is an error. */
#ifndef SERVE_WHATIF_REPORT_H
#define SERVE_WHATIF_REPORT_H

#include "engine/base/json.h"
#include "engine/serve/whatif/whatif.h"

enum { WHAT_IF_POINTS = 120 };

struct what_if_report {
    const struct what_if_window *window;
    const struct what_if_policy *live; /* NULL: it was not run */
    const struct what_if_policy *other;
    double took_s;
};

/* An object: window; took_s; model: what step times rest on; live (null: it was not run) and other: their figures; ok
 * and problems: whether and why it should not go live; notes. E_INPUT: this is no such result. */
int what_if_report(const struct what_if_report *r, const struct json *result, struct buf *out, struct err *e);

#endif
