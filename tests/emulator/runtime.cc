/* Host twins of the runtime's calls that are about devices and memory, and what it checks of a launch. */
#include <cuda_runtime.h>

#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <vector>

#include "tests/emulator/machine.h"

enum { DEVICES = EMULATED_DEVICES, PLAIN_SHARED = 48 << 10, MOST_THREADS = 1024 };

namespace {

std::atomic<int> capability{90};
/* Kernels until a device dies; 0: it lives; -1: it has died. */
std::atomic<int> kernels_left[DEVICES];
thread_local int chosen;
thread_local cudaError_t latest = cudaSuccess;

/* What was told once for each device: the most dynamic shared memory of its kernels; and pinned memory. */
struct known {
    std::mutex lock;
    std::map<std::pair<int, const void *>, int> shared;
    std::map<const char *, size_t> pinned;
    static known &all()
    {
        static known k;
        return k;
    }
};

bool is_pinned(const void *p, size_t bytes)
{
    known &k = known::all();
    std::lock_guard<std::mutex> hold(k.lock);
    auto at = k.pinned.upper_bound((const char *)p);
    if (at == k.pinned.begin())
        return false;
    --at;
    return (const char *)p + bytes <= at->first + at->second;
}

uint64_t hash_of(const void *p, size_t bytes)
{
    uint64_t h = 14695981039346656037ull;
    for (size_t i = 0; i < bytes; i++)
        h = (h ^ ((const unsigned char *)p)[i]) * 1099511628211ull;
    return h;
}

} // namespace

void emulator_die(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    fprintf(stderr, "emulator: ");
    vfprintf(stderr, format, list);
    fprintf(stderr, "\n");
    va_end(list);
    abort();
}

/* ---- errors */

cudaError_t emulator_note(cudaError_t rc)
{
    latest = rc ? rc : latest;
    return rc;
}

cudaError_t emulator_dead(int device, bool executing)
{
    int left = kernels_left[device];
    if (executing && left > 0 && --kernels_left[device] == 0)
        kernels_left[device] = -1;
    return kernels_left[device] < 0 ? cudaErrorLaunchFailure : cudaSuccess;
}

void emulator_break(int device, int n)
{
    kernels_left[device] = n;
}

int emulator_device()
{
    return chosen;
}

cudaError_t emulator_last_error(void)
{
    return latest;
}

cudaError_t cudaPeekAtLastError(void)
{
    return emulator_dead(chosen, false) ? cudaErrorLaunchFailure : latest;
}

cudaError_t cudaGetLastError(void)
{
    cudaError_t rc = cudaPeekAtLastError();
    latest = cudaSuccess;
    return rc;
}

const char *cudaGetErrorString(cudaError_t rc)
{
    return rc == cudaErrorLaunchFailure ? "unspecified launch failure" : rc ? "refused by the emulator" : "no error";
}

/* ---- launches */

extern "C" void emulator_capability(int ten_times)
{
    capability = ten_times;
}

/* Dynamic shared memory that a CTA may have, by compute capability: the CUDA C++ Programming Guide's table. */
static int most_dynamic()
{
    int major = capability / 10;
    return (capability == 80 ? 163 : major == 9 || major == 10 ? 227 : 99) << 10;
}

cudaError_t emulator_allow_shared(const void *kernel, int bytes)
{
    known &k = known::all();
    if (bytes < 0 || bytes > most_dynamic())
        return emulator_note(cudaErrorInvalidValue);
    std::lock_guard<std::mutex> hold(k.lock);
    k.shared[{chosen, kernel}] = bytes;
    return cudaSuccess;
}

size_t emulator_allowed_shared(const void *kernel)
{
    known &k = known::all();
    std::lock_guard<std::mutex> hold(k.lock);
    auto told = k.shared.find({chosen, kernel});
    return told == k.shared.end() ? 0 : (size_t)told->second;
}

cudaError_t emulator_check_launch(const cudaLaunchConfig_t *c, const void *kernel)
{
    unsigned n = c->blockDim.x * c->blockDim.y * c->blockDim.z;
    bool grid =
        c->gridDim.x > 0 && c->gridDim.y > 0 && c->gridDim.y < 65536 && c->gridDim.z > 0 && c->gridDim.z < 65536;
    size_t most = PLAIN_SHARED;
    if (!grid || n == 0 || n > MOST_THREADS || n % 32)
        return emulator_note(cudaErrorInvalidValue);
    if (c->dynamicSmemBytes > most) {
        size_t allowed = emulator_allowed_shared(kernel);
        most = allowed > most ? allowed : most;
    }
    return emulator_note(c->dynamicSmemBytes > most ? cudaErrorInvalidValue : cudaSuccess);
}

/* ---- devices */

static struct emulated_machine machine;

void emulator_machine(const struct emulated_machine *m)
{
    machine = m ? *m : emulated_machine();
}

cudaError_t cudaDriverGetVersion(int *version)
{
    return *version = 13000, cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *n)
{
    return *n = machine.n_devices ? machine.n_devices : (int)DEVICES, cudaSuccess;
}
cudaError_t cudaSetDevice(int i)
{
    if (i < 0 || i >= DEVICES)
        return emulator_note(cudaErrorInvalidValue);
    chosen = i;
    return emulator_note(emulator_dead(i, false));
}
/* n > 0: registers of every kernel from now on. Returns how many they are. */
extern "C" int emulator_registers(int n)
{
    static std::atomic<int> registers{255};
    if (n > 0)
        registers = n;
    return registers;
}
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int i)
{
    memset(p, 0, sizeof *p);
    snprintf(p->name, sizeof p->name, "%s", machine.names[i] ? machine.names[i] : "emulated GPU");
    p->totalGlobalMem = (size_t)4 << 30;
    p->sharedMemPerBlockOptin = (size_t)most_dynamic();
    p->major = capability / 10;
    p->minor = capability % 10;
    p->multiProcessorCount = 132;
    return cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int *can, int i, int peer)
{
    return *can = !machine.apart[i][peer], cudaSuccess;
}
cudaError_t cudaDeviceGetP2PAttribute(int *value, enum cudaDeviceP2PAttr, int i, int peer)
{
    return *value = !machine.pcie[i][peer], cudaSuccess;
}
cudaError_t cudaDeviceEnablePeerAccess(int, unsigned)
{
    return cudaSuccess;
}

/* ---- memory */

/* What is never written must not matter: memory begins as NaN. */
cudaError_t cudaMalloc(void **p, size_t bytes)
{
    *p = nullptr;
    if (cudaError_t dead = emulator_dead(chosen, false))
        return emulator_note(dead);
    *p = aligned_alloc(256, (bytes + 255) / 256 * 256);
    if (*p)
        memset(*p, 0xff, bytes);
    return emulator_note(*p ? cudaSuccess : cudaErrorMemoryAllocation);
}

/* Who frees waits, as the runtime does. */
cudaError_t cudaFree(void *p)
{
    emulator_catch_up();
    free(p);
    return emulator_note(emulator_dead(chosen, false));
}

cudaError_t cudaMallocHost(void **p, size_t bytes)
{
    known &k = known::all();
    cudaError_t rc = cudaMalloc(p, bytes);
    std::lock_guard<std::mutex> hold(k.lock);
    if (*p)
        k.pinned[(const char *)*p] = bytes;
    return rc;
}

cudaError_t cudaFreeHost(void *p)
{
    known &k = known::all();
    emulator_catch_up();
    std::lock_guard<std::mutex> hold(k.lock);
    k.pinned.erase((const char *)p);
    free(p);
    return emulator_note(emulator_dead(chosen, false));
}

/* Delayed, pinned memory is read when the copy is done, and must be then what it was; other memory of the host has been
 * read when the call returns. What comes back is not there before it has been waited for. */
cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t s)
{
    if (!emulator_delays() || !s)
        return emulator_submit(s, [=]() { return memcpy(dst, src, bytes), cudaSuccess; });
    if (is_pinned(src, bytes)) {
        uint64_t was = hash_of(src, bytes);
        return emulator_submit(s, [=]() {
            if (hash_of(src, bytes) != was)
                emulator_die("pinned memory was written to while a copy of it was on its way");
            return memcpy(dst, src, bytes), cudaSuccess;
        });
    }
    if (kind == cudaMemcpyHostToDevice) {
        std::vector<char> own((const char *)src, (const char *)src + bytes);
        return emulator_submit(s, [=]() { return memcpy(dst, own.data(), bytes), cudaSuccess; });
    }
    if (is_pinned(dst, bytes))
        memset(dst, 0xff, bytes);
    return emulator_submit(s, [=]() { return memcpy(dst, src, bytes), cudaSuccess; });
}

cudaError_t cudaMemcpy2DAsync(void *dst, size_t dpitch, const void *src, size_t spitch, size_t width, size_t height,
                              enum cudaMemcpyKind, cudaStream_t s)
{
    return emulator_submit(s, [=]() {
        for (size_t i = 0; i < height; i++)
            memcpy((char *)dst + i * dpitch, (const char *)src + i * spitch, width);
        return cudaSuccess;
    });
}

cudaError_t cudaMemsetAsync(void *p, int value, size_t bytes, cudaStream_t s)
{
    return emulator_submit(s, [=]() { return memset(p, value, bytes), cudaSuccess; });
}
