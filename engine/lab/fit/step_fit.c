#include "engine/lab/fit/step_fit.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "engine/lab/fit/linear.h"
#include "engine/lab/fit/spells.h"

enum { MOST_STEPS = 1 << 19, ENOUGH = 32, MANY = 256 };
/* Sizes that only ran while the machine was slow must not be taken for slow sizes: what the time explains is taken out
 * first, by the lines alone, and what regions and time explain is parted in turns from there. */
enum { LINE_ROUNDS = 4, REGION_ROUNDS = 3 };
/* A region ends where predictions are so many times those that it began with: the sooner, the more steps it has, as the
 * factor of few is luck. */
static const double NARROW = 1.12, WIDE = 1.41, VERY_WIDE = 8;
/* Of what was measured: the largest prediction by which a step may be larger, or the smallest be smaller. */
static const double BEYOND = 1.5;

/* Steps of one layout. */
struct form {
    struct layout layout;
    bool cas;
    struct linear line;
    size_t n;
};

/* Of one form, those with so many groups beside them: regions [from, to). */
struct setting {
    int form, beside;
    size_t from, to;
    double least, largest; /* predictions of the form */
};

struct region {
    size_t from, to; /* places in the order */
    double until;    /* predictions of the form below this are its own */
    double factor;
    size_t lags, lags_end;
};

/* Steps in the order of their regions. */
struct ranked {
    int form, beside;
    double line; /* what the form predicts */
    uint32_t step;
};

struct step_fit {
    struct fit_step *steps; /* until step_fit_end, and so is slow */
    double *slow;           /* [n] how slow the machine was at each of them */
    size_t n, cap;
    uint64_t n_added;
    double head_share;
    int thinning; /* of 2^so many steps one is kept */
    struct form *forms;
    struct setting *settings;
    struct region *regions;
    int n_forms;
    size_t n_settings, n_regions, n_lags;
    struct spells spells;
    double *weights; /* [n] in order: predictions, summed up within the region */
    float *ratios;   /* [n] in order: measured / predicted */
    int64_t *lags;   /* [n_lags] by region */
    struct fit_quality quality;
};

static void *grown(void *old, size_t n, size_t *cap, size_t size)
{
    if (n < *cap)
        return old;
    *cap = *cap ? *cap * 2 : 1024;
    return mem_resize(old, *cap, size);
}

/* ---- steps */

struct step_fit *step_fit_new(double head_share)
{
    struct step_fit *f = mem_new(sizeof *f);
    f->head_share = head_share;
    return f;
}

void step_fit_free(struct step_fit *f)
{
    if (!f)
        return;
    spells_free(&f->spells);
    mem_free(f->steps);
    mem_free(f->slow);
    mem_free(f->forms);
    mem_free(f->settings);
    mem_free(f->regions);
    mem_free(f->weights);
    mem_free(f->ratios);
    mem_free(f->lags);
    mem_free(f);
}

/* By a hash of its number, so that no rhythm of the steps is picked out. */
static bool is_kept(uint64_t number, int thinning)
{
    return (rng_at(0, number) & ((UINT64_C(1) << thinning) - 1)) == 0;
}

/* Twice as few are kept from now on, and of those that are there. */
static void thin_out(struct step_fit *f)
{
    size_t kept = 0;
    uint64_t number = 0;
    for (size_t i = 0; i < f->n; number++) {
        if (!is_kept(number, f->thinning))
            continue;
        if (is_kept(number, f->thinning + 1))
            f->steps[kept++] = f->steps[i];
        i++;
    }
    f->n = kept;
    f->thinning++;
}

void step_fit_add(struct step_fit *f, const struct fit_step *s)
{
    ASSERT(!f->forms && s->ns > 0);
    uint64_t number = f->n_added++;
    if (!is_kept(number, f->thinning))
        return;
    f->steps = grown(f->steps, f->n, &f->cap, sizeof *f->steps);
    f->steps[f->n++] = *s;
    if (f->n == MOST_STEPS)
        thin_out(f);
}

/* ---- forms */

static const struct form *find_form(const struct step_fit *f, struct layout l, bool cas)
{
    for (int i = 0; i < f->n_forms; i++)
        if (layout_equal(f->forms[i].layout, l) && f->forms[i].cas == cas)
            return &f->forms[i];
    return NULL;
}

static int form_of(struct step_fit *f, const struct fit_step *s, size_t *cap)
{
    const struct form *there = find_form(f, s->layout, s->cas);
    if (there)
        return (int)(there - f->forms);
    f->forms = grown(f->forms, (size_t)f->n_forms, cap, sizeof *f->forms);
    f->forms[f->n_forms] = (struct form){.layout = s->layout, .cas = s->cas, .line.head_share = f->head_share};
    return f->n_forms++;
}

static int by_region(const void *x, const void *y)
{
    const struct ranked *a = x, *b = y;
    if (a->form != b->form)
        return a->form < b->form ? -1 : 1;
    if (a->beside != b->beside)
        return a->beside < b->beside ? -1 : 1;
    if (a->line < b->line || a->line > b->line)
        return a->line < b->line ? -1 : 1;
    return a->step < b->step ? -1 : a->step > b->step;
}

static void find_forms(struct step_fit *f, struct ranked *order)
{
    size_t cap = 0;
    for (size_t i = 0; i < f->n; i++) {
        order[i] =
            (struct ranked){.form = form_of(f, &f->steps[i], &cap), .beside = f->steps[i].beside, .step = (uint32_t)i};
        f->forms[order[i].form].n++;
    }
}

/* order: by step. */
static void fit_lines(struct step_fit *f, struct ranked *order, bool find_knots)
{
    uint32_t *which = mem_new_array(f->n, sizeof *which);
    for (int k = 0; k < f->n_forms; k++) {
        size_t n = 0;
        for (size_t i = 0; i < f->n; i++)
            if (order[i].form == k)
                which[n++] = order[i].step;
        if (find_knots)
            linear_find_knot(&f->forms[k].line, f->steps, f->slow, which, n);
        linear_fit(&f->forms[k].line, f->steps, f->slow, which, n);
    }
    for (size_t i = 0; i < f->n; i++)
        order[i].line = linear_ns(&f->forms[order[i].form].line, &f->steps[order[i].step]);
    mem_free(which);
}

/* ---- regions */

/* Does a region that began at `from` end before i? Equal predictions are never parted. */
static bool ends_before(const struct ranked *order, size_t from, size_t i)
{
    double wide = i - from >= MANY ? NARROW : i - from >= ENOUGH ? WIDE : VERY_WIDE;
    return order[i].line > wide * order[from].line && order[i].line > order[i - 1].line;
}

static void add_region(struct step_fit *f, const struct ranked *order, size_t from, size_t to, size_t *cap)
{
    struct setting *s = &f->settings[f->n_settings - 1];
    bool more = to < f->n && order[to].form == s->form && order[to].beside == s->beside;
    f->regions = grown(f->regions, f->n_regions, cap, sizeof *f->regions);
    f->regions[f->n_regions++] = (struct region){
        .from = from, .to = to, .factor = 1, .until = more ? 0.5 * (order[to - 1].line + order[to].line) : INFINITY};
    s->to = f->n_regions;
    s->largest = order[to - 1].line;
}

static void cut_regions(struct step_fit *f, const struct ranked *order)
{
    size_t cap_settings = 0, cap_regions = 0;
    for (size_t from = 0, i = 1; i <= f->n; i++) {
        bool same = i < f->n && order[i].form == order[from].form && order[i].beside == order[from].beside;
        if (same && !ends_before(order, from, i))
            continue;
        const struct setting *last = f->n_settings ? &f->settings[f->n_settings - 1] : NULL;
        if (!last || last->form != order[from].form || last->beside != order[from].beside) {
            f->settings = grown(f->settings, f->n_settings, &cap_settings, sizeof *f->settings);
            f->settings[f->n_settings++] = (struct setting){.form = order[from].form,
                                                            .beside = order[from].beside,
                                                            .from = f->n_regions,
                                                            .least = order[from].line};
        }
        add_region(f, order, from, i, &cap_regions);
        from = i;
    }
}

/* Makes every region's total right. */
static void calibrate(struct step_fit *f, const struct ranked *order)
{
    for (size_t k = 0; k < f->n_regions; k++) {
        struct region *r = &f->regions[k];
        double measured = 0, predicted = 0;
        for (size_t i = r->from; i < r->to; i++) {
            measured += (double)f->steps[order[i].step].ns;
            predicted += order[i].line * f->slow[order[i].step];
        }
        r->factor = measured / predicted;
    }
}

static double factor_at(const struct step_fit *f, size_t place, size_t *region)
{
    if (!f->n_regions)
        return 1;
    while (place >= f->regions[*region].to)
        ++*region;
    return f->regions[*region].factor;
}

/* By what the predictions so far leave. */
static void find_spells(struct step_fit *f, const struct ranked *order)
{
    struct spell_step *x = mem_new_array(f->n, sizeof *x);
    size_t region = 0;
    for (size_t i = 0; i < f->n; i++) {
        const struct fit_step *s = &f->steps[order[i].step];
        x[i] = (struct spell_step){s->at_ns, (double)s->ns / (order[i].line * factor_at(f, i, &region))};
    }
    spells_free(&f->spells);
    spells_fit(&f->spells, x, f->n);
    f->quality.spells = f->spells.share;
    for (size_t i = 0; i < f->n; i++)
        f->slow[i] = spells_at(&f->spells, f->steps[i].at_ns);
    mem_free(x);
}

static void keep_remainders(struct step_fit *f, const struct ranked *order)
{
    struct fit_quality *q = &f->quality;
    double n = (double)f->n;
    f->weights = mem_new_array(f->n, sizeof *f->weights);
    f->ratios = mem_new_array(f->n, sizeof *f->ratios);
    f->lags = mem_new_array(f->n, sizeof *f->lags);
    for (size_t k = 0; k < f->n_regions; k++) {
        struct region *r = &f->regions[k];
        double sum = 0;
        r->lags = f->n_lags;
        for (size_t i = r->from; i < r->to; i++) {
            const struct fit_step *s = &f->steps[order[i].step];
            double predicted = order[i].line * f->slow[order[i].step] * r->factor, ns = (double)s->ns;
            f->weights[i] = sum += predicted;
            f->ratios[i] = (float)(ns / predicted);
            q->measured_ns += ns / n;
            q->modelled_ns += predicted / n;
            q->error += fabs(predicted - ns) / ns / n;
            if (s->lag_ns < 0)
                continue;
            f->lags[f->n_lags++] = s->lag_ns;
            q->lag_ns += ((double)s->lag_ns - q->lag_ns) / (double)f->n_lags;
        }
        r->lags_end = f->n_lags;
    }
}

void step_fit_end(struct step_fit *f)
{
    f->quality.n_steps = f->n;
    f->quality.n_left_out = f->n_added - f->n;
    if (!f->n)
        return;
    struct ranked *order = mem_new_array(f->n, sizeof *order);
    f->slow = mem_new_array(f->n, sizeof *f->slow);
    for (size_t i = 0; i < f->n; i++)
        f->slow[i] = 1;
    find_forms(f, order);
    for (int round = 0; round < LINE_ROUNDS; round++) {
        fit_lines(f, order, round == 0);
        find_spells(f, order);
    }
    fit_lines(f, order, true);
    qsort(order, f->n, sizeof *order, by_region);
    cut_regions(f, order);
    for (int round = 0; round < REGION_ROUNDS; round++) {
        calibrate(f, order);
        find_spells(f, order);
    }
    calibrate(f, order);
    keep_remainders(f, order);
    mem_free(order);
    mem_free(f->steps);
    mem_free(f->slow);
    f->steps = NULL;
    f->slow = NULL;
}

const struct fit_quality *step_fit_quality(const struct step_fit *f)
{
    return &f->quality;
}

/* ---- predictions */

/* The form that speaks for this layout: its own, else that of its steps that treat FFN layers otherwise, else the one
 * that was seen most. NULL: nothing was measured at all. */
static const struct form *form_for(const struct step_fit *f, const struct fit_step *s, bool *own)
{
    const struct form *best = find_form(f, s->layout, s->cas);
    *own = best != NULL;
    if (!best)
        best = find_form(f, s->layout, !s->cas);
    for (int i = 0; !*own && i < f->n_forms; i++)
        if (!best || (!layout_equal(best->layout, s->layout) && f->forms[i].n > best->n))
            best = &f->forms[i];
    return best;
}

/* With as many groups beside it, or the nearest number; of two the larger. */
static const struct setting *setting_for(const struct step_fit *f, const struct form *form, int beside)
{
    const struct setting *best = NULL;
    for (size_t i = 0; i < f->n_settings; i++) {
        const struct setting *s = &f->settings[i];
        if (&f->forms[s->form] == form && (!best || abs(s->beside - beside) <= abs(best->beside - beside)))
            best = s;
    }
    return best;
}

static const struct region *region_for(const struct step_fit *f, const struct setting *s, double line)
{
    size_t k = s->from;
    while (k + 1 < s->to && line >= f->regions[k].until)
        k++;
    return &f->regions[k];
}

/* NULL: nothing was measured. */
static const struct region *look_up(const struct step_fit *f, const struct fit_step *s, double *ns,
                                    enum fit_basis *basis)
{
    bool own;
    const struct form *form = form_for(f, s, &own);
    *ns = 1;
    *basis = FIT_LAYOUT;
    if (!form)
        return NULL;
    const struct setting *at = setting_for(f, form, s->beside);
    double line = linear_ns(&form->line, s);
    const struct region *r = region_for(f, at, line);
    *ns = line * r->factor * spells_at(&f->spells, s->at_ns);
    if (own)
        *basis = at->beside != s->beside                                    ? FIT_BESIDE
                 : line > BEYOND * at->largest || line * BEYOND < at->least ? FIT_SIZE
                                                                            : FIT_MEASURED;
    else if (!layout_equal(form->layout, s->layout)) { /* what a step takes in any case does not shrink with ranks */
        double fixed = form->line.terms[0] < line ? form->line.terms[0] : line;
        double share = (double)layout_size(form->layout) / layout_size(s->layout);
        *ns *= (fixed + (line - fixed) * share) / line;
    }
    return r;
}

double step_fit_mean(const struct step_fit *f, const struct fit_step *s, enum fit_basis *basis)
{
    double ns;
    enum fit_basis b;
    look_up(f, s, &ns, &b);
    if (basis)
        *basis = b;
    return ns;
}

/* The first place whose sum is above what was drawn. */
static size_t drawn_place(const struct step_fit *f, const struct region *r, double drawn)
{
    size_t low = r->from, high = r->to - 1;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if (f->weights[mid] > drawn)
            high = mid;
        else
            low = mid + 1;
    }
    return low;
}

static int64_t draw_lag(const struct step_fit *f, const struct region *r, struct rng *luck)
{
    size_t from = r->lags, n = r->lags_end - r->lags;
    if (!n) { /* none is known of steps like this: any step's */
        from = 0;
        n = f->n_lags;
    }
    uint64_t at = rng_below(luck, n ? n : 1);
    return n ? f->lags[from + at] : 0;
}

struct fit_drawn step_fit_draw(const struct step_fit *f, const struct fit_step *s, struct rng *luck)
{
    struct fit_drawn out = {.ns = 1};
    double ns;
    const struct region *r = look_up(f, s, &ns, &out.basis);
    if (!r)
        return out;
    ns *= (double)f->ratios[drawn_place(f, r, rng_unit(luck) * f->weights[r->to - 1])];
    out.ns = ns < 1 ? 1 : ns < 1e18 ? (int64_t)(ns + 0.5) : INT64_C(1000000000000000000);
    out.lag_ns = draw_lag(f, r, luck);
    return out;
}

int step_fit_most_beside(const struct step_fit *f, struct layout l)
{
    int most = -1;
    for (size_t i = 0; i < f->n_settings; i++)
        if (layout_equal(f->forms[f->settings[i].form].layout, l) && f->settings[i].beside > most)
            most = f->settings[i].beside;
    return most;
}
