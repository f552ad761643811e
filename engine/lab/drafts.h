/* Draft tokens in virtual time. No text is there to guess from, so a model stands for the sources: a draft token is
 * right by a given chance when all before it in its sequence are, which is how acceptance is published (Leviathan et
 * al. 2023). The draws belong to the request and the place in its text, so that policies which draft differently are
 * compared on the same luck. Owned by the composition root until the engines that borrow it are gone; engine thread.
 * Invariant: results do not depend on who is drafted for when. */
#ifndef LAB_DRAFTS_H
#define LAB_DRAFTS_H

#include "engine/world/draft.h"

struct modelled_drafts {
    struct draft_sources sources;
    double chance; /* 0 < chance <= 1 */
    uint64_t seed;
    int vocab; /* of the simulated model */
};

/* d stays where it is. */
void modelled_drafts_init(struct modelled_drafts *d, double chance, uint64_t seed, int vocab);

#endif
