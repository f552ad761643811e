/* The collectives. A member records an event after the work that fills its buffers, meets the others on the host, and
 * makes its stream wait for their events before it reads. So no kernel waits for another, and ranks may share a
 * device. */
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/nccl.h"
#include "kernels/rendezvous.h"

enum { ONESHOT_MOST_BYTES = 256 << 10 };

/* A member's events for one slot: its buffers may be read; its part of a sum is complete. An event belongs to the
 * device that records it. */
struct member_events {
    int index;
    cudaEvent_t published, summed;
};

static void member_events_free(struct member_events *m)
{
    if (!m)
        return;
    if (m->published)
        cudaEventDestroy(m->published);
    if (m->summed)
        cudaEventDestroy(m->summed);
    mem_free(m);
}

void cuda_comm_close(struct comm *c)
{
    if (!c)
        return;
    for (int m = 0; m < rendezvous_size(c); m++)
        for (int slot = 0; slot < 2; slot++)
            member_events_free(*rendezvous_own(c, m, slot));
    nccl_leave(c);
    rendezvous_close(c);
}

void cuda_comm_abort(struct comm *c)
{
    rendezvous_abort(c);
    nccl_abort(c);
}

int member_device(const struct comm *c, int member, int slot)
{
    return ((const struct member_events *)rendezvous_published(c, member, slot)->ready)->index;
}

/* Ranks may swap their member numbers between steps, so the events found here may belong to another device. They can be
 * replaced: nobody waits for this slot's events any more, since every member has entered the slot after it. */
static struct member_events *member_events_get(struct device *d, struct comm *c, int me)
{
    void **own = rendezvous_own(c, me, rendezvous_next_slot(c, me));
    struct member_events *m = *own;
    if (m && m->index == d->index)
        return m;
    member_events_free(m);
    *own = m = mem_new(sizeof *m);
    m->index = d->index;
    if (!gpu_ok(d, cudaEventCreateWithFlags(&m->published, cudaEventDisableTiming), "making an event") ||
        !gpu_ok(d, cudaEventCreateWithFlags(&m->summed, cudaEventDisableTiming), "making an event")) {
        member_events_free(m);
        *own = NULL;
        return NULL;
    }
    return m;
}

static bool fail_peer(struct device *d)
{
    gpu_fail(d, E_PEER, "another rank of the group failed");
    return false;
}

/* The members of a group capture into one graph, which only one thread at a time may add to: they take turns between
 * collectives. */
void turn_take(struct device *d)
{
    if (d->turns)
        rendezvous_take_turn(d->turns);
}

void turn_pass(struct device *d)
{
    if (d->turns)
        rendezvous_pass_turn(d->turns);
}

/* Publishes and waits for all members. */
static bool meet(struct device *d, struct comm *c, int me, const struct published *s, int *slot)
{
    turn_pass(d);
    bool all = rendezvous_enter(c, me, s, slot);
    turn_take(d);
    return all;
}

/* Makes the device's stream wait for another's event. */
static bool wait_for(struct device *d, cudaEvent_t e, const char *what)
{
    d->after_kernel = false;
    return gpu_ok(d, cudaStreamWaitEvent(d->stream, e, 0), what);
}

/* Aborts on behalf of a device that has failed. */
static bool enter(struct device *d, struct comm *c, int me, struct published *s, int *slot)
{
    gpu_use(d);
    struct member_events *own = gpu_failed(d) || d->broken.code ? NULL : member_events_get(d, c, me);
    if (!own || !gpu_ok(d, cudaEventRecord(own->published, d->stream), "a collective")) {
        cuda_comm_abort(c);
        return false;
    }
    s->ready = own;
    if (!meet(d, c, me, s, slot))
        return fail_peer(d);
    for (int m = 0; m < rendezvous_size(c); m++) {
        const struct member_events *theirs = rendezvous_published(c, m, *slot)->ready;
        if (m != me && !wait_for(d, theirs->published, "a collective"))
            return false; /* the next collective aborts */
    }
    return true;
}

bool members_signal(struct device *d, struct comm *c, int me, enum signal_way way)
{
    struct published s = {.algorithm = COMM_AUTO, .buffers = {{.data = d->frame.results}}};
    bool signals = (me == 0) == (way == FROM_FIRST);
    int slot;
    struct member_events *own = gpu_failed(d) || d->broken.code ? NULL : member_events_get(d, c, me);
    if (!own || (signals && !gpu_ok(d, cudaEventRecord(own->published, d->stream), "a collective"))) {
        cuda_comm_abort(c);
        return false;
    }
    s.ready = own;
    if (!meet(d, c, me, &s, &slot))
        return fail_peer(d);
    for (int m = 0; m < rendezvous_size(c) && !signals; m++) {
        const struct member_events *theirs = rendezvous_published(c, m, slot)->ready;
        if ((m == 0) == (way == FROM_FIRST) && !wait_for(d, theirs->published, "a collective"))
            return false; /* the next collective aborts */
    }
    return true;
}

int members_results(const struct comm *c, int me, const struct sample_out *results[FEED_MEMBERS])
{
    int slot = 1 - rendezvous_next_slot(c, me), n = rendezvous_size(c);
    ASSERT(n <= FEED_MEMBERS);
    for (int m = 0; m < n; m++)
        results[m] = rendezvous_published(c, m, slot)->buffers[0].data;
    return n;
}

/* Outside of a step, where ops are timed and buffers are freed, a collective has completed when it returns. */
static void leave(struct device *d)
{
    if (!d->batch)
        gpu_ok(d, cudaStreamSynchronize(d->stream), "a collective");
}

/* ---- exchange */

/* A rectangle as words of four bytes: of halves, two columns each. */
static struct copy_rect rect_of(struct act from, struct act to, const struct comm_rect *r)
{
    int each = from.half ? 2 : 1;
    ASSERT(r->src_col + r->cols <= from.cols && r->dst_col + r->cols <= to.cols && from.half == to.half);
    ASSERT(r->src_col % each == 0 && r->dst_col % each == 0 && r->cols % each == 0 && from.ld % each == 0 &&
           to.ld % each == 0);
    from.ld /= each;
    to.ld /= each;
    return (struct copy_rect){act_row(from, r->src_row) + r->src_col / each,
                              act_row(to, r->dst_row) + r->dst_col / each,
                              from.ld,
                              to.ld,
                              r->rows,
                              r->cols / each};
}

static void take(struct device *d, const struct exchange_args *a, int slot)
{
    struct copy_job j = {.n = 0};
    for (int i = 0; i < a->n_rects; i++) {
        const struct comm_rect *r = &a->rects[i];
        struct act from = rendezvous_published(a->comm, r->peer, slot)->buffers[r->buffer];
        if (r->rows > 0 && r->cols > 0)
            j.rects[j.n++] = rect_of(from, a->dst[r->buffer], r);
        if (j.n == COPY_RECTS || (j.n && i + 1 == a->n_rects)) {
            gpu_launched(d, launch_copy(d->stream, &j), "exchange");
            j.n = 0;
        }
    }
}

void cuda_exchange(struct device *d, const struct exchange_args *a)
{
    struct published s = {.algorithm = COMM_AUTO};
    int slot;
    memcpy(s.buffers, a->src, sizeof s.buffers);
    if (!enter(d, a->comm, a->me, &s, &slot))
        return;
    take(d, a, slot);
    leave(d);
}

/* ---- reduce */

/* Of member n: how many there are. Parts begin at multiples of four, which are read at once. */
static int64_t first_element(int64_t elements, int n, int member)
{
    return member == n ? elements : elements / 4 * member / n * 4;
}

/* Elements [first, end) of all planes, added up into `to`. */
static void add_planes(struct device *d, const struct reduce_args *a, int slot, struct sum_job *j)
{
    const struct reduce_order *o = a->order;
    ASSERT(o->n_planes <= SUM_PLANES);
    j->n_planes = o->n_planes;
    for (int p = 0; p < o->n_planes; p++) {
        struct act planes = rendezvous_published(a->comm, o->member[p], slot)->buffers[0];
        j->planes[p] = act_row(planes, o->index[p] * a->rows);
        j->lds[p] = planes.ld;
        j->adds[p] = o->adds[p];
    }
    if (j->first < j->end)
        gpu_launched(d, launch_sum(d->stream, j), "reduce");
}

/* Takes the sums that the members have left in their parts. */
static void take_parts(struct device *d, const struct reduce_args *a, int slot)
{
    int n = rendezvous_size(a->comm);
    int64_t elements = (int64_t)a->rows * a->y.cols;
    struct take_job j = {.n = n, .y = a->y.data, .ldy = a->y.ld, .cols = a->y.cols, .accumulate = a->accumulate};
    ASSERT(n <= TAKE_MEMBERS);
    for (int m = 0; m < n; m++) {
        struct act part = rendezvous_published(a->comm, m, slot)->buffers[1];
        j.parts[m] = part.data;
        j.lds[m] = part.ld;
        j.first[m] = first_element(elements, n, m);
    }
    j.first[n] = elements;
    gpu_launched(d, launch_take(d->stream, &j), "reduce");
}

/* A second barrier: all members have computed their parts. */
static bool second_barrier(struct device *d, struct comm *c, int me, int slot)
{
    const struct member_events *own = rendezvous_published(c, me, slot)->ready;
    if (gpu_failed(d) || !gpu_ok(d, cudaEventRecord(own->summed, d->stream), "reduce")) {
        cuda_comm_abort(c);
        return false;
    }
    turn_pass(d);
    bool all = rendezvous_barrier(c);
    turn_take(d);
    if (!all)
        return fail_peer(d);
    for (int m = 0; m < rendezvous_size(c); m++) {
        const struct member_events *theirs = rendezvous_published(c, m, slot)->ready;
        if (m != me && !wait_for(d, theirs->summed, "reduce"))
            return false;
    }
    return true;
}

void cuda_reduce(struct device *d, const struct reduce_args *a)
{
    struct published s = {.buffers = {a->planes, a->part}, .algorithm = a->algorithm};
    int64_t elements = (int64_t)a->rows * a->y.cols;
    int slot;
    if (a->order->n_planes > SUM_PLANES)
        gpu_fail(d, E_UNSUPPORTED, "too many partial sums for the GPU's reduce: use fewer ranks in tensor parallelism");
    if (!enter(d, a->comm, a->me, &s, &slot))
        return;
    int n = rendezvous_size(a->comm);
    enum comm_algorithm how = rendezvous_published(a->comm, 0, slot)->algorithm;
    if (how == COMM_LIBRARY && nccl_reduce(d, a, slot)) {
        leave(d);
        return;
    }
    if (how == COMM_AUTO || how == COMM_LIBRARY)
        how = (size_t)elements * sizeof(float) <= ONESHOT_MOST_BYTES ? COMM_ONESHOT : COMM_TWOSHOT;
    struct sum_job j = {
        .y = a->y.data, .ldy = a->y.ld, .cols = a->y.cols, .accumulate = a->accumulate, .first = 0, .end = elements};
    if (how == COMM_TWOSHOT)
        j = (struct sum_job){.y = a->part.data,
                             .ldy = a->part.ld,
                             .cols = a->y.cols,
                             .first = first_element(elements, n, a->me),
                             .end = first_element(elements, n, a->me + 1)};
    add_planes(d, a, slot, &j);
    if (how == COMM_TWOSHOT) {
        if (!second_barrier(d, a->comm, a->me, slot))
            return;
        take_parts(d, a, slot);
    }
    leave(d);
}
