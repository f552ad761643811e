/* The two sides of a plan (side.h): whose verbs are being called and what they may reach, and the canary's part, which
 * can go while the live policy's stands. */
#include <string.h>

#include "engine/world/plan_inner.h"

void plan_take_side(struct plan *p, enum side s)
{
    p->side = s;
    p->n_running = side_running(p->world, s);
    p->seats = side_seats(p->world, s);
    p->wake_ns = 0;
    p->n_logs = 0;
    p->pressed = false;
    p->reason = NULL;
}

bool plan_is_others(struct plan *p, const struct request *r)
{
    if (side_has(p->side, r->canary))
        return false;
    p->reason = p->side == SIDE_CANARY ? "the live policy decides for this request, not the canary"
                                       : "a canary decides for this request";
    return true;
}

bool plan_is_others_group(struct plan *p, const struct group *g)
{
    if (side_has(p->side, g->canary))
        return false;
    p->reason = p->side == SIDE_CANARY ? "the live policy decides for this group, not the canary"
                                       : "a canary decides for this group";
    return true;
}

bool plan_is_shared(struct plan *p)
{
    if (p->side == SIDE_ALL)
        return false;
    p->reason = "it is about the groups of two policies: not while a canary runs";
    return true;
}

const char *plan_side_refusal(const struct plan *p, const struct switch_order *o)
{
    if (p->side == SIDE_ALL)
        return NULL;
    if (o->mask & ~side_ranks(p->world, p->side))
        return p->side == SIDE_CANARY ? "the live policy decides for one of these ranks, not the canary"
                                      : "a canary decides for one of these ranks";
    return partition_stands(&p->world->partition, o) ? NULL : "the partition stays as it is while a canary runs";
}

/* ---- the canary's part */

static size_t ffn_bytes(const struct plan *p)
{
    return (MAX_RANKS + 1) * sizeof *p->ffn;
}

static void set_mark(struct plan *p)
{
    size_t n = (size_t)p->world->kv.n_stores * sizeof *p->blocks_free;
    p->mark = (struct plan_mark){.set = true,
                                 .n_batches = p->n_batches,
                                 .n_verbs = p->n_verbs,
                                 .n_running = p->n_running,
                                 .blocks_free = arena_copy(&p->arena, p->blocks_free, n),
                                 .ffn = p->ffn ? arena_copy(&p->arena, p->ffn, ffn_bytes(p)) : NULL,
                                 .wake_ns = p->wake_ns,
                                 .leaving = p->leaving,
                                 .pressed = p->pressed};
}

/* Back to the mark: the requests are free for other verbs. */
static void go_back(struct plan *p)
{
    const struct plan_mark *m = &p->mark;
    for (int i = m->n_batches; i < p->n_batches; i++)
        for (int k = 0; k < p->batches[i]->n_items; k++)
            p->batches[i]->items[k].request->plan_serial = 0;
    for (int i = m->n_verbs; i < p->n_verbs; i++)
        if (p->verbs[i].request)
            p->verbs[i].request->plan_serial = 0;
    p->n_batches = m->n_batches;
    p->n_verbs = m->n_verbs;
    p->leaving = m->leaving;
    memcpy(p->blocks_free, m->blocks_free, (size_t)p->world->kv.n_stores * sizeof *p->blocks_free);
    p->ffn = m->ffn ? arena_copy(&p->arena, m->ffn, ffn_bytes(p)) : NULL;
}

void plan_begin_canary(struct plan *p)
{
    if (p->mark.set)
        go_back(p);
    else
        set_mark(p);
    plan_take_side(p, SIDE_CANARY);
}

void plan_end_canary(struct plan *p)
{
    const struct plan_mark *m = &p->mark;
    p->side = SIDE_ALL;
    p->n_running += m->n_running;
    p->seats = side_seats(p->world, SIDE_ALL);
    p->pressed |= m->pressed;
    if (m->wake_ns && (!p->wake_ns || m->wake_ns < p->wake_ns))
        p->wake_ns = m->wake_ns;
}
