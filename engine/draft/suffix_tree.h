/* Suffix trees of token sequences: how often every string of up to `depth` tokens stood in them, and what followed.
 * Path-compressed, children in the order of their counts. A tree belongs to one root; several roots (one for each
 * tenant) share the memory of one object and nothing else, so that a bound in bytes is one bound. Arctic Inference's
 * suffix decoding (arXiv 2411.04975) counts in such a tree.
 *
 * A sequence grows token by token; one is open at a time. One of its suffixes is inserted once it differs from all that
 * is in the tree, is `depth` tokens long, or the sequence has ended: a walk from the root, so a token costs O(depth) at
 * the most and a few nodes where text does not repeat. The suffixes that are not in yet, those that say what stood
 * there before, are at most `depth`. A leaf's label grows with the open sequence by itself.
 *
 * Owned by one thread at a time. Invariants: a node's count is the number of suffixes in the tree that pass or end
 * there; siblings stand in the order of their counts, the latest of equals first; a node branches, or a suffix ends
 * there, or it is a root; `ref` is a suffix that passes or ends there, so no text outlives its sequence. */
#ifndef DRAFT_SUFFIX_TREE_H
#define DRAFT_SUFFIX_TREE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    SUFFIX_DEPTH = 64, /* the longest string that is counted */
    SUFFIX_MATCH = 32, /* the longest match that a guess looks for */
    SUFFIX_MOST = 64,  /* tokens of a guess */
};

struct suffix_tree;

struct suffix_tree *suffix_tree_new(void);
void suffix_tree_free(struct suffix_tree *t); /* NULL is fine */

/* A tree without sequences. Its root is a handle for the calls below. */
uint32_t suffix_tree_root(struct suffix_tree *t);
void suffix_tree_drop_root(struct suffix_tree *t, uint32_t root); /* it has no sequence any more */

/* Opens a sequence of this tree; its handle. No other one is open in the whole object. */
uint32_t suffix_tree_begin(struct suffix_tree *t, uint32_t root);
void suffix_tree_append(struct suffix_tree *t, const int32_t *tokens, int n); /* to the open one; tokens >= 0 */
/* The same, and at most so many suffixes go in now; the others with the next calls. */
void suffix_tree_append_some(struct suffix_tree *t, const int32_t *tokens, int n, int most);
void suffix_tree_end(struct suffix_tree *t); /* the open one has all its suffixes in the tree from now on */
/* Takes up to n suffixes of an ended sequence out, first ones first. True: it is gone, and its handle with it. */
bool suffix_tree_remove(struct suffix_tree *t, uint32_t seq, int n);
int suffix_tree_n_tokens(const struct suffix_tree *t, uint32_t seq); /* those that are still there */
/* Copies its tokens (those that are still there). */
void suffix_tree_tokens(const struct suffix_tree *t, uint32_t seq, int32_t *out);

struct suffix_stats {
    size_t bytes; /* that are in use: bounded by who adds and removes */
    size_t held;  /* that are held from the system */
    int64_t nodes, tokens;
};
struct suffix_stats suffix_tree_stats(const struct suffix_tree *t);

struct suffix_guess {
    int n, match; /* tokens; how many of the context's last tokens it rests on */
    float score;  /* how many are expected to be right: the sum of the products of shares along the path */
    uint32_t seq; /* one of the sequences that say so */
    int32_t tokens[SUFFIX_MOST];
    int8_t parents[SUFFIX_MOST]; /* the one that it stands behind, an earlier one; -1: the context */
};
/* What followed the longest end of context[0..n_context) that stands in this tree and has been followed by anything
 * (the most frequent child, again and again); ends where the path's share falls below min_share. In an open sequence
 * the guess goes on with itself where the text ends. Returns guess->n; 0: nothing of it stands there. No allocation;
 * O(SUFFIX_MATCH log SUFFIX_MATCH + most). */
struct suffix_want {
    uint32_t root;
    int most;
    float min_share;
    int hint;  /* how long the match may be: looked at first. 0: any */
    bool tree; /* not the most frequent child alone, but the tokens with the largest shares on all branches, largest
                  first: O(most^2) */
};
int suffix_tree_guess(const struct suffix_tree *t, const struct suffix_want *w, const int32_t *context, int n_context,
                      struct suffix_guess *guess);
/* The same with the open sequence for a context, in O(most): how much of its end stands in the tree is known. */
int suffix_tree_guess_own(const struct suffix_tree *t, const struct suffix_want *w, struct suffix_guess *guess);

/* For tests. How often a string of 1 to SUFFIX_DEPTH tokens stands in the tree. */
int64_t suffix_tree_count(const struct suffix_tree *t, uint32_t root, const int32_t *string, int n);
/* NULL, or which invariant does not hold. roots: all that there are. */
const char *suffix_tree_check(const struct suffix_tree *t, const uint32_t *roots, int n_roots);

#endif
