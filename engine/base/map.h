/* u64 -> u64 hash map, open addressing with backward-shift deletion. Any key and value. One thread at a time. */
#ifndef BASE_MAP_H
#define BASE_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct map {
    uint64_t *keys, *values;
    uint8_t *full;
    size_t count, cap; /* cap is 0 or a power of two; count <= cap * 3/4 */
};

void map_init(struct map *m);
void map_free(struct map *m);
void map_reserve(struct map *m, size_t count);
void map_set(struct map *m, uint64_t key, uint64_t value);
bool map_find(const struct map *m, uint64_t key, uint64_t *value); /* value may be NULL */
bool map_remove(struct map *m, uint64_t key);
static inline uint64_t map_hash(uint64_t x) /* splitmix64's finaliser */
{
    x ^= x >> 30;
    x *= 0xbf58476d1ce4e5b9u;
    x ^= x >> 27;
    x *= 0x94d049bb133111ebu;
    return x ^ x >> 31;
}
uint64_t map_hash_bytes(const void *p, size_t n); /* for string tables; not for hostile keys without a compare */

#endif
