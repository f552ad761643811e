/* How wrong the prices of kernels are, and draws of it: for each kind of kernel the quantiles of measured over priced
 * time on rows that the price did not know, by region along one axis, and how far along each axis an error stays the
 * same. Read from a hardware description, which is untrusted. Immutable, any thread. Invariant: a factor depends on the
 * seed, the kind and the place only, so it is the same all through a run, and is the same on every machine: + - * / and
 * square roots on doubles in a fixed order. */
#ifndef KERNELS_SIM_RESIDUAL_H
#define KERNELS_SIM_RESIDUAL_H

#include <stdint.h>

#include "engine/base/buf.h"
#include "kernels/sim/table.h"

enum { RESIDUAL_LEVELS = 11, RESIDUAL_REGIONS = 8 };

struct sim_residual {
    int n; /* regions; 0: nothing is known of this kind */
    int axis;
    double at[RESIDUAL_REGIONS];                         /* their middles along it, ascending */
    double quantiles[RESIDUAL_REGIONS][RESIDUAL_LEVELS]; /* linear between two middles */
    double doublings[TABLE_AXES]; /* of each axis: how far an error stays the same; 0: each value is by itself */
};

struct sim_residuals {
    struct sim_residual of[TABLE_KINDS];
};

/* {"origin": text, "gemm_fp8": {"rows": n, "doublings": [...], "along": axis, "at": [...], "quantiles": [[...], ...]},
 * ...}. "median" of a kind, if there, is for readers. */
int sim_residuals_read(struct sim_residuals *r, const struct json *object, const char *name, struct err *e);
/* What one draw has measured time over priced time at x; 1 where nothing is known. */
double sim_residual_draw(const struct sim_residuals *r, uint64_t seed, enum sim_table_kind kind, const double *x);
/* The factor that this share of the errors at x is below, for one of the levels: 0.05, 0.5, 0.95. */
double sim_residual_level(const struct sim_residual *r, double level, const double *x);
/* "gemm_bf16, decode_bf16": the kinds of which nothing is known. */
void sim_residuals_lack(const struct sim_residuals *r, struct buf *out);

#endif
