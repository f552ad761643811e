#include "engine/lab/drafts.h"

#include <inttypes.h>
#include <string.h>

#include "engine/world/request.h"
#include "kernels/sim/token.h"

static const uint64_t IDEAS = 0x9fb21c651e98df25u; /* draws of their own */

/* A draw that belongs to this place of the request's text. */
static double drawn(uint64_t seed, const struct request *r, int32_t place)
{
    struct rng rng;
    rng_init(&rng, rng_at(seed ^ r->order * 0x9e3779b97f4a7c15u, (uint64_t)place));
    return rng_unit(&rng);
}

static void guess(void *ctx, const struct request *r, void **note, int most, struct draft_guess *g)
{
    const struct modelled_source *d = ctx;
    int32_t last = r->tokens[r->n_tokens - 1];
    double all = 1;
    (void)note;
    if (d->chance <= 0 || (d->ideas < 1 && drawn(d->seed ^ IDEAS, r, r->n_tokens) >= d->ideas))
        return;
    g->match = MOST_DRAFTS;
    g->score = 0;
    for (g->n = 0; g->n < most; g->n++) {
        int32_t place = r->n_tokens + g->n, said = sim_token(last, place - 1, d->vocab);
        bool right = drawn(d->seed, r, place) < d->chance;
        last = right ? said : (said + 1) % (d->vocab > 1 ? d->vocab : 2);
        g->tokens[g->n] = last;
        g->score += (float)(all *= d->chance);
    }
}

static void evict(void *ctx, enum draft_evict rule)
{
    (void)ctx;
    (void)rule;
}

static void add(struct modelled_drafts *d, const struct draft_source *as, struct modelled_source model)
{
    struct draft_source *s = &d->sources.items[d->sources.n];
    *s = *as;
    s->guess = guess;
    s->ctx = &d->each[d->sources.n++];
    *(struct modelled_source *)s->ctx = model;
}

/* One source as the recording has it. */
static void add_recorded(struct modelled_drafts *d, const struct modelled_drafts_setup *s, int i)
{
    const struct recorded_source *r = &s->head->sources[i];
    const struct recording_drafts *seen = &s->seen->drafts[i];
    uint64_t judged = seen->n_right + seen->n_wrong;
    struct modelled_source model = {.chance = s->chance, .ideas = 1, .seed = s->seed, .vocab = s->vocab};
    if (s->chance == 0) {
        model.chance = judged ? (double)seen->n_right / (double)judged : 0;
        model.ideas = seen->n_asked ? (double)seen->n_ideas / (double)seen->n_asked : 0;
        model.seed ^= (uint64_t)i << 32;
        if (judged)
            buf_printf(&d->words,
                       "%s%s right with a chance of %.3f (%" PRIu64 " of %" PRIu64
                       ", as recorded), and has an idea with one of %.3f",
                       d->words.len ? "; " : "", r->name, model.chance, seen->n_right, judged, model.ideas);
        else
            buf_printf(&d->words, "%s%s was never judged in the recording, and says nothing", d->words.len ? "; " : "",
                       r->name);
    }
    add(d, &(struct draft_source){.name = r->name, .by_name = r->by_name, .evict = r->keeps ? evict : NULL}, model);
}

void modelled_drafts_open(struct modelled_drafts *d, const struct modelled_drafts_setup *s)
{
    memset(d, 0, sizeof *d);
    if (s->chance > 0)
        buf_printf(&d->words, "right with a chance of %g, as asked for", s->chance);
    for (int i = 0; s->head && i < s->head->n_sources; i++)
        add_recorded(d, s, i);
    if (s->chance > 0 && !d->sources.n)
        add(d, &(struct draft_source){.name = "modelled"},
            (struct modelled_source){.chance = s->chance, .ideas = 1, .seed = s->seed, .vocab = s->vocab});
}

void modelled_drafts_close(struct modelled_drafts *d)
{
    buf_free(&d->words);
}

const struct draft_sources *modelled_drafts_sources(const struct modelled_drafts *d)
{
    return d->sources.n ? &d->sources : NULL;
}
