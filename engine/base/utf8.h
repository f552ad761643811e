/* UTF-8: decode, encode, validate, show. Pure functions, any thread. */
#ifndef BASE_UTF8_H
#define BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Decodes one code point of s[0..n). Returns its length in bytes (1..4) and sets *cp; 0 when the bytes are a proper
 * prefix of a character that n cuts off; -1 when they are not UTF-8 (overlong, surrogate, stray). n > 0. */
int utf8_decode(const char *s, size_t n, uint32_t *cp);
int utf8_encode(uint32_t cp, char out[4]); /* returns the length; bad code points become U+FFFD */
bool utf8_valid(const char *s, size_t n);
/* The longest prefix of s that does not cut a character: n, or a little less when the tail is an incomplete one. */
size_t utf8_whole(const char *s, size_t n);
/* It leaves a mark where it stands, and does nothing else: no control, format, direction, filler or space but the plain
 * one. */
bool utf8_is_seen(uint32_t cp);
/* n bytes of text as what can be seen of it: bytes that are no text become \xNN, characters that are not seen \u{NNNN}.
 * Cut with "..." where cap (>= 16, NUL included) is reached. Returns the length. */
size_t utf8_show(char *out, size_t cap, const char *text, size_t n);

extern const uint32_t utf8_unseen[][2]; /* first and last of each range, ascending */
extern const int n_utf8_unseen;

#endif
