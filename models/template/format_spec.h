/* Formats one value by one format specification; str.format's "{:...}" and "%..." share it. One thread, one run.
 * Invariant: a number is written with at most PRECISION_MAX digits. */
#ifndef MODELS_TEMPLATE_FORMAT_SPEC_H
#define MODELS_TEMPLATE_FORMAT_SPEC_H

#include "models/template/run.h"

struct format_spec {
    char fill[5];   /* one character */
    char align;     /* '<' '>' '^' '=' or 0 */
    char sign;      /* '+' ' ' '-' or 0 */
    bool alternate; /* '#' */
    int64_t width;
    char group;        /* ',' '_' or 0 */
    int64_t precision; /* -1: none */
    char type;         /* 0: none */
};
enum { PRECISION_MAX = 400 };

bool format_spec_read(struct run *r, const char *s, size_t n, struct format_spec *spec);
void format_put(struct run *r, struct buf *out, struct value v, const struct format_spec *spec); /* Python's format() */
void format_put_padded(struct run *r, struct buf *out, const char *s, size_t n, const struct format_spec *spec,
                       char align);
/* Digits of a number without sign and padding. type: one of bcdoxXeEfFgG% or 0. */
bool format_put_number(struct run *r, struct buf *out, struct value v, const struct format_spec *spec,
                       size_t *n_prefix);

#endif
