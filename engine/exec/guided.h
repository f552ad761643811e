/* What guided requests may say in a step: the lists of tokens of their rows, and of guesses what their grammar lets
 * stand. A row behind draft tokens has the list of the text up to it. A list that was never looked for may take a while
 * to find (models/guide/guide.h), so of a guess those tokens stay behind which it is known, or known to be found
 * soon, and a step looks only so much; behind the first row without a list no draft token is judged. Engine thread
 * only. Invariant: a token counts only if it was sampled with the list of its place, so guided text is the same with
 * drafts and without.
 */
#ifndef EXEC_GUIDED_H
#define EXEC_GUIDED_H

#include "engine/base/mem.h"
#include "engine/world/request.h"
#include "kernels/backend.h"

struct guides;

/* Tokens that are looked at for the list of one draft token, some 0.2 ms; for those of a step. */
enum { GUIDED_LOOK = 8192, GUIDED_LOOKS = 131072 };

/* Can its first token be known, and the next one of a request that goes on? */
bool guided_begins(struct guides *guides, const struct request_spec *s);
bool guided_goes_on(struct guides *guides, struct request *r);
/* A draft_filter (world/draft.h) of these guides (ctx): takes out what may not stand where it does, or takes long
 * to look behind, with all behind it. */
void guided_cut(void *ctx, struct request *r, struct draft_guess *g);
/* Finds what guided_cut has to know of these tokens behind the newest one. */
void guided_explore(struct guides *guides, const struct request *r, const int32_t *tokens, int n);

struct guided_step {
    struct guides *guides;
    struct arena *arena; /* has the lists */
    int64_t look;        /* tokens, and parts of states, that may still be looked at for draft tokens; counted down */
};
/* The lists of rows[0..d->n], of its newest token and its draft tokens. Returns how many of these are to be judged. */
int guided_fill(struct guided_step *s, struct request *r, const struct drafts *d, struct sample_row *rows);

#endif
