#include "kernels/cuda/check.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/fast.h"
#include "kernels/cuda/nccl.h"
#include "kernels/cuda/trial.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "kernels/rendezvous.h"

enum { MOST_ROWS = 65535 }; /* of a grid's second dimension */

/* ---- errors */

void gpu_fail(struct device *d, int code, const char *text)
{
    if (!d->error.code)
        err_set(&d->error, code, "%s", text);
}

/* What a trap looks like from outside: hopper.h. */
static const char *hint(cudaError_t rc)
{
    return rc == cudaErrorLaunchFailure || rc == cudaErrorIllegalInstruction
               ? " (a kernel waited in vain and stopped itself, or made a mistake)"
               : "";
}

void gpu_lacks(struct device *d, const char *format, ...)
{
    size_t used = strlen(d->facts.lacks);
    va_list list;
    va_start(list, format);
    if (used)
        used += (size_t)snprintf(d->facts.lacks + used, sizeof d->facts.lacks - used, "; ");
    if (used < sizeof d->facts.lacks)
        vsnprintf(d->facts.lacks + used, sizeof d->facts.lacks - used, format, list);
    va_end(list);
}

bool gpu_ok(struct device *d, cudaError_t rc, const char *what)
{
    if (rc == cudaSuccess)
        return true;
    cudaGetLastError(); /* else it stays with this thread, and the library refuses what comes next because of it */
    struct err why;
    err_set(&why, E_DEVICE, "GPU %d: %s: %s%s", d->index, what, cudaGetErrorString(rc), hint(rc));
    if (!d->broken.code && !d->graph) /* what cannot be captured may still run */
        d->broken = why;
    gpu_fail(d, E_DEVICE, why.text);
    return false;
}

bool gpu_launched(struct device *d, cudaError_t rc, const char *what)
{
    d->after_kernel = rc == cudaSuccess;
    return gpu_ok(d, rc, what);
}

bool gpu_begins_early(const struct device *d)
{
    return d->pdl && (!d->graph || d->after_kernel);
}

void gpu_use(struct device *d)
{
    gpu_ok(d, cudaSetDevice(d->index), "cudaSetDevice");
}

/* ---- memory */

static void *get_chunk(void *ctx, size_t bytes)
{
    struct device *d = ctx;
    void *p = NULL;
    cudaError_t rc = cudaMalloc(&p, bytes);
    if (rc == cudaErrorMemoryAllocation)
        cudaGetLastError(); /* a failed allocation does not break the device */
    else
        gpu_ok(d, rc, "allocating memory");
    return rc == cudaSuccess ? p : NULL;
}

static void put_chunk(void *ctx, void *p)
{
    (void)ctx;
    cudaFree(p);
}

static void *cuda_alloc(struct device *d, size_t bytes)
{
    gpu_use(d);
    void *p = heap_take(&d->heap, bytes);
    if (p)
        gpu_ok(d, cudaMemsetAsync(p, 0, bytes, d->stream), "clearing memory");
    if (p && !d->broken.code)
        gpu_ok(d, cudaStreamSynchronize(d->stream), "clearing memory");
    if (!d->broken.code)
        return p;
    heap_give(&d->heap, p);
    return NULL;
}

static void cuda_release(struct device *d, void *p)
{
    gpu_use(d);
    gpu_ok(d, cudaStreamSynchronize(d->stream), "releasing memory");
    heap_give(&d->heap, p);
}

static int copy(struct device *d, void *dst, const void *src, size_t bytes)
{
    gpu_use(d);
    if (!bytes || gpu_ok(d, cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDefault, d->stream), "copying"))
        gpu_ok(d, cudaStreamSynchronize(d->stream), "copying");
    return d->broken.code;
}

static int cuda_upload(struct device *d, void *dst, const void *src, size_t bytes)
{
    return copy(d, dst, src, bytes);
}

static int cuda_download(struct device *d, void *dst, const void *src, size_t bytes)
{
    return copy(d, dst, src, bytes);
}

bool gpu_try_grow(struct device *d, struct scratch *s, size_t bytes)
{
    if (s->bytes >= bytes)
        return true;
    if (!d->graph) {
        if (!gpu_ok(d, cudaStreamSynchronize(d->stream), "waiting to grow"))
            return false;
        heap_give(&d->heap, s->data);
    }
    s->data = heap_take(&d->heap, bytes);
    s->bytes = s->data ? bytes : 0;
    return s->data != NULL;
}

bool gpu_grow(struct device *d, struct scratch *s, size_t bytes)
{
    if (gpu_try_grow(d, s, bytes))
        return true;
    gpu_fail(d, E_FULL,
             "no GPU memory for a step's working space: lower --gpu-memory-utilization or --max-num-batched-tokens");
    return false;
}

/* New ones must be zero, and every launch leaves them so. A graph clears them each time it runs, to be sure. */
bool gpu_counters(struct device *d, size_t n)
{
    struct scratch *all = &d->work->arrived;
    size_t before = all->bytes;
    if (!gpu_grow(d, all, n * sizeof(uint32_t)))
        return false;
    if (!all->bytes || (d->graph ? d->graph->cleared : before) == all->bytes)
        return true;
    if (d->graph)
        d->graph->cleared = all->bytes;
    d->after_kernel = false;
    return gpu_ok(d, cudaMemsetAsync(all->data, 0, all->bytes, d->stream), "counters");
}

void mirror_free(struct device *d, struct mirror *m)
{
    if (m->host)
        cudaFreeHost(m->host);
    heap_give(&d->heap, m->dev);
    memset(m, 0, sizeof *m);
}

bool mirror_room(struct device *d, struct mirror *m, size_t bytes)
{
    if (m->bytes - m->used >= bytes)
        return true;
    if (!gpu_ok(d, cudaStreamSynchronize(d->stream), "waiting to grow"))
        return false;
    m->used = 0;
    if (m->bytes >= bytes)
        return true;
    mirror_free(d, m);
    size_t more = bytes < 64 << 10 ? 64 << 10 : (2 * bytes + 15) / 16 * 16; /* pieces end at multiples of 16 */
    m->dev = heap_take(&d->heap, more);
    if (!m->dev || cudaMallocHost((void **)&m->host, more) != cudaSuccess) {
        cudaGetLastError();
        m->host = NULL;
        mirror_free(d, m);
        gpu_fail(d, E_FULL, "no pinned memory for what a step says");
        return false;
    }
    m->bytes = more;
    return true;
}

size_t mirror_take(struct mirror *m, size_t bytes)
{
    size_t at = m->used;
    ASSERT(at + bytes <= m->bytes);
    m->used = (at + bytes + 15) / 16 * 16;
    return at;
}

void mirror_push(struct device *d, const struct mirror *m, size_t first)
{
    if (m->used > first)
        gpu_ok(d, cudaMemcpyAsync(m->dev + first, m->host + first, m->used - first, cudaMemcpyHostToDevice, d->stream),
               "sending a step");
}

/* ---- opening */

static int count_devices(void)
{
    int n = 0;
    if (cudaGetDeviceCount(&n) == cudaSuccess)
        return n;
    cudaGetLastError();
    return 0;
}

static bool is_slice(int index)
{
    struct cudaDeviceProp p;
    return cudaGetDeviceProperties(&p, index) == cudaSuccess && strstr(p.name, " MIG ");
}

int gpu_exists(int index, struct err *e)
{
    int n = 0;
    cudaError_t rc = cudaGetDeviceCount(&n);
    if (rc != cudaSuccess || n == 0) {
        cudaGetLastError();
        return err_set(e, E_UNSUPPORTED, "no NVIDIA GPU here (%s): use --device cpu",
                       rc == cudaSuccess ? "the driver lists none" : cudaGetErrorString(rc));
    }
    if (index < 0 || index >= n)
        return err_set(e, E_INPUT, "--devices: there is no GPU %d; this process sees 0 to %d%s", index, n - 1,
                       is_slice(n - 1) ? "; of the slices of GPUs (MIG) each process sees one" : "");
    return 0;
}

static bool fill_facts(struct device *d)
{
    struct cudaDeviceProp p;
    if (!gpu_ok(d, cudaGetDeviceProperties(&p, d->index), "asking for its properties"))
        return false;
    snprintf(d->facts.isa, sizeof d->facts.isa, "sm_%d%d", p.major, p.minor);
    snprintf(d->facts.name, sizeof d->facts.name, "%.60s (GPU %d, %s)", p.name, d->index, d->facts.isa);
    d->facts.n_threads = 1;
    d->n_sms = p.multiProcessorCount;
    d->cta_shared = (int)p.sharedMemPerBlockOptin;
    d->pdl = p.major >= 9 && !d->opts.no_early_launch;
    d->capability = 10 * p.major + p.minor;
    d->hopper = d->capability == 90 && !d->opts.plain_kernels;
    d->facts.memory_bytes = p.totalGlobalMem;
    d->facts.act_bytes = sizeof(float);
    if (p.major < 8) {
        err_set(&d->error, E_UNSUPPORTED, "%.60s is of compute capability %d.%d; 8.0 is the least", p.name, p.major,
                p.minor);
        return false;
    }
    return true;
}

static bool make_stream(struct device *d)
{
    return gpu_ok(d, cudaStreamCreateWithFlags(&d->stream, cudaStreamNonBlocking), "making a stream") &&
           gpu_ok(d, cudaEventCreate(&d->begun), "making an event") &&
           gpu_ok(d, cudaEventCreate(&d->ended), "making an event");
}

static void cuda_close(struct device *d)
{
    if (!d)
        return;
    gpu_use(d);
    if (d->stream)
        cudaStreamSynchronize(d->stream);
    graphs_close(d);
    lt_close(d->lt);
    nccl_close(d->nccl);
    loader_close(d);
    mirror_free(d, &d->rows);
    mirror_free(d, &d->blocks);
    mirror_free(d, &d->items);
    mirror_free(d, &d->lists);
    mirror_free(d, &d->results);
    mirror_free(d, &d->plans);
    heap_free(&d->heap);
    if (d->begun)
        cudaEventDestroy(d->begun);
    if (d->ended)
        cudaEventDestroy(d->ended);
    marks_close(d);
    trials_close(d);
    if (d->stream)
        cudaStreamDestroy(d->stream);
    mem_free(d->sampled);
    mem_free(d);
}

/* A program that was built without Hopper's code takes the other kernel. */
static bool prepare_attention(struct device *d)
{
    bool here = false;
    cudaError_t rc = flash_prepare();
    if (rc == cudaSuccess && d->hopper)
        rc = flash_hopper_prepare(&here);
    d->hopper = here;
    return gpu_ok(d, rc, "preparing attention");
}

/* Its absence is no error, but nobody should have to guess from the speed of prompts. */
static void open_library(struct device *d)
{
    int version;
    d->lt = lt_open(d->capability);
    if (!d->lt) {
        gpu_lacks(d,
                  "libcublasLt is not on the loader's path nor in /usr/local/cuda: own kernels multiply for prompts, "
                  "which takes longer, and fp8 weights with inputs in 16 bits");
        return;
    }
    version = lt_version(d->lt);
    snprintf(d->facts.library, sizeof d->facts.library, "cuBLASLt %d.%d.%d", version / 10000, version / 100 % 100,
             version % 100);
    if (d->capability == 90 && !lt_multiplies_f8(d->lt))
        gpu_lacks(d, "this cuBLASLt is older than 12.9: it multiplies fp8 weights with inputs in 16 bits");
}

/* What choices between products depend on: another machine's are of no use. */
static void meet_tuning(struct device *d)
{
    char machine[192];
    int driver = 0;
    gpu_ok(d, cudaDriverGetVersion(&driver), "the driver's version");
    const char *name = d->facts.name; /* "NAME (GPU 0, sm_90)" */
    snprintf(machine, sizeof machine, "%.*s%s, driver for CUDA %d.%d, %s", (int)strcspn(name, "("), name, d->facts.isa,
             driver / 1000, driver % 1000 / 10, d->lt ? d->facts.library : "no library");
    tuning_meet(d->opts.tuning, machine);
}

static int cuda_open(struct device **out, const struct device_opts *o, struct err *e)
{
    *out = NULL;
    TRY(gpu_exists(o->index, e));
    if (o->max_rows > MOST_ROWS)
        return err_set(e, E_INPUT, "--max-num-batched-tokens %d: a GPU takes at most %d", o->max_rows, MOST_ROWS);
    struct device *d = mem_new(sizeof *d);
    d->opts = *o;
    d->index = o->index;
    d->work = &d->step_work;
    heap_init(&d->heap, &(struct heap_source){get_chunk, put_chunk, d});
    gpu_use(d);
    int rc = fill_facts(d) && make_stream(d) ? peers_open(d, e) : err_set(e, d->error.code, "%s", d->error.text);
    if (!rc && !o->invariant) {
        open_library(d);
        d->nccl = o->peers & (o->peers - 1) ? nccl_open() : NULL;
        bool ready = prepare_attention(d);
        if (ready && lt_multiplies_f8(d->lt))
            ready = gpu_ok(d, f8_prepare(), "preparing fp8");
        if (ready && o->tuning)
            meet_tuning(d);
        if (!ready)
            rc = err_set(e, d->error.code, "%s", d->error.text);
    }
    if (!rc && o->graph_rows > 0 && !graphs_open(d, o->graph_rows))
        rc = err_set(e, d->error.code, "%s", d->error.text);
    if (!rc && o->check && !o->invariant)
        rc = cuda_check(d, e);
    if (rc) {
        cuda_close(d);
        return rc;
    }
    *out = d;
    return 0;
}

static void cuda_facts(const struct device *d, struct device_facts *out)
{
    *out = d->facts;
}

static bool reduces_by_library(struct device *const *devices, int n)
{
    for (int i = 0; i < n; i++) {
        if (!devices[i]->nccl)
            return false;
        for (int k = 0; k < i; k++)
            if (devices[k]->index == devices[i]->index)
                return false;
    }
    return n > 1;
}

const struct backend_ops *backend_cuda(void)
{
    static const struct backend_ops ops = {
        .name = "cuda",
        .computes = true,
        .shares_memory = true,
        .n_devices = count_devices,
        .open = cuda_open,
        .close = cuda_close,
        .facts = cuda_facts,
        .alloc = cuda_alloc,
        .release = cuda_release,
        .upload = cuda_upload,
        .download = cuda_download,
        .weight_load = cuda_weight_load,
        .weight_free = cuda_weight_free,
        .weight_bytes = cuda_weight_bytes,
        .weight_data = cuda_weight_data,
        .weight_room = cuda_weight_room,
        .weight_at = cuda_weight_at,
        .weight_window = cuda_weight_window,
        .pull = cuda_pull,
        .mark = cuda_mark,
        .reach = cuda_reach,
        .between = cuda_between,
        .kv_block_bytes = cuda_kv_block_bytes,
        .begin = cuda_begin,
        .begin_part = cuda_begin_part,
        .finish = cuda_finish,
        .embed = cuda_embed,
        .linear = cuda_linear,
        .gates = cuda_gates,
        .narrows = cuda_narrows,
        .rope = cuda_rope,
        .kv_write = cuda_kv_write,
        .rope_write = cuda_rope_write,
        .rope_attention = cuda_rope_attention,
        .attention = cuda_attention,
        .gather = cuda_gather,
        .sample = cuda_sample,
        .kv_move = cuda_kv_move,
        .graph_begin = cuda_graph_begin,
        .graph_end = cuda_graph_end,
        .graph_post = cuda_graph_post,
        .graph_ended = cuda_graph_ended,
        .graph_wait = cuda_graph_wait,
        .comm_open = rendezvous_open,
        .comm_close = cuda_comm_close,
        .comm_abort = cuda_comm_abort,
        .comm_reset = rendezvous_reset,
        .exchange = cuda_exchange,
        .reduce = cuda_reduce,
        .reduces_by_library = reduces_by_library,
        .tuning = tuning_ops,
    };
    return &ops;
}
