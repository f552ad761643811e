/* Arithmetic in a data file: numbers, names, + - * / ( ), < <= > >= and ==, and min, max, abs, and, or of any number of
 * values. A comparison is 1 or 0. A name is letters, digits, '_' and '.', and what it stands for the caller knows. One
 * thread at a time, no state. Invariant: a result is finite. */
#ifndef LAB_SEARCH_FORMULA_H
#define LAB_SEARCH_FORMULA_H

#include <stddef.h>

#include "engine/base/err.h"

enum { FORMULA_NAME = 96 };

/* Puts what a name stands for into *out; its errors come back from formula_value as they are. */
typedef int (*formula_name_fn)(void *ctx, const char *name, double *out, struct err *e);

/* E_INPUT: what is wrong, and at which column. */
int formula_value(const char *text, formula_name_fn name, void *ctx, double *out, struct err *e);

#endif
