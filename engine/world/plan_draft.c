/* Draft tokens in a plan's steps: whose rows there is room for, without anybody giving way. */
#include "engine/world/draft.h"
#include "engine/world/plan_inner.h"

/* The batch that this plan runs it in; its place there is r->plan_item. */
static struct plan_batch *batch_of(const struct plan *p, const struct request *r)
{
    for (int i = 0; i < p->n_batches && plan_touched(p, r); i++) {
        struct plan_batch *b = p->batches[i];
        if (b->group_id == r->group && r->plan_item < b->n_items && b->items[r->plan_item].request == r)
            return b;
    }
    return NULL;
}

static const char *why_not(const struct plan *p, const struct request *r, const struct plan_batch *b)
{
    if (!p->world->drafts)
        return "nothing is drafted here: steps are simulated, and nothing says how often a guess is right";
    if (!r)
        return "the request has ended";
    if (!b || b->forwarded)
        return "only a request that is in a batch of this plan, which is not forwarded yet, can be drafted for";
    const struct plan_item *it = &b->items[r->plan_item];
    if (r->n_computed + it->n_tokens != r->n_tokens || !request_output(r))
        return "only a request that decodes can be drafted for";
    return NULL;
}

/* Blocks that it has, or that the plan took for its next token. */
static int own_blocks(const struct plan *p, const struct request *r)
{
    int next = kv_blocks_for(&p->world->kv, r->place, r->n_tokens);
    return next > r->n_blocks ? next : r->n_blocks;
}

/* Draft tokens for which there is room: in the step, in the answer, in the model's length, in the KV cache. */
static int room_for(const struct plan *p, const struct request *r, const struct plan_batch *b, int n)
{
    const struct limits *l = &p->world->limits;
    int spare = plan_available(p, r->place) - kv_reserve(&p->world->kv), own = own_blocks(p, r),
        each = kv_place(&p->world->kv, r->place)->tokens_per_block,
        limits[] = {MOST_DRAFTS, l->max_num_batched_tokens - b->n_tokens, r->spec->max_tokens - request_output(r) - 1,
                    l->max_model_len - r->n_tokens - 1, (own + (spare > 0 ? spare : 0)) * each - r->n_tokens};
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++)
        n = limits[i] < n ? limits[i] : n;
    return n > 0 ? n : 0;
}

/* Of one source, or of all that need no name the best. */
static void guess(const struct plan *p, struct request *r, int most, int source, struct draft_guess *best)
{
    const struct draft_sources *s = p->world->drafts;
    const struct draft_listener *listener = &p->world->draft_listener;
    struct draft_guess g;
    best->n = best->match = best->source = 0;
    best->score = 0;
    for (int i = source < 0 ? 0 : source; i < s->n && (source < 0 || i == source); i++) {
        const struct draft_source *x = &s->items[i];
        if (source < 0 && i > 0 && x->by_name)
            continue;
        g.n = g.match = 0;
        g.score = 0;
        x->guess(x->ctx, r, &r->draft_notes[i], most, &g);
        g.source = i;
        if (listener->guessed)
            listener->guessed(listener->ctx, r, most, &g);
        if (g.n && (!best->n || g.score > best->score))
            *best = g;
    }
}

/* Blocks for the tokens behind its newest one that the plan took beyond its own. */
static void take_blocks(struct plan *p, const struct request *r, int n_drafts, int sign)
{
    int need = kv_blocks_for(&p->world->kv, r->place, r->n_tokens + n_drafts) - own_blocks(p, r);
    plan_take(p, r->place, need > 0 ? sign * need : 0);
}

/* It has draft tokens in this plan: fewer of them. */
static bool cut(struct plan *p, struct plan_batch *b, struct request *r, int n)
{
    struct plan_item *it = &b->items[r->plan_item];
    if (n > it->n_drafts)
        return plan_no(p, "it has draft tokens already: another call can take some of them back");
    take_blocks(p, r, it->n_drafts, -1);
    take_blocks(p, r, n, 1);
    b->n_tokens -= it->n_drafts - n;
    it->n_drafts = n;
    return true;
}

bool plan_draft(struct plan *p, req_id id, int n, int source, struct draft_guess *g)
{
    struct request *r = request_find(&p->world->requests, id);
    struct plan_batch *b = r ? batch_of(p, r) : NULL;
    g->n = g->match = 0;
    g->score = 0;
    p->reason = why_not(p, r, b);
    if (p->reason)
        return false;
    if (b->items[r->plan_item].n_drafts) {
        g->source = b->items[r->plan_item].source;
        g->n = n;
        return cut(p, b, r, n);
    }
    n = room_for(p, r, b, n);
    if (n)
        guess(p, r, n, source, g);
    if (!g->n)
        return true;
    struct plan_item *it = &b->items[r->plan_item];
    it->n_drafts = g->n;
    it->source = g->source;
    it->drafts = arena_copy(&p->arena, g->tokens, (size_t)g->n * sizeof *g->tokens);
    b->n_tokens += g->n;
    take_blocks(p, r, g->n, 1);
    return true;
}

bool plan_evict(struct plan *p, enum draft_evict rule)
{
    if (!draft_keeps(p->world->drafts))
        return plan_no(p, "nothing that was said is kept here for draft tokens");
    plan_add_verb(p, PLAN_EVICT, NULL)->evict = rule;
    return true;
}
