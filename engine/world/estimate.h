/* How long a step will take, learnt from the steps that were run: for each layout, and apart those of its steps that
 * send rows to the owners of pooled FFN layers, time = a + b * rows + c * (cached tokens looked at) + d * (rows that
 * give a token), fitted by recursive least squares with forgetting. The last term is the head and the sampler, which
 * decodes and draft tokens pay and most rows of prompts do not: without it a draft token would have a prompt's price.
 * With pipeline stages the four are those of a pass through all of them, and micro-batches pass one behind another. A
 * layout that has not run yet is judged by the best known one, scaled by the ranks. Owned by the world, engine thread.
 * Invariant: an estimate is finite and not negative. */
#ifndef WORLD_ESTIMATE_H
#define WORLD_ESTIMATE_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/world/layout.h"

enum { ESTIMATE_CELLS = 48, ESTIMATE_TERMS = 4 };

/* What a step's time depends on. Rows alone: a step of that many rows that reads no cached tokens. */
struct step_size {
    int rows;
    double looked_at;         /* sum over rows of the cached tokens that the row attends to, its own included */
    int n_seqs, n_logits;     /* rows that give a token */
    int n_chunks, chunk_rows; /* sequences of more than one row, and their rows */
    double chunk_looked_at;
    int pool_ranks;     /* pooled FFN weights: ranks with work at that time, this group's included; 0: not pooled */
    int cas_layers;     /* of them, layers whose rows go to their owners */
    int replica_layers; /* pooled layers that lie on every rank at that time */
    int n_micro;        /* micro-batches that a pipeline cuts it into; 0: as many as it takes least with */
};

/* One more sequence of `rows` rows behind `before` cached tokens. */
static inline void step_size_add(struct step_size *s, int rows, double before)
{
    double seen = rows * (before + 0.5 * (rows + 1));
    s->rows += rows;
    s->looked_at += seen;
    s->n_seqs++;
    if (rows > 1) {
        s->n_chunks++;
        s->chunk_rows += rows;
        s->chunk_looked_at += seen;
    }
}

/* n sequences more that decode, each behind so many cached tokens. */
static inline void step_size_decodes(struct step_size *s, int n, double before)
{
    s->rows += n;
    s->looked_at += n * (before + 1);
    s->n_seqs += n;
    s->n_logits += n;
}

/* n draft tokens more, shared evenly by sequences that decode. */
static inline void step_size_draft(struct step_size *s, int n)
{
    double each = s->rows ? s->looked_at / s->rows : 0;
    int chunks = n < s->n_seqs ? n : s->n_seqs;
    s->rows += n;
    s->n_logits += n;
    s->looked_at += n * each;
    s->n_chunks = chunks;
    s->chunk_rows = chunks ? n + chunks : 0;
    s->chunk_looked_at = s->chunk_rows * each;
}

/* Micro-batches that the step goes in: what it says, as many as stages where it does not, and never more than rows. */
static inline int step_size_micro(const struct step_size *s, struct layout l)
{
    int n = l.pp == 1 ? 1 : s->n_micro > 0 ? s->n_micro : l.pp;
    n = n < s->rows ? n : s->rows;
    return n > 1 ? n : 1;
}

struct estimate_cell {
    struct layout layout;
    bool cas; /* of steps that send rows to the owners of FFN layers */
    double theta[ESTIMATE_TERMS], p[ESTIMATE_TERMS][ESTIMATE_TERMS];
    uint64_t n_seen;
};

struct estimator {
    /* A machine that knows what a step takes: asked instead of the fit when set. ctx is the caller's and outlives the
     * estimator. */
    int64_t (*known)(const void *ctx, struct layout l, const struct step_size *s);
    const void *ctx;
    struct estimate_cell cells[ESTIMATE_CELLS];
    int n_cells;
    double prior; /* variance of what is assumed of a layout before its first step: the larger, the sooner its steps are
                     believed */
    double forget; /* weight of a step when the next one has been learnt; 1: all count alike */
    double error;  /* exponential average of |predicted - measured| / measured */
};

void estimator_init(struct estimator *e);
/* A step of this layout took ns. Returns what had been predicted. */
double estimator_learn(struct estimator *e, struct layout l, struct step_size s, double ns);
/* In ns. seen (or NULL): how many steps of the layout (and of those, which send rows, or do not, as this one does) it
 * rests on; of a machine that knows, those that were run. */
double estimator_ns(const struct estimator *e, struct layout l, struct step_size s, uint64_t *seen);
/* The micro-batches that such a step takes least with: 1, 2, 4 ... up to four for each stage. Few rows want few: each
 * micro-batch reads all weights. */
int estimator_micro(const struct estimator *e, struct layout l, struct step_size s);

#endif
