#include "engine/lab/search/tune_inner.h"

#include <string.h>

#include "engine/base/mem.h"

enum { HALVINGS = 4 };

static bool does_as_well(const struct search *s, const struct point *a, const struct point *b)
{
    return a->known && b->known && a->excess == b->excess && tune_same_values(s, a, b);
}

/* The best with one param elsewhere. */
struct trial {
    int param;
    double to;
    bool as_well; /* it came to the same */
};

static int run_trials(struct search *s, const struct point *best, struct trial *trials, int k, struct err *e)
{
    struct point *tries = mem_new_array((size_t)k + 1, sizeof *tries);
    for (int i = 0; i < k; i++) {
        tries[i] = *best;
        tries[i].failure = NULL;
        tries[i].u[trials[i].param] = trials[i].to;
    }
    int rc = tune_run_points(s, tries, k, e);
    for (int i = 0; i < k; i++) {
        trials[i].as_well = does_as_well(s, &tries[i], best);
        mem_free(tries[i].failure);
    }
    mem_free(tries);
    return rc;
}

/* Where the plateaus begin that reach one end of their range, as near as a few halvings come. */
static int find_edges(struct search *s, const struct point *best, struct err *e)
{
    double differs[TUNE_MAX];
    struct trial trials[TUNE_MAX];
    int k = 0;
    for (int d = 0; d < s->space.n; d++) {
        struct plateau *p = &s->plateaus[d];
        p->edge = best->u[d];
        if (s->space.params[d].kind <= TUNE_INTEGER && p->low != p->high) {
            differs[k] = p->low ? 1 : 0;
            trials[k++].param = d;
        }
    }
    for (int n = 0; n < HALVINGS && k; n++) {
        for (int i = 0; i < k; i++)
            trials[i].to = (differs[i] + s->plateaus[trials[i].param].edge) / 2;
        TRY(run_trials(s, best, trials, k, e));
        for (int i = 0; i < k; i++)
            *(trials[i].as_well ? &s->plateaus[trials[i].param].edge : &differs[i]) = trials[i].to;
    }
    return 0;
}

int tune_look_around(struct search *s, struct err *e)
{
    struct trial trials[3 * TUNE_MAX];
    int at = tune_best(s), k = 0;
    if (at < 0)
        return 0;
    for (int d = 0; d < s->space.n; d++)
        for (int i = 0; i < 3; i++)
            trials[k++] = (struct trial){.param = d, .to = i < 2 ? i : s->space.params[d].by_default};
    TRY(run_trials(s, &s->points[at], trials, k, e));
    struct point home = s->points[at];
    for (int d = 0; d < s->space.n; d++) {
        s->plateaus[d] = (struct plateau){
            .low = trials[3 * d].as_well, .high = trials[3 * d + 1].as_well, .home = trials[3 * d + 2].as_well};
        if (s->plateaus[d].home)
            home.u[d] = s->space.params[d].by_default;
    }
    TRY(find_edges(s, &s->points[at], e));
    home.failure = NULL;
    int rc = tune_run_points(s, &home, 1, e); /* together they may not be what they are alone */
    if (!rc && does_as_well(s, &home, &s->points[at]))
        memcpy(s->points[at].u, home.u, sizeof home.u);
    mem_free(home.failure);
    return rc;
}

/* ---- in words */

bool tune_makes_no_difference(const struct plateau *p)
{
    return p->low && p->high && p->home;
}

/* Where the best could as well be elsewhere: a limit that a param runs into is no optimum. */
void tune_put_plateaus(const struct search *s, int best, struct buf *out)
{
    struct buf edge = {0}, mine = {0};
    for (int d = 0; d < s->space.n; d++) {
        const struct plateau *p = &s->plateaus[d];
        const char *name = s->space.params[d].name;
        buf_clear(&edge);
        buf_clear(&mine);
        tune_space_value(&s->space, d, p->edge, &edge);
        tune_space_value(&s->space, d, s->points[best].u[d], &mine);
        bool wide = s->space.params[d].kind <= TUNE_INTEGER && p->low != p->high && strcmp(edge.data, mine.data) != 0;
        if (tune_makes_no_difference(p))
            buf_printf(out, "No difference: %s, wherever it was tried: it stays as it is\n", name);
        else if (wide)
            buf_printf(out, "No difference: %s %s %s%s\n", name, p->low ? "below" : "above", edge.data,
                       p->home ? "; its default is there" : "");
    }
    buf_free(&edge);
    buf_free(&mine);
}
