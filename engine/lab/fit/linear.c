#include "engine/lab/fit/linear.h"

#include <string.h>

enum { ROUNDS = 24, FREE_ROUNDS = 3, BINS = 1024, FEW = 1024 };
static const double LEAST_NS = 1;
/* A step weighs in full where it is off by no more than so many medians of how far steps are off, or by so much. */
static const double MEDIANS = 3, NEAR = 0.25;
static const double LUCK = 3;        /* of n steps, a knot that means nothing explains about so many nth parts */
static const double SAME = 1e-6;     /* knots between which no step lies differ by less: the first of them */
static const double BIN = 1.0 / 256; /* of what steps are off by */
/* In which a typical step has terms near 1. */
static const double ROW_UNIT = 64, LOOK_UNIT = 65536, SAMPLE_UNIT = 16;

struct normal {
    double a[LINEAR_TERMS][LINEAR_TERMS], b[LINEAR_TERMS];
};

static void parts(const struct linear *l, const struct fit_step *s, double x[LINEAR_TERMS])
{
    double head = l->head_share, multiplies = (1 - head) * s->rows + head * s->logits;
    x[0] = s->logits ? 1 : 1 - head;
    double hidden = l->knot * x[0]; /* fewer hide behind fewer weights */
    x[1] = s->rows / ROW_UNIT;
    x[2] = s->looked_at / LOOK_UNIT;
    x[3] = s->logits / SAMPLE_UNIT;
    x[4] = multiplies > hidden ? (multiplies - hidden) / ROW_UNIT : 0;
}

double linear_ns(const struct linear *l, const struct fit_step *s)
{
    double x[LINEAR_TERMS], v = 0;
    parts(l, s, x);
    for (int i = 0; i < LINEAR_TERMS; i++)
        v += l->terms[i] * x[i];
    return v > LEAST_NS ? v : LEAST_NS;
}

/* Elimination over the terms in use. The place of one that the others determine, or -1. */
static int solve(const struct normal *m, const bool used[LINEAR_TERMS], double out[LINEAR_TERMS])
{
    struct normal w = *m;
    for (int i = 0; i < LINEAR_TERMS; i++) {
        out[i] = 0;
        if (!used[i])
            continue;
        if (!(w.a[i][i] > 1e-9 * m->a[i][i]))
            return i;
        for (int k = i + 1; k < LINEAR_TERMS; k++) {
            double by = used[k] ? w.a[k][i] / w.a[i][i] : 0;
            for (int j = i; j < LINEAR_TERMS; j++)
                w.a[k][j] -= by * w.a[i][j];
            w.b[k] -= by * w.b[i];
        }
    }
    for (int i = LINEAR_TERMS - 1; i >= 0; i--) {
        double v = w.b[i];
        for (int k = i + 1; k < LINEAR_TERMS; k++)
            v -= w.a[i][k] * out[k];
        out[i] = used[i] ? v / w.a[i][i] : 0;
    }
    return -1;
}

/* The best without a negative term: the one that takes most away goes, until none is left. */
static void solve_positive(const struct normal *m, double out[LINEAR_TERMS])
{
    bool used[LINEAR_TERMS] = {true, true, true, true, true};
    for (;;) {
        int worst = solve(m, used, out);
        bool known = worst < 0;
        for (int i = 0; known && i < LINEAR_TERMS; i++)
            if (out[i] < 0 && (worst < 0 || out[i] * m->a[0][i] < out[worst] * m->a[0][worst]))
                worst = i;
        if (worst < 0)
            return;
        used[worst] = false;
    }
}

static bool is_near(const struct linear *a, const struct linear *b)
{
    double apart = 0, size = 0;
    for (int i = 0; i < LINEAR_TERMS; i++) {
        double d = a->terms[i] - b->terms[i];
        apart += d > 0 ? d : -d;
        size += b->terms[i];
    }
    return apart <= 1e-9 * size;
}

static double off_by(const struct linear *l, const struct fit_step *s, double slow)
{
    double off = (double)s->ns / (slow * linear_ns(l, s)) - 1;
    return off < 0 ? -off : off;
}

/* How far off a step may be that weighs in full. */
static double near_of(const struct linear *l, const struct fit_step *steps, const double *slow, const uint32_t *which,
                      size_t n)
{
    size_t bins[BINS] = {0}, seen = 0;
    int k = 0;
    for (size_t i = 0; i < n; i++) {
        double at = off_by(l, &steps[which[i]], slow[which[i]]) / BIN;
        bins[at < BINS - 1 ? (int)at : BINS - 1]++;
    }
    while (2 * (seen += bins[k]) < n)
        k++;
    double near = MEDIANS * BIN * (k + 1);
    return near > NEAR ? near : NEAR;
}

void linear_fit(struct linear *l, const struct fit_step *steps, const double *slow, const uint32_t *which, size_t n)
{
    double mean = 0;
    for (size_t i = 0; i < n; i++)
        mean += (double)steps[which[i]].ns / slow[which[i]] / (double)n;
    memset(l->terms, 0, sizeof l->terms);
    l->terms[0] = mean;
    for (int round = 0; round < ROUNDS; round++) {
        struct normal m = {0};
        double near = round < FREE_ROUNDS ? 0 : near_of(l, steps, slow, which, n);
        for (size_t i = 0; i < n; i++) {
            const struct fit_step *s = &steps[which[i]];
            double x[LINEAR_TERMS], now = linear_ns(l, s), y = (double)s->ns / slow[which[i]];
            double weight = 1 / (now > 1e-3 * mean ? now : 1e-3 * mean);
            double off = round < FREE_ROUNDS ? 0 : off_by(l, s, slow[which[i]]);
            weight *= off > near ? near / off : 1;
            parts(l, s, x);
            for (int k = 0; k < LINEAR_TERMS; k++) {
                m.b[k] += weight * x[k] * y;
                for (int j = 0; j < LINEAR_TERMS; j++)
                    m.a[k][j] += weight * x[k] * x[j];
            }
        }
        struct linear before = *l;
        solve_positive(&m, l->terms);
        if (round > FREE_ROUNDS && is_near(&before, l))
            break;
    }
}

/* What is left over, of steps that are far off in part (Huber's loss). */
static double loss(const struct linear *l, const struct fit_step *steps, const double *slow, const uint32_t *which,
                   size_t n, double near)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++) {
        double off = off_by(l, &steps[which[i]], slow[which[i]]);
        sum += linear_ns(l, &steps[which[i]]) * (off < near ? 0.5 * off * off : near * (off - 0.5 * near));
    }
    return sum;
}

void linear_find_knot(struct linear *l, const struct fit_step *steps, const double *slow, const uint32_t *which,
                      size_t n)
{
    static const double knots[] = {1, 1.5, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512};
    uint32_t some[FEW];
    size_t n_some = n < FEW ? n : FEW;
    for (size_t i = 0; i < n_some; i++)
        some[i] = which[i * n / n_some];
    l->knot = 0;
    linear_fit(l, steps, slow, some, n_some);
    double near = near_of(l, steps, slow, some, n_some), best = 0;
    double least = loss(l, steps, slow, some, n_some, near) * (1 - LUCK / (double)n_some); /* any knot explains a bit */
    for (size_t k = 0; k < sizeof knots / sizeof *knots; k++) {
        l->knot = knots[k];
        linear_fit(l, steps, slow, some, n_some);
        bool hides = l->terms[4] * l->knot <= l->terms[0] * ROW_UNIT;
        double now = loss(l, steps, slow, some, n_some, near);
        if (hides && now < least * (1 - SAME)) {
            least = now;
            best = knots[k];
        }
    }
    l->knot = best;
}
