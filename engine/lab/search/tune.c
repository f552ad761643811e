#include "engine/lab/search/tune.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/lab/search/tune_inner.h"
#include "kernels/sim/machine.h"

enum { ROUND = 4, SHORTER = 4, LEAST_ROWS = 64, PATIENCE = 8 };

/* ---- running points */

/* On a part of the trace only. */
static void cut_job(const struct search *s, const struct tune_window *w, struct job *x, struct strings *own)
{
    const struct arrivals_setup *all = &s->ask->arrivals;
    struct buf b = {0};
    if (w->seconds > 0) {
        buf_printf(&b, "--from=%.17g", all->from_s + w->from);
        x->args[x->n_args++] = own->items[own->n++] = buf_take(&b);
        buf_printf(&b, "--seconds=%.17g", w->seconds);
        x->args[x->n_args++] = own->items[own->n++] = buf_take(&b);
    }
    if (w->seed_more) {
        buf_printf(&b, "--seed=%llu", (unsigned long long)(all->seed + w->seed_more));
        x->args[x->n_args++] = own->items[own->n++] = buf_take(&b);
    } else {
        buf_printf(&b, "--requests=%.0f", w->rows);
        x->args[x->n_args++] = own->items[own->n++] = buf_take(&b);
    }
}

/* The words of one point's command line; what was made for it goes to own. */
static void make_job(const struct search *s, const struct point *p, struct job *x, struct strings *own)
{
    struct buf b = {0};
    x->args = mem_new_array((size_t)s->ask->args.n + 2 * (size_t)s->space.n + 4, sizeof *x->args);
    memcpy(x->args, s->ask->args.items, (size_t)s->ask->args.n * sizeof *x->args);
    x->n_args = s->ask->args.n;
    own->items = mem_resize(own->items, (size_t)(own->n + s->space.n + 3), sizeof *own->items);
    for (int i = 0; i < s->space.n; i++) {
        buf_printf(&b, "%s=", s->space.params[i].name);
        if (p->plain)
            tune_space_default(&s->space, i, &b);
        else
            tune_space_value(&s->space, i, p->u[i], &b);
        x->args[x->n_args++] = (char *)"--policy-param";
        x->args[x->n_args++] = own->items[own->n++] = buf_take(&b);
    }
    if (!p->whole)
        cut_job(s, p->window, x, own);
}

static void take_result(struct search *s, struct point *p, struct job *x)
{
    const struct json *run = json_first(json_find(x->result, "runs"));
    p->failure = x->failure;
    x->failure = NULL;
    if (p->plain)
        tune_limits_read(&s->limits, x->result, s->windows.rows, s->windows.tokens);
    p->known = run != NULL;
    p->refused = !run && p->failure;
    for (int i = 0; i < s->n_objectives + s->n_bounds && p->known; i++)
        p->known = tune_metric_of(i < s->n_objectives ? &s->objectives[i] : &s->bounds[i - s->n_objectives].metric, run,
                                  &p->values[i]);
    if (run && !p->known && !p->failure)
        p->failure = mem_strdup("no request came so far that what is asked for could be measured");
    double finished = json_member_number(run, "finished");
    p->excess = 0;
    for (int i = 0; i < s->n_bounds && p->known; i++)
        p->excess += tune_bound_excess(&s->bounds[i], p->values[s->n_objectives + i]);
    if (p->whole && s->n_finished == 0)
        s->n_finished = finished;
    if (p->whole && finished < s->n_finished)
        p->excess += 1 - finished / s->n_finished;
    p->outside = json_member_number(json_find(run, "outside"), "share");
    p->withdrawn = json_member_number(json_find(run, "policy"), "withdrawn") > 0;
    p->excess += p->withdrawn; /* what was measured is another policy's */
}

int tune_run_points(struct search *s, struct point *points, int n, struct err *e)
{
    struct job *items = mem_new_array((size_t)n + 1, sizeof *items);
    struct strings own = {0};
    for (int i = 0; i < n; i++)
        make_job(s, &points[i], &items[i], &own);
    struct jobs j = {.signals = &s->signals,
                     .items = items,
                     .n = n,
                     .parallel = (int)s->ask->jobs,
                     .what = "simulations",
                     .n_before = s->n_spent,
                     .n_all = s->n_planned};
    int rc = jobs_run(&j, e);
    for (int i = 0; i < n; i++) {
        take_result(s, &points[i], &items[i]);
        s->n_spent += points[i].known || !points[i].refused;
        mem_free(items[i].args);
    }
    jobs_clear(&j);
    mem_free(items);
    for (int i = 0; i < own.n; i++)
        mem_free(own.items[i]);
    mem_free(own.items);
    return rc;
}

static void keep(struct search *s, struct point *points, int n)
{
    s->points = mem_resize(s->points, (size_t)(s->n_points + n), sizeof *s->points);
    memcpy(s->points + s->n_points, points, (size_t)n * sizeof *points);
    s->n_points += n;
}

/* ---- which is better */

/* a - b of one objective: below 0 when a is better. */
static double lead(const struct search *s, int i, const struct point *a, const struct point *b)
{
    const struct tune_metric *m = i < s->n_objectives ? &s->objectives[i] : &s->bounds[i - s->n_objectives].metric;
    return (a->values[i] - b->values[i]) * (m->more ? -1 : 1);
}

/* Both objectives at once: a is better by the product of what it is better by. */
static bool leads_overall(const struct search *s, const struct point *a, const struct point *b)
{
    double x = 1, y = 1;
    for (int i = 0; i < s->n_objectives; i++) {
        x *= s->objectives[i].more ? b->values[i] : a->values[i];
        y *= s->objectives[i].more ? a->values[i] : b->values[i];
    }
    return x < y;
}

/* Among those that keep the bounds (else: that come nearest), by one objective and then the other; `first` past them:
 * by all at once. */
static bool beats_in(const struct search *s, const struct point *a, const struct point *b, int first)
{
    if (a->known != b->known)
        return a->known;
    if (a->excess != b->excess)
        return a->excess < b->excess;
    if (first >= s->n_objectives)
        return leads_overall(s, a, b);
    for (int k = 0; k < s->n_objectives; k++) {
        int i = (first + k) % s->n_objectives;
        if (lead(s, i, a, b) != 0)
            return lead(s, i, a, b) < 0;
    }
    return false;
}

static bool beats(const struct search *s, const struct point *a, const struct point *b)
{
    return beats_in(s, a, b, 0);
}

/* a is as good as b in everything that is looked at, and better in something. */
static bool dominates(const struct search *s, const struct point *a, const struct point *b)
{
    bool better = false;
    for (int i = 0; i < s->n_objectives + s->n_bounds; i++) {
        if (lead(s, i, a, b) > 0)
            return false;
        better = better || lead(s, i, a, b) < 0;
    }
    return better;
}

bool tune_same_values(const struct search *s, const struct point *a, const struct point *b)
{
    return !memcmp(a->values, b->values, (size_t)(s->n_objectives + s->n_bounds) * sizeof *a->values);
}

static bool in_front(const struct search *s, int k)
{
    const struct point *p = &s->points[k];
    for (int i = 0; i < s->n_points; i++) {
        const struct point *q = &s->points[i];
        if (i != k && q->known && q->whole && (dominates(s, q, p) || (i < k && tune_same_values(s, q, p))))
            return false;
    }
    return p->known && p->whole;
}

int tune_best(const struct search *s)
{
    int best = -1;
    for (int i = 0; i < s->n_points; i++)
        if (s->points[i].known && s->points[i].whole && (best < 0 || beats(s, &s->points[i], &s->points[best])))
            best = i;
    return best;
}

/* ---- making points */

/* Evenly over the box, moved as a whole by the seed: the i-th point of Halton's sequence. */
static void spread_point(const struct search *s, const double *shift, int i, struct point *p)
{
    static const int primes[TUNE_MAX] = {2,  3,  5,  7,  11, 13, 17, 19, 23, 29,  31,  37,  41,  43,  47,  53,
                                         59, 61, 67, 71, 73, 79, 83, 89, 97, 101, 103, 107, 109, 113, 127, 131};
    for (int d = 0; d < s->space.n; d++) {
        double v = shift[d], part = 1;
        for (int k = i + 1; k; k /= primes[d]) {
            part /= primes[d];
            v += part * (k % primes[d]);
        }
        p->u[d] = v - floor(v);
    }
}

static void step_from(struct search *s, const struct point *from, double radius, struct point *p)
{
    int must = (int)rng_below(&s->rng, (uint64_t)s->space.n);
    bool leaps = rng_unit(&s->rng) < 0.2; /* elsewhere altogether: the hill it is on may not be the highest */
    *p = (struct point){.whole = true};
    for (int d = 0; d < s->space.n; d++) {
        const struct tune_param *x = &s->space.params[d];
        double u = from->u[d], by = 2 * rng_unit(&s->rng) - 1, any = rng_unit(&s->rng);
        bool moves = d == must || rng_unit(&s->rng) < 0.4;
        if (leaps || (moves && x->kind > TUNE_INTEGER))
            u = any;
        else if (moves)
            u = fabs(u + radius * by);
        p->u[d] = u > 1 ? 2 - u : u;
    }
}

static bool known_already(const struct search *s, const struct point *p, const struct point *more, int n_more)
{
    struct buf a = {0}, b = {0};
    bool found = false;
    tune_space_json(&s->space, p->u, &a);
    for (int i = 0; i < s->n_points + n_more && !found; i++) {
        const struct point *q = i < s->n_points ? &s->points[i] : &more[i - s->n_points];
        buf_clear(&b);
        tune_space_json(&s->space, q->u, &b);
        found = q->whole == p->whole && !strcmp(a.data, b.data);
    }
    buf_free(&a);
    buf_free(&b);
    return found;
}

/* Where the next step begins: mostly at the best, else anywhere on the front. */
static const struct point *parent(struct search *s)
{
    int n = 0, best = tune_best(s), pick = -1;
    double chance = s->n_objectives > 1 ? 0.25 : 0.75;
    bool take_best = rng_unit(&s->rng) < chance;
    for (int i = 0; i < s->n_points && !take_best; i++)
        if (in_front(s, i) && rng_below(&s->rng, (uint64_t)++n) == 0)
            pick = i;
    return &s->points[pick >= 0 ? pick : best >= 0 ? best : 0];
}

/* ---- the search */

/* The w-th of several ways to rank points of a shortened trace, none of which can be trusted alone: what keeps its
 * bounds there may break them on the whole. By the objective; with two: by the other, and by both; then by each bounded
 * value. */
static bool ranks_before(const struct search *s, const struct point *a, const struct point *b, int w)
{
    int n = s->n_objectives > 1 ? 3 : 1, bound = s->n_objectives + w % (n + s->n_bounds) - n;
    if (bound < s->n_objectives || a->known != b->known)
        return beats_in(s, a, b, w % (n + s->n_bounds));
    return lead(s, bound, a, b) < 0 || (lead(s, bound, a, b) == 0 && beats(s, a, b));
}

/* The best k of n to the front, by each ranking in turn. */
static void sort_best(const struct search *s, struct point *points, int n, int k)
{
    for (int i = 0; i < k && i < n; i++) {
        int best = i;
        for (int j = i + 1; j < n; j++)
            if (ranks_before(s, &points[j], &points[best], i))
                best = j;
        struct point other = points[i];
        points[i] = points[best];
        points[best] = other;
    }
}

/* Moves those that were refused to all that is kept. Returns how many are left. */
static int put_refused_aside(struct search *s, struct point *points, int n)
{
    int left = 0;
    for (int i = 0; i < n; i++) {
        if (points[i].refused) {
            points[i].whole = true; /* on any part of the trace */
            keep(s, &points[i], 1);
        } else {
            points[left++] = points[i];
        }
    }
    return left;
}

/* Points all over the box. For each that is refused the next one is tried, up to a limit. *n: as many as there are in
 * the end. */
static int run_wide(struct search *s, struct point *wide, int *n, bool whole, struct err *e)
{
    int have = 0, next = 0, rc = 0;
    double shift[TUNE_MAX];
    for (int d = 0; d < TUNE_MAX; d++)
        shift[d] = rng_unit(&s->rng);
    while (have < *n && next < PATIENCE * *n && !rc) {
        int from = have;
        for (; have < *n; have++) {
            wide[have] = (struct point){.whole = whole, .window = &s->windows.busiest};
            spread_point(s, shift, next++, &wide[have]);
        }
        rc = tune_run_points(s, wide + from, have - from, e);
        have = from + put_refused_aside(s, wide + from, have - from);
    }
    *n = have;
    return rc;
}

/* A wide look: many points on the busiest quarter of the trace's time, the best of them on the whole of it. */
static int explore(struct search *s, int n_short, int n_whole, struct err *e)
{
    bool shortened = s->windows.busiest.rows * SHORTER >= LEAST_ROWS;
    int n = shortened ? n_short : n_short / SHORTER + n_whole;
    struct point *wide = mem_new_array((size_t)n + 1, sizeof *wide);
    int rc = run_wide(s, wide, &n, !shortened, e);
    if (!shortened) {
        keep(s, wide, n);
        mem_free(wide);
        return rc;
    }
    sort_best(s, wide, n, n_whole);
    for (int i = 0; i < n_whole && i < n; i++) {
        mem_free(wide[i].failure);
        wide[i].failure = NULL;
        wide[i].whole = true;
        wide[i].known = false;
    }
    for (int i = n_whole; i < n; i++)
        mem_free(wide[i].failure);
    n_whole = n_whole < n ? n_whole : n;
    if (!rc)
        rc = tune_run_points(s, wide, n_whole, e);
    keep(s, wide, n_whole);
    mem_free(wide);
    return rc;
}

static int refine(struct search *s, int n, struct err *e)
{
    double radius = 0.25;
    int tried = 0;
    for (int done = 0; done < n && tried < PATIENCE * n; radius = fmax(radius * 0.75, 0.01)) {
        struct point round[ROUND];
        int k = 0, most = n - done < ROUND ? n - done : ROUND;
        for (int tries = 0; k < most && tries < 100; tries++) {
            step_from(s, parent(s), radius, &round[k]);
            k += !known_already(s, &round[k], round, k);
        }
        if (k == 0)
            break; /* there is nothing new this near */
        int before = s->n_spent, rc = tune_run_points(s, round, k, e);
        keep(s, round, k);
        if (rc)
            return rc;
        done += s->n_spent - before;
        tried += k;
    }
    return 0;
}

/* The policy as it is; how far to look is known from its run, and coordinates are from then on. */
static int run_default(struct search *s, struct point *first, struct err *e)
{
    *first = (struct point){.whole = true, .plain = true};
    int rc = tune_run_points(s, first, 1, e);
    first->plain = false;
    if (!first->known)
        return rc;
    int cut = tune_space_cut(&s->space, &s->limits, rc ? NULL : e);
    first->known = !cut;
    for (int d = 0; d < s->space.n && !cut; d++)
        first->u[d] = s->space.params[d].by_default;
    return rc ? rc : cut;
}

static int search_all(struct search *s, struct err *e)
{
    int budget = (int)s->ask->budget, wide = budget * 2 / 5, whole = budget > 5 ? budget / 5 : 1,
        rest = budget - 1 - wide - whole;
    struct point first;
    s->n_planned = 1 + wide * SHORTER + whole + (rest > 0 ? rest : 0);
    int rc = run_default(s, &first, e);
    keep(s, &first, 1);
    if (!rc && first.withdrawn)
        return err_set(e, E_POLICY,
                       "with its own params the policy is withdrawn for its strikes on this trace: moonshift simulate "
                       "says which%s",
                       s->ask->starvation_s > 0 ? " (--starvation-seconds 0 takes the watch over waiting requests away)"
                                                : "");
    if (!rc && !first.known)
        return err_set(e, E_INPUT, "with the policy's own params: %.300s",
                       first.failure ? first.failure : "nothing was measured");
    if (!rc && s->windows.busiest.rows * SHORTER < LEAST_ROWS)
        s->n_planned = budget;
    if (!rc && wide > 0)
        rc = explore(s, wide * SHORTER, whole, e);
    if (!rc && rest > 0)
        rc = refine(s, rest, e);
    if (!rc)
        rc = tune_look_around(s, e);
    return rc ? rc : tune_try_elsewhere(s, e);
}

/* ---- results */

static void put_point(const struct search *s, const struct point *p, const char *mark, struct buf *out)
{
    struct buf words = {0};
    tune_space_words(&s->space, p->u, &words);
    buf_printf(out, "%-8s", mark);
    for (int i = 0; i < s->n_objectives + s->n_bounds; i++)
        buf_printf(out, " %16.6g", p->values[i]);
    buf_printf(out, "  %s%s", words.data,
               p->withdrawn    ? "  (withdrawn for its strikes)"
               : p->excess > 0 ? "  (past a bound)"
                               : "");
    if (p->outside >= SIM_OUTSIDE_MARK)
        buf_printf(out, "  ~ %.1f%%", 100 * p->outside);
    buf_putc(out, '\n');
    buf_free(&words);
}

static void put_front(const struct search *s, int best, struct buf *out)
{
    int *front = mem_new_array((size_t)s->n_points + 1, sizeof *front), n = 0;
    for (int i = 0; i < s->n_points; i++) {
        if (!in_front(s, i))
            continue;
        int at = n++;
        for (; at > 0 && lead(s, 0, &s->points[i], &s->points[front[at - 1]]) < 0; at--)
            front[at] = front[at - 1];
        front[at] = i;
    }
    buf_printf(out, "%-8s", "");
    for (int i = 0; i < s->n_objectives + s->n_bounds; i++) {
        const struct tune_metric *m = i < s->n_objectives ? &s->objectives[i] : &s->bounds[i - s->n_objectives].metric;
        char name[64];
        snprintf(name, sizeof name, "%s%s", m->name, m->is_latency ? ", ms" : "");
        buf_printf(out, " %16s", name);
    }
    buf_putc(out, '\n');
    put_point(s, &s->points[0], "default", out);
    for (int i = 0; i < n; i++)
        put_point(s, &s->points[front[i]], front[i] == best ? "best" : "front", out);
    mem_free(front);
}

/* Points that cannot be: how many, and the first reason. */
static void put_refused(const struct search *s, struct buf *out)
{
    int n = 0, first = 0;
    for (int i = s->n_points - 1; i >= 0; i--)
        if (s->points[i].refused) {
            n++;
            first = i;
        }
    if (n)
        buf_printf(out, "Refused  %d points more, which cannot be run and do not count; the first: %.300s\n", n,
                   s->points[first].failure);
}

static void put_head(const struct search *s, struct buf *out)
{
    struct buf cuts = {0};
    tune_space_cuts(&s->space, &cuts);
    buf_printf(out, "Policy   %s\nTrace    %s, %.0f requests, seed %llu\nSearched", s->ask->policy, s->ask->trace,
               s->windows.rows, (unsigned long long)s->ask->seed);
    for (int i = 0; i < s->space.n; i++) {
        const struct tune_param *p = &s->space.params[i];
        if (p->kind <= TUNE_INTEGER)
            buf_printf(out, "%s %s %g to %g", i ? "," : "", p->name, p->low, p->high);
        else
            buf_printf(out, "%s %s", i ? "," : "", p->name);
    }
    for (int i = 0; i < s->space.n_left; i++)
        buf_printf(out, "%s %s", i ? "," : "\nLeft     for want of bounds (--param NAME=LOW..HIGH):", s->space.left[i]);
    if (cuts.len)
        buf_printf(out, "\nCut      %s", cuts.data);
    buf_free(&cuts);
    buf_printf(out, "\nRuns     %d simulations in virtual time: predictions of a fitted model, never measurements\n",
               s->n_spent);
    put_refused(s, out);
    buf_putc(out, '\n');
}

static void put_json_point(const struct search *s, const struct point *p, bool front, struct buf *out)
{
    buf_puts(out, "{\"params\":");
    tune_space_json(&s->space, p->u, out);
    buf_puts(out, ",\"values\":");
    tune_json_values(s, p, out);
    buf_puts(out, ",\"outside\":");
    json_put_double(out, p->outside);
    buf_printf(out, ",\"feasible\":%s,\"front\":%s", p->known && p->excess <= 0 ? "true" : "false",
               front ? "true" : "false");
    if (p->refused) {
        buf_puts(out, ",\"refused\":");
        buf_put_json(out, p->failure, strlen(p->failure));
    }
    buf_putc(out, '}');
}

static int write_files(const struct search *s, int best, struct err *e)
{
    struct buf out = {0};
    int rc = 0;
    if (s->ask->json) {
        buf_puts(&out, "{\"format\":\"moonshift-tune-1\",\"best\":");
        buf_printf(&out, "%d,\"no_difference\":[", best);
        const char *comma = "";
        for (int d = 0; d < s->space.n; d++)
            if (tune_makes_no_difference(&s->plateaus[d])) {
                buf_printf(&out, "%s\"%s\"", comma, s->space.params[d].name);
                comma = ",";
            }
        buf_puts(&out, "],\"cut\":");
        tune_space_cuts_json(&s->space, &out);
        buf_puts(&out, ",\"elsewhere\":");
        tune_json_elsewhere(s, &out);
        buf_puts(&out, ",\"points\":[");
        for (int i = 0; i < s->n_points; i++) {
            buf_puts(&out, i ? ",\n" : "\n");
            put_json_point(s, &s->points[i], in_front(s, i), &out);
        }
        buf_puts(&out, "\n]}\n");
        rc = file_replace(s->ask->json, out.data, out.len, e);
    }
    buf_clear(&out);
    if (!rc && s->ask->params_out && s->points[best].excess <= 0) {
        tune_space_json(&s->space, s->points[best].u, &out);
        buf_putc(&out, '\n');
        rc = file_replace(s->ask->params_out, out.data, out.len, e);
    }
    buf_free(&out);
    return rc;
}

static int tell(const struct search *s, struct err *e)
{
    struct buf out = {0};
    int best = tune_best(s);
    if (best < 0)
        return 0;
    put_head(s, &out);
    put_front(s, best, &out);
    if (s->points[best].excess <= 0) {
        buf_puts(&out, "\nThe best: ");
        tune_space_json(&s->space, s->points[best].u, &out);
        buf_putc(&out, '\n');
    }
    tune_put_plateaus(s, best, &out);
    tune_put_elsewhere(s, &out);
    for (int i = 0; i < s->n_points; i++)
        if (s->points[i].outside >= SIM_OUTSIDE_MARK) {
            buf_puts(&out, "~: the share of a point's step time that was priced outside of what was measured; "
                           "moonshift simulate with its params says where\n");
            break;
        }
    fputs(out.data, stdout);
    buf_free(&out);
    TRY(write_files(s, best, e));
    if (s->points[best].excess > 0)
        return err_set(e, E_NOTFOUND, "nothing that was tried keeps the bounds; the nearest is marked \"best\"");
    return 0;
}

/* ---- all of it */

static int read_goals(struct search *s, struct err *e)
{
    const struct tune_ask *o = s->ask;
    if (o->constraints.n > MAX_BOUNDS)
        return err_set(e, E_INPUT, "--subject-to: at most %d", MAX_BOUNDS);
    for (int i = 0; i < o->objectives.n && i < 2; i++)
        TRY(tune_metric_read(&s->objectives[s->n_objectives++], o->objectives.items[i], e));
    for (int i = 0; i < o->constraints.n; i++)
        TRY(tune_bound_read(&s->bounds[s->n_bounds++], o->constraints.items[i], e));
    return 0;
}

static int find(struct search *s, struct err *e)
{
    TRY(tune_windows_read(&s->windows, &s->ask->arrivals, e));
    TRY(job_signals_open(&s->signals, e));
    int rc = search_all(s, e), told = 0;
    if (s->n_points && (rc == 0 || rc == E_GONE))
        told = tell(s, rc ? NULL : e);
    job_signals_close(&s->signals);
    return rc ? rc : told;
}

int tune(const struct tune_ask *ask, struct err *e)
{
    struct search s = {.ask = ask};
    int rc = read_goals(&s, e);
    if (!rc)
        rc = tune_space_open(&s.space, ask->declared, &ask->params, &ask->fixed, e);
    if (!rc) {
        rng_init(&s.rng, ask->seed * 1000003 + 17);
        rc = find(&s, e);
    }
    for (int i = 0; i < s.n_points; i++)
        mem_free(s.points[i].failure);
    for (int i = 0; i < 2 * TUNE_QUARTERS; i++)
        mem_free(s.elsewhere[i].failure);
    mem_free(s.points);
    tune_space_close(&s.space);
    return rc;
}
