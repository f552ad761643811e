#include "kernels/cpu/slab.h"

#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "engine/base/monitor.h"

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define WATCHED 1
#endif
#elif defined(__SANITIZE_ADDRESS__)
#define WATCHED 1
#endif
#ifdef WATCHED
#include <sanitizer/asan_interface.h>
#endif

/* More than mem_try_aligned writes zeroes to: pages are touched by who uses them, so where that thread runs. */
static const size_t area_bytes = (size_t)128 << 20, huge = (size_t)2 << 20;
enum { ALIGN = 64 };

struct hole {
    uint8_t *at;
    size_t bytes;
};

struct slab {
    struct monitor *lock;
    bool keeps;
    void **areas;
    struct hole *holes;
    size_t n_areas, n_holes, cap_holes, n_taken;
};

/* AddressSanitizer finds who reads what is free, and what was taken has no zeroes to lean on. */
static void watch(void *p, size_t bytes, bool is_free)
{
#ifdef WATCHED
    if (is_free) {
        ASAN_POISON_MEMORY_REGION(p, bytes);
        return;
    }
    ASAN_UNPOISON_MEMORY_REGION(p, bytes);
    memset(p, 0xa5, bytes);
#else
    (void)p, (void)bytes, (void)is_free;
#endif
}

struct slab *slab_open(bool keeps)
{
    struct slab *s = mem_try(sizeof *s);
    if (!s)
        return NULL;
    s->lock = monitor_new();
    s->keeps = keeps;
    return s;
}

void slab_close(struct slab *s)
{
    if (!s)
        return;
    for (size_t i = 0; i < s->n_holes; i++)
        watch(s->holes[i].at, s->holes[i].bytes, false);
    for (size_t i = 0; i < s->n_areas; i++)
        mem_free(s->areas[i]);
    mem_free(s->areas);
    mem_free(s->holes);
    monitor_free(s->lock);
    mem_free(s);
}

static void insert_hole(struct slab *s, size_t i, struct hole h)
{
    memmove(s->holes + i + 1, s->holes + i, (s->n_holes - i) * sizeof *s->holes);
    s->holes[i] = h;
    s->n_holes++;
}

static void remove_hole(struct slab *s, size_t i)
{
    s->n_holes--;
    memmove(s->holes + i, s->holes + i + 1, (s->n_holes - i) * sizeof *s->holes);
}

/* The first hole behind p. */
static size_t hole_behind(const struct slab *s, const uint8_t *p)
{
    size_t low = 0, high = s->n_holes;
    while (low < high) {
        size_t mid = (low + high) / 2;
        if (s->holes[mid].at < p)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

/* Becomes part of the holes beside it. Returns the one that it is in. */
static struct hole add_hole(struct slab *s, struct hole h)
{
    size_t i = hole_behind(s, h.at);
    bool joins_last = i > 0 && s->holes[i - 1].at + s->holes[i - 1].bytes == h.at,
         joins_next = i < s->n_holes && h.at + h.bytes == s->holes[i].at;
    if (joins_last)
        s->holes[--i].bytes += h.bytes;
    if (joins_last && joins_next) {
        s->holes[i].bytes += s->holes[i + 1].bytes;
        remove_hole(s, i + 1);
    } else if (joins_next) {
        s->holes[i] = (struct hole){h.at, h.bytes + s->holes[i].bytes};
    } else if (!joins_last) {
        insert_hole(s, i, h);
    }
    return s->holes[i];
}

/* Room for so many: giving something back needs no memory then. */
static bool reserve_holes(struct slab *s, size_t n)
{
    if (n <= s->cap_holes)
        return true;
    struct hole *holes = mem_try_resize(s->holes, 2 * n, sizeof *holes);
    if (!holes)
        return false;
    s->holes = holes;
    s->cap_holes = 2 * n;
    return true;
}

static bool add_area(struct slab *s, size_t least)
{
    size_t bytes = least > area_bytes ? (least + huge - 1) & ~(huge - 1) : area_bytes;
    void **areas = mem_try_resize(s->areas, s->n_areas + 1, sizeof *areas);
    if (!areas)
        return false;
    s->areas = areas;
    uint8_t *p = mem_try_aligned(bytes, huge);
    if (!p)
        return false;
    s->areas[s->n_areas++] = p;
    watch(p, bytes, true);
    add_hole(s, (struct hole){p, bytes});
    return true;
}

static size_t rounded(size_t bytes)
{
    return bytes ? (bytes + ALIGN - 1) & ~(size_t)(ALIGN - 1) : ALIGN;
}

static uint8_t *take_from_holes(struct slab *s, size_t bytes)
{
    for (size_t i = 0; i < s->n_holes; i++) {
        struct hole *h = &s->holes[i];
        uint8_t *p = h->at;
        if (h->bytes < bytes)
            continue;
        h->at += bytes;
        h->bytes -= bytes;
        if (!h->bytes)
            remove_hole(s, i);
        return p;
    }
    return NULL;
}

void *slab_take(struct slab *s, size_t bytes)
{
    if (bytes > SIZE_MAX / 2)
        return NULL;
    size_t need = rounded(bytes);
    monitor_lock(s->lock);
    /* each area begins as a hole, and what is taken may become one */
    bool has_lists = reserve_holes(s, s->n_holes + s->n_taken + 3);
    uint8_t *p = has_lists ? take_from_holes(s, need) : NULL;
    if (has_lists && !p && add_area(s, need))
        p = take_from_holes(s, need);
    s->n_taken += p != NULL;
    monitor_unlock(s->lock);
    if (p)
        watch(p, need, false);
    return p;
}

/* The pages that lie in the hole now and did not before. */
static void return_pages(const struct hole *in, const uint8_t *p, size_t bytes)
{
    uintptr_t first = (uintptr_t)p & ~(huge - 1), end = ((uintptr_t)p + bytes + huge - 1) & ~(huge - 1),
              at = (uintptr_t)in->at, last = at + in->bytes;
    if (first < at)
        first += huge;
    if (end > last)
        end -= huge;
    if (first < end)
        madvise((void *)first, end - first, MADV_DONTNEED);
}

void slab_give(struct slab *s, void *p, size_t bytes)
{
    if (!p)
        return;
    monitor_lock(s->lock);
    ASSERT(s->n_taken > 0);
    s->n_taken--;
    watch(p, rounded(bytes), true);
    struct hole in = add_hole(s, (struct hole){p, rounded(bytes)});
    if (!s->keeps)
        return_pages(&in, p, rounded(bytes));
    monitor_unlock(s->lock);
}
