#include "engine/exec/transfer.h"

#include <errno.h>
#include <stdio.h>
#include <time.h>

#include "engine/base/mem.h"
#include "engine/base/queue.h"
#include "engine/base/thread.h"

struct job {
    enum { JOB_END, JOB_MOVE, JOB_STAGE } kind;
    int share;
    void *what;
};

/* The stage that is under way. */
struct staging {
    struct reshard_task *task; /* NULL: none */
    int layer;
};

struct transfer {
    struct transfer_setup setup;
    struct device *device;
    struct queue *inbox; /* of struct job */
    struct thread *thread;
};

static void sleep_ns(int64_t ns)
{
    struct timespec t = {.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
    while (ns > 0 && clock_nanosleep(CLOCK_MONOTONIC, 0, &t, &t) == EINTR)
        ;
}

static void do_move(struct transfer *t, struct move *m, int share)
{
    const struct backend_ops *ops = t->setup.ops;
    move_run(m, share, ops, t->device);
    if (!ops->computes)
        sleep_ns(atomic_load(&m->ns));
    if (atomic_fetch_sub(&m->left, 1) == 1)
        t->setup.move_done(t->setup.ctx, m);
}

/* The next layer; the last one ends the stage. */
static void go_on(struct transfer *t, struct staging *s)
{
    struct reshard_task *task = s->task;
    struct err e = {0};
    int64_t before = atomic_load(&task->bytes);
    bool more = false;
    struct weights_change c = {.model = t->setup.model,
                               .to = &task->to[t->setup.rank],
                               .room = task->room,
                               .stop = &task->stop,
                               .bytes = &task->bytes};
    int rc = weights_stage(t->setup.weights, &c, s->layer++, &more, &e);
    if (!t->setup.ops->computes && t->setup.ops->host_copy_ns)
        sleep_ns(t->setup.ops->host_copy_ns(t->device, (size_t)(atomic_load(&task->bytes) - before)));
    if (more && !rc)
        return;
    s->task = NULL;
    reshard_task_end(task, t->setup.rank, rc, &e);
}

static void body(void *arg)
{
    struct transfer *t = arg;
    struct staging staging = {0};
    for (;;) {
        struct job j;
        if (!queue_take(t->inbox, &j)) {
            if (staging.task)
                go_on(t, &staging);
            else
                queue_wait(t->inbox, -1);
            continue;
        }
        if (j.kind == JOB_MOVE)
            do_move(t, j.what, j.share);
        else if (j.kind == JOB_STAGE)
            staging = (struct staging){j.what, 0};
        else
            break;
    }
    if (staging.task)
        atomic_store(&staging.task->stop, true);
    while (staging.task)
        go_on(t, &staging);
}

int transfer_open(struct transfer **out, const struct transfer_setup *s, struct err *e)
{
    struct transfer *t = mem_new(sizeof *t);
    struct device_opts o = s->device;
    char name[16];
    *out = t;
    t->setup = *s;
    o.n_threads = 1;
    o.check = false; /* it only copies */
    t->inbox = queue_create(sizeof(struct job), 0, false);
    TRY(s->ops->open(&t->device, &o, e));
    snprintf(name, sizeof name, "transfer-%d", s->rank);
    return thread_start(&t->thread, name, body, t, e);
}

void transfer_post_move(struct transfer *t, struct move *m, int share)
{
    queue_post(t->inbox, &(struct job){JOB_MOVE, share, m});
}

void transfer_post_stage(struct transfer *t, struct reshard_task *r)
{
    queue_post(t->inbox, &(struct job){JOB_STAGE, 0, r});
}

void transfer_close(struct transfer *t)
{
    if (!t)
        return;
    if (t->thread) {
        queue_post(t->inbox, &(struct job){.kind = JOB_END});
        thread_join(t->thread);
    }
    if (t->device)
        t->setup.ops->close(t->device);
    queue_destroy(t->inbox);
    mem_free(t);
}
