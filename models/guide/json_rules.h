/* JSON's own rules in a grammar that is being made: values of any form, and the parts of which schemas make theirs.
 * Each rule is made when it is first called. Numbers have at most 16 digits before the point and 15 behind it; white
 * space is a space, or a line break and its indent; characters beyond ASCII come as they are or, but for surrogate
 * pairs, as \u and four digits. Each function gives the entry of what it says, which goes on at next. */
#ifndef MODELS_GUIDE_JSON_RULES_H
#define MODELS_GUIDE_JSON_RULES_H

#include "models/guide/grammar.h"

struct json_rules {
    struct grammar_maker m;
    int32_t spaces, character, text, number, integer, any, object, array; /* -1: not called yet */
};

void json_rules_init(struct json_rules *s);

int32_t rule_spaces(struct json_rules *s, int32_t next);    /* or none */
int32_t rule_character(struct json_rules *s, int32_t next); /* one, of a string */
int32_t rule_text(struct json_rules *s, int32_t next);      /* a string with its quotes */
int32_t rule_number(struct json_rules *s, int32_t next);
int32_t rule_integer(struct json_rules *s, int32_t next);
int32_t rule_word(struct json_rules *s, const char *word, int32_t next); /* these bytes */
int32_t rule_object(struct json_rules *s, int32_t next);
int32_t rule_value(struct json_rules *s, int32_t next);

#endif
