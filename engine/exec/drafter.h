/* A small model of the same vocabulary that guesses draft tokens (vLLM's draft_model; Leviathan et al. 2023). The
 * drafter is the node's: its weights, and a KV cache of its own, once in the memory that all ranks reach. A seat is one
 * rank's working memory for it, used by that rank's thread.
 *
 * A request whose guess is wanted (drafter_ask) has its newest token and its draft tokens in a step. Once these have
 * been sampled, what the timeline has become is fed to the drafter as far as it has not seen it yet, and it goes on
 * from there greedily, token by token, all asks of a seat together. A long prompt is caught up with in slices, and
 * guessed for once it has been. The asks of a step are dealt out to the members of the group, of the last stage where
 * there are several; each runs whole on one member, as a forward of one rank, which is the same bits in whatever
 * company: so a guess is the same in every layout.
 *
 * Who has which block is the engine's (engine/draft/model.h), and comes with the ask. A drafter that fails guesses
 * nothing; what the step has sampled stands. Invariant: no two asks of steps that run at the same time have a block in
 * common. */
#ifndef EXEC_DRAFTER_H
#define EXEC_DRAFTER_H

#include "engine/world/draft.h"
#include "engine/world/estimate.h"
#include "kernels/backend.h"
#include "models/load/model.h"

enum { DRAFTER_BLOCK = 16 /* tokens of a block */ };

/* What there is to be drafted with, and for. */
struct drafter_plan {
    const struct model *model; /* borrowed as long as the drafter */
    enum dtype kv_dtype;
    int n_blocks; /* of its KV cache */
};

/* Bytes of a KV block, over all layers. */
size_t drafter_block_bytes(const struct backend_ops *ops, const struct model_config *c, enum dtype kv_dtype);

struct drafter;
struct drafter_setup {
    const struct drafter_plan *plan;
    const struct backend_ops *ops;
    struct device *device; /* whose thread opens it */
    int n_ranks, max_rows; /* that sit down; rows of a step of their devices */
    int vocab;             /* of the model that it drafts for: what it says beyond ends a guess */
};
/* On machines that run draft heads. E_FULL, E_UNSUPPORTED: as weights_load. */
int drafter_open(struct drafter **out, const struct drafter_setup *s, struct err *e);
void drafter_close(struct drafter *d);         /* once nobody uses a seat any more; NULL is fine */
size_t drafter_bytes(const struct drafter *d); /* with all seats */

struct drafter_seat;
/* By the rank's thread, each rank once. E_FULL. */
int drafter_sit(struct drafter *d, int rank, struct device *device, struct err *e);
struct drafter_seat *drafter_seat(struct drafter *d, int rank);

struct drafter_ask {
    const int32_t *tokens; /* the timeline as the step was built, borrowed */
    int n_tokens;
    int first;            /* logit row of the step: of its newest token; those of its draft tokens follow */
    struct drafts drafts; /* borrowed */
    int most;             /* tokens to guess, 1 to MOST_HEADS */
    struct draft_cache cache;
    struct draft_made made; /* out */
};

struct drafter_asks {
    const struct sample_result *results; /* of the step, by logit row */
    struct drafter_ask *items;           /* at most MOST_ASKS */
    int n;
};

/* What a member's guesses took: all in all, and, as what a forward of so many rows takes is worth knowing, the first
 * and the last of its forwards; rows 0: there was none. */
struct drafter_time {
    int64_t ns;
    struct drafter_pass {
        struct step_size size;
        int64_t ns;
    } first, last;
};

/* Behind a step that went well, once all of its rows have been sampled: the asks of member `me` of n. */
void drafter_guess(struct drafter_seat *s, const struct drafter_asks *asks, int me, int n, struct drafter_time *t);

#endif
