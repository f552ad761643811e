/* Draft tokens in a plan's steps: whose rows there is room for, without anybody giving way. */
#include "engine/world/draft.h"
#include "engine/world/lookup.h"
#include "engine/world/plan_inner.h"

static int propose_lookup(void *ctx, struct request *r, int most, int32_t *out, int *match)
{
    (void)ctx;
    if (!r->lookup)
        r->lookup = lookup_new();
    return lookup_propose(r->lookup, r->tokens, r->n_tokens, most, out, match);
}

const struct draft_source *draft_lookup(void)
{
    static const struct draft_source source = {"lookup", propose_lookup, NULL};
    return &source;
}

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
        return "nothing is drafted here: steps are simulated, or recorded";
    if (!r)
        return "the request has ended";
    if (!b || b->forwarded)
        return "only a request that is in a batch of this plan, which is not forwarded yet, can be drafted for";
    const struct plan_item *it = &b->items[r->plan_item];
    if (r->n_computed + it->n_tokens != r->n_tokens || !request_output(r))
        return "only a request that decodes can be drafted for";
    return it->n_drafts ? "it has draft tokens already" : NULL;
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

int plan_draft(struct plan *p, req_id id, int n, int *match)
{
    struct request *r = request_find(&p->world->requests, id);
    struct plan_batch *b = r ? batch_of(p, r) : NULL;
    const struct draft_source *source = p->world->drafts;
    int32_t drafts[MOST_DRAFTS];
    p->reason = why_not(p, r, b);
    *match = 0;
    if (p->reason)
        return -1;
    n = room_for(p, r, b, n);
    n = n ? source->propose(source->ctx, r, n, drafts, match) : 0;
    if (!n)
        return 0;
    struct plan_item *it = &b->items[r->plan_item];
    it->n_drafts = n;
    it->drafts = arena_copy(&p->arena, drafts, (size_t)n * sizeof *drafts);
    b->n_tokens += n;
    int need = kv_blocks_for(&p->world->kv, r->place, r->n_tokens + n) - own_blocks(p, r);
    plan_take(p, r->place, need > 0 ? need : 0);
    return n;
}
