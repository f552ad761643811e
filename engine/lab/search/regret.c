#include "engine/lab/search/regret.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/lab/search/regret_inner.h"
#include "engine/lab/trace/lines.h"

struct run *regret_add(struct regret *g, enum run_kind kind, const char *asked)
{
    struct run *r = mem_new(sizeof *r);
    r->kind = kind;
    r->asked = mem_strdup(asked);
    g->runs = mem_resize(g->runs, (size_t)g->n_runs + 1, sizeof *g->runs);
    return g->runs[g->n_runs++] = r;
}

/* ---- who is better */

bool regret_counts(const struct regret *g, const struct run *r)
{
    return r->known && !r->withdrawn && r->finished >= g->most_finished;
}

double regret_ratio(const struct regret *g, int metric, const struct run *a, const struct run *b)
{
    double x = a->values[metric], y = b->values[metric];
    if (x == y)
        return 1;
    if (g->metrics[metric].more)
        return x > 0 ? y / x : INFINITY;
    return y > 0 ? x / y : INFINITY;
}

const struct run *regret_best(const struct regret *g, int metric, unsigned kinds)
{
    const struct run *best = NULL;
    for (int i = 0; i < g->n_runs; i++) {
        const struct run *r = g->runs[i];
        if (kinds >> r->kind & 1 && regret_counts(g, r) && (!best || regret_ratio(g, metric, r, best) < 1))
            best = r;
    }
    return best;
}

/* ---- what each request waited */

enum { LOG_ARRIVAL = 2, LOG_START, LOG_FIRST, LOG_LAST, LOG_INPUT, LOG_OUTPUT, LOG_FIELDS = 12 };

/* Of a line of the request log, in ms; below 0: it has none. */
static double waited(const struct tune_metric *m, const double *f)
{
    if (f[LOG_LAST] < 0)
        return -1;
    if (m->is_latency && !strcmp(m->path, "ttft_ms"))
        return (f[LOG_FIRST] - f[LOG_ARRIVAL]) * 1e3;
    if (m->is_latency && !strcmp(m->path, "queue_ms"))
        return (f[LOG_START] - f[LOG_ARRIVAL]) * 1e3;
    if (m->is_latency && !strcmp(m->path, "tpot_ms"))
        return f[LOG_OUTPUT] > 1 ? (f[LOG_LAST] - f[LOG_FIRST]) * 1e3 / (f[LOG_OUTPUT] - 1) : -1;
    return (f[LOG_LAST] - f[LOG_ARRIVAL]) * 1e3;
}

static void count_line(const struct regret *g, struct run *r, char *line)
{
    double f[LOG_FIELDS];
    int n = 0;
    for (char *at = line; at && n < LOG_FIELDS - 1; n++) {
        char *comma = strchr(at, ',');
        f[n] = *at == ',' ? -1 : strtod(at, NULL);
        at = comma ? comma + 1 : NULL;
    }
    int bin = (int)(f[LOG_ARRIVAL] / g->horizon_s * g->n_bins), span = (int)(f[LOG_ARRIVAL] / g->span_s);
    bin = bin < g->n_bins ? bin : g->n_bins - 1;
    span = span < g->n_spans ? span : g->n_spans - 1;
    for (int m = 0; m < g->n_metrics; m++) {
        double ms = waited(&g->metrics[m], f);
        if (ms < 0)
            continue;
        r->costs[m][bin] += ms;
        r->spans[m][span] += ms;
    }
}

/* The log is this program's own, so its lines are as they should be. */
static int read_log(const struct regret *g, struct run *r, const char *path, struct err *e)
{
    FILE *f = fopen(path, "re");
    bool end = false, first = true;
    if (!f)
        return err_set(e, E_SYS, "cannot read %.200s: %s", path, strerror(errno));
    struct lines l = {0};
    lines_start(&l, f, "the request log");
    int rc = lines_next(&l, &end, e);
    for (; !rc && !end; rc = lines_next(&l, &end, e)) {
        if (!first)
            count_line(g, r, l.line.data);
        first = false;
    }
    lines_stop(&l);
    return rc;
}

/* Spans of a minute, of whole minutes if there would be too many, and of less where the trace is short. */
static void choose_spans(struct regret *g)
{
    double s = g->horizon_s >= 300 ? 60 * ceil(g->horizon_s / 60 / REGRET_SPANS) : g->horizon_s / 10;
    g->span_s = s;
    g->n_spans = (int)ceil(g->horizon_s / s - 1e-9);
}

/* ---- running */

static void add_word(struct strings *out, const char *word)
{
    out->items = mem_resize(out->items, (size_t)out->n + 1, sizeof *out->items);
    out->items[out->n++] = mem_strdup(word);
}

static void path_of(const struct regret *g, int run, const char *ext, char out[96])
{
    snprintf(out, 96, "%s/%d.%s", g->scratch.path, run, ext);
}

static int make_job(const struct regret *g, int i, struct job *x, struct err *e)
{
    const struct run *r = g->runs[i];
    struct strings words = {0};
    char path[96];
    int rc = 0;
    for (int k = 0; k < g->ask->args.n; k++)
        add_word(&words, g->ask->args.items[k]);
    add_word(&words, "--policy");
    path_of(g, i, "lua", path);
    add_word(&words, r->kind == RUN_SCHEDULE ? path : r->asked);
    if (r->kind == RUN_SCHEDULE) {
        struct buf lua = {0};
        regret_schedule_lua(g, r, &lua);
        rc = file_replace(path, lua.data, lua.len, e);
        buf_free(&lua);
    }
    path_of(g, i, "csv", path);
    add_word(&words, "--request-log");
    add_word(&words, path);
    *x = (struct job){.args = words.items, .n_args = words.n};
    return rc;
}

static void take_result(struct regret *g, struct run *r, struct job *x)
{
    const struct json *run = json_first(json_find(x->result, "runs"));
    r->failure = x->failure;
    x->failure = NULL;
    if (!run)
        return;
    r->known = true;
    for (int m = 0; m < g->n_metrics; m++)
        r->known = tune_metric_of(&g->metrics[m], run, &r->values[m]) && r->known;
    if (!r->known && !r->failure)
        r->failure = mem_strdup("no request came so far that what is asked for could be measured");
    r->finished = json_member_number(run, "finished");
    r->n_requests = json_member_number(run, "requests");
    r->seconds = json_member_number(run, "seconds");
    r->outside = json_member_number(json_find(run, "outside"), "share");
    r->withdrawn = json_member_number(json_find(run, "policy"), "withdrawn") > 0;
    g->n_ranks = (int)json_member_number(x->result, "ranks");
    if (r->known && !r->withdrawn && r->finished > g->most_finished)
        g->most_finished = r->finished;
}

/* The logs of these runs. What bins are is settled by the first that ran: by its shortest. */
static int take_logs(struct regret *g, int first, int n, struct err *e)
{
    char path[96];
    double shortest = 0;
    int rc = 0;
    for (int i = first; i < first + n; i++)
        if (g->runs[i]->known && (shortest <= 0 || g->runs[i]->seconds < shortest))
            shortest = g->runs[i]->seconds;
    if (g->horizon_s <= 0 && shortest > 0) {
        g->horizon_s = shortest;
        choose_spans(g);
    }
    for (int i = first; i < first + n; i++) {
        path_of(g, i, "csv", path);
        if (g->runs[i]->known && !rc)
            rc = read_log(g, g->runs[i], path, e);
        unlink(path);
        path_of(g, i, "lua", path);
        unlink(path);
    }
    return rc;
}

int regret_run(struct regret *g, int first, int n, struct err *e)
{
    struct job *items = mem_new_array((size_t)n + 1, sizeof *items);
    int rc = 0;
    for (int i = 0; i < n && !rc; i++)
        rc = make_job(g, first + i, &items[i], e);
    struct jobs j = {.signals = &g->signals,
                     .items = items,
                     .n = n,
                     .parallel = (int)g->ask->jobs,
                     .what = "simulations",
                     .n_before = g->n_spent,
                     .n_all = g->n_planned > g->n_spent + n ? g->n_planned : g->n_spent + n};
    if (!rc)
        rc = jobs_run(&j, e);
    for (int i = 0; i < n; i++) {
        take_result(g, g->runs[first + i], &items[i]);
        g->n_spent += g->runs[first + i]->known;
        for (int k = 0; k < items[i].n_args; k++)
            mem_free(items[i].args[k]);
        mem_free(items[i].args);
    }
    struct err late = {0};
    int read = take_logs(g, first, n, &late);
    if (!rc && read)
        rc = err_set(e, read, "%s", late.text);
    jobs_clear(&j);
    mem_free(items);
    return rc;
}

/* ---- all of it */

static int run_policies(struct regret *g, struct err *e)
{
    const struct strings *p = &g->ask->policies;
    for (int i = 0; i < p->n; i++)
        regret_add(g, RUN_POLICY, p->items[i]);
    TRY(regret_run(g, 0, p->n, e));
    for (int i = 0; i < p->n && g->ask->named; i++)
        if (g->runs[i]->failure)
            return err_set(e, E_INPUT, "--policy %.60s: %.300s", p->items[i], g->runs[i]->failure);
    if (g->most_finished <= 0)
        return err_set(e, E_NOTFOUND, "nothing could be run: %.300s",
                       p->n && g->runs[0]->failure ? g->runs[0]->failure : "no request has ended");
    return 0;
}

static int find(struct regret *g, struct err *e)
{
    TRY(job_signals_open(&g->signals, e));
    int rc = run_policies(g, e);
    if (!rc)
        rc = regret_search(g, e);
    int told = g->most_finished > 0 && (!rc || rc == E_GONE) ? regret_report(g, rc ? NULL : e) : 0;
    job_signals_close(&g->signals);
    return rc ? rc : told;
}

int regret(const struct regret_ask *ask, struct err *e)
{
    struct regret g = {.ask = ask, .n_bins = (int)ask->bins};
    if (ask->metrics.n > REGRET_METRICS)
        return err_set(e, E_INPUT, "--metric: at most %d", REGRET_METRICS);
    for (int i = 0; i < ask->metrics.n; i++)
        TRY(tune_metric_read(&g.metrics[g.n_metrics++], ask->metrics.items[i], e));
    TRY(scratch_open(&g.scratch, e));
    int rc = find(&g, e);
    scratch_close(&g.scratch);
    for (int i = 0; i < g.n_runs; i++) {
        mem_free(g.runs[i]->asked);
        mem_free(g.runs[i]->failure);
        mem_free(g.runs[i]);
    }
    mem_free(g.runs);
    return rc;
}
