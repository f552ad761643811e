#include "engine/base/shared.h"

#include <stdatomic.h>
#include <stdint.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"

struct shared {
    _Atomic size_t owners;
    _Alignas(max_align_t) char bytes[];
};

static struct shared *head_of(void *p)
{
    return (struct shared *)(void *)((char *)p - offsetof(struct shared, bytes));
}

void *shared_new(size_t count, size_t size)
{
    size_t bytes, all;
    ASSERT(!__builtin_mul_overflow(count, size, &bytes) && !__builtin_add_overflow(bytes, sizeof(struct shared), &all));
    struct shared *s = mem_new(all);
    atomic_init(&s->owners, 1);
    return s->bytes;
}

void *shared_hold(void *p)
{
    if (p)
        atomic_fetch_add_explicit(&head_of(p)->owners, 1, memory_order_relaxed);
    return p;
}

void shared_drop(void *p)
{
    if (p && atomic_fetch_sub_explicit(&head_of(p)->owners, 1, memory_order_acq_rel) == 1)
        mem_free(head_of(p));
}
