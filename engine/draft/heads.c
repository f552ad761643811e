#include "engine/draft/heads.h"

#include "engine/base/mem.h"
#include "engine/world/request.h"

static void take(void *ctx, const struct request *r, void **note, const struct draft_made *m)
{
    struct made_guess *own = *note ? *note : mem_new(sizeof *own);
    (void)ctx;
    own->n_tokens = r->n_tokens;
    own->made = *m;
    *note = own;
}

/* A token counts when all before it were right, too. */
void made_guess_recall(const struct made_guess *m, const struct request *r, int most, struct draft_guess *g)
{
    float chance = 1;
    g->n = 0;
    g->score = 0;
    if (!m || m->n_tokens != r->n_tokens)
        return;
    g->match = r->n_tokens; /* it is made of all of it */
    for (; g->n < most && g->n < m->made.n; g->n++) {
        g->tokens[g->n] = m->made.tokens[g->n];
        chance *= m->made.shares[g->n];
        g->score += chance;
    }
}

static void guess(void *ctx, const struct request *r, void **note, int most, struct draft_guess *g)
{
    (void)ctx;
    made_guess_recall(*note, r, most, g);
}

static void end(void *ctx, const struct request *r, void *note)
{
    (void)ctx;
    (void)r;
    mem_free(note);
}

void heads_source(struct draft_source *to)
{
    *to = (struct draft_source){.name = "heads", .guess = guess, .end = end, .made = take};
}
