/* WordPiece, the tokenizer of BERT: the text is normalised (control characters dropped, accents stripped, lower case),
 * cut into words at white space and around punctuation, and each word is covered by the longest pieces from its left.
 * (Wu et al. 2016, "Google's Neural Machine Translation System"; Devlin et al. 2018, BERT.) Filled by whoever makes a
 * tokenizer, read-only afterwards, any thread. Invariant: a word costs at most its bytes times the longest piece. */
#ifndef MODELS_TOKENIZER_WORDPIECE_H
#define MODELS_TOKENIZER_WORDPIECE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/buf.h"
#include "engine/base/cancel.h"
#include "engine/base/err.h"
#include "models/tokenizer/vocab.h"

enum { WORDPIECE_MAX_CHARS = 1000 }; /* most that max_chars may be */

struct wordpiece {
    bool clean_text, split_chinese, strip_accents, lower; /* the steps of BERT's normalizer, in this order */
    int max_chars;                                        /* of a word; a longer one is unknown */
    /* A trie of the pieces, as a table of edges: node << 32 | byte << 24 | child; 0: empty. Nodes 0 and 1 are the
     * roots of what begins a word and of what goes on in one. */
    uint64_t *edges;
    uint64_t mask;
    int32_t *token; /* [node] the piece that ends there; -1: none */
    uint32_t n_nodes;
};

/* Fills the trie from v (VOCAB_WORDPIECE). E_INPUT: the pieces are too many bytes; E_FULL. */
int wordpiece_init(struct wordpiece *w, const struct vocab *v, struct err *e);
void wordpiece_free(struct wordpiece *w);

struct wordpiece_text {
    struct buf normal;       /* what wordpiece_normalise makes */
    struct buf run, plain;   /* working memory */
    struct cancel *cancel;   /* or NULL */
    const uint16_t *classes; /* unicode_build_classes */
};
/* Makes t->normal the normalised form of s[0..n), valid UTF-8; what is not UTF-8 counts as U+FFFD. Linear. E_FULL, and
 * what cancel_check says. */
int wordpiece_normalise(const struct wordpiece *w, struct wordpiece_text *t, const char *s, size_t n, struct err *e);
void wordpiece_text_free(struct wordpiece_text *t);
/* The length of the word at s[0..n), n > 0: one punctuation character, or what lies before the next gap or punctuation
 * character. 0: s begins with a gap. *n_chars: its characters. */
size_t wordpiece_word(const uint16_t *classes, const char *s, size_t n, int *n_chars);
/* The pieces of a word of at most max_chars characters into out, which has room for n. Returns how many; 0: the word is
 * unknown. */
size_t wordpiece_cut(const struct wordpiece *w, const char *word, size_t n, int32_t *out);

#endif
