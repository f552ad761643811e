/* What tokenizers need to know about characters: classes, canonical forms (NFC, NFD) and case, with the meaning that
 * the `tokenizers` library gives them, whatever PCRE2 or C library is installed. Tables are constant; a class table
 * belongs to its tokenizer and is read-only once built; any thread. Invariant: a class table has no entry for a
 * surrogate. */
#ifndef MODELS_TOKENIZER_UNICODE_H
#define MODELS_TOKENIZER_UNICODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/buf.h"
#include "engine/base/err.h"

enum {
    CHAR_LETTER = 1, /* \p{L} */
    CHAR_NUMBER = 2, /* \p{N} */
    CHAR_SPACE = 4,  /* \s */
    CHAR_PUNCT = 8,  /* \p{P} */
    CHAR_MARK = 16,  /* \p{M} */
    CHAR_DIGIT = 32, /* what the Digits pre-tokenizer cuts: \p{N} of a newer Unicode */
    CHAR_PUNCTUATION =
        64,              /* what the Punctuation pre-tokenizer cuts: ASCII punctuation and \p{P} of an older Unicode */
    CHAR_CASED = 128,    /* the cased letters that the DeepSeek pre-tokenizer lists */
    CHAR_MOVES = 256,    /* may change, or be reordered, under NFC */
    CHAR_UPPER = 512,    /* \p{Lu} and \p{Lt} */
    CHAR_LOWER = 1024,   /* \p{Ll} */
    CHAR_SYMBOL = 2048,  /* \p{S} */
    CHAR_CONTROL = 4096, /* what BERT's normalizer drops: \p{C} of an older Unicode but tab and line ends, U+FFFD */
    CHAR_BLANK = 8192,   /* White_Space of a newer Unicode: ends a word of BERT's */
    CHAR_ACCENT = 16384, /* \p{Mn} of an older Unicode, which BERT's normalizer strips */
};

/* Generated (unicode_table.c). Classes and combining orders: first code point and value of each run. */
extern const uint16_t unicode_class_sets[]; /* the sets of class bits that occur */
extern const size_t n_unicode_class_sets;
extern const uint32_t unicode_classes[]; /* code point << 8 | index of a set */
extern const size_t n_unicode_classes;
extern const uint32_t unicode_orders[]; /* code point << 8 | canonical combining class */
extern const size_t n_unicode_orders;
extern const uint64_t unicode_decomposed[]; /* whole << 42 | first << 21 | second (0: none), sorted */
extern const size_t n_unicode_decomposed;
extern const uint64_t unicode_composed[]; /* first << 42 | second << 21 | whole, sorted */
extern const size_t n_unicode_composed;
extern const uint64_t unicode_lowered[]; /* capital << 42 | first << 21 | second (0: none), sorted */
extern const size_t n_unicode_lowered;

/* A flat table of class bits, indexed by code point (0x110000 entries). mem_free it. */
uint16_t *unicode_build_classes(void);

/* One character of valid UTF-8 at s; sets its length. */
static inline uint32_t unicode_char(const char *str, int *len)
{
    const unsigned char *s = (const unsigned char *)str;
    if (s[0] < 0x80) {
        *len = 1;
        return s[0];
    }
    if (s[0] < 0xE0) {
        *len = 2;
        return (uint32_t)(s[0] & 0x1F) << 6 | (s[1] & 0x3F);
    }
    if (s[0] < 0xF0) {
        *len = 3;
        return (uint32_t)(s[0] & 0x0F) << 12 | (uint32_t)(s[1] & 0x3F) << 6 | (s[2] & 0x3F);
    }
    *len = 4;
    return (uint32_t)(s[0] & 0x07) << 18 | (uint32_t)(s[1] & 0x3F) << 12 | (uint32_t)(s[2] & 0x3F) << 6 | (s[3] & 0x3F);
}

/* The length of the longest valid UTF-8 prefix of s[0..n). */
size_t unicode_valid_prefix(const char *s, size_t n);
/* Whether NFC could change s[0..n) (valid UTF-8): false is certain, true is not. */
bool unicode_may_move(const uint16_t *classes, const char *s, size_t n);
/* Appends the NFC form of s[0..n) (valid UTF-8) to out. Linear. E_FULL without memory. */
int unicode_nfc(const uint16_t *classes, const char *s, size_t n, struct buf *out, struct err *e);
/* Appends the NFD form of s[0..n) (valid UTF-8) without its CHAR_ACCENTs. Linear. E_FULL without memory. */
int unicode_strip_accents(const uint16_t *classes, const char *s, size_t n, struct buf *out, struct err *e);
/* Appends s[0..n) (valid UTF-8) in lower case, each character by itself. */
void unicode_to_lower(const char *s, size_t n, struct buf *out);

#endif
