/* Vectors as JSON: numbers that read back as the same floats, or base64 of the floats' little-endian bytes. Appends to
 * a buffer that its caller owns; no tree in between. Pure; any thread. */
#ifndef SERVE_EMBED_DIGITS_H
#define SERVE_EMBED_DIGITS_H

#include "engine/base/buf.h"

enum { DIGITS_FLOAT = 20 }; /* bytes that one float takes at most */

/* Writes v at out, without a NUL, and returns its length, at most DIGITS_FLOAT: up to nine significant digits, which
 * strtof() reads as v again. v is finite. */
size_t digits_put(char *out, float v);
/* [v0,v1,...] */
void digits_put_floats(struct buf *out, const float *v, int n);
/* "AAAA...", RFC 4648 with padding, of the bytes of n floats. */
void digits_put_base64(struct buf *out, const float *v, int n);

#endif
