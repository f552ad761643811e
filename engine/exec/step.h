/* A step: one forward of one group, as data. Built by the engine from a forwarded batch of a plan, posted to all ranks of the group at once, absorbed by the
 * engine when the last of them is done, freed. It owns an arena. Ownership moves with the message that carries it; between post and done it is the ranks'.
 * Rule zero: for the length of the step its batch points into requests (sampling settings, timelines for penalties). That is safe
 * because a busy request is neither changed nor freed before the step is absorbed. */
#ifndef EXEC_STEP_H
#define EXEC_STEP_H

#include <stdatomic.h>

#include "engine/exec/comm.h"
#include "engine/world/plan.h"
#include "kernels/backend.h"

struct step_item {
    req_id id;
    int n_tokens;           /* computed by this step */
    int first_result;       /* in results: first n_given prompt logprobs, then one sampled token when samples is set */
    int n_given, given_at;  /* given_at: timeline index of the token that the first of them scores */
    bool samples;
};

/* What one rank of the group gets and gives. */
struct step_part {
    struct batch batch;     /* the same for all but its block lists; results are shared: each row is written by one rank */
    struct step_time time;
    int rc;                 /* E_PEER: another member failed, this rank is well */
    struct err err;
};

struct step {
    struct arena arena;
    int group;              /* id */
    struct layout layout;
    int n_ranks;
    int ranks[MAX_RANKS];   /* by share */
    int tokens_per_block;
    const struct comm_set *comms; /* NULL: a group of one */
    struct step_part *parts;/* [n_ranks] by share */
    atomic_int left;        /* members yet to end */
    struct step_item *items;
    int n_items, n_rows;
    struct sample_result *results;
    int64_t posted_ns, done_ns; /* engine clock */
    int64_t switch_serial;  /* of the engine's own use */
};

/* Where a batch runs. */
struct step_site {
    const struct group *group;
    const struct comm_set *comms;
    int tokens_per_block;
};

struct step *step_build(const struct plan_batch *b, const struct step_site *at);
int64_t step_ns(const struct step *s);      /* of its slowest part */
/* The first part that failed by itself, else any that failed, else NULL; *rank (may be NULL) says whose. */
const struct step_part *step_failure(const struct step *s, int *rank);
void step_free(struct step *s);             /* NULL is fine */

#endif
