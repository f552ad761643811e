/* The source "heads": what a speculator guesses at the end of a step (models/forward/heads.h), for the next one. It
 * keeps the newest guess of a request until the next, and gives it out as long as nothing has been said since: so what
 * happens to the request between (it waits, moves to other ranks, begins again) does not matter. Engine thread only.
 * Invariant: a guess is given out for the timeline that it was made for. */
#ifndef DRAFT_HEADS_H
#define DRAFT_HEADS_H

#include "engine/world/draft.h"

void heads_source(struct draft_source *to);

/* What a step has guessed, kept until the next one guesses: for sources like this one. */
struct made_guess {
    int n_tokens; /* of the timeline when it was made */
    struct draft_made made;
};
/* Up to `most` tokens of it, if nothing has been said since. */
void made_guess_recall(const struct made_guess *m, const struct request *r, int most, struct draft_guess *g);

#endif
