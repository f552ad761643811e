/* The vocabulary of a tokenizer: which bytes each id stands for and of what kind it is. Read from untrusted metadata
 * and checked here. Owned by its tokenizer, read-only once loaded, any thread. Invariant: the bytes of every id lie
 * inside `text`. */
#ifndef MODELS_TOKENIZER_VOCAB_H
#define MODELS_TOKENIZER_VOCAB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/err.h"
#include "models/load/gguf.h"

enum token_kind { TOKEN_NORMAL = 1, TOKEN_UNKNOWN, TOKEN_CONTROL, TOKEN_USER, TOKEN_UNUSED, TOKEN_BYTE };

enum vocab_style {
    VOCAB_BYTE_LEVEL,    /* pieces are spelled in GPT-2's alphabet of 256 printable characters */
    VOCAB_SENTENCEPIECE, /* pieces are UTF-8 with U+2581 for a space; <0xNN> for single bytes */
    VOCAB_WORDPIECE,     /* pieces are UTF-8 and begin with a space where a word may begin with them */
};

struct vocab {
    int n;
    enum vocab_style style;
    struct gguf_string prefix; /* while it is loaded */
    char *text;                /* all pieces' bytes, one after another */
    uint32_t *start;           /* n + 1 offsets into text */
    uint8_t *kind;             /* enum token_kind */
    bool *foreign; /* a normal piece with characters outside the alphabet: decodes as spelled, never merges. WordPiece:
                      one that goes on in a word and begins with a space */
    uint64_t *slots; /* bytes of normal pieces -> id: hash bits << 32 | id; all ones: empty */
    uint64_t mask;
    int32_t byte_id[256]; /* the token of one byte; -1: none */
};

/* Reads tokenizer.ggml.tokens and token_type. WordPiece is spelled as llama.cpp spells it, U+2581 before what begins a
 * word; or, with moonshift.wordpiece.prefix, as Hugging Face does, that prefix (perhaps "##") before what does not. */
int vocab_load(struct vocab *v, const struct gguf *g, enum vocab_style style, struct err *e);
void vocab_free(struct vocab *v);
/* The normal piece that stands for exactly these bytes; -1: none. Of several, the last. */
int32_t vocab_find(const struct vocab *v, const char *s, size_t n);
static inline const char *vocab_text(const struct vocab *v, int32_t id, size_t *n)
{
    *n = v->start[id + 1] - v->start[id];
    return v->text + v->start[id];
}
/* Spelling in GPT-2's alphabet to bytes; out holds at least n. Returns the length, or -1 for a character
 * outside it. */
int vocab_unspell(const char *s, size_t n, char *out);
/* The same of SentencePiece's spelling: spaces for U+2581. */
int vocab_plain_spaces(const char *s, size_t n, char *out);
/* A name for messages: short and printable. */
struct vocab_shown {
    char text[64];
};
struct vocab_shown vocab_show(const char *s, size_t n);
uint64_t vocab_hash(const char *s, size_t n);

#endif
