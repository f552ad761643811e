/* The two queues of requests, ordered by (key, order). */
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "engine/base/seen.h"
#include "engine/world/world.h"

/* The first place whose request is not sooner than r. */
static int queue_place(const struct req_queue *q, const struct request *r)
{
    int lo = 0, hi = q->n;
    while (lo < hi) {
        int mid = (lo + hi) / 2;
        if (request_compare(q->items[mid], r) < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

void queue_insert(struct req_queue *q, struct request *r)
{
    if (q->n == q->cap) {
        q->cap = q->cap ? q->cap * 2 : 64;
        q->items = seen_resize(q->items, (size_t)q->cap, sizeof *q->items);
    }
    int i = queue_place(q, r);
    memmove(q->items + i + 1, q->items + i, (size_t)(q->n - i) * sizeof *q->items);
    q->items[i] = r;
    q->n++;
    q->journal[q->n_changes++ % QUEUE_JOURNAL] = (struct queue_change){r->id, true};
}

void queue_delete(struct req_queue *q, struct request *r)
{
    int i = queue_place(q, r);
    ASSERT(i < q->n && q->items[i] == r);
    q->n--;
    memmove(q->items + i, q->items + i + 1, (size_t)(q->n - i) * sizeof *q->items);
    q->journal[q->n_changes++ % QUEUE_JOURNAL] = (struct queue_change){r->id, false};
}

bool queue_check(const struct req_queue *q, enum req_state state)
{
    for (int i = 0; i < q->n; i++)
        if (q->items[i]->state != state || (i && request_compare(q->items[i - 1], q->items[i]) >= 0))
            return false;
    return true;
}
