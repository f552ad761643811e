/* UTF-8: decode, encode, validate. Pure functions, any thread. */
#ifndef BASE_UTF8_H
#define BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Decodes one code point of s[0..n). Returns its length in bytes (1..4) and sets *cp; 0 when the bytes are a proper
 * prefix of a character that n cuts off; -1 when they are not UTF-8 (overlong, surrogate, stray). n > 0. */
int utf8_decode(const char *s, size_t n, uint32_t *cp);
int utf8_encode(uint32_t cp, char out[4]);            /* returns the length; bad code points become U+FFFD */
bool utf8_valid(const char *s, size_t n);
/* The longest prefix of s that does not cut a character: n, or a little less when the tail is an incomplete one. */
size_t utf8_whole(const char *s, size_t n);

#endif
