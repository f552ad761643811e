/* Pre-tokenisation: how text is cut into words before byte-pair merging, by the name in the model file
 * (tokenizer.ggml.pre). Each kind is a chain of stages. A stage finds matches, and the matches and the gaps between
 * them go on to the next stage, as in a Sequence of the `tokenizers` library. A stage is defined by a PCRE2 pattern,
 * and most have a hand-written scanner that finds the same matches. Immutable once made, any thread. Invariant: every
 * word has at least one byte. */
#ifndef MODELS_TOKENIZER_PRETOK_H
#define MODELS_TOKENIZER_PRETOK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/err.h"

struct pretok;

struct pretok_traits {  /* what else comes with the name */
    bool nfc;           /* text is composed first */
    bool ignore_merges; /* a word that is a token is that token */
    bool add_bos;       /* when the file does not say */
};

/* name[0..n): tokenizer.ggml.pre, "" when absent. classes (unicode_build_classes) must outlive it.
 * E_UNSUPPORTED lists what is known. */
int pretok_create(struct pretok **out, const char *name, size_t n, const uint16_t *classes, struct err *e);
void pretok_free(struct pretok *p);
struct pretok_traits pretok_traits(const struct pretok *p);
/* The i-th supported name; NULL past the end. */
const char *pretok_name(size_t i);

struct word_sink {
    int (*word)(void *ctx, const char *s, size_t n); /* non-zero ends the split */
    void *ctx;
};

/* Cuts s[0..n) (valid UTF-8) and hands on the words in order. Returns what the sink returned; E_INPUT when a
 * pattern's limits were passed. Linear, except where a kind has no scanner of its own. */
int pretok_split(const struct pretok *p, const char *s, size_t n, struct word_sink sink, struct err *e);
/* The same by the patterns alone: the definition that tests hold the scanners to. */
int pretok_split_patterns(const struct pretok *p, const char *s, size_t n, struct word_sink sink, struct err *e);

#endif
