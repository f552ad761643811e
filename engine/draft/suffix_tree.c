#include "engine/draft/suffix_tree.h"

#include <limits.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "engine/draft/suffix_inner.h"

enum { FIRST_PAGES = 4 };

struct suffix_tree *suffix_tree_new(void)
{
    struct suffix_tree *t = mem_new(sizeof *t);
    suffix_nodes_init(&t->nodes);
    t->cap_pages = t->cap_seqs = FIRST_PAGES;
    t->pages = mem_new_array(t->cap_pages, sizeof *t->pages);
    t->seqs = mem_new_array(t->cap_seqs, sizeof *t->seqs);
    t->n_pages = t->n_seqs = 1;
    return t;
}

void suffix_tree_free(struct suffix_tree *t)
{
    if (!t)
        return;
    suffix_nodes_free(&t->nodes);
    mem_free(t->pages);
    mem_free(t->seqs);
    mem_free(t);
}

uint32_t suffix_tree_root(struct suffix_tree *t)
{
    return suffix_nodes_new(&t->nodes);
}

void suffix_tree_drop_root(struct suffix_tree *t, uint32_t root)
{
    ASSERT(t->nodes.items[root].count == 0);
    suffix_nodes_release(&t->nodes, root);
}

/* ---- text */

static uint32_t new_page(struct suffix_tree *t, uint32_t seq)
{
    uint32_t p = t->free_page;
    if (p) {
        t->free_page = t->pages[p].after;
    } else {
        if (t->n_pages == t->cap_pages) {
            t->cap_pages += t->cap_pages / 2;
            t->pages = mem_resize(t->pages, t->cap_pages, sizeof *t->pages);
        }
        p = t->n_pages++;
    }
    memset(&t->pages[p], 0, sizeof t->pages[p]);
    memset(t->pages[p].text, 0xff, sizeof t->pages[p].text);
    t->pages[p].seq = seq;
    t->live_pages++;
    return p;
}

static void free_page(struct suffix_tree *t, uint32_t p)
{
    t->pages[p].after = t->free_page;
    t->free_page = p;
    t->live_pages--;
}

static void read_text(const struct suffix_tree *t, uint32_t slot, int n, int32_t *out)
{
    int from = (int)(slot % PAGE), here = PAGE - from < n ? PAGE - from : n;
    const struct page *p = suffix_page(t, slot);
    memcpy(out, p->text + from, (size_t)here * sizeof *out);
    if (here < n)
        memcpy(out + here, t->pages[p->after].text, (size_t)(n - here) * sizeof *out);
}

static uint32_t write_token(struct suffix_tree *t, int32_t token)
{
    struct seq *s = &t->seqs[t->open];
    int at = s->n++ % PAGE;
    ASSERT(token >= 0);
    if (at == 0) {
        uint32_t p = new_page(t, t->open);
        t->pages[p].first = s->n - 1;
        t->pages[p].before = s->tail;
        if (s->tail)
            t->pages[s->tail].after = p;
        else
            s->head = p;
        s->tail = p;
    }
    t->pages[s->tail].text[at] = token;
    t->n_tokens++;
    return s->tail * PAGE + (uint32_t)at;
}

static uint32_t slot_behind(const struct suffix_tree *t, uint32_t slot)
{
    return slot % PAGE < PAGE - 1 ? slot + 1 : suffix_page(t, slot)->after * PAGE;
}

/* ---- walking */

/* Along the first `known` tokens of the string, which stand in the tree: nothing is compared within edges. */
static void descend(const struct suffix_tree *t, struct cursor *c, const int32_t *string, int known)
{
    while (c->depth < known) {
        uint32_t child = c->edge ? c->edge : suffix_nodes_find(&t->nodes, c->node, string[c->depth]);
        int depth = t->nodes.items[child].depth;
        *c = depth > known ? (struct cursor){c->node, child, known} : (struct cursor){child, 0, depth};
    }
}

void suffix_advance(const struct suffix_tree *t, struct cursor *c, const int32_t *string, int n)
{
    while (c->depth < n) {
        if (!c->edge) {
            c->edge = suffix_nodes_find(&t->nodes, c->node, string[c->depth]);
            if (!c->edge)
                return;
        } else if (suffix_edge_token(t, c) != string[c->depth]) {
            return;
        }
        if (++c->depth == t->nodes.items[c->edge].depth)
            *c = (struct cursor){c->edge, 0, c->depth};
    }
}

/* ---- suffixes in */

static void link_end(struct suffix_tree *t, uint32_t slot, uint32_t x)
{
    struct page *p = suffix_page(t, slot);
    uint32_t first = t->nodes.items[x].ends;
    p->leaf[slot % PAGE] = x;
    p->next[slot % PAGE] = first;
    p->prev[slot % PAGE] = 0;
    if (first)
        suffix_page(t, first)->prev[first % PAGE] = slot;
    t->nodes.items[x].ends = slot;
}

static void unlink_end(struct suffix_tree *t, uint32_t slot, uint32_t x)
{
    const struct page *p = suffix_page(t, slot);
    uint32_t next = p->next[slot % PAGE], prev = p->prev[slot % PAGE];
    if (next)
        suffix_page(t, next)->prev[next % PAGE] = prev;
    if (prev)
        suffix_page(t, prev)->next[prev % PAGE] = next;
    else
        t->nodes.items[x].ends = next;
}

/* A node at the cursor, which is within an edge. */
static uint32_t split(struct suffix_tree *t, const struct cursor *c)
{
    uint32_t low = c->edge, m = suffix_nodes_new(&t->nodes);
    struct suffix_node *items = t->nodes.items;
    items[m].depth = (uint8_t)c->depth;
    items[m].ref = items[low].ref;
    suffix_nodes_replace(&t->nodes, low, m);
    items[low].parent = m;
    items[low].first = suffix_text_at(t, items[low].ref, c->depth);
    suffix_nodes_only(&t->nodes, low);
    return m;
}

/* Puts a suffix in at the cursor, which is where it leaves the tree; or where it `ends`. A new leaf's edge goes on with
 * the text of its sequence, so it is as deep as can be. */
static void place(struct suffix_tree *t, uint32_t slot, const struct cursor *c, bool ends)
{
    uint32_t v = c->edge ? split(t, c) : c->node, x = v;
    if (!ends) {
        x = suffix_nodes_new(&t->nodes);
        struct suffix_node *n = &t->nodes.items[x];
        n->parent = v;
        n->first = suffix_text_at(t, slot, c->depth);
        n->count = 1;
        n->depth = SUFFIX_DEPTH;
        n->ref = slot;
        suffix_nodes_add(&t->nodes, x);
    }
    link_end(t, slot, x);
    struct suffix_node *items = t->nodes.items;
    for (; items[v].parent; v = items[v].parent) {
        suffix_nodes_raise(&t->nodes, v);
        items[v].ref = slot;
    }
    items[v].count++;
}

/* Suffixes of the open sequence that stand nowhere else, or are as long as is counted; at its end all of them. At most
 * so many of them. What stands there of one, but for its first token, stands there of the next one. */
static void settle(struct suffix_tree *t, bool all, int most)
{
    const struct seq *s = &t->seqs[t->open];
    int32_t string[SUFFIX_DEPTH];
    for (; t->due < s->n && most > 0; most--) {
        int n = s->n - t->due < SUFFIX_DEPTH ? s->n - t->due : SUFFIX_DEPTH;
        read_text(t, t->due_slot, n, string);
        descend(t, &t->at, string, t->known);
        suffix_advance(t, &t->at, string, n);
        bool whole = t->at.depth == n;
        if (whole && n < SUFFIX_DEPTH && !all)
            return;
        place(t, t->due_slot, &t->at, whole);
        t->due_slot = ++t->due < s->n ? slot_behind(t, t->due_slot) : 0;
        t->known = t->at.depth > 0 ? t->at.depth - 1 : 0;
        t->at = (struct cursor){.node = s->root};
    }
}

uint32_t suffix_tree_begin(struct suffix_tree *t, uint32_t root)
{
    uint32_t s = t->free_seq;
    ASSERT(!t->open);
    if (s) {
        t->free_seq = t->seqs[s].head;
    } else {
        if (t->n_seqs == t->cap_seqs) {
            t->cap_seqs *= 2;
            t->seqs = mem_resize(t->seqs, t->cap_seqs, sizeof *t->seqs);
        }
        s = t->n_seqs++;
    }
    t->seqs[s] = (struct seq){.root = root};
    t->live_seqs++;
    t->open = s;
    t->due = 0;
    t->due_slot = 0;
    t->at = (struct cursor){.node = root};
    t->known = 0;
    return s;
}

void suffix_tree_append(struct suffix_tree *t, const int32_t *tokens, int n)
{
    suffix_tree_append_some(t, tokens, n, INT_MAX);
}

void suffix_tree_append_some(struct suffix_tree *t, const int32_t *tokens, int n, int most)
{
    ASSERT(t->open);
    for (int i = 0; i < n; i++) {
        uint32_t slot = write_token(t, tokens[i]);
        if (!t->due_slot)
            t->due_slot = slot;
    }
    settle(t, false, most);
}

void suffix_tree_end(struct suffix_tree *t)
{
    const struct seq *s = &t->seqs[t->open];
    ASSERT(t->open);
    settle(t, true, INT_MAX);
    for (int i = s->n - 1, p = (int)s->tail; i >= 0 && i > s->n - SUFFIX_DEPTH; i--) {
        struct suffix_node *leaf = &t->nodes.items[t->pages[p].leaf[i % PAGE]];
        if (leaf->depth > s->n - i)
            leaf->depth = (uint8_t)(s->n - i); /* its edge ends with the text */
        if (i % PAGE == 0)
            p = (int)t->pages[p].before;
    }
    t->open = 0;
}

/* ---- suffixes out */

/* A node that says nothing any more: one child, and no suffix that ends there. */
static bool is_idle(const struct suffix_node *items, uint32_t v)
{
    return !items[v].ends && items[v].child && !items[items[v].child].next;
}

static void merge(struct suffix_tree *t, uint32_t v)
{
    uint32_t low = t->nodes.items[v].child;
    suffix_nodes_unlink(&t->nodes, low);
    suffix_nodes_replace(&t->nodes, v, low);
    suffix_nodes_release(&t->nodes, v);
}

/* From its end up to the root, so that a node's children are right before it looks for another suffix in them. */
static void take_out(struct suffix_tree *t, uint32_t slot)
{
    struct suffix_node *items = t->nodes.items;
    uint32_t v = suffix_page(t, slot)->leaf[slot % PAGE];
    unlink_end(t, slot, v);
    for (uint32_t parent; (parent = items[v].parent); v = parent) {
        if (items[v].count == 1) {
            suffix_nodes_unlink(&t->nodes, v);
            suffix_nodes_release(&t->nodes, v);
            continue;
        }
        suffix_nodes_lower(&t->nodes, v);
        if (items[v].ref == slot)
            items[v].ref = items[v].ends ? items[v].ends : items[items[v].child].ref;
        if (is_idle(items, v))
            merge(t, v);
    }
    items[v].count--;
}

bool suffix_tree_remove(struct suffix_tree *t, uint32_t seq, int n)
{
    struct seq *s = &t->seqs[seq];
    ASSERT(seq && seq != t->open);
    for (; n > 0 && s->gone < s->n; n--) {
        uint32_t p = s->head;
        take_out(t, p * PAGE + (uint32_t)(s->gone % PAGE));
        t->n_tokens--;
        if (++s->gone % PAGE == 0 || s->gone == s->n) {
            s->head = t->pages[p].after;
            free_page(t, p);
        }
    }
    if (t->open) { /* where its text stood may be gone */
        t->at = (struct cursor){.node = t->seqs[t->open].root};
        t->known = 0;
        settle(t, false, INT_MAX);
    }
    if (s->gone < s->n)
        return false;
    s->head = t->free_seq;
    t->free_seq = seq;
    t->live_seqs--;
    return true;
}

int suffix_tree_n_tokens(const struct suffix_tree *t, uint32_t seq)
{
    return t->seqs[seq].n - t->seqs[seq].gone;
}

void suffix_tree_tokens(const struct suffix_tree *t, uint32_t seq, int32_t *out)
{
    const struct seq *s = &t->seqs[seq];
    for (int i = s->gone, p = (int)s->head; i < s->n; i++) {
        *out++ = t->pages[p].text[i % PAGE];
        if (i % PAGE == PAGE - 1)
            p = (int)t->pages[p].after;
    }
}

struct suffix_stats suffix_tree_stats(const struct suffix_tree *t)
{
    struct suffix_stats s = {.nodes = t->nodes.n_live, .tokens = t->n_tokens};
    s.bytes =
        sizeof *t + suffix_nodes_bytes(&t->nodes) + t->live_pages * sizeof *t->pages + t->live_seqs * sizeof *t->seqs;
    s.held = sizeof *t + suffix_nodes_held(&t->nodes) + t->cap_pages * sizeof *t->pages + t->cap_seqs * sizeof *t->seqs;
    return s;
}

/* ---- for tests */

static const char *check_siblings(const struct suffix_tree *t, uint32_t v)
{
    const struct suffix_node *items = t->nodes.items;
    uint32_t last = 0;
    for (uint32_t c = items[v].child; c; last = c, c = items[c].next) {
        if (items[c].parent != v || suffix_nodes_find(&t->nodes, v, items[c].first) != c)
            return "a child is not found by its token";
        if (last && items[last].count < items[c].count)
            return "siblings are not in the order of their counts";
        if (last && items[c].prev != last)
            return "a sibling does not know the one before it";
        const struct suffix_group *g = &t->nodes.groups[items[c].group];
        bool first = !last || items[last].count != items[c].count;
        bool end = !items[c].next || items[items[c].next].count != items[c].count;
        if ((g->head == c) != first || (g->tail == c) != end || (!first && items[last].group != items[c].group))
            return "a group is not the siblings of one count";
    }
    if (last && items[items[v].child].prev != last)
        return "the first child does not know the last one";
    return NULL;
}

static bool passes(const struct suffix_tree *t, uint32_t slot, uint32_t v)
{
    uint32_t x = suffix_page(t, slot)->leaf[slot % PAGE];
    while (x && x != v)
        x = t->nodes.items[x].parent;
    return x == v;
}

static const char *check_node(const struct suffix_tree *t, uint32_t v)
{
    const struct suffix_node *items = t->nodes.items, *n = &items[v];
    uint32_t sum = 0;
    for (uint32_t c = n->child; c; c = items[c].next)
        sum += items[c].count;
    for (uint32_t s = n->ends; s; s = suffix_page(t, s)->next[s % PAGE], sum++)
        if (suffix_page(t, s)->leaf[s % PAGE] != v)
            return "a suffix does not know where it ends";
    if (sum != n->count)
        return "a count is not the sum of its children and of what ends there";
    if (!n->parent)
        return check_siblings(t, v);
    if (n->count == 0 || is_idle(items, v))
        return "a node neither branches nor ends a suffix";
    if (n->depth <= items[n->parent].depth || n->depth > SUFFIX_DEPTH)
        return "a node is not deeper than its parent, or too deep";
    if (suffix_text_at(t, n->ref, n->depth - 1) == NOTHING && suffix_page(t, n->ref)->seq != t->open)
        return "an edge is longer than its text";
    if (!passes(t, n->ref, v) || suffix_text_at(t, n->ref, items[n->parent].depth) != n->first)
        return "a node's text is not that of a suffix which passes there";
    return check_siblings(t, v);
}

static const char *check_below(const struct suffix_tree *t, uint32_t v, int64_t *n_nodes)
{
    const char *wrong = check_node(t, v);
    ++*n_nodes;
    for (uint32_t c = t->nodes.items[v].child; c && !wrong; c = t->nodes.items[c].next)
        wrong = check_below(t, c, n_nodes);
    return wrong;
}

const char *suffix_tree_check(const struct suffix_tree *t, const uint32_t *roots, int n_roots)
{
    int64_t n_nodes = 0;
    const char *wrong = NULL;
    for (int i = 0; i < n_roots && !wrong; i++)
        wrong = check_below(t, roots[i], &n_nodes);
    return wrong ? wrong : n_nodes != t->nodes.n_live ? "a node hangs at no root" : NULL;
}
