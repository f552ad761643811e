/* String operations that methods and filters share. They take and return values of one run; one thread. Invariant: an
 * argument whose name says string is a string (the callers check). */
#ifndef MODELS_TEMPLATE_STR_H
#define MODELS_TEMPLATE_STR_H

#include "models/template/run.h"

enum { SIDE_LEFT = 1, SIDE_RIGHT = 2 };
enum change { CHANGE_LOWER, CHANGE_UPPER, CHANGE_FOLD, CHANGE_SWAP, CHANGE_TITLE, CHANGE_CAPITAL };

bool j_want_string(struct run *r, struct value v, const char *what);
struct value j_strip(struct run *r, struct value string, struct value chars, int sides); /* chars none: white space */
struct value j_replace(struct run *r, struct value string, struct value old, struct value new_,
                       int64_t count); /* < 0: all */
struct value j_change_case(struct run *r, struct value string, enum change how);
struct value j_split_lines(struct run *r, struct value string, bool keep_ends);
struct value j_split(struct run *r, struct value string, struct value separator, int64_t max, bool from_right);
struct value j_join(struct run *r, struct value separator, struct value items,
                    bool strict); /* strict: items must be str */
/* Pads to width characters; where: -1 text left, 0 centre, 1 right. */
struct value j_pad(struct run *r, struct value string, int64_t width, struct value fill, int where);
struct value j_lowered(struct run *r, struct value v); /* strings lowered, others as they are: jinja2's ignore_case */

#endif
