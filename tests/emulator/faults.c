#include "tests/emulator/faults.h"

#include <cuda_runtime_api.h>
#include <stdatomic.h>
#include <stdlib.h>

enum { DEVICES = 8 };

static struct fault {
    atomic_int calls, at, hit;
    atomic_bool for_good;
} faults[DEVICES];
static atomic_int seen[FAULT_KINDS], live;
static _Thread_local int chosen;
static atomic_bool idle;

void fault_arm(int device, int at, bool for_good)
{
    struct fault *f = &faults[device];
    atomic_store(&f->calls, 0);
    atomic_store(&f->hit, FAULT_NONE);
    atomic_store(&f->for_good, for_good);
    atomic_store(&f->at, at);
}

int fault_calls(int device)
{
    return atomic_load(&faults[device].calls);
}

enum fault_kind fault_hit(int device)
{
    return (enum fault_kind)atomic_load(&faults[device].hit);
}

void fault_compute(bool yes)
{
    atomic_store(&idle, !yes);
}

int fault_seen(enum fault_kind kind)
{
    return atomic_load(&seen[kind]);
}

int fault_live(void)
{
    return atomic_load(&live);
}

static bool fails(enum fault_kind kind)
{
    struct fault *f = &faults[chosen];
    int call = atomic_fetch_add(&f->calls, 1) + 1, at = atomic_load(&f->at), none = FAULT_NONE;
    atomic_fetch_add(&seen[kind], 1);
    if (!at || call < at || (call > at && !atomic_load(&f->for_good)))
        return false;
    atomic_compare_exchange_strong(&f->hit, &none, (int)kind);
    return true;
}

/* Memory as it comes: filling it, as the emulator does, would be most of the time of thousands of openings. */
static cudaError_t take(void **p, size_t bytes)
{
    *p = fails(FAULT_MALLOC) ? NULL : aligned_alloc(256, (bytes + 255) / 256 * 256);
    if (*p)
        atomic_fetch_add(&live, 1);
    return *p ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t __wrap_cudaMalloc(void **p, size_t bytes);
cudaError_t __wrap_cudaMalloc(void **p, size_t bytes)
{
    return take(p, bytes);
}

cudaError_t __wrap_cudaMallocHost(void **p, size_t bytes);
cudaError_t __wrap_cudaMallocHost(void **p, size_t bytes)
{
    return take(p, bytes);
}

/* Calls that may fail; those that make something count it. */
#define CALL(kind, makes, name, params, args)                                                                          \
    cudaError_t __real_##name params;                                                                                  \
    cudaError_t __wrap_##name params;                                                                                  \
    cudaError_t __wrap_##name params                                                                                   \
    {                                                                                                                  \
        cudaError_t rc = fails(kind) ? cudaErrorInvalidValue : __real_##name args;                                     \
        if (makes && rc == cudaSuccess)                                                                                \
            atomic_fetch_add(&live, 1);                                                                                \
        return rc;                                                                                                     \
    }
CALL(FAULT_COPY, 0, cudaMemcpyAsync,
     (void *dst, const void *src, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t s), (dst, src, bytes, kind, s))
CALL(FAULT_COPY, 0, cudaMemcpy2DAsync,
     (void *dst, size_t dpitch, const void *src, size_t spitch, size_t width, size_t height, enum cudaMemcpyKind kind,
      cudaStream_t s),
     (dst, dpitch, src, spitch, width, height, kind, s))
CALL(FAULT_COPY, 0, cudaMemsetAsync, (void *p, int value, size_t bytes, cudaStream_t s), (p, value, bytes, s))
CALL(FAULT_STREAM, 1, cudaStreamCreateWithFlags, (cudaStream_t * s, unsigned flags), (s, flags))
CALL(FAULT_STREAM, 0, cudaStreamSynchronize, (cudaStream_t s), (s))
CALL(FAULT_STREAM, 0, cudaStreamWaitEvent, (cudaStream_t s, cudaEvent_t e, unsigned flags), (s, e, flags))
CALL(FAULT_EVENT, 1, cudaEventCreate, (cudaEvent_t * e), (e))
CALL(FAULT_EVENT, 1, cudaEventCreateWithFlags, (cudaEvent_t * e, unsigned flags), (e, flags))
CALL(FAULT_EVENT, 0, cudaEventRecord, (cudaEvent_t e, cudaStream_t s), (e, s))
CALL(FAULT_EVENT, 0, cudaEventSynchronize, (cudaEvent_t e), (e))
CALL(FAULT_EVENT, 0, cudaEventElapsedTime, (float *ms, cudaEvent_t from, cudaEvent_t to), (ms, from, to))
CALL(FAULT_GRAPH, 0, cudaStreamBeginCapture, (cudaStream_t s, enum cudaStreamCaptureMode mode), (s, mode))
CALL(FAULT_GRAPH, 1, cudaGraphInstantiate, (cudaGraphExec_t * x, cudaGraph_t g, unsigned long long flags),
     (x, g, flags))
CALL(FAULT_GRAPH, 0, cudaGraphGetNodes, (cudaGraph_t g, cudaGraphNode_t *nodes, size_t *n), (g, nodes, n))
CALL(FAULT_GRAPH, 0, cudaGraphNodeGetType, (cudaGraphNode_t node, enum cudaGraphNodeType *type), (node, type))
CALL(FAULT_GRAPH, 0, cudaGraphUpload, (cudaGraphExec_t x, cudaStream_t s), (x, s))
CALL(FAULT_GRAPH, 0, cudaGraphLaunch, (cudaGraphExec_t x, cudaStream_t s), (x, s))
#undef CALL

/* A recording that ends badly has ended. */
cudaError_t __real_cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *g);
cudaError_t __real_cudaGraphDestroy(cudaGraph_t g);
cudaError_t __wrap_cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *g);
cudaError_t __wrap_cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *g)
{
    cudaError_t rc = __real_cudaStreamEndCapture(s, g);
    if (fails(FAULT_GRAPH)) {
        if (*g)
            __real_cudaGraphDestroy(*g);
        *g = NULL;
        return cudaErrorInvalidValue;
    }
    if (*g)
        atomic_fetch_add(&live, 1);
    return rc;
}

/* emulator_run(const cudaLaunchConfig_t *, const std::function<void()> &): every launch. */
#define RUN(which) which##__Z12emulator_runPK18cudaLaunchConfig_tRKSt8functionIFvvEE
cudaError_t RUN(__real)(const void *config, const void *body);
cudaError_t RUN(__wrap)(const void *config, const void *body);
cudaError_t RUN(__wrap)(const void *config, const void *body)
{
    if (fails(FAULT_LAUNCH))
        return cudaErrorInvalidValue;
    return atomic_load(&idle) ? cudaSuccess : RUN(__real)(config, body);
}

#define FREES(name, type)                                                                                              \
    cudaError_t __real_##name(type p);                                                                                 \
    cudaError_t __wrap_##name(type p);                                                                                 \
    cudaError_t __wrap_##name(type p)                                                                                  \
    {                                                                                                                  \
        if (p)                                                                                                         \
            atomic_fetch_sub(&live, 1);                                                                                \
        return __real_##name(p);                                                                                       \
    }
FREES(cudaFree, void *)
FREES(cudaFreeHost, void *)
FREES(cudaStreamDestroy, cudaStream_t)
FREES(cudaEventDestroy, cudaEvent_t)
FREES(cudaGraphDestroy, cudaGraph_t)
FREES(cudaGraphExecDestroy, cudaGraphExec_t)
#undef FREES

cudaError_t __real_cudaSetDevice(int i);
cudaError_t __wrap_cudaSetDevice(int i);
cudaError_t __wrap_cudaSetDevice(int i)
{
    cudaError_t rc = __real_cudaSetDevice(i);
    if (rc == cudaSuccess)
        chosen = i;
    return rc;
}
