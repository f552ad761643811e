#include "engine/world/draft.h"

#include <string.h>

#include "engine/world/lookup.h"
#include "engine/world/request.h"

static void guess_by_lookup(void *ctx, const struct request *r, void **note, int most, struct draft_guess *g)
{
    (void)ctx;
    if (!*note)
        *note = lookup_new();
    g->n = lookup_propose(*note, r->tokens, r->n_tokens, most, g->tokens, &g->match);
    g->score = (float)g->n * (float)g->match / (float)LOOKUP_MATCH;
}

static void end_lookup(void *ctx, const struct request *r, void *note)
{
    (void)ctx;
    (void)r;
    lookup_free(note);
}

void draft_lookup_source(struct draft_source *to)
{
    *to = (struct draft_source){.name = "lookup", .guess = guess_by_lookup, .end = end_lookup, .by_name = true};
}

const struct draft_sources *draft_lookup(void)
{
    static const struct draft_sources sources = {
        {{.name = "lookup", .guess = guess_by_lookup, .end = end_lookup, .by_name = true}}, 1};
    return &sources;
}

int draft_source_named(const struct draft_sources *s, const char *name)
{
    for (int i = 0; s && i < s->n; i++)
        if (strcmp(s->items[i].name, name) == 0)
            return i;
    return -1;
}

bool draft_keeps(const struct draft_sources *s)
{
    for (int i = 0; s && i < s->n; i++)
        if (s->items[i].evict)
            return true;
    return false;
}

bool draft_takes_time(const struct draft_sources *s)
{
    for (int i = 0; s && i < s->n; i++)
        if (s->items[i].timed)
            return true;
    return false;
}

void draft_set_evict(const struct draft_sources *s, enum draft_evict rule)
{
    for (int i = 0; s && i < s->n; i++)
        if (s->items[i].evict)
            s->items[i].evict(s->items[i].ctx, rule);
}

void draft_begin(const struct draft_sources *s, struct request *r)
{
    for (int i = 0; s && i < s->n; i++)
        if (s->items[i].begin)
            s->items[i].begin(s->items[i].ctx, r, &r->draft_notes[i]);
}

void draft_said(const struct draft_sources *s, const struct request *r)
{
    for (int i = 0; s && i < s->n; i++)
        if (s->items[i].said && r->draft_notes[i])
            s->items[i].said(s->items[i].ctx, r, r->draft_notes[i]);
}

void draft_end(const struct draft_sources *s, struct request *r)
{
    for (int i = 0; s && i < s->n; i++) {
        if (s->items[i].end)
            s->items[i].end(s->items[i].ctx, r, r->draft_notes[i]);
        r->draft_notes[i] = NULL;
    }
}

bool draft_lend(const struct draft_sources *s, int source, struct request *r, int n_new, struct draft_cache *c)
{
    const struct draft_source *x = &s->items[source];
    *c = (struct draft_cache){0};
    return x->lend(x->ctx, r, &r->draft_notes[source], n_new, c);
}

void draft_take_made(const struct draft_sources *s, struct request *r, const struct draft_made *m)
{
    for (int i = 0; s && i < s->n; i++)
        if (s->items[i].made)
            s->items[i].made(s->items[i].ctx, r, &r->draft_notes[i], m);
}

void draft_count(struct request *r, int source, int n, int right, bool wrong)
{
    struct draft_counts *c = &r->drafts[source];
    c->drafted += n;
    c->accepted += right;
    c->rejected += wrong;
    for (int i = 0; i < right + wrong && i < DRAFT_DEPTHS; i++) {
        c->judged_at[i]++;
        c->right_at[i] += i < right;
    }
}

struct draft_counts draft_total(const struct request *r)
{
    struct draft_counts all = {0};
    for (int i = 0; i < MOST_SOURCES; i++) {
        all.drafted += r->drafts[i].drafted;
        all.accepted += r->drafts[i].accepted;
        all.rejected += r->drafts[i].rejected;
    }
    return all;
}

int drafts_parent(const struct drafts *d, int at)
{
    return d->parents ? d->parents[at] : at - 1;
}

int drafts_next(const struct drafts *d, int at, int32_t token)
{
    for (int i = at + 1; i < d->n; i++)
        if (drafts_parent(d, i) == at && d->tokens[i] == token)
            return i;
    return -1;
}

bool drafts_go_on(const struct drafts *d, int at)
{
    for (int i = at + 1; i < d->n; i++)
        if (drafts_parent(d, i) == at)
            return true;
    return false;
}

int drafts_depth(const struct drafts *d, int at)
{
    int n = 0;
    if (!d->parents)
        return at + 1;
    for (; at >= 0; at = d->parents[at])
        n++;
    return n;
}
