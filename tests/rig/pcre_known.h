/* Tells which characters the installed PCRE2 and the tokenizer's own tables put into the same class. The others are
 * newer than its Unicode version, so a pattern cannot define what a scanner should do with them. For tests that
 * compare scanners with patterns. One thread. */
#ifndef RIG_PCRE_KNOWN_H
#define RIG_PCRE_KNOWN_H

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdbool.h>
#include <stdint.h>

#include "engine/base/utf8.h"
#include "models/tokenizer/unicode.h"

enum { N_KNOWN = 9 };

struct pcre_known {
    pcre2_code *codes[N_KNOWN];
    pcre2_match_data *match;
    const uint16_t *classes;
};

static const struct {
    const char *pattern;
    unsigned bit;
} known_classes[N_KNOWN] = {
    {"\\p{L}", CHAR_LETTER},          {"\\p{N}", CHAR_NUMBER},
    {"\\p{P}", CHAR_PUNCT},           {"\\p{M}", CHAR_MARK},
    {"\\p{N}", CHAR_DIGIT},           {"[\\p{P}$+<=>^`|~]", CHAR_PUNCTUATION},
    {"[\\p{Lu}\\p{Lt}]", CHAR_UPPER}, {"\\p{Ll}", CHAR_LOWER},
    {"\\p{S}", CHAR_SYMBOL},
};

static inline void known_init(struct pcre_known *k, const uint16_t *classes)
{
    int error;
    PCRE2_SIZE at;
    for (int i = 0; i < N_KNOWN; i++)
        k->codes[i] = pcre2_compile((PCRE2_SPTR)known_classes[i].pattern, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP,
                                    &error, &at, NULL);
    k->match = pcre2_match_data_create(1, NULL);
    k->classes = classes;
}

static inline bool known_char(const struct pcre_known *k, uint32_t cp)
{
    char s[4];
    int n = utf8_encode(cp, s);
    for (int i = 0; i < N_KNOWN; i++) {
        bool in = pcre2_match(k->codes[i], (PCRE2_SPTR)s, (PCRE2_SIZE)n, 0, 0, k->match, NULL) >= 0;
        if (in != !!(k->classes[cp] & known_classes[i].bit))
            return false;
    }
    return true;
}

static inline void known_free(struct pcre_known *k)
{
    for (int i = 0; i < N_KNOWN; i++)
        pcre2_code_free(k->codes[i]);
    pcre2_match_data_free(k->match);
}

#endif
