#include "engine/lab/plot.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/base/file.h"
#include "engine/lab/chart.h"
#include "engine/lab/plot_inner.h"

enum {
    MAX_POINTS = 800,
    STRIP = 30,
    LANE = 8,
    STRIPS_TOP = PLOT_STRIPS_TOP,
    LANES_TOP = 54,
    MOST_LABEL = PLOT_MOST_LABEL
};

int plot_save(struct chart *c, const char *folder, const char *name, struct err *e)
{
    char path[PATH_MAX];
    chart_close(c);
    int rc = snprintf(path, sizeof path, "%s/%s.svg", folder, name) < (int)sizeof path
                 ? file_replace(path, c->svg.data, c->svg.len, e)
                 : err_set(e, E_INPUT, "--plots: the path is too long");
    buf_free(&c->svg);
    return rc;
}

void plot_describe(const struct simulate_report *r, const char *how, char out[400])
{
    snprintf(out, 400, "%.200s; %.120s; %s", r->trace, r->setup->machine, how);
}

static void add_runs(struct chart *c, const struct simulate_report *r)
{
    for (int i = 0; i < r->n_runs; i++)
        chart_add_entry(c, KEY_LINE, i, r->runs[i].label);
}

static double longest_s(const struct simulate_report *r)
{
    double most = 0;
    for (int i = 0; i < r->n_runs; i++) {
        double s = (double)r->runs[i].replay.n_bins * (double)r->runs[i].replay.bin_ns * 1e-9;
        most = s > most ? s : most;
    }
    return most;
}

/* Each switch of a run, but one only where several fall on the same pixel. */
static void put_switches(struct chart *c, const struct replay *p, int style, int y)
{
    double last = -1, pixel = c->x.max / CHART_WIDTH;
    for (size_t i = 0; i < p->n_kept_switches; i++) {
        double at = (double)p->switches[i].at_ns * 1e-9;
        if (last >= 0 && at < last + pixel)
            continue;
        chart_switch(c, style, at, y, LANE - 2);
        last = at;
    }
}

/* ---- over time */

enum series { SERIES_THROUGHPUT, SERIES_QUEUE, SERIES_KV };

static double series_value(const struct simulate_run *run, enum series what, size_t i)
{
    const struct replay_bin *b = &run->replay.bins[i];
    if (what == SERIES_THROUGHPUT)
        return run->tally.spread[i] / ((double)run->replay.bin_ns * 1e-9);
    return what == SERIES_QUEUE ? b->n_running + b->n_waiting : 100 * b->kv_used;
}

/* The mean of each of at most MAX_POINTS stretches. */
static int series_points(const struct simulate_run *run, enum series what, struct chart_point points[MAX_POINTS + 1])
{
    size_t n = run->replay.n_bins, per = n / MAX_POINTS + 1;
    int made = 0;
    for (size_t i = 0; i < n; i += per) {
        double sum = 0;
        size_t k = 0;
        for (; k < per && i + k < n; k++)
            sum += series_value(run, what, i + k);
        points[made++] = (struct chart_point){(double)i * (double)run->replay.bin_ns * 1e-9, sum / (double)k};
    }
    return made;
}

static int plot_series(const struct simulate_report *r, enum series what, const char *folder, struct err *e)
{
    static const char *const files[] = {"throughput", "queue", "kv"};
    static const char *const titles[] = {"Throughput as clients saw it", "Requests in the system, running and waiting",
                                         "KV cache in use, fullest rank"};
    static const char *const units[] = {"tokens/s", "requests", "% of the blocks"};
    struct chart_point points[MAX_POINTS + 1];
    char caption[400];
    struct chart c = {.x = {.max = longest_s(r), .name = "seconds"},
                      .y = {.name = units[what]},
                      .title = titles[what],
                      .caption = caption};
    int lanes = 0;
    plot_describe(r, "simulated", caption);
    for (int i = 0; i < r->n_runs; i++) {
        int n = series_points(&r->runs[i], what, points);
        for (int k = 0; k < n; k++)
            c.y.max = points[k].y > c.y.max ? points[k].y : c.y.max;
        lanes += r->runs[i].replay.n_kept_switches > 0;
    }
    add_runs(&c, r);
    if (lanes)
        chart_add_entry(&c, KEY_SWITCH, 0, "a switch of the partition, in the policy's colour");
    c.top = LANES_TOP + lanes * LANE;
    c.bottom = c.top + 270;
    chart_open(&c);
    for (int i = 0, lane = 0; i < r->n_runs; i++) {
        chart_line(&c, i, r->n_runs, points, series_points(&r->runs[i], what, points));
        if (r->runs[i].replay.n_kept_switches)
            put_switches(&c, &r->runs[i].replay, i, LANES_TOP - 2 + LANE * lane++);
    }
    return plot_save(&c, folder, files[what], e);
}

/* ---- distributions */

static int distribution_points(const struct tally *t, enum tally_latency l, struct chart_point points[MAX_POINTS + 1])
{
    size_t n = t->n[l], most = n < MAX_POINTS ? n : MAX_POINTS;
    int made = 0;
    for (size_t i = 1; i <= most; i++) {
        size_t rank = i * n / most;
        if (made == 0)
            points[made++] = (struct chart_point){(double)t->sorted[l][rank - 1] * 1e-6, 0};
        points[made++] = (struct chart_point){(double)t->sorted[l][rank - 1] * 1e-6, 100 * (double)rank / (double)n};
    }
    return made;
}

/* One in a hundred may lie left of the frame, so that a single fast one does not stretch it. */
static void fit_latencies(struct chart_axis *x, const struct simulate_report *r, enum tally_latency l, double slo)
{
    x->min = slo > 0 ? slo : 1e12;
    x->max = slo;
    for (int i = 0; i < r->n_runs; i++) {
        const struct tally *t = &r->runs[i].tally;
        double low = (double)tally_percentile(t, l, 1) * 1e-6, high = (double)tally_percentile(t, l, 100) * 1e-6;
        x->min = low > 0 && low < x->min ? low : x->min;
        x->max = high > x->max ? high : x->max;
    }
    if (x->min > x->max)
        x->min = x->max > 0 ? x->max / 10 : 1;
}

static int plot_distribution(const struct simulate_report *r, enum tally_latency l, const char *folder, struct err *e)
{
    static const char *const titles[] = {"Time to first token", "Time per output token", "Queue time",
                                         "Completion time"};
    const struct simulate_ask *o = r->setup->ask;
    double slo = l == TALLY_TTFT ? o->slo_ttft_ms : l == TALLY_TPOT ? o->slo_tpot_ms : 0;
    char caption[400], limit[64];
    struct chart_point points[MAX_POINTS + 1];
    struct chart c = {.x = {.is_log = true, .name = "milliseconds, logarithmic"},
                      .y = {.max = 100, .name = "% of requests within"},
                      .title = titles[l],
                      .caption = caption};
    plot_describe(r, "simulated", caption);
    fit_latencies(&c.x, r, l, slo);
    add_runs(&c, r);
    snprintf(limit, sizeof limit, "SLO: %.6g ms", slo);
    if (slo > 0)
        chart_add_entry(&c, KEY_LIMIT, 0, limit);
    chart_open(&c);
    if (slo > 0)
        chart_limit(&c, slo, limit);
    for (int i = 0; i < r->n_runs; i++)
        chart_line(&c, i, r->n_runs, points, distribution_points(&r->runs[i].tally, l, points));
    return plot_save(&c, folder, tally_name(l), e);
}

/* ---- layouts */

/* How many groups, and the layout of the most tokens: the colour of one is its number in a list shared by all runs. */
struct kinds {
    struct kind {
        int n_groups;
        struct layout layout;
    } items[CHART_MOST_ENTRIES];
    int n;
};

static int bin_kind(struct kinds *k, const struct replay *p, size_t at) /* -1: nothing ran */
{
    const struct replay_bin *b = &p->bins[at];
    int i = 0;
    if (b->layout < 0)
        return -1;
    struct layout l = p->layouts[b->layout].layout;
    while (i < k->n && (k->items[i].n_groups != b->layout_groups || !layout_equal(k->items[i].layout, l)))
        i++;
    if (i == k->n && k->n < CHART_MOST_ENTRIES - 1)
        k->items[k->n++] = (struct kind){b->layout_groups, l};
    return i < k->n ? i : k->n - 1;
}

static void name_kind(const struct kind *k, int n_ranks, char out[CHART_TEXT])
{
    bool alike = k->n_groups * layout_size(k->layout) == n_ranks;
    int n = snprintf(out, CHART_TEXT, alike ? "dp %d, sp %d, tp %d" : "dp %d (unlike groups), mostly sp %d, tp %d",
                     k->n_groups, k->layout.sp, k->layout.tp);
    if (k->layout.pp > 1 && n < CHART_TEXT)
        snprintf(out + n, (size_t)(CHART_TEXT - n), ", pp %d", k->layout.pp);
}

static void put_strip(struct chart *c, struct kinds *k, const struct simulate_run *run, int y)
{
    const struct replay *p = &run->replay;
    double bin_s = (double)p->bin_ns * 1e-9;
    chart_label(c, y + LANE + 14, MOST_LABEL, run->label);
    for (size_t i = 0, end; i < p->n_bins; i = end) { /* a rectangle for each stretch of one colour */
        int kind = bin_kind(k, p, i);
        for (end = i + 1; end < p->n_bins && bin_kind(k, p, end) == kind;)
            end++;
        if (kind >= 0)
            chart_bar(c, kind, (double)i * bin_s, (double)end * bin_s, y + LANE, STRIP - LANE - 4);
    }
    put_switches(c, p, -1, y + 1);
}

static int plot_layouts(const struct simulate_report *r, const char *folder, struct err *e)
{
    struct kinds k = {0};
    char caption[400], label[CHART_TEXT];
    struct chart c = {.x = {.max = longest_s(r), .name = "seconds"},
                      .title = "Partition, and the layout of the most tokens in it",
                      .caption = caption,
                      .top = STRIPS_TOP,
                      .bottom = STRIPS_TOP + r->n_runs * STRIP + 4};
    double widest = 60;
    bool switched = false;
    plot_describe(r, "simulated", caption);
    for (int i = 0; i < r->n_runs; i++) {
        double w = chart_text_width(r->runs[i].label) + 20;
        widest = w > widest ? w : widest;
        switched = switched || r->runs[i].replay.n_kept_switches;
        for (size_t b = 0; b < r->runs[i].replay.n_bins; b++)
            bin_kind(&k, &r->runs[i].replay, b);
    }
    c.left = widest < MOST_LABEL + 20 ? (int)widest : MOST_LABEL + 20;
    for (int i = 0; i < k.n; i++) {
        name_kind(&k.items[i], r->runs[0].replay.n_ranks, label);
        chart_add_entry(&c, KEY_AREA, i, label);
    }
    if (switched)
        chart_add_entry(&c, KEY_SWITCH, 0, "a switch of the partition");
    chart_open(&c);
    for (int i = 0; i < r->n_runs; i++)
        put_strip(&c, &k, &r->runs[i], STRIPS_TOP + 2 + i * STRIP);
    return plot_save(&c, folder, "layouts", e);
}

int plot_report(const struct simulate_report *r, const char *folder, struct err *e)
{
    if (mkdir(folder, 0777) != 0 && errno != EEXIST)
        return err_set(e, E_SYS, "cannot make the folder %.200s: %s", folder, strerror(errno));
    for (int s = SERIES_THROUGHPUT; s <= SERIES_KV; s++)
        TRY(plot_series(r, (enum series)s, folder, e));
    static const enum tally_latency shown[] = {TALLY_TTFT, TALLY_TPOT, TALLY_COMPLETION};
    for (int i = 0; i < 3; i++)
        TRY(plot_distribution(r, shown[i], folder, e));
    TRY(r->setup->recorded ? plot_recorded_pool(r, folder, e) : plot_pool(r, folder, e));
    return plot_layouts(r, folder, e);
}
