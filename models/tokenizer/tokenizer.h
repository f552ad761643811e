/* Text to token ids and back: byte-level BPE (the GPT-2 family, with the model's pre-tokenizer), SentencePiece BPE
 * (Llama 2, Mistral) and WordPiece (BERT). The vocabulary is untrusted: counts, ids, merges and types are checked at
 * creation. Owned by its creator; a `struct detok` belongs to one stream. Invariant: a tokenizer is immutable once
 * made, so any number of threads may use it at once. */
#ifndef MODELS_TOKENIZER_TOKENIZER_H
#define MODELS_TOKENIZER_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/buf.h"
#include "engine/base/cancel.h"
#include "engine/base/err.h"
#include "models/load/gguf.h"

struct tokenizer;

struct tokens { /* growable; owned by its holder; zero it before use */
    int32_t *ids;
    size_t len, cap;
};
void tokens_put(struct tokens *t, int32_t id);
void tokens_append(struct tokens *t, const int32_t *ids, size_t n);
void tokens_free(struct tokens *t);

int tokenizer_from_gguf(struct tokenizer **out, const struct gguf *g, struct err *e);
/* A byte vocabulary of `n_vocab` ids (256 bytes, then <|bos|> <|eos|>, then unused): for dummy models without a
 * tokenizer. */
int tokenizer_bytes(struct tokenizer **out, int n_vocab, struct err *e);
void tokenizer_free(struct tokenizer *t);

enum {
    TOKENIZE_BOS = 1,     /* what the model's add_bos says (and add_eos), at the ends */
    TOKENIZE_SPECIAL = 2, /* text that spells a control token becomes it; else it is plain text */
};
struct tokenize_how {
    int flags;
    size_t max_tokens;     /* 0: no limit */
    struct cancel *cancel; /* NULL: nobody cancels */
};
/* Appends the ids of text (any bytes; what is not UTF-8 goes through byte tokens) to out; user-defined tokens are
 * always found. The ids are those of the `tokenizers` library with the model's published settings: some models compose
 * the text first (NFC), and a byte for which a byte-level vocabulary has no token (a few control characters, in some)
 * is left out. E_INPUT when this adds more than max_tokens, E_GONE or E_FULL when it is given up; then out is as
 * before. n log n in n, for hostile text too. */
int tokenizer_encode(const struct tokenizer *t, const char *text, size_t n, struct tokenize_how how, struct tokens *out,
                     struct err *e);

int tokenizer_n_vocab(const struct tokenizer *t);
int32_t tokenizer_bos(const struct tokenizer *t); /* -1: none */
int32_t tokenizer_eos(const struct tokenizer *t); /* -1: none */
bool tokenizer_adds_bos(const struct tokenizer *t);
bool tokenizer_is_special(const struct tokenizer *t, int32_t id); /* control tokens; out of range: false */
/* Ids that end a turn (eos, eot, <|im_end|> and the like): a sorted list owned by t. */
size_t tokenizer_end_ids(const struct tokenizer *t, const int32_t **ids);
/* The token that stands for exactly these bytes ("<|im_end|>", " hello"); -1: none. For tests. */
int32_t tokenizer_find(const struct tokenizer *t, const char *piece, size_t n);
/* Appends the bytes of one token (no UTF-8 repair; control tokens by their name). Out of range: nothing. */
void tokenizer_piece(const struct tokenizer *t, int32_t id, struct buf *out);

/* Streaming text. put appends what is now whole UTF-8 and holds back an incomplete character; flush gives what is left,
 * bad bytes as U+FFFD. skip_special drops control tokens. O(1) amortised a token. */
struct detok {
    const struct tokenizer *t;
    bool skip_special;
    bool strip_space; /* SentencePiece: the first piece loses its leading space. Clear it to go on from a prompt */
    char held[8];
    int n_held;
};
void detok_init(struct detok *d, const struct tokenizer *t, bool skip_special);
void detok_put(struct detok *d, int32_t id, struct buf *out);
void detok_flush(struct detok *d, struct buf *out);
/* All at once: the text of ids. For tests. */
void tokenizer_decode(const struct tokenizer *t, const int32_t *ids, size_t n, bool skip_special, struct buf *out);

#endif
