#include "engine/base/mem.h"
#include "engine/world/kv.h"

/* The books of the KV blocks, recounted: all of them for tests and at the end of a simulation, a part of them while a
 * server goes on. */

static bool is_keyed(const struct kv_block *b)
{
    return b->key.h[0] | b->key.h[1];
}

/* Its references, its key and where it lies, by themselves. */
static bool check_block(const struct kv_place *l, int i)
{
    const struct kv_block *b = &l->blocks[i];
    uint64_t id;
    if (b->refs < 0 || (is_keyed(b) && (!map_find(&l->index, b->key.h[0], &id) || (int)id != i)))
        return false;
    if (!b->refs && !is_keyed(b))
        return true;
    for (int k = 0; k < l->n; k++)
        if (l->phys[(int64_t)i * l->n + k] < 0 || l->phys[(int64_t)i * l->n + k] >= l->n_blocks)
            return false;
    return !b->refs || list_empty(&b->loss);
}

/* ---- all of it */

/* What places have on each rank. */
struct recount {
    int held[MAX_RANKS], cached[MAX_RANKS], unsaved[MAX_RANKS];
    unsigned char *seen[MAX_RANKS]; /* [blocks of the rank] */
};

/* Counts what a place has on each rank; false when its own books do not agree. */
static bool check_place(const struct kv_place *l, struct recount *c)
{
    int keys = 0, n_cached = 0, listed = 0, used = 0;
    for (int i = 0; i < l->n_blocks; i++) {
        const struct kv_block *b = &l->blocks[i];
        if (!check_block(l, i))
            return false;
        keys += is_keyed(b);
        if (!b->refs && !is_keyed(b))
            continue;
        used++;
        n_cached += b->refs == 0;
        for (int k = 0; k < l->n; k++) {
            int32_t phys = l->phys[(int64_t)i * l->n + k];
            if (c->seen[l->ranks[k]][phys]++)
                return false;
            (b->refs ? c->held : c->cached)[l->ranks[k]]++;
            c->unsaved[l->ranks[k]] += !list_empty(&b->loss);
        }
    }
    LIST_EACH(n, &l->cached)
    listed++;
    LIST_EACH(n, &l->saved)
    listed++;
    return n_cached == l->n_cached && listed == n_cached && keys == (int)l->index.count &&
           used + l->n_unused == l->n_blocks;
}

bool kv_check(const struct kv_pool *p)
{
    struct recount c = {0};
    bool good = true;
    for (int r = 0; r < p->n_stores; r++)
        c.seen[r] = mem_new((size_t)p->ranks[r].n_blocks);
    for (int i = 0; i < p->n_places && good; i++)
        good = check_place(p->places[i], &c);
    for (int r = 0; r < p->n_stores && good; r++) {
        const struct kv_rank *k = &p->ranks[r];
        good = c.cached[r] == k->n_cached && c.unsaved[r] == k->n_unsaved &&
               c.held[r] + c.cached[r] + k->n_free + k->n_lent == k->n_blocks;
        for (int i = 0; i < k->n_free && good; i++)
            good = !c.seen[r][k->free_list[i]]++;
    }
    for (int r = 0; r < p->n_stores; r++)
        mem_free(c.seen[r]);
    return good;
}

/* ---- a part */

/* What is counted as it goes, against its bounds. */
static bool check_sums(const struct kv_pool *p)
{
    for (int r = 0; r < p->n_stores; r++) {
        const struct kv_rank *k = &p->ranks[r];
        if (k->n_free < 0 || k->n_cached < 0 || k->n_lent < 0 || k->n_unsaved < 0 || k->n_unsaved > k->n_cached ||
            k->n_free + k->n_cached + k->n_lent > k->n_blocks)
            return false;
    }
    for (int i = 0; i < p->n_places; i++) {
        const struct kv_place *l = p->places[i];
        int used = l->n_blocks - l->n_unused;
        if (used < 0 || l->n_unused < 0 || l->n_cached < 0 || l->n_cached > used || (int)l->index.count > used)
            return false;
    }
    return true;
}

/* How many blocks a full recount looks at. */
static int64_t blocks_in_all(const struct kv_pool *p)
{
    int64_t n = 0;
    for (int r = 0; r < p->n_stores; r++)
        n += p->ranks[r].n_blocks;
    for (int i = 0; i < p->n_places; i++)
        n += (int64_t)p->places[i]->n_blocks * p->places[i]->n;
    return n;
}

bool kv_check_part(const struct kv_pool *p, struct kv_cursor *at)
{
    if (blocks_in_all(p) <= KV_CHECK_PART)
        return kv_check(p);
    if (!check_sums(p))
        return false;
    for (int n = 0, places = 0; n < KV_CHECK_PART && places <= p->n_places;) {
        const struct kv_place *l = at->place < p->n_places ? p->places[at->place] : NULL;
        if (!l || at->block >= l->n_blocks) {
            at->place = l && at->place + 1 < p->n_places ? at->place + 1 : 0;
            at->block = 0;
            places++;
            continue;
        }
        if (!check_block(l, at->block++))
            return false;
        n += l->n;
    }
    return true;
}
