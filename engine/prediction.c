#include "engine/prediction.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/json.h"
#include "engine/guard_stats.h"

static const double MISSED = 1e-4;    /* a chance below it is none */
static const double UNSURE = 0.01;    /* one below that is worth another look */
static const double LEAST_MISS = 0.1; /* of what was before: nobody can predict better than that */
static const double LEAST_REQUESTS = 20;
static const double MOST_FOLLOW = 0.8; /* a correlation beyond that is told apart from a trend by nobody */
static const double WIDEST = 2;        /* times; an interval beyond that says nothing */
enum { LEAST_STRETCHES = 5, MOST_STRETCHES = 64 };

const char *predicted_name(enum predicted which)
{
    static const char *const names[] = {"ttft", "tpot", "throughput"};
    return names[which];
}

const char *came_out_name(enum came_out how)
{
    static const char *const names[] = {"unknown", "as_predicted", "better", "undecided", "worse"};
    return names[how];
}

/* ---- a mean, and how sure it is */

struct mean {
    bool known;
    double value, variance, freedom;
};

static double sum_of(const struct span_sums *s, enum predicted which)
{
    return which == PREDICTED_TTFT ? s->ttft_s : which == PREDICTED_TPOT ? s->tpot_s : s->tokens;
}

static double weight_of(const struct span_sums *s, enum predicted which)
{
    return which == PREDICTED_TTFT ? s->n_ttft : which == PREDICTED_TPOT ? s->n_tpot : 1;
}

/* Of all requests, by stretches of three spans: what is late comes in crowds, so requests are no independent draws,
 * and where a stretch still resembles the one before it, they are worth as many fewer. */
static struct mean mean_of(const struct span_sums *spans, int n_spans, enum predicted which)
{
    double sums[MOST_STRETCHES], weights[MOST_STRETCHES], sum = 0, weight = 0, squares = 0, follows = 0, last = 0;
    int n = 0;
    for (int i = 0; i + PREDICTION_STRETCH <= n_spans && n < MOST_STRETCHES; i += PREDICTION_STRETCH, n++) {
        sums[n] = weights[n] = 0;
        for (int k = 0; k < PREDICTION_STRETCH; k++) {
            sums[n] += sum_of(&spans[i + k], which);
            weights[n] += weight_of(&spans[i + k], which);
        }
        sum += sums[n];
        weight += weights[n];
    }
    if (n < LEAST_STRETCHES || sum <= 0 || (which != PREDICTED_THROUGHPUT && weight < LEAST_REQUESTS))
        return (struct mean){0};
    struct mean out = {.known = true, .value = sum / weight};
    for (int i = 0; i < n; i++) {
        double off = sums[i] - out.value * weights[i];
        squares += off * off;
        follows += off * last;
        last = off;
    }
    double along = squares > 0 ? fmin(follows / squares, MOST_FOLLOW) : 0;
    double fewer = along > 0 ? (1 + along) / (1 - along) : 1;
    out.variance = squares * n / (n - 1) / (weight * weight) * fewer;
    out.freedom = n - 1;
    return out;
}

/* ---- one figure */

static bool less_is_better(enum predicted which)
{
    return which != PREDICTED_THROUGHPUT;
}

/* The chance that a value that is at most `limit` seems to be as large as this one. */
static double chance_above(double value, double limit, double error, int freedom)
{
    if (value <= limit)
        return 1;
    return error > 0 ? stats_student_tail((value - limit) / error, freedom) : 0;
}

static void compare(const struct predicted_change *p, enum predicted which, const struct mean *before,
                    const struct mean *since, struct load_change load, struct came_out_change *out)
{
    double b = before->variance / (before->value * before->value), s = since->variance / (since->value * since->value);
    double ratio = log(since->value / before->value), error = sqrt(b + s);
    double freedom = b + s > 0 ? (b + s) * (b + s) / (b * b / before->freedom + s * s / since->freedom) : 1;
    int whole = freedom > 1 ? (int)freedom : 1;
    double sure = error * stats_student_quantile(0.025, whole);
    *out = (struct came_out_change){
        .is_seen = true, .change = exp(ratio) - 1, .least = exp(ratio - sure) - 1, .most = exp(ratio + sure) - 1};
    double above = chance_above(ratio, log1p(p->most), error, whole);
    double below = chance_above(-ratio, -log1p(p->least), error, whole);
    bool is_above = above < UNSURE && out->change > p->most + LEAST_MISS;
    bool is_below = below < UNSURE && out->change < p->least - LEAST_MISS;
    out->chance = fmin(above, below);
    if (!is_above && !is_below) {
        out->how = exp(2 * sure) > WIDEST ? CAME_UNKNOWN : CAME_AS_PREDICTED;
        return;
    }
    bool is_worse = is_above == less_is_better(which), explained = is_above ? load.more : load.less;
    out->how = explained || out->chance >= MISSED ? CAME_UNDECIDED : is_worse ? CAME_WORSE : CAME_BETTER;
}

void prediction_compare(const struct prediction *p, const struct what_came *w, struct prediction_seen *out)
{
    memset(out, 0, sizeof *out);
    for (int i = 0; i < PREDICTED_COUNT && p->is_made; i++) {
        struct came_out_change *c = &out->changes[i];
        struct mean then = mean_of(w->before, w->n_before, (enum predicted)i);
        struct mean now = mean_of(w->since, w->n_since, (enum predicted)i);
        c->chance = 1;
        if (!p->changes[i].n_stretches || !then.known || !now.known)
            continue;
        compare(&p->changes[i], (enum predicted)i, &then, &now, w->load, c);
        out->how = c->how > out->how ? c->how : out->how;
    }
}

/* ---- words */

/* In whole percent, and nothing is +0. */
static double percent(double change)
{
    return round(100 * change) + 0.0;
}

static void put_figure(char *out, size_t cap, enum predicted which, const struct predicted_change *p,
                       const struct came_out_change *c)
{
    static const char *const names[] = {"TTFT", "TPOT", "throughput"};
    int n = snprintf(out, cap, "%s %+.0f%%", names[which], percent(c->change));
    if (c->how != CAME_AS_PREDICTED)
        n += snprintf(out + n, cap - (size_t)n, " (95%% sure of %+.0f%% to %+.0f%%)", percent(c->least),
                      percent(c->most));
    n += snprintf(out + n, cap - (size_t)n, ", predicted %+.0f%%", percent(p->change));
    if (c->how != CAME_AS_PREDICTED && p->most > p->least)
        snprintf(out + n, cap - (size_t)n, " (%+.0f%% to %+.0f%%)", percent(p->least), percent(p->most));
}

void prediction_words(const struct prediction *p, const struct prediction_seen *s, char out[PREDICTION_WORDS])
{
    static const char *const begin[] = {"too little to compare its prediction with", "as predicted",
                                        "better than predicted", "undecided whether as predicted",
                                        "worse than predicted"};
    char figure[160];
    out[0] = 0;
    if (!p->is_made)
        return;
    size_t n = (size_t)snprintf(out, PREDICTION_WORDS, "%s", begin[s->how]);
    const char *before = ": ";
    for (int i = 0; i < PREDICTED_COUNT && n < PREDICTION_WORDS; i++) {
        if (s->how == CAME_UNKNOWN || s->changes[i].how != s->how)
            continue;
        put_figure(figure, sizeof figure, (enum predicted)i, &p->changes[i], &s->changes[i]);
        n += (size_t)snprintf(out + n, PREDICTION_WORDS - n, "%s%s", before, figure);
        before = "; ";
    }
}

/* ---- JSON */

static void put_change(const struct prediction *p, const struct prediction_seen *s, enum predicted which,
                       struct buf *json)
{
    const struct predicted_change *said = &p->changes[which];
    const struct came_out_change *c = &s->changes[which];
    buf_printf(json, "%s{\"name\":\"%s\",\"result\":\"%s\"", which ? "," : "", predicted_name(which),
               came_out_name(c->how));
    if (said->n_stretches) {
        json_put_member_double(json, "predicted", said->change);
        json_put_member_double(json, "predicted_least", said->least);
        json_put_member_double(json, "predicted_most", said->most);
        buf_printf(json, ",\"stretches\":%d", said->n_stretches);
    }
    if (c->is_seen) {
        json_put_member_double(json, "observed", c->change);
        json_put_member_double(json, "observed_least", c->least);
        json_put_member_double(json, "observed_most", c->most);
        json_put_member_double(json, "chance", c->chance);
    }
    buf_putc(json, '}');
}

static double share(uint64_t part, uint64_t whole)
{
    return whole ? (double)part / (double)whole : 0;
}

void prediction_put(const struct prediction *p, const struct prediction_seen *s, double failed, struct buf *json)
{
    char words[PREDICTION_WORDS];
    if (!p->is_made && !p->shadow.n_asked) {
        buf_puts(json, "null");
        return;
    }
    prediction_words(p, s, words);
    buf_printf(json, "{\"result\":\"%s\",\"strict\":%s", came_out_name(s->how), p->is_strict ? "true" : "false");
    json_put_member(json, "words", words);
    buf_puts(json, ",\"what_if\":");
    if (p->is_made) {
        buf_printf(json, "{\"ago_s\":%.3f,\"seconds\":%.3f,\"requests\":%.0f", p->ago_s, p->window_s, p->n_requests);
        json_put_member_double(json, "guessed", p->guessed);
        buf_puts(json, ",\"changes\":[");
        for (int i = 0; i < PREDICTED_COUNT; i++)
            put_change(p, s, (enum predicted)i, json);
        buf_puts(json, "]}");
    } else {
        buf_puts(json, "null");
    }
    buf_puts(json, ",\"shadow\":");
    if (p->shadow.n_asked) {
        buf_printf(json, "{\"decisions\":%" PRIu64, p->shadow.n_asked);
        json_put_member_double(json, "equal", share(p->shadow.n_equal, p->shadow.n_asked));
        json_put_member_double(json, "failed", share(p->shadow.n_failed, p->shadow.n_asked + p->shadow.n_failed));
        buf_putc(json, '}');
    } else {
        buf_puts(json, "null");
    }
    json_put_member_double(json, "failed", failed);
    buf_putc(json, '}');
}
