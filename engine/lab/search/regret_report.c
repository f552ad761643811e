#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/json.h"
#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/lab/search/regret_inner.h"
#include "kernels/sim/machine.h"

enum { WORST = 3, ANY = 1u << RUN_POLICY | 1u << RUN_STATIC | 1u << RUN_SCHEDULE };

/* ---- where regret arises */

struct worst {
    int spans[WORST], n;
    double shares[WORST]; /* of all that its requests waited longer, where they did */
};

/* The spans of time whose requests waited longest beyond what those of the bound did. */
static void find_worst(const struct regret *g, int metric, const struct run *r, const struct run *bound,
                       struct worst *w)
{
    double all = 0;
    *w = (struct worst){0};
    for (int s = 0; s < g->n_spans; s++)
        all += fmax(0, r->spans[metric][s] - bound->spans[metric][s]);
    while (w->n < WORST && all > 0) {
        int best = -1;
        double most = 0;
        for (int s = 0; s < g->n_spans; s++) {
            double more = r->spans[metric][s] - bound->spans[metric][s];
            bool listed = false;
            for (int i = 0; i < w->n; i++)
                listed = listed || w->spans[i] == s;
            if (!listed && more > most) {
                most = more;
                best = s;
            }
        }
        if (best < 0)
            return;
        w->spans[w->n] = best;
        w->shares[w->n++] = most / all;
    }
}

/* ---- the table */

static void put_row(const struct regret *g, int m, const struct run *r, const struct run *refs[3], struct buf *out)
{
    buf_printf(out, "%-28s", r->kind == RUN_SCHEDULE ? "best schedule found" : r->asked);
    buf_printf(out, " %s%14.6g", r->outside >= SIM_OUTSIDE_MARK ? "~" : " ", r->values[m]);
    for (int i = 0; i < 2; i++)
        if (refs[i])
            buf_printf(out, " %12.3f", regret_ratio(g, m, r, refs[i]));
        else
            buf_printf(out, " %12s", "-");
    buf_printf(out, " %11.1f%%", 100 * (regret_ratio(g, m, r, refs[2]) - 1));
    struct worst w;
    find_worst(g, m, r, refs[2], &w);
    for (int i = 0; i < w.n; i++)
        buf_printf(out, "%s%.0f-%.0f s (%.0f%%)", i ? ", " : "   ", w.spans[i] * g->span_s,
                   (w.spans[i] + 1) * g->span_s, 100 * w.shares[i]);
    buf_puts(out, r->withdrawn                     ? "   (withdrawn for its strikes)\n"
                  : r->finished < g->most_finished ? "   (lost requests)\n"
                                                   : "\n");
}

/* Policies, then fixed partitions; the best first. */
static void put_kind(const struct regret *g, int m, enum run_kind kind, const struct run *refs[3], struct buf *out)
{
    bool *put = mem_new((size_t)g->n_runs);
    for (;;) {
        int best = -1;
        for (int i = 0; i < g->n_runs; i++) {
            const struct run *r = g->runs[i];
            if (r->kind == kind && r->known && !put[i] && (best < 0 || regret_ratio(g, m, r, g->runs[best]) < 1))
                best = i;
        }
        if (best < 0)
            break;
        put[best] = true;
        put_row(g, m, g->runs[best], refs, out);
    }
    mem_free(put);
}

static void put_metric(const struct regret *g, int m, struct buf *out)
{
    const struct run *refs[3] = {regret_best(g, m, 1u << RUN_STATIC), regret_best(g, m, 1u << RUN_POLICY),
                                 regret_best(g, m, ANY)};
    const struct run *schedule = regret_best(g, m, 1u << RUN_SCHEDULE);
    char name[64];
    snprintf(name, sizeof name, "%s%s", g->metrics[m].name, g->metrics[m].is_latency ? ", ms" : "");
    buf_printf(out, "\n%-28s  %14s %12s %12s %12s   %s\n", name, "", "/ static", "/ policy", "regret",
               "mostly in requests that came at");
    if (schedule)
        put_row(g, m, schedule, refs, out);
    put_kind(g, m, RUN_POLICY, refs, out);
    put_kind(g, m, RUN_STATIC, refs, out);
    buf_printf(out, "The bound is the best found, not the best there is: %s%s\n",
               refs[2]->kind == RUN_SCHEDULE ? "the schedule " : "", refs[2]->asked);
}

static void put_left_out(const struct regret *g, struct buf *out)
{
    for (int i = 0; i < g->n_runs; i++)
        if (g->runs[i]->kind != RUN_SCHEDULE && g->runs[i]->failure)
            buf_printf(out, "Left out %s: %.200s\n", g->runs[i]->asked, g->runs[i]->failure);
}

static void put_marks(const struct regret *g, struct buf *out)
{
    for (int i = 0; i < g->n_runs; i++)
        if (g->runs[i]->known && g->runs[i]->outside >= SIM_OUTSIDE_MARK) {
            buf_puts(out, "\n~: part of the step time was priced outside of what was measured; moonshift simulate says "
                          "where\n");
            return;
        }
}

static void put_head(const struct regret *g, struct buf *out)
{
    const struct run *any = regret_best(g, 0, ANY);
    int n_schedules = 0;
    for (int i = 0; i < g->n_runs; i++)
        n_schedules += g->runs[i]->kind == RUN_SCHEDULE && g->runs[i]->known;
    buf_printf(out, "Trace    %s, %.0f requests\n", g->ask->trace, any ? any->n_requests : 0);
    buf_printf(out,
               "Runs     %d simulations, %d of them of schedules over %d stretches of %.3g s: predictions of a fitted\n"
               "         model, never measurements\n",
               g->n_spent, n_schedules, g->n_bins, g->horizon_s / g->n_bins);
    put_left_out(g, out);
}

/* ---- JSON */

static void json_by_metric(const struct regret *g, const struct run *r, struct buf *out)
{
    buf_puts(out, ",\"metrics\":{");
    for (int m = 0; m < g->n_metrics; m++) {
        const struct run *bound = regret_best(g, m, ANY);
        struct worst w;
        find_worst(g, m, r, bound, &w);
        buf_puts(out, m ? "," : "");
        buf_put_json(out, g->metrics[m].name, strlen(g->metrics[m].name));
        buf_puts(out, ":{\"value\":");
        json_put_double(out, r->values[m]);
        json_put_member_double(out, "regret", regret_ratio(g, m, r, bound) - 1);
        buf_puts(out, ",\"worst\":[");
        for (int i = 0; i < w.n; i++) {
            buf_printf(out, "%s{\"from_s\":", i ? "," : "");
            json_put_double(out, w.spans[i] * g->span_s);
            json_put_member_double(out, "share", w.shares[i]);
            buf_putc(out, '}');
        }
        buf_puts(out, "]}");
    }
    buf_putc(out, '}');
}

static void json_run(const struct regret *g, const struct run *r, struct buf *out)
{
    static const char *const kinds[] = {"policy", "static", "schedule"};
    buf_putc(out, '{');
    json_put_member(out, "kind", kinds[r->kind]);
    buf_putc(out, ',');
    json_put_member(out, "asked", r->asked);
    if (r->kind == RUN_SCHEDULE) {
        buf_puts(out, ",\"schedule\":");
        regret_schedule_json(g, r, out);
    }
    if (r->known) {
        buf_printf(out, ",\"counts\":%s", regret_counts(g, r) ? "true" : "false");
        json_put_member_double(out, "finished", r->finished);
        json_put_member_double(out, "outside", r->outside);
        json_by_metric(g, r, out);
    }
    if (r->failure) {
        buf_putc(out, ',');
        json_put_member(out, "failure", r->failure);
    }
    buf_putc(out, '}');
}

static void json_bounds(const struct regret *g, struct buf *out)
{
    for (int m = 0; m < g->n_metrics; m++) {
        const struct run *bound = regret_best(g, m, ANY);
        int at = 0;
        while (g->runs[at] != bound)
            at++;
        buf_puts(out, m ? "," : "");
        buf_put_json(out, g->metrics[m].name, strlen(g->metrics[m].name));
        buf_printf(out, ":%d", at);
    }
}

static int write_files(const struct regret *g, struct err *e)
{
    struct buf out = {0};
    const struct run *schedule = regret_best(g, 0, 1u << RUN_SCHEDULE);
    int rc = 0;
    if (g->ask->json) {
        buf_puts(&out, "{\"format\":\"moonshift-regret-1\",");
        json_put_member(&out, "trace", g->ask->trace);
        json_put_member_double(&out, "bin_s", g->horizon_s / g->n_bins);
        json_put_member_double(&out, "span_s", g->span_s);
        buf_printf(&out, ",\"simulations\":%d,\"bound\":{", g->n_spent);
        json_bounds(g, &out);
        buf_puts(&out, "},\"runs\":[");
        for (int i = 0; i < g->n_runs; i++) {
            buf_puts(&out, i ? ",\n" : "\n");
            json_run(g, g->runs[i], &out);
        }
        buf_puts(&out, "\n]}\n");
        rc = file_replace(g->ask->json, out.data, out.len, e);
        buf_clear(&out);
    }
    if (!rc && g->ask->schedule_out && schedule) {
        regret_schedule_lua(g, schedule, &out);
        rc = file_replace(g->ask->schedule_out, out.data, out.len, e);
    }
    buf_free(&out);
    return rc;
}

int regret_report(const struct regret *g, struct err *e)
{
    struct buf out = {0};
    put_head(g, &out);
    for (int m = 0; m < g->n_metrics; m++)
        put_metric(g, m, &out);
    put_marks(g, &out);
    fputs(out.data, stdout);
    buf_free(&out);
    return write_files(g, e);
}
