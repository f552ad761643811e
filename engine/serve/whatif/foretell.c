#include "engine/serve/whatif/foretell.h"

enum { LEAST_REQUESTS = 20 }; /* of a stretch, and of the whole */

/* A figure of both over a stretch. */
struct pair {
    double live, other, weight_live, weight_other;
};

/* Two curves that are walked through together. */
struct walk {
    const struct json *value[2], *weight[2]; /* weight NULL: 1 each */
    bool has_weights;
};

static struct walk begin(const struct json *live, const struct json *other, const char *part, const char *field)
{
    const struct json *runs[] = {live, other};
    struct walk w = {0};
    for (int i = 0; i < 2; i++) {
        const struct json *of = json_find(runs[i], part);
        w.value[i] = json_first(json_find(of, field));
        w.weight[i] = json_first(json_find(of, "n"));
    }
    w.has_weights = json_find(json_find(live, part), "n") != NULL;
    return w;
}

/* A bin of both; false: one of them has ended. */
static bool step(struct walk *w, struct pair *to)
{
    double *sums[] = {&to->live, &to->other}, *weights[] = {&to->weight_live, &to->weight_other};
    if (!w->value[0] || !w->value[1])
        return false;
    for (int i = 0; i < 2; i++) {
        double weight = w->has_weights ? json_number(w->weight[i]) : 1;
        if (json_type(w->value[i]) == JSON_NUMBER && weight > 0) {
            *sums[i] += json_number(w->value[i]) * weight;
            *weights[i] += weight;
        }
        w->value[i] = json_next(w->value[i]);
        w->weight[i] = w->weight[i] ? json_next(w->weight[i]) : NULL;
    }
    return true;
}

static void widen(struct predicted_change *c, double change)
{
    c->least = change < c->least ? change : c->least;
    c->most = change > c->most ? change : c->most;
    c->n_stretches++;
}

/* Both walk by the stretches of the arrivals: each is stretch_s long, and has enough requests. */
static void foretell_stretches(const struct json *live, const struct json *other, struct walk w, double stretch_s,
                               struct predicted_change *out)
{
    struct walk came = begin(live, other, "by_arrival", "n");
    double bin_s = json_number(json_find(json_find(live, "series"), "bin_s")), long_s = 0, n = 0;
    struct pair p = {0};
    came.has_weights = false;
    while (bin_s > 0 && came.value[0] && step(&w, &p)) {
        struct pair count = {0};
        if (!step(&came, &count))
            break;
        long_s += bin_s;
        n += count.live < count.other ? count.live : count.other;
        if (long_s < stretch_s || n < LEAST_REQUESTS)
            continue;
        if (p.live > 0 && p.other > 0)
            widen(out, p.other / p.weight_other / (p.live / p.weight_live) - 1);
        p = (struct pair){0};
        long_s = n = 0;
    }
}

/* of live: a mean over the whole window. */
static void foretell(const struct json *live, const struct json *other, struct walk w, const struct json *of_live,
                     const struct json *of_other, double stretch_s, struct predicted_change *out)
{
    double a = json_number(of_live), b = json_number(of_other);
    *out = (struct predicted_change){0};
    if (a <= 0 || b <= 0 || json_number(json_find(live, "finished")) < LEAST_REQUESTS)
        return;
    out->change = out->least = out->most = b / a - 1;
    out->n_stretches = 1;
    foretell_stretches(live, other, w, stretch_s, out);
}

static const struct json *mean_of(const struct json *run, const char *figure)
{
    return json_find(json_find(run, figure), "mean");
}

static double guessed_share(const struct json *run)
{
    double share = 0;
    for (const struct json *g = json_first(json_find(json_find(run, "recording"), "guesses")); g; g = json_next(g))
        share += json_number(json_find(g, "time"));
    return share < 1 ? share : 1;
}

void whatif_foretell(const struct json *live, const struct json *other, double stretch_s, struct prediction *out)
{
    struct predicted_change *c = out->changes;
    foretell(live, other, begin(live, other, "by_arrival", "ttft_ms"), mean_of(live, "ttft_ms"),
             mean_of(other, "ttft_ms"), stretch_s, &c[PREDICTED_TTFT]);
    foretell(live, other, begin(live, other, "by_arrival", "tpot_ms"), mean_of(live, "tpot_ms"),
             mean_of(other, "tpot_ms"), stretch_s, &c[PREDICTED_TPOT]);
    foretell(live, other, begin(live, other, "series", "throughput"), json_find(live, "throughput"),
             json_find(other, "throughput"), stretch_s, &c[PREDICTED_THROUGHPUT]);
    out->is_made = true;
    out->n_requests = json_number(json_find(live, "requests"));
    out->guessed = guessed_share(other);
}
