#include "engine/lab/what_if.h"

#include <string.h>

#include "engine/base/json.h"
#include "engine/lab/replay.h"

static int64_t whole_ns(double ns)
{
    return ns < 1 ? 1 : ns < 1e18 ? (int64_t)ns : INT64_C(1000000000000000000);
}

static void note_guess(struct what_if *w, const struct fit_step *s, const struct fit_drawn *d)
{
    int i = 0, beside = d->basis == FIT_BESIDE ? s->beside : 0;
    while (i < w->n_guesses && (w->guesses[i].basis != d->basis || w->guesses[i].beside != beside ||
                                !layout_equal(w->guesses[i].layout, s->layout)))
        i++;
    if (i == WHAT_IF_GUESSES)
        i--;
    else if (i == w->n_guesses)
        w->guesses[w->n_guesses++] = (struct what_if_guess){.basis = d->basis, .layout = s->layout, .beside = beside};
    w->guesses[i].n_steps++;
    w->guesses[i].ns += (double)d->ns;
}

static struct played_step modelled_step(void *ctx, const struct step *s, int beside)
{
    struct what_if *w = ctx;
    struct fit_step x = {.layout = s->layout,
                         .cas = s->size.cas_layers > 0,
                         .beside = beside,
                         .rows = s->size.rows,
                         .logits = s->size.n_logits,
                         .looked_at = s->size.looked_at,
                         .at_ns =
                             s->posted_ns - REPLAY_START_NS + w->setup.from_ns + w->setup.digest->first_arrival_ns};
    struct fit_drawn d = step_fit_draw(w->setup.fit, &x, &w->luck);
    w->n_steps++;
    w->ns += (double)d.ns;
    w->lag_ns += (double)d.lag_ns;
    if (d.basis != FIT_MEASURED)
        note_guess(w, &x, &d);
    return (struct played_step){d.ns, d.lag_ns};
}

static int64_t modelled_move(void *ctx, const struct move *v)
{
    const struct recording_digest *d = ((struct what_if *)ctx)->setup.digest;
    double each = d->move_bytes > 0 ? d->move_ns / d->move_bytes : 1; /* a byte a nanosecond until one was seen */
    return whole_ns(each * (double)atomic_load(&v->bytes));
}

/* A layer takes its part of what all fetches of a step took. */
static int64_t modelled_replica(void *ctx, const struct replica_task *t)
{
    const struct what_if_setup *s = &((struct what_if *)ctx)->setup;
    return whole_ns(t->gives_up ? 0 : s->digest->fetches.fetch_ns / s->head->ffn.n_layers);
}

static int64_t modelled_reshard(void *ctx, const struct reshard_task *t)
{
    const struct what_if_setup *s = &((struct what_if *)ctx)->setup;
    return whole_ns(s->head->residency.load_ns_per_byte * (double)t->most);
}

void what_if_open(struct what_if *w, const struct what_if_setup *s)
{
    memset(w, 0, sizeof *w);
    w->setup = *s;
    rng_init(&w->luck, s->seed);
}

void what_if_play(struct what_if *w, struct engine_play *play)
{
    play->step = modelled_step;
    play->move_ns = modelled_move;
    play->replica_ns = modelled_replica;
    play->reshard_ns = modelled_reshard;
    play->ctx = w;
}

/* ---- what was guessed */

static double share(double part, double whole)
{
    return whole > 0 ? part / whole : 0;
}

double what_if_guessed_share(const struct what_if *w)
{
    double ns = 0;
    for (int i = 0; i < w->n_guesses; i++)
        ns += w->guesses[i].ns;
    return share(ns, w->ns);
}

const struct what_if_guess *what_if_unseen(const struct what_if *w)
{
    for (int i = 0; i < w->n_guesses; i++)
        if (w->guesses[i].basis != FIT_SIZE)
            return &w->guesses[i];
    return NULL;
}

static void put_layout(struct buf *out, struct layout l)
{
    buf_printf(out, "sp %d, tp %d", l.sp, l.tp);
    if (l.pp > 1)
        buf_printf(out, ", pp %d", l.pp);
}

void what_if_guess_words(const struct what_if *w, const struct what_if_guess *g, struct buf *out)
{
    buf_puts(out, "the layout ");
    put_layout(out, g->layout);
    if (g->basis == FIT_LAYOUT)
        buf_puts(out, ", which the recording never shows");
    else if (g->basis == FIT_BESIDE)
        buf_printf(out, " with %d other groups in a step at the same time (the recording shows at most %d)", g->beside,
                   step_fit_most_beside(w->setup.fit, g->layout));
    else
        buf_puts(out, " in sizes far from any that was recorded");
}

void what_if_words(const struct what_if *w, const char *label, struct buf *out)
{
    static const char *const by[] = {[FIT_MEASURED] = "",
                                     [FIT_SIZE] = "by a straight line",
                                     [FIT_BESIDE] = "as if it had the nearest number beside it that was recorded",
                                     [FIT_LAYOUT] = "from the layout that ran most, by the ratio of ranks"};
    for (int i = 0; i < w->n_guesses; i++) {
        const struct what_if_guess *g = &w->guesses[i];
        buf_printf(out, "%s: ~ guessed: %.1f%% of its steps, %.1f%% of their time: ", label,
                   100 * share((double)g->n_steps, (double)w->n_steps), 100 * share(g->ns, w->ns));
        what_if_guess_words(w, g, out);
        buf_printf(out, "; priced %s\n", by[g->basis]);
    }
}

void what_if_json(const struct what_if *w, struct buf *out)
{
    static const char *const words[] = {
        [FIT_MEASURED] = "", [FIT_SIZE] = "size", [FIT_BESIDE] = "beside", [FIT_LAYOUT] = "layout"};
    buf_putc(out, '[');
    for (int i = 0; i < w->n_guesses; i++) {
        const struct what_if_guess *g = &w->guesses[i];
        buf_printf(out, "%s{\"unseen\":\"%s\",\"sp\":%d,\"tp\":%d,\"pp\":%d,\"beside\":%d,\"steps\":", i ? "," : "",
                   words[g->basis], g->layout.sp, g->layout.tp, g->layout.pp, g->beside);
        json_put_double(out, share((double)g->n_steps, (double)w->n_steps));
        buf_puts(out, ",\"time\":");
        json_put_double(out, share(g->ns, w->ns));
        buf_putc(out, '}');
    }
    buf_putc(out, ']');
}
