/* Grammars in llama.cpp's notation, GBNF, which vLLM and SGLang read as well: `name ::= alternatives`, of literals,
 * classes, `.`, names of rules and groups, with ? * + {m,n} behind them; # begins a comment. Line breaks are blanks: a
 * rule goes on up to the next `name ::=`. The rule `root` is the whole. Escapes are \n \r \t \\ \" \[ \] \- \^ \xHH
 * \uHHHH \UHHHHHHHH, the last three code points. */
#ifndef MODELS_GUIDE_GBNF_H
#define MODELS_GUIDE_GBNF_H

#include "models/guide/grammar.h"

/* Makes all its rules; `root` is rule 0 of m, which has none before. E_INPUT with the line: what is wrong there. That a
 * rule calls itself first, grammar_finish says. */
int gbnf_make(struct grammar_maker *m, const char *text, struct err *e);

#endif
