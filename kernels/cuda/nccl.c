#include "kernels/cuda/nccl.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/world/ids.h"
#include "kernels/cuda/device.h"
#include "kernels/rendezvous.h"

/* How long an abort waits for a member that is inside a call, which enqueues and returns, before it ends the call under
 * it. */
static const int64_t PATIENCE_NS = 100000000;

/* A member's part. Others read it between the barrier of a sum and the next one; the communicator itself is used and
 * ended under `inside`.
 */
struct part {
    const struct nccl_functions *f;
    uint64_t serial;        /* of the communicator, the same at all members; 0: none */
    int devices[MAX_RANKS]; /* of all members, when it was made */
    ncclUniqueId id;        /* the first member's: for the one that is being made */
    bool refused;           /* the library gave no id; it is not asked again */
    atomic_bool inside;
    _Atomic(ncclComm_t) comm;
};

struct nccl_functions *nccl_open(void)
{
    struct nccl_functions *f = mem_new(sizeof *f);
    if (nccl_load(f))
        return f;
    mem_free(f);
    return NULL;
}

void nccl_close(struct nccl_functions *f)
{
    mem_free(f);
}

static struct part *part_of(const struct comm *c, int member)
{
    return *rendezvous_own((struct comm *)c, member, MEMBER_OWN);
}

/* ---- the communicator */

static bool enter(struct part *p, int64_t patience_ns)
{
    struct clock clock;
    clock_init_real(&clock);
    int64_t begun = clock_now(&clock);
    while (atomic_exchange(&p->inside, true))
        if (patience_ns >= 0 && clock_now(&clock) - begun > patience_ns)
            return false;
    return true;
}

static void end(struct part *p)
{
    ncclComm_t c = atomic_exchange(&p->comm, NULL);
    if (c)
        p->f->ncclCommAbort(c);
}

void nccl_abort(struct comm *c)
{
    for (int m = 0; c && m < rendezvous_size(c); m++) {
        struct part *p = part_of(c, m);
        if (!p)
            continue;
        bool alone = enter(p, PATIENCE_NS);
        end(p);
        if (alone)
            atomic_store(&p->inside, false);
    }
}

void nccl_leave(struct comm *c)
{
    for (int m = 0; m < rendezvous_size(c); m++) {
        struct part *p = part_of(c, m);
        ncclComm_t own = p ? atomic_exchange(&p->comm, NULL) : NULL;
        if (own)
            p->f->ncclCommDestroy(own);
        mem_free(p);
        *rendezvous_own(c, m, MEMBER_OWN) = NULL;
    }
}

/* Is there one among just these devices, in these places? All members read the same. */
static bool is_whole(const struct comm *c, const int *devices)
{
    int n = rendezvous_size(c);
    for (int m = 0; m < n; m++) {
        const struct part *p = part_of(c, m);
        if (!p || !p->serial || p->serial != part_of(c, 0)->serial || !atomic_load(&p->comm) ||
            memcmp(p->devices, devices, (size_t)n * sizeof *devices) != 0)
            return false;
    }
    return true;
}

static bool fail(struct device *d, struct comm *c, const struct nccl_functions *f, int rc)
{
    char text[200];
    snprintf(text, sizeof text, "GPU %d: NCCL: %.150s", d->index, f->ncclGetErrorString(rc));
    gpu_fail(d, E_DEVICE, text);
    cuda_comm_abort(c);
    return false;
}

static bool wait_all(struct device *d, struct comm *c)
{
    if (rendezvous_barrier(c))
        return true;
    gpu_fail(d, E_PEER, "another rank of the group failed");
    return false;
}

static uint64_t serial_of(const ncclUniqueId *id)
{
    uint64_t h = 14695981039346656037u;
    for (size_t i = 0; i < sizeof id->internal; i++)
        h = (h ^ (unsigned char)id->internal[i]) * 1099511628211u;
    return h | 1;
}

/* Makes a communicator of all members. False: there is none, with the device's error or (first member's part refused)
 * without. */
static bool join(struct device *d, struct comm *c, int me, const int *devices)
{
    int n = rendezvous_size(c);
    if (!wait_all(d, c)) /* all members have looked at what there is */
        return false;
    void **own = rendezvous_own(c, me, MEMBER_OWN);
    struct part *p = *own = *own ? *own : mem_new(sizeof *p);
    p->f = d->nccl;
    p->serial = 0;
    end(p);
    if (me == 0)
        p->refused = p->f->ncclGetUniqueId(&p->id) != ncclSuccess;
    if (!wait_all(d, c))
        return false;
    const struct part *first = part_of(c, 0);
    if (first->refused)
        return false;
    ncclComm_t made = NULL;
    int rc = p->f->ncclCommInitRank(&made, n, first->id, me);
    if (rc != ncclSuccess)
        return fail(d, c, p->f, rc);
    atomic_store(&p->comm, made);
    p->serial = serial_of(&first->id);
    memcpy(p->devices, devices, (size_t)n * sizeof *devices);
    return wait_all(d, c); /* all members have copied the id */
}

/* ---- the sum */

/* Which devices the members are on. False: two share one, or there are too many to list. */
static bool list_devices(const struct comm *c, int slot, int *devices)
{
    int n = rendezvous_size(c);
    for (int m = 0; m < n; m++) {
        devices[m] = member_device(c, m, slot);
        for (int k = 0; k < m; k++)
            if (devices[k] == devices[m])
                return false;
    }
    return n > 1;
}

/* Adds the member's own planes; their order does not matter here. */
static bool add_own(struct device *d, const struct reduce_args *a)
{
    struct sum_job j = {
        .y = a->part.data, .ldy = a->part.ld, .cols = a->y.cols, .first = 0, .end = (int64_t)a->rows * a->y.cols};
    for (int p = 0; p < a->order->n_planes; p++)
        if (a->order->member[p] == a->me) {
            j.planes[j.n_planes] = act_row(a->planes, a->order->index[p] * a->rows);
            j.lds[j.n_planes] = a->planes.ld;
            j.adds[j.n_planes] = j.n_planes > 0;
            j.n_planes++;
        }
    if (j.n_planes == 0)
        return gpu_ok(d, cudaMemsetAsync(a->part.data, 0, (size_t)j.end * sizeof(float), d->stream), "reduce");
    return gpu_launched(d, launch_sum(d->stream, &j), "reduce");
}

static bool add_members(struct device *d, const struct reduce_args *a)
{
    struct part *p = part_of(a->comm, a->me);
    size_t n = (size_t)a->rows * (size_t)a->y.cols;
    enter(p, -1);
    ncclComm_t c = atomic_load(&p->comm);
    int rc = c ? p->f->ncclAllReduce(a->part.data, a->part.data, n, ncclFloat32, ncclSum, c, d->stream) : ncclSuccess;
    atomic_store(&p->inside, false);
    if (rc != ncclSuccess)
        return fail(d, a->comm, p->f, rc);
    if (c)
        return true;
    gpu_fail(d, E_PEER, "another rank of the group failed");
    return false;
}

bool nccl_reduce(struct device *d, const struct reduce_args *a, int slot)
{
    int devices[MAX_RANKS];
    const struct part *first = part_of(a->comm, 0);
    if (!d->nccl || d->opts.invariant || d->graph || a->part.ld != a->y.cols || (first && first->refused) ||
        !list_devices(a->comm, slot, devices))
        return false;
    if (!is_whole(a->comm, devices) && !join(d, a->comm, a->me, devices))
        return gpu_failed(d);
    struct sum_job j = {.planes = {a->part.data},
                        .lds = {a->part.ld},
                        .n_planes = 1,
                        .y = a->y.data,
                        .ldy = a->y.ld,
                        .cols = a->y.cols,
                        .accumulate = a->accumulate,
                        .first = 0,
                        .end = (int64_t)a->rows * a->y.cols};
    if (!add_own(d, a)) {
        cuda_comm_abort(a->comm);
        return true;
    }
    if (add_members(d, a))
        gpu_launched(d, launch_sum(d->stream, &j), "reduce");
    return true;
}
