#include "engine/serve/front/calls.h"

#include "engine/base/mem.h"

struct call {
    call_fn fn;
    void *ctx;
};

void calls_init(struct calls *a, struct queue *inbox)
{
    *a = (struct calls){.inbox = inbox};
    map_init(&a->by_tag);
}

void calls_free(struct calls *a)
{
    for (size_t i = 0; i < a->by_tag.cap; i++)
        if (a->by_tag.full[i])
            mem_free((void *)(uintptr_t)a->by_tag.values[i]);
    map_free(&a->by_tag);
}

uint64_t calls_send(struct calls *a, enum engine_in kind, void *payload, size_t n, call_fn fn, void *ctx)
{
    struct call *q = mem_new(sizeof *q);
    *q = (struct call){fn, ctx};
    uint64_t tag = ASK_TAG | ++a->next;
    map_set(&a->by_tag, tag, (uintptr_t)q);
    struct engine_message m = {.kind = kind, .tag = tag, .n = n, .payload = payload};
    queue_post(a->inbox, &m);
    return tag;
}

static struct call *find(const struct calls *a, uint64_t tag)
{
    uint64_t v;
    return map_find(&a->by_tag, tag, &v) ? (struct call *)(uintptr_t)v : NULL;
}

void calls_forget(struct calls *a, uint64_t tag)
{
    struct call *q = find(a, tag);
    if (q)
        q->fn = NULL;
}

void calls_take(struct calls *a, const struct engine_event *ev)
{
    struct call *q = find(a, ev->tag);
    if (!q)
        return;
    map_remove(&a->by_tag, ev->tag);
    struct call_reply r = {ev->code, ev->payload ? ev->payload : "", ev->payload ? ev->n : 0};
    if (q->fn)
        q->fn(q->ctx, &r);
    mem_free(q);
}
