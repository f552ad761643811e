/* KV goes down the tiers before it is lost, and up from the disk before it is computed. Cached blocks that ranks may
 * soon evict are copied to host memory first; where there is a disk below that, all that is cached goes down to it as
 * soon as it can, so that what a restart finds is not old. The oldest go first. A copy holds the blocks at both ends,
 * so it takes no more than what nobody would miss meanwhile; what comes too late is evicted as it would be without the
 * tiers. The blocks above stay cached: whoever finds them there copies nothing. What the next waiting requests would
 * find on the disk is brought to host memory, and they wait for it. Engine thread. */
#include <limits.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "engine/world/world.h"

/* One block in so many of a rank is kept evictable without loss, at best; one in so many of host memory is filled at
 * once, at most, and one in FETCH_SHARE from the disk. FETCH_AHEAD: so many waiting requests are looked at. */
enum { SAFE_SHARE = 4, SAVING_SHARE = 8, FETCH_SHARE = 4, FETCH_AHEAD = 8 };

static bool has_disk(const struct world *w)
{
    return w->kv.disk_place >= 0;
}

/* ---- down */

/* Steps go on to find blocks in each of its stores: half of what is to be safe stays to be had. */
static bool may_hold(const struct world *w, int place)
{
    return kv_available(&w->kv, place) > w->kv.ranks[kv_place(&w->kv, place)->ranks[0]].n_blocks / (2 * SAFE_SHARE);
}

/* The next block to go down to a place. */
static int32_t next(const struct world *w, int below, int *place)
{
    int safe = w->kv.n_blocks / SAFE_SHARE;
    return kv_next_unsaved(&w->kv, below, has_disk(w) ? INT_MAX : safe ? safe : 1, place);
}

/* Takes so many blocks below for the oldest unsaved block of this place, and holds both. */
static void add(struct world *w, struct kv_copy *m, int32_t block)
{
    const struct kv_key *keys = kv_below_keys(&w->kv, m->from_place, block);
    kv_hold(&w->kv, m->from_place, block);
    m->from[m->n_from++] = block;
    for (int i = 0; i < kv_place(&w->kv, m->from_place)->n_below; i++) {
        int32_t to = kv_take(&w->kv, m->to_place);
        ASSERT(to >= 0);
        m->keys[m->n_to] = keys[i];
        m->to[m->n_to++] = to;
    }
}

/* A copy of cached blocks, for room blocks at its other end. */
static struct kv_copy *begin(struct world *w, int from_place, int to_place, int n_from, int room)
{
    struct kv_copy *m = world_add_copy(w, from_place, n_from);
    m->n_from = 0;
    m->to_place = to_place;
    m->beside = true;
    m->n_resets = w->kv.n_resets;
    m->to = mem_new_array((size_t)room, sizeof *m->to);
    m->keys = mem_new_array((size_t)room, sizeof *m->keys);
    return m;
}

/* Blocks under way to this place by copies of cached ones. */
static int *under_way(struct world *w, int to_place)
{
    return to_place == w->kv.disk_place ? &w->n_writing : &w->n_saving;
}

/* One copy, of blocks of one place. False: there is nothing to save, or no room to do it. */
static bool save_some(struct world *w, int below, int most)
{
    int place, at, room = kv_available(&w->kv, below) - kv_place(&w->kv, below)->n_blocks / 2;
    int32_t block = next(w, below, &place);
    if (block < 0 || !may_hold(w, place))
        return false;
    int *n = under_way(w, below), each = kv_place(&w->kv, place)->n_below, left = most - *n;
    left = !*n && left < each ? each : left;
    room = room < left ? room : left;
    if (room < each)
        return false;
    struct kv_copy *m = begin(w, place, below, room / each, room);
    m->out = true;
    for (at = place; block >= 0 && at == place && m->n_to + each <= room && may_hold(w, place);
         block = next(w, below, &at))
        add(w, m, block);
    m->n_tokens = m->n_from * kv_place(&w->kv, place)->tokens_per_block;
    *n += m->n_to;
    if (below == w->kv.host_place)
        metrics_add(w->metrics, C_SAVED_TOKENS, (uint64_t)m->n_tokens);
    return true;
}

void world_save_cached(struct world *w, int most)
{
    int host = w->kv.host_place;
    if (host < 0 || !w->limits.prefix_caching)
        return;
    int blocks = kv_blocks_for(&w->kv, host, most), share = kv_place(&w->kv, host)->n_blocks / SAVING_SHARE;
    blocks = blocks < share ? blocks : share;
    while (has_disk(w) && !w->disk_is_read_only && save_some(w, w->kv.disk_place, blocks))
        ;
    while (save_some(w, host, blocks))
        ;
}

/* ---- up from the disk */

/* Tokens of its prompt that every group has on its own ranks. */
static int had_by_all(const struct world *w, struct request *r)
{
    int least = INT_MAX;
    for (int i = 0; i < w->partition.n_groups; i++) {
        int place = partition_group(&w->partition, i)->place;
        int n = world_prefix(w, r, place) * kv_place(&w->kv, place)->tokens_per_block;
        least = n < least ? n : least;
    }
    return least == INT_MAX ? 0 : least;
}

/* Is it cheaper to bring tokens from the disk than to compute them? What is not measured any more may have changed:
 * each request that goes without makes the next more likely to try. */
static bool worth_fetching(struct world *w)
{
    struct world_cost *c = &w->cost;
    bool yes = c->disk_ns_per_token + c->swap_ns_per_token < c->prefill_ns_per_token;
    if (!yes)
        c->disk_ns_per_token *= 0.95;
    return yes;
}

/* Block `i` of its timeline in a place of host blocks; -1: it is not there. */
static int32_t find(const struct world *w, struct request *r, int place, int i)
{
    int units = kv_place(&w->kv, place)->tokens_per_block / KV_UNIT;
    return kv_lookup(&w->kv, place, world_keys(w, r)[(i + 1) * units - 1]);
}

/* Holds its blocks [first, end) in host memory, or lets them go again, so that they are the last to be evicted; returns
 * how many of them are not there. */
static int hold_in_host(struct world *w, struct request *r, int first, int end, bool hold)
{
    int n = 0, host = w->kv.host_place;
    for (int i = first; i < end; i++) {
        int32_t block = find(w, r, host, i);
        n += block < 0;
        if (block >= 0)
            (hold ? kv_hold : kv_drop)(&w->kv, host, block);
    }
    return n;
}

/* Brings so many of its blocks from `first` on that host memory lacks: all lie on the disk. */
static void bring(struct world *w, struct request *r, int first, int n)
{
    int host = w->kv.host_place, disk = w->kv.disk_place, tpb = kv_place(&w->kv, disk)->tokens_per_block;
    struct kv_copy *m = begin(w, disk, host, n, n);
    m->id = r->id;
    for (int i = first; m->n_from < n; i++) {
        if (find(w, r, host, i) >= 0)
            continue;
        int32_t from = find(w, r, disk, i), to = kv_take(&w->kv, host);
        ASSERT(from >= 0 && to >= 0);
        kv_hold(&w->kv, disk, from);
        m->from[m->n_from++] = from;
        m->keys[m->n_to] = world_keys(w, r)[(i + 1) * (tpb / KV_UNIT) - 1];
        m->to[m->n_to++] = to;
    }
    m->n_tokens = n * tpb;
    w->n_fetching += n;
    w->n_copying++;
    r->n_moving++;
}

/* Blocks of host memory that may be brought now. */
static int fetch_room(const struct world *w)
{
    const struct kv_place *host = kv_place(&w->kv, w->kv.host_place);
    int room = kv_available(&w->kv, w->kv.host_place), left = host->n_blocks / FETCH_SHARE - w->n_fetching;
    return room < left ? room : left;
}

/* False: there is no room now. What there is is not worth it: true, too. */
static bool fetch(struct world *w, struct request *r)
{
    int host = w->kv.host_place, tpb = kv_place(&w->kv, host)->tokens_per_block;
    int whole = (r->n_tokens - 1) / tpb, first = had_by_all(w, r) / tpb, end = first;
    while (end < whole && (find(w, r, host, end) >= 0 || find(w, r, w->kv.disk_place, end) >= 0))
        end++;
    int n = hold_in_host(w, r, first, end, true), want = n && worth_fetching(w) ? n : 0;
    int room = fetch_room(w);
    n = want < room ? want : room;
    if (n > 0)
        bring(w, r, first, n);
    hold_in_host(w, r, first, end, false);
    return n > 0 || !want;
}

void world_fetch(struct world *w)
{
    if (!has_disk(w) || !w->limits.prefix_caching || fetch_room(w) <= 0)
        return;
    for (int i = 0, seen = 0; i < w->waiting.n && seen < FETCH_AHEAD; i++) {
        struct request *r = w->waiting.items[i];
        if (!world_eligible(w, r))
            continue;
        seen++;
        if (!r->sought && !r->n_moving && world_may_share(w, r))
            r->sought = fetch(w, r);
    }
}

/* ---- landed */

/* Copies that a disk took part in may end early. */
static int landed(struct world *w, const struct kv_copy *m)
{
    bool up = m->from_place == w->kv.disk_place, down = m->to_place == w->kv.disk_place;
    int tokens = kv_place(&w->kv, w->kv.host_place)->tokens_per_block, n = up || down ? m->n_landed : m->n_to;
    if (up || down)
        metrics_add(w->metrics, up ? C_DISK_READ_TOKENS : C_DISK_WRITTEN_TOKENS, (uint64_t)(n * tokens));
    if (n < m->n_to)
        metrics_add(w->metrics, C_DISK_FAILURES, 1);
    if (n < m->n_to && up)
        kv_unpublish(&w->kv, m->from_place, m->from[n]); /* nobody tries it again */
    w->disk_is_read_only |= n < m->n_to && down;
    return n;
}

void world_saved(struct world *w, struct kv_copy *m)
{
    struct kv_pool *kv = &w->kv;
    bool up = m->from_place == kv->disk_place, forgotten = m->n_resets != kv->n_resets;
    int each = m->n_to / m->n_from, n = landed(w, m);
    for (int i = m->n_to - 1; i >= 0; i--) {
        int32_t from = m->from[i / each];
        if (forgotten)
            kv_unpublish(kv, m->from_place, from);
        if (i < n && kv_is_keyed(kv, m->from_place, from)) /* what a failed rank had a part of has no key any more */
            kv_publish(kv, m->to_place, m->to[i], m->keys[i]);
        kv_drop(kv, m->to_place, m->to[i]);
    }
    for (int i = 0; i < m->n_from; i++)
        if (up) /* the end of a chain is to go first */
            kv_drop(kv, m->from_place, m->from[m->n_from - 1 - i]);
        else
            kv_drop_unused(kv, m->from_place, m->from[i]);
    *(up ? &w->n_fetching : under_way(w, m->to_place)) -= m->n_to;
}
