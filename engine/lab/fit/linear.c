#include "engine/lab/fit/linear.h"

enum { ROUNDS = 24, FREE_ROUNDS = 3 };
static const double MOST_TIMES = 4, LEAST_NS = 1;
/* In which a typical step has terms near 1. */
static const double ROW_UNIT = 64, LOOK_UNIT = 65536, SAMPLE_UNIT = 16;

struct normal {
    double a[LINEAR_TERMS][LINEAR_TERMS], b[LINEAR_TERMS];
};

static void parts(const struct fit_step *s, double x[LINEAR_TERMS])
{
    x[0] = 1;
    x[1] = s->rows / ROW_UNIT;
    x[2] = s->looked_at / LOOK_UNIT;
    x[3] = s->sampled / SAMPLE_UNIT;
}

double linear_ns(const struct linear *l, const struct fit_step *s)
{
    double x[LINEAR_TERMS], v = 0;
    parts(s, x);
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
    bool used[LINEAR_TERMS] = {true, true, true, true};
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
    return apart <= 1e-12 * size;
}

struct linear linear_fit(const struct fit_step *steps, const double *slow, const uint32_t *which, size_t n)
{
    struct linear l = {{0}};
    double mean = 0;
    for (size_t i = 0; i < n; i++)
        mean += (double)steps[which[i]].ns / slow[which[i]] / (double)n;
    l.terms[0] = mean;
    for (int round = 0; round < ROUNDS; round++) {
        struct normal m = {0};
        for (size_t i = 0; i < n; i++) {
            const struct fit_step *s = &steps[which[i]];
            double x[LINEAR_TERMS], now = linear_ns(&l, s), y = (double)s->ns / slow[which[i]];
            double weight = 1 / (now > 1e-3 * mean ? now : 1e-3 * mean);
            y = round < FREE_ROUNDS || y < MOST_TIMES * now ? y : MOST_TIMES * now;
            parts(s, x);
            for (int k = 0; k < LINEAR_TERMS; k++) {
                m.b[k] += weight * x[k] * y;
                for (int j = 0; j < LINEAR_TERMS; j++)
                    m.a[k][j] += weight * x[k] * x[j];
            }
        }
        struct linear before = l;
        solve_positive(&m, l.terms);
        if (round > FREE_ROUNDS && is_near(&before, &l))
            break;
    }
    return l;
}
