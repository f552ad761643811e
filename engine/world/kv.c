#include "engine/world/kv.h"

#include <string.h>

#include "engine/base/check.h"
#include "engine/base/hash.h"
#include "engine/base/mem.h"

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
    p->host_place = -1;
    p->hasher = hasher_create();
    p->ranks = mem_new_array((size_t)n_ranks + 1, sizeof *p->ranks);
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

int kv_place_open(struct kv_pool *p, const struct kv_place_setup *s)
{
    int found = kv_place_find(p, s->ranks, s->n, s->stages), n = s->n;
    if (found >= 0 || p->n_places == MAX_PLACES)
        return found;
    ASSERT(n >= 1 && n <= p->n_stores && s->stages >= 1 && n % s->stages == 0);
    ASSERT(s->pieces >= 1 && s->tokens_per_block > 0 && s->tokens_per_block % (KV_UNIT * s->pieces) == 0);
    struct kv_place *l = mem_new(sizeof *l);
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
    }
    list_init(&l->cached);
    map_init(&l->index);
    p->places[p->n_places] = l;
    return p->n_places++;
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
            *out++ = kv_phys(p, place, blocks[i], share) + k * p->n_blocks;
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

static void forget_key(struct kv_place *l, struct kv_block *b)
{
    map_remove(&l->index, b->key.h[0]);
    memset(&b->key, 0, sizeof b->key);
}

static void forget_cached(struct kv_pool *p, struct kv_place *l, struct kv_block *b)
{
    list_remove(&b->lru);
    count_cached(p, l, -1);
    forget_key(l, b);
    let_go(p, l, (int32_t)(b - l->blocks));
}

/* The oldest cached block that lies on this rank becomes free. */
static bool evict(struct kv_pool *p, int rank)
{
    struct kv_place *oldest = NULL;
    struct kv_block *b = NULL;
    for (int i = 0; i < p->n_places; i++) {
        struct kv_place *l = p->places[i];
        if (!l->n_cached || !(l->mask >> rank & 1))
            continue;
        struct kv_block *first = LIST_ENTRY(l->cached.next, struct kv_block, lru);
        if (!b || first->cached_at < b->cached_at) {
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
        list_remove(&b->lru);
        count_cached(p, l, -1);
    }
}

void kv_drop(struct kv_pool *p, int place, int32_t id)
{
    struct kv_place *l = p->places[place];
    ASSERT(id >= 0 && id < l->n_blocks);
    struct kv_block *b = &l->blocks[id];
    ASSERT(b->refs > 0);
    if (--b->refs)
        return;
    if (keyed(b)) {
        b->cached_at = ++p->clock;
        list_push_back(&l->cached, &b->lru);
        count_cached(p, l, 1);
    } else {
        let_go(p, l, id);
    }
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
}

int32_t kv_lookup(const struct kv_pool *p, int place, struct kv_key key)
{
    const struct kv_place *l = p->places[place];
    uint64_t id;
    if (!map_find(&l->index, key.h[0], &id) || l->blocks[id].key.h[1] != key.h[1])
        return -1;
    return (int32_t)id;
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
        forget_cached(p, l, LIST_ENTRY(l->cached.next, struct kv_block, lru));
}

void kv_forget_cached(struct kv_pool *p)
{
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

/* Counts what a place has on each rank; false when its own books do not agree. */
static bool check_place(const struct kv_place *l, int *held, int *cached, unsigned char *const *seen)
{
    int keys = 0, n_cached = 0, listed = 0, used = 0;
    for (int i = 0; i < l->n_blocks; i++) {
        const struct kv_block *b = &l->blocks[i];
        uint64_t id;
        if (b->refs < 0 || (keyed(b) && (!map_find(&l->index, b->key.h[0], &id) || (int)id != i)))
            return false;
        keys += keyed(b);
        if (!b->refs && !keyed(b))
            continue;
        used++;
        n_cached += b->refs == 0;
        for (int k = 0; k < l->n; k++) {
            int32_t phys = l->phys[(int64_t)i * l->n + k];
            if (phys < 0 || phys >= l->n_blocks || seen[l->ranks[k]][phys]++)
                return false;
            (b->refs ? held : cached)[l->ranks[k]]++;
        }
    }
    LIST_EACH(n, &l->cached)
    listed++;
    return n_cached == l->n_cached && listed == n_cached && keys == (int)l->index.count &&
           used + l->n_unused == l->n_blocks;
}

bool kv_check(const struct kv_pool *p)
{
    int held[MAX_RANKS] = {0}, cached[MAX_RANKS] = {0};
    unsigned char *seen[MAX_RANKS];
    bool good = true;
    for (int r = 0; r < p->n_stores; r++)
        seen[r] = mem_new((size_t)p->ranks[r].n_blocks);
    for (int i = 0; i < p->n_places && good; i++)
        good = check_place(p->places[i], held, cached, seen);
    for (int r = 0; r < p->n_stores && good; r++) {
        const struct kv_rank *k = &p->ranks[r];
        good = cached[r] == k->n_cached && held[r] + cached[r] + k->n_free + k->n_lent == k->n_blocks;
        for (int i = 0; i < k->n_free && good; i++)
            good = !seen[r][k->free_list[i]]++;
    }
    for (int r = 0; r < p->n_stores; r++)
        mem_free(seen[r]);
    return good;
}

static struct kv_key key_of(struct sha256 h)
{
    struct kv_key k;
    memcpy(&k, h.bytes, sizeof k);
    k.h[1] |= 1; /* all zero means "no key" */
    return k;
}

struct kv_key kv_key_root(const char *salt)
{
    return key_of(hash_sha256(salt, strlen(salt)));
}

struct kv_key kv_key_next(const struct kv_pool *p, struct kv_key parent, const int32_t *tokens)
{
    unsigned char text[16 + KV_UNIT * 4];
    memcpy(text, &parent, 16);
    memcpy(text + 16, tokens, KV_UNIT * 4);
    return key_of(hasher_sha256(p->hasher, text, sizeof text));
}
