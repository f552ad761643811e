/* The tokens of a vocabulary in the order of their bytes, so that those which begin alike stand together, and each is
 * read on from where it differs from the one before it. Control tokens are none, nor are those that end an answer.
 * Made once from a tokenizer, which outlives it; immutable from then on, any thread. */
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
    const struct tokenizer *tokenizer;
    bool spaced;         /* it puts a space before a text; a line break between the two keeps them apart */
    const int32_t *ends; /* its own */
    size_t n_ends;
};

struct guide_tokens *guide_tokens_new(const struct tokenizer *t);
void guide_tokens_free(struct guide_tokens *t);                                  /* NULL is fine */
bool guide_tokens_end(const struct guide_tokens *t, int32_t id);                 /* does it end an answer? */
void guide_tokens_put(const struct guide_tokens *t, int32_t id, struct buf *to); /* appends its bytes */
/* Tokens [*lo, *hi) are those that begin with some bytes, `at` of them: of them those that go on with b. */
void guide_tokens_narrow(const struct guide_tokens *t, int *lo, int *hi, uint32_t at, unsigned char b);
/* A text that stands amid another, as the tokenizer spells it: to[0..most), as far as it goes; returns their number.
 * 0: the tokenizer has no spelling of it that begins where it does. */
int guide_tokens_spell(const struct guide_tokens *t, const char *text, size_t n, int32_t *to, int most);

#endif
