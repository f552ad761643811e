/* Draft tokens in virtual time. No text is there to guess from, so a model stands for the sources: a draft token is
 * right by a given chance when all before it in its sequence are, which is how acceptance is published (Leviathan et
 * al. 2023). The chance is asked for, or, of each source, what a recording says became of what it guessed. The draws
 * belong to the request and the place in its text, so that policies which draft differently are compared on the same
 * luck. Owned by the composition root until the engines that borrow it are gone; engine thread. Invariant: results do
 * not depend on who is drafted for when. */
#ifndef LAB_DRAFTS_H
#define LAB_DRAFTS_H

#include "engine/lab/recording/recording_digest.h"

struct modelled_source {
    double chance; /* that a token is right; 0: it never guesses */
    double ideas;  /* the chance that it guesses at all, at one place of a text */
    uint64_t seed;
    int vocab; /* of the simulated model; 1: a played machine, which says 0 and nothing else */
};

struct modelled_drafts {
    struct draft_sources sources;
    struct modelled_source each[MOST_SOURCES];
    struct buf words; /* what they are, for reports; empty: there are none */
};

struct modelled_drafts_setup {
    double chance; /* asked for, of all sources; 0: not */
    uint64_t seed;
    int vocab;
    const struct recording_head *head; /* names and places of sources are as recorded; NULL: there is one, "modelled" */
    const struct recording_digest *seen; /* of the same recording */
};

/* d stays where it is, and so does the head. Without a chance and a recording with sources there are none. */
void modelled_drafts_open(struct modelled_drafts *d, const struct modelled_drafts_setup *s);
void modelled_drafts_close(struct modelled_drafts *d);
/* For engine_setup. NULL: there are none. */
const struct draft_sources *modelled_drafts_sources(const struct modelled_drafts *d);

#endif
