/* The nodes of suffix trees (suffix_tree.h): memory, children by token, siblings by count. It knows nothing of text.
 * A child is found in one hash table of (parent, first token); siblings are a list in the order of their counts, and
 * those of one count form a group, so that a count changes by one in O(1). Owned by a suffix tree. Invariant: index 0
 * is no node and no group. */
#ifndef DRAFT_SUFFIX_NODES_H
#define DRAFT_SUFFIX_NODES_H

#include <stddef.h>
#include <stdint.h>

struct suffix_node {
    uint32_t parent; /* 0: a root */
    int32_t first;   /* the first token of its edge */
    uint32_t count;
    uint32_t ref;               /* slot of a suffix that passes or ends here; the edge's tokens are read from there */
    uint32_t child, next, prev; /* the most frequent child; siblings (the first one's prev is the last one) */
    uint32_t group;             /* of siblings with the same count */
    uint32_t ends;              /* the first of the suffixes that end here (their slots form a list) */
    uint8_t depth;              /* tokens from the root to its end */
};

struct suffix_group { /* a run of siblings; free ones are chained by head */
    uint32_t head, tail;
};

struct suffix_nodes {
    struct suffix_node *items;
    struct suffix_group *groups;
    uint32_t *table; /* open addressing: nodes by (parent, first) */
    uint32_t n, cap, free, n_live;
    uint32_t n_groups, cap_groups, free_group;
    uint32_t table_cap; /* a power of two; twice the nodes at the least */
};

void suffix_nodes_init(struct suffix_nodes *s);
void suffix_nodes_free(struct suffix_nodes *s);
uint32_t suffix_nodes_new(struct suffix_nodes *s); /* zeroed; pointers to nodes are stale behind it */
uint32_t suffix_nodes_find(const struct suffix_nodes *s, uint32_t parent, int32_t first); /* 0: none */
/* x, with parent, first and count 1 set, becomes the latest child of its count. */
void suffix_nodes_add(struct suffix_nodes *s, uint32_t x);
/* x takes the place of `old` among its siblings: parent, first token, count. old has no place any more. */
void suffix_nodes_replace(struct suffix_nodes *s, uint32_t old, uint32_t x);
/* x, with parent, first and count set, becomes the only child of its parent. */
void suffix_nodes_only(struct suffix_nodes *s, uint32_t x);
void suffix_nodes_raise(struct suffix_nodes *s, uint32_t x); /* its count by one, and its place */
void suffix_nodes_lower(struct suffix_nodes *s, uint32_t x);
void suffix_nodes_unlink(struct suffix_nodes *s, uint32_t x);  /* from its siblings and from the table */
void suffix_nodes_release(struct suffix_nodes *s, uint32_t x); /* back to the free ones; it has no place any more */
size_t suffix_nodes_bytes(const struct suffix_nodes *s);       /* in use */
size_t suffix_nodes_held(const struct suffix_nodes *s);

#endif
