/* Fibers for the threads of a CTA, and the host twins of the runtime's calls. */
#include <cuda_runtime.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <vector>

/* Saves this stack in *from and goes on in `to`. A system's own contexts would ask the kernel twice for each switch. */
extern "C" void emulator_switch(void **from, void *to);
#if defined(__x86_64__)
__asm__(".text\n.globl emulator_switch\nemulator_switch:\n"
        "pushq %rbp\npushq %rbx\npushq %r12\npushq %r13\npushq %r14\npushq %r15\n"
        "movq %rsp, (%rdi)\nmovq %rsi, %rsp\n"
        "popq %r15\npopq %r14\npopq %r13\npopq %r12\npopq %rbx\npopq %rbp\nret\n");
enum { SAVED = 6 };
#elif defined(__aarch64__)
__asm__(
    ".text\n.globl emulator_switch\nemulator_switch:\n"
    "sub sp, sp, #160\nstp x19, x20, [sp]\nstp x21, x22, [sp, #16]\nstp x23, x24, [sp, #32]\nstp x25, x26, [sp, #48]\n"
    "stp x27, x28, [sp, #64]\nstp x29, x30, [sp, #80]\nstp d8, d9, [sp, #96]\nstp d10, d11, [sp, #112]\nstp d12, d13, "
    "[sp, #128]\n"
    "stp d14, d15, [sp, #144]\nmov x9, sp\nstr x9, [x0]\nmov sp, x1\n"
    "ldp x19, x20, [sp]\nldp x21, x22, [sp, #16]\nldp x23, x24, [sp, #32]\nldp x25, x26, [sp, #48]\nldp x27, x28, [sp, "
    "#64]\n"
    "ldp x29, x30, [sp, #80]\nldp d8, d9, [sp, #96]\nldp d10, d11, [sp, #112]\nldp d12, d13, [sp, #128]\nldp d14, d15, "
    "[sp, #144]\n"
    "add sp, sp, #160\nret\n");
enum { SAVED = 20 };
#else
#error "the emulator switches stacks on x86-64 and aarch64 only"
#endif

/* Stacks whose tops were all at the same place of a page would throw each other out of the caches: they begin APART. */
enum { APART = 17 * 64, SPREAD = 64 << 10, STACK_BYTES = (128 << 10) + SPREAD };
enum { LANES = 32, MOST_THREADS = 1024, MOST_SHARED = 228 << 10, DEVICES = 8 };

thread_local dim3 threadIdx, blockIdx, blockDim, gridDim;
thread_local unsigned char *emulator_dynamic;

namespace {

enum state { RUNNING, AT_WARP, AT_CTA, UNTIL, ENDED };

struct fiber {
    void *at;
    char *stack, *top;
    enum state state;
    dim3 thread;
    unsigned number, swaps; /* number: its place in the CTA */
    bool (*ready)(void *);  /* UNTIL */
    void *ctx;
};

struct machine {
    void *scheduler = nullptr;
    std::vector<fiber> fibers;
    fiber *now = nullptr;
    const std::function<void()> *body = nullptr;
    uint64_t slots[MOST_THREADS / LANES][2][LANES];
    emulator_words wide_slots[MOST_THREADS / LANES][2][LANES];
    alignas(16) unsigned char dynamic[MOST_SHARED];
    bool descending = false;
    ~machine()
    {
        for (fiber &f : fibers)
            free(f.stack);
    }
};

thread_local struct machine *own = nullptr;

struct owner {
    struct machine m;
    owner() { own = &m; }
};

struct machine *machine_now()
{
    thread_local struct owner o;
    return own;
}

void start()
{
    struct machine *m = own; /* a fiber runs: there is one */
    (*m->body)();
    m->now->state = ENDED;
    emulator_switch(&m->now->at, m->scheduler);
}

/* The next lane of the warp, in this pass over them, that can run; NULL: none of those behind. */
fiber *next_lane(struct machine *m, unsigned from)
{
    unsigned lane = from % LANES, first = from - lane;
    for (unsigned k = 1; k <= (m->descending ? lane : LANES - 1 - lane); k++) {
        fiber *f = &m->fibers[first + (m->descending ? lane - k : lane + k)];
        if (f->state == RUNNING)
            return f;
    }
    return nullptr;
}

/* To the next lane without the way over the scheduler, as most waits are those of a whole warp. */
void wait_as(enum state s)
{
    struct machine *m = own; /* a fiber runs: there is one */
    fiber *f = m->now, *next = next_lane(m, f->number);
    f->state = s;
    if (!next) {
        emulator_switch(&f->at, m->scheduler);
        return;
    }
    m->now = next;
    threadIdx = next->thread;
    emulator_switch(&f->at, next->at);
}

void prepare(struct machine *m, unsigned n)
{
    while (m->fibers.size() < n) {
        fiber f = {};
        f.stack = (char *)aligned_alloc(64, STACK_BYTES);
        f.number = (unsigned)m->fibers.size();
        f.top = f.stack + STACK_BYTES - m->fibers.size() * APART % SPREAD;
        m->fibers.push_back(f);
    }
}

/* Everybody of [first, first + n) that has not ended waits in s: let them go on. */
bool release(struct machine *m, unsigned first, unsigned n, enum state s)
{
    bool any = false;
    for (unsigned i = first; i < first + n; i++) {
        if (m->fibers[i].state != s && m->fibers[i].state != ENDED)
            return false;
        any = any || m->fibers[i].state == s;
    }
    for (unsigned i = first; i < first + n && any; i++)
        if (m->fibers[i].state == s)
            m->fibers[i].state = RUNNING;
    return any;
}

/* Those of a warp that can, once. What of them: did any run, have all ended? */
struct progress {
    bool ran, ended;
};

progress run_warp(struct machine *m, unsigned first)
{
    progress p = {false, true};
    for (unsigned k = 0; k < LANES; k++) {
        fiber *f = &m->fibers[first + (m->descending ? LANES - 1 - k : k)];
        if (f->state == UNTIL && f->ready(f->ctx))
            f->state = RUNNING;
        if (f->state == RUNNING) {
            p.ran = true;
            m->now = f;
            threadIdx = f->thread;
            emulator_switch(&m->scheduler, f->at);
        }
        p.ended = p.ended && f->state == ENDED;
    }
    return p;
}

/* One CTA to its end; false: its threads wait for each other in different places. A warp goes on as far as it can
 * before the next one does: so what needs a barrier between warps and has none is likelier to show. */
bool run_cta(struct machine *m, unsigned n)
{
    for (;;) {
        bool ran = false, ended = true;
        for (unsigned w = 0; w < n; w += LANES) {
            unsigned first = m->descending ? n - LANES - w : w;
            progress p;
            do {
                p = run_warp(m, first);
                ran = ran || p.ran;
            } while (release(m, first, LANES, AT_WARP));
            ended = ended && p.ended;
        }
        if (ended)
            return true;
        bool released = release(m, 0, n, AT_CTA);
        if (!ran && !released && !emulator_cta_stalls())
            return false;
    }
}

/* A stack on which emulator_switch finds `start` to return to. */
void *begin_at(char *end)
{
    void **top = (void **)end;
#if defined(__x86_64__)
    *--top = nullptr;
    *--top = (void *)start;
    for (int i = 0; i < SAVED; i++)
        *--top = nullptr;
#else
    top -= SAVED;
    memset(top, 0, SAVED * sizeof *top);
    top[11] = (void *)start;
#endif
    return top;
}

void set_up(struct machine *m, const cudaLaunchConfig_t *c, dim3 block, unsigned n)
{
    memset(m->dynamic, 0xff, c->dynamicSmemBytes);
    blockIdx = block;
    blockDim = c->blockDim;
    gridDim = c->gridDim;
    emulator_dynamic = m->dynamic;
    for (unsigned i = 0; i < n; i++) {
        fiber *f = &m->fibers[i];
        f->state = RUNNING;
        f->swaps = 0;
        f->thread = dim3(i % c->blockDim.x, i / c->blockDim.x % c->blockDim.y, i / (c->blockDim.x * c->blockDim.y));
        f->at = begin_at(f->top);
    }
}

} // namespace

int emulator_lane()
{
    return (int)(own->now->number % LANES);
}

int emulator_thread()
{
    return (int)own->now->number;
}

bool emulator_descends()
{
    return own->descending;
}

void emulator_wait_until(bool (*ready)(void *), void *ctx)
{
    if (ready(ctx))
        return;
    own->now->ready = ready;
    own->now->ctx = ctx;
    wait_as(UNTIL);
}

void __syncthreads()
{
    wait_as(AT_CTA);
}

void __syncwarp()
{
    wait_as(AT_WARP);
}

/* Slots are used in turn: who is one operation ahead waits there for the others, so two sets are enough. */
uint64_t emulator_swap(uint64_t v, int src)
{
    struct machine *m = own; /* a fiber runs: there is one */
    fiber *f = m->now;
    uint64_t *slots = m->slots[f->number / LANES][f->swaps++ & 1];
    slots[f->number % LANES] = v;
    wait_as(AT_WARP);
    return slots[src];
}

const emulator_words *emulator_gather(const emulator_words &v)
{
    struct machine *m = own; /* a fiber runs: there is one */
    fiber *f = m->now;
    emulator_words *slots = m->wide_slots[f->number / LANES][f->swaps++ & 1];
    slots[f->number % LANES] = v;
    wait_as(AT_WARP);
    return slots;
}

cudaError_t emulator_run(const cudaLaunchConfig_t *c, const std::function<void()> &body)
{
    struct machine *m = machine_now();
    unsigned n = c->blockDim.x * c->blockDim.y * c->blockDim.z;
    bool grid =
        c->gridDim.x > 0 && c->gridDim.y > 0 && c->gridDim.y < 65536 && c->gridDim.z > 0 && c->gridDim.z < 65536;
    if (!grid || n == 0 || n > MOST_THREADS || n % LANES || c->dynamicSmemBytes > MOST_SHARED)
        return cudaErrorInvalidValue;
    prepare(m, n);
    m->body = &body;
    for (unsigned z = 0; z < c->gridDim.z; z++)
        for (unsigned y = 0; y < c->gridDim.y; y++)
            for (unsigned x = 0; x < c->gridDim.x; x++) {
                set_up(m, c, dim3(x, y, z), n);
                emulator_cta_begins((int)n, c->dynamicSmemBytes);
                if (!run_cta(m, n)) {
                    fprintf(stderr, "emulator: the threads of a CTA wait for each other in different places\n");
                    abort();
                }
                emulator_cta_ends();
            }
    return cudaSuccess;
}

static std::atomic<int> capability{90};

extern "C" void emulator_capability(int ten_times)
{
    capability = ten_times;
}

extern "C" void emulator_order(int descending)
{
    machine_now()->descending = descending != 0;
}

/* ---- the runtime */

cudaError_t cudaGetLastError(void)
{
    return cudaSuccess;
}
const char *cudaGetErrorString(cudaError_t rc)
{
    return rc ? "refused by the emulator" : "no error";
}
cudaError_t cudaGetDeviceCount(int *n)
{
    return *n = DEVICES, cudaSuccess;
}
cudaError_t cudaSetDevice(int i)
{
    return i >= 0 && i < DEVICES ? cudaSuccess : cudaErrorInvalidValue;
}
/* n > 0: registers of every kernel from now on. Returns how many they are. */
extern "C" int emulator_registers(int n)
{
    static std::atomic<int> registers{255};
    if (n > 0)
        registers = n;
    return registers;
}
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int)
{
    memset(p, 0, sizeof *p);
    snprintf(p->name, sizeof p->name, "emulated GPU");
    p->totalGlobalMem = (size_t)4 << 30;
    p->sharedMemPerBlockOptin = 227 << 10;
    p->major = capability / 10;
    p->minor = capability % 10;
    p->multiProcessorCount = 132;
    return cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int *can, int, int)
{
    return *can = 1, cudaSuccess;
}
cudaError_t cudaDeviceEnablePeerAccess(int, unsigned)
{
    return cudaSuccess;
}
/* What is never written must not matter: memory begins as NaN. */
cudaError_t cudaMalloc(void **p, size_t bytes)
{
    *p = aligned_alloc(256, (bytes + 255) / 256 * 256);
    if (*p)
        memset(*p, 0xff, bytes);
    return *p ? cudaSuccess : cudaErrorMemoryAllocation;
}
cudaError_t cudaFree(void *p)
{
    emulator_catch_up(); /* who frees waits, as the runtime does */
    return free(p), cudaSuccess;
}
cudaError_t cudaMallocHost(void **p, size_t bytes)
{
    return cudaMalloc(p, bytes);
}
cudaError_t cudaFreeHost(void *p)
{
    return cudaFree(p);
}
cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t bytes, enum cudaMemcpyKind, cudaStream_t s)
{
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
