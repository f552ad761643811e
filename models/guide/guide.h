/* Which tokens may come next, for answers that have to be what a grammar says. The network of a grammar is walked byte
 * by byte with a stack; what is alive after a text (nodes and their stacks) is a state, and each state, its steps and
 * its list of tokens are found once and kept. So a token costs about nothing where somebody has been before, and a look
 * at the whole vocabulary where nobody has. What is kept of all guides is bounded: when it is too much, the guide
 * that was used the longest time ago begins anew, and requests that follow it read their output again.
 *
 * What has to come, up to the next choice, comes in the tokens that the tokenizer makes of it, or in one that goes on
 * behind it: so a text that the grammar forces has one spelling, that which the model has seen.
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
/* The state behind output[0..n). at: how far this request's output was read before; moved on. Negative: the output is
 * none of the grammar's, or leaves more ways open than can be followed. States are until the next call of guides_of. */
int32_t guide_state(struct guide *g, struct guided *at, const int32_t *output, int n);
/* The same behind one token more. Behind one that ends the answer there is none. */
int32_t guide_behind(struct guide *g, int32_t state, int32_t token);
/* The same as guide_state and guide_behind where nothing has to be found for it; else negative, too. */
int32_t guide_read_to(const struct guide *g, const struct guided *at, int n);
int32_t guide_known(const struct guide *g, int32_t state, int32_t token);
/* What may follow; until another call. NULL: the state is negative, or to find that out takes more than
 * GUIDE_MOST_WORK. */
const struct guide_ids *guide_ids(struct guide *g, int32_t state);
/* The bytes that may follow, and the state behind one of them. */
struct grammar_set guide_bytes(const struct guide *g, int32_t state);
int32_t guide_step(struct guide *g, int32_t state, unsigned char byte);
const struct guide_tokens *guide_tokens_of(const struct guide *g);
/* How many tokens have to be looked at to find them, about; 0: they were found before. */
int guide_look(struct guide *g, int32_t state);
/* Is it known that they take no more than that? */
bool guide_soon(const struct guide *g, int32_t state, int most);
int64_t guide_work(const struct guide *g); /* done so far: parts of states that were looked at */

bool guide_may_end(const struct guide *g, int32_t state);

/* For tests: the state behind a text; negative: it is none of the grammar's. */
int32_t guide_read(struct guide *g, const char *text, size_t n);
size_t guides_bytes(const struct guides *g);

#endif
