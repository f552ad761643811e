/* What the files of the report of simulations share: simulate_report.c has the table and the JSON, simulate_tenants.c
 * what is said by tenant. Included by these only. */
#ifndef LAB_SIMULATE_INNER_H
#define LAB_SIMULATE_INNER_H

#include "engine/lab/simulate.h"

enum { NAME_COLUMN = 28, CELL_BYTES = 40 };

size_t simulate_column_width(const struct simulate_run *run); /* of the table, after NAME_COLUMN */
/* A figure that follows from what steps took; one that rests on prices outside of what was measured is marked. */
void simulate_cell_timed(const struct simulate_run *run, char *cell, double v, int digits);
/* ,"ttft_ms":{...} */
void simulate_json_latency(struct buf *out, const struct tally *t, enum tally_latency l);

/* ---- simulate_tenants.c: nothing where all requests are of one tenant */

void simulate_tenants_table(const struct simulate_report *r, struct buf *out);
void simulate_tenants_json(struct buf *out, const struct simulate_run *run, struct tally_slo slo);

#endif
