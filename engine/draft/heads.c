#include "engine/draft/heads.h"

#include "engine/base/mem.h"
#include "engine/world/request.h"

struct note {
    int n_tokens; /* of the timeline when it was made */
    struct draft_made made;
};

static void take(void *ctx, const struct request *r, void **note, const struct draft_made *m)
{
    struct note *own = *note ? *note : mem_new(sizeof *own);
    (void)ctx;
    own->n_tokens = r->n_tokens;
    own->made = *m;
    *note = own;
}

/* A token counts when all before it were right, too. */
static void guess(void *ctx, const struct request *r, void **note, int most, struct draft_guess *g)
{
    const struct note *own = *note;
    float chance = 1;
    (void)ctx;
    g->n = 0;
    g->score = 0;
    if (!own || own->n_tokens != r->n_tokens)
        return;
    g->match = r->n_tokens; /* the hidden state is made of all of it */
    for (; g->n < most && g->n < own->made.n; g->n++) {
        g->tokens[g->n] = own->made.tokens[g->n];
        chance *= own->made.shares[g->n];
        g->score += chance;
    }
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
