/* Numbers between bounds, digit by digit, as grammars: of each length those that begin as the bounds do, and whatever
 * lies between. Pure functions over the grammar that is being made, whose thread they run on; nothing is kept. */
#ifndef MODELS_GUIDE_DIGITS_H
#define MODELS_GUIDE_DIGITS_H

#include "models/guide/grammar.h"

#define DIGITS_MOST INT64_C(9999999999999999) /* the largest that is written, of either sign */

struct digits_bounds {
    int64_t least, most;        /* within DIGITS_MOST */
    bool least_open, most_open; /* the bound itself is outside */
};

/* The entry of all integers between the bounds (both inside), then next; -1: there is none. */
int32_t digits_integer(struct grammar_maker *m, const struct digits_bounds *b, int32_t next);
/* The same of numbers, with at most nine digits behind the point: few enough for them to be within the bounds as
 * doubles.
 */
int32_t digits_number(struct grammar_maker *m, const struct digits_bounds *b, int32_t next);

#endif
