#include "engine/world/kv.h"

#include <string.h>

#include "engine/base/check.h"
#include "engine/base/hash.h"
#include "engine/base/mem.h"
#include "engine/base/seen.h"

static bool keyed(const struct kv_block *b)
{
    return b->key.h[0] | b->key.h[1];
}

static void open_store(struct kv_rank *r, int n_blocks)
{
    r->free_list = mem_new_array((size_t)n_blocks, sizeof(int32_t));
    r->n_blocks = r->n_free = n_blocks;
    for (int i = 0; i < n_blocks; i++)
        r->free_list[i] = n_blocks - 1 - i; /* the lowest block is taken first */
}

void kv_init(struct kv_pool *p, int n_ranks, int n_blocks)
{
    memset(p, 0, sizeof *p);
    p->n_ranks = p->n_stores = n_ranks;
    p->n_blocks = n_blocks;
    p->host_place = p->disk_place = -1;
    p->hasher = hasher_create();
    p->ranks = seen_new_array((size_t)n_ranks + 2, sizeof *p->ranks);
    for (int r = 0; r < n_ranks; r++)
        open_store(&p->ranks[r], n_blocks);
}

void kv_open_host(struct kv_pool *p, int n_blocks, int tokens_per_block)
{
    int store = p->n_ranks;
    ASSERT(p->n_places == 0 && store < MAX_RANKS && n_blocks > 0);
    open_store(&p->ranks[p->n_stores++], n_blocks);
    p->host_place = kv_place_open(p, &(struct kv_place_setup){&store, 1, 1, 1, tokens_per_block});
}

static void place_close(struct kv_place *l)
{
    mem_free(l->blocks);
    mem_free(l->phys);
    mem_free(l->unused);
    mem_free(l->below_keys);
    map_free(&l->index);
    mem_free(l);
}

void kv_free(struct kv_pool *p)
{
    for (int i = 0; i < p->n_places; i++)
        place_close(p->places[i]);
    for (int r = 0; r < p->n_stores; r++)
        mem_free(p->ranks[r].free_list);
    mem_free(p->ranks);
    hasher_destroy(p->hasher);
    memset(p, 0, sizeof *p);
}

int kv_place_find(const struct kv_pool *p, const int *ranks, int n, int stages)
{
    for (int i = 0; i < p->n_places; i++) {
        const struct kv_place *l = p->places[i];
        if (l->n == n && l->stages == stages && memcmp(l->ranks, ranks, (size_t)n * sizeof *ranks) == 0)
            return i;
    }
    return -1;
}

/* Its blocks can be saved when their bounds are bounds of those below wherever a sequence begins. */
static void open_saving(const struct kv_pool *p, struct kv_place *l, int below)
{
    l->below = below;
    if (below < 0 || l->tokens_per_block % p->places[below]->tokens_per_block)
        return;
    l->n_below = l->tokens_per_block / p->places[below]->tokens_per_block;
    l->below_keys = mem_new_array((size_t)l->n_blocks * (size_t)l->n_below, sizeof *l->below_keys);
}

int kv_place_open(struct kv_pool *p, const struct kv_place_setup *s)
{
    int found = kv_place_find(p, s->ranks, s->n, s->stages), n = s->n;
    if (found >= 0 || p->n_places == MAX_PLACES)
        return found;
    ASSERT(n >= 1 && n <= p->n_stores && s->stages >= 1 && n % s->stages == 0);
    ASSERT(s->pieces >= 1 && s->tokens_per_block > 0 && s->tokens_per_block % (KV_UNIT * s->pieces) == 0);
    struct kv_place *l = seen_new(sizeof *l);
    size_t blocks = (size_t)p->ranks[s->ranks[0]].n_blocks;
    l->n = n;
    l->n_blocks = (int)blocks;
    l->stages = s->stages;
    l->pieces = s->pieces;
    l->tokens_per_block = s->tokens_per_block;
    for (int i = 0; i < n; i++) {
        l->ranks[i] = s->ranks[i];
        l->mask |= 1ull << s->ranks[i];
    }
    l->blocks = mem_new_array(blocks, sizeof *l->blocks);
    l->phys = mem_new_array(blocks * (size_t)n, sizeof *l->phys);
    l->unused = mem_new_array(blocks, sizeof *l->unused);
    l->n_unused = l->n_blocks;
    for (int i = 0; i < l->n_blocks; i++) {
        l->unused[i] = l->n_blocks - 1 - i;
        list_init(&l->blocks[i].lru);
        list_init(&l->blocks[i].loss);
    }
    list_init(&l->cached);
    list_init(&l->saved);
    list_init(&l->unsaved);
    l->below = -1;
    if (s->ranks[0] < p->n_ranks)
        open_saving(p, l, p->host_place);
    map_init(&l->index);
    p->places[p->n_places] = l;
    return p->n_places++;
}

void kv_open_disk(struct kv_pool *p, int n_blocks)
{
    int store = p->n_stores;
    ASSERT(p->n_places == 1 && p->host_place == 0 && store < MAX_RANKS && n_blocks > 0);
    struct kv_place *host = p->places[p->host_place];
    open_store(&p->ranks[p->n_stores++], n_blocks);
    p->disk_place = kv_place_open(p, &(struct kv_place_setup){&store, 1, 1, 1, host->tokens_per_block});
    open_saving(p, host, p->disk_place);
}

int kv_available(const struct kv_pool *p, int place)
{
    const struct kv_place *l = p->places[place];
    int least = l->n_blocks;
    for (int i = 0; i < l->n; i++) {
        const struct kv_rank *r = &p->ranks[l->ranks[i]];
        least = r->n_free + r->n_cached < least ? r->n_free + r->n_cached : least;
    }
    return least;
}

/* The memory of a rank is its layers' blocks, layer by layer. Taken as that of fewer layers, each has so many times as
 * many blocks: block b of the rank is b, b + n_blocks, ... of those. */
void kv_fill_pieces(const struct kv_pool *p, int place, int share, const int32_t *blocks, int n, int32_t *out)
{
    int pieces = p->places[place]->pieces;
    for (int i = 0; i < n; i++)
        for (int k = 0; k < pieces; k++)
            *out++ = blocks[i] < 0 ? -1 : kv_phys(p, place, blocks[i], share) + k * p->n_blocks;
}

/* The physical blocks of an unreferenced block go back to their ranks; its number stands for nothing again. */
static void let_go(struct kv_pool *p, struct kv_place *l, int32_t id)
{
    for (int i = 0; i < l->n; i++) {
        struct kv_rank *r = &p->ranks[l->ranks[i]];
        r->free_list[r->n_free++] = l->phys[(int64_t)id * l->n + i];
    }
    l->unused[l->n_unused++] = id;
}

static void count_cached(struct kv_pool *p, struct kv_place *l, int by)
{
    l->n_cached += by;
    for (int i = 0; i < l->n; i++)
        p->ranks[l->ranks[i]].n_cached += by;
}

static void count_unsaved(struct kv_pool *p, struct kv_place *l, int by)
{
    for (int i = 0; i < l->n; i++)
        p->ranks[l->ranks[i]].n_unsaved += by;
}

/* Does the tier below lack any of it? */
static bool would_be_lost(const struct kv_pool *p, const struct kv_place *l, const struct kv_block *b)
{
    for (int i = 0; i < l->n_below; i++)
        if (kv_lookup(p, l->below, l->below_keys[(int64_t)(b - l->blocks) * l->n_below + i]) < 0)
            return true;
    return false;
}

/* A block becomes cached, or is so no more. */
static void enter_cached(struct kv_pool *p, struct kv_place *l, struct kv_block *b, struct list *list)
{
    list_push_back(list, &b->lru);
    count_cached(p, l, 1);
    if (would_be_lost(p, l, b)) {
        list_push_back(&l->unsaved, &b->loss);
        count_unsaved(p, l, 1);
    }
}

static void leave_cached(struct kv_pool *p, struct kv_place *l, struct kv_block *b)
{
    list_remove(&b->lru);
    count_cached(p, l, -1);
    if (!list_empty(&b->loss)) {
        list_remove(&b->loss);
        count_unsaved(p, l, -1);
    }
}

static void forget_key(struct kv_place *l, struct kv_block *b)
{
    map_remove(&l->index, b->key.h[0]);
    l->n_left++;
    memset(&b->key, 0, sizeof b->key);
}

static void forget_cached(struct kv_pool *p, struct kv_place *l, struct kv_block *b)
{
    leave_cached(p, l, b);
    forget_key(l, b);
    let_go(p, l, (int32_t)(b - l->blocks));
}

/* NULL: none is cached. */
static struct kv_block *oldest_cached(const struct kv_place *l)
{
    struct kv_block *a = LIST_ENTRY(l->cached.next, struct kv_block, lru);
    struct kv_block *b = LIST_ENTRY(l->saved.next, struct kv_block, lru);
    if (list_empty(&l->cached) || list_empty(&l->saved))
        return !list_empty(&l->cached) ? a : !list_empty(&l->saved) ? b : NULL;
    return a->cached_at < b->cached_at ? a : b;
}

void kv_adopt_disk(struct kv_pool *p, const int32_t *phys, const struct kv_key *keys, int n)
{
    struct kv_place *l = p->places[p->disk_place];
    struct kv_rank *r = &p->ranks[l->ranks[0]];
    ASSERT(r->n_free == r->n_blocks && n <= r->n_blocks);
    unsigned char *taken = mem_new((size_t)r->n_blocks);
    for (int i = 0; i < n; i++) {
        int32_t id = l->unused[--l->n_unused];
        ASSERT(!taken[phys[i]]);
        taken[phys[i]] = 1;
        l->phys[id] = phys[i];
        l->blocks[id].key = keys[i];
        l->blocks[id].cached_at = ++p->clock;
        map_set(&l->index, keys[i].h[0], (uint64_t)id);
        l->n_entered++;
        enter_cached(p, l, &l->blocks[id], &l->cached);
    }
    r->n_free = 0;
    for (int32_t b = r->n_blocks - 1; b >= 0; b--)
        if (!taken[b])
            r->free_list[r->n_free++] = b;
    mem_free(taken);
}

/* The oldest cached block that lies on this rank becomes free. */
static bool evict(struct kv_pool *p, int rank)
{
    struct kv_place *oldest = NULL;
    struct kv_block *b = NULL;
    for (int i = 0; i < p->n_places; i++) {
        struct kv_place *l = p->places[i];
        struct kv_block *first = l->mask >> rank & 1 ? oldest_cached(l) : NULL;
        if (first && (!b || first->cached_at < b->cached_at)) {
            b = first;
            oldest = l;
        }
    }
    if (!b)
        return false;
    forget_cached(p, oldest, b);
    p->n_evicted++;
    return true;
}

int32_t kv_take(struct kv_pool *p, int place)
{
    struct kv_place *l = p->places[place];
    if (kv_available(p, place) < 1)
        return -1;
    for (int i = 0; i < l->n; i++)
        if (p->ranks[l->ranks[i]].n_free == 0) {
            bool evicted = evict(p, l->ranks[i]);
            ASSERT(evicted);
        }
    ASSERT(l->n_unused > 0);
    int32_t id = l->unused[--l->n_unused];
    ASSERT(l->blocks[id].refs == 0 && !keyed(&l->blocks[id]));
    for (int i = 0; i < l->n; i++) {
        struct kv_rank *r = &p->ranks[l->ranks[i]];
        l->phys[(int64_t)id * l->n + i] = r->free_list[--r->n_free];
    }
    l->blocks[id].refs = 1;
    return id;
}

void kv_hold(struct kv_pool *p, int place, int32_t id)
{
    struct kv_place *l = p->places[place];
    ASSERT(id >= 0 && id < l->n_blocks);
    struct kv_block *b = &l->blocks[id];
    if (b->refs++ == 0) {
        ASSERT(keyed(b));
        leave_cached(p, l, b);
    }
}

/* True: it is in nobody's hands now, and has a key. */
static bool drop(struct kv_pool *p, struct kv_place *l, int32_t id)
{
    ASSERT(id >= 0 && id < l->n_blocks);
    struct kv_block *b = &l->blocks[id];
    ASSERT(b->refs > 0);
    if (--b->refs)
        return false;
    if (!keyed(b))
        let_go(p, l, id);
    return keyed(b);
}

void kv_drop(struct kv_pool *p, int place, int32_t id)
{
    struct kv_place *l = p->places[place];
    if (!drop(p, l, id))
        return;
    l->blocks[id].cached_at = ++p->clock;
    enter_cached(p, l, &l->blocks[id], &l->cached);
}

void kv_drop_unused(struct kv_pool *p, int place, int32_t id)
{
    struct kv_place *l = p->places[place];
    if (drop(p, l, id))
        enter_cached(p, l, &l->blocks[id], &l->saved);
}

void kv_publish(struct kv_pool *p, int place, int32_t id, struct kv_key key)
{
    struct kv_place *l = p->places[place];
    struct kv_block *b = &l->blocks[id];
    ASSERT(b->refs > 0);
    if (keyed(b) || map_find(&l->index, key.h[0], NULL))
        return;
    b->key = key;
    map_set(&l->index, key.h[0], (uint64_t)id);
    l->n_entered++;
    if (l->n_below == 1)
        l->below_keys[id] = key;
}

void kv_publish_units(struct kv_pool *p, int place, int32_t id, const struct kv_key *units)
{
    const struct kv_place *l = p->places[place];
    int n = l->tokens_per_block / KV_UNIT;
    for (int i = 0; i < l->n_below; i++)
        l->below_keys[(int64_t)id * l->n_below + i] = units[(i + 1) * (n / l->n_below) - 1];
    kv_publish(p, place, id, units[n - 1]);
}

void kv_unpublish(struct kv_pool *p, int place, int32_t id)
{
    struct kv_block *b = &p->places[place]->blocks[id];
    ASSERT(b->refs > 0);
    if (keyed(b))
        forget_key(p->places[place], b);
}

bool kv_is_keyed(const struct kv_pool *p, int place, int32_t id)
{
    return keyed(&p->places[place]->blocks[id]);
}

int32_t kv_lookup(const struct kv_pool *p, int place, struct kv_key key)
{
    const struct kv_place *l = p->places[place];
    uint64_t id;
    if (!map_find(&l->index, key.h[0], &id) || l->blocks[id].key.h[1] != key.h[1])
        return -1;
    return (int32_t)id;
}

static bool is_short(const struct kv_pool *p, const struct kv_place *l, int safe)
{
    for (int i = 0; i < l->n; i++) {
        const struct kv_rank *r = &p->ranks[l->ranks[i]];
        if (r->n_free + r->n_cached - r->n_unsaved < safe)
            return true;
    }
    return false;
}

int32_t kv_next_unsaved(const struct kv_pool *p, int below, int safe, int *place)
{
    const struct kv_block *oldest = NULL;
    *place = -1;
    for (int i = 0; i < p->n_places; i++) {
        const struct kv_place *l = p->places[i];
        if (l->below != below || list_empty(&l->unsaved) || !is_short(p, l, safe))
            continue;
        const struct kv_block *b = LIST_ENTRY(l->unsaved.next, struct kv_block, loss);
        if (!oldest || b->cached_at < oldest->cached_at) {
            oldest = b;
            *place = i;
        }
    }
    return oldest ? (int32_t)(oldest - p->places[*place]->blocks) : -1;
}

bool kv_lend(struct kv_pool *p, int rank, int n, int32_t *blocks)
{
    struct kv_rank *r = &p->ranks[rank];
    if (r->n_free + r->n_cached < n)
        return false;
    while (r->n_free < n) {
        bool evicted = evict(p, rank);
        ASSERT(evicted);
    }
    for (int i = 0; i < n; i++)
        blocks[i] = r->free_list[--r->n_free];
    r->n_lent += n;
    return true;
}

void kv_take_back(struct kv_pool *p, int rank, int n, const int32_t *blocks)
{
    struct kv_rank *r = &p->ranks[rank];
    ASSERT(r->n_lent >= n);
    for (int i = n - 1; i >= 0; i--)
        r->free_list[r->n_free++] = blocks[i];
    r->n_lent -= n;
}

static void forget_all_cached(struct kv_pool *p, struct kv_place *l)
{
    while (l->n_cached)
        forget_cached(p, l, oldest_cached(l));
}

void kv_forget_cached(struct kv_pool *p)
{
    p->n_resets++;
    for (int i = 0; i < p->n_places; i++)
        forget_all_cached(p, p->places[i]);
}

void kv_forget_rank(struct kv_pool *p, int rank)
{
    for (int i = 0; i < p->n_places; i++) {
        struct kv_place *l = p->places[i];
        if (!(l->mask >> rank & 1))
            continue;
        forget_all_cached(p, l);
        for (int b = 0; b < l->n_blocks; b++)
            if (keyed(&l->blocks[b]))
                forget_key(l, &l->blocks[b]);
    }
}

static struct kv_key key_of(struct sha256 h)
{
    struct kv_key k;
    memcpy(&k, h.bytes, sizeof k);
    k.h[1] |= 1; /* all zero means "no key" */
    return k;
}

struct kv_key kv_key_root(const struct kv_pool *p, const char *salt)
{
    return key_of(hasher_sha256(p->hasher, salt, strlen(salt)));
}

/* Each half goes through all tokens by a multiplier of its own; for given tokens no two parents give the same. */
static struct kv_key mix(struct kv_key parent, const int32_t *tokens)
{
    uint64_t a = parent.h[0], b = parent.h[1];
    for (int i = 0; i < KV_UNIT; i += 2) {
        uint64_t two = (uint64_t)(uint32_t)tokens[i] << 32 | (uint32_t)tokens[i + 1];
        a = (a ^ two) * 0x9fb21c651e98df25u;
        b = (b ^ two) * 0xd1342543de82ef95u;
        a ^= a >> 29;
        b ^= b >> 32;
    }
    return (struct kv_key){{map_hash(a), map_hash(b) | 1}};
}

struct kv_key kv_key_next(const struct kv_pool *p, struct kv_key parent, const int32_t *tokens)
{
    unsigned char text[16 + KV_UNIT * 4];
    if (p->trusted)
        return mix(parent, tokens);
    memcpy(text, &parent, 16);
    memcpy(text + 16, tokens, KV_UNIT * 4);
    return key_of(hasher_sha256(p->hasher, text, sizeof text));
}
