#include "engine/lab/reenact_drafts.h"

#include <inttypes.h>

#include "engine/base/mem.h"
#include "engine/world/request.h"

static void guess(void *ctx, const struct request *r, void **note, int most, struct draft_guess *g)
{
    const struct reenact_source *s = ctx;
    struct reenact_drafts *d = s->of;
    const struct recorded_guess *x = d->first < d->n ? &d->items[d->first] : NULL;
    (void)note;
    if (!x || x->call != *d->n_calls + 1 || x->order != (int64_t)r->order || x->source != s->place ||
        x->asked != most) {
        d->differ(d->ctx, "draft tokens are asked for, of request %" PRId64 ", that were not", (int64_t)r->order);
        return;
    }
    g->n = x->n;
    g->match = x->match;
    g->score = x->score;
    for (int i = 0; i < g->n; i++)
        g->tokens[i] = DRAFT_ID;
    d->first++;
}

static void evict(void *ctx, enum draft_evict rule)
{
    (void)ctx;
    (void)rule;
}

void reenact_drafts_init(struct reenact_drafts *d, const struct recording_head *h)
{
    for (int i = 0; i < h->n_sources; i++) {
        const struct recorded_source *s = &h->sources[i];
        d->places[i] = (struct reenact_source){d, i};
        d->sources.items[d->sources.n++] = (struct draft_source){.name = s->name,
                                                                 .guess = guess,
                                                                 .evict = s->keeps ? evict : NULL,
                                                                 .by_name = s->by_name,
                                                                 .timed = s->timed,
                                                                 .ctx = &d->places[i]};
    }
}

void reenact_drafts_free(struct reenact_drafts *d)
{
    mem_free(d->items);
}

void reenact_drafts_add(struct reenact_drafts *d, const struct recorded *x)
{
    if (d->first == d->n)
        d->first = d->n = 0;
    if (d->n == d->cap) {
        d->cap = d->cap ? d->cap * 2 : 256;
        d->items = mem_resize(d->items, d->cap, sizeof *d->items);
    }
    d->items[d->n++] = (struct recorded_guess){.call = x->call,
                                               .order = x->order,
                                               .source = x->source,
                                               .asked = x->asked,
                                               .n = x->n_guessed,
                                               .match = x->match,
                                               .score = x->score};
}

void reenact_drafts_end_call(struct reenact_drafts *d, bool made)
{
    for (; d->first < d->n && d->items[d->first].call <= *d->n_calls; d->first++)
        if (made)
            d->differ(d->ctx, "draft tokens were asked for, of request %" PRId64 ", that are not",
                      d->items[d->first].order);
}

static const struct recorded_drafts *drafts_of(const struct recorded *x, uint64_t order)
{
    for (int i = 0; i < x->n_drafts; i++)
        if ((uint64_t)x->drafts[i].order == order)
            return &x->drafts[i];
    return NULL;
}

int reenact_drafts_fill(struct reenact_drafts *d, struct step *s, struct step_item *it, const struct recorded *x,
                        uint64_t order)
{
    const struct recorded_drafts *v = drafts_of(x, order);
    if (it->drafts.n && v && (v->n > it->drafts.n || v->source != it->source)) {
        d->differ(d->ctx, "request %" PRId64 " had another number of draft tokens in this step, or by another source",
                  (int64_t)order);
        return 0;
    }
    if (!it->drafts.n || !v) {
        it->drafts.n = 0;
        return 0;
    }
    it->drafts.n = v->n;
    for (int i = 0; i < v->right; i++)
        s->results[it->first_result + it->n_given + i].token = it->drafts.tokens[i];
    return v->right;
}

void reenact_drafts_verified(struct reenact_drafts *d, const struct recorded *x, const struct recorded_drafts *came_out)
{
    const struct recorded_drafts *v = drafts_of(x, (uint64_t)came_out->order);
    d->n_verified++;
    if (!v || v->n != came_out->n || v->right != came_out->right || v->ended != came_out->ended)
        d->differ(d->ctx, "of the draft tokens of request %" PRId64 " another number is right", came_out->order);
}

void reenact_drafts_end_step(struct reenact_drafts *d, const struct recorded *x)
{
    if (d->n_verified != x->n_drafts)
        d->differ(d->ctx, "draft tokens of %" PRId64 " requests were verified, and now those of others", x->n_drafts);
    d->n_verified = 0;
}
