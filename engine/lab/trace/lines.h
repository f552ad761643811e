/* Lines of a file from outside, one at a time, with their numbers, and messages that name file and line: what the
 * readers of traces and recordings share. Owned by whoever started it, one thread. Invariants: only the current line is
 * in memory; messages hold no control characters. */
#ifndef LAB_TRACE_LINES_H
#define LAB_TRACE_LINES_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "engine/base/buf.h"
#include "engine/base/err.h"

enum { LINES_MAX_BYTES = 1 << 20 };

struct lines {
    FILE *file;
    char name[128];
    char *chunk;
    size_t at, end;
    struct buf line; /* without its end */
    uint64_t number; /* of the line, from 1 */
    bool ended;      /* it had an end: false: the file ends within it */
};

void lines_start(struct lines *l, FILE *file, const char *name); /* the file is its own from then on */
void lines_stop(struct lines *l);
/* The next line that is not empty. *end at the end of the file. E_INPUT, E_SYS. */
int lines_next(struct lines *l, bool *end, struct err *e);
/* "file:line: what". Both return E_INPUT. */
int lines_bad(const struct lines *l, struct err *e, const char *what);
/* "file:line: field must be must, not 'is'". */
int lines_bad_field(const struct lines *l, const char *field, const char *must, const char *is, struct err *e);
/* Digits up to max; false: something else. *end is where they stop. */
bool lines_digits(const char *text, uint64_t max, uint64_t *out, const char **end);

#endif
