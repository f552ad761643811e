/* The ops of draft heads (models/forward/heads.h): a part of backend.h for machines that have it, run between begin and
 * finish of a step with what the step has computed, beside `linear`, which does their products. Rows are those of
 * several requests. Arithmetic contract: as in backend.h, a row of a result depends on its own row alone; sums are
 * taken in ascending order, and not split. An op on a device that has failed does nothing. */
#ifndef KERNELS_DRAFT_H
#define KERNELS_DRAFT_H

#include "kernels/backend.h"

enum { DRAFT_GATES = 4 };

struct draft_gain {
    const float *gain, *bias; /* [n] device memory */
};

/* From the products to the next state, as models/load/speculator.h has it. */
struct draft_cell_args {
    int rows, n, n_gates;            /* n_gates: 1, or of an LSTM 4 */
    struct act z[DRAFT_GATES];       /* [rows, n] the products W h; overwritten */
    const void *tables[DRAFT_GATES]; /* rows of n elements of `type`, device memory */
    enum dtype types[DRAFT_GATES];
    const int32_t *ids; /* host, [rows]: whose rows of the tables */
    float weight;       /* of those */
    float eps;
    struct draft_gain norm, state_norm; /* state_norm: of an LSTM */
    struct act c, h;                    /* c: of an LSTM, in and out; h: out */
};

struct draft_ops {
    /* False: something has failed in this step, and what others were to give may not be there. */
    bool (*well)(const struct device *d);
    /* y = x / rms(x) * gain; gain: [x.cols] device memory */
    void (*norm)(struct device *d, struct act x, const float *gain, float eps, struct act y, int rows);
    void (*cell)(struct device *d, const struct draft_cell_args *a);
    /* The most likely of `vocab` logits and its share of their softmax: host, [rows]. NaN counts as minus infinity,
     * infinity as the largest number; id -1: there is nothing else. Of equal ones the first. */
    void (*top)(struct device *d, struct act logits, int vocab, int rows, int32_t *ids, float *shares);
};

#endif
