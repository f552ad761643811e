/* The tokens of a vocabulary in the order of their bytes, so that those which begin alike stand together, and each is
 * read on from where it differs from the one before it. Control tokens are none. Made once from a tokenizer, which
 * outlives it; immutable from then on, any thread. */
#ifndef MODELS_GUIDE_GUIDE_TOKENS_H
#define MODELS_GUIDE_GUIDE_TOKENS_H

#include "engine/base/buf.h"
#include "models/tokenizer/tokenizer.h"

enum { GUIDE_TOKEN_BYTES = 512 }; /* no longer one is ever allowed */

struct guide_tokens {
    struct buf bytes;
    int32_t *ids;    /* in the order of their bytes */
    uint32_t *at;    /* [n + 1]: where the bytes of each begin */
    uint16_t *alike; /* leading bytes that it shares with the one before it */
    int32_t *where;  /* [n_vocab]: in that order; -1: it is not there */
    int n, n_vocab;
    const int32_t *ends; /* the tokenizer's */
    size_t n_ends;
};

struct guide_tokens *guide_tokens_new(const struct tokenizer *t);
void guide_tokens_free(struct guide_tokens *t);                  /* NULL is fine */
bool guide_tokens_end(const struct guide_tokens *t, int32_t id); /* does it end an answer? */

#endif
