#include "engine/front/plot.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/base/file.h"
#include "engine/front/portable_math.h"

/* Sizes in pixels: the picture, and the frame of the data in it. */
enum { WIDTH = 900, HEIGHT = 380, LEFT = 80, TOP = 40, RIGHT = 880, BOTTOM = 310, MAX_POINTS = 800, STRIP = 26 };

static const char *const colours[] = {"#1f77b4", "#d62728", "#2ca02c", "#ff7f0e", "#9467bd", "#8c564b", "#17becf", "#7f7f7f"};
enum { N_COLOURS = sizeof colours / sizeof *colours };

static const char svg_name[] = "http:" "//www.w3.org/2000/svg"; /* the name of the format: nothing is fetched from there */

struct axis {
    double min, max;
    bool is_log;
    const char *name;
};

struct chart {
    struct buf svg;
    struct axis x, y;
};

/* ---- the frame */

static void put_escaped(struct buf *out, const char *text)
{
    for (; *text; text++) {
        if (*text == '<' || *text == '>' || *text == '&')
            buf_printf(out, "&#%d;", *text);
        else if ((unsigned char)*text >= ' ')
            buf_putc(out, *text);
    }
}

static void put_text(struct buf *out, double x, double y, const char *anchor, const char *text)
{
    buf_printf(out, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">", x, y, anchor);
    put_escaped(out, text);
    buf_puts(out, "</text>\n");
}

static double share(const struct axis *a, double v) /* of the axis's length */
{
    double s = a->is_log ? (portable_ln(v) - portable_ln(a->min)) / (portable_ln(a->max) - portable_ln(a->min)) : (v - a->min) / (a->max - a->min);
    return s < 0 ? 0 : s > 1 ? 1 : s;
}

static double at_x(const struct chart *c, double v)
{
    return LEFT + share(&c->x, v) * (RIGHT - LEFT);
}

static double at_y(const struct chart *c, double v)
{
    return BOTTOM - share(&c->y, v) * (BOTTOM - TOP);
}

/* 1, 2 or 5 times a power of ten, so that about five steps make v. */
static double nice_step(double v)
{
    double step = 1e-9;
    static const double factors[] = {2, 2.5, 2};
    for (int i = 0; step * 6 < v && i < 100; i++)
        step *= factors[i % 3];
    return step;
}

static void put_tick(struct chart *c, bool is_x, double v)
{
    char label[32];
    double x = is_x ? at_x(c, v) : LEFT, y = is_x ? BOTTOM : at_y(c, v);
    snprintf(label, sizeof label, "%.6g", v);
    buf_printf(&c->svg, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"#ddd\"/>\n", x, y, is_x ? x : (double)RIGHT, is_x ? (double)TOP : y);
    put_text(&c->svg, is_x ? x : LEFT - 6, is_x ? BOTTOM + 16 : y + 4, is_x ? "middle" : "end", label);
}

static void put_ticks(struct chart *c, bool is_x)
{
    const struct axis *a = is_x ? &c->x : &c->y;
    if (a->is_log) {
        for (double v = 1e-6; v <= a->max; v *= 10)
            if (v >= a->min)
                put_tick(c, is_x, v);
        return;
    }
    double step = nice_step(a->max - a->min);
    for (int i = 0; a->min + i * step <= a->max * 1.0001 && i < 12; i++)
        put_tick(c, is_x, a->min + i * step);
}

static void svg_open(struct buf *out, int height, const char *title)
{
    buf_printf(out, "<svg xmlns=\"%s\" width=\"%d\" height=\"%d\" font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n",
               svg_name, WIDTH, height);
    buf_printf(out, "<g font-size=\"15\">");
    put_text(out, LEFT, 24, "start", title);
    buf_puts(out, "</g>\n");
}

static void chart_open(struct chart *c, const char *title)
{
    if (c->x.max <= c->x.min)
        c->x.max = c->x.is_log ? c->x.min * 10 : c->x.min + 1;
    if (c->y.max <= c->y.min)
        c->y.max = c->y.min + 1;
    svg_open(&c->svg, HEIGHT, title);
    put_ticks(c, true);
    put_ticks(c, false);
    buf_printf(&c->svg, "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" fill=\"none\" stroke=\"#444\"/>\n", LEFT, TOP, RIGHT - LEFT, BOTTOM - TOP);
    put_text(&c->svg, (LEFT + RIGHT) / 2.0, BOTTOM + 36, "middle", c->x.name);
    buf_printf(&c->svg, "<g transform=\"rotate(-90 18 %d)\">", (TOP + BOTTOM) / 2);
    put_text(&c->svg, 18, (TOP + BOTTOM) / 2.0, "middle", c->y.name);
    buf_puts(&c->svg, "</g>\n");
}

static void put_legend(struct buf *out, int i, int y, const char *text)
{
    int x = LEFT + i % 4 * 200;
    buf_printf(out, "<rect x=\"%d\" y=\"%d\" width=\"14\" height=\"10\" fill=\"%s\"/>\n", x, y + i / 4 * 16 - 9, colours[i % N_COLOURS]);
    put_text(out, x + 20, y + i / 4 * 16, "start", text);
}

static int save(struct buf *svg, const char *folder, const char *name, struct err *e)
{
    char path[PATH_MAX];
    buf_puts(svg, "</svg>\n");
    int rc = snprintf(path, sizeof path, "%s/%s.svg", folder, name) < (int)sizeof path ? file_replace(path, svg->data, svg->len, e)
                                                                                       : err_set(e, E_INPUT, "--plots: the path is too long");
    buf_free(svg);
    return rc;
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
static void put_series(struct chart *c, const struct simulate_run *run, enum series what, const char *colour)
{
    size_t n = run->replay.n_bins, per = n / MAX_POINTS + 1;
    buf_printf(&c->svg, "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"1.5\" points=\"", colour);
    for (size_t i = 0; i < n; i += per) {
        double sum = 0;
        size_t k = 0;
        for (; k < per && i + k < n; k++)
            sum += series_value(run, what, i + k);
        buf_printf(&c->svg, "%.1f,%.1f ", at_x(c, (double)i * (double)run->replay.bin_ns * 1e-9), at_y(c, sum / (double)k));
    }
    buf_puts(&c->svg, "\"/>\n");
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

static int plot_series(const struct simulate_report *r, enum series what, const char *folder, struct err *e)
{
    static const char *const files[] = {"throughput", "queue", "kv"};
    static const char *const titles[] = {"Throughput as clients saw it", "Requests in the system", "KV cache in use, fullest rank"};
    static const char *const units[] = {"tokens/s", "running and waiting", "%"};
    struct chart c = {.x = {.max = longest_s(r), .name = "seconds"}, .y = {.name = units[what]}};
    for (int i = 0; i < r->n_runs; i++)
        for (size_t k = 0; k < r->runs[i].replay.n_bins; k++) {
            double v = series_value(&r->runs[i], what, k);
            c.y.max = v > c.y.max ? v : c.y.max;
        }
    chart_open(&c, titles[what]);
    for (int i = 0; i < r->n_runs; i++) {
        put_series(&c, &r->runs[i], what, colours[i % N_COLOURS]);
        put_legend(&c.svg, i, HEIGHT - 18, r->runs[i].label);
    }
    return save(&c.svg, folder, files[what], e);
}

/* ---- distributions */

static void put_distribution(struct chart *c, const struct simulate_run *run, enum tally_latency l, const char *colour)
{
    size_t n = run->tally.n[l], points = n < MAX_POINTS ? n : MAX_POINTS;
    buf_printf(&c->svg, "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"1.5\" points=\"", colour);
    for (size_t i = 1; i <= points; i++) {
        size_t rank = i * n / points;
        double ms = (double)run->tally.sorted[l][rank - 1] * 1e-6;
        buf_printf(&c->svg, "%.1f,%.1f ", at_x(c, ms > c->x.min ? ms : c->x.min), at_y(c, 100 * (double)rank / (double)n));
    }
    buf_puts(&c->svg, "\"/>\n");
}

static int plot_distribution(const struct simulate_report *r, enum tally_latency l, const char *folder, struct err *e)
{
    static const char *const titles[] = {"Time to first token", "Time per output token", "Queue time", "Completion time"};
    struct chart c = {.x = {.min = 1e12, .is_log = true, .name = "milliseconds"}, .y = {.max = 100, .name = "% of requests"}};
    for (int i = 0; i < r->n_runs; i++) {
        const struct tally *t = &r->runs[i].tally;
        double low = (double)tally_percentile(t, l, 1) * 1e-6, high = (double)tally_percentile(t, l, 100) * 1e-6;
        c.x.min = low > 0 && low < c.x.min ? low : c.x.min;
        c.x.max = high > c.x.max ? high : c.x.max;
    }
    if (c.x.min > c.x.max)
        c.x.min = c.x.max > 0 ? c.x.max / 10 : 1;
    chart_open(&c, titles[l]);
    for (int i = 0; i < r->n_runs; i++) {
        put_distribution(&c, &r->runs[i], l, colours[i % N_COLOURS]);
        put_legend(&c.svg, i, HEIGHT - 18, r->runs[i].label);
    }
    return save(&c.svg, folder, tally_name(l), e);
}

/* ---- layouts */

/* Layouts by their widths: the colour of one is its number in a list shared by all runs. */
struct kinds {
    struct kind {
        int sp, tp;
    } items[REPLAY_MAX_LAYOUTS];
    int n;
};

static int kind_of(struct kinds *k, struct layout l)
{
    int i = 0;
    while (i < k->n && (k->items[i].sp != l.sp || k->items[i].tp != l.tp))
        i++;
    if (i == k->n && k->n < REPLAY_MAX_LAYOUTS)
        k->items[k->n++] = (struct kind){l.sp, l.tp};
    return i < k->n ? i : k->n - 1;
}

static int bin_kind(struct kinds *k, const struct replay *p, size_t i) /* -1: nothing ran */
{
    return p->bins[i].layout < 0 ? -1 : kind_of(k, p->layouts[p->bins[i].layout].layout);
}

static void put_strip(struct chart *c, struct kinds *k, const struct simulate_run *run, int y)
{
    const struct replay *p = &run->replay;
    double bin_s = (double)p->bin_ns * 1e-9;
    put_text(&c->svg, LEFT - 6, y + STRIP / 2.0, "end", run->label);
    for (size_t i = 0, end; i < p->n_bins; i = end) { /* a rectangle for each stretch of one colour */
        int kind = bin_kind(k, p, i);
        for (end = i + 1; end < p->n_bins && bin_kind(k, p, end) == kind;)
            end++;
        double x0 = at_x(c, (double)i * bin_s), x1 = at_x(c, (double)end * bin_s);
        if (kind >= 0)
            buf_printf(&c->svg, "<rect x=\"%.2f\" y=\"%d\" width=\"%.2f\" height=\"%d\" fill=\"%s\"/>\n", x0, y, x1 - x0, STRIP - 8, colours[kind % N_COLOURS]);
    }
}

static int plot_layouts(const struct simulate_report *r, const char *folder, struct err *e)
{
    struct kinds k = {0};
    struct chart c = {.x = {.max = longest_s(r)}};
    int bottom = TOP + r->n_runs * STRIP;
    char label[64];
    c.x.max = c.x.max > 0 ? c.x.max : 1;
    for (int i = 0; i < r->n_runs; i++)
        for (size_t b = 0; b < r->runs[i].replay.n_bins; b++)
            bin_kind(&k, &r->runs[i].replay, b);
    svg_open(&c.svg, bottom + 60 + (k.n + 3) / 4 * 16, "Layout of most tokens");
    for (int i = 0; i < r->n_runs; i++)
        put_strip(&c, &k, &r->runs[i], TOP + i * STRIP);
    for (double s = 0, step = nice_step(c.x.max); s <= c.x.max; s += step) {
        snprintf(label, sizeof label, "%.6g s", s);
        put_text(&c.svg, at_x(&c, s), bottom + 14, "middle", label);
    }
    for (int i = 0; i < k.n; i++) {
        snprintf(label, sizeof label, "sp %d, tp %d", k.items[i].sp, k.items[i].tp);
        put_legend(&c.svg, i, bottom + 40, label);
    }
    return save(&c.svg, folder, "layouts", e);
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
    return plot_layouts(r, folder, e);
}
