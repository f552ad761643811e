/* What the files that draw a simulation's pictures share. Included by plot.c and plot_pool.c only. */
#ifndef LAB_PLOT_INNER_H
#define LAB_PLOT_INNER_H

#include "engine/lab/chart.h"
#include "engine/lab/simulate.h"

enum { PLOT_STRIPS_TOP = 58, PLOT_MOST_LABEL = 300 };

int plot_save(struct chart *c, const char *folder, const char *name, struct err *e); /* closes it */
/* The trace, the machine, and how it was done: under the title. */
void plot_describe(const struct simulate_report *r, const char *how, char out[400]);
/* Fetches and products of a step, where FFN weights are pooled; nothing is written where they are not. */
int plot_pool(const struct simulate_report *r, const char *folder, struct err *e);
/* The same from the timelines of a recording: no simulation. */
int plot_recorded_pool(const struct simulate_report *r, const char *folder, struct err *e);

#endif
