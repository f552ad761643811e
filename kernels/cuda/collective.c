/* The collectives: a member records an event behind what it shows, meets the others on the host, and lets its stream
 * wait for their events before it reads. So a kernel never waits for another, and ranks may share a device. */
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/nccl.h"
#include "kernels/meeting.h"

enum { ONESHOT_MOST_BYTES = 256 << 10 };

/* A member's events of one turn: what it shows is ready; its part of a sum is. An event belongs to the device that
 * records it. */
struct mark {
    int index;
    cudaEvent_t shown, summed;
};

static void mark_free(struct mark *m)
{
    if (!m)
        return;
    if (m->shown)
        cudaEventDestroy(m->shown);
    if (m->summed)
        cudaEventDestroy(m->summed);
    mem_free(m);
}

void cuda_comm_close(struct comm *c)
{
    if (!c)
        return;
    for (int m = 0; m < meeting_size(c); m++)
        for (int turn = 0; turn < 2; turn++)
            mark_free(*meeting_own(c, m, turn));
    nccl_leave(c);
    meeting_close(c);
}

void cuda_comm_abort(struct comm *c)
{
    meeting_abort(c);
    nccl_abort(c);
}

int member_device(const struct comm *c, int member, int turn)
{
    return ((const struct mark *)meeting_shown(c, member, turn)->ready)->index;
}

/* Ranks may change places between steps, and then bring their own device's events. Nobody waits for those of this turn
 * any more: everyone has entered the turn after it. */
static struct mark *mark_get(struct device *d, struct comm *c, int me)
{
    void **own = meeting_own(c, me, meeting_next_turn(c, me));
    struct mark *m = *own;
    if (m && m->index == d->index)
        return m;
    mark_free(m);
    *own = m = mem_new(sizeof *m);
    m->index = d->index;
    if (!gpu_ok(d, cudaEventCreateWithFlags(&m->shown, cudaEventDisableTiming), "making an event") ||
        !gpu_ok(d, cudaEventCreateWithFlags(&m->summed, cudaEventDisableTiming), "making an event")) {
        mark_free(m);
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

/* Aborts on behalf of a device that has failed. */
static bool enter(struct device *d, struct comm *c, int me, struct shown *s, int *turn)
{
    gpu_use(d);
    struct mark *own = gpu_failed(d) || d->broken.code ? NULL : mark_get(d, c, me);
    if (!own || !gpu_ok(d, cudaEventRecord(own->shown, d->stream), "a collective")) {
        cuda_comm_abort(c);
        return false;
    }
    s->ready = own;
    if (!meeting_enter(c, me, s, turn))
        return fail_peer(d);
    for (int m = 0; m < meeting_size(c); m++) {
        const struct mark *theirs = meeting_shown(c, m, *turn)->ready;
        if (m != me && !gpu_ok(d, cudaStreamWaitEvent(d->stream, theirs->shown, 0), "a collective"))
            return false; /* the next collective aborts */
    }
    return true;
}

bool members_signal(struct device *d, struct comm *c, int me, enum signal_way way)
{
    struct shown s = {.algorithm = COMM_AUTO, .buffers = {{.data = d->frame.results}}};
    bool signals = (me == 0) == (way == FROM_FIRST);
    int turn;
    struct mark *own = gpu_failed(d) || d->broken.code ? NULL : mark_get(d, c, me);
    if (!own || (signals && !gpu_ok(d, cudaEventRecord(own->shown, d->stream), "a collective"))) {
        cuda_comm_abort(c);
        return false;
    }
    s.ready = own;
    if (!meeting_enter(c, me, &s, &turn))
        return fail_peer(d);
    for (int m = 0; m < meeting_size(c) && !signals; m++) {
        const struct mark *theirs = meeting_shown(c, m, turn)->ready;
        if ((m == 0) == (way == FROM_FIRST) &&
            !gpu_ok(d, cudaStreamWaitEvent(d->stream, theirs->shown, 0), "a collective"))
            return false; /* the next collective aborts */
    }
    return true;
}

int members_results(const struct comm *c, int me, const struct sample_out *results[FEED_MEMBERS])
{
    int turn = 1 - meeting_next_turn(c, me), n = meeting_size(c);
    ASSERT(n <= FEED_MEMBERS);
    for (int m = 0; m < n; m++)
        results[m] = meeting_shown(c, m, turn)->buffers[0].data;
    return n;
}

/* Outside of a step, where ops are timed and buffers come and go, a collective has ended when it returns. */
static void leave(struct device *d)
{
    if (!d->batch)
        gpu_ok(d, cudaStreamSynchronize(d->stream), "a collective");
}

/* ---- exchange */

static void take(struct device *d, const struct exchange_args *a, int turn)
{
    struct copy_job j = {.n = 0};
    for (int i = 0; i < a->n_rects; i++) {
        const struct comm_rect *r = &a->rects[i];
        struct act from = meeting_shown(a->comm, r->peer, turn)->buffers[r->buffer], to = a->take[r->buffer];
        ASSERT(r->src_col + r->cols <= from.cols && r->dst_col + r->cols <= to.cols);
        if (r->rows > 0 && r->cols > 0)
            j.rects[j.n++] = (struct copy_rect){act_row(from, r->src_row) + r->src_col,
                                                act_row(to, r->dst_row) + r->dst_col,
                                                from.ld,
                                                to.ld,
                                                r->rows,
                                                r->cols};
        if (j.n == COPY_RECTS || (j.n && i + 1 == a->n_rects)) {
            gpu_ok(d, launch_copy(d->stream, &j), "exchange");
            j.n = 0;
        }
    }
}

void cuda_exchange(struct device *d, const struct exchange_args *a)
{
    struct shown s = {.algorithm = COMM_AUTO};
    int turn;
    memcpy(s.buffers, a->show, sizeof s.buffers);
    if (!enter(d, a->comm, a->me, &s, &turn))
        return;
    take(d, a, turn);
    leave(d);
}

/* ---- reduce */

static int64_t first_element(int64_t elements, int n, int member)
{
    return elements * member / n;
}

/* Elements [first, end) of all planes, added up into `to`. */
static void add_planes(struct device *d, const struct reduce_args *a, int turn, struct sum_job *j)
{
    const struct reduce_order *o = a->order;
    ASSERT(o->n_planes <= SUM_PLANES);
    j->n_planes = o->n_planes;
    for (int p = 0; p < o->n_planes; p++) {
        struct act planes = meeting_shown(a->comm, o->member[p], turn)->buffers[0];
        j->planes[p] = act_row(planes, o->index[p] * a->rows);
        j->lds[p] = planes.ld;
        j->adds[p] = o->adds[p];
    }
    if (j->first < j->end)
        gpu_ok(d, launch_sum(d->stream, j), "reduce");
}

/* What the members have left in their parts. */
static void take_parts(struct device *d, const struct reduce_args *a, int turn)
{
    int n = meeting_size(a->comm);
    int64_t elements = (int64_t)a->rows * a->y.cols;
    for (int m = 0; m < n; m++) {
        struct act part = meeting_shown(a->comm, m, turn)->buffers[1];
        struct sum_job j = {.planes = {part.data},
                            .lds = {part.ld},
                            .n_planes = 1,
                            .y = a->y.data,
                            .ldy = a->y.ld,
                            .cols = a->y.cols,
                            .accumulate = a->accumulate,
                            .first = first_element(elements, n, m),
                            .end = first_element(elements, n, m + 1)};
        if (j.first < j.end)
            gpu_ok(d, launch_sum(d->stream, &j), "reduce");
    }
}

/* All have left their parts. */
static bool meet_again(struct device *d, struct comm *c, int me, int turn)
{
    const struct mark *own = meeting_shown(c, me, turn)->ready;
    if (gpu_failed(d) || !gpu_ok(d, cudaEventRecord(own->summed, d->stream), "reduce")) {
        cuda_comm_abort(c);
        return false;
    }
    if (!meeting_wait(c))
        return fail_peer(d);
    for (int m = 0; m < meeting_size(c); m++) {
        const struct mark *theirs = meeting_shown(c, m, turn)->ready;
        if (m != me && !gpu_ok(d, cudaStreamWaitEvent(d->stream, theirs->summed, 0), "reduce"))
            return false;
    }
    return true;
}

void cuda_reduce(struct device *d, const struct reduce_args *a)
{
    struct shown s = {.buffers = {a->planes, a->part}, .algorithm = a->algorithm};
    int64_t elements = (int64_t)a->rows * a->y.cols;
    int turn;
    if (a->order->n_planes > SUM_PLANES)
        gpu_fail(d, E_UNSUPPORTED, "too many partial sums for the GPU's reduce: use fewer ranks in tensor parallelism");
    if (!enter(d, a->comm, a->me, &s, &turn))
        return;
    int n = meeting_size(a->comm);
    enum comm_algorithm how = meeting_shown(a->comm, 0, turn)->algorithm;
    if (how == COMM_LIBRARY && nccl_reduce(d, a, turn)) {
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
    add_planes(d, a, turn, &j);
    if (how == COMM_TWOSHOT) {
        if (!meet_again(d, a->comm, a->me, turn))
            return;
        take_parts(d, a, turn);
    }
    leave(d);
}

/* ---- pairs */

void cuda_send(struct device *d, struct comm *c, int me, int to, struct act x, int rows)
{
    struct mail m = {.x = x, .rows = rows, .ready = d->posted};
    gpu_use(d);
    if (gpu_failed(d) || !gpu_ok(d, cudaEventRecord(d->posted, d->stream), "send")) {
        cuda_comm_abort(c);
        return;
    }
    if (!meeting_put(c, me, to, &m))
        fail_peer(d);
    else
        gpu_ok(d, cudaStreamWaitEvent(d->stream, m.ready, 0), "send"); /* until then the rows are being read */
}

void cuda_receive(struct device *d, struct comm *c, int me, int from, struct act y, int rows)
{
    struct mail m;
    gpu_use(d);
    if (gpu_failed(d)) {
        cuda_comm_abort(c);
        return;
    }
    if (!meeting_find(c, me, from, &m)) {
        fail_peer(d);
        return;
    }
    ASSERT(m.rows == rows && m.x.cols == y.cols);
    struct copy_job j = {.rects = {{m.x.data, y.data, m.x.ld, y.ld, rows, y.cols}}, .n = 1};
    bool ok = gpu_ok(d, cudaStreamWaitEvent(d->stream, m.ready, 0), "receive") &&
              (rows == 0 || gpu_ok(d, launch_copy(d->stream, &j), "receive")) &&
              gpu_ok(d, cudaEventRecord(d->posted, d->stream), "receive");
    if (!ok)
        cuda_comm_abort(c);
    else if (!meeting_take(c, me, from, d->posted))
        fail_peer(d);
    leave(d);
}
