/* How long steps take, fitted to steps that were measured, with what is left over carried along.
 *
 * The mean: of each layout, a linear form of the step's size whose terms are not negative. Its terms come from a fit
 * that slow steps do not bend. Then each region of like steps (one layout, one number of groups beside it, predictions
 * within about a factor of 1.4, or more where steps are few) gets a factor that makes its total right. So the sum of
 * the predictions is the sum of what was measured: over all steps, each layout, each number of groups beside it, and
 * each region.
 *
 * The rest: how slow the machine was at the time, from one stretch of some dozen steps to the next, as far as that is
 * more than luck (a busy neighbour lasts); and the remainder of each step, of which those of the region are drawn. A
 * remainder is drawn as often as its step weighs in the total, so that the mean stays what it was.
 *
 * Owned by whoever made it; one thread until step_fit_end, then read only. Invariants: memory has a bound, past which
 * steps are left out evenly; results are the same on every machine. */
#ifndef LAB_FIT_STEP_FIT_H
#define LAB_FIT_STEP_FIT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/rng.h"
#include "engine/world/layout.h"

struct fit_step {
    struct layout layout;
    bool cas;   /* rows go to the owners of pooled FFN layers */
    int beside; /* other groups that were in a step when this one was posted */
    int rows;
    int logits;       /* rows that give a token; 0: it does not read the head's weights */
    double looked_at; /* as in struct step_size */
    int64_t at_ns;    /* when it was posted */
    int64_t ns;       /* what its ranks took; at least 1 where it is learnt from */
    int64_t lag_ns;   /* what went by besides, from the event that it waited for until it was taken in; -1: unknown */
};

/* What a prediction rests on. */
enum fit_basis {
    FIT_MEASURED,
    FIT_SIZE,   /* the layout was measured, with as many groups beside it, but no step nearly as large or as small */
    FIT_BESIDE, /* the layout was measured, but never with so many groups beside it */
    FIT_LAYOUT, /* the layout never ran: the best known one, scaled by the number of ranks */
    FIT_BASES
};

struct fit_drawn {
    int64_t ns, lag_ns;
    enum fit_basis basis;
};

/* Over the steps that it was fitted to. */
struct fit_quality {
    uint64_t n_steps, n_left_out;
    double measured_ns, modelled_ns; /* means */
    double error;                    /* mean |modelled - measured| / measured */
    double lag_ns;                   /* mean of those that are known */
    double spells;                   /* share of the machine's slowness that lasts; 0: every step has luck of its own */
};

struct step_fit;

/* head_share: of the model's weights, those of its head; 0 where that is not known. */
struct step_fit *step_fit_new(double head_share);
void step_fit_free(struct step_fit *f); /* NULL is fine */
void step_fit_add(struct step_fit *f, const struct fit_step *s);
void step_fit_end(struct step_fit *f); /* once, after the last step */
const struct fit_quality *step_fit_quality(const struct step_fit *f);
/* The mean of such a step at that time; ns and lag_ns of s are not looked at. basis may be NULL. */
double step_fit_mean(const struct step_fit *f, const struct fit_step *s, enum fit_basis *basis);
/* One such step. */
struct fit_drawn step_fit_draw(const struct step_fit *f, const struct fit_step *s, struct rng *luck);
/* The most groups that were seen beside one of this layout; -1: the layout never ran. */
int step_fit_most_beside(const struct step_fit *f, struct layout l);

#endif
