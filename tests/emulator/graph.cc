/* Streams, events and graphs of the emulator. What is recorded keeps the edges that the runtime would give it: by the
 * stream's order and by events, no others. A graph is played in a random order that the edges allow, so an edge that is
 * missing shows as another result.
 *
 * With EMULATOR_DELAYS in the environment a stream's work waits until somebody waits for it, or until chance has it
 * done with the next piece: a wait that is missing between streams, or before the host looks, shows as another result,
 * too.
 */
#include <cuda_runtime.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "tests/emulator/graph.h"

enum { MOST_LOOKS = 4 };

struct node {
    emulator_work work;
    std::vector<int> after;
};

struct capture {
    std::mutex lock;
    std::atomic<bool> busy{false};
    std::vector<node> nodes;
    cudaStream_t origin;
    bool over = false, spoilt = false;
};

/* Where an event was recorded in a stream whose work is delayed. */
struct place {
    cudaStream_t in;
    bool passed = false;
};

/* Delayed: something to run, a place to pass, or one of another stream to wait for. */
struct delayed {
    emulator_work work;
    std::shared_ptr<place> passes, waits;
};

struct emulated_stream {
    std::shared_ptr<capture> in;
    std::vector<int> tail;
    bool follows = false; /* tail is this stream's own latest work, and nothing was joined since */
    std::deque<delayed> queue;
    cudaError_t failed = cudaSuccess;
    int device;
};

struct emulated_event {
    std::shared_ptr<capture> in;
    std::vector<int> tail;
    std::shared_ptr<place> at;
    int looks = 0; /* so often it is still to come */
};

struct emulated_graph {
    std::shared_ptr<std::vector<node>> nodes;
};

namespace {

enum { CHAIN = 3 }; /* kernels that may begin before one that has not ended */

bool captures(const cudaStream_t s)
{
    return s && s->in && !s->in->over; /* the default stream records nothing */
}

/* What must not be asked of a stream that records; asking spoils the recording. */
bool spoils(const cudaStream_t s)
{
    if (captures(s))
        s->in->spoilt = true;
    return captures(s);
}

cudaError_t spoilt_by(const std::shared_ptr<capture> &c, cudaError_t rc)
{
    if (c)
        c->spoilt = true;
    return emulator_note(rc);
}

/* A call that touches a recording. Only one thread at a time may make one: it takes its time here, so that two that
 * nothing keeps apart meet. */
struct touch {
    capture *c;
    explicit touch(const std::shared_ptr<capture> &in) : c(in.get())
    {
        if (c->busy.exchange(true))
            emulator_die("two threads add to one graph at the same time");
        if (emulator_random(8) == 0)
            std::this_thread::sleep_for(std::chrono::microseconds(20));
        else
            std::this_thread::yield();
    }
    ~touch() { c->busy = false; }
};

void merge(std::vector<int> *to, const std::vector<int> &from)
{
    for (int n : from) {
        bool there = false;
        for (int k : *to)
            there = there || k == n;
        if (!there)
            to->push_back(n);
    }
}

/* Is all that was recorded before the end of the origin's stream? */
bool all_joined(const capture &c, const std::vector<int> &tail)
{
    std::vector<bool> seen(c.nodes.size());
    std::vector<int> open = tail;
    size_t n = 0;
    while (!open.empty()) {
        int at = open.back();
        open.pop_back();
        if (seen[(size_t)at])
            continue;
        seen[(size_t)at] = true;
        n++;
        open.insert(open.end(), c.nodes[(size_t)at].after.begin(), c.nodes[(size_t)at].after.end());
    }
    return n == c.nodes.size();
}

/* A kernel may begin early after a kernel of its own stream alone. What the runtime makes of the attribute elsewhere is
 * not documented. */
bool early_edge(const cudaStream_t s, const emulator_work &w)
{
    return !w.early || (s->follows && s->tail.size() == 1 && s->in->nodes[(size_t)s->tail[0]].work.kernel);
}

/* Of node `at`, some kernel behind it that may begin before it does, over others that may; -1: none. */
int early_behind(const std::vector<node> &nodes, const std::vector<std::vector<int>> &next, int at)
{
    int found = -1;
    for (int k = 0; k < CHAIN && nodes[(size_t)at].work.kernel; k++) {
        int behind = -1;
        for (int n : next[(size_t)at])
            if (nodes[(size_t)n].work.early && nodes[(size_t)n].after.size() == 1)
                behind = n;
        if (behind < 0)
            break;
        at = behind;
        if (emulator_random(2))
            found = at;
    }
    return found;
}

cudaError_t play(const std::vector<node> &nodes)
{
    std::vector<size_t> waits(nodes.size());
    std::vector<std::vector<int>> next(nodes.size());
    std::vector<int> ready;
    for (size_t i = 0; i < nodes.size(); i++) {
        waits[i] = nodes[i].after.size();
        for (int before : nodes[i].after)
            next[(size_t)before].push_back((int)i);
        if (!waits[i])
            ready.push_back((int)i);
    }
    while (!ready.empty()) {
        unsigned pick = emulator_random((unsigned)ready.size());
        int at = ready[pick], early = early_behind(nodes, next, at);
        ready[pick] = ready.back();
        ready.pop_back();
        if (early >= 0)
            nodes[(size_t)early].work.begin();
        cudaError_t rc = nodes[(size_t)at].work.run();
        if (rc)
            return rc;
        for (int n : next[(size_t)at])
            if (--waits[(size_t)n] == 0)
                ready.push_back(n);
    }
    return cudaSuccess;
}

/* ---- delays */

/* Of all streams: one thread at a time enqueues, or does what was enqueued. */
struct streams {
    std::recursive_mutex lock;
    std::vector<cudaStream_t> all;
};

streams &now()
{
    static streams s;
    return s;
}

/* A kernel behind the first of the queue may begin before that one does. */
void begin_early(const std::deque<delayed> &queue, const emulator_work &first)
{
    const emulator_work *found = nullptr;
    for (size_t i = 0; i < queue.size() && i < CHAIN && first.kernel && queue[i].work.early; i++)
        if (emulator_random(2))
            found = &queue[i].work;
    if (found)
        found->begin();
}

/* Until the place is passed; without one: all of it. What it waits for was enqueued before it, so this ends. */
void drain(cudaStream_t s, const place *until)
{
    while (!s->queue.empty() && !(until && until->passed)) {
        delayed next = s->queue.front();
        s->queue.pop_front();
        if (next.waits && !next.waits->passed)
            drain(next.waits->in, next.waits.get());
        if (next.passes)
            next.passes->passed = true;
        if (!next.work.run)
            continue;
        begin_early(s->queue, next.work);
        cudaError_t rc = next.work.run();
        s->failed = s->failed ? s->failed : rc;
    }
}

void drain_all()
{
    std::lock_guard<std::recursive_mutex> hold(now().lock);
    for (cudaStream_t s : now().all)
        drain(s, nullptr);
}

cudaError_t enqueue(cudaStream_t s, const delayed &what)
{
    std::lock_guard<std::recursive_mutex> hold(now().lock);
    s->queue.push_back(what);
    if (emulator_random(64) == 0)
        drain(s, nullptr);
    if (emulator_random(64) == 0) {
        std::vector<cudaStream_t> &all = now().all;
        drain(all[emulator_random((unsigned)all.size())], nullptr);
    }
    return cudaSuccess;
}

} // namespace

bool emulator_delays()
{
    static const bool on = getenv("EMULATOR_DELAYS") != nullptr;
    return on;
}

unsigned emulator_random(unsigned below)
{
    static thread_local uint64_t state = 88172645463325252ull;
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (unsigned)(state % below);
}

void emulator_catch_up()
{
    if (emulator_delays())
        drain_all();
}

cudaError_t emulator_submit(cudaStream_t s, const emulator_work &work)
{
    int device = s ? s->device : emulator_device();
    if (cudaError_t dead = emulator_dead(device, false))
        return emulator_note(dead);
    emulator_work own = work;
    own.run = [device, work]() {
        cudaError_t dead = emulator_dead(device, work.kernel);
        return dead ? dead : work.run();
    };
    if (!captures(s) && s && emulator_delays())
        return enqueue(s, {own, nullptr, nullptr});
    if (!captures(s)) {
        cudaError_t rc = own.run();
        return emulator_dead(device, false) ? cudaSuccess : emulator_note(rc); /* a later call says so */
    }
    touch one(s->in);
    if (!early_edge(s, work))
        return spoilt_by(s->in, cudaErrorStreamCaptureUnsupported);
    std::lock_guard<std::mutex> hold(s->in->lock);
    s->in->nodes.push_back({own, s->tail});
    s->tail = {(int)s->in->nodes.size() - 1};
    s->follows = true;
    return cudaSuccess;
}

cudaError_t emulator_submit(cudaStream_t s, const std::function<cudaError_t()> &run)
{
    return emulator_submit(s, {run, false, false, nullptr});
}

int emulator_submit_plain(cudaStream_t s, int (*run)(const void *args), const void *args, size_t bytes)
{
    std::vector<unsigned char> copy((const unsigned char *)args, (const unsigned char *)args + bytes);
    return emulator_submit(s, [run, copy]() { return run(copy.data()) ? cudaErrorInvalidValue : cudaSuccess; });
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned)
{
    *s = new emulated_stream;
    (*s)->device = emulator_device();
    std::lock_guard<std::recursive_mutex> hold(now().lock);
    now().all.push_back(*s);
    return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t s)
{
    std::lock_guard<std::recursive_mutex> hold(now().lock);
    std::vector<cudaStream_t> &all = now().all;
    drain(s, nullptr);
    for (size_t i = 0; i < all.size(); i++)
        if (all[i] == s)
            all.erase(all.begin() + (long)i--);
    return delete s, cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t s)
{
    if (spoils(s))
        return emulator_note(cudaErrorStreamCaptureUnsupported);
    if (emulator_delays() && s) {
        std::lock_guard<std::recursive_mutex> hold(now().lock);
        drain(s, nullptr);
    }
    cudaError_t dead = emulator_dead(s ? s->device : emulator_device(), false);
    return emulator_note(dead || !s ? dead : s->failed);
}
cudaError_t cudaEventCreate(cudaEvent_t *e)
{
    return *e = new emulated_event, cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned)
{
    return cudaEventCreate(e);
}
cudaError_t cudaEventDestroy(cudaEvent_t e)
{
    return delete e, cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s)
{
    if (!e || !s)
        return cudaErrorInvalidValue;
    if (cudaError_t dead = emulator_dead(s->device, false))
        return emulator_note(dead);
    e->looks = (int)emulator_random(MOST_LOOKS);
    std::unique_ptr<touch> one(captures(s) ? new touch(s->in) : nullptr);
    e->in = captures(s) ? s->in : nullptr;
    e->tail = captures(s) ? s->tail : std::vector<int>();
    if (captures(s) || !emulator_delays())
        return cudaSuccess;
    std::lock_guard<std::recursive_mutex> hold(now().lock);
    e->at = std::make_shared<place>();
    e->at->in = s;
    return enqueue(s, {{}, e->at, nullptr});
}

/* Is it done? Asking may have it done. */
static bool passed(const cudaEvent_t e, bool by_all_means)
{
    if (!emulator_delays())
        return true;
    std::lock_guard<std::recursive_mutex> hold(now().lock);
    if (e->at && !e->at->passed && (by_all_means || emulator_random(2)))
        drain(e->at->in, e->at.get());
    return !e->at || e->at->passed;
}

static bool recorded(const cudaEvent_t e)
{
    return e->in && !e->in->over;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned)
{
    if (!e || !s)
        return cudaErrorInvalidValue;
    if (recorded(e) ? captures(s) && s->in != e->in : spoils(s))
        return emulator_note(cudaErrorStreamCaptureIsolation);
    if (!recorded(e)) {
        std::lock_guard<std::recursive_mutex> hold(now().lock);
        return e->at && !e->at->passed ? enqueue(s, {{}, nullptr, e->at}) : cudaSuccess;
    }
    touch one(e->in);
    if (!captures(s))
        s->tail.clear();
    s->in = e->in;
    s->follows = false;
    merge(&s->tail, e->tail);
    return cudaSuccess;
}

/* What is recorded never happens: waiting for it, or asking, spoils the recording. */
cudaError_t cudaEventSynchronize(cudaEvent_t e)
{
    if (!e)
        return emulator_note(cudaErrorInvalidValue);
    if (recorded(e))
        return spoilt_by(e->in, cudaErrorCapturedEvent);
    bool over = passed(e, true);
    cudaError_t dead = emulator_dead(emulator_device(), false);
    return emulator_note(dead ? dead : over ? cudaSuccess : cudaErrorInvalidValue);
}

/* All has been done by now; who asks is told so a little later, sooner or later. */
cudaError_t cudaEventQuery(cudaEvent_t e)
{
    if (!e)
        return emulator_note(cudaErrorInvalidValue);
    if (recorded(e))
        return spoilt_by(e->in, cudaErrorCapturedEvent);
    if (cudaError_t dead = emulator_dead(emulator_device(), false))
        return emulator_note(dead);
    return emulator_note(e->looks-- > 0 || !passed(e, false) ? cudaErrorNotReady : cudaSuccess);
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to)
{
    if (recorded(from) || recorded(to))
        return cudaErrorInvalidValue;
    if (emulator_delays() && ((from->at && !from->at->passed) || (to->at && !to->at->passed)))
        return cudaErrorNotReady;
    return *ms = 0.001f, cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t s, enum cudaStreamCaptureMode)
{
    if (captures(s))
        return cudaErrorInvalidValue;
    s->in = std::make_shared<capture>();
    s->in->origin = s;
    s->tail.clear();
    s->follows = false;
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *g)
{
    *g = nullptr;
    if (!captures(s) || s->in->origin != s)
        return cudaErrorInvalidValue;
    touch one(s->in);
    std::lock_guard<std::mutex> hold(s->in->lock);
    s->in->over = true;
    if (s->in->spoilt)
        return emulator_note(cudaErrorStreamCaptureInvalidated);
    if (!all_joined(*s->in, s->tail))
        return emulator_note(cudaErrorStreamCaptureUnjoined);
    *g = new emulated_graph{std::make_shared<std::vector<node>>(s->in->nodes)};
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *x, cudaGraph_t g, unsigned long long)
{
    return *x = new emulated_graph(*g), cudaSuccess;
}
/* nodes NULL: how many there are. */
cudaError_t cudaGraphGetNodes(cudaGraph_t g, cudaGraphNode_t *nodes, size_t *n)
{
    if (!nodes)
        return *n = g->nodes->size(), cudaSuccess;
    *n = std::min(*n, g->nodes->size());
    for (size_t i = 0; i < *n; i++)
        nodes[i] = (cudaGraphNode_t) & (*g->nodes)[i];
    return cudaSuccess;
}

cudaError_t cudaGraphNodeGetType(cudaGraphNode_t node, enum cudaGraphNodeType *type)
{
    return *type = ((const struct node *)node)->work.kernel ? cudaGraphNodeTypeKernel : cudaGraphNodeTypeMemset,
           cudaSuccess;
}

cudaError_t cudaGraphUpload(cudaGraphExec_t x, cudaStream_t s)
{
    return x && s ? cudaSuccess : cudaErrorInvalidValue;
}
cudaError_t cudaGraphDestroy(cudaGraph_t g)
{
    return delete g, cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t x)
{
    return delete x, cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t x, cudaStream_t s)
{
    if (spoils(s))
        return emulator_note(cudaErrorStreamCaptureUnsupported);
    std::shared_ptr<std::vector<node>> nodes = x->nodes;
    return emulator_submit(s, [nodes]() { return play(*nodes); });
}
