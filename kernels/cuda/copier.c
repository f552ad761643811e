#include "kernels/cuda/copier.h"

#include <string.h>

#include "engine/base/mem.h"
#include "engine/base/queue.h"
#include "engine/base/thread.h"

enum { MOST_THREADS = 16, ALONE_BYTES = 1 << 20, PAGE = 4096 };

/* A part of a copy; to NULL: the end. */
struct part {
    char *to;
    const char *from;
    size_t bytes;
};

struct helper {
    struct queue *inbox, *done; /* of struct part */
    struct thread *thread;
};

struct copier {
    struct helper helpers[MOST_THREADS];
    int n;
    struct queue *done;
};

static void body(void *arg)
{
    struct helper *h = arg;
    for (;;) {
        struct part p;
        while (!queue_take(h->inbox, &p))
            queue_wait(h->inbox, -1);
        if (!p.to)
            return;
        memcpy(p.to, p.from, p.bytes);
        queue_post(h->done, &p);
    }
}

struct copier *copier_open(int n_threads)
{
    struct copier *c = mem_new(sizeof *c);
    int wanted = (n_threads < MOST_THREADS ? n_threads : MOST_THREADS) - 1;
    c->done = queue_create(sizeof(struct part), 0, false);
    while (c->n < wanted) {
        struct helper *h = &c->helpers[c->n];
        *h = (struct helper){.inbox = queue_create(sizeof(struct part), 0, false), .done = c->done};
        if (thread_start(&h->thread, "load", body, h, NULL)) {
            queue_destroy(h->inbox);
            break;
        }
        c->n++;
    }
    if (c->n > 0)
        return c;
    copier_close(c);
    return NULL;
}

void copier_close(struct copier *c)
{
    if (!c)
        return;
    for (int i = 0; i < c->n; i++) {
        queue_post(c->helpers[i].inbox, &(struct part){0});
        thread_join(c->helpers[i].thread);
        queue_destroy(c->helpers[i].inbox);
    }
    queue_destroy(c->done);
    mem_free(c);
}

void copier_copy(struct copier *c, void *to, const void *from, size_t bytes)
{
    size_t each = c ? (bytes / (size_t)(c->n + 1) + PAGE - 1) / PAGE * PAGE : bytes, at = 0;
    int given = 0;
    if (bytes < ALONE_BYTES)
        each = bytes;
    for (; bytes - at > each; at += each)
        queue_post(c->helpers[given++].inbox, &(struct part){(char *)to + at, (const char *)from + at, each});
    memcpy((char *)to + at, (const char *)from + at, bytes - at);
    while (given > 0) {
        struct part p;
        if (queue_take(c->done, &p))
            given--;
        else
            queue_wait(c->done, -1);
    }
}
