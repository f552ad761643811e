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

static const char *why_not(const struct plan *p, const struct request *r, const struct plan_batch *b, bool tree)
{
    if (!p->world->drafts)
        return "nothing is drafted here: steps are simulated, and nothing says how often a guess is right";
    if (tree && !p->world->draft_trees)
        return "only chains of draft tokens are verified on GPUs and while a server records, no trees";
    if (!r)
        return "the request has ended";
    if (!b || b->forwarded)
        return "only a request that is in a batch of this plan, which is not forwarded yet, can be drafted for";
    const struct plan_item *it = &b->items[r->plan_item];
    if (r->parent)
        return "probes are not drafted for";
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

/* Is the source asked, by name or as one of all? */
static bool is_asked(const struct draft_sources *s, int i, int source)
{
    return source < 0 ? i == 0 || !s->items[i].by_name : i == source;
}

/* Tokens that the step after this one can verify, of `most`. */
static int room_behind(const struct plan *p, const struct request *r, int most)
{
    int answer = r->spec->max_tokens - request_output(r) - 2, length = p->world->limits.max_model_len - r->n_tokens - 2,
        room = answer < length ? answer : length;
    most = most < MOST_HEADS ? most : MOST_HEADS;
    return room < most ? room : most;
}

/* Where a source is asked whose guesses steps make, this step makes the next one, if there can be a next one. */
static void ask(const struct plan *p, struct plan_batch *b, const struct request *r, const struct draft_wish *w)
{
    const struct draft_sources *s = p->world->drafts;
    struct plan_item *it = &b->items[r->plan_item];
    int n = room_behind(p, r, w->next ? w->next : w->most);
    for (int i = 0; i < s->n && n > 0 && !it->asks && b->n_asks < MOST_ASKS; i++)
        if (s->items[i].made && is_asked(s, i, w->source)) {
            it->asks = s->items[i].most && s->items[i].most < n ? s->items[i].most : n;
            it->asked = i;
            b->n_asks++;
        }
}

/* A tree with one branch is a chain. */
static bool branches(const struct draft_guess *g)
{
    for (int i = 0; i < g->n && g->tree; i++)
        if (g->parents[i] != i - 1)
            return true;
    return false;
}

/* Of one source, or of all that need no name the best. */
static void guess(const struct plan *p, struct request *r, const struct draft_wish *w, struct draft_guess *best)
{
    const struct draft_sources *s = p->world->drafts;
    const struct draft_filter *filter = &p->world->draft_filter;
    const struct draft_listener *listener = &p->world->draft_listener;
    struct draft_guess g;
    best->n = best->match = best->source = 0;
    best->score = 0;
    for (int i = 0; i < s->n; i++) {
        const struct draft_source *x = &s->items[i];
        if (!is_asked(s, i, w->source))
            continue;
        g.n = g.match = 0;
        g.score = 0;
        g.tree = false;
        (w->tree && x->guess_tree ? x->guess_tree : x->guess)(x->ctx, r, &r->draft_notes[i], w->most, &g);
        g.source = i;
        if (filter->cut)
            filter->cut(filter->ctx, r, &g);
        if (listener->guessed)
            listener->guessed(listener->ctx, r, w->most, &g);
        if (g.n && (!best->n || g.score > best->score))
            *best = g;
    }
    best->tree = best->n && branches(best);
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
    if (n > it->drafts.n)
        return plan_no(p, "it has draft tokens already: another call can take some of them back");
    take_blocks(p, r, it->drafts.n, -1);
    take_blocks(p, r, n, 1);
    b->n_tokens -= it->drafts.n - n;
    it->drafts.n = n;
    return true;
}

bool plan_draft(struct plan *p, req_id id, const struct draft_wish *w, struct draft_guess *g)
{
    struct request *r = request_find(&p->world->requests, id);
    struct plan_batch *b = r ? batch_of(p, r) : NULL;
    g->n = g->match = 0;
    g->score = 0;
    p->reason = why_not(p, r, b, w->tree);
    if (p->reason || plan_is_others(p, r))
        return false;
    struct plan_item *it = &b->items[r->plan_item];
    if (w->next > 0 || (w->next == 0 && !it->drafts.n))
        ask(p, b, r, w);
    if (it->drafts.n) {
        g->source = it->source;
        g->n = w->most;
        return cut(p, b, r, w->most);
    }
    struct draft_wish wish = {.most = room_for(p, r, b, w->most), .source = w->source, .tree = w->tree};
    if (wish.most && !p->apart)
        guess(p, r, &wish, g);
    if (!g->n)
        return true;
    it->source = g->source;
    it->drafts.n = g->n;
    it->drafts.tokens = arena_copy(&p->arena, g->tokens, (size_t)g->n * sizeof *g->tokens);
    it->drafts.parents = g->tree ? arena_copy(&p->arena, g->parents, (size_t)g->n * sizeof *g->parents) : NULL;
    b->n_tokens += g->n;
    take_blocks(p, r, g->n, 1);
    return true;
}

/* Cached tokens that a row of a request that decodes looks at. */
static double looked_at(const struct plan_batch *b)
{
    double all = 0;
    int n = 0;
    for (int i = 0; i < b->n_items; i++)
        if (request_output(b->items[i].request)) {
            all += b->items[i].request->n_tokens;
            n++;
        }
    return n ? all / n : 0;
}

/* Each token is a forward, of a row for each request. */
double plan_draft_ns(const struct plan_batch *b, int source, int n, int requests, uint64_t *seen)
{
    const struct world *w = b->plan->world;
    int members = b->group->n_ranks / b->group->base.pp, rows = (requests + members - 1) / members;
    struct step_size size = {.rows = rows, .looked_at = rows * looked_at(b), .n_seqs = rows, .n_logits = rows};
    *seen = 0;
    if (!w->drafts->items[source].timed || n < 1 || requests < 1)
        return 0;
    double ns = n * estimator_ns(&w->draft_estimate, (struct layout){1, 1, 1}, size, seen);
    return *seen ? ns : 0; /* the first ones will tell */
}

bool plan_evict(struct plan *p, enum draft_evict rule)
{
    if (p->side == SIDE_CANARY)
        return plan_no(p, "what is kept for draft tokens is the live policy's to decide");
    if (!draft_keeps(p->world->drafts))
        return plan_no(p, "nothing that was said is kept here for draft tokens");
    plan_add_verb(p, PLAN_EVICT, NULL)->evict = rule;
    return true;
}
