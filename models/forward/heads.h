/* Draft heads in the forward: a speculator (models/load/speculator.h) guesses what follows the tokens that a step has
 * sampled. heads_weights are its tensors on a device, immutable, which ranks of one memory share; heads are one
 * rank's working memory, used by its thread.
 *
 * A request whose guess is wanted (heads_ask) has its newest token and its draft tokens in the step. A row counts when
 * the tokens before it were right; the guess goes on from the last row that does: from its hidden state after the
 * final norm, and the token that was sampled there. The asks of a step are dealt out to the members of the group, of
 * the last stage where there are several. Each is one member's alone, which needs nothing of the others for it but what
 * the forward has given to all of them: so a guess is the same bits in every layout. Invariant: an ask is written by
 * its member alone, and read by others once the step has ended. */
#ifndef MODELS_FORWARD_HEADS_H
#define MODELS_FORWARD_HEADS_H

#include "engine/world/draft.h"
#include "kernels/backend.h"
#include "models/load/speculator.h"

struct heads_ask {
    int first;            /* logit row of the step: of its newest token; those of its draft tokens follow */
    struct drafts drafts; /* borrowed */
    struct draft_made made;
    /* its member's: */
    int at;             /* the draft token of the last row known to count; -1, to begin with: the newest token */
    bool ready, passed; /* the last row that counts is known; the guess is made */
};

struct heads_asks {
    const struct sample_result *results; /* of the step, by logit row */
    struct heads_ask *items;             /* in the order of their rows; at most MOST_ASKS */
    int n;
};

struct heads_weights;
/* The tensors on the device. E_UNSUPPORTED where the machine has no ops for them, E_FULL. */
int heads_weights_load(struct heads_weights **out, const struct speculator *s, const struct backend_ops *ops,
                       struct device *d, struct err *e);
void heads_weights_free(struct heads_weights *w); /* NULL is fine */
size_t heads_weights_bytes(const struct heads_weights *w);

struct heads;
/* w is borrowed. E_FULL without memory. */
int heads_open(struct heads **out, const struct heads_weights *w, struct device *d, struct err *e);
void heads_close(struct heads *h); /* NULL is fine */
size_t heads_bytes(const struct heads *h);

/* Between begin and finish. Member `me` of n: takes the rows of its asks that count, out of the residual of the logit
 * rows [first, first + rows) of the step, whose tokens have been sampled by now. */
struct heads_rows {
    struct heads_asks *asks;
    int me, n, first, rows;
    struct act hidden;
    const float *out_norm;
    float norm_eps;
};
void heads_keep(struct heads *h, const struct heads_rows *r);
/* Makes the guesses of its asks that are ready. */
void heads_guess(struct heads *h, struct heads_asks *asks, int me, int n);

#endif
