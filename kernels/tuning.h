/* Choices of a backend between ways of computing the same: which is fastest depends on the machine, so each is tried in
 * the steps of the rehearsal, among the other work of a step, and what was chosen is kept in a file for the next start.
 * One for all devices of a program. The seam only: what is chosen between is the backend's own affair. */
#ifndef KERNELS_TUNING_H
#define KERNELS_TUNING_H

#include <stdbool.h>

struct tuning;

/* Steps of so many rows are rehearsed for it; more rows than the last take the way of the last. */
static const int tuning_rows[] = {1, 4, 8, 16, 32, 48, 64, 128, 256, 512};
enum { TUNING_ROWS = sizeof tuning_rows / sizeof *tuning_rows };

struct tuning_report {
    int n_products; /* shapes of products that have several ways */
    int n_known;    /* of them, by the file */
    int n_other;    /* that take another way than they would untried */
    char file[512]; /* where the choices are kept; empty: nowhere */
    bool written;   /* now */
};

struct tuning_ops {
    /* folder: where choices are kept; NULL: nowhere. build: this program, as kernels may
     * change with it. Both are copied. Engine thread, and so is all below; never NULL. */
    struct tuning *(*open)(const char *folder, const char *build);
    void (*close)(struct tuning *t); /* after all devices that were given it; NULL is fine */
    /* From now until settle, steps try ways. No step is under way at either. */
    void (*begin)(struct tuning *t);
    bool (*wants)(struct tuning *t); /* what was met so far wants to be tried more often */
    void (*settle)(struct tuning *t, struct tuning_report *out);
};

#endif
