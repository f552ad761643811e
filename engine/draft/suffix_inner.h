/* What the two files of the suffix tree share: how it lies in memory, and the way along it. suffix_tree.c puts suffixes
 * in and takes them out, suffix_guess.c reads. Owned by a suffix tree. Invariant: a cursor holds until the tree is
 * changed. */
#ifndef DRAFT_SUFFIX_INNER_H
#define DRAFT_SUFFIX_INNER_H

#include "engine/draft/suffix_nodes.h"
#include "engine/draft/suffix_tree.h"

enum { PAGE = 64, NOTHING = -1 };

/* Tokens of a sequence, and where its suffixes that begin with them end. A slot is page * PAGE + place. */
struct page {
    int32_t text[PAGE]; /* NOTHING: not written yet */
    uint32_t leaf[PAGE];
    uint32_t next[PAGE], prev[PAGE]; /* slots of other suffixes that end there */
    uint32_t after, before;          /* pages; free ones are chained by after */
    uint32_t seq;
    int first; /* the place of its first token in the sequence */
};

struct seq {
    uint32_t root, head, tail; /* pages; head of a free one: the next free one */
    int n, gone;               /* tokens; suffixes that were removed, the first ones */
};

/* A place in a tree: at the end of `node`, or within the edge to its child `edge`. */
struct cursor {
    uint32_t node, edge;
    int depth;
};

struct suffix_tree {
    struct suffix_nodes nodes;
    struct page *pages;
    uint32_t n_pages, cap_pages, free_page, live_pages;
    struct seq *seqs;
    uint32_t n_seqs, cap_seqs, free_seq, live_seqs;
    int64_t n_tokens;
    uint32_t open;     /* the open sequence; 0: none */
    int due;           /* its first suffix that is not in the tree */
    uint32_t due_slot; /* 0: there is none */
    struct cursor at;  /* how far that suffix has been followed in the tree */
    int known;         /* so many of its tokens stand in the tree in any case */
};

static inline struct page *suffix_page(const struct suffix_tree *t, uint32_t slot)
{
    return &t->pages[slot / PAGE];
}

/* The token k behind a suffix's first one; NOTHING behind the end of its sequence. */
static inline int32_t suffix_text_at(const struct suffix_tree *t, uint32_t slot, int k)
{
    const struct page *p = suffix_page(t, slot);
    for (k += (int)(slot % PAGE); k >= PAGE; k -= PAGE) {
        if (!p->after)
            return NOTHING;
        p = &t->pages[p->after];
    }
    return p->text[k];
}

static inline int32_t suffix_edge_token(const struct suffix_tree *t, const struct cursor *c)
{
    return suffix_text_at(t, t->nodes.items[c->edge].ref, c->depth);
}

/* As far along string[0..n) as it stands in the tree; the cursor is already `depth` tokens along it. */
void suffix_advance(const struct suffix_tree *t, struct cursor *c, const int32_t *string, int n);

#endif
