/* How many servers keep the objectives. The closed formula says how many of each use of a server would; those with the
 * fewest are tried behind a router, all on the same requests: first as many as it says, then more until the objectives
 * are kept, then the middle of what is open. It is taken that what some servers keep, more of them keep, too. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/lab/router.h"
#include "engine/lab/search/advise_inner.h"

enum { LONGER = 8, TRIES = 3 }; /* traffic than that of one node; simulations that settle one use */

/* ---- who is tried */

static void add_fleet(struct fleets *f, const struct advise *server, const struct candidate *way, int first, int most)
{
    f->items = mem_resize(f->items, (size_t)f->n + 1, sizeof *f->items);
    f->items[f->n++] = (struct fleet){.server = server, .way = *way, .trying = first, .most = most};
}

static int most_servers(const struct advise *server)
{
    int64_t n = server->ask->max_devices / server->n_ranks;
    return n < ROUTER_MAX_NODES ? (int)n : ROUTER_MAX_NODES;
}

/* The ways to use a server of n_ranks; NULL: there are none. */
static struct advise *list_server(const struct advise *a, const struct advise_load *load, int n_ranks)
{
    struct advise *s = mem_new(sizeof *s);
    s->ask = a->ask;
    s->facts = a->facts;
    s->n_ranks = n_ranks;
    s->load = *load; /* its words stay f->load's */
    advise_list(s);
    if (s->n && most_servers(s))
        return s;
    mem_free(s->items);
    mem_free(s);
    return NULL;
}

/* A use of a server, by the formula: how many of them keep the objectives, and how far they are from them then. */
struct guess {
    int way, n;
    double share; /* of the objectives that is used up */
};

static double share_of(const struct advise_ask *ask, const struct candidate *c)
{
    double ttft = ask->slo_ttft_ms > 0 ? c->price[GOAL_TTFT] * 1e3 / ask->slo_ttft_ms : 0;
    double tpot = ask->slo_tpot_ms > 0 ? c->price[GOAL_TPOT] * 1e3 / ask->slo_tpot_ms : 0;
    return ttft > tpot ? ttft : tpot;
}

static double share_with(const struct advise *server, int way, int n)
{
    struct advise one = *server;
    struct candidate c = server->items[way];
    one.load.rate /= n;
    one.load.n_simulated = (one.load.n_simulated + n - 1) / n;
    return advise_price(&one, &c) ? INFINITY : share_of(server->ask, &c);
}

static struct guess guess(const struct advise *server, int way)
{
    int low = 0, high = most_servers(server);
    struct guess g = {way, high, share_with(server, way, high)};
    while (g.share <= 1 && high - low > 1) {
        int n = (low + high) / 2;
        double share = share_with(server, way, n);
        low = share <= 1 ? low : n;
        high = share <= 1 ? n : high;
        g = share <= 1 ? (struct guess){way, n, share} : g;
    }
    return g;
}

static int by_guess(const void *x, const void *y)
{
    const struct guess *a = x, *b = y;
    bool good = a->share <= 1, better = b->share <= 1;
    if (good != better)
        return good ? -1 : 1;
    if (a->n != b->n)
        return a->n < b->n ? -1 : 1;
    if (a->share != b->share)
        return a->share < b->share ? -1 : 1;
    return a->way - b->way;
}

static bool is_tried(const struct fleets *f, const struct advise *server, const struct candidate *way)
{
    for (int i = 0; i < f->n; i++)
        if (f->items[i].server == server && advise_same_use(&f->items[i].way, way))
            return true;
    return false;
}

/* The best by the formula, each use with its best size of a step; or, where there is room for it, all. */
static void choose(struct fleets *f, const struct advise *s, int most)
{
    struct guess *g = mem_new_array((size_t)s->n, sizeof *g);
    for (int i = 0; i < s->n; i++)
        g[i] = guess(s, i);
    qsort(g, (size_t)s->n, sizeof *g, by_guess);
    for (int i = 0, n = 0; i < s->n && n < most; i++) {
        const struct candidate *way = &s->items[g[i].way];
        if (most < s->n && is_tried(f, s, way))
            continue;
        add_fleet(f, s, way, g[i].n, most_servers(s));
        n++;
    }
    mem_free(g);
}

static void list_servers(struct fleets *f, const struct advise *a)
{
    for (int n = 1; n <= a->n_ranks && f->n_servers < ADVISE_SIZES; n++) {
        struct advise *s = a->n_ranks % n == 0 ? list_server(a, &f->load, n) : NULL;
        if (s)
            f->servers[f->n_servers++] = s;
    }
    int each = f->n_servers ? (int)a->ask->budget / (f->n_servers * TRIES) : 0;
    for (int i = 0; i < f->n_servers; i++)
        choose(f, f->servers[i], each < 3 ? 3 : each);
}

/* ---- a round of simulations */

static void make_words(const struct fleet *x, int n, int sample, struct strings *out)
{
    char number[16], nth[16];
    snprintf(number, sizeof number, "%d", n);
    snprintf(nth, sizeof nth, "%d", sample);
    const char *const words[] = {"--nodes", number, "--router", x->server->ask->router, "--sample", nth};
    for (int i = 0; i < (sample ? 6 : 4); i++) {
        out->items = mem_resize(out->items, (size_t)out->n + 1, sizeof *out->items);
        out->items[out->n++] = mem_strdup(words[i]);
    }
}

static void make_job(const struct fleet *x, int n, int sample, struct job *job)
{
    struct strings more = {0};
    make_words(x, n, sample, &more);
    advise_make_job(x->server, &x->way, &more, job);
    for (int i = 0; i < more.n; i++)
        mem_free(more.items[i]);
    mem_free(more.items);
}

static bool keeps(const struct fleet *x, const struct candidate *c)
{
    return c->known && c->finished >= (double)x->server->load.n_simulated &&
           advise_keeps(x->server, c, GOAL_THROUGHPUT);
}

/* As many as are still open between those that miss the objectives and those that keep them. */
static void next_try(struct fleet *x)
{
    if (x->keeps)
        x->trying = x->keeps - x->fails > 1 ? (x->keeps + x->fails) / 2 : 0;
    else
        x->trying = x->fails >= x->most                     ? 0
                    : x->fails + 1 + x->fails / 4 < x->most ? x->fails + 1 + x->fails / 4
                                                            : x->most;
}

static void take(struct fleet *x, struct job *job)
{
    struct candidate c = x->way;
    c.failure = NULL;
    c.known = false;
    advise_take_result(&c, job);
    bool failed = c.failure != NULL;
    mem_free(c.failure);
    c.failure = NULL;
    if (keeps(x, &c)) {
        x->way = c;
        x->keeps = x->trying;
    } else {
        x->fails = x->trying;
    }
    next_try(x);
    if (failed)
        x->trying = 0; /* it cannot be run, however many there are */
}

static int fewest(const struct fleets *f, const struct advise *server)
{
    int best = 0;
    for (int i = 0; i < f->n; i++)
        if (f->items[i].server == server && f->items[i].keeps && (!best || f->items[i].keeps < best))
            best = f->items[i].keeps;
    return best;
}

/* Tries what is open, until nothing is: another use of the same server that needs more is of no interest. */
static int settle(struct fleets *f, const struct advise *a, const struct job_signals *signals, struct err *e)
{
    int *open = mem_new_array((size_t)f->n + 1, sizeof *open), n, rc = 0;
    struct job *items = mem_new_array((size_t)f->n + 1, sizeof *items);
    do {
        n = 0;
        for (int i = 0; i < f->n; i++) {
            struct fleet *x = &f->items[i];
            int best = fewest(f, x->server);
            if (best && x->fails >= best)
                x->trying = 0;
            if (x->trying)
                open[n++] = i;
        }
        memset(items, 0, ((size_t)f->n + 1) * sizeof *items);
        for (int i = 0; i < n; i++)
            make_job(&f->items[open[i]], f->items[open[i]].trying, 0, &items[i]);
        struct jobs j = {.signals = signals, .items = items, .n = n, .parallel = (int)a->ask->jobs, .what = "fleets"};
        rc = n ? jobs_run(&j, e) : 0;
        for (int i = 0; i < n; i++) {
            if (!rc)
                take(&f->items[open[i]], &items[i]);
            advise_end_job(&items[i]);
        }
        f->n_simulated += n;
        jobs_clear(&j);
    } while (n && !rc);
    mem_free(items);
    mem_free(open);
    return rc;
}

/* ---- the best of each size of a server */

/* The fewest; of as many, those that wait least. */
static bool beats(const struct fleet *x, const struct fleet *y)
{
    if (x->keeps != y->keeps)
        return x->keeps < y->keeps;
    double a = x->way.value[GOAL_TTFT] * x->way.value[GOAL_TPOT], b = y->way.value[GOAL_TTFT] * y->way.value[GOAL_TPOT];
    return a < b;
}

static int best_of(const struct fleets *f, const struct advise *server)
{
    int best = -1;
    for (int i = 0; i < f->n; i++)
        if (f->items[i].server == server && f->items[i].keeps && (best < 0 || beats(&f->items[i], &f->items[best])))
            best = i;
    return best;
}

static int devices(const struct fleet *x)
{
    return x->keeps * x->server->n_ranks;
}

int advise_best_fleets(const struct fleets *f, int out[ADVISE_SIZES])
{
    int n = 0;
    for (int i = 0; i < f->n_servers; i++) {
        int best = best_of(f, f->servers[i]), at = n;
        if (best < 0)
            continue;
        for (; at && devices(&f->items[out[at - 1]]) > devices(&f->items[best]); at--)
            out[at] = out[at - 1];
        out[at] = best;
        n++;
    }
    return n;
}

/* Is it a use that was tried, with a size of a step that was not? */
static bool is_other_size(const struct fleets *f, int n, const struct advise *server, const struct candidate *way)
{
    bool tried = false;
    for (int i = 0; i < n; i++) {
        const struct candidate *c = &f->items[i].way;
        if (f->items[i].server != server || !advise_same_use(c, way))
            continue;
        if (c->chunk == way->chunk)
            return false;
        tried = true;
    }
    return tried;
}

/* The other sizes of a step, of all uses that were tried: with one server fewer than the best of them needs. */
static void add_sizes(struct fleets *f)
{
    int n = f->n;
    for (int k = 0; k < f->n_servers; k++) {
        const struct advise *s = f->servers[k];
        int enough = fewest(f, s);
        for (int i = 0; i < s->n && enough > 1; i++)
            if (is_other_size(f, n, s, &s->items[i]))
                add_fleet(f, s, &s->items[i], enough - 1, enough - 1);
    }
}

/* ---- bands */

static int by_value(const void *x, const void *y)
{
    double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}

static void take_band(struct fleet *x, const struct candidate *items, int n)
{
    double *v = mem_new_array((size_t)n, sizeof *v);
    for (int g = 0; g < GOAL_COUNT; g++) {
        for (int i = 0; i < n; i++)
            v[i] = items[i].value[g];
        qsort(v, (size_t)n, sizeof *v, by_value);
        x->low[g] = v[(int)(0.05 * (n - 1) + 0.5)];
        x->high[g] = v[(int)(0.95 * (n - 1) + 0.5)];
    }
    for (int i = 0; i < n; i++)
        x->n_kept += keeps(x, &items[i]);
    x->n_samples = n;
    mem_free(v);
}

static int sample(struct fleet *x, const struct advise *a, const struct job_signals *signals, struct err *e)
{
    int n = (int)a->ask->samples, rc = 0;
    struct job *items = mem_new_array((size_t)n, sizeof *items);
    struct candidate *came_to = mem_new_array((size_t)n, sizeof *came_to);
    for (int i = 0; i < n; i++)
        make_job(x, x->keeps, i + 1, &items[i]);
    struct jobs j = {.signals = signals, .items = items, .n = n, .parallel = (int)a->ask->jobs, .what = "samples"};
    rc = jobs_run(&j, e);
    for (int i = 0; i < n; i++) {
        came_to[i] = x->way;
        if (!rc)
            advise_take_result(&came_to[i], &items[i]);
        if (!rc && came_to[i].failure)
            rc = err_set(e, E_INPUT, "sample %d: %s", i + 1, came_to[i].failure);
        mem_free(came_to[i].failure);
        advise_end_job(&items[i]);
    }
    if (!rc)
        take_band(x, came_to, n);
    jobs_clear(&j);
    mem_free(items);
    mem_free(came_to);
    return rc;
}

/* ---- all of it */

int advise_size(struct advise *a, const struct job_signals *signals, struct err *e)
{
    struct fleets *f = a->fleets = mem_new(sizeof *f);
    int best[ADVISE_SIZES];
    TRY(advise_read_load(&f->load, a->ask, LONGER, e));
    list_servers(f, a);
    TRY(settle(f, a, signals, e));
    add_sizes(f);
    TRY(settle(f, a, signals, e));
    int n = a->ask->samples ? advise_best_fleets(f, best) : 0;
    for (int i = 0; i < n; i++)
        TRY(sample(&f->items[best[i]], a, signals, e));
    return 0;
}

void advise_fleets_free(struct fleets *f)
{
    if (!f)
        return;
    for (int i = 0; i < f->n_servers; i++) {
        mem_free(f->servers[i]->items);
        mem_free(f->servers[i]);
    }
    mem_free(f->items);
    advise_load_free(&f->load);
    mem_free(f);
}
