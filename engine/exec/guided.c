#include "engine/exec/guided.h"

#include "models/guide/guide.h"

enum { EXPLORE_WORK = 20000 /* parts of states that are looked at for one guess */ };

static int32_t state_of(struct guide *g, struct request *r)
{
    return guide_state(g, &r->guided, r->tokens + r->spec->n_prompt, request_output(r));
}

bool guided_begins(struct guides *guides, const struct request_spec *s)
{
    struct guided at = {0};
    struct guide *g = guides_of(guides, s->grammar);
    return guide_ids(g, guide_state(g, &at, NULL, 0)) != NULL;
}

bool guided_goes_on(struct guides *guides, struct request *r)
{
    struct guide *g = guides_of(guides, r->spec->grammar);
    return guide_ids(g, state_of(g, r)) != NULL;
}

/* ---- guesses */

void guided_explore(struct guides *guides, const struct request *r, const int32_t *tokens, int n)
{
    struct guide *g = guides_of(guides, r->spec->grammar);
    int32_t state = guide_read_to(g, &r->guided, request_output(r));
    int64_t most = guide_work(g) + EXPLORE_WORK;
    for (int i = 0; i < n && state >= 0 && guide_work(g) < most; i++) {
        state = guide_behind(g, state, tokens[i]);
        guide_look(g, state);
    }
}

/* A policy's call waits for it: nothing is found here that was not known before. */
void guided_cut(void *ctx, struct request *r, struct draft_guess *g)
{
    int32_t states[MOST_DRAFTS + 1]; /* behind its newest token, and behind each that stays */
    int places[MOST_DRAFTS + 1] = {0}, n = 0;
    if (!r->spec->grammar || !g->n)
        return;
    struct guide *guide = guides_of(ctx, r->spec->grammar);
    states[0] = guide_read_to(guide, &r->guided, request_output(r));
    for (int i = 0; i < g->n; i++) {
        int parent = places[1 + (g->tree ? g->parents[i] : i - 1)]; /* -1: it does not stay */
        int32_t state = parent < 0 ? parent : guide_known(guide, states[parent], g->tokens[i]);
        places[1 + i] = -1;
        if (state < 0 || !guide_soon(guide, state, GUIDED_LOOK))
            continue;
        g->tokens[n] = g->tokens[i];
        g->parents[n] = (int8_t)(parent - 1);
        states[++n] = state;
        places[1 + i] = n;
    }
    g->score *= (float)n / (float)g->n;
    g->n = n;
}

/* ---- rows */

static void put(struct guided_step *s, struct sample_row *row, const struct guide_ids *ids)
{
    if (!ids->n)
        return;
    const int32_t *copy = arena_copy(s->arena, ids->ids, (size_t)ids->n * sizeof *ids->ids);
    if (ids->allowed) {
        row->allowed = copy;
        row->n_allowed = ids->n;
    } else {
        row->banned = copy;
        row->n_banned = ids->n;
    }
}

/* Where nobody knows what may follow its newest token, anything may: the request ends then (engine/absorb.c). */
int guided_fill(struct guided_step *s, struct request *r, const struct drafts *d, struct sample_row *rows)
{
    struct guide *g = guides_of(s->guides, r->spec->grammar);
    int32_t states[MOST_DRAFTS + 1] = {state_of(g, r)};
    for (int i = 0; i <= d->n; i++) {
        if (i)
            states[i] = guide_behind(g, states[1 + drafts_parent(d, i - 1)], d->tokens[i - 1]);
        if (i && states[i] < 0)
            continue; /* its token may not come, so nobody reads its row */
        int64_t look = i ? guide_look(g, states[i]) : 0, before = guide_work(g);
        const struct guide_ids *ids = look <= s->look ? guide_ids(g, states[i]) : NULL;
        if (i && ids)
            s->look -= look + guide_work(g) - before;
        if (!ids)
            return i ? i - 1 : 0;
        put(s, &rows[i], ids);
    }
    return d->n;
}
