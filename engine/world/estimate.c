#include "engine/world/estimate.h"

#include <math.h>
#include <string.h>

/* Variances are those of a fit whose steps are wrong by as much as they take, and they are not, by far. So the prior is
 * wider than the thousandfold by which machines differ: a step of another size teaches at once what a row costs, where
 * a fit that doubts it would have a policy draft, or switch, for a hundred steps on a wrong price. */
static const double FORGET = 0.98, MAX_VARIANCE = 1e4, PRIOR = 1e6;
/* Units in which a typical step has terms near 1, so that one number can stand for all variances. */
static const double ROW_UNIT = 64, LOOK_UNIT = 65536, LOGIT_UNIT = 16, NS_UNIT = 1e6;

void estimator_init(struct estimator *e)
{
    memset(e, 0, sizeof *e);
    e->forget = FORGET;
    e->prior = PRIOR;
}

/* A micro-batch is in one stage at a time, which is a share of a pass; the last one begins when all others have begun.
 */
static void terms(struct layout l, const struct step_size *s, double x[ESTIMATE_TERMS])
{
    int n = step_size_micro(s, l);
    double turns = (double)(n + l.pp - 1) / l.pp;
    x[0] = turns;
    x[1] = turns / n * s->rows / ROW_UNIT;
    x[2] = turns / n * s->looked_at / LOOK_UNIT;
    x[3] = turns / n * s->n_logits / LOGIT_UNIT;
}

static int width(struct layout l)
{
    return layout_size(l) / l.pp;
}

static const struct estimate_cell *find_cell(const struct estimator *e, struct layout l, bool cas)
{
    for (int i = 0; i < e->n_cells; i++)
        if (layout_equal(e->cells[i].layout, l) && e->cells[i].cas == cas)
            return &e->cells[i];
    return NULL;
}

/* A guess for a layout that never ran: the best known one's rates over the ranks of one of its stages. Its own steps
 * that treat FFN layers otherwise are nearest. */
static void guess(const struct estimator *e, struct layout l, double theta[ESTIMATE_TERMS])
{
    const struct estimate_cell *best = NULL;
    for (int i = 0; i < e->n_cells; i++)
        if (!best || e->cells[i].n_seen > best->n_seen)
            best = &e->cells[i];
    const struct estimate_cell *own = find_cell(e, l, false);
    best = own ? own : best;
    double share = (best ? (double)width(best->layout) : 1.0) / width(l);
    static const double unknown[ESTIMATE_TERMS] = {1, 10, 1, 0};
    for (int i = 0; i < ESTIMATE_TERMS; i++)
        theta[i] = (best ? best->theta[i] : unknown[i]) * (i ? share : 1);
}

static double dot(const double *a, const double *b)
{
    double v = 0;
    for (int i = 0; i < ESTIMATE_TERMS; i++)
        v += a[i] * b[i];
    return v;
}

static double no_less_than_nothing(double ms)
{
    return ms > 1e-6 ? ms : 1e-6;
}

static double price(const struct estimator *e, struct layout l, const struct step_size *s)
{
    const struct estimate_cell *c = find_cell(e, l, s->cas_layers > 0);
    double x[ESTIMATE_TERMS], theta[ESTIMATE_TERMS];
    if (e->known)
        return (double)e->known(e->ctx, l, s);
    terms(l, s, x);
    if (c)
        return no_less_than_nothing(dot(c->theta, x)) * NS_UNIT;
    guess(e, l, theta);
    return no_less_than_nothing(dot(theta, x)) * NS_UNIT;
}

int estimator_micro(const struct estimator *e, struct layout l, struct step_size s)
{
    int most = l.pp == 1 ? 1 : 4 * l.pp < s.rows ? 4 * l.pp : s.rows, best = 1;
    double least = INFINITY;
    for (s.n_micro = 1; s.n_micro <= most; s.n_micro *= 2) {
        double ns = price(e, l, &s);
        if (ns >= least) /* with ever more of them it takes less at first, and then more */
            break;
        least = ns;
        best = s.n_micro;
    }
    return best;
}

double estimator_ns(const struct estimator *e, struct layout l, struct step_size s, uint64_t *seen)
{
    const struct estimate_cell *c = find_cell(e, l, s.cas_layers > 0);
    if (seen)
        *seen = c ? c->n_seen : 0;
    if (l.pp > 1 && !s.n_micro)
        s.n_micro = estimator_micro(e, l, s);
    return price(e, l, &s);
}

static struct estimate_cell *add_cell(struct estimator *e, struct layout l, bool cas)
{
    if (e->n_cells == ESTIMATE_CELLS)
        return NULL;
    struct estimate_cell c = {.layout = l, .cas = cas};
    guess(e, l, c.theta);
    for (int i = 0; i < ESTIMATE_TERMS; i++)
        c.p[i][i] = e->prior;
    e->cells[e->n_cells] = c;
    return &e->cells[e->n_cells++];
}

/* One step of recursive least squares, weighted so that relative errors count. */
static void fit(struct estimate_cell *c, double x[ESTIMATE_TERMS], double y, double forget)
{
    double px[ESTIMATE_TERMS], weight = 1 / (y > 1e-3 ? y : 1e-3), e = (y - dot(c->theta, x)) * weight;
    double s = forget;
    for (int i = 0; i < ESTIMATE_TERMS; i++)
        x[i] *= weight;
    for (int i = 0; i < ESTIMATE_TERMS; i++) {
        px[i] = dot(c->p[i], x);
        s += x[i] * px[i];
    }
    double most = 0;
    for (int i = 0; i < ESTIMATE_TERMS; i++) {
        c->theta[i] += px[i] / s * e;
        for (int k = 0; k < ESTIMATE_TERMS; k++)
            c->p[i][k] -= px[i] * px[k] / s;
        most = c->p[i][i] > most ? c->p[i][i] : most;
    }
    if (most / forget < MAX_VARIANCE) /* old steps fade only while new ones teach: else the fit would run away */
        for (int i = 0; i < ESTIMATE_TERMS; i++)
            for (int k = 0; k < ESTIMATE_TERMS; k++)
                c->p[i][k] /= forget;
}

double estimator_learn(struct estimator *e, struct layout l, struct step_size s, double ns)
{
    double x[ESTIMATE_TERMS],
        predicted = e->known ? ns : estimator_ns(e, l, s, NULL); /* a described machine has nothing to learn */
    struct estimate_cell *c = (struct estimate_cell *)find_cell(e, l, s.cas_layers > 0);
    if (!c)
        c = add_cell(e, l, s.cas_layers > 0);
    if (!c || !(ns > 0))
        return predicted;
    if (e->known) {
        c->n_seen++;
        return predicted;
    }
    terms(l, &s, x);
    fit(c, x, ns / NS_UNIT, e->forget);
    if (c->n_seen++)
        e->error += 0.02 * (fabs(predicted - ns) / ns - e->error);
    return predicted;
}
