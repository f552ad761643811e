#include "engine/exec/disk_kv.h"

#include <stdio.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/base/queue.h"
#include "engine/base/thread.h"

struct order {
    enum { ORDER_END, ORDER_JOB, ORDER_CLEAR } kind;
    struct disk_job *job;
};

/* A thread, and what it works with. */
struct worker {
    struct disk_kv *disk;
    struct queue *inbox; /* of struct order */
    struct thread *thread;
    void *room; /* one slot */
};

struct disk_kv {
    struct disk_kv_setup setup;
    struct disk_slots slots;
    struct worker reader, writer;
};

/* A block of host memory lies there layer by layer. */
static void copy_block(const struct kv_space *host, int32_t block, unsigned char *slot, bool to_slot)
{
    for (int l = 0; l < host->n_layers; l++, slot += host->block_bytes) {
        char *p = (char *)host->base + ((size_t)l * (size_t)host->n_blocks + (size_t)block) * host->block_bytes;
        if (to_slot)
            memcpy(slot, p, host->block_bytes);
        else
            memcpy(p, slot, host->block_bytes);
    }
}

static int do_block(struct worker *w, struct disk_job *j, int i)
{
    struct disk_kv *d = w->disk;
    if (j->write) {
        copy_block(d->setup.host, j->host[i], disk_slot_payload(w->room), true);
        return disk_slots_write(&d->slots, j->slots[i], j->keys[i], w->room, &j->err);
    }
    TRY(disk_slots_read(&d->slots, j->slots[i], j->keys[i], w->room, &j->err));
    copy_block(d->setup.host, j->host[i], disk_slot_payload(w->room), false);
    return 0;
}

static void do_job(struct worker *w, struct disk_job *j)
{
    struct clock clock;
    clock_init_real(&clock);
    int64_t t0 = clock_now(&clock);
    while (j->n_done < j->n && !do_block(w, j, j->n_done))
        j->n_done++;
    j->ns = clock_now(&clock) - t0;
    w->disk->setup.done(w->disk->setup.ctx, j);
}

static void body(void *arg)
{
    struct worker *w = arg;
    for (;;) {
        struct order o;
        struct err e;
        if (!queue_take(w->inbox, &o))
            queue_wait(w->inbox, -1);
        else if (o.kind == ORDER_JOB)
            do_job(w, o.job);
        else if (o.kind == ORDER_END)
            return;
        else if (disk_slots_clear(&w->disk->slots, &e))
            log_warn("disk", "%s", e.text);
    }
}

static int start(struct disk_kv *d, struct worker *w, const char *name, struct err *e)
{
    w->disk = d;
    w->inbox = queue_create(sizeof(struct order), 0, false);
    w->room = disk_slots_room(&d->slots);
    return thread_start(&w->thread, name, body, w, e);
}

static void stop(struct worker *w)
{
    if (w->thread) {
        queue_post(w->inbox, &(struct order){.kind = ORDER_END});
        thread_join(w->thread);
    }
    queue_destroy(w->inbox);
    mem_free(w->room);
}

int disk_kv_open(struct disk_kv **out, const struct disk_kv_setup *s, bool *emptied, struct err *e)
{
    struct disk_kv *d = mem_new(sizeof *d);
    d->setup = *s;
    d->setup.file.payload = s->host->block_bytes * (size_t)s->host->n_layers;
    int rc = disk_slots_open(&d->slots, &d->setup.file, emptied, e);
    if (!rc)
        rc = start(d, &d->reader, "disk-read", e);
    if (!rc)
        rc = start(d, &d->writer, "disk-write", e);
    if (rc) {
        disk_kv_close(d);
        d = NULL;
    }
    *out = d;
    return rc;
}

struct disk_slots *disk_kv_slots(struct disk_kv *d)
{
    return &d->slots;
}

struct disk_job *disk_job_new(int n)
{
    struct disk_job *j = mem_new(sizeof *j);
    j->n = n;
    j->host = mem_new_array((size_t)n, sizeof *j->host);
    j->slots = mem_new_array((size_t)n, sizeof *j->slots);
    j->keys = mem_new_array((size_t)n, sizeof *j->keys);
    return j;
}

void disk_job_free(struct disk_job *j)
{
    mem_free(j->host);
    mem_free(j->slots);
    mem_free(j->keys);
    mem_free(j);
}

void disk_kv_post(struct disk_kv *d, struct disk_job *j)
{
    queue_post((j->write ? &d->writer : &d->reader)->inbox, &(struct order){ORDER_JOB, j});
}

void disk_kv_clear(struct disk_kv *d)
{
    queue_post(d->writer.inbox, &(struct order){.kind = ORDER_CLEAR});
}

void disk_kv_close(struct disk_kv *d)
{
    if (!d)
        return;
    stop(&d->reader);
    stop(&d->writer);
    disk_slots_close(&d->slots);
    mem_free(d);
}
