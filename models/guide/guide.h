/* Which tokens may come next, for answers that have to be what a grammar says. The network of a grammar is walked byte
 * by byte with a stack; what is alive after a text (nodes and their stacks) is a state, and each state, its steps and
 * its list of tokens are found once and kept. So a token costs about nothing where somebody has been before, and a look
 * at the whole vocabulary where nobody has. What is kept of all guides is bounded: when it is too much, the guide
 * that was used the longest time ago begins anew, and requests that follow it read their output again.
 *
 * Guides belong to the engine's thread; the tokens are immutable, any thread. Invariant: a token that is allowed leaves
 * at least one node alive, so the text so far is always the beginning of something that the grammar makes, unless its
 * nesting exceeds GUIDE_MOST_DEPTH. */
#ifndef MODELS_GUIDE_GUIDE_H
#define MODELS_GUIDE_GUIDE_H

#include "engine/world/guided.h"
#include "models/guide/grammar.h"
#include "models/guide/guide_tokens.h"

#define GUIDE_TOO_MUCH                                                                                                 \
    "what the answer has to be leaves too many ways open at once: a simpler schema or expression is needed"

#define GUIDE_BYTES ((size_t)256 << 20) /* that all guides of a server may keep */

enum { GUIDE_MOST_DEPTH = 256, GUIDE_MOST_ALIVE = 4096, GUIDE_MOST_WORK = 500000 };

/* Ids, sorted: those that may be chosen, or all those that may not, whichever are fewer. */
struct guide_ids {
    const int32_t *ids;
    int n;
    bool allowed;
};

struct guides;
struct guide;
struct guides *guides_new(const struct guide_tokens *tokens, size_t most_bytes); /* tokens: borrowed */
void guides_free(struct guides *g);                                              /* NULL is fine */
/* The guide of a grammar, which it holds; valid until the next call. */
struct guide *guides_of(struct guides *g, struct grammar *grammar);
/* What may follow output[0..n). at: how far this request's output was read before; moved on. false: to find that out
 * took more than GUIDE_MOST_WORK, or the output is none of the grammar's. ids: until the next call of guides_of. */
bool guide_next(struct guide *g, struct guided *at, const int32_t *output, int n, struct guide_ids *ids);

/* For tests: the state behind a text; negative: it is none of the grammar's. May it end here? */
int32_t guide_read(struct guide *g, const char *text, size_t n);
bool guide_may_end(const struct guide *g, int32_t state);
size_t guides_bytes(const struct guides *g);

#endif
