/* Streams, events and graphs of the emulator. What is recorded keeps the edges that the runtime would give it: by the
 * stream's order and by events, no others. A graph is played in a random order that the edges allow, so an edge that is
 * missing shows as another result.
 *
 * With EMULATOR_DELAYS in the environment a stream's work waits until somebody waits for it, or until chance has it
 * done with the next piece: a wait that is missing between streams, or before the host looks, shows as another result,
 * too.
 */
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "tests/emulator/graph.h"

enum { MOST_LOOKS = 4 };

struct node {
    std::function<cudaError_t()> run;
    std::vector<int> after;
};

struct capture {
    std::mutex lock;
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
    std::function<cudaError_t()> run;
    std::shared_ptr<place> passes, waits;
};

struct emulated_stream {
    std::shared_ptr<capture> in;
    std::vector<int> tail;
    std::deque<delayed> queue;
    cudaError_t failed = cudaSuccess;
};

struct emulated_event {
    std::shared_ptr<capture> in;
    std::vector<int> tail;
    std::shared_ptr<place> at;
    int looks = 0; /* so often it is still to come */
};

struct emulated_graph {
    std::vector<node> nodes;
};

namespace {

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

unsigned random_below(unsigned n)
{
    static thread_local uint64_t state = 88172645463325252ull;
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (unsigned)(state % n);
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
        unsigned pick = random_below((unsigned)ready.size());
        int at = ready[pick];
        ready[pick] = ready.back();
        ready.pop_back();
        cudaError_t rc = nodes[(size_t)at].run();
        if (rc)
            return rc;
        for (int n : next[(size_t)at])
            if (--waits[(size_t)n] == 0)
                ready.push_back(n);
    }
    return cudaSuccess;
}

/* ---- delays */

bool delays()
{
    static const bool on = getenv("EMULATOR_DELAYS") != nullptr;
    return on;
}

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
        cudaError_t rc = next.run ? next.run() : cudaSuccess;
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
    if (random_below(64) == 0)
        drain(s, nullptr);
    if (random_below(64) == 0) {
        std::vector<cudaStream_t> &all = now().all;
        drain(all[random_below((unsigned)all.size())], nullptr);
    }
    return cudaSuccess;
}

} // namespace

void emulator_catch_up()
{
    if (delays())
        drain_all();
}

cudaError_t emulator_submit(cudaStream_t s, const std::function<cudaError_t()> &run)
{
    if (!captures(s) && s && delays())
        return enqueue(s, {run, nullptr, nullptr});
    if (!captures(s))
        return run();
    std::lock_guard<std::mutex> hold(s->in->lock);
    s->in->nodes.push_back({run, s->tail});
    s->tail = {(int)s->in->nodes.size() - 1};
    return cudaSuccess;
}

int emulator_submit_plain(cudaStream_t s, int (*run)(const void *args), const void *args, size_t bytes)
{
    std::vector<unsigned char> copy((const unsigned char *)args, (const unsigned char *)args + bytes);
    return emulator_submit(s, [run, copy]() { return run(copy.data()) ? cudaErrorInvalidValue : cudaSuccess; });
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned)
{
    *s = new emulated_stream;
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
        return cudaErrorStreamCaptureUnsupported;
    if (!delays() || !s)
        return cudaSuccess;
    std::lock_guard<std::recursive_mutex> hold(now().lock);
    drain(s, nullptr);
    return s->failed;
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
    e->looks = (int)random_below(MOST_LOOKS);
    e->in = captures(s) ? s->in : nullptr;
    e->tail = captures(s) ? s->tail : std::vector<int>();
    if (captures(s) || !delays())
        return cudaSuccess;
    std::lock_guard<std::recursive_mutex> hold(now().lock);
    e->at = std::make_shared<place>();
    e->at->in = s;
    return enqueue(s, {nullptr, e->at, nullptr});
}

/* Is it done? Asking may have it done. */
static bool passed(const cudaEvent_t e, bool by_all_means)
{
    if (!delays())
        return true;
    std::lock_guard<std::recursive_mutex> hold(now().lock);
    if (e->at && !e->at->passed && (by_all_means || random_below(2)))
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
        return cudaErrorStreamCaptureIsolation;
    if (!recorded(e)) {
        std::lock_guard<std::recursive_mutex> hold(now().lock);
        return e->at && !e->at->passed ? enqueue(s, {nullptr, nullptr, e->at}) : cudaSuccess;
    }
    if (!captures(s))
        s->tail.clear();
    s->in = e->in;
    merge(&s->tail, e->tail);
    return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t e)
{
    return !e || recorded(e) || !passed(e, true) ? cudaErrorInvalidValue : cudaSuccess;
}

/* All has been done by now; who asks is told so a little later, sooner or later. */
cudaError_t cudaEventQuery(cudaEvent_t e)
{
    if (!e || recorded(e))
        return cudaErrorInvalidValue;
    return e->looks-- > 0 || !passed(e, false) ? cudaErrorNotReady : cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to)
{
    if (recorded(from) || recorded(to))
        return cudaErrorInvalidValue;
    if (delays() && ((from->at && !from->at->passed) || (to->at && !to->at->passed)))
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
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *g)
{
    *g = nullptr;
    if (!captures(s) || s->in->origin != s)
        return cudaErrorInvalidValue;
    std::lock_guard<std::mutex> hold(s->in->lock);
    s->in->over = true;
    if (s->in->spoilt)
        return cudaErrorStreamCaptureInvalidated;
    if (!all_joined(*s->in, s->tail))
        return cudaErrorStreamCaptureUnjoined;
    *g = new emulated_graph{s->in->nodes};
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *x, cudaGraph_t g, unsigned long long)
{
    return *x = new emulated_graph(*g), cudaSuccess;
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
        return cudaErrorStreamCaptureUnsupported;
    emulator_catch_up();
    return play(x->nodes);
}
