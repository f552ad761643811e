#include "engine/lab/drafts.h"

#include "engine/world/request.h"
#include "kernels/sim/token.h"

/* Is the token at this place of the request's text one that is guessed? */
static bool is_right(const struct modelled_drafts *d, const struct request *r, int32_t place)
{
    struct rng rng;
    rng_init(&rng, rng_at(d->seed ^ r->order * 0x9e3779b97f4a7c15u, (uint64_t)place));
    return rng_unit(&rng) < d->chance;
}

static void guess(void *ctx, const struct request *r, void **note, int most, struct draft_guess *g)
{
    const struct modelled_drafts *d = ctx;
    int32_t last = r->tokens[r->n_tokens - 1];
    double all = 1;
    (void)note;
    g->match = MOST_DRAFTS;
    g->score = 0;
    for (g->n = 0; g->n < most; g->n++) {
        int32_t place = r->n_tokens + g->n, said = sim_token(last, place - 1, d->vocab);
        last = is_right(d, r, place) ? said : (said + 1) % d->vocab;
        g->tokens[g->n] = last;
        g->score += (float)(all *= d->chance);
    }
}

void modelled_drafts_init(struct modelled_drafts *d, double chance, uint64_t seed, int vocab)
{
    *d = (struct modelled_drafts){.chance = chance, .seed = seed, .vocab = vocab};
    d->sources.items[d->sources.n++] = (struct draft_source){.name = "modelled", .guess = guess, .ctx = d};
}
