/* Fibers for the threads of a CTA; the CTAs of a launch; one that begins before the kernel before it has ended. */
#include <cuda_runtime.h>

#include <pthread.h>

#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <thread>
#include <vector>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#else
#define ASAN_UNPOISON_MEMORY_REGION(at, bytes) ((void)(at))
#endif

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
/* Of static shared memory; of both kinds. */
enum { MOST_STATIC = 48 << 10, MOST_OF_CTA = 227 << 10 };
enum { LANES = 32, MOST_THREADS = 1024, MOST_SHARED = 228 << 10 };

thread_local dim3 threadIdx, blockIdx, blockDim, gridDim;
thread_local unsigned char *emulator_dynamic;

/* A thread on which a CTA begins early. */
struct emulator_helper {
    std::mutex lock;
    std::condition_variable changed;
    enum { IDLE, BEGIN, AT_GATE, GO_ON, DROP } state = IDLE;
    const cudaLaunchConfig_t *config;
    const std::function<void()> *body;
    dim3 block;
    bool descending;
};

namespace {

enum state { RUNNING, AT_WARP, AT_CTA, UNTIL, ENDED };

struct fiber {
    void *at;
    char *stack, *top;
    enum state state;
    dim3 thread;
    unsigned number, swaps; /* number: its place in the CTA */
    bool waited;            /* for the kernels before its own */
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
    struct emulator_helper *gate = nullptr; /* the CTA has begun early, and must not pass griddepcontrol_wait yet */
    std::vector<std::pair<void *, size_t>> fresh; /* static shared memory of the CTA */
    struct emulator_atomics atomics = {};
    struct {
        unsigned swaps;
        std::vector<const void *> places;
    } adding[MOST_THREADS / LANES]; /* by the lanes of a warp between two operations of the warp */
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

struct dropped {};

bool gate_is_open(void *ctx)
{
    return !((struct machine *)ctx)->gate;
}

/* All of the CTA that can has come to the gate. False: the CTA is not wanted any more. */
bool wait_at_gate(struct machine *m)
{
    struct emulator_helper *h = m->gate;
    std::unique_lock<std::mutex> hold(h->lock);
    h->state = emulator_helper::AT_GATE;
    h->changed.notify_all();
    h->changed.wait(hold, [h]() { return h->state != emulator_helper::AT_GATE; });
    m->gate = nullptr;
    return h->state == emulator_helper::GO_ON;
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
        if (ran || released || emulator_cta_stalls())
            continue;
        if (!m->gate)
            return false;
        if (!wait_at_gate(m))
            throw dropped();
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
    m->fresh.clear();
    blockIdx = block;
    blockDim = c->blockDim;
    gridDim = c->gridDim;
    emulator_dynamic = m->dynamic;
    for (unsigned i = 0; i < n; i++) {
        fiber *f = &m->fibers[i];
        f->state = RUNNING;
        f->swaps = 0;
        f->waited = false;
        f->thread = dim3(i % c->blockDim.x, i / c->blockDim.x % c->blockDim.y, i / (c->blockDim.x * c->blockDim.y));
        f->at = begin_at(f->top);
    }
}

/* Static shared memory is what its declarations that were come to add up to. */
void check_end(const struct machine *m, const cudaLaunchConfig_t *c, unsigned n)
{
    size_t bytes = 0;
    for (const std::pair<void *, size_t> &f : m->fresh)
        bytes += f.second;
    size_t dynamic = c->allowed > c->dynamicSmemBytes ? c->allowed : c->dynamicSmemBytes; /* refused, used or not */
    if (bytes > MOST_STATIC || bytes + dynamic > MOST_OF_CTA)
        emulator_die("a CTA has %zu bytes of static and %zu of dynamic shared memory", bytes, dynamic);
    for (unsigned i = 0; i < n && c->early; i++)
        if (!m->fibers[i].waited)
            emulator_die("a kernel that may begin early ends without griddepcontrol_wait in a thread of a CTA: what is "
                         "behind it would not wait for what was before it");
}

/* On the calling thread; throws dropped. */
void run_one(const cudaLaunchConfig_t *c, const std::function<void()> &body, dim3 block, struct emulator_helper *gate)
{
    struct machine *m = machine_now();
    unsigned n = c->blockDim.x * c->blockDim.y * c->blockDim.z;
    prepare(m, n);
    m->body = &body;
    m->gate = gate;
    set_up(m, c, block, n);
    emulator_cta_begins((int)n, c->dynamicSmemBytes);
    if (!run_cta(m, n))
        emulator_die("the threads of a CTA wait for each other in different places");
    emulator_cta_ends();
    check_end(m, c, n);
}

/* ---- helpers: threads that stay, as many as CTAs have begun early at the same time */

struct pool {
    std::mutex lock;
    std::vector<struct emulator_helper *> idle;
    pool()
    {
        pthread_atfork(nullptr, nullptr, []() { all().idle.clear(); }); /* a child has none of these threads */
    }
    static pool &all()
    {
        static pool *p = new pool; /* for good: helpers come back to it while the process ends */
        return *p;
    }
};

void serve(struct emulator_helper *h)
{
    for (;;) {
        {
            std::unique_lock<std::mutex> hold(h->lock);
            h->changed.wait(hold, [h]() { return h->state == emulator_helper::BEGIN; });
        }
        machine_now()->descending = h->descending;
        try {
            run_one(h->config, *h->body, h->block, h);
        } catch (const dropped &) { /* frames that never ended still guard their borders */
            for (const fiber &f : machine_now()->fibers)
                ASAN_UNPOISON_MEMORY_REGION(f.stack, STACK_BYTES);
        }
        {
            std::lock_guard<std::mutex> hold(h->lock);
            h->state = emulator_helper::IDLE;
            h->changed.notify_all();
        }
        std::lock_guard<std::mutex> hold(pool::all().lock);
        pool::all().idle.push_back(h);
    }
}

struct emulator_helper *get_helper()
{
    std::lock_guard<std::mutex> hold(pool::all().lock);
    std::vector<struct emulator_helper *> &idle = pool::all().idle;
    struct emulator_helper *h = idle.empty() ? nullptr : idle.back();
    if (h) {
        idle.pop_back();
        return h;
    }
    h = new struct emulator_helper;
    std::thread(serve, h).detach();
    return h;
}

void tell(struct emulator_helper *h, decltype(emulator_helper::IDLE) what, decltype(emulator_helper::IDLE) until)
{
    std::unique_lock<std::mutex> hold(h->lock);
    h->state = what;
    h->changed.notify_all();
    h->changed.wait(hold, [h, until]() { return h->state == until; });
}

} // namespace

emulator_launch::~emulator_launch()
{
    if (early)
        tell(early, emulator_helper::DROP, emulator_helper::IDLE);
}

void emulator_begin(const std::shared_ptr<emulator_launch> &l)
{
    const cudaLaunchConfig_t &c = l->config;
    if (l->early)
        return;
    l->early = get_helper();
    l->block = dim3(emulator_random(c.gridDim.x), emulator_random(c.gridDim.y), emulator_random(c.gridDim.z));
    l->early->config = &l->config;
    l->early->body = &l->body;
    l->early->block = l->block;
    l->early->descending = machine_now()->descending;
    tell(l->early, emulator_helper::BEGIN, emulator_helper::AT_GATE);
}

void emulator_grid_wait()
{
    struct machine *m = own; /* a fiber runs: there is one */
    m->now->waited = true;
    emulator_wait_until(gate_is_open, m);
}

void emulator_fresh(void *p, size_t bytes)
{
    struct machine *m = own; /* a fiber runs: there is one */
    for (const std::pair<void *, size_t> &f : m->fresh)
        if (f.first == p)
            return;
    m->fresh.push_back({p, bytes});
    memset(p, 0xff, bytes);
}

static enum emulator_memory memory_of(const struct machine *m, const void *p)
{
    auto within = [p](const void *from, size_t bytes) {
        return (uintptr_t)p >= (uintptr_t)from && (uintptr_t)p - (uintptr_t)from < bytes;
    };
    if (within(m->dynamic, sizeof m->dynamic))
        return EMULATED_SHARED;
    for (const std::pair<void *, size_t> &f : m->fresh)
        if (within(f.first, f.second))
            return EMULATED_SHARED;
    return within(m->now->stack, STACK_BYTES) ? EMULATED_LOCAL : EMULATED_GLOBAL;
}

void emulator_must_be(enum emulator_memory want, const void *p, const char *what)
{
    static const char *const names[] = {"global", "shared", "local"};
    enum emulator_memory is = memory_of(own, p); /* a fiber runs: there is one */
    if (is != want)
        emulator_die("%s has to be %s memory and is %s", what, names[want], names[is]);
}

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

/* CTAs run one after the other, in any order. */
cudaError_t emulator_run(const cudaLaunchConfig_t *c, const std::function<void()> &body)
{
    size_t n = (size_t)c->gridDim.x * c->gridDim.y * c->gridDim.z;
    std::vector<unsigned> order(n);
    for (size_t i = 0; i < n; i++) {
        size_t k = emulator_random((unsigned)i + 1);
        order[i] = order[k];
        order[k] = (unsigned)i;
    }
    for (unsigned at : order) {
        dim3 block(at % c->gridDim.x, at / c->gridDim.x % c->gridDim.y, at / (c->gridDim.x * c->gridDim.y));
        bool begun = c->launch && c->launch->early && block.x == c->launch->block.x && block.y == c->launch->block.y &&
                     block.z == c->launch->block.z;
        if (begun) {
            tell(c->launch->early, emulator_helper::GO_ON, emulator_helper::IDLE);
            c->launch->early = nullptr;
        } else {
            run_one(c, body, block, nullptr);
        }
    }
    return cudaSuccess;
}

void emulator_note_atomic(const void *p, size_t bytes)
{
    struct machine *m = own; /* a fiber runs: there is one */
    auto &a = m->adding[m->now->number / LANES];
    if (a.swaps != m->now->swaps)
        a.places.clear();
    a.swaps = m->now->swaps;
    m->atomics.all++;
    m->atomics.wide += bytes == 8;
    for (const void *other : a.places)
        if (other == p) {
            m->atomics.queued++;
            return;
        }
    a.places.push_back(p);
}

extern "C" void emulator_atomics_made(struct emulator_atomics *to)
{
    *to = machine_now()->atomics;
    machine_now()->atomics = {};
}

extern "C" void emulator_order(int descending)
{
    machine_now()->descending = descending != 0;
}
