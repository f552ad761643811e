/* The inside of a tokenizer, shared by tokenizer.c (creation and facts), merges.c (its merges) and encode.c. Owned by
 * whoever created the tokenizer; read-only once made, any thread. Invariant: only these files look into the fields. */
#ifndef MODELS_TOKENIZER_TOKENIZER_IMPL_H
#define MODELS_TOKENIZER_TOKENIZER_IMPL_H

#include "models/tokenizer/added.h"
#include "models/tokenizer/bpe.h"
#include "models/tokenizer/pretok.h"
#include "models/tokenizer/tokenizer.h"
#include "models/tokenizer/unicode.h"
#include "models/tokenizer/vocab.h"
#include "models/tokenizer/wordpiece.h"

/* SentencePiece: when a space goes before a text, or a piece of one between control tokens. */
enum space_prefix {
    PREFIX_NEVER,
    PREFIX_ALWAYS,
    PREFIX_UNLESS_SPACED,       /* not where there is one */
    PREFIX_FIRST_UNLESS_SPACED, /* and at the beginning of the whole only */
};

struct tokenizer {
    bool is_bytes; /* tokenizer_bytes: no tables at all */
    int n_vocab;
    struct vocab vocab;
    struct bpe bpe;
    struct wordpiece wordpiece; /* VOCAB_WORDPIECE only */
    struct added added;
    uint16_t *classes;
    struct pretok *pretok; /* byte-level only */
    struct pretok_traits traits;
    bool *whole; /* merging the token's bytes gives the token: its word needs no merging */
    enum space_prefix space_prefix;
    bool words_by_space; /* SentencePiece: no piece has a space after anything else, so text splits there */
    bool add_bos, add_eos;
    int32_t bos, eos, unknown; /* -1: none */
    int32_t *end_ids;
    size_t n_end_ids;
};

/* The start symbols of s[0..n): ids at out (room for n). Byte-level: a byte without a token is left out, as
 * in the `tokenizers` library. SentencePiece: characters, then bytes, then the unknown token. Returns how
 * many. */
size_t tokenizer_symbols(const struct tokenizer *t, const char *s, size_t n, int32_t *out);
/* Fills t->bpe and t->whole from the file's merges, or from its scores. */
int merges_from_list(struct tokenizer *t, const struct gguf *g, struct err *e);
int merges_from_scores(struct tokenizer *t, const struct gguf *g, struct err *e);

#endif
