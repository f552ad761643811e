#include "engine/serve/front/asks.h"

#include "engine/base/mem.h"

struct ask {
    ask_fn fn;
    void *ctx;
};

void asks_init(struct asks *a, struct queue *inbox)
{
    *a = (struct asks){.inbox = inbox};
    map_init(&a->by_tag);
}

void asks_free(struct asks *a)
{
    for (size_t i = 0; i < a->by_tag.cap; i++)
        if (a->by_tag.full[i])
            mem_free((void *)(uintptr_t)a->by_tag.values[i]);
    map_free(&a->by_tag);
}

uint64_t asks_send(struct asks *a, enum engine_in kind, void *payload, size_t n, ask_fn fn, void *ctx)
{
    struct ask *q = mem_new(sizeof *q);
    *q = (struct ask){fn, ctx};
    uint64_t tag = ASK_TAG | ++a->next;
    map_set(&a->by_tag, tag, (uintptr_t)q);
    struct engine_message m = {.kind = kind, .tag = tag, .n = n, .payload = payload};
    queue_post(a->inbox, &m);
    return tag;
}

static struct ask *find(const struct asks *a, uint64_t tag)
{
    uint64_t v;
    return map_find(&a->by_tag, tag, &v) ? (struct ask *)(uintptr_t)v : NULL;
}

void asks_forget(struct asks *a, uint64_t tag)
{
    struct ask *q = find(a, tag);
    if (q)
        q->fn = NULL;
}

void asks_take(struct asks *a, const struct engine_event *ev)
{
    struct ask *q = find(a, ev->tag);
    if (!q)
        return;
    map_remove(&a->by_tag, ev->tag);
    struct ask_reply r = {ev->code, ev->payload ? ev->payload : "", ev->payload ? ev->n : 0};
    if (q->fn)
        q->fn(q->ctx, &r);
    mem_free(q);
}
