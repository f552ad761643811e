#include "engine/lab/chart.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/utf8.h"
#include "engine/lab/trace/portable_math.h"

/* Pixels. */
enum { LEFT = 80, TOP = 62, BOTTOM = 332, RIGHT = CHART_WIDTH - 20, ROW = 18, KEY = 46, GAP = 20, N_MARKS = 6 };
static const double CHARACTER = 7.4; /* of a wide sans-serif font at 12 pixels, seldom passed by a whole text */

/* Eight colours that colour-blind readers can tell apart (Okabe and Ito), each with a dash and a mark: the first is
 * solid and lies below. */
static const struct style {
    const char *colour, *dash;
    const char *mark; /* a path around 0, 0 */
} styles[CHART_STYLES] = {
    {"#0072b2", "none", "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0z"},
    {"#d55e00", "9 4", "M-3.5 -3.5h7v7h-7z"},
    {"#009e73", "3 3", "M0 -4.5l4.5 8h-9z"},
    {"#cc79a7", "12 3 3 3", "M0 -5l5 5l-5 5l-5 -5z"},
    {"#000000", "6 6", "M-4 -4l8 8M-4 4l8 -8"},
    {"#e69f00", "14 6", "M0 4.5l4.5 -8h-9z"},
    {"#56b4e9", "6 3 2 3 2 3", "M-5 0h10M0 -5v10"},
    {"#7f7f7f", "2 5", "M-4 -4h8l-8 8h8z"},
};

static const char svg_name[] = "http:"
                               "//www.w3.org/2000/svg"; /* the name of the format: nothing is fetched from there */

/* ---- text */

static int count_characters(const char *text)
{
    int n = 0;
    for (; *text; text++)
        n += ((unsigned char)*text & 0xc0) != 0x80;
    return n;
}

double chart_text_width(const char *text)
{
    return CHARACTER * count_characters(text);
}

/* At most `most` characters of it, the last of them an ellipsis where there were more. */
static void put_escaped(struct buf *out, const char *text, int most)
{
    bool cut = count_characters(text) > most;
    for (int n = 0; *text; text++) {
        n += ((unsigned char)*text & 0xc0) != 0x80;
        if (cut && n == most) {
            buf_puts(out, "\xe2\x80\xa6");
            return;
        }
        if (*text == '<' || *text == '>' || *text == '&' || *text == '"')
            buf_printf(out, "&#%d;", *text);
        else if ((unsigned char)*text >= ' ')
            buf_putc(out, *text);
    }
}

struct place {
    double x, y, width; /* width: pixels that there are; 0: as long as it is */
    const char *anchor, *class;
};

static void put_text(struct buf *out, struct place p, const char *text)
{
    int most = p.width > 0 ? (int)(p.width / CHARACTER) : 1 << 20;
    buf_printf(out, "<text class=\"%s\" x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">", p.class, p.x, p.y, p.anchor);
    if (count_characters(text) > most) {
        buf_puts(out, "<title>");
        put_escaped(out, text, 1 << 20);
        buf_puts(out, "</title>");
    }
    put_escaped(out, text, most);
    buf_puts(out, "</text>\n");
}

/* ---- axes */

static double share(const struct chart_axis *a, double v) /* of the axis's length */
{
    double s = a->is_log ? (portable_ln(v) - portable_ln(a->min)) / (portable_ln(a->max) - portable_ln(a->min))
                         : (v - a->min) / (a->max - a->min);
    return s < 0 ? 0 : s > 1 ? 1 : s;
}

static double at_x(const struct chart *c, double v)
{
    return c->left + share(&c->x, c->x.is_log && v < c->x.min ? c->x.min : v) * (RIGHT - c->left);
}

static double at_y(const struct chart *c, double v)
{
    return c->bottom - share(&c->y, v) * (c->bottom - c->top);
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

enum { MOST_TICKS = 24 };

/* The numbers of a logarithmic axis that are some of 1 to 9 times a power of ten. */
static int log_ticks(const struct chart_axis *a, const char *digits, double *out)
{
    int n = 0;
    for (double decade = 1e-9; decade <= a->max && n < MOST_TICKS; decade *= 10)
        for (const char *d = digits; *d && n < MOST_TICKS; d++) {
            double v = (*d - '0') * decade;
            if (v >= a->min * 0.999999 && v <= a->max * 1.000001)
                out[n++] = v;
        }
    return n;
}

static int linear_ticks(const struct chart_axis *a, double *out)
{
    double step = nice_step(a->max - a->min), first = ceil(a->min / step - 1e-6) * step;
    int n = 0;
    for (; first + n * step <= a->max + step * 1e-6 && n < MOST_TICKS; n++)
        out[n] = first + n * step;
    return n;
}

/* Powers of ten where there are three of them, else finer numbers, so that no axis goes without. */
static int find_ticks(const struct chart_axis *a, double *out)
{
    static const char *const sets[] = {"1", "13", "125", "1234567"};
    for (int i = 0; i < 4 && a->is_log; i++) {
        int n = log_ticks(a, sets[i], out);
        if (n >= (i ? 4 : 3))
            return n;
    }
    return linear_ticks(a, out);
}

static void put_tick(struct chart *c, bool is_x, double v)
{
    char label[32];
    double x = is_x ? at_x(c, v) : c->left, y = is_x ? c->bottom : at_y(c, v);
    snprintf(label, sizeof label, "%.6g", fabs(v) < 1e-12 ? 0 : v);
    buf_printf(&c->svg, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"#ddd\"/>\n", x, y,
               is_x ? x : (double)RIGHT, is_x ? (double)c->top : y);
    put_text(&c->svg,
             (struct place){is_x ? x : c->left - 6, is_x ? c->bottom + 16 : y + 4, 0, is_x ? "middle" : "end",
                            is_x ? "tick-x" : "tick-y"},
             label);
}

static void put_ticks(struct chart *c, bool is_x)
{
    double ticks[MOST_TICKS];
    int n = find_ticks(is_x ? &c->x : &c->y, ticks);
    for (int i = 0; i < n; i++)
        put_tick(c, is_x, ticks[i]);
}

/* Never empty; to the next tick outwards, but for a linear x: time ends when it ends. */
static void round_axis(struct chart_axis *a, bool is_x)
{
    if (a->is_log) {
        a->min = a->min > 1e-6 ? a->min : 1e-6;
        a->max = (a->max > a->min ? a->max : a->min) * 1.1;
        a->min /= 1.1;
        return;
    }
    if (a->max <= a->min)
        a->max = a->min + 1;
    double step = nice_step(a->max - a->min);
    if (!is_x)
        a->max = ceil(a->max / step - 1e-9) * step;
}

/* ---- the legend */

void chart_add_entry(struct chart *c, enum chart_key key, int style, const char *text)
{
    if (c->n_entries == CHART_MOST_ENTRIES)
        return;
    struct chart_entry *e = &c->entries[c->n_entries++];
    *e = (struct chart_entry){.key = key, .style = style};
    snprintf(e->text, sizeof e->text, "%s", text);
    e->text[utf8_whole(e->text, strlen(e->text))] = 0;
}

static double entry_width(const struct chart_entry *e)
{
    double w = KEY + chart_text_width(e->text) + GAP;
    return w < RIGHT - 20 ? w : RIGHT - 20;
}

static void put_mark(struct buf *out, int style, double x, double y)
{
    const struct style *s = &styles[style % CHART_STYLES];
    buf_printf(out,
               "<path class=\"mark\" d=\"%s\" transform=\"translate(%.1f %.1f)\" fill=\"white\" stroke=\"%s\" "
               "stroke-width=\"1.5\"/>\n",
               s->mark, x, y, s->colour);
}

/* Colours come again after the eighth, hatched by a dashed edge. */
static void put_area(struct buf *out, int style, const double box[4], const char *class)
{
    buf_printf(out, "<rect class=\"%s\" x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%.1f\" fill=\"%s\"", class,
               box[0], box[1], box[2], box[3], styles[style % CHART_STYLES].colour);
    buf_puts(out,
             style >= CHART_STYLES ? " fill-opacity=\"0.35\" stroke=\"black\" stroke-dasharray=\"2 2\"/>\n" : "/>\n");
}

static void put_key(struct buf *out, const struct chart_entry *e, double x, double y)
{
    const struct style *s = &styles[e->style % CHART_STYLES];
    switch (e->key) {
    case KEY_LINE:
        buf_printf(out,
                   "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"%s\" stroke-width=\"2\" "
                   "stroke-dasharray=\"%s\"/>\n",
                   x, y, x + KEY - 6, y, s->colour, s->dash);
        put_mark(out, e->style, x + (KEY - 6) / 2.0, y);
        break;
    case KEY_AREA:
        put_area(out, e->style, (double[]){x + 12, y - 6, KEY - 20, 11}, "key");
        break;
    case KEY_SWITCH:
        buf_printf(out, "<path d=\"M%.1f %.1fl-3.5 -6h7z\" fill=\"black\"/>\n", x + KEY - 12.0, y + 4);
        break;
    case KEY_LIMIT:
        buf_printf(out,
                   "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"#b00\" stroke-dasharray=\"5 3\"/>\n",
                   x, y, x + KEY - 6, y);
        break;
    }
}

/* From left to right, a new row where one does not fit. out NULL: only the number of rows. */
static int put_legend(const struct chart *c, struct buf *out, double y)
{
    double x = 20;
    int rows = c->n_entries > 0;
    for (int i = 0; i < c->n_entries; i++) {
        const struct chart_entry *e = &c->entries[i];
        double w = entry_width(e);
        if (x > 20 && x + w - GAP > RIGHT) {
            x = 20;
            rows++;
        }
        double at = y + (rows - 1) * ROW;
        if (out) {
            put_key(out, e, x, at - 4);
            put_text(out, (struct place){x + KEY, at, w - KEY, "start", "legend"}, e->text);
        }
        x += w;
    }
    return rows;
}

/* ---- the frame */

static void put_names(struct chart *c)
{
    put_text(&c->svg, (struct place){(c->left + RIGHT) / 2.0, c->bottom + 36, 0, "middle", "name"}, c->x.name);
    if (!c->y.name)
        return;
    buf_printf(&c->svg, "<g transform=\"rotate(-90 18 %d)\">", (c->top + c->bottom) / 2);
    put_text(&c->svg, (struct place){18, (c->top + c->bottom) / 2.0, 0, "middle", "name"}, c->y.name);
    buf_puts(&c->svg, "</g>\n");
}

void chart_open(struct chart *c)
{
    c->left = c->left ? c->left : LEFT;
    c->top = c->top ? c->top : TOP;
    c->bottom = c->bottom ? c->bottom : BOTTOM;
    int height = c->bottom + 62 + put_legend(c, NULL, 0) * ROW;
    round_axis(&c->x, true);
    round_axis(&c->y, false);
    buf_printf(&c->svg,
               "<svg xmlns=\"%s\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" font-family=\"sans-serif\" "
               "font-size=\"12\">\n",
               svg_name, CHART_WIDTH, height, CHART_WIDTH, height);
    buf_puts(&c->svg, "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n<g font-size=\"15\">");
    put_text(&c->svg, (struct place){20, 24, 0, "start", "title"}, c->title);
    buf_puts(&c->svg, "</g>\n<g fill=\"#666\">");
    put_text(&c->svg, (struct place){20, 42, RIGHT - 20, "start", "caption"}, c->caption ? c->caption : "");
    buf_puts(&c->svg, "</g>\n");
    put_ticks(c, true);
    if (c->y.name)
        put_ticks(c, false);
    buf_printf(&c->svg,
               "<rect class=\"frame\" x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" fill=\"none\" stroke=\"#444\"/>\n",
               c->left, c->top, RIGHT - c->left, c->bottom - c->top);
    put_names(c);
    put_legend(c, &c->svg, c->bottom + 62);
}

/* ---- what is in it */

/* Marks are spread over the line, each style's a little after those of the one before: of lines that lie on one another
 * all marks are seen. */
void chart_line(struct chart *c, int style, int n_styles, const struct chart_point *points, int n)
{
    const struct style *s = &styles[style % CHART_STYLES];
    buf_printf(
        &c->svg,
        "<polyline class=\"run\" fill=\"none\" stroke=\"%s\" stroke-width=\"1.8\" stroke-dasharray=\"%s\" points=\"",
        s->colour, s->dash);
    for (int i = 0; i < n; i++)
        buf_printf(&c->svg, "%.1f,%.1f ", at_x(c, points[i].x), at_y(c, points[i].y));
    buf_puts(&c->svg, "\"/>\n");
    for (int k = 0; k < N_MARKS && n > 0; k++) { /* between two points, where there are few */
        double at = (k + (style + 0.5) / n_styles) / N_MARKS * (n - 1), part = at - floor(at);
        const struct chart_point *a = &points[(int)at], *b = a + ((int)at + 1 < n);
        put_mark(&c->svg, style, at_x(c, a->x) * (1 - part) + at_x(c, b->x) * part,
                 at_y(c, a->y) * (1 - part) + at_y(c, b->y) * part);
    }
}

void chart_bar(struct chart *c, int style, double x0, double x1, int y, int height)
{
    double from = at_x(c, x0);
    put_area(&c->svg, style, (double[]){from, y, at_x(c, x1) - from, height}, "bar");
}

void chart_switch(struct chart *c, int style, double x, int y, int height)
{
    const char *colour = style < 0 ? "black" : styles[style % CHART_STYLES].colour;
    double at = at_x(c, x);
    buf_printf(&c->svg, "<path class=\"switch\" d=\"M%.1f %dl-3 -%dh6z\" fill=\"%s\"/>\n", at, y + height, height,
               colour);
}

void chart_limit(struct chart *c, double x, const char *text)
{
    double at = at_x(c, x);
    bool left = at + chart_text_width(text) + 6 > RIGHT;
    buf_printf(&c->svg,
               "<line class=\"slo\" x1=\"%.1f\" y1=\"%d\" x2=\"%.1f\" y2=\"%d\" stroke=\"#b00\" stroke-dasharray=\"5 "
               "3\"/>\n<g fill=\"#b00\">",
               at, c->top, at, c->bottom);
    put_text(&c->svg, (struct place){left ? at - 4 : at + 4, c->bottom - 6, 0, left ? "end" : "start", "slo"}, text);
    buf_puts(&c->svg, "</g>\n");
}

void chart_label(struct chart *c, int y, int width, const char *text)
{
    put_text(&c->svg, (struct place){c->left - 6, y, width, "end", "label"}, text);
}

void chart_close(struct chart *c)
{
    buf_puts(&c->svg, "</svg>\n");
}
