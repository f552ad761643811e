#include "engine/lab/fit/spells.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/lab/trace/portable_math.h"

enum { STEPS_A_STRETCH = 24, MOST_STRETCHES = 1 << 15, FEW_STRETCHES = 4 };
static const int64_t LEAST_NS = 20000000;
static const double LEAST_VARIANCE = 1e-8; /* of logarithms: less is nothing */
/* As far as this from the median of its stretch a step's logarithm counts; beyond, it is luck of its own. */
static const double FAR = 0.7;

struct stretch {
    double n, sum, squares;
};

struct placed {
    size_t stretch;
    double ln;
};

static int by_stretch(const void *x, const void *y)
{
    const struct placed *a = x, *b = y;
    if (a->stretch != b->stretch)
        return a->stretch < b->stretch ? -1 : 1;
    return (a->ln > b->ln) - (a->ln < b->ln);
}

static size_t place(const struct spells *s, int64_t at_ns)
{
    int64_t i = (at_ns - s->from_ns) / s->width_ns;
    int64_t n = (int64_t)s->n;
    return (size_t)(at_ns < s->from_ns ? n - 1 - (s->from_ns - at_ns - 1) / s->width_ns % n : i % n);
}

static void choose_width(struct spells *s, const struct spell_step *steps, size_t n)
{
    int64_t first = steps[0].at_ns, last = first;
    for (size_t i = 0; i < n; i++) {
        first = steps[i].at_ns < first ? steps[i].at_ns : first;
        last = steps[i].at_ns > last ? steps[i].at_ns : last;
    }
    int64_t span = last - first + 1, fine = span / MOST_STRETCHES + 1;
    int64_t width = (int64_t)((double)span * STEPS_A_STRETCH / (double)n) + 1;
    width = width > LEAST_NS ? width : LEAST_NS;
    s->width_ns = width > fine ? width : fine;
    s->from_ns = first;
    s->n = (size_t)((span + s->width_ns - 1) / s->width_ns);
}

/* One-way analysis of variance: what of the differences between stretches is not luck. In logarithms, so that a pause
 * of one step neither makes a stretch slow nor hides one that is. */
static void believe(struct spells *s, const struct stretch *all)
{
    double n = 0, k = 0, mean = 0, within = 0, between = 0;
    for (size_t i = 0; i < s->n; i++) {
        n += all[i].n;
        mean += all[i].sum;
        k += all[i].n > 0;
    }
    mean /= n;
    for (size_t i = 0; i < s->n; i++) {
        double own = all[i].n > 0 ? all[i].sum / all[i].n : mean;
        within += all[i].squares - own * all[i].sum;
        between += all[i].n * (own - mean) * (own - mean);
    }
    if (k < FEW_STRETCHES || n <= k)
        return;
    within = within > 0 ? within / (n - k) : 0;
    double lasting = (between / (k - 1) - within) / (n / k);
    if (lasting < LEAST_VARIANCE)
        return;
    s->share = lasting / (lasting + within);
    for (size_t i = 0; i < s->n; i++)
        if (all[i].n > 0)
            s->slow[i] = portable_exp((all[i].sum / all[i].n - mean) * lasting / (lasting + within / all[i].n));
}

/* Steps of one stretch, sorted. */
static struct stretch sum_up(const struct placed *steps, size_t n)
{
    struct stretch out = {0};
    double middle = steps[n / 2].ln;
    for (size_t i = 0; i < n; i++) {
        double ln = steps[i].ln > middle + FAR ? middle + FAR : steps[i].ln < middle - FAR ? middle - FAR : steps[i].ln;
        out.n++;
        out.sum += ln;
        out.squares += ln * ln;
    }
    return out;
}

void spells_fit(struct spells *s, const struct spell_step *steps, size_t n)
{
    memset(s, 0, sizeof *s);
    if (!n)
        return;
    choose_width(s, steps, n);
    struct stretch *all = mem_new_array(s->n, sizeof *all);
    struct placed *placed = mem_new_array(n, sizeof *placed);
    s->slow = mem_new_array(s->n, sizeof *s->slow);
    for (size_t i = 0; i < s->n; i++)
        s->slow[i] = 1;
    for (size_t i = 0; i < n; i++)
        placed[i] = (struct placed){place(s, steps[i].at_ns), portable_ln(steps[i].ratio)};
    qsort(placed, n, sizeof *placed, by_stretch);
    for (size_t from = 0, i = 1; i <= n; i++) {
        if (i < n && placed[i].stretch == placed[from].stretch)
            continue;
        all[placed[from].stretch] = sum_up(placed + from, i - from);
        from = i;
    }
    believe(s, all);
    mem_free(placed);
    mem_free(all);
}

void spells_free(struct spells *s)
{
    mem_free(s->slow);
    memset(s, 0, sizeof *s);
}

double spells_at(const struct spells *s, int64_t at_ns)
{
    return s->n ? s->slow[place(s, at_ns)] : 1;
}
