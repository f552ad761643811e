/* Draft tokens when a recording is played again: its sources, by name and place, say what they said, in the same order;
 * and a step's results are such that just the recorded number of them is right. The tokens themselves were never
 * written down: all are DRAFT_ID, which no step says unless that one was right. Part of a reenactor, engine thread.
 * Invariant: a guess is given out only to the call, request and question that it was recorded for; anything else is
 * told as a difference. */
#ifndef LAB_REENACT_DRAFTS_H
#define LAB_REENACT_DRAFTS_H

#include "engine/exec/step.h"
#include "engine/lab/recording/recording.h"

enum { DRAFT_ID = 2 };

struct recorded_guess {
    uint64_t call;
    int64_t order;
    int source, asked, n, match;
    float score;
};

struct reenact_drafts {
    struct draft_sources sources;
    struct reenact_source {
        struct reenact_drafts *of;
        int place;
    } places[MOST_SOURCES];
    struct recorded_guess *items; /* [first, n): read and not yet asked for */
    size_t first, n, cap;
    const uint64_t *n_calls; /* of the policy, that have ended */
    int n_verified;          /* requests of the step that is being taken in */
    void (*differ)(void *ctx, const char *why, int64_t number);
    void *ctx;
};

/* n_calls, differ and ctx are set by the caller before, the rest is 0; d stays where it is. h: lives as long. */
void reenact_drafts_init(struct reenact_drafts *d, const struct recording_head *h);
void reenact_drafts_free(struct reenact_drafts *d);
/* A line of kind p, as it is read. */
void reenact_drafts_add(struct reenact_drafts *d, const struct recorded *x);
/* A call of the policy has ended, and n_calls counts it. made: as recorded, so that nothing may be left of its guesses.
 */
void reenact_drafts_end_call(struct reenact_drafts *d, bool made);
/* As many of this item's draft tokens are judged as in the recording (of a guided request it may be fewer than were
 * planned), and the step's results get what makes the recorded number of them right: how many. */
int reenact_drafts_fill(struct reenact_drafts *d, struct step *s, struct step_item *it, const struct recorded *x,
                        uint64_t order);
/* The engine has counted draft tokens; the step of line x has been taken in. */
void reenact_drafts_verified(struct reenact_drafts *d, const struct recorded *x,
                             const struct recorded_drafts *came_out);
void reenact_drafts_end_step(struct reenact_drafts *d, const struct recorded *x);

#endif
