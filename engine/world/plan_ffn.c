/* Which way FFN layers take where weights are pooled: the verb, and what it makes of a group's next step. */
#include <stdio.h>
#include <string.h>

#include "engine/world/plan_inner.h"

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

/* Does every rank of the mask own all of these layers? No rank can share a layer with another. */
static bool all_own(struct plan *p, uint64_t ranks, int from, int to)
{
    const struct ffn_setup *f = p->world->ffn;
    for (int l = from; l < to; l++)
        for (int r = 0; r < f->n_ranks; r++)
            if (ranks >> r & 1 && f->owner[l] != r)
                return refuse_rank(p, l, f->owner[l], r);
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
        return plan_no(p, "every rank has all weights: start with --weights pooled");
    if (group != PLAN_ALL_GROUPS && !g)
        return plan_no(p, "no such group (any more)");
    if (from < 0 || from >= to || to > f->n_layers) {
        char *text = arena_new(&p->arena, 80);
        snprintf(text, 80, "no such layers: the model has the layers 0 to %d", f->n_layers - 1);
        return plan_no(p, text);
    }
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

/* ---- a step */

struct ffn_modes ffn_of_step(const struct world *w, const struct ffn_modes *group, struct layout l)
{
    return w->ffn && l.tp <= 1 ? *group : (struct ffn_modes){{0}};
}

void ffn_measure(struct ffn_measured *m, double fetch_ns, double wait_ns)
{
    double weight = m->n_steps ? 0.1 : 1;
    m->fetch_ns += weight * (fetch_ns - m->fetch_ns);
    m->wait_ns += weight * (wait_ns - m->wait_ns);
    m->n_steps++;
}

int ffn_way(const struct world *w, const struct group *g)
{
    int n = 0, n_cas = 0;
    for (int l = 0; w->ffn && l < w->ffn->n_layers; l++)
        if (g->mask != 1ull << w->ffn->owner[l]) {
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
}
