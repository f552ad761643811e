#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/lab/plot_inner.h"

enum { POOL_STRIP = 44, POOL_LANE = 12, STYLE_REST = 6, STYLE_FFN = 0, STYLE_CAS = 3, STYLE_FETCH = 5 };
static const double MS = 1e-6;

static double most(double a, double b)
{
    return a > b ? a : b;
}

/* A layer's parts in one lane, its fetch in the lane below. What is waited for stays empty. */
static void put_pool_layer(struct chart *c, const struct sim_pool_layer *x, int y)
{
    double from = x->fetch_begin > 0 ? x->fetch_begin : 0, gap = 0.06 * (x->fetch_end - x->fetch_begin);
    chart_bar(c, STYLE_REST, x->begin * MS, x->ready * MS, y, POOL_LANE);
    chart_bar(c, x->mode == FFN_CAS ? STYLE_CAS : STYLE_FFN, x->ffn * MS, x->end * MS, y, POOL_LANE);
    if (x->mode == FFN_WAS && x->fetch_end > from)
        chart_bar(c, STYLE_FETCH, from * MS, (x->fetch_end - gap) * MS, y + POOL_LANE + 2, POOL_LANE);
}

struct pool_strip {
    struct sim_pool_layer layers[FFN_MAX_LAYERS];
    int n; /* 0: there is none */
    char label[CHART_TEXT];
};

static void take_strip(const struct simulate_report *r, int run, int which, struct pool_strip *s)
{
    static const char *const which_step[] = {"the most", "the last step"};
    const struct sim_step *step = &r->runs[run].decodes[which];
    s->n = step->size.rows ? sim_machine_pool(r->setup->described, step, s->layers) : 0;
    snprintf(s->label, sizeof s->label, "rows %d (%s), busy ranks %d", step->size.rows, which_step[which],
             step->size.pool_ranks);
}

/* The frame, for so many strips with labels of this width. */
static void open_frame(struct chart *c, int n, double widest)
{
    c->x.name = "milliseconds from the beginning of the step";
    c->top = PLOT_STRIPS_TOP;
    c->left = widest < PLOT_MOST_LABEL + 20 ? (int)widest : PLOT_MOST_LABEL + 20;
    c->bottom = PLOT_STRIPS_TOP + n * POOL_STRIP + 4;
    chart_add_entry(c, KEY_AREA, STYLE_REST, "attention and all else of a layer");
    chart_add_entry(c, KEY_AREA, STYLE_FFN, "its FFN");
    chart_add_entry(c, KEY_AREA, STYLE_CAS, "its FFN at the owner: rows there, product, back");
    chart_add_entry(c, KEY_AREA, STYLE_FETCH, "a fetch of its FFN weights");
    chart_open(c);
}

static void put_labels(struct chart *c, int y, const char *first, const char *second)
{
    chart_label(c, y + 18, PLOT_MOST_LABEL, first);
    chart_label(c, y + 33, PLOT_MOST_LABEL, second);
}

int plot_pool(const struct simulate_report *r, const char *folder, struct err *e)
{
    struct pool_strip s;
    char caption[400];
    struct chart c = {.title = "Fetches of FFN weights, and products, in one step of a rank", .caption = caption};
    double widest = 0;
    int n = 0;
    for (int i = 0; i < 2 * r->n_runs && r->setup->described; i++) {
        take_strip(r, i / 2, i % 2, &s);
        n += s.n > 0;
        widest = most(widest, most(chart_text_width(s.label), chart_text_width(r->runs[i / 2].label)) + 20);
        if (s.n > 0)
            c.x.max = most(c.x.max, s.layers[s.n - 1].end * MS);
    }
    if (n == 0)
        return 0;
    plot_describe(r, "simulated", caption);
    open_frame(&c, n, widest);
    for (int i = 0, y = PLOT_STRIPS_TOP; i < 2 * r->n_runs; i++) {
        take_strip(r, i / 2, i % 2, &s);
        if (s.n == 0)
            continue;
        put_labels(&c, y, r->runs[i / 2].label, s.label);
        for (int l = 0; l < s.n; l++)
            put_pool_layer(&c, &s.layers[l], y + 9);
        y += POOL_STRIP;
    }
    return plot_save(&c, folder, "pool", e);
}

/* ---- as recorded */

/* One step of one rank. */
struct recorded_strip {
    int64_t start_ns, ns;
    int group, rank, rows;
    int n; /* layers */
    struct ffn_layer_times layers[FFN_MAX_LAYERS];
};

/* Two moments of a recording: the step of most rows, and the last one, each with those that other ranks had meanwhile.
 */
enum { MOMENTS = 2, MOST_STRIPS = 8 };
struct recorded_strips {
    struct recorded_strip chosen[MOMENTS], strips[MOMENTS][MOST_STRIPS];
    int n[MOMENTS];
};

static void copy_strip(struct recorded_strip *s, const struct recorded *x, int n_layers)
{
    *s = (struct recorded_strip){
        .start_ns = x->start_ns, .ns = x->ns, .group = x->group, .rank = x->rank, .rows = x->rows, .n = n_layers};
    memcpy(s->layers, x->layers, (size_t)n_layers * sizeof *s->layers);
}

/* Which steps are shown. */
static void choose(struct recorded_strips *all, const struct recorded *x, int n_layers)
{
    if (all->chosen[0].n == 0 || x->rows > all->chosen[0].rows)
        copy_strip(&all->chosen[0], x, n_layers);
    copy_strip(&all->chosen[1], x, n_layers);
}

/* Those of other ranks at the same time, in the order of the ranks. */
static void gather(struct recorded_strips *all, const struct recorded *x, int n_layers)
{
    for (int m = 0; m < MOMENTS; m++) {
        const struct recorded_strip *chosen = &all->chosen[m];
        struct recorded_strip *strips = all->strips[m];
        int at = 0, *n = &all->n[m];
        if (x->start_ns > chosen->start_ns + chosen->ns || x->start_ns + x->ns < chosen->start_ns)
            continue;
        while (at < *n && strips[at].rank < x->rank)
            at++;
        bool there = at < *n && strips[at].rank == x->rank;
        if (there && strips[at].start_ns == chosen->start_ns)
            continue; /* the chosen one itself stays */
        if (!there && *n == MOST_STRIPS)
            continue;
        if (!there) {
            memmove(&strips[at + 1], &strips[at], (size_t)(*n - at) * sizeof *strips);
            (*n)++;
        }
        copy_strip(&strips[at], x, n_layers);
    }
}

static int each_timeline(const struct recorded_machine *m, struct recorded_strips *all,
                         void (*fn)(struct recorded_strips *, const struct recorded *, int), struct err *e)
{
    struct recording *r = NULL;
    struct recorded x;
    bool end = false;
    TRY(recording_open(&r, m->path, e));
    int rc;
    while (!(rc = recording_next(r, &x, &end, e)) && !end)
        if (x.kind == 'f')
            fn(all, &x, recording_head(r)->ffn.n_layers);
    recording_close(r);
    return rc;
}

/* A bar whose ends are in ns from the frame's left side; what lies outside is cut off. */
static void put_span(struct chart *c, int style, int64_t from, int64_t to, int y)
{
    double x0 = from > 0 ? (double)from * MS : 0, x1 = (double)to * MS < c->x.max ? (double)to * MS : c->x.max;
    if (x1 > x0)
        chart_bar(c, style, x0, x1, y, POOL_LANE);
}

/* later: so long after the frame's beginning the step began. */
static void put_recorded(struct chart *c, const struct recorded_strip *s, int64_t later, int y)
{
    int64_t at = later;
    for (int l = 0; l < s->n; l++) {
        const struct ffn_layer_times *t = &s->layers[l];
        int64_t pause = t->pause ? t->pause : t->end, resume = t->resume ? t->resume : t->end;
        if (!t->end)
            continue;
        put_span(c, STYLE_REST, at, t->ready + later, y);
        put_span(c, t->mode == FFN_CAS ? STYLE_CAS : STYLE_FFN, t->begin + later, pause + later, y);
        put_span(c, STYLE_FFN, resume + later, t->end + later, y);
        if (t->mode == FFN_WAS)
            put_span(c, STYLE_FETCH, t->fetch_begin + later,
                     t->fetch_end + later - (t->fetch_end - t->fetch_begin) / 16, y + POOL_LANE + 2);
        at = t->end + later;
    }
}

static int draw_recorded(const struct simulate_report *r, const struct recorded_strips *all, const char *folder,
                         struct err *e)
{
    static const char *const which[] = {"the most rows", "the last step"};
    char caption[400], label[CHART_TEXT];
    struct chart c = {.title = "Fetches of FFN weights, and products, as measured on ranks", .caption = caption};
    for (int m = 0; m < MOMENTS; m++)
        c.x.max = most(c.x.max, (double)all->chosen[m].ns * MS);
    plot_describe(r, "measured", caption);
    open_frame(&c, all->n[0] + all->n[1], chart_text_width("rank 63, group 1000000: rows 10000") + 20);
    for (int m = 0, y = PLOT_STRIPS_TOP; m < MOMENTS; m++)
        for (int i = 0; i < all->n[m]; i++, y += POOL_STRIP) {
            const struct recorded_strip *s = &all->strips[m][i];
            snprintf(label, sizeof label, "rank %d, group %d: rows %d", s->rank, s->group, s->rows);
            put_labels(&c, y, which[m], label);
            put_recorded(&c, s, s->start_ns - all->chosen[m].start_ns, y + 9);
        }
    return plot_save(&c, folder, "pool", e);
}

int plot_recorded_pool(const struct simulate_report *r, const char *folder, struct err *e)
{
    struct recorded_strips *all;
    if (!r->setup->recorded->head->facts.ffn)
        return 0;
    all = mem_new(sizeof *all);
    int rc = each_timeline(r->setup->recorded, all, choose, e);
    if (!rc && all->chosen[0].n)
        rc = each_timeline(r->setup->recorded, all, gather, e);
    if (!rc && all->chosen[0].n)
        rc = draw_recorded(r, all, folder, e);
    mem_free(all);
    return rc;
}
