#include "engine/world/residency.h"

#include <stdio.h>

#include "engine/base/check.h"
#include "engine/world/world.h"

struct cut cut_of(struct layout l, int share)
{
    struct layout in = layout_of_stage(l);
    struct cut c = {.layout = l, .stage = share_stage(l, share)};
    if (l.tp > 1)
        c.t = share_t(in, share_in_stage(l, share));
    else
        c.layout.sp = 1;
    return c;
}

bool cut_equal(const struct cut *a, const struct cut *b)
{
    return layout_equal(a->layout, b->layout) && a->stage == b->stage && a->t == b->t;
}

struct layer_span cut_layers(const struct cut *c, int n_layers)
{
    return c->layout.pp ? stage_layers(n_layers, c->layout.pp, c->stage) : (struct layer_span){0, 0};
}

bool cut_shares_layers(const struct cut *a, const struct cut *b)
{
    return a->layout.sp == b->layout.sp && a->layout.tp == b->layout.tp && a->t == b->t;
}

static const struct cut_size *size_of(const struct residency_facts *f, const struct cut *c)
{
    for (int i = 0; i < f->n_sizes; i++)
        if (f->sizes[i].sp == c->layout.sp && f->sizes[i].tp == c->layout.tp && f->sizes[i].t == c->t)
            return &f->sizes[i];
    return NULL;
}

static size_t bytes_of(const struct residency_facts *f, const struct cut *c, const struct cut *but)
{
    struct layer_span all = cut_layers(c, f->n_layers), out = {0, 0};
    const struct cut_size *size = size_of(f, c);
    size_t bytes = 0;
    if (but && cut_shares_layers(c, but))
        out = cut_layers(but, f->n_layers);
    for (int l = all.first; l < all.first + all.n; l++)
        if (l < out.first || l >= out.first + out.n)
            bytes += size ? size->layers[l] : 0;
    return bytes;
}

size_t residency_bytes(const struct residency_facts *f, const struct cut *c)
{
    return bytes_of(f, c, NULL);
}

size_t residency_missing(const struct residency_facts *f, const struct cut *from, const struct cut *to)
{
    return bytes_of(f, to, from);
}

void residency_cost(const struct world *w, const int *ranks, int n, struct layout l, struct reshard_cost *out)
{
    const struct residency *x = &w->residency;
    size_t stop = 0;
    *out = (struct reshard_cost){0};
    for (int i = 0; i < n && x->facts; i++) {
        struct cut to = cut_of(l, i);
        size_t moves = residency_missing(x->facts, &x->held[ranks[i]], &to),
               has = residency_bytes(x->facts, &x->held[ranks[i]]),
               free = x->facts->room > has ? x->facts->room - has : 0, before = moves < free ? moves : free;
        out->bytes += moves;
        out->before_all += before;
        if (moves > out->most) {
            out->most = moves;
            out->before = before;
        }
        stop = moves - before > stop ? moves - before : stop;
    }
    out->ns = (double)out->most * w->cost.load_ns_per_byte;
    out->stop_ns = (double)stop * w->cost.load_ns_per_byte;
}

static bool hold(const struct world *w, const int *ranks, int n, struct layout l)
{
    for (int i = 0; i < n; i++) {
        struct cut c = cut_of(l, i);
        if (!cut_equal(&c, &w->residency.held[ranks[i]]))
            return false;
    }
    return true;
}

bool residency_match(const struct world *w, const int *ranks, int n, int pp, struct layout *out)
{
    int width = n / pp;
    for (int tp = width; tp >= 1; tp--) {
        *out = (struct layout){width / tp, tp, pp};
        if (width % tp == 0 && !shape_refusal(&w->shape, n, *out) && hold(w, ranks, n, *out))
            return true;
    }
    return false;
}

static bool fits(const struct world *w, int n, struct layout l)
{
    for (int i = 0; i < n; i++) {
        struct cut c = cut_of(l, i);
        if (residency_bytes(w->residency.facts, &c) > w->residency.facts->room)
            return false;
    }
    return true;
}

bool residency_usual(const struct world *w, int n, int pp, struct layout *out)
{
    int width = n / pp;
    for (int tp = width; tp >= 1; tp--) {
        *out = (struct layout){width / tp, tp, pp};
        if (width % tp == 0 && !shape_refusal(&w->shape, n, *out) && fits(w, n, *out))
            return true;
    }
    return false;
}

const char *residency_refusal(struct world *w, int n, struct layout l)
{
    struct residency *x = &w->residency;
    size_t most = 0;
    for (int i = 0; i < n; i++) {
        struct cut c = cut_of(l, i);
        size_t bytes = residency_bytes(x->facts, &c);
        most = bytes > most ? bytes : most;
    }
    if (most <= x->facts->room)
        return NULL;
    snprintf(x->why, sizeof x->why,
             "a rank would hold %.1f MiB of the layers, and has room for %.1f: --shard-memory gives more",
             (double)most / 0x1p20, (double)x->facts->room / 0x1p20);
    return x->why;
}

bool residency_runs(const struct world *w, const struct group *g, struct layout l)
{
    bool whole = g->weights.tp == 1 && l.pp == g->weights.pp; /* all shares of a layer lie in the layer */
    return !w->residency.facts || whole || layout_equal(g->weights, l);
}

const char *residency_lacks(struct world *w, const struct group *g, struct layout l)
{
    struct residency *x = &w->residency;
    struct reshard_cost cost;
    if (residency_runs(w, g, l))
        return NULL;
    residency_cost(w, g->ranks, g->n_ranks, l, &cost);
    snprintf(x->why, sizeof x->why,
             "the group's ranks hold the weights of sp %d, tp %d, pp %d: %.1f MiB would have to move (act.reshard)",
             g->weights.sp, g->weights.tp, g->weights.pp, (double)cost.bytes / 0x1p20);
    return x->why;
}

uint64_t residency_take(struct world *w, const int *ranks, int n, struct layout l)
{
    uint64_t lack = 0;
    for (int i = 0; i < n; i++) {
        struct cut c = cut_of(l, i);
        if (cut_equal(&c, &w->residency.held[ranks[i]]))
            continue;
        w->residency.held[ranks[i]] = c;
        lack |= 1ull << ranks[i];
    }
    return lack;
}
