/* Pictures of simulated runs, as SVG: throughput, requests in the system and KV cache over time; which layout ran when;
 * distributions of TTFT, TPOT and completion time; where FFN weights are pooled, when a step fetches them. A line or a
 * strip for each policy. Main thread, no state. Invariant:
 * a picture shows only the numbers it was given. */
#ifndef LAB_PLOT_H
#define LAB_PLOT_H

#include "engine/lab/simulate.h"

/* Writes throughput.svg, queue.svg, kv.svg, layouts.svg, ttft.svg, tpot.svg, completion.svg and, on a described machine
 * with pooled weights, pool.svg into a folder, which is made when it is not there. */
int plot_report(const struct simulate_report *r, const char *folder, struct err *e);

#endif
