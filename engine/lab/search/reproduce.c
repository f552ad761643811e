#include "engine/lab/search/reproduce.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/lab/search/paper_list.h"
#include "kernels/sim/machine.h"

enum { CELL = 64, WHERE = 16, WHAT = 76 };

/* One number, answered. */
struct answer {
    double value[PAPER_VALUES];
    bool known, inside; /* inside its bar; true where it has none */
    char failure[200];
    char published[CELL], simulated[CELL], error[CELL];
};

/* Numbers of one kind, which say how wrong the model is only as far as it did not know them. */
enum kind { FREE, FITTED, GIVEN, KINDS };
struct errors {
    double *items, sum;
    int n, n_near; /* those within 10% */
};

struct reproduction {
    const struct reproduce_ask *ask;
    struct paper_list list;
    struct answer *answers;
    int n_covered, n_uncovered, n_failed, n_claims, n_held, n_missed, n_bars;
    struct errors errors[KINDS];
};

/* ---- cells */

static void put_number(char *cell, double v)
{
    double a = fabs(v);
    snprintf(cell, CELL, "%.*f", a >= 1000 ? 0 : a >= 100 ? 1 : a >= 10 ? 2 : 3, v);
}

static void join(char *cell, const char *a, const char *b)
{
    if (b)
        snprintf(cell, CELL, "%.25s to %.25s", a, b);
    else
        snprintf(cell, CELL, "%.50s", a);
}

static void fill_cells(const struct paper_number *x, struct answer *a)
{
    char p[PAPER_VALUES][CELL] = {"", ""}, v[PAPER_VALUES][CELL] = {"", ""}, d[PAPER_VALUES][CELL] = {"", ""};
    if (x->claim && a->value[0] != 0 && a->value[0] != 1) { /* said in words, and answered by a number */
        snprintf(a->published, CELL, "%.60s", x->claim);
        put_number(a->simulated, a->value[0]);
        return;
    }
    if (x->claim) {
        snprintf(a->published, CELL, "%.60s", x->claim);
        snprintf(a->simulated, CELL, "%s", a->value[0] != 0 ? "yes" : "no");
        snprintf(a->error, CELL, "%s", a->value[0] != 0 ? "holds" : "fails");
        return;
    }
    for (int i = 0; i < x->n; i++) {
        put_number(p[i], x->published[i]);
        put_number(v[i], a->value[i]);
        if (x->published[i] != 0)
            snprintf(d[i], CELL, "%+.1f%%", 100 * (a->value[i] / x->published[i] - 1));
    }
    join(a->published, p[0], x->n > 1 ? p[1] : NULL);
    join(a->simulated, v[0], x->n > 1 ? v[1] : NULL);
    snprintf(a->error, CELL, x->n > 1 ? "%.20s, %.20s" : "%.20s", d[0], d[1]);
}

static void count(struct reproduction *r, const struct paper_number *x, const struct answer *a)
{
    bool bar = x->high >= x->low;
    r->n_covered++;
    r->n_bars += bar;
    r->n_missed += bar && !a->inside;
    if (x->claim) {
        r->n_claims += a->error[0] != 0;
        r->n_held += a->error[0] && a->value[0] != 0;
        return;
    }
    for (int i = 0; i < x->n; i++) {
        double d = x->published[i] != 0 ? fabs(a->value[i] / x->published[i] - 1) : 0;
        struct errors *to = &r->errors[x->given ? GIVEN : x->fitted ? FITTED : FREE];
        to->sum += d;
        to->items = mem_resize(to->items, (size_t)to->n + 1, sizeof *to->items);
        to->items[to->n++] = d;
        to->n_near += d <= 0.1;
    }
}

static void answer(struct reproduction *r, const struct paper_number *x, struct answer *a)
{
    struct err e = {0};
    a->known = x->n > 0;
    for (int i = 0; i < x->n && a->known; i++)
        a->known = !paper_list_value(&r->list, x, i, &a->value[i], &e);
    if (x->n == 0) {
        r->n_uncovered++;
    } else if (!a->known) {
        r->n_failed++;
        snprintf(a->failure, sizeof a->failure, "%.190s", e.text);
    } else {
        a->inside = x->high < x->low || (a->value[0] >= x->low && a->value[0] <= x->high);
        fill_cells(x, a);
        count(r, x, a);
    }
}

/* ---- the table at the terminal */

static void put_row(const struct paper_number *x, const struct answer *a, struct buf *out)
{
    char what[WHAT + CELL];
    snprintf(what, sizeof what, "%.*s%s%s", WHAT - 8, x->what, *x->unit ? ", " : "", x->unit);
    buf_printf(out, "%-*.*s %-*.*s %18s %18s %16s", WHERE, WHERE, x->where, WHAT, WHAT, what, a->published,
               a->simulated, a->error);
    if (x->high >= x->low && x->claim)
        buf_printf(out, "  %s", a->inside ? "must hold" : "must hold: MISSED");
    else if (x->high >= x->low)
        buf_printf(out, "  bar %g to %g%s", x->low, x->high, a->inside ? "" : ": MISSED");
    buf_putc(out, '\n');
}

static void put_covered(struct reproduction *r, struct buf *out)
{
    const char *paper = "";
    for (int i = 0; i < r->list.n_numbers; i++) {
        const struct paper_number *x = &r->list.numbers[i];
        if (!x->wanted || !r->answers[i].known)
            continue;
        if (strcmp(paper, x->paper) != 0)
            buf_printf(out, "\n%-*s %-*s %18s %18s %16s\n", WHERE, x->paper, WHAT, "", "published", "simulated",
                       "error");
        paper = x->paper;
        put_row(x, &r->answers[i], out);
    }
}

/* Each reason once, with the numbers that it stands before. */
static void put_uncovered(struct reproduction *r, struct buf *out)
{
    struct paper_list *l = &r->list;
    if (r->n_uncovered)
        buf_puts(out, "\nNot covered\n");
    for (int i = 0; i < l->n_numbers; i++) {
        const struct paper_number *x = &l->numbers[i];
        bool first = x->wanted && x->why;
        for (int k = 0; k < i && first; k++)
            first = !l->numbers[k].wanted || !l->numbers[k].why || strcmp(l->numbers[k].why, x->why) != 0 ||
                    strcmp(l->numbers[k].paper, x->paper) != 0;
        if (!first)
            continue;
        int n = 0;
        struct buf ids = {0};
        for (int k = i; k < l->n_numbers; k++)
            if (l->numbers[k].wanted && l->numbers[k].why && !strcmp(l->numbers[k].why, x->why) &&
                !strcmp(l->numbers[k].paper, x->paper))
                buf_printf(&ids, "%s%s", n++ ? " " : "", l->numbers[k].id);
        buf_printf(out, "  %s (%d: %s)\n      %s\n", x->paper, n, ids.data, x->why);
        buf_free(&ids);
    }
    for (int i = 0; i < l->n_numbers; i++)
        if (l->numbers[i].wanted && r->answers[i].failure[0])
            buf_printf(out, "%s %s could not be run: %s\n", l->numbers[i].where, l->numbers[i].what,
                       r->answers[i].failure);
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* Simulations whose shapes left what was measured: the numbers rest on extrapolation there. */
static void put_outside(const struct reproduction *r, struct buf *out)
{
    double most = 0;
    int n = 0;
    for (int i = 0; i < r->list.jobs.n; i++) {
        double share = json_number(
            json_find(json_find(json_first(json_find(r->list.jobs.items[i].result, "runs")), "outside"), "share"));
        n += share >= SIM_OUTSIDE_MARK;
        most = share > most ? share : most;
    }
    if (n)
        buf_printf(out, " %d of %d simulations priced up to %.1f%% of their step time outside of what was measured.", n,
                   r->list.jobs.n, 100 * most);
}

static double median(struct errors *s)
{
    if (s->n)
        qsort(s->items, (size_t)s->n, sizeof *s->items, by_size);
    return s->n ? 0.5 * (s->items[(s->n - 1) / 2] + s->items[s->n / 2]) : 0;
}

static void put_summary(struct reproduction *r, struct buf *out)
{
    static const char *const words[] = {
        "to which nothing was fitted",
        "to which, or to others of whose figure, a constant was fitted",
        "that repeat what the trace says",
    };
    buf_printf(out, "\n%d answered.", r->n_covered);
    for (int k = 0; k < KINDS; k++) {
        struct errors *s = &r->errors[k];
        if (s->n)
            buf_printf(out, " %d values %s: error %.1f%% (median; mean %.1f%%), %d of them within 10%%.", s->n,
                       words[k], 100 * median(s), 100 * s->sum / s->n, s->n_near);
    }
    buf_printf(out, " %d claims in words, %d hold. %d not covered.", r->n_claims, r->n_held, r->n_uncovered);
    if (r->n_failed)
        buf_printf(out, " %d could not be run.", r->n_failed);
    if (r->n_bars)
        buf_printf(out, " %d bars, %d missed.", r->n_bars, r->n_missed);
    put_outside(r, out);
    buf_putc(out, '\n');
}

/* ---- the same as Markdown */

static void put_notes(const struct paper_number *x, const struct answer *a, struct buf *out)
{
    const char *said[] = {a->inside ? NULL : "**outside its bar**", x->note}, *between = "";
    if (x->fitted || x->given) {
        buf_printf(out, "%s: %s", x->fitted ? "**fitted**" : "**given**", x->fitted ? x->fitted : x->given);
        between = "; ";
    }
    for (int i = 0; i < 2; i++)
        if (said[i]) {
            buf_printf(out, "%s%s", between, said[i]);
            between = "; ";
        }
    buf_puts(out, " |\n");
}

static void put_markdown(struct reproduction *r, struct buf *out)
{
    const char *paper = "";
    for (int pass = 0; pass < 2; pass++) {
        buf_puts(out, pass ? "\n## Not covered\n\n| | where | what | why |\n|---|---|---|---|\n" : "");
        for (int i = 0; i < r->list.n_numbers; i++) {
            const struct paper_number *x = &r->list.numbers[i];
            const struct answer *a = &r->answers[i];
            if (!x->wanted || a->known == pass)
                continue;
            if (pass) {
                buf_printf(out, "| %s | %s, %s | %s | %s |\n", x->id, x->paper, x->where, x->what,
                           x->why ? x->why : a->failure);
                continue;
            }
            if (strcmp(paper, x->paper) != 0)
                buf_printf(
                    out,
                    "\n## %s\n\n| | where | what | published | simulated | error | |\n|---|---|---|---|---|---|---|\n",
                    x->paper);
            paper = x->paper;
            buf_printf(out, "| %s | %s | %s%s%s | %s | %s | %s | ", x->id, x->where, x->what, *x->unit ? ", " : "",
                       x->unit, a->published, a->simulated, a->error);
            put_notes(x, a, out);
        }
    }
}

static int write_markdown(struct reproduction *r, struct err *e)
{
    struct buf out = {0};
    const struct reproduce_ask *o = r->ask;
    buf_puts(&out, "# Published numbers and simulated ones\n\nMade by `moonshift reproduce");
    buf_printf(&out, "%s%s --markdown FILE`", o->hardware ? " --hardware " : "", o->hardware ? o->hardware : "");
    buf_puts(&out, " from `models/papers/reproduce.json`, which has the command line of every run. The simulated "
                   "numbers are predictions of a fitted model, never "
                   "measurements. The first column is the number's place in the collection of 287 that were taken down "
                   "from the five papers.\n");
    put_summary(r, &out);
    put_markdown(r, &out);
    int rc = file_replace(o->markdown, out.data, out.len, e);
    buf_free(&out);
    return rc;
}

/* ---- all of it */

static int run_all(struct reproduction *r, struct err *e)
{
    struct paper_list *l = &r->list;
    struct buf out = {0};
    l->jobs.what = "simulations";
    l->jobs.parallel = (int)r->ask->jobs;
    struct job_signals signals;
    TRY(job_signals_open(&signals, e));
    l->jobs.signals = &signals;
    int rc = l->jobs.n ? jobs_run(&l->jobs, e) : 0;
    r->answers = mem_new_array((size_t)l->n_numbers + 1, sizeof *r->answers);
    for (int i = 0; i < l->n_numbers; i++)
        if (l->numbers[i].wanted)
            answer(r, &l->numbers[i], &r->answers[i]);
    put_covered(r, &out);
    put_uncovered(r, &out);
    put_summary(r, &out);
    fputs(out.data, stdout);
    buf_free(&out);
    job_signals_close(&signals);
    if (!rc && r->ask->markdown)
        rc = write_markdown(r, e);
    if (!rc && r->n_failed)
        rc = err_set(e, E_INPUT, "%d numbers could not be run", r->n_failed);
    if (!rc && r->ask->bars && r->n_missed)
        rc = err_set(e, E_POLICY, "%d of %d bars are missed", r->n_missed, r->n_bars);
    mem_free(r->answers);
    for (int k = 0; k < KINDS; k++)
        mem_free(r->errors[k].items);
    return rc;
}

int reproduce(const struct reproduce_ask *ask, struct err *e)
{
    struct reproduction r = {.ask = ask};
    struct paper_choice choice = {.only = ask->only.items,
                                  .n_only = ask->only.n,
                                  .bars = ask->bars,
                                  .hardware = ask->hardware ? ask->hardware : "h200x8-fitted"};
    int rc = paper_list_open(&r.list, ask->list, &choice, e), n = 0;
    for (int i = 0; i < r.list.n_numbers; i++)
        n += r.list.numbers[i].wanted;
    if (!rc && n == 0)
        rc = err_set(e, E_NOTFOUND, "no number in %s is meant by that", ask->list);
    if (!rc)
        rc = run_all(&r, e);
    paper_list_close(&r.list);
    return rc;
}
