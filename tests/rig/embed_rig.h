/* An encoder that tests command: it counts, waits at a gate, and fails on request. A vector is a hash of its ids, so
 * that whoever got a wrong one is found. Tests only. */
#ifndef RIG_EMBED_RIG_H
#define RIG_EMBED_RIG_H

#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "engine/base/mem.h"
#include "engine/base/monitor.h"
#include "engine/base/queue.h"
#include "engine/base/thread.h"
#include "engine/embed/embedder.h"

enum { RIG_DIM = 4, RIG_POISON = 666 };

struct embed_rig {
    struct embedder *embedder;
    struct embed_setup setup;
    struct embed_link link; /* what it says of itself */
    struct monitor *gate;
    int permits;              /* batches that may run; -1: all */
    _Atomic int runs, seqs;   /* so far */
    _Atomic int fail_next;    /* so many runs fail, whatever is in them */
    _Atomic bool fail_poison; /* runs with a sequence that begins with RIG_POISON fail */
    int opened, fail_open_at;
    int n_done;
};

struct rig_replica {
    struct embed_rig *rig;
};

static inline float rig_value(const int32_t *ids, int n, int d)
{
    uint32_t h = 2166136261u + (uint32_t)d;
    for (int i = 0; i < n; i++)
        h = (h ^ (uint32_t)ids[i]) * 16777619u;
    return (float)(h >> 8);
}

static inline int rig_open(void **replica, void *ctx, int n_threads, int max_tokens, struct err *e)
{
    struct embed_rig *g = ctx;
    (void)n_threads, (void)max_tokens;
    if (g->fail_open_at && g->opened + 1 == g->fail_open_at)
        return err_set(e, E_FULL, "no memory for a replica");
    struct rig_replica *r = mem_new(sizeof *r);
    r->rig = g;
    g->opened++;
    *replica = r;
    return 0;
}

static inline void rig_close(void *replica)
{
    ((struct rig_replica *)replica)->rig->opened--;
    mem_free(replica);
}

static inline int rig_run(void *replica, const struct encoder_seq *seqs, int n, struct err *e)
{
    struct embed_rig *g = ((struct rig_replica *)replica)->rig;
    monitor_lock(g->gate);
    while (!g->permits)
        monitor_wait(g->gate, -1);
    g->permits -= g->permits > 0;
    monitor_unlock(g->gate);
    atomic_fetch_add(&g->runs, 1);
    for (int i = 0; i < n; i++)
        if (g->fail_poison && seqs[i].ids[0] == RIG_POISON)
            return err_set(e, E_DEVICE, "poison");
    if (atomic_load(&g->fail_next) > 0) {
        atomic_fetch_sub(&g->fail_next, 1);
        return err_set(e, E_DEVICE, "the device failed");
    }
    for (int i = 0; i < n; i++)
        for (int d = 0; d < RIG_DIM; d++)
            seqs[i].out[d] = rig_value(seqs[i].ids, seqs[i].n, d);
    atomic_fetch_add(&g->seqs, n);
    return 0;
}

static const struct embed_ops rig_ops = {rig_open, rig_run, rig_close};

static inline void rig_permit(struct embed_rig *g, int n)
{
    monitor_lock(g->gate);
    g->permits = n < 0 ? -1 : g->permits + n;
    monitor_unlock(g->gate);
    monitor_wake(g->gate);
}

static inline void rig_begin(struct embed_rig *g, int replicas, int batch_tokens)
{
    memset(g, 0, sizeof *g);
    g->gate = monitor_new();
    g->setup = (struct embed_setup){.ops = &rig_ops,
                                    .ctx = g,
                                    .n_replicas = replicas,
                                    .n_threads = 1,
                                    .batch_tokens = batch_tokens,
                                    .link = &g->link};
    embed_link_init(&g->link, replicas);
}

static inline void rig_start(struct embed_rig *g)
{
    struct err e = {0};
    assert_int_equal(embedder_create(&g->embedder, &g->setup, &e), 0);
}

static inline void rig_end(struct embed_rig *g)
{
    rig_permit(g, -1);
    embedder_destroy(g->embedder);
    assert_int_equal(g->opened, 0);
    monitor_free(g->gate);
}

/* A request of n sequences of these lengths; it owns all that it points to. */
struct rig_job {
    struct embed_job job; /* first */
    struct embed_rig *rig;
    int32_t *ids;
    float *out;
    int done, order; /* how often; the how manyth of all */
};

static inline void rig_done(struct embed_job *job)
{
    struct rig_job *j = (struct rig_job *)job;
    j->done++;
    j->order = j->rig->n_done++;
}

static inline struct rig_job *rig_job(struct embed_rig *g, const char *owner, int n, const int *lengths)
{
    static _Atomic int salt;
    struct rig_job *j = mem_new(sizeof *j);
    int64_t total = 0;
    j->rig = g;
    for (int i = 0; i < n; i++)
        total += lengths[i];
    j->ids = mem_new_array((size_t)total, sizeof *j->ids);
    j->out = mem_new_array((size_t)n * RIG_DIM, sizeof *j->out);
    j->job = (struct embed_job){.n = n, .n_tokens = total, .done = rig_done};
    j->job.seqs = mem_new_array((size_t)n, sizeof *j->job.seqs);
    snprintf(j->job.owner, sizeof j->job.owner, "%s", owner);
    int32_t *ids = j->ids;
    for (int64_t i = 0; i < total; i++)
        ids[i] = 1000 + atomic_fetch_add(&salt, 1);
    for (int i = 0; i < n; i++, ids += lengths[i - 1])
        j->job.seqs[i] = (struct encoder_seq){ids, lengths[i], lengths[i], j->out + i * RIG_DIM};
    return j;
}

static inline struct rig_job *rig_equal(struct embed_rig *g, const char *owner, int n, int length)
{
    int *lengths = mem_new_array((size_t)n, sizeof *lengths);
    for (int i = 0; i < n; i++)
        lengths[i] = length;
    struct rig_job *j = rig_job(g, owner, n, lengths);
    mem_free(lengths);
    return j;
}

static inline void rig_free(struct rig_job *j)
{
    mem_free(j->job.seqs);
    mem_free(j->ids);
    mem_free(j->out);
    mem_free(j);
}

/* Every vector is the one of its own ids. */
static inline void rig_check(const struct rig_job *j)
{
    assert_int_equal(j->done, 1);
    assert_int_equal(j->job.rc, 0);
    for (int i = 0; i < j->job.n; i++)
        for (int d = 0; d < RIG_DIM; d++)
            assert_true(j->out[i * RIG_DIM + d] == rig_value(j->job.seqs[i].ids, j->job.seqs[i].n, d));
}

/* Collects until the job is done. */
static inline void rig_wait(struct rig_job *j)
{
    struct pollfd p = {embedder_fd(j->rig->embedder), POLLIN, 0};
    while (!j->done) {
        assert_true(poll(&p, 1, 120000) > 0);
        embedder_collect(j->rig->embedder);
    }
}

#endif
