#include "engine/exec/form.h"

#include "engine/base/mem.h"
#include "engine/exec/guided.h"
#include "engine/world/request.h"
#include "models/guide/forced.h"

enum { MOST = 32, LOOK_BACK = 96 /* tokens of the output */ };
static const float RIGHT = 0.9f; /* of those expected to be right when all before it are */

struct note {
    int n_tokens, n; /* n_tokens: of the timeline then */
    bool asked;      /* since it was looked up */
    int32_t tokens[MOST];
};

static void look(struct guides *guides, const struct request *r, struct note *note)
{
    struct guide *g = guides_of(guides, r->spec->grammar);
    struct guided at = r->guided;
    const int32_t *output = r->tokens + r->spec->n_prompt;
    int n = request_output(r);
    int32_t state = guide_state(g, &at, output, n);
    struct buf before = {0};
    for (int i = n < LOOK_BACK ? 0 : n - LOOK_BACK; i < n; i++)
        guide_tokens_put(guide_tokens_of(g), output[i], &before);
    note->asked = false;
    note->n_tokens = r->n_tokens;
    note->n = guide_forced(g, state, &before, note->tokens, MOST);
    guided_explore(guides, r, note->tokens, note->n);
    buf_free(&before);
}

static void said(void *ctx, const struct request *r, void *note)
{
    const struct note *own = note;
    if (own->asked)
        look(ctx, r, note);
}

static void guess(void *ctx, const struct request *r, void **note, int most, struct draft_guess *g)
{
    (void)ctx;
    if (!r->spec->grammar)
        return;
    struct note *own = *note ? *note : mem_new(sizeof *own);
    *note = own;
    own->asked = true;
    int n = own->n_tokens == r->n_tokens ? own->n : 0;
    float chance = 1;
    g->match = n ? r->n_tokens : 0; /* it is made of all of it */
    for (; g->n < most && g->n < n; g->n++) {
        g->tokens[g->n] = own->tokens[g->n];
        g->score += chance *= RIGHT;
    }
}

static void end(void *ctx, const struct request *r, void *note)
{
    (void)ctx;
    (void)r;
    mem_free(note);
}

void form_source(struct guides *guides, struct draft_source *to)
{
    *to = (struct draft_source){.name = "form", .guess = guess, .said = said, .end = end, .ctx = guides};
}
