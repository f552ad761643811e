#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/lab/search/regret_inner.h"

/* ROUND: schedules at once, so that the search does not depend on the machine. */
enum { ROUND = 4 };

/* What a switch is taken to cost at first, as shares of all that requests waited. */
static const double switch_shares[] = {0, 0.002, 0.01, 0.05};
enum { N_SHARES = sizeof switch_shares / sizeof *switch_shares };

/* A schedule that may be tried, and what it would cost if stretches of time did not depend on one another. */
struct idea {
    uint8_t modes[REGRET_BINS];
    double cost;
};

struct ideas {
    struct idea *items;
    int n, cap;
};

/* ---- what is known of each mode */

static void add_mode(struct regret *g, struct mode m, int run)
{
    if (g->n_modes == REGRET_MODES || !g->runs[run]->known || g->runs[run]->withdrawn)
        return;
    g->by_mode[g->n_modes] = run;
    g->modes[g->n_modes++] = m;
}

static bool is_named(const struct regret *g, const char *name)
{
    for (int i = 0; i < g->n_runs; i++)
        if (!strcmp(g->runs[i]->asked, name))
            return true;
    return false;
}

/* All partitions into equal groups of a power of two, in tensor and in sequence parallelism; and the policies of
 * papers that change partitions and layouts. */
static int run_fixed(struct regret *g, struct err *e)
{
    static const char *const papers[] = {"shift", "flying", "sidp", "seesaw"};
    struct mode modes[REGRET_MODES];
    int n = 0, first = g->n_runs;
    for (int groups = 1; groups <= g->n_ranks; groups *= 2) {
        int size = g->n_ranks / groups;
        if (groups * size != g->n_ranks)
            continue;
        modes[n++] = (struct mode){groups, 1, size, 0};
        if (size > 1)
            modes[n++] = (struct mode){groups, size, 1, 0};
    }
    for (int i = 0; i < n; i++) {
        char asked[64];
        snprintf(asked, sizeof asked, "static:dp=%d,sp=%d,tp=%d", modes[i].groups, modes[i].sp, modes[i].tp);
        regret_add(g, RUN_STATIC, asked);
    }
    for (size_t i = 0; i < sizeof papers / sizeof *papers; i++)
        if (!is_named(g, papers[i]))
            regret_add(g, RUN_POLICY, papers[i]);
    g->n_planned = g->n_spent + g->n_runs - first + (int)g->ask->budget;
    int rc = regret_run(g, first, g->n_runs - first, e);
    for (int i = 0; i < n; i++)
        add_mode(g, modes[i], first + i);
    return rc;
}

static void set_words(const struct regret *g, struct run *r)
{
    struct buf words = {0};
    regret_schedule_words(g, r, &words);
    mem_free(r->asked);
    r->asked = buf_take(&words);
}

static int add_schedule(struct regret *g, const uint8_t *modes)
{
    struct run *r = regret_add(g, RUN_SCHEDULE, "");
    memcpy(r->modes, modes, sizeof r->modes);
    set_words(g, r);
    return g->n_runs - 1;
}

/* Where both layouts of a group run, steps can choose between them by their size. */
static int run_rules(struct regret *g, int budget, struct err *e)
{
    int n_fixed = g->n_modes, first = g->n_runs, n = 0;
    struct mode ruled[REGRET_MODES];
    for (int i = 0; i < n_fixed && n < budget; i++)
        for (int k = 0; k < n_fixed && n < budget; k++)
            if (g->modes[i].sp > 1 && g->modes[k].sp == 1 && g->modes[k].groups == g->modes[i].groups) {
                ruled[n] = g->modes[i];
                ruled[n++].below = REGRET_SHIFT_BELOW;
            }
    for (int i = 0; i < n && g->n_modes < REGRET_MODES; i++) {
        uint8_t modes[REGRET_BINS];
        memset(modes, g->n_modes, sizeof modes);
        g->by_mode[g->n_modes] = g->n_runs;
        g->modes[g->n_modes++] = ruled[i];
        add_schedule(g, modes);
    }
    int rc = regret_run(g, first, g->n_runs - first, e);
    for (int i = n_fixed; i < g->n_modes && !rc; i++)
        if (!g->runs[g->by_mode[i]]->known) { /* it is the last one that fails, if any: its number means nothing else */
            g->n_modes = i;
            break;
        }
    return rc;
}

/* ---- ideas */

static double cost_at(const struct regret *g, int metric, int mode, int bin)
{
    return g->runs[g->by_mode[mode]]->costs[metric][bin];
}

static double switch_cost(const struct regret *g, int metric, double share)
{
    double least = -1;
    for (int m = 0; m < g->n_modes; m++) {
        double all = 0;
        for (int b = 0; b < g->n_bins; b++)
            all += cost_at(g, metric, m, b);
        least = least < 0 || all < least ? all : least;
    }
    return share * least;
}

static bool is_tried(const struct regret *g, const struct ideas *more, const uint8_t *modes)
{
    size_t n = (size_t)g->n_bins;
    for (int m = 0; m < g->n_modes; m++) {
        int b = 0;
        while (b < g->n_bins && modes[b] == m)
            b++;
        if (b == g->n_bins)
            return true; /* one mode for all time */
    }
    for (int i = 0; i < g->n_runs; i++)
        if (g->runs[i]->kind == RUN_SCHEDULE && !memcmp(g->runs[i]->modes, modes, n))
            return true;
    for (int i = 0; i < more->n; i++)
        if (!memcmp(more->items[i].modes, modes, n))
            return true;
    return false;
}

static void add_idea(const struct regret *g, struct ideas *l, int metric, const uint8_t *modes)
{
    if (is_tried(g, l, modes))
        return;
    if (l->n == l->cap) {
        l->cap = l->cap ? 2 * l->cap : 64;
        l->items = mem_resize(l->items, (size_t)l->cap, sizeof *l->items);
    }
    struct idea *x = &l->items[l->n++];
    *x = (struct idea){.cost = 0};
    memcpy(x->modes, modes, (size_t)g->n_bins);
    for (int b = 0; b < g->n_bins; b++)
        x->cost += cost_at(g, metric, modes[b], b) +
                   (b && modes[b] != modes[b - 1] ? switch_cost(g, metric, switch_shares[1]) : 0);
}

/* The best path through the bins, where each switch costs so much: what would be best if what happens in a bin did not
 * depend on the one before it. */
static void cheapest_path(const struct regret *g, int metric, double per_switch, uint8_t *out)
{
    double cost[REGRET_MODES], next[REGRET_MODES];
    uint8_t(*from)[REGRET_MODES] = mem_new_array((size_t)g->n_bins, sizeof *from);
    for (int m = 0; m < g->n_modes; m++)
        cost[m] = cost_at(g, metric, m, 0);
    for (int b = 1; b < g->n_bins; b++) {
        for (int m = 0; m < g->n_modes; m++) {
            int best = m;
            for (int k = 0; k < g->n_modes; k++)
                if (cost[k] + (k != m) * per_switch < cost[best] + (best != m) * per_switch)
                    best = k;
            from[b][m] = (uint8_t)best;
            next[m] = cost[best] + (best != m) * per_switch + cost_at(g, metric, m, b);
        }
        memcpy(cost, next, sizeof cost);
    }
    int at = 0;
    for (int m = 1; m < g->n_modes; m++)
        at = cost[m] < cost[at] ? m : at;
    for (int b = g->n_bins - 1; b >= 0; b--) {
        out[b] = (uint8_t)at;
        at = from[b][at];
    }
    mem_free(from);
}

/* Bins [from, to) of a schedule in another mode. */
struct change {
    int from, to, mode;
};

static void put_change(const struct regret *g, struct ideas *l, int metric, const uint8_t *now, struct change c)
{
    uint8_t modes[REGRET_BINS] = {0};
    if (c.from < 0 || c.to > g->n_bins || c.from >= c.to)
        return;
    memcpy(modes, now, (size_t)g->n_bins);
    memset(modes + c.from, c.mode, (size_t)(c.to - c.from));
    add_idea(g, l, metric, modes);
}

/* Everything that is one change away: a stretch in another mode, a switch that comes sooner or later, one bin, or all
 * from there on, otherwise. */
static void list_neighbours(const struct regret *g, struct ideas *l, int metric, const uint8_t *now)
{
    for (int b = 0; b < g->n_bins; b++) {
        bool begins = !b || now[b] != now[b - 1];
        int end = b + 1;
        while (end < g->n_bins && now[end] == now[b])
            end++;
        for (int m = 0; m < g->n_modes; m++) {
            put_change(g, l, metric, now, (struct change){b, b + 1, m});
            put_change(g, l, metric, now, (struct change){b, end, m});
            if (begins)
                put_change(g, l, metric, now, (struct change){b, g->n_bins, m});
        }
        for (int far = 1; far <= 2 && b && begins; far++) {
            put_change(g, l, metric, now, (struct change){b - far, b, now[b]});
            put_change(g, l, metric, now, (struct change){b, b + far, now[b - 1]});
        }
    }
}

/* Runs the cheapest ideas, at most n; how many there were. */
static int run_ideas(struct regret *g, struct ideas *l, int n, int *n_run, struct err *e)
{
    int first = g->n_runs;
    for (*n_run = 0; *n_run < n && *n_run < l->n; (*n_run)++) {
        int best = -1;
        for (int i = 0; i < l->n; i++)
            if (l->items[i].cost >= 0 && (best < 0 || l->items[i].cost < l->items[best].cost))
                best = i;
        add_schedule(g, l->items[best].modes);
        l->items[best].cost = -1;
    }
    mem_free(l->items);
    *l = (struct ideas){0};
    return regret_run(g, first, *n_run, e);
}

/* ---- the search */

/* The best so far that is a schedule, or could be one. */
static bool take_best(const struct regret *g, int metric, uint8_t *out)
{
    const struct run *best = regret_best(g, metric, 1u << RUN_STATIC | 1u << RUN_SCHEDULE);
    for (int m = 0; m < g->n_modes; m++)
        if (best && g->runs[g->by_mode[m]] == best) {
            memset(out, m, REGRET_BINS);
            return true;
        }
    if (best && best->kind == RUN_SCHEDULE)
        memcpy(out, best->modes, REGRET_BINS);
    return best && best->kind == RUN_SCHEDULE;
}

static int search_metric(struct regret *g, int metric, int budget, struct err *e)
{
    struct ideas l = {0};
    uint8_t now[REGRET_BINS];
    int n = 0, rc = 0;
    if (budget < 1 || g->n_modes < 2)
        return 0;
    for (int i = 0; i < N_SHARES; i++) {
        cheapest_path(g, metric, switch_cost(g, metric, switch_shares[i]), now);
        add_idea(g, &l, metric, now);
    }
    rc = run_ideas(g, &l, budget, &n, e);
    for (int left = budget - n; !rc && left > 0 && take_best(g, metric, now); left -= n) {
        list_neighbours(g, &l, metric, now);
        rc = run_ideas(g, &l, left < ROUND ? left : ROUND, &n, e);
        if (!n)
            break; /* all that is near was tried */
    }
    return rc;
}

int regret_search(struct regret *g, struct err *e)
{
    int budget = (int)g->ask->budget, before;
    TRY(run_fixed(g, e));
    before = g->n_runs;
    TRY(run_rules(g, budget, e));
    budget -= g->n_runs - before;
    for (int m = 0; m < g->n_metrics; m++)
        TRY(search_metric(g, m, budget / g->n_metrics, e));
    return 0;
}
