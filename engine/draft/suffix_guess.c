/* What is said next, by what stands in a suffix tree. */
#include <string.h>

#include "engine/base/check.h"
#include "engine/draft/suffix_inner.h"

/* The last n tokens of the open sequence, a page at the most. */
static void read_end(const struct suffix_tree *t, int n, int32_t *out)
{
    const struct seq *s = &t->seqs[t->open];
    int here = (s->n - 1) % PAGE + 1, before = n > here ? n - here : 0;
    const struct page *p = &t->pages[s->tail];
    if (before)
        memcpy(out, t->pages[p->before].text + PAGE - before, (size_t)before * sizeof *out);
    memcpy(out + before, p->text + here - (n - before), (size_t)(n - before) * sizeof *out);
}

/* ---- guesses */

static struct cursor walk(const struct suffix_tree *t, uint32_t root, const int32_t *string, int n)
{
    struct cursor c = {.node = root};
    suffix_advance(t, &c, string, n);
    return c;
}

static bool goes_on(const struct suffix_tree *t, const struct cursor *c)
{
    return c->edge ? suffix_edge_token(t, c) != NOTHING : t->nodes.items[c->node].child != 0;
}

/* The longest end of the context that stands in the tree and goes on; where it does, every shorter one does, too. */
static struct cursor longest(const struct suffix_tree *t, const struct suffix_want *w, const int32_t *context, int n)
{
    int low = 0, high = n < SUFFIX_MATCH ? n : SUFFIX_MATCH, mid = w->hint < high ? w->hint : high;
    struct cursor best = {.node = w->root};
    for (; low < high; mid = (low + high + 1) / 2) {
        mid = mid > low ? mid : (low + high + 1) / 2;
        struct cursor c = walk(t, w->root, context + n - mid, mid);
        if (c.depth == mid && goes_on(t, &c)) {
            best = c;
            low = mid;
        } else {
            high = mid - 1;
        }
    }
    return best;
}

/* The token behind the cursor's edge or leaf, by the text of a suffix that passes there; an open sequence goes on with
 * what is guessed up to token `last` of the guess. */
static int32_t behind(const struct suffix_tree *t, const struct cursor *c, const struct suffix_guess *g, int last)
{
    uint32_t ref = t->nodes.items[c->edge ? c->edge : c->node].ref;
    int32_t token = suffix_text_at(t, ref, c->depth);
    const struct page *p = suffix_page(t, ref);
    if (token != NOTHING || p->seq != t->open)
        return token;
    int at = p->first + (int)(ref % PAGE) + c->depth - t->seqs[t->open].n;
    int left = c->depth - g->match - 1 - at; /* from the last one back to the one at that place */
    if (at < 0 || left < 0)
        return NOTHING;
    for (; left > 0; left--)
        last = g->parents[last];
    return g->tokens[last];
}

static struct cursor step_on(const struct suffix_tree *t, struct cursor c)
{
    bool ends = c.edge && c.depth + 1 == t->nodes.items[c.edge].depth;
    return ends ? (struct cursor){c.edge, 0, c.depth + 1} : (struct cursor){c.node, c.edge, c.depth + 1};
}

/* Along the most frequent children, from the place where the match ends. */
static int follow(const struct suffix_tree *t, const struct suffix_want *w, struct cursor c, struct suffix_guess *g)
{
    const struct suffix_node *items = t->nodes.items;
    float share = 1;
    int32_t token;
    g->n = 0;
    g->score = 0;
    g->match = c.depth;
    for (; c.depth > 0 && g->n < w->most; c = step_on(t, c)) {
        if (!c.edge && items[c.node].child) {
            c.edge = items[c.node].child;
            share *= (float)items[c.edge].count / (float)items[c.node].count;
        }
        token = behind(t, &c, g, g->n - 1);
        if (token == NOTHING || share < w->min_share)
            break;
        g->parents[g->n] = (int8_t)(g->n - 1);
        g->tokens[g->n++] = token;
        g->score += share;
    }
    g->seq = g->n ? suffix_page(t, items[c.edge ? c.edge : c.node].ref)->seq : 0;
    return g->n;
}

/* A token that may come: behind the cursor, whose share is that of the place before it; behind token `last`. */
struct branch {
    struct cursor at;
    float before, share;
    int32_t token;
    int last;
};

/* Branches that are not taken yet: for each place that has been reached the first one, for each that is taken the next
 * of its siblings. */
struct front {
    struct branch items[2 * SUFFIX_MOST];
    int n;
};

static void offer(struct front *f, const struct suffix_tree *t, const struct suffix_want *w,
                  const struct suffix_guess *g, struct branch b)
{
    const struct suffix_node *items = t->nodes.items;
    if (!b.at.edge)
        b.at.edge = items[b.at.node].child;
    b.share = b.before;
    if (b.at.edge && b.at.depth == items[b.at.node].depth)
        b.share *= (float)items[b.at.edge].count / (float)items[b.at.node].count;
    b.token = behind(t, &b.at, g, b.last);
    if (b.token != NOTHING && b.share >= w->min_share)
        f->items[f->n++] = b;
}

/* Takes the one with the largest share, the earliest of equals. */
static struct branch take_best(struct front *f)
{
    int best = 0;
    for (int i = 1; i < f->n; i++)
        if (f->items[i].share > f->items[best].share)
            best = i;
    struct branch b = f->items[best];
    memmove(f->items + best, f->items + best + 1, (size_t)(--f->n - best) * sizeof b);
    return b;
}

/* The tokens with the largest shares behind the place where the match ends, whichever branch they are on. */
static int spread(const struct suffix_tree *t, const struct suffix_want *w, struct cursor c, struct suffix_guess *g)
{
    const struct suffix_node *items = t->nodes.items;
    struct front f;
    f.n = g->n = 0;
    g->score = 0;
    g->match = c.depth;
    g->seq = 0;
    if (c.depth > 0 && w->most > 0)
        offer(&f, t, w, g, (struct branch){.at = c, .before = 1, .last = -1});
    while (f.n && g->n < w->most) {
        struct branch b = take_best(&f);
        uint32_t next = b.at.edge && b.at.depth == items[b.at.node].depth ? items[b.at.edge].next : 0;
        if (!g->n)
            g->seq = suffix_page(t, items[b.at.edge ? b.at.edge : b.at.node].ref)->seq;
        g->parents[g->n] = (int8_t)b.last;
        g->tokens[g->n++] = b.token;
        g->score += b.share;
        offer(&f, t, w, g, (struct branch){.at = step_on(t, b.at), .before = b.share, .last = g->n - 1});
        if (next) {
            b.at.edge = next;
            offer(&f, t, w, g, b);
        }
    }
    return g->n;
}

static int from_there(const struct suffix_tree *t, const struct suffix_want *w, struct cursor c, struct suffix_guess *g)
{
    return w->tree ? spread(t, w, c, g) : follow(t, w, c, g);
}

int suffix_tree_guess(const struct suffix_tree *t, const struct suffix_want *w, const int32_t *context, int n_context,
                      struct suffix_guess *g)
{
    return from_there(t, w, longest(t, w, context, n_context), g);
}

int suffix_tree_guess_own(const struct suffix_tree *t, const struct suffix_want *w, struct suffix_guess *g)
{
    const struct seq *s = &t->seqs[t->open];
    int n = s->n - t->due;
    ASSERT(t->open);
    if (t->at.depth == n)
        return from_there(t, w, t->at, g);
    int32_t context[SUFFIX_MATCH]; /* suffixes are due: how much of its end stands there has to be looked for */
    n = n < SUFFIX_MATCH ? n : SUFFIX_MATCH;
    read_end(t, n, context);
    struct suffix_want want = *w;
    want.root = t->seqs[t->open].root;
    want.hint = 0;
    return suffix_tree_guess(t, &want, context, n, g);
}

int64_t suffix_tree_count(const struct suffix_tree *t, uint32_t root, const int32_t *string, int n)
{
    struct cursor c = walk(t, root, string, n);
    return c.depth == n ? (int64_t)t->nodes.items[c.edge ? c.edge : c.node].count : 0;
}
