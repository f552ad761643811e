/* Prompt lookup: what followed the last tokens of a timeline when they stood there before. The cheapest source of draft
 * tokens (draft.h): it needs no model, and finds what an answer repeats of its prompt or of itself. An index of the
 * places of every three tokens, about 20 bytes a token, is made of the whole timeline by the first call and grows with
 * it. Owned by a request, engine thread only. Invariant: it depends on the timeline alone. */
#ifndef WORLD_LOOKUP_H
#define WORLD_LOOKUP_H

#include <stdint.h>

struct lookup;

struct lookup *lookup_new(void);
void lookup_free(struct lookup *l); /* NULL is fine */
/* Up to `most` tokens that may follow tokens[0..n), which continue those of the call before. Of the latest places where
 * the last three tokens stood, the one before which the most tokens are the same, the latest of these. *match: how many
 * are (at most LOOKUP_MATCH). Returns how many tokens: `most`, or 0. */
enum { LOOKUP_MATCH = 32 };
int lookup_propose(struct lookup *l, const int32_t *tokens, int n, int most, int32_t *out, int *match);

#endif
