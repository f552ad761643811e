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

void draft_end(const struct draft_sources *s, struct request *r)
{
    for (int i = 0; s && i < s->n; i++) {
        if (s->items[i].end)
            s->items[i].end(s->items[i].ctx, r, r->draft_notes[i]);
        r->draft_notes[i] = NULL;
    }
}

void draft_count(struct request *r, int source, int n, int right, bool ended)
{
    struct draft_counts *c = &r->drafts[source];
    c->drafted += n;
    c->accepted += right;
    c->rejected += !ended && right < n;
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
