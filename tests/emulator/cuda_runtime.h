/* The names of CUDA C++ that kernels/cuda uses, on the host. A launch runs its CTAs one after the other, in a random
 * order. The threads of a CTA are fibers that run until they meet a barrier or a warp operation, in ascending or
 * (emulator_order) descending order, so that a missing barrier shows as a different result. All 32 lanes must take part
 * in every warp operation. Shared memory begins as NaN. On the calling thread, but for a CTA that begins early
 * (graph.h), which has a thread of its own. Invariant: one fiber of a launch runs at a time. */
#ifndef EMULATOR_CUDA_RUNTIME_H
#define EMULATOR_CUDA_RUNTIME_H

#include <cuda_runtime_api.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <tuple>

#include "tests/emulator/graph.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __noinline__
#define __align__(n) alignas(n)
#define __grid_constant__
#define __launch_bounds__(...)
/* A CTA's static shared memory, which begins as NaN: kernels/cuda/prim.h. */
#define SHARED(name, ...)                                                                                              \
    static thread_local __VA_ARGS__;                                                                                   \
    emulator_fresh((void *)&name, sizeof name)
#define SHARED_BYTES(name) unsigned char *name = emulator_dynamic

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
};
struct uint2 {
    uint32_t x, y;
};
struct alignas(16) uint4 {
    uint32_t x, y, z, w;
};
struct alignas(16) int4 {
    int32_t x, y, z, w;
};
struct alignas(8) float2 {
    float x, y;
};
struct float3 {
    float x, y, z;
};
struct alignas(16) float4 {
    float x, y, z, w;
};

static inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w)
{
    return {x, y, z, w};
}
static inline float2 make_float2(float x, float y)
{
    return {x, y};
}
static inline float3 make_float3(float x, float y, float z)
{
    return {x, y, z};
}
static inline float4 make_float4(float x, float y, float z, float w)
{
    return {x, y, z, w};
}
/* The device traps where an instruction for one kind of memory gets the address of another one. */
enum emulator_memory { EMULATED_GLOBAL, EMULATED_SHARED, EMULATED_LOCAL };
void emulator_must_be(enum emulator_memory want, const void *p, const char *what);
template <typename T> static inline T __ldcg(const T *p)
{
    emulator_must_be(EMULATED_GLOBAL, p, "what __ldcg reads");
    if ((uintptr_t)p % alignof(T))
        emulator_die("what __ldcg reads is not aligned to %zu bytes", alignof(T));
    return *p;
}
static inline void __threadfence() {}

/* What the running fiber sees. */
extern thread_local dim3 threadIdx, blockIdx, blockDim, gridDim;
extern thread_local unsigned char *emulator_dynamic;

/* The variable is new in the CTA: who comes to its declaration first fills it. */
void emulator_fresh(void *p, size_t bytes);
/* Until the kernels before this one have ended. */
void emulator_grid_wait();
void __syncthreads();
void __syncwarp();
/* Puts v where the warp sees it, waits for all lanes, returns lane src's. */
uint64_t emulator_swap(uint64_t v, int src);
/* Every lane's, by its number; until the lane exchanges again. */
struct emulator_words {
    uint64_t v[3];
};
const emulator_words *emulator_gather(const emulator_words &v);
int emulator_lane();
/* The running fiber's place in its CTA. */
int emulator_thread();
/* Until ready(ctx), which other fibers make true, or what comes when all of them wait. */
void emulator_wait_until(bool (*ready)(void *), void *ctx);
bool emulator_descends();
/* hopper.cc: of the CTA that runs. stalls: every fiber waits; false: nothing comes any more. */
void emulator_cta_begins(int n_threads, size_t shared_bytes);
bool emulator_cta_stalls();
void emulator_cta_ends();

template <typename T> static inline T emulator_shuffle(T v, int src)
{
    uint64_t bits = 0;
    static_assert(sizeof v <= sizeof bits, "at most eight bytes");
    memcpy(&bits, &v, sizeof v);
    bits = emulator_swap(bits, src);
    memcpy(&v, &bits, sizeof v);
    return v;
}
template <typename T> static inline T __shfl_sync(unsigned, T v, int src)
{
    return emulator_shuffle(v, src & 31);
}
template <typename T> static inline T __shfl_xor_sync(unsigned, T v, int k)
{
    return emulator_shuffle(v, emulator_lane() ^ k);
}
template <typename T> static inline T __shfl_down_sync(unsigned, T v, int k)
{
    int lane = emulator_lane();
    return emulator_shuffle(v, lane + k < 32 ? lane + k : lane);
}
template <typename T> static inline T __shfl_up_sync(unsigned, T v, int k)
{
    int lane = emulator_lane();
    return emulator_shuffle(v, lane - k >= 0 ? lane - k : lane);
}

static inline uint32_t __reduce_add_sync(unsigned, uint32_t v)
{
    for (int k = 16; k; k /= 2)
        v += emulator_shuffle(v, emulator_lane() ^ k);
    return v;
}
static inline uint32_t __ballot_sync(unsigned, bool yes)
{
    return __reduce_add_sync(0, yes ? 1u << emulator_lane() : 0);
}
static inline int __ffs(int v)
{
    return __builtin_ffs(v);
}

static inline uint32_t __float_as_uint(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}
static inline float __uint_as_float(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}
static inline int __dp4a(int a, int b, int c)
{
    for (int i = 0; i < 4; i++)
        c += (int)(int8_t)(a >> 8 * i) * (int)(int8_t)(b >> 8 * i);
    return c;
}
/* Of the additions that this thread's kernels have made since it was last asked. */
struct emulator_atomics {
    long all, wide, queued; /* wide: of 8 bytes; queued: behind another lane of the warp that adds to the same place */
};
extern "C" void emulator_atomics_made(struct emulator_atomics *to);
void emulator_note_atomic(const void *p, size_t bytes);
template <typename T> static inline T atomicAdd(T *p, T v)
{
    emulator_note_atomic(p, sizeof v);
    T old = *p;
    *p = old + v;
    return old;
}

enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };
/* On the device that the thread has chosen. */
cudaError_t emulator_allow_shared(const void *kernel, int bytes);
template <typename... P> static inline cudaError_t cudaFuncSetAttribute(void (*k)(P...), cudaFuncAttribute, int bytes)
{
    return emulator_allow_shared((const void *)k, bytes);
}

struct cudaFuncAttributes {
    int numRegs;
};
/* The same for every kernel: as if compiled for the device, unless told (emulator_registers). */
extern "C" int emulator_registers(int n);
template <typename... P> static inline cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *a, void (*)(P...))
{
    a->numRegs = emulator_registers(0);
    return cudaSuccess;
}

enum cudaLaunchAttributeID { cudaLaunchAttributeProgrammaticStreamSerialization = 6 };
struct cudaLaunchAttribute {
    cudaLaunchAttributeID id;
    struct {
        int programmaticStreamSerializationAllowed;
    } val;
};
struct emulator_launch;
struct cudaLaunchConfig_t {
    dim3 gridDim, blockDim;
    size_t dynamicSmemBytes;
    cudaStream_t stream;
    cudaLaunchAttribute *attrs;
    unsigned numAttrs;
    bool early; /* the emulator's own, like the next: some attribute says that it may begin early */
    struct emulator_launch *launch;
    size_t allowed; /* dynamic shared memory that the kernel was told it may have */
};
/* A launch and, while one of its CTAs has begun early, which and who runs it. */
struct emulator_launch {
    cudaLaunchConfig_t config;
    std::function<void()> body;
    dim3 block;
    struct emulator_helper *early = nullptr;
    emulator_launch(const cudaLaunchConfig_t &c, const std::function<void()> &b) : config(c), body(b) {}
    emulator_launch(const emulator_launch &) = delete;
    ~emulator_launch();
};
void emulator_begin(const std::shared_ptr<emulator_launch> &l);
size_t emulator_allowed_shared(const void *kernel);
/* What the runtime refuses at the call. */
cudaError_t emulator_check_launch(const cudaLaunchConfig_t *c, const void *kernel);
/* Runs body once for every thread of every CTA. */
cudaError_t emulator_run(const cudaLaunchConfig_t *c, const std::function<void()> &body);
template <typename... P, typename... A>
static inline cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t *c, void (*kernel)(P...), A &&...args)
{
    static_assert((sizeof(std::decay_t<P>) + ... + 0) <= 4096, "more parameters than every toolkit passes");
    std::tuple<std::decay_t<P>...> own(args...);
    cudaLaunchConfig_t config = *c;
    if (cudaError_t rc = emulator_check_launch(c, (const void *)kernel))
        return rc;
    for (unsigned i = 0; i < c->numAttrs; i++)
        config.early = config.early || (c->attrs[i].id == cudaLaunchAttributeProgrammaticStreamSerialization &&
                                        c->attrs[i].val.programmaticStreamSerializationAllowed);
    config.attrs = nullptr;
    config.allowed = emulator_allowed_shared((const void *)kernel);
    auto l = std::make_shared<emulator_launch>(config, [=]() { std::apply(kernel, own); });
    l->config.launch = l.get();
    return emulator_submit(c->stream, {[=]() { return emulator_run(&l->config, l->body); }, true, config.early,
                                       [=]() { emulator_begin(l); }});
}
/* For the CTAs that this thread launches from now on: in which order fibers take their turns. */
extern "C" void emulator_order(int descending);
/* Of every device from the next opening on: 90 is 9.0, which it begins with. */
extern "C" void emulator_capability(int ten_times);

#endif
