#include "engine/base/mem.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engine/base/check.h"
#include "engine/base/seen.h"

void *mem_try(size_t bytes)
{
    return calloc(1, bytes ? bytes : 1);
}

void *mem_try_array(size_t count, size_t size)
{
    return calloc(count ? count : 1, size ? size : 1);
}

void *mem_new(size_t bytes)
{
    void *p = mem_try(bytes);
    ASSERT(p);
    return p;
}

void *mem_new_array(size_t count, size_t size)
{
    void *p = mem_try_array(count, size);
    ASSERT(p);
    return p;
}

/* What policies see stays where they see it. */
static void *resize_seen(void *p, size_t bytes)
{
    size_t had = seen_size(p);
    if (bytes <= had)
        return p;
    void *q = seen_new(bytes);
    memcpy(q, p, had);
    seen_free(p);
    return q;
}

void *mem_resize(void *p, size_t count, size_t size)
{
    size_t bytes;
    ASSERT(!__builtin_mul_overflow(count, size, &bytes));
    if (seen_has(p))
        return resize_seen(p, bytes);
    p = realloc(p, bytes ? bytes : 1);
    ASSERT(p);
    return p;
}

void *mem_try_resize(void *p, size_t count, size_t size)
{
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes))
        return NULL;
    return seen_has(p) ? resize_seen(p, bytes) : realloc(p, bytes ? bytes : 1);
}

void mem_free(void *p)
{
    if (seen_has(p))
        seen_free(p);
    else
        free(p);
}

char *mem_strndup(const char *s, size_t n)
{
    char *p = mem_new(n + 1);
    memcpy(p, s, n);
    return p;
}

char *mem_strdup(const char *s)
{
    return mem_strndup(s, strlen(s));
}

/* Zeroes without touching: writing to every page would cost seconds, and memory that may never be used. The pages may
 * have been used before (the allocator reuses what was freed), so the kernel is asked to take them back; what it gives
 * anew is zero. */
static void zero_lazily(unsigned char *p, size_t n)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), whole = n & ~(page - 1);
    if ((uintptr_t)p % page || madvise(p, whole, MADV_DONTNEED) < 0)
        whole = 0;
    memset(p + whole, 0, n - whole);
}

void *mem_try_aligned(size_t bytes, size_t align)
{
    const size_t huge = (size_t)2 << 20, lazy = (size_t)64 << 20;
    if (bytes >= huge && align < huge)
        align = huge;
    size_t rounded = (bytes + align - 1) & ~(align - 1);
    if (rounded < bytes)
        return NULL;
    void *p = aligned_alloc(align, rounded ? rounded : align);
    if (!p)
        return NULL;
    if (bytes >= huge)
        madvise(p, rounded, MADV_HUGEPAGE);
    if (rounded > lazy)
        zero_lazily(p, rounded);
    else
        memset(p, 0, rounded ? rounded : align);
    return p;
}

struct arena_chunk {
    struct arena_chunk *next;
    size_t cap, used;
    _Alignas(16) unsigned char data[];
};

void arena_init(struct arena *a)
{
    memset(a, 0, sizeof *a);
}

void *arena_new(struct arena *a, size_t bytes)
{
    ASSERT(bytes < SIZE_MAX / 4);
    size_t need = (bytes + 15) & ~(size_t)15;
    struct arena_chunk *c = a->head;
    if (!c || c->cap - c->used < need) {
        size_t cap = c ? c->cap * 2 : 4096;
        if (cap < need)
            cap = need;
        c = a->seen ? seen_new(sizeof *c + cap) : malloc(sizeof *c + cap);
        ASSERT(c);
        c->next = a->head;
        c->cap = cap;
        c->used = 0;
        a->head = c;
        a->total += cap;
    }
    void *p = c->data + c->used;
    c->used += need;
    a->used += need;
    memset(p, 0, need);
    return p;
}

void *arena_copy(struct arena *a, const void *src, size_t bytes)
{
    void *p = arena_new(a, bytes);
    if (bytes)
        memcpy(p, src, bytes);
    return p;
}

void arena_reset(struct arena *a)
{
    struct arena_chunk *keep = a->head; /* chunks double, so the newest is (nearly) the largest */
    if (!keep)
        return;
    for (struct arena_chunk *c = keep->next, *next; c; c = next) {
        next = c->next;
        mem_free(c);
    }
    keep->next = NULL;
    keep->used = 0;
    a->used = 0;
    a->total = keep->cap;
}

void arena_free(struct arena *a)
{
    arena_reset(a);
    mem_free(a->head);
    memset(a, 0, sizeof *a);
}
