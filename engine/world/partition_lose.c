/* What becomes of the partition when a rank fails, and when the policy goes that has made it. */
#include <stdio.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/world/partition_inner.h"

/* Everybody whose KV lay on the rank begins again. */
static void lose_kv(struct world *w, int rank, int64_t now_ns)
{
    for (int i = 0; i < w->requests.n_slots; i++) {
        struct request *r = w->requests.slots[i];
        if (!r)
            continue;
        bool copied = r->n_moving && r->moving_from >> rank & 1; /* a copy may have read what was lost */
        bool touched = copied || (r->n_blocks && kv_place(&w->kv, r->place)->mask >> rank & 1);
        if (r->busy)
            r->lost |= copied;
        else if (touched || (r->state == REQ_RUNNING && !r->group))
            world_preempt(w, r, false, now_ns);
    }
}

/* A group of so many ranks, in one stage. */
static bool may_run(const struct world *w, int n)
{
    struct layout l;
    return shape_runs(&w->shape, n) && (!w->residency.facts || residency_usual(w, n, 1, &l));
}

/* These free ranks, of a lost group or left out, form the largest groups there may be. */
static void regroup(struct world *w, uint64_t ranks, int64_t now_ns)
{
    while (ranks) {
        uint64_t best = 0;
        for (int i = 0; i < w->shape.n_sets; i++) {
            uint64_t s = w->shape.sets[i];
            int n = __builtin_popcountll(s);
            if ((s & ~ranks) == 0 && may_run(w, n) && n > __builtin_popcountll(best))
                best = s;
        }
        if (!best)
            return;
        partition_create(w, best, &(struct switch_order){.base = {1, 1, 1}}, now_ns);
        ranks &= ~best;
    }
}

void partition_lose(struct world *w, int rank, int64_t now_ns)
{
    struct partition *p = &w->partition;
    uint64_t living = 0, bit = 1ull << rank;
    p->dead_ranks |= bit;
    p->free_ranks &= ~bit;
    p->left_out &= ~bit;
    for (int i = p->n_pending - 1; i >= 0; i--)
        if (p->pending[i].order.mask & bit) {
            partition_record(p, &p->pending[i], now_ns, true);
            partition_remove(p, i);
        }
    for (int i = 0; i < p->n_groups; i++) {
        struct group *g = partition_slot(p, i);
        if (!(g->mask & bit))
            continue;
        ASSERT(g->idle);
        living = g->mask & ~bit;
        for (int k = 0; k < w->running.n; k++)
            if (w->running.items[k]->group == g->id)
                w->running.items[k]->group = 0;
        partition_dissolve(p, g);
        break;
    }
    lose_kv(w, rank, now_ns);
    kv_forget_rank(&w->kv, rank);
    regroup(w, living, now_ns);
    partition_mark(p);
    struct switch_pending s = {.order = {.mask = bit, .release = true, .fate = FATE_RECOMPUTE}, .since_ns = now_ns};
    snprintf(s.order.reason, sizeof s.order.reason, "rank %d failed", rank);
    partition_record(p, &s, now_ns, false)->failure = true;
}

/* ---- a policy goes */

/* A layout runs on any base of its number of stages only, and few policies know of stages; where ranks hold cuts, of
 * its weights only. */
static void order_back(struct world *w, const struct group *g, int64_t now_ns)
{
    struct layout start = w->partition.start;
    int pp = g->n_ranks % start.pp ? 1 : start.pp;
    struct switch_order o = {
        .mask = g->mask, .base = {g->n_ranks / pp, 1, pp}, .when = WHEN_HARD, .fate = FATE_MIGRATE};
    if (g->base.pp == pp)
        return;
    if (w->residency.facts && layout_size(start) == g->n_ranks)
        o.weights = start;
    else if (w->residency.facts)
        residency_usual(w, g->n_ranks, pp, &o.weights);
    snprintf(o.reason, sizeof o.reason, "the policy that asked for %d stages has gone", g->base.pp);
    if (!partition_refusal(w, &o))
        partition_ask(w, &o, now_ns);
}

bool partition_is_free(const struct partition *p)
{
    static const int by_size[MAX_SETS];
    bool free = !p->n_pending && !p->left_out && !memcmp(p->algorithms, by_size, sizeof by_size);
    for (int i = 0; i < p->n_groups && free; i++) {
        const struct group *g = partition_group(p, i);
        free = !g->shut && g->base.pp == (g->n_ranks % p->start.pp ? 1 : p->start.pp);
    }
    return free;
}

void partition_let_go(struct world *w, int64_t now_ns)
{
    struct partition *p = &w->partition;
    for (int i = p->n_pending - 1; i >= 0; i--)
        partition_drop(p, i, now_ns);
    for (int i = 0; i < p->n_groups; i++)
        partition_slot(p, i)->shut = false;
    memset(p->algorithms, 0, sizeof p->algorithms);
    regroup(w, p->left_out, now_ns);
    p->left_out = 0;
    for (int i = 0; i < p->n_groups; i++)
        order_back(w, partition_group(p, i), now_ns);
    partition_mark(p);
}
