#include "lua/gauge.h"

#include "engine/base/clock.h"

enum {
    CLOSE_CALLS = 32, /* looked at closely after one that was late or heavy */
    COUNT_EVERY = 32, /* of the others, about one in so many is counted */
    SHARE = 100,      /* calls may take one part in so many of all time */
};
static const int64_t PURSE_NS = 10000000; /* what a quiet time saves up at most: 1 s of it */

/* At random intervals: a policy that does its work in every tenth call must not fall between the samples. */
static bool is_sample(struct gauge *g)
{
    if (g->until_count-- > 0)
        return false;
    g->dice = g->dice * 1664525 + 1013904223;
    g->until_count = (int)(g->dice >> 16) % (2 * COUNT_EVERY - 1);
    return true;
}

bool gauge_begin(struct gauge *g, const struct gauge_limits *l, int64_t now_ns)
{
    g->began_ns = now_ns;
    g->cpu_began_ns = g->cpu_ns = g->bytecodes = g->outside_ns = 0;
    if (!l->bytecodes)
        return g->counting = false;
    bool close = g->n_close > 0;
    g->n_close -= close;
    g->counting = is_sample(g) || close || g->closely;
    if (close && g->purse_ns < 0) /* else it could not be slow */
        g->cpu_began_ns = gauge_cpu(g);
    return g->counting;
}

int64_t gauge_cpu(const struct gauge *g)
{
    return clock_thread_cpu() - g->outside_ns;
}

/* Pays for a call out of what the time since the last one has brought in. */
static bool is_overdrawn(struct gauge *g, int64_t now_ns)
{
    int64_t took = now_ns - g->began_ns, income = g->ended_ns ? (now_ns - g->ended_ns) / SHARE : PURSE_NS;
    g->purse_ns = (g->purse_ns < -PURSE_NS ? -PURSE_NS : g->purse_ns) + income;
    g->purse_ns = (g->purse_ns > PURSE_NS ? PURSE_NS : g->purse_ns) - took;
    g->ended_ns = now_ns;
    return g->purse_ns < 0;
}

enum verdict gauge_end(struct gauge *g, const struct gauge_limits *l, int64_t now_ns)
{
    if (!l->bytecodes)
        return VERDICT_OK;
    bool heavy = g->bytecodes > l->bytecodes, late = now_ns - g->began_ns > l->cpu_ns,
         overdrawn = is_overdrawn(g, now_ns);
    if (g->counting) {
        g->n_counted++;
        g->most = g->most > (uint64_t)g->bytecodes ? g->most : (uint64_t)g->bytecodes;
    }
    if (heavy || late)
        g->n_close = CLOSE_CALLS;
    if (heavy)
        return VERDICT_HEAVY;
    if (late && overdrawn && g->cpu_began_ns)
        g->cpu_ns = gauge_cpu(g) - g->cpu_began_ns;
    return g->cpu_ns > l->cpu_ns ? VERDICT_SLOW : VERDICT_OK;
}
