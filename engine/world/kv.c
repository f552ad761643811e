#include "engine/world/kv.h"

#include <string.h>

#include "engine/base/check.h"
#include "engine/base/hash.h"
#include "engine/base/mem.h"

static bool keyed(const struct kv_block *b)
{
    return b->key.h[0] | b->key.h[1];
}

void kv_init(struct kv_pool *p, int n_blocks, int tokens_per_block)
{
    memset(p, 0, sizeof *p);
    p->blocks = mem_new_array((size_t)n_blocks, sizeof *p->blocks);
    p->free_list = mem_new_array((size_t)n_blocks, sizeof *p->free_list);
    p->n_blocks = p->n_free = n_blocks;
    p->tokens_per_block = tokens_per_block;
    for (int i = 0; i < n_blocks; i++) {
        p->free_list[i] = n_blocks - 1 - i; /* the lowest block is taken first */
        list_init(&p->blocks[i].lru);
    }
    list_init(&p->cached);
    map_init(&p->index);
}

void kv_free(struct kv_pool *p)
{
    mem_free(p->blocks);
    mem_free(p->free_list);
    map_free(&p->index);
    memset(p, 0, sizeof *p);
}

/* A cached block loses its key and leaves the cache; it is then in no list. */
static int32_t forget_oldest(struct kv_pool *p)
{
    struct kv_block *b = LIST_ENTRY(p->cached.next, struct kv_block, lru);
    list_remove(&b->lru);
    p->n_cached--;
    map_remove(&p->index, b->key.h[0]);
    memset(&b->key, 0, sizeof b->key);
    return (int32_t)(b - p->blocks);
}

int32_t kv_take(struct kv_pool *p)
{
    int32_t id;
    if (p->n_free) {
        id = p->free_list[--p->n_free];
    } else if (p->n_cached) {
        id = forget_oldest(p);
        p->n_evicted++;
    } else {
        return -1;
    }
    ASSERT(p->blocks[id].refs == 0 && !keyed(&p->blocks[id]));
    p->blocks[id].refs = 1;
    return id;
}

void kv_hold(struct kv_pool *p, int32_t id)
{
    ASSERT(id >= 0 && id < p->n_blocks);
    struct kv_block *b = &p->blocks[id];
    if (b->refs++ == 0) {
        ASSERT(keyed(b));
        list_remove(&b->lru);
        p->n_cached--;
    }
}

void kv_drop(struct kv_pool *p, int32_t id)
{
    ASSERT(id >= 0 && id < p->n_blocks);
    struct kv_block *b = &p->blocks[id];
    ASSERT(b->refs > 0);
    if (--b->refs)
        return;
    if (keyed(b)) {
        list_push_back(&p->cached, &b->lru);
        p->n_cached++;
    } else {
        p->free_list[p->n_free++] = id;
    }
}

void kv_publish(struct kv_pool *p, int32_t id, struct kv_key key)
{
    struct kv_block *b = &p->blocks[id];
    ASSERT(b->refs > 0);
    if (keyed(b) || map_find(&p->index, key.h[0], NULL))
        return;
    b->key = key;
    map_set(&p->index, key.h[0], (uint64_t)id);
}

int32_t kv_lookup(const struct kv_pool *p, struct kv_key key)
{
    uint64_t id;
    if (!map_find(&p->index, key.h[0], &id) || p->blocks[id].key.h[1] != key.h[1])
        return -1;
    return (int32_t)id;
}

void kv_forget_cached(struct kv_pool *p)
{
    while (p->n_cached)
        p->free_list[p->n_free++] = forget_oldest(p);
}

bool kv_check(const struct kv_pool *p)
{
    int held = 0, cached = 0, keys = 0, listed = 0;
    for (int i = 0; i < p->n_blocks; i++) {
        const struct kv_block *b = &p->blocks[i];
        uint64_t id;
        held += b->refs > 0;
        cached += b->refs == 0 && keyed(b);
        keys += keyed(b);
        if (b->refs < 0 || (keyed(b) && (!map_find(&p->index, b->key.h[0], &id) || (int)id != i)))
            return false;
    }
    LIST_EACH (n, &p->cached)
        listed++;
    for (int i = 0; i < p->n_free; i++)
        if (p->blocks[p->free_list[i]].refs || keyed(&p->blocks[p->free_list[i]]))
            return false;
    return cached == p->n_cached && listed == cached && held + cached + p->n_free == p->n_blocks &&
           keys == (int)p->index.count;
}

static struct kv_key key_of(const void *bytes, size_t n)
{
    struct sha256 h = hash_sha256(bytes, n);
    struct kv_key k;
    memcpy(&k, h.bytes, sizeof k);
    k.h[1] |= 1; /* all zero means "no key" */
    return k;
}

struct kv_key kv_key_root(const char *salt)
{
    return key_of(salt, strlen(salt));
}

struct kv_key kv_key_next(struct kv_key parent, const int32_t *tokens, int n)
{
    unsigned char text[16 + 256 * 4];
    ASSERT(n >= 0 && n <= 256);
    memcpy(text, &parent, 16);
    memcpy(text + 16, tokens, (size_t)n * 4);
    return key_of(text, 16 + (size_t)n * 4);
}
