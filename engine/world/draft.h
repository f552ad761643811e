/* Draft tokens: a guess of what a request says next, whose rows go through a step together with its newest token. The
 * step samples behind every one of them, with the randomness of that position in its sequence, and the tokens count as
 * far as the guesses were right: so the text is the one that it would have been without drafts, greedy or seeded
 * (Leviathan et al. 2023, with a deterministic guess; Arctic Inference's suffix decoding verifies the same way). What
 * is guessed is the business of a source; who drafts how much is the policy's (plan_draft). Engine thread only. */
#ifndef WORLD_DRAFT_H
#define WORLD_DRAFT_H

#include <stdint.h>

struct request;

enum { MOST_DRAFTS = 64 }; /* of a request in a step */

struct draft_source {
    const char *name;
    /* Up to `most` tokens behind the request's newest one. *match: how many tokens of its timeline, up to the newest,
     * the guess rests on. Returns how many; 0: no idea. */
    int (*propose)(void *ctx, struct request *r, int most, int32_t *out, int *match);
    void *ctx;
};

/* What stood behind the request's last tokens before (lookup.h). */
const struct draft_source *draft_lookup(void);

#endif
