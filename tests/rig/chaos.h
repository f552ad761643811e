/* A policy for tests that keeps changing the partition, at random by seed: every `every` steps it takes another of the
 * partitions in its list, with each way to interrupt and each fate of the KV; now and then it parks, moves or closes.
 * In between it decodes and prefills like fcfs. Native code, so that tests need no Lua. Owned by the test; engine
 * thread. Invariant: a plan depends on the view and the seed alone. */
#ifndef RIG_CHAOS_H
#define RIG_CHAOS_H

#include <stdio.h>
#include <string.h>

#include "engine/base/rng.h"
#include "engine/policy.h"

enum { CHAOS_MAX_PARTS = 16 };

struct chaos {
    struct rng rng;
    int every; /* scheduling points between two changes */
    int n_partitions;
    uint64_t partitions[CHAOS_MAX_PARTS][9]; /* masks, ended by 0 */
    int budget;
    uint64_t points, n_orders, n_refused, n_remaps, n_parks, n_modes, n_replicas;
    bool base_orders; /* also the paper's rank orders */
    bool stages;      /* also pipelined groups, and micro-batches of any number */
    bool host;        /* also KV that goes to host memory and comes back */
    bool shards;      /* also other weights than the ranks hold */
    uint64_t n_out, n_in, n_reshards;
    bool drafts; /* also draft tokens, of any number */
    bool trees;  /* of which trees */
    uint64_t n_drafts;
    bool probes;                       /* also probes of whoever runs */
    uint64_t n_probes, n_said, n_over; /* over: it was shown one that has nothing to do any more */
    bool only_hard;
    bool bad; /* it also closes groups for good, chooses algorithms, and fails now and then */
};

/* A base of some stages. */
static inline struct layout chaos_stages(struct chaos *c, int n)
{
    int pp;
    do
        pp = 1 + (int)rng_below(&c->rng, (uint64_t)n);
    while (n % pp);
    int width = n / pp;
    bool mixed = width % 2 == 0 && width > 2 && rng_below(&c->rng, 2);
    return mixed ? (struct layout){width / 2, 2, pp} : (struct layout){width, 1, pp};
}

/* Weights of some layout for the order, nearly always: what the ranks hold is seldom what its base needs. */
static inline void chaos_shards(struct chaos *c, struct switch_order *o)
{
    int n = __builtin_popcountll(o->mask), pp = o->base.pp, width = n / pp, tp;
    if (!c->shards || rng_below(&c->rng, 8) == 0)
        return;
    do
        tp = 1 + (int)rng_below(&c->rng, (uint64_t)width);
    while (width % tp);
    o->weights = (struct layout){width / tp, tp, pp};
    if (rng_below(&c->rng, 2) && !c->only_hard)
        o->when = WHEN_READY;
}

static inline void chaos_order(struct chaos *c, const struct view *v, struct plan *p)
{
    const uint64_t *masks = c->partitions[rng_below(&c->rng, (uint64_t)c->n_partitions)];
    struct switch_order o = {.when = c->only_hard ? WHEN_HARD : (enum switch_when)rng_below(&c->rng, 3),
                             .fate = (enum kv_fate)(1 + rng_below(&c->rng, c->host ? 4 : 3)),
                             .max_wait_ns = 50000000};
    (void)v;
    for (int i = 0; masks[i]; i++) {
        int n = __builtin_popcountll(masks[i]);
        o.mask = masks[i];
        o.base = (struct layout){n, 1, 1};
        if (c->base_orders && n % 2 == 0 && n > 2 && rng_below(&c->rng, 2))
            o.base = (struct layout){n / 2, 2, 1};
        if (c->stages && rng_below(&c->rng, 3))
            o.base = chaos_stages(c, n);
        o.n_named = 0;
        if (p->world->waiting.n && rng_below(&c->rng, 2))
            o.named[o.n_named++] = p->world->waiting.items[0]->id;
        o.weights = (struct layout){0, 0, 0};
        chaos_shards(c, &o);
        c->n_reshards += o.weights.tp > 0;
        snprintf(o.reason, sizeof o.reason, "chaos %llu", (unsigned long long)c->points);
        if (plan_switch(p, &o))
            c->n_orders++;
        else
            c->n_refused++;
    }
}

static inline void chaos_meddle(struct chaos *c, const struct view *v, struct plan *p)
{
    const struct world *w = v->world;
    if (w->running.n && rng_below(&c->rng, 6) == 0) {
        struct request *r = w->running.items[rng_below(&c->rng, (uint64_t)w->running.n)];
        const struct group *g = partition_group(
            &w->partition, (int)rng_below(&c->rng, (uint64_t)(w->partition.n_groups ? w->partition.n_groups : 1)));
        if (w->partition.n_groups && plan_remap(p, r->id, g->id, (enum kv_fate)(1 + rng_below(&c->rng, 3))))
            c->n_remaps++;
    }
    if (w->ffn && rng_below(&c->rng, 4) == 0) {
        int from = (int)rng_below(&c->rng, (uint64_t)w->ffn->n_layers);
        int to = from + 1 + (int)rng_below(&c->rng, (uint64_t)(w->ffn->n_layers - from));
        int group = v->n_idle && rng_below(&c->rng, 2) ? v->idle[0] : PLAN_ALL_GROUPS;
        bool waits = (uint64_t)w->ffn_measured.wait_ns % 2; /* what fetching has cost decides, too */
        bool grows = rng_below(&c->rng, 3) == 0;
        c->n_replicas += plan_weights(p, from, grows && to > from + 2 ? from + 2 : to, grows) && grows;
        c->n_modes += plan_ffn(p, group, from, to, waits == (rng_below(&c->rng, 2) == 0) ? FFN_CAS : FFN_WAS);
    }
    if (v->n_idle && rng_below(&c->rng, 40) == 0)
        c->n_parks += plan_preempt_group(p, v->idle[0], WHEN_HARD);
}

/* Some go to host memory; of those that wait there some are brought back, the others start by themselves. */
static inline void chaos_swap(struct chaos *c, const struct view *v, struct plan *p)
{
    const struct world *w = v->world;
    for (int i = 0; i < w->running.n; i++)
        if (rng_below(&c->rng, 12) == 0)
            c->n_out += plan_remap(p, w->running.items[i]->id, 0, FATE_HOST);
    for (int i = 0; i < w->waiting.n && v->n_idle; i++)
        if (world_in_host(w, w->waiting.items[i]) && rng_below(&c->rng, 6) == 0)
            c->n_in += plan_remap(p, w->waiting.items[i]->id, v->idle[0], FATE_MIGRATE);
}

/* What nobody undoes. Returns whether the call fails. */
static inline bool chaos_misbehave(struct chaos *c, const struct view *v, struct plan *p)
{
    const struct world *w = v->world;
    if (v->n_idle && rng_below(&c->rng, 12) == 0)
        plan_preempt_group(p, v->idle[rng_below(&c->rng, (uint64_t)v->n_idle)], WHEN_DRAIN);
    if (rng_below(&c->rng, 6) == 0)
        plan_comm(p, w->shape.sets[rng_below(&c->rng, (uint64_t)w->shape.n_sets)], (int)rng_below(&c->rng, 3));
    return rng_below(&c->rng, 40) == 0;
}

/* For some of those that decode, and some that do not. */
static inline void chaos_draft(struct chaos *c, struct plan_batch *b)
{
    struct draft_guess g;
    for (int i = 0; i < b->n_items; i++)
        if (rng_below(&c->rng, 4)) {
            req_id id = b->items[i].request->id;
            struct draft_wish w = {(int)rng_below(&c->rng, c->trees ? 20 : 9), -1, c->trees,
                                   (int)rng_below(&c->rng, 8) - 1};
            c->n_drafts += plan_draft(b->plan, id, &w, &g) && g.n;
            w.most = g.n ? (int)rng_below(&c->rng, (uint64_t)g.n + 1) : 0;
            if (g.n && rng_below(&c->rng, 4) == 0) /* some of them are taken back */
                plan_draft(b->plan, id, &w, &g);
        }
}

static inline void chaos_look_at_probes(struct chaos *c, const struct world *w, const struct req_queue *q)
{
    for (int i = 0; i < q->n; i++)
        c->n_over += q->items[i]->parent && !q->items[i]->finishing && probe_is_over(w, q->items[i]);
}

/* Whom it probes, and how many answers of those that run now have come. */
static inline void chaos_probe(struct chaos *c, const struct view *v, struct plan *p)
{
    const struct world *w = v->world;
    chaos_look_at_probes(c, w, &w->waiting);
    chaos_look_at_probes(c, w, &w->running);
    for (int i = 0; i < w->running.n; i++) {
        const struct request *r = w->running.items[i];
        if (rng_below(&c->rng, 3) == 0)
            c->n_probes += plan_probe(p, r->id);
        if (r->probes && (uint64_t)r->probes->n_said > c->n_said)
            c->n_said = (uint64_t)r->probes->n_said;
    }
}

static inline enum verdict chaos_step(void *ctx, const struct view *v, struct plan *p, struct err *e)
{
    struct chaos *c = ctx;
    if (c->bad && chaos_misbehave(c, v, p)) {
        err_set(e, E_POLICY, "chaos fails");
        return VERDICT_ERROR;
    }
    if (c->points++ % (uint64_t)c->every == 0)
        chaos_order(c, v, p);
    chaos_meddle(c, v, p);
    if (c->probes)
        chaos_probe(c, v, p);
    if (c->host)
        chaos_swap(c, v, p);
    for (int i = 0; i < v->n_idle; i++) {
        struct plan_batch *b = plan_batch(p, v->idle[i]);
        if (!b)
            continue;
        plan_decodes(b);
        if (c->drafts && rng_below(&c->rng, 2))
            chaos_draft(c, b);
        plan_prefill(b, NULL, 0, c->budget);
        if (c->drafts)
            chaos_draft(c, b);
        int pp = b->group->base.pp, n = b->group->n_ranks / pp, tp;
        do
            tp = 1 + (int)rng_below(&c->rng, (uint64_t)n);
        while (n % tp);
        b->n_micro = c->stages ? (int)rng_below(&c->rng, 7) : 0;
        if (b->n_tokens && !plan_forward(b, (struct layout){n / tp, tp, pp}))
            plan_forward(b, c->shards ? group_usual_layout(v->world, b->group) : (struct layout){n, 1, pp});
    }
    plan_wake(p, 5);
    return VERDICT_OK;
}

static inline struct policy chaos_policy(struct chaos *c)
{
    static const struct policy_ops ops = {.step = chaos_step};
    struct policy p = {.ops = &ops, .ctx = c};
    snprintf(p.name, sizeof p.name, "chaos");
    snprintf(p.sha256, sizeof p.sha256, "chaos");
    return p;
}

/* All the partitions that a test of n ranks (2, 4 or 8) goes through. */
static inline void chaos_partitions(struct chaos *c, int n)
{
    uint64_t all = rank_range(0, n);
    int k = 0;
    c->partitions[k++][0] = all;
    for (int size = 1; size < n; size *= 2, k++)
        for (int i = 0; i * size < n; i++)
            c->partitions[k][i] = rank_range(i * size, size);
    if (n >= 4) { /* uneven ones, and ranks that are in no group */
        uint64_t half = (1ull << n / 2) - 1;
        c->partitions[k][0] = half;
        for (int i = n / 2; i < n; i++)
            c->partitions[k][1 + i - n / 2] = 1ull << i;
        k++;
        c->partitions[k][n / 2] = half << n / 2;
        for (int i = 0; i < n / 2; i++)
            c->partitions[k][i] = 1ull << i;
        k++;
        c->partitions[k++][0] = half;
        c->partitions[k++][0] = 3ull << (n - 2);
        c->partitions[k][0] = 1;
        c->partitions[k++][1] = half << n / 2;
    }
    c->n_partitions = k;
}

#endif
