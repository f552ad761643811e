#include "engine/retired.h"

#include <string.h>

#include "engine/base/mem.h"
#include "engine/base/queue.h"
#include "engine/base/thread.h"

struct leaver {
    void (*destroy)(void *ctx); /* NULL: nobody follows */
    void *ctx;
};

enum { WAITING = 8 };

struct retired {
    struct leaver waiting[WAITING]; /* the thread was not woken for these: the engine's */
    int n_waiting;
    struct queue *queue; /* unbounded; no longer than there are watches of the watchdog, as each machine has one */
    struct thread *thread;
};

static void body(void *arg)
{
    struct retired *r = arg;
    struct leaver l;
    for (;;) {
        queue_wait(r->queue, -1);
        while (queue_take(r->queue, &l)) {
            if (!l.destroy)
                return;
            l.destroy(l.ctx);
        }
    }
}

int retired_start(struct retired **out, struct err *e)
{
    struct retired *r = mem_new(sizeof *r);
    r->queue = queue_create(sizeof(struct leaver), 0, false);
    int rc = thread_start(&r->thread, "retired", body, r, e);
    if (rc) {
        queue_destroy(r->queue);
        mem_free(r);
        return rc;
    }
    *out = r;
    return 0;
}

void retired_stop(struct retired *r)
{
    if (!r)
        return;
    retired_wake(r);
    queue_post(r->queue, &(struct leaver){0});
    thread_join(r->thread);
    queue_destroy(r->queue);
    mem_free(r);
}

void retired_give(struct retired *r, struct policy *p)
{
    if (p->ops && p->ops->destroy) {
        if (r && r->n_waiting == WAITING)
            retired_wake(r);
        if (r)
            r->waiting[r->n_waiting++] = (struct leaver){p->ops->destroy, p->ctx};
        else
            p->ops->destroy(p->ctx);
    }
    memset(p, 0, sizeof *p);
}

void retired_wake(struct retired *r)
{
    for (int i = 0; r && i < r->n_waiting; i++)
        queue_post(r->queue, &r->waiting[i]); /* it is unbounded */
    if (r)
        r->n_waiting = 0;
}
