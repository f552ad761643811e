/* Added tokens: control tokens and user-defined ones, which are found in the text before anything else is done to it.
 * A trie; the leftmost and then the longest match wins, as in the `tokenizers` library. Filled at creation, read-only
 * afterwards, any thread. Invariant: a match has at least one byte. */
#ifndef MODELS_TOKENIZER_ADDED_H
#define MODELS_TOKENIZER_ADDED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/err.h"

enum { ADDED_MAX_BYTES = 512 }; /* of one such token: bounds what a search costs a byte */

struct added_node;
struct added {
    struct added_node *nodes;
    size_t n_nodes, cap;
    uint32_t first[256]; /* the node that each first byte leads to; 0: none */
};

struct added_match {
    size_t from, to;
    int32_t id;
};

/* control: found only when control tokens are asked for. Of two with one spelling the last wins. */
int added_put(struct added *a, const char *s, size_t n, int32_t id, bool control, struct err *e);
void added_free(struct added *a);
/* The first match in s[from..n). */
bool added_search(const struct added *a, const char *s, size_t n, size_t from, bool controls, struct added_match *m);
/* The token spelled exactly s[0..n); -1: none. */
int32_t added_find(const struct added *a, const char *s, size_t n);

#endif
