/* The disk below host memory for KV: moves blocks between the two, beside everything else, on a thread that reads and
 * one that writes, so that who waits for a read waits for no write. Which block lies where is the engine's business
 * (world/kv.h); jobs are data, posted by the engine's thread and handed back on one of those. The engine holds both
 * ends of a job until then. Invariant: what a job has read is what was written with this key, by this model. */
#ifndef EXEC_DISK_KV_H
#define EXEC_DISK_KV_H

#include "engine/exec/disk_slots.h"
#include "kernels/backend.h"

struct disk_job {
    bool write; /* to the disk */
    int n;      /* blocks */
    int32_t *host, *slots;
    struct kv_key *keys;
    int n_done;     /* blocks that were moved and are whole: the first ones. Fewer than n: `err` says why */
    int64_t ns;     /* what that took, without waiting for its turn */
    struct err err; /* of the first that was not */
    void *ctx;      /* the poster's */
};

struct disk_kv;

struct disk_kv_setup {
    struct disk_slots_setup file; /* payload is filled in */
    const struct kv_space *host;  /* borrowed until it is closed */
    void (*done)(void *ctx, struct disk_job *j);
    void *ctx;
};

/* As disk_slots_open. */
int disk_kv_open(struct disk_kv **out, const struct disk_kv_setup *s, bool *emptied, struct err *e);
struct disk_slots *disk_kv_slots(struct disk_kv *d); /* for looking at, before the first job */
struct disk_job *disk_job_new(int n);                /* its lists are there */
void disk_job_free(struct disk_job *j);
void disk_kv_post(struct disk_kv *d, struct disk_job *j);
void disk_kv_clear(struct disk_kv *d); /* the file has nothing any more, when what was posted before has been done */
void disk_kv_close(struct disk_kv *d); /* does what was posted. NULL is fine */

#endif
