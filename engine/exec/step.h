/* A step: one forward of one group, as data. Built by the engine from a forwarded batch of a plan, run by the ranks of the group, absorbed by the
 * engine, freed. It owns an arena. Ownership moves with the message that carries it; between post and done it is the rank's.
 * Rule zero: for the length of the step its batch points into requests (block lists, sampling settings, timelines for penalties). That is safe
 * because a busy request is neither changed nor freed before the step is absorbed. */
#ifndef EXEC_STEP_H
#define EXEC_STEP_H

#include "engine/world/plan.h"
#include "kernels/backend.h"

struct step_item {
    req_id id;
    int n_tokens;           /* computed by this step */
    int first_result;       /* in batch.results: first n_given prompt logprobs, then one sampled token when samples is set */
    int n_given, given_at;  /* given_at: timeline index of the token that the first of them scores */
    bool samples;
};

struct step {
    struct arena arena;
    int group;
    struct batch batch;
    struct step_item *items;
    int n_items;
    int64_t posted_ns, done_ns; /* engine clock */
    struct step_time time;
    int rc;                 /* of the rank */
    struct err err;
};

struct step *step_build(const struct plan_batch *b);
void step_free(struct step *s); /* NULL is fine */

#endif
