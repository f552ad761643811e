/* Which way FFN layers take where weights are pooled: the verb, and what it makes of a group's next step. */
#include <stdio.h>
#include <string.h>

#include "engine/world/plan_inner.h"

static const char not_pooled[] = "every rank has all weights: start with --weights pooled";

static bool is_range(struct plan *p, int from, int to)
{
    int n = p->world->ffn->n_layers;
    if (from >= 0 && from < to && to <= n)
        return true;
    char *text = arena_new(&p->arena, 80);
    snprintf(text, 80, "no such layers: the model has the layers 0 to %d", n - 1);
    return plan_no(p, text);
}

/* Words of a refusal that have numbers in them live as long as the plan. */
static bool refuse_rank(struct plan *p, int layer, int owner, int rank)
{
    char *text = arena_new(&p->arena, 160);
    snprintf(text, 160,
             "the FFN of layer %d lies on rank %d, so for rank %d it is not local: \"was\" fetches it, \"cas\" sends "
             "rows there",
             layer, owner, rank);
    return plan_no(p, text);
}

/* Of a layer that lies in shares no rank can multiply whole rows, and which step has its share at hand is a matter of
 * its layout. */
static bool refuse_shares(struct plan *p, int layer)
{
    char *text = arena_new(&p->arena, 160);
    snprintf(text, 160,
             "the FFN of layer %d is cut into shares on %d ranks, and no rank has all of it: \"was\" fetches it", layer,
             ffn_shares(p->world->ffn, layer));
    return plan_no(p, text);
}

static bool are_whole(struct plan *p, int from, int to)
{
    for (int l = from; l < to; l++)
        if (ffn_shares(p->world->ffn, l) > 1)
            return refuse_shares(p, l);
    return true;
}

/* Does every rank of the mask own all of these layers? No rank can share a layer with another. */
static bool all_own(struct plan *p, uint64_t ranks, int from, int to)
{
    const struct ffn_setup *f = p->world->ffn;
    for (int l = from; l < to; l++)
        for (int r = 0; r < f->n_ranks; r++)
            if (ranks >> r & 1 && !ffn_owns(f, l, r))
                return refuse_rank(p, l, ffn_owner(f, l, 0), r);
    return true;
}

/* The modes as they would be after the verbs so far: by slot of the partition, and last those of groups to come. */
static struct ffn_modes *modes_after(struct plan *p)
{
    if (p->ffn)
        return p->ffn;
    p->ffn = arena_new(&p->arena, (MAX_RANKS + 1) * sizeof *p->ffn);
    for (int i = 0; i < MAX_RANKS; i++)
        p->ffn[i] = p->world->partition.groups[i].ffn;
    p->ffn[MAX_RANKS] = p->world->ffn_usual;
    return p->ffn;
}

/* False: it was so already. */
static bool change(struct ffn_modes *m, int from, int to, enum ffn_mode mode)
{
    struct ffn_modes before = *m;
    ffn_set(m, from, to, mode);
    return memcmp(&before, m, sizeof before) != 0;
}

static bool change_all(struct plan *p, const struct group *g, int from, int to, enum ffn_mode mode)
{
    const struct partition *all = &p->world->partition;
    struct ffn_modes *after = modes_after(p);
    bool changed = !g && change(&after[MAX_RANKS], from, to, mode);
    for (int i = 0; i < all->n_groups; i++)
        if (!g || partition_group(all, i) == g)
            changed |= change(&after[all->order[i]], from, to, mode);
    return changed;
}

bool plan_ffn(struct plan *p, int group, int from, int to, enum ffn_mode mode)
{
    const struct ffn_setup *f = p->world->ffn;
    const struct group *g = group == PLAN_ALL_GROUPS ? NULL : partition_find(&p->world->partition, group);
    if (!f)
        return plan_no(p, not_pooled);
    if (g ? plan_is_others_group(p, g) : group == PLAN_ALL_GROUPS && plan_is_shared(p))
        return false;
    if (group != PLAN_ALL_GROUPS && !g)
        return plan_no(p, "no such group (any more)");
    if (!is_range(p, from, to))
        return false;
    if (mode != FFN_WAS && !are_whole(p, from, to))
        return false;
    if (mode == FFN_LOCAL && !all_own(p, g ? g->mask : rank_range(0, f->n_ranks), from, to))
        return false;
    if (!change_all(p, g, from, to, mode))
        return true;
    struct plan_verb *v = plan_add_verb(p, PLAN_FFN, NULL);
    v->group = group;
    v->from = from;
    v->to = to;
    v->mode = mode;
    return true;
}

void plan_apply_ffn(struct world *w, const struct plan_verb *v)
{
    if (v->group == PLAN_ALL_GROUPS)
        ffn_set(&w->ffn_usual, v->from, v->to, v->mode);
    for (int i = 0; i < w->partition.n_groups; i++) {
        struct group *g = partition_slot(&w->partition, i);
        if (v->group == PLAN_ALL_GROUPS || v->group == g->id)
            ffn_set(&g->ffn, v->from, v->to, v->mode);
    }
}

/* ---- pooling on demand */

/* Has this plan said something about how one of these layers lies? */
static bool is_decided(const struct plan *p, int from, int to)
{
    for (int i = 0; i < p->n_verbs; i++)
        if (p->verbs[i].kind == PLAN_WEIGHTS && p->verbs[i].from < to && from < p->verbs[i].to)
            return true;
    return false;
}

/* Takes the blocks of the copies of layers [from, to) out of what the plan may use. */
static bool take_for_copies(struct plan *p, int from, int to)
{
    const struct world *w = p->world;
    int need[MAX_RANKS];
    for (int l = from; l < to; l++)
        if (w->replicas.layers[l].state == REPLICA_GOING)
            return plan_no(p, "the copies of a layer are just being given up: ask again");
    replica_needs(w, from, to, need);
    const char *why = replica_refusal(w, need);
    if (why)
        return plan_no(p, why);
    for (int r = 0; r < w->kv.n_ranks; r++)
        if (need[r] > p->blocks_free[r])
            return plan_no(p, "sequences hold the KV blocks that the copies would need");
    for (int r = 0; r < w->kv.n_ranks; r++)
        p->blocks_free[r] -= need[r];
    return true;
}

static bool is_so(const struct replicas *r, int from, int to, bool replicated)
{
    for (int l = from; l < to; l++)
        if (replica_is_wanted(r, l) != replicated)
            return false;
    return true;
}

bool plan_weights(struct plan *p, int from, int to, bool replicated)
{
    const struct world *w = p->world;
    if (!w->ffn)
        return plan_no(p, not_pooled);
    if (plan_is_shared(p) || !is_range(p, from, to))
        return false;
    if (is_decided(p, from, to))
        return plan_no(p, "this plan has already said how one of these layers lies");
    if (is_so(&w->replicas, from, to, replicated))
        return true;
    if (replicated && !take_for_copies(p, from, to))
        return false;
    struct plan_verb *v = plan_add_verb(p, PLAN_WEIGHTS, NULL);
    v->from = from;
    v->to = to;
    v->replicated = replicated;
    return true;
}

void plan_apply_weights(struct world *w, const struct plan_verb *v)
{
    if (!v->replicated)
        world_pool(w, v->from, v->to);
    for (int l = v->from; v->replicated && l < v->to; l++)
        if (w->replicas.layers[l].state == REPLICA_NONE)
            world_replicate(w, l);
        else
            w->replicas.wanted[l / 64] |= 1ull << (l % 64); /* its copies were to go, and had not begun to */
}

/* ---- a step */

struct ffn_modes ffn_of_step(const struct world *w, const struct ffn_modes *group, struct layout l)
{
    struct ffn_modes m = {0};
    if (w->ffn && l.tp <= 1)
        m = *group;
    for (int i = 0; w->ffn && i < w->ffn->n_layers; i++)
        if (w->replicas.layers[i].state == REPLICA_HERE) {
            m.here[i / 64] |= 1ull << (i % 64);
            m.cas[i / 64] &= ~(1ull << (i % 64));
        }
    return m;
}

void ffn_measure(struct ffn_measured *m, double fetch_ns, double wait_ns)
{
    double weight = m->n_steps ? 0.1 : 1;
    m->fetch_ns += weight * (fetch_ns - m->fetch_ns);
    m->wait_ns += weight * (wait_ns - m->wait_ns);
    m->n_steps++;
}

static bool owns(const struct ffn_setup *f, int layer, uint64_t ranks)
{
    return ranks == 1ull << ffn_owner(f, layer, 0) && ffn_shares(f, layer) == 1;
}

int ffn_way(const struct world *w, const struct group *g)
{
    int n = 0, n_cas = 0;
    for (int l = 0; w->ffn && l < w->ffn->n_layers; l++)
        if (!owns(w->ffn, l, g->mask) && w->replicas.layers[l].state != REPLICA_HERE) {
            n++;
            n_cas += ffn_is_cas(&g->ffn, l);
        }
    return n == 0 ? FFN_LOCAL : n_cas == 0 ? FFN_WAS : n_cas == n ? FFN_CAS : FFN_MIXED;
}

const char *ffn_way_name(int way)
{
    return way == FFN_MIXED ? "mixed" : ffn_mode_name((enum ffn_mode)way);
}

/* Does a step of this group run, or begin with this plan (or NULL)? */
static bool has_work(const struct group *g, const struct plan *p)
{
    for (int i = 0; p && i < p->n_batches; i++)
        if (p->batches[i]->forwarded && p->batches[i]->group_id == g->id)
            return true;
    return !g->idle;
}

int ffn_ranks_at_work(const struct world *w, const struct group *g, const struct plan *p)
{
    int n = 0;
    for (int i = 0; w->ffn && i < w->partition.n_groups; i++) {
        const struct group *x = partition_group(&w->partition, i);
        n += x->id == g->id || has_work(x, p) ? x->n_ranks : 0;
    }
    return n;
}

void plan_size_ffn(const struct world *w, const struct plan *p, const struct group *g, struct layout l,
                   struct step_size *s)
{
    const struct ffn_modes *after = p && p->ffn ? &p->ffn[g - w->partition.groups] : &g->ffn;
    struct ffn_modes m = ffn_of_step(w, after, l);
    s->pool_ranks = ffn_ranks_at_work(w, g, p);
    s->cas_layers = w->ffn ? ffn_count_cas(&m, w->ffn->n_layers) : 0;
    s->replica_layers = w->ffn ? ffn_count_here(&m, w->ffn->n_layers) : 0;
}
