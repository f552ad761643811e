#include "kernels/cuda/heap.h"

#include <stdint.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"

void heap_init(struct heap *h, const struct heap_source *source)
{
    *h = (struct heap){.source = *source};
}

static struct heap_chunk *add_chunk(struct heap *h, size_t bytes)
{
    void *base = h->source.get(h->source.ctx, bytes);
    if (!base)
        return NULL;
    h->chunks = mem_resize(h->chunks, (size_t)h->n_chunks + 1, sizeof *h->chunks);
    h->chunks[h->n_chunks] = (struct heap_chunk){.base = base, .bytes = bytes};
    h->held += bytes;
    return &h->chunks[h->n_chunks++];
}

void *heap_take(struct heap *h, size_t bytes)
{
    struct heap_chunk *c = NULL;
    if (bytes > SIZE_MAX - HEAP_ALIGN)
        return NULL;
    bytes = (bytes + HEAP_ALIGN - 1) / HEAP_ALIGN * HEAP_ALIGN;
    bytes = bytes ? bytes : HEAP_ALIGN;
    for (int i = h->n_chunks - 1; i >= 0 && !c; i--)
        if (h->chunks[i].bytes - h->chunks[i].used >= bytes)
            c = &h->chunks[i];
    if (!c)
        c = add_chunk(h, bytes >= HEAP_CHUNK / 4 ? bytes : HEAP_CHUNK);
    if (!c)
        return NULL;
    void *p = c->base + c->used;
    c->used += bytes;
    c->live++;
    return p;
}

static struct heap_chunk *chunk_of(struct heap *h, const void *p)
{
    uintptr_t at = (uintptr_t)p;
    for (int i = 0; i < h->n_chunks; i++) {
        uintptr_t base = (uintptr_t)h->chunks[i].base;
        if (at >= base && at < base + h->chunks[i].bytes)
            return &h->chunks[i];
    }
    return NULL;
}

void heap_give(struct heap *h, void *p)
{
    struct heap_chunk *c = p ? chunk_of(h, p) : NULL;
    ASSERT(!p || (c && c->live > 0));
    if (!p || --c->live > 0)
        return;
    h->held -= c->bytes;
    h->source.put(h->source.ctx, c->base);
    *c = h->chunks[--h->n_chunks];
}

void heap_free(struct heap *h)
{
    for (int i = 0; i < h->n_chunks; i++)
        h->source.put(h->source.ctx, h->chunks[i].base);
    mem_free(h->chunks);
    h->chunks = NULL;
    h->n_chunks = 0;
    h->held = 0;
}
