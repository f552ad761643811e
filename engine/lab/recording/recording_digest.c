#include "engine/lab/recording/recording_digest.h"

#include <math.h>
#include <string.h>

#include "engine/base/mem.h"

static void note_arrival(struct recording_digest *d, int64_t order)
{
    if (d->n_outcomes == d->cap_outcomes) {
        d->cap_outcomes = d->cap_outcomes ? d->cap_outcomes * 2 : 256;
        d->outcomes = mem_resize(d->outcomes, d->cap_outcomes, sizeof *d->outcomes);
    }
    d->outcomes[d->n_outcomes++] = (struct recording_outcome){.order = order, .n_output = -1};
}

/* Where there are no gaps, its place follows from the first one's. */
struct recording_outcome *recording_outcome_of(const struct recording_digest *d, int64_t order)
{
    size_t from = 0, to = d->n_outcomes;
    if (!to || order < d->outcomes[0].order || order > d->outcomes[to - 1].order)
        return NULL;
    size_t guess = (size_t)(order - d->outcomes[0].order);
    if (guess < to && d->outcomes[guess].order == order)
        return &d->outcomes[guess];
    while (from < to) {
        size_t middle = from + (to - from) / 2;
        if (d->outcomes[middle].order < order)
            from = middle + 1;
        else
            to = middle;
    }
    return from < d->n_outcomes && d->outcomes[from].order == order ? &d->outcomes[from] : NULL;
}

static void note_drafts(struct recording_digest *d, const struct recorded *x)
{
    for (int i = 0; i < x->n_drafts; i++) {
        const struct recorded_drafts *v = &x->drafts[i];
        d->drafts[v->source].n_right += (uint64_t)v->right;
        d->drafts[v->source].n_wrong += !v->ended && v->right < v->n;
    }
}

static void note_step(struct recording_digest *d, const struct recorded *x)
{
    if (x->failed_rank >= 0 || x->ns < 1) {
        d->n_failed_steps++;
        return;
    }
    if (x->ffn.fetch_ns && !x->cas_layers)
        ffn_measure(&d->fetches, (double)x->ffn.fetch_ns, (double)x->ffn.wait_ns);
    d->n_steps++;
    d->mean_ns += ((double)x->ns - d->mean_ns) / (double)d->n_steps;
    d->live_error += (fabs((double)(x->predicted_ns - x->ns)) / (double)x->ns - d->live_error) / (double)d->n_steps;
}

static void note(struct recording_digest *d, const struct recorded *x)
{
    struct recording_outcome *o = recording_outcome_of(d, x->order);
    switch (x->kind) {
    case 'a':
        if (d->first_arrival_ns < 0 || recorded_arrival_ns(x) < d->first_arrival_ns)
            d->first_arrival_ns = recorded_arrival_ns(x);
        if (x->order >= 0)
            note_arrival(d, x->order);
        break;
    case 'c':
        if (o && x->ending == END_ABORT)
            o->left_ns = x->t_ns;
        break;
    case 'e':
        if (o) {
            o->ending = x->ending;
            o->n_output = x->n_output;
        }
        break;
    case 'p':
        d->drafts[x->source].n_asked++;
        d->drafts[x->source].n_ideas += x->n_guessed > 0;
        break;
    case 's':
        note_drafts(d, x);
        note_step(d, x);
        break;
    case 'm':
        d->move_bytes += (double)x->bytes;
        d->move_ns += x->t_ns > x->start_ns ? (double)(x->t_ns - x->start_ns) : 0;
        break;
    case 'q':
        d->n_decisions++;
        break;
    case 'l':
        d->n_limits_set++;
        break;
    default:
        break;
    }
}

static int note_lines(struct recording_digest *d, const char *path, struct err *e)
{
    struct recording *r = NULL;
    struct recorded x;
    bool end = false;
    TRY(recording_open(&r, path, e));
    int rc;
    while (!(rc = recording_next(r, &x, &end, e)) && !end)
        note(d, &x);
    d->complete = recording_complete(r);
    recording_close(r);
    return rc;
}

static int mean_output(const struct recording_digest *d)
{
    double sum = 0, n = 0;
    for (size_t i = 0; i < d->n_outcomes; i++) {
        const struct recording_outcome *o = &d->outcomes[i];
        if ((o->ending != END_STOP && o->ending != END_LENGTH) || o->n_output < 1)
            continue;
        sum += o->n_output;
        n++;
    }
    return n > 0 && sum / n >= 1 ? (int)(sum / n) : 1;
}

int recording_digest(struct recording_digest *d, const char *path, struct err *e)
{
    memset(d, 0, sizeof *d);
    d->first_arrival_ns = -1;
    int rc = note_lines(d, path, e);
    if (d->first_arrival_ns < 0)
        d->first_arrival_ns = 0;
    d->mean_output = mean_output(d);
    if (rc)
        recording_digest_free(d);
    return rc;
}

void recording_digest_free(struct recording_digest *d)
{
    mem_free(d->outcomes);
    memset(d, 0, sizeof *d);
}
