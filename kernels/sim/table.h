/* Measured kernel times as utilisation, over a regular grid. Values are held at the edges of the grid, and between its
 * points they are linear in a coordinate that is nearly the logarithm. Read from the file that a hardware description
 * names, which is untrusted. Immutable, any thread. Invariant: every value is positive. */
#ifndef KERNELS_SIM_TABLE_H
#define KERNELS_SIM_TABLE_H

#include <stdint.h>

#include "engine/base/err.h"
#include "engine/base/json.h"

enum { TABLE_AXES = 5 };

struct sim_table {
    int n_axes, size[TABLE_AXES]; /* 0 axes: no table */
    double *axis[TABLE_AXES];     /* positive, ascending */
    double *scale[TABLE_AXES];    /* sim_table_scale of the same points */
    int32_t *values;              /* [size[0]][size[1]]...: measured time over roofline time, in thousandths */
};

/* Which kernels can be tabulated: the names in the file. */
enum sim_table_kind {
    TABLE_GEMM_BF16,
    TABLE_GEMM_FP8, /* outputs, columns, rows */
    TABLE_PREFILL_BF16,
    TABLE_PREFILL_FP8, /* head size, q heads per kv head, new tokens, sequences, q heads */
    TABLE_DECODE_BF16,
    TABLE_DECODE_FP8, /* head size, cached tokens, sequences * kv heads */
    TABLE_REDUCE,
    TABLE_REDUCE_EAGER,
    TABLE_ALL_TO_ALL,
    TABLE_ALL_GATHER, /* devices, bytes */
    TABLE_KINDS
};

struct sim_tables {
    struct sim_table of[TABLE_KINDS];
};

/* The tables of an object {name: {"axes": [[...], ...], "thousandths": [...]}, ...}. */
int sim_tables_read(struct sim_tables *t, const struct json *object, const char *name, struct err *e);
void sim_tables_free(struct sim_tables *t);
double sim_table_at(const struct sim_table *t, const double *x);
/* The first axis along which x lies outside of the grid; -1: none. */
int sim_table_leaves(const struct sim_table *t, const double *x);
const char *sim_table_name(enum sim_table_kind kind);
int sim_table_find(const char *name); /* the kind; -1: none */
int sim_table_axes(enum sim_table_kind kind);
const char *sim_table_axis(enum sim_table_kind kind, int axis); /* in words */
/* The logarithm of base 2 of x > 0, straight between powers of two: exact arithmetic only. */
double sim_table_scale(double x);

#endif
