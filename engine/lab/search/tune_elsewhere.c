#include "engine/lab/search/tune_inner.h"

#include <math.h>
#include <string.h>

#include "engine/base/file.h"

/* Where there is nothing to compare: no best but the default, or a part in which nobody comes. */
static bool is_bare(const struct search *s, int best, int quarter)
{
    return best <= 0 || s->windows.quarters[quarter].rows < 1 ||
           (!s->windows.generated && s->windows.quarters[quarter].seconds <= 0);
}

int tune_try_elsewhere(struct search *s, struct err *e)
{
    struct point tries[2 * TUNE_QUARTERS];
    int best = tune_best(s), n = 0, to[2 * TUNE_QUARTERS];
    for (int i = 0; i < 2 * TUNE_QUARTERS; i++) {
        if (is_bare(s, best, i / 2))
            continue;
        to[n] = i;
        tries[n] = s->points[i % 2 ? best : 0];
        tries[n].failure = NULL;
        tries[n].whole = tries[n].known = false;
        tries[n++].window = &s->windows.quarters[i / 2];
    }
    int rc = n ? tune_run_points(s, tries, n, e) : 0;
    for (int i = 0; i < n; i++)
        s->elsewhere[to[i]] = tries[i];
    return rc;
}

static const struct tune_metric *metric_of(const struct search *s, int i)
{
    return i < s->n_objectives ? &s->objectives[i] : &s->bounds[i - s->n_objectives].metric;
}

void tune_json_values(const struct search *s, const struct point *p, struct buf *out)
{
    buf_putc(out, '{');
    for (int i = 0; i < s->n_objectives + s->n_bounds && p->known; i++) {
        const char *name = metric_of(s, i)->name;
        buf_puts(out, i ? "," : "");
        buf_put_json(out, name, strlen(name));
        buf_putc(out, ':');
        json_put_double(out, p->values[i]);
    }
    buf_putc(out, '}');
}

void tune_json_elsewhere(const struct search *s, struct buf *out)
{
    const char *comma = "";
    buf_putc(out, '[');
    for (int q = 0; q < TUNE_QUARTERS; q++) {
        const struct point *was = &s->elsewhere[2 * q], *now = was + 1;
        if (!was->known || !now->known)
            continue;
        buf_printf(out, "%s{\"seed\":%llu,\"from\":", comma,
                   (unsigned long long)(s->ask->arrivals.seed + was->window->seed_more));
        json_put_double(out, was->window->from);
        buf_puts(out, ",\"seconds\":");
        json_put_double(out, was->window->seconds);
        buf_puts(out, ",\"default\":");
        tune_json_values(s, was, out);
        buf_puts(out, ",\"best\":");
        tune_json_values(s, now, out);
        buf_putc(out, '}');
        comma = ",";
    }
    buf_putc(out, ']');
}

static void put_part(const struct search *s, const struct tune_window *w, struct buf *out)
{
    if (s->windows.generated)
        buf_printf(out, "seed %-14llu", (unsigned long long)(s->ask->arrivals.seed + w->seed_more));
    else
        buf_printf(out, "%7.0f to %-7.0f s", w->from, w->from + w->seconds);
}

/* By so much the best is better than the default, or worse. */
static void put_gain(const struct tune_metric *m, double was, double now, struct buf *out)
{
    if (was <= 0 || now <= 0) {
        buf_printf(out, "  %30s", "");
        return;
    }
    double gain = 100 * (m->more ? now / was - 1 : 1 - now / was);
    buf_printf(out, "  %10.6g, %10.6g %+6.1f%%", was, now, gain);
}

void tune_put_elsewhere(const struct search *s, struct buf *out)
{
    bool any = false;
    for (int q = 0; q < TUNE_QUARTERS; q++) {
        const struct point *was = &s->elsewhere[2 * q], *now = was + 1;
        if (!was->known || !now->known)
            continue;
        if (!any) {
            buf_printf(out, "\nElsewhere (%s): default, best, and by how much it is better\n%-19s",
                       s->windows.generated ? "other seeds" : "each quarter of the trace by itself", "");
            for (int i = 0; i < s->n_objectives + s->n_bounds; i++)
                buf_printf(out, "  %30s", metric_of(s, i)->name);
            buf_putc(out, '\n');
        }
        any = true;
        put_part(s, was->window, out);
        for (int i = 0; i < s->n_objectives + s->n_bounds; i++)
            put_gain(metric_of(s, i), was->values[i], now->values[i], out);
        buf_puts(out, now->excess > 0 ? "  (past a bound)\n" : "\n");
    }
}
