#include "engine/draft/model.h"

#include "engine/base/check.h"
#include "engine/base/list.h"
#include "engine/base/mem.h"
#include "engine/draft/heads.h"
#include "engine/world/request.h"

struct model_drafts {
    struct model_drafts_setup setup;
    int32_t *free; /* [n_free] */
    int n_free;
    struct list holders; /* of notes that have blocks, the one that asked last at the end */
    int n_holders;
    uint64_t n_loans, n_lost;
};

struct note {
    struct made_guess newest; /* first: what made_guess_recall wants */
    struct list at;           /* of the holders */
    const struct request *request;
    int32_t *blocks;
    int n_blocks;
    int n_cached, n_ahead; /* tokens of the timeline; of the newest guess, behind those that it was made for */
    uint64_t asked;        /* when, counted in loans */
};

static struct note *note_of(const struct request *r, void **note)
{
    if (!*note) {
        struct note *own = mem_new(sizeof *own);
        own->request = r;
        list_init(&own->at);
        *note = own;
    }
    return *note;
}

/* ---- blocks */

static void give_back(struct model_drafts *d, struct note *n)
{
    while (n->n_blocks)
        d->free[d->n_free++] = n->blocks[--n->n_blocks];
    mem_free(n->blocks);
    n->blocks = NULL;
    n->n_cached = n->n_ahead = 0;
    d->n_holders -= !list_empty(&n->at);
    list_remove(&n->at);
}

/* Each of the others has asked about twice since: it does not ask in every step. */
static bool may_lose(const struct model_drafts *d, const struct note *n)
{
    return !n->request->busy && d->n_loans - n->asked > 2 * (uint64_t)d->n_holders;
}

static bool make_room(struct model_drafts *d, int need)
{
    int room = d->n_free;
    LIST_EACH(at, &d->holders)
    {
        const struct note *n = LIST_ENTRY(at, struct note, at);
        room += may_lose(d, n) ? n->n_blocks : 0;
    }
    if (room < need)
        return false;
    for (struct list *at = d->holders.next; d->n_free < need;) {
        struct note *n = LIST_ENTRY(at, struct note, at);
        at = at->next;
        if (!may_lose(d, n))
            continue;
        give_back(d, n);
        d->n_lost++;
    }
    return true;
}

static bool take_blocks(struct model_drafts *d, struct note *n, int tokens)
{
    int all = (tokens + d->setup.block_tokens - 1) / d->setup.block_tokens, need = all - n->n_blocks;
    if (need > d->n_free && !make_room(d, need))
        return false;
    if (need <= 0)
        return true;
    n->blocks = mem_resize(n->blocks, (size_t)all, sizeof *n->blocks);
    while (n->n_blocks < all)
        n->blocks[n->n_blocks++] = d->free[--d->n_free];
    return true;
}

/* ---- the source */

/* What was guessed and has been said since is cached as it stands; a guess that was wrong is no use any more. */
static void follow(struct note *n, const struct request *r)
{
    const struct made_guess *g = &n->newest;
    while (n->n_ahead && n->n_cached < r->n_tokens) {
        int i = n->n_cached - g->n_tokens;
        bool right = i >= 0 && r->tokens[n->n_cached] == g->made.tokens[i];
        n->n_cached += right;
        n->n_ahead = right ? n->n_ahead - 1 : 0;
    }
}

/* What lies behind n_cached is written over by the step, so only `made` can tell what it is then. */
static bool lend(void *ctx, const struct request *r, void **note, int n_new, struct draft_cache *c)
{
    struct model_drafts *d = ctx;
    struct note *n = note_of(r, note);
    if (r->n_tokens + n_new > d->setup.context || !take_blocks(d, n, r->n_tokens + n_new)) {
        give_back(d, n); /* else two could wait for each other's */
        return false;
    }
    n->asked = ++d->n_loans;
    d->n_holders += list_empty(&n->at);
    list_remove(&n->at);
    list_push_back(&d->holders, &n->at);
    follow(n, r);
    ASSERT(n->n_cached <= r->n_tokens);
    *c = (struct draft_cache){.blocks = n->blocks, .n_cached = n->n_cached, .n_ahead = n->n_ahead};
    for (int i = 0; i < n->n_ahead; i++)
        c->ahead[i] = n->newest.made.tokens[n->n_cached - n->newest.n_tokens + i];
    n->n_ahead = 0;
    return true;
}

static void take_made(void *ctx, const struct request *r, void **note, const struct draft_made *m)
{
    struct note *n = note_of(r, note);
    (void)ctx;
    n->newest = (struct made_guess){r->n_tokens, *m};
    n->n_cached = m->n_cached;
    n->n_ahead = m->n ? m->n - 1 : 0;
    ASSERT(n->n_cached <= r->n_tokens && (!m->n || n->n_cached == r->n_tokens));
}

static void guess(void *ctx, const struct request *r, void **note, int most, struct draft_guess *g)
{
    const struct note *n = *note;
    (void)ctx;
    made_guess_recall(n ? &n->newest : NULL, r, most, g);
}

static void end(void *ctx, const struct request *r, void *note)
{
    (void)r;
    if (note)
        give_back(ctx, note);
    mem_free(note);
}

struct model_drafts *model_drafts_new(const struct model_drafts_setup *s)
{
    struct model_drafts *d = mem_new(sizeof *d);
    d->setup = *s;
    d->free = mem_new_array((size_t)s->n_blocks, sizeof *d->free);
    for (int i = s->n_blocks; i > 0; i--)
        d->free[d->n_free++] = i - 1;
    list_init(&d->holders);
    return d;
}

void model_drafts_free(struct model_drafts *d)
{
    if (!d)
        return;
    ASSERT(list_empty(&d->holders) && d->n_free == d->setup.n_blocks);
    mem_free(d->free);
    mem_free(d);
}

void model_drafts_source(struct model_drafts *d, struct draft_source *to)
{
    *to = (struct draft_source){.name = "model",
                                .guess = guess,
                                .end = end,
                                .made = take_made,
                                .lend = lend,
                                .most = d->setup.most,
                                .timed = true,
                                .ctx = d};
}

int model_drafts_n_free(const struct model_drafts *d, uint64_t *n_lost)
{
    *n_lost = d->n_lost;
    return d->n_free;
}
