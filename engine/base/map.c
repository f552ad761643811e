#include "engine/base/map.h"

#include <string.h>

#include "engine/base/mem.h"

void map_init(struct map *m)
{
    memset(m, 0, sizeof *m);
}

void map_free(struct map *m)
{
    mem_free(m->keys);
    mem_free(m->values);
    mem_free(m->full);
    map_init(m);
}

static size_t slot_of(const struct map *m, uint64_t key)
{
    size_t i = map_hash(key) & (m->cap - 1);
    while (m->full[i] && m->keys[i] != key)
        i = (i + 1) & (m->cap - 1);
    return i;
}

void map_reserve(struct map *m, size_t count)
{
    size_t cap = m->cap ? m->cap : 16;
    while (cap - cap / 4 < count)
        cap *= 2;
    if (cap == m->cap)
        return;
    struct map bigger = {.keys = mem_new_array(cap, sizeof(uint64_t)),
                         .values = mem_new_array(cap, sizeof(uint64_t)),
                         .full = mem_new(cap),
                         .cap = cap};
    for (size_t i = 0; i < m->cap; i++)
        if (m->full[i])
            map_set(&bigger, m->keys[i], m->values[i]);
    map_free(m);
    *m = bigger;
}

void map_set(struct map *m, uint64_t key, uint64_t value)
{
    map_reserve(m, m->count + 1);
    size_t i = slot_of(m, key);
    m->count += !m->full[i];
    m->full[i] = 1;
    m->keys[i] = key;
    m->values[i] = value;
}

bool map_find(const struct map *m, uint64_t key, uint64_t *value)
{
    if (!m->cap)
        return false;
    size_t i = slot_of(m, key);
    if (m->full[i] && value)
        *value = m->values[i];
    return m->full[i];
}

bool map_remove(struct map *m, uint64_t key)
{
    if (!m->cap)
        return false;
    size_t mask = m->cap - 1, hole = slot_of(m, key);
    if (!m->full[hole])
        return false;
    for (size_t i = (hole + 1) & mask; m->full[i]; i = (i + 1) & mask) {
        size_t home = map_hash(m->keys[i]) & mask;
        if (((i - home) & mask) < ((i - hole) & mask))
            continue; /* its home lies past the hole: it stays */
        m->keys[hole] = m->keys[i];
        m->values[hole] = m->values[i];
        hole = i;
    }
    m->full[hole] = 0;
    m->count--;
    return true;
}

uint64_t map_hash_bytes(const void *p, size_t n)
{
    const unsigned char *s = p;
    uint64_t h = 0x9e3779b97f4a7c15u ^ n;
    while (n >= 8) {
        uint64_t w;
        memcpy(&w, s, 8);
        h = (h ^ w) * 0x9fb21c651e98df25u;
        h ^= h >> 29;
        s += 8;
        n -= 8;
    }
    uint64_t tail = 0;
    if (n)
        memcpy(&tail, s, n);
    return map_hash(h ^ tail);
}
