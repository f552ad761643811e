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

/* Two runs on the same traffic. */
struct runs {
    const struct json *live, *other;
    double stretch_s;
};

/* Both walk by the stretches of the arrivals: each is stretch_s long, and has enough requests. */
static void foretell_stretches(const struct runs *r, struct walk w, struct predicted_change *out)
{
    struct walk came = begin(r->live, r->other, "by_arrival", "n");
    double bin_s = json_member_number(json_find(r->live, "series"), "bin_s"), long_s = 0, n = 0;
    struct pair p = {0};
    came.has_weights = false;
    while (bin_s > 0 && came.value[0] && step(&w, &p)) {
        struct pair count = {0};
        if (!step(&came, &count))
            break;
        long_s += bin_s;
        n += count.live < count.other ? count.live : count.other;
        if (long_s < r->stretch_s || n < LEAST_REQUESTS)
            continue;
        if (p.live > 0 && p.other > 0)
            widen(out, p.other / p.weight_other / (p.live / p.weight_live) - 1);
        p = (struct pair){0};
        long_s = n = 0;
    }
}

/* of_live, of_other: means over the whole window. */
static void foretell(const struct runs *r, struct walk w, const struct json *of_live, const struct json *of_other,
                     struct predicted_change *out)
{
    double a = json_number(of_live), b = json_number(of_other);
    *out = (struct predicted_change){0};
    if (a <= 0 || b <= 0 || json_member_number(r->live, "finished") < LEAST_REQUESTS)
        return;
    out->change = out->least = out->most = b / a - 1;
    out->n_stretches = 1;
    foretell_stretches(r, w, out);
}

static void foretell_mean(const struct runs *r, const char *figure, struct predicted_change *out)
{
    foretell(r, begin(r->live, r->other, "by_arrival", figure), json_find(json_find(r->live, figure), "mean"),
             json_find(json_find(r->other, figure), "mean"), out);
}

static double guessed_share(const struct json *run)
{
    double share = 0;
    for (const struct json *g = json_first(json_find(json_find(run, "recording"), "guesses")); g; g = json_next(g))
        share += json_member_number(g, "time");
    return share < 1 ? share : 1;
}

void whatif_foretell(const struct json *live, const struct json *other, double stretch_s, struct prediction *out)
{
    const struct runs r = {live, other, stretch_s};
    foretell_mean(&r, "ttft_ms", &out->changes[PREDICTED_TTFT]);
    foretell_mean(&r, "tpot_ms", &out->changes[PREDICTED_TPOT]);
    foretell(&r, begin(live, other, "series", "throughput"), json_find(live, "throughput"),
             json_find(other, "throughput"), &out->changes[PREDICTED_THROUGHPUT]);
    out->is_made = true;
    out->n_requests = json_member_number(live, "requests");
    out->guessed = guessed_share(other);
}
