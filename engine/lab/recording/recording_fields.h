/* One line of a recording, read field by field. Owned by whoever reads the line, one thread; the texts lie in the line.
 * Invariant: the first field that is wrong is told, with its place, and stays the error; what is read after it is 0, ""
 * or the least that there may be. */
#ifndef LAB_RECORDING_RECORDING_FIELDS_H
#define LAB_RECORDING_RECORDING_FIELDS_H

#include "engine/lab/trace/lines.h"
#include "engine/world/ids.h"

/* The fields of a line, left to right; after the first that is wrong all are as if they were missing. */
struct fields {
    const struct lines *lines;
    char *at; /* NULL: none is left */
    struct err *e;
    int rc;
};

/* A field is not what it must be: E_INPUT, once. */
void fields_wrong(struct fields *f, const char *field, const char *must, const char *is);
const char *fields_word(struct fields *f); /* "": none is left */
int64_t fields_parse(struct fields *f, const char *field, const char *text, int64_t min, int64_t max);
int64_t fields_number(struct fields *f, const char *field, int64_t min, int64_t max);
int64_t fields_number_or_none(struct fields *f, const char *field, int64_t max); /* from 0; '-' is -1 */
double fields_real(struct fields *f, const char *field, double least, double most, const char *must);
void fields_name(struct fields *f, const char *field, char out[NAME_BYTES]); /* as record_name wrote it; '-' is "" */
uint64_t fields_key(struct fields *f);                                       /* 16 hexadecimal digits */
int fields_choice(struct fields *f, const char *field, const char *(*named)(int), int n);
const char *fields_rest(struct fields *f, const char *field); /* the last one: the rest of the line */

#endif
