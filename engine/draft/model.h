/* The source "model": what a draft model guesses at the end of a step (engine/exec/drafter.h), for the next one. It
 * owns the books of the draft model's KV cache: which blocks a request has, and how much of its timeline lies there.
 * Blocks are lent to a step with the ask, and are the request's until it ends, whatever becomes of it in between (it
 * waits, moves to other ranks, begins again): a timeline only grows. Where there is no room, those lose theirs who have
 * not asked for a while; if there are none such, there is no guess, and who has asked gives back what it has. Made by a
 * composition root before the engine, freed after it; calls of the source are the engine thread's. Invariant: a block
 * is free or one request's, and those of a request that is in a step stay. */
#ifndef DRAFT_MODEL_H
#define DRAFT_MODEL_H

#include "engine/world/draft.h"

struct model_drafts;

struct model_drafts_setup {
    int n_blocks, block_tokens; /* of the cache */
    int context;                /* tokens of a timeline that the draft model can take */
    int most;                   /* tokens of a guess; 0: as many as there can be */
};

struct model_drafts *model_drafts_new(const struct model_drafts_setup *s);
void model_drafts_free(struct model_drafts *d); /* NULL is fine; no request is left */
void model_drafts_source(struct model_drafts *d, struct draft_source *to);
/* Blocks that nobody has; for tests, with the times that one lost them to another. */
int model_drafts_n_free(const struct model_drafts *d, uint64_t *n_lost);

#endif
