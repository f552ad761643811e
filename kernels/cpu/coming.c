#include "kernels/cpu/coming.h"

#include <stdatomic.h>
#include <stdint.h>

#include "engine/base/mem.h"

enum {
    PLACES = 1024,          /* of products */
    TRIES = 8,              /* places where a product may be; where all are taken, the first one's is forgotten */
    LINES_AT_ONCE = 8,      /* from one look for work to the next */
    MOST_BYTES = 256 << 10, /* of a thread: a part of its second cache */
    LINE = 64,
};

/* As in struct span; read by its thread while the rank's may write it. */
struct part {
    _Atomic(const char *) at;
    _Atomic size_t bytes;
};

/* Of one thread: how much it has asked for, of what. */
struct cursor {
    _Alignas(64) const struct part *of;
    size_t done;
};

struct coming {
    int n_threads;
    const void *keys[PLACES]; /* where the product of that place begins */
    struct part *parts;       /* [PLACES][n_threads] what follows it */
    struct part *last;        /* of the product before this one; NULL: none */
    _Atomic(const struct part *) next;
    struct span *spans;
    struct cursor *cursors;
};

struct coming *coming_new(int n_threads)
{
    struct coming *c = mem_try_aligned(sizeof *c, 64);
    if (!c)
        return NULL;
    c->n_threads = n_threads;
    c->parts = mem_try_array((size_t)PLACES * (size_t)n_threads, sizeof *c->parts);
    c->spans = mem_try_array((size_t)n_threads, sizeof *c->spans);
    c->cursors = mem_try_aligned((size_t)n_threads * sizeof *c->cursors, 64);
    if (c->parts && c->spans && c->cursors)
        return c;
    coming_free(c);
    return NULL;
}

void coming_free(struct coming *c)
{
    if (!c)
        return;
    mem_free(c->parts);
    mem_free(c->spans);
    mem_free(c->cursors);
    mem_free(c);
}

struct span *coming_spans(struct coming *c)
{
    return c->spans;
}

/* What follows the product that begins at key; its place may have been another's. */
static struct part *parts_of(struct coming *c, const void *key)
{
    size_t first = (size_t)((uintptr_t)key / LINE * UINT64_C(0x9E3779B97F4A7C15) >> 32), at = first % PLACES;
    for (size_t i = 0; i < TRIES; i++) {
        size_t k = (first + i) % PLACES;
        if (c->keys[k] && c->keys[k] != key)
            continue;
        at = k;
        break;
    }
    c->keys[at] = key;
    return c->parts + at * (size_t)c->n_threads;
}

/* What is learned is as a rule what is known: then nothing is written, and all threads keep their copies. */
static void learn(struct part *p, const struct span *s)
{
    size_t bytes = s->bytes < MOST_BYTES ? s->bytes : MOST_BYTES;
    if (atomic_load_explicit(&p->at, memory_order_relaxed) == s->at &&
        atomic_load_explicit(&p->bytes, memory_order_relaxed) == bytes)
        return;
    atomic_store_explicit(&p->at, s->at, memory_order_relaxed);
    atomic_store_explicit(&p->bytes, bytes, memory_order_relaxed);
}

void coming_note(struct coming *c, bool known)
{
    for (int t = 0; t < c->n_threads && known && c->last; t++)
        learn(&c->last[t], &c->spans[t]);
    c->last = known ? parts_of(c, c->spans[0].at) : NULL;
    atomic_store_explicit(&c->next, c->last, memory_order_release);
}

bool coming_fetch(struct coming *c, int thread)
{
    struct cursor *mine = &c->cursors[thread];
    const struct part *next = atomic_load_explicit(&c->next, memory_order_acquire);
    if (mine->of != next)
        *mine = (struct cursor){next, 0};
    if (!next)
        return false;
    const char *at = atomic_load_explicit(&next[thread].at, memory_order_relaxed);
    size_t bytes = atomic_load_explicit(&next[thread].bytes, memory_order_relaxed);
    for (int i = 0; i < LINES_AT_ONCE && mine->done < bytes; i++, mine->done += LINE)
        __builtin_prefetch(at + mine->done, 0, 2);
    return mine->done < bytes;
}
