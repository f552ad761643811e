/* The block pool of one rank set: which KV blocks are free, which a sequence holds, which only the prefix cache remembers.
 * Bookkeeping only: the bytes live on the devices. Physical blocks have constant bytes; how many tokens one holds follows from the placement.
 * A block is free (in the free list), held (refs > 0) or cached (refs == 0, findable by its key, evicted oldest first).
 * Engine thread only. Always true: free + held + cached == total (kv_check recounts). */
#ifndef WORLD_KV_H
#define WORLD_KV_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/list.h"
#include "engine/base/map.h"

struct kv_key {
    uint64_t h[2];          /* both 0: no key */
};

struct kv_block {
    int32_t refs;
    struct kv_key key;
    struct list lru;        /* in pool.cached while refs == 0 and keyed */
};

struct kv_pool {
    struct kv_block *blocks;
    int32_t *free_list;
    int n_blocks, n_free, n_cached, tokens_per_block;
    struct list cached;     /* oldest first */
    struct map index;       /* key.h[0] -> block; the whole key is compared on a hit */
    uint64_t n_evicted;
};

void kv_init(struct kv_pool *p, int n_blocks, int tokens_per_block);
void kv_free(struct kv_pool *p);
static inline int kv_available(const struct kv_pool *p) /* free now, or by eviction */
{
    return p->n_free + p->n_cached;
}
static inline int kv_blocks_for(const struct kv_pool *p, int n_tokens)
{
    return (n_tokens + p->tokens_per_block - 1) / p->tokens_per_block;
}
/* A block with refs 1 and no key; evicts the oldest cached one when none is free. -1: all are held. */
int32_t kv_take(struct kv_pool *p);
void kv_hold(struct kv_pool *p, int32_t block);     /* refs + 1; a cached block becomes held */
void kv_drop(struct kv_pool *p, int32_t block);     /* refs - 1; at 0: cached when keyed, else free */
/* Gives a held, full block its key, so that others find it. If another block has the key already, this one stays keyless. */
void kv_publish(struct kv_pool *p, int32_t block, struct kv_key key);
int32_t kv_lookup(const struct kv_pool *p, struct kv_key key); /* -1: none. Held or cached; refs are not touched */
void kv_forget_cached(struct kv_pool *p);           /* every cached block becomes free */
bool kv_check(const struct kv_pool *p);             /* full recount; false = a bug */

/* Prefix keys: a SHA-256 chain over whole blocks, begun with the tenant's salt, so tenants never share and equal keys mean equal text. */
struct kv_key kv_key_root(const char *salt);
struct kv_key kv_key_next(struct kv_key parent, const int32_t *tokens, int n);

#endif
