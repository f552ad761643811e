#include "engine/lab/recording/recording_steps.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_NUMBER = 1 << 29 };

/* A group: the step that it is in, or when its last one ended. */
struct group_seen {
    int id;              /* 0: this place is free */
    bool running, waits; /* waits: a copy had the ranks while the step was there, so what went by says little */
    int64_t posted_ns, waited_for_ns;
    int beside, sampled;
    int64_t ended_ns; /* in the turn that is not over; -1: not */
};

struct watch {
    struct group_seen groups[MAX_RANKS];
    int64_t from_ns;  /* the window begins then; 0: it is none */
    int64_t first_ns; /* what happened first since the last turn; -1: nothing */
    recording_step_fn fn;
    void *ctx;
};

static struct group_seen *find(struct watch *w, int id)
{
    for (int i = 0; i < MAX_RANKS; i++)
        if (w->groups[i].id == id)
            return &w->groups[i];
    return NULL;
}

/* A group that runs nothing may have gone. */
static struct group_seen *find_or_add(struct watch *w, int id)
{
    struct group_seen *g = find(w, id);
    for (int i = 0; i < MAX_RANKS && !g; i++)
        if (!w->groups[i].running && w->groups[i].ended_ns < 0)
            g = &w->groups[i];
    if (g && g->id != id)
        *g = (struct group_seen){.id = id, .ended_ns = -1};
    return g;
}

static int n_running(const struct watch *w)
{
    int n = 0;
    for (int i = 0; i < MAX_RANKS; i++)
        n += w->groups[i].running;
    return n;
}

/* 0 for what is no number of a sane size. */
static int small_number(const char *at, const char **end)
{
    char *rest;
    long v = strtol(at, &rest, 10);
    *end = rest;
    return v > 0 && v <= MOST_NUMBER ? (int)v : 0;
}

/* "B<group>:<layout>:<tokens>:<requests>:<decodes>[:<items>]". Each request is one row that may give a token, and so is
 * each of its draft tokens: "~<source>x<n>". For recordings that do not say how many did. */
static int read_batch(const char *at, int *sampled)
{
    const char *c, *ignored;
    int id = small_number(at + 1, &c);
    for (int field = 0; field < 2 && *c == ':'; field++)
        c += 1 + strcspn(c + 1, ": ");
    *sampled = *c == ':' ? small_number(c + 1, &c) : 0;
    for (; *c && *c != ' '; c++) {
        const char *n = *c == '~' ? c + strcspn(c, "x ") : NULL;
        if (n && *n == 'x' && *sampled < MOST_NUMBER)
            *sampled += small_number(n + 1, &ignored);
    }
    return id;
}

static void see_batch(struct watch *w, const char *at, int64_t now)
{
    int sampled, id = read_batch(at, &sampled);
    struct group_seen *g = id ? find_or_add(w, id) : NULL;
    if (!g)
        return;
    int64_t since = g->ended_ns >= 0 ? g->ended_ns : w->first_ns >= 0 ? w->first_ns : now;
    *g = (struct group_seen){.id = id,
                             .running = true,
                             .posted_ns = now,
                             .waited_for_ns = since,
                             .sampled = sampled,
                             .beside = -1,
                             .ended_ns = -1};
}

/* Batches of one plan run beside each other, and beside those that had begun. */
static void see_plan(struct watch *w, const struct recorded *x)
{
    for (const char *c = x->text; c; c = strchr(c, ' '), c = c ? c + 1 : NULL)
        if (*c == 'B')
            see_batch(w, c, x->t_ns);
    for (int i = 0; i < MAX_RANKS; i++)
        if (w->groups[i].running && w->groups[i].beside < 0)
            w->groups[i].beside = n_running(w) - 1;
}

static void end_turn(struct watch *w)
{
    w->first_ns = -1;
    for (int i = 0; i < MAX_RANKS; i++)
        w->groups[i].ended_ns = -1;
}

/* A step that was under way when the window began has ended: those that run were posted beside it. */
static void see_earlier(struct watch *w)
{
    for (int i = 0; i < MAX_RANKS; i++)
        if (w->groups[i].running && w->groups[i].beside < MAX_RANKS - 1)
            w->groups[i].beside++;
}

static void see_step(struct watch *w, const struct recorded *x)
{
    struct group_seen *g = find(w, x->group);
    bool known = g && g->running && g->posted_ns == x->start_ns;
    struct fit_step s = {.layout = x->layout,
                         .cas = x->cas_layers > 0,
                         .beside = known ? g->beside : 0,
                         .rows = x->rows,
                         .logits = x->n_logits >= 0 ? x->n_logits
                                   : known          ? g->sampled
                                                    : 0,
                         .looked_at = x->looked_at,
                         .at_ns = x->start_ns,
                         .ns = x->ns,
                         .lag_ns = -1};
    if (known && !g->waits)
        s.lag_ns = x->t_ns - g->waited_for_ns - x->ns;
    if (s.lag_ns < 0)
        s.lag_ns = -1;
    if (x->failed_rank < 0 && x->ns > 0 && known)
        w->fn(w->ctx, &s);
    if (!known && x->start_ns < w->from_ns)
        see_earlier(w);
    if (g) {
        g->running = false;
        g->ended_ns = x->t_ns;
    }
}

/* A copy that was under way when a step was posted may have had its ranks. */
static void see_copy(struct watch *w, const struct recorded *x)
{
    for (int i = 0; i < MAX_RANKS; i++)
        w->groups[i].waits |= w->groups[i].running && x->start_ns <= w->groups[i].posted_ns;
}

int recording_each_step(struct recording *r, recording_step_fn fn, void *ctx, struct err *e)
{
    struct watch w = {.from_ns = recording_head(r)->from_ns, .first_ns = -1, .fn = fn, .ctx = ctx};
    struct recorded x;
    bool end = false;
    end_turn(&w);
    for (;;) {
        TRY(recording_next(r, &x, &end, e));
        if (end)
            return 0;
        if (x.kind == 'q')
            see_plan(&w, &x);
        if (x.kind == 'q' || x.kind == 't')
            end_turn(&w);
        else if (x.kind == 's')
            see_step(&w, &x);
        else if (x.kind == 'm' || x.kind == 'h')
            see_copy(&w, &x);
        else if (x.kind == 'a' && w.first_ns < 0)
            w.first_ns = x.t_ns;
    }
}

static void add(void *ctx, const struct fit_step *s)
{
    step_fit_add(ctx, s);
}

/* Of a model's parameters, those of its head, which only rows that give a token are multiplied with. */
static double head_share(const struct model_config *c)
{
    double head = (double)c->vocab * c->hidden, attention = 2.0 * (c->n_heads + c->n_kv_heads) * c->head_dim;
    double layers = (double)c->n_layers * c->hidden * (attention + 3.0 * c->intermediate);
    return c->embeds ? 0 : head / (head + layers);
}

int recording_fit_steps(struct step_fit **out, const char *path, const struct model_config *c, struct err *e)
{
    struct recording *r = NULL;
    struct step_fit *f;
    TRY(recording_open(&r, path, e));
    f = step_fit_new(head_share(c));
    int rc = recording_each_step(r, add, f, e);
    recording_close(r);
    if (rc) {
        step_fit_free(f);
        return rc;
    }
    step_fit_end(f);
    *out = f;
    return 0;
}
