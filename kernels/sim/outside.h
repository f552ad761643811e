/* How much of a simulation was priced outside of what was measured or described, by table, and how far outside. Filled
 * by cost.c for a machine whose `outside` points here; machine.h sets it. One thread. Invariant: every price that
 * leaves the measured grid is counted. */
#ifndef KERNELS_SIM_OUTSIDE_H
#define KERNELS_SIM_OUTSIDE_H

#include "kernels/sim/machine.h"
#include "kernels/sim/table.h"

struct sim_outside {
    double total_ns;   /* of all steps */
    double outside_ns; /* of kernels in them that were priced outside */
    double times;      /* how often what is priced now happens in its step; set by cost.c */
    struct sim_outside_table {
        double ns;
        int axis;         /* the one that was left last */
        double from, to;  /* measured along it */
        double low, high; /* how far it was left; 0: not on that side */
    } of[TABLE_KINDS];
};

/* A kernel was priced at x, with or without a table: without one, collectives are described for 2 to 8 devices. */
void sim_outside_note(struct sim_outside *o, const struct sim_tables *tables, enum sim_table_kind kind, const double *x,
                      double ns);

#endif
