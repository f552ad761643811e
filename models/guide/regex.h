/* Regular expressions as grammars: literals, ., classes, \d \w \s and their opposites, groups, |, ? * + {m,n}; ^ and $
 * only at the ends, where they change nothing, since the whole text has to match. Characters are those of UTF-8; \d \w
 * \s have ASCII ones alone. What is not offered (look-around, back
 * references, lazy and possessive quantifiers, \b, \p) is refused. */
#ifndef MODELS_GUIDE_REGEX_H
#define MODELS_GUIDE_REGEX_H

#include "models/guide/grammar.h"

/* The entry of what matches `text`, and goes on at next. in_string: inside a JSON string, so that quotes and
 * backslashes come escaped, and control characters do not come. E_INPUT with the place. */
int regex_make(struct grammar_maker *m, const char *text, bool in_string, int32_t next, int32_t *out, struct err *e);

#endif
