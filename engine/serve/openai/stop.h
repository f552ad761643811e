/* Stop strings in streamed text: finds the first one even when it comes in pieces, and says how much text may
 * be shown before that is certain. Which match is first does not depend on how the text was cut: the one that ends
 * first, the longest of those. Linear in text times strings. A struct stops is shared and immutable; a struct stop_scan
 * belongs to one text. */
#ifndef SERVE_OPENAI_STOP_H
#define SERVE_OPENAI_STOP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { STOP_MAX = 64, STOP_MAX_BYTES = 4096 };

struct stop_string {
    char *text;
    int n;
    int *border; /* [n]: longest proper border of each prefix (KMP) */
};

struct stops {
    struct stop_string *items;
    int n;
};

/* A copy of text[0..n), 1 <= n <= STOP_MAX_BYTES; at most STOP_MAX strings (the caller has checked). */
void stops_add(struct stops *s, const char *text, size_t n);
void stops_free(struct stops *s);

struct stop_scan {
    const struct stops *stops;
    int *state; /* [stops->n]: how much of each is matched by the end of the text */
    int found;  /* index of the string found, -1: none yet */
};

void stop_scan_init(struct stop_scan *c, const struct stops *s);
void stop_scan_free(struct stop_scan *c);
void stop_scan_reset(struct stop_scan *c); /* what came so far takes part in no match */
/* Reads text[0..n), which follows what was read before. Returns how many bytes of it were read: n, or up to
 * the end of the match (c->found). */
size_t stop_scan_read(struct stop_scan *c, const char *text, size_t n);
/* How many bytes at the end of what was read may be the beginning of a stop string and must not be shown yet.
 */
size_t stop_scan_held(const struct stop_scan *c);

#endif
