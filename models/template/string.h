/* String literals with Python's escapes. Pure functions, any thread. */
#ifndef MODELS_TEMPLATE_STRING_H
#define MODELS_TEMPLATE_STRING_H

#include <stddef.h>

#include "engine/base/buf.h"

/* Appends the text between the quotes with its escapes resolved. NULL, or what is wrong with it. */
const char *jinja_unescape(struct buf *out, const char *s, size_t n);

#endif
