/* What a warp group's instructions do (hopper_twins.h), for the CTA that runs on this thread. */
#include "kernels/cuda/hopper.h"

#include <cstdio>
#include <cstdlib>

/* Where dynamic shared memory begins in the CTA's: at no multiple of 32, as nothing promises more. */
enum {
    FIRST_ADDRESS = 0x410,
    GRAIN = 16,
    MOST_GRAINS = (228 << 10) / GRAIN,
    MOST_THREADS = 1024,
    MOST_N = 128,
    IN_FLIGHT = 4,
    NAMES = 16
};

namespace {

/* ---- what the CTA knows */

/* A d that products under way add to: what they have added so far. */
struct sums {
    float *d; /* NULL: none */
    int n;
    uint64_t last; /* product that adds to it */
    float value[MOST_N / 2];
};

struct thread {
    bool open;
    uint64_t begun, seen;        /* products; stores before the latest fence */
    std::deque<uint64_t> closed; /* products begun before each close */
    struct sums sums[IN_FLIGHT];
    int registers;
};

/* One product of a warp. */
struct product {
    struct emulated_wgmma_call p;
    const uint32_t *a[WARP];
    struct sums *sums[WARP];
    uint64_t seen[WARP];
    int lanes; /* that have begun it */
};

struct warp {
    std::deque<struct product> products;
    uint64_t done; /* before the first of them */
};

/* Copies of one thread on their way to one barrier. */
struct arrival {
    struct mbarrier *barrier;
    int thread;
    std::vector<emulated_copy> copies;
};

struct named {
    int arrived, threads;
    uint64_t turn;
};

struct cta {
    int n_threads, free_registers;
    size_t shared_bytes;
    uint64_t stores;
    std::vector<struct thread> threads;
    std::vector<struct warp> warps;
    std::deque<struct arrival> arrivals;
    struct named names[NAMES];
    uint64_t stored[MOST_GRAINS]; /* when each grain was last stored to, and by whom */
    uint16_t writer[MOST_GRAINS];
};

struct cta &here()
{
    static thread_local struct cta c = {};
    return c;
}

struct thread &self()
{
    return here().threads[(size_t)emulator_thread()];
}

struct warp &warp_at(int i)
{
    return here().warps[(size_t)i];
}

/* ---- shared memory */

void note_store(const void *p)
{
    struct cta &c = here();
    size_t grain = (size_t)((const unsigned char *)p - emulator_dynamic) / GRAIN;
    if (grain >= MOST_GRAINS)
        emulator_die("a store of products' operands outside dynamic shared memory");
    c.stored[grain] = ++c.stores;
    c.writer[grain] = (uint16_t)emulator_thread();
}

/* An operand by its descriptor, eight elements at a time: PTX ISA, "Matrix Descriptor Format" and "Canonical Layouts"
 * with T = 8. */
struct operand {
    uint32_t start, lead, stride;
    int swizzle; /* bytes; 16: none */
    bool transposed;
};

struct operand read_descriptor(uint64_t bits, bool transposed)
{
    static const int swizzles[] = {16, 128, 64, 32};
    if (bits & ~0xc00e3fff3fff3fffULL)
        emulator_die("a descriptor with reserved bits: %016llx", (unsigned long long)bits);
    if (bits >> 49 & 7)
        emulator_die("a descriptor with a base offset: its atoms do not begin where they should: %016llx",
                     (unsigned long long)bits);
    return {(uint32_t)(bits & 0x3fff) << 4, (uint32_t)(bits >> 16 & 0x3fff) << 4, (uint32_t)(bits >> 32 & 0x3fff) << 4,
            swizzles[bits >> 62], transposed};
}

/* Row r (of a; column of b) and column k of the operand; the first of eight along the rows of memory. */
uint32_t element_at(const struct operand &o, uint32_t r, uint32_t k)
{
    uint32_t width = (uint32_t)o.swizzle, units = width / 16, at = o.start;
    if (o.transposed && units == 1)
        at += r % 8 * 2 + r / 8 * o.stride + k % 8 * 16 + k / 8 * o.lead;
    else if (o.transposed)
        at += r % 8 * 2 + r / 8 % units * 16 + r / (8 * units) * o.lead + k % 8 * width + k / 8 * o.stride;
    else if (units == 1)
        at += r % 8 * 16 + r / 8 * o.stride + k / 8 * o.lead + k % 8 * 2;
    else
        at += r % 8 * width + r / 8 * o.stride + k * 2;
    return at ^ (at >> 3 & (units - 1) << 4);
}

const uint16_t *eight_at(const struct product &p, const struct operand &o, uint32_t r, uint32_t k)
{
    struct cta &c = here();
    uint32_t address = element_at(o, r, k), at = address - FIRST_ADDRESS;
    if (address < FIRST_ADDRESS || at + 16 > c.shared_bytes || at % 16)
        emulator_die("a product reads shared memory at %u, where there is none", address);
    uint64_t stored = c.stored[at / GRAIN], seen = UINT64_MAX;
    for (int i = 0; i < WARP; i++)
        seen = p.seen[i] < seen ? p.seen[i] : seen;
    if (stored > seen && stored > c.threads[c.writer[at / GRAIN]].seen)
        emulator_die(
            "a product reads what was stored without a fence since: fence_proxy_async, or it was stored while the "
            "product was under way");
    return (const uint16_t *)(const void *)(emulator_dynamic + at);
}

/* ---- products */

float value_of(bool f16, uint16_t bits)
{
    static const std::vector<float> halves = [] {
        std::vector<float> v(1 << 16);
        for (uint32_t i = 0; i < 1 << 16; i++)
            v[i] = f16_bits((uint16_t)i);
        return v;
    }();
    return f16 ? halves[bits] : bf16_bits(bits);
}

/* The warp's 16 rows of a. */
void read_a(const struct product &p, int first, float a[16][16])
{
    for (int r = 0; r < 16; r++)
        for (int k = 0; k < 16; k++)
            if (p.p.in_registers) {
                uint32_t pair = p.a[r % 8 * 4 + k % 8 / 2][r / 8 + k / 8 * 2];
                a[r][k] = value_of(p.p.f16, (uint16_t)(pair >> 16 * (k % 2)));
            }
    if (p.p.in_registers)
        return;
    struct operand o = read_descriptor(p.p.a, false);
    for (int r = 0; r < 16; r++)
        for (int k = 0; k < 16; k += 8) {
            const uint16_t *from = eight_at(p, o, (uint32_t)(first + r), (uint32_t)k);
            for (int i = 0; i < 8; i++)
                a[r][k + i] = value_of(p.p.f16, from[i]);
        }
}

void read_b(const struct product &p, float b[16][MOST_N])
{
    struct operand o = read_descriptor(p.p.b, p.p.in_registers);
    for (int n = 0; n < p.p.n; n += o.transposed ? 8 : 1)
        for (int k = 0; k < 16; k += o.transposed ? 1 : 8) {
            const uint16_t *from = eight_at(p, o, (uint32_t)n, (uint32_t)k);
            for (int i = 0; i < 8; i++)
                b[o.transposed ? k : k + i][o.transposed ? n + i : n] = value_of(p.p.f16, from[i]);
        }
}

/* As emulated_sum with 25 bits, sixteen products at once, many columns side by side. */
__attribute__((optimize("O3"))) void multiply_row(int n, const float a[16], const float b[16][MOST_N], float d[MOST_N])
{
    enum { BITS = 25, BIAS = 127 };
    alignas(64) float most[MOST_N], scale[MOST_N];
    alignas(64) int32_t sum[MOST_N];
    for (int i = 0; i < n; i++)
        most[i] = fabsf(d[i]);
    for (int k = 0; k < 16; k++)
        for (int i = 0; i < n; i++) {
            float p = fabsf(a[k] * b[k][i]);
            most[i] = p > most[i] ? p : most[i];
        }
    for (int i = 0; i < n; i++) {
        int field = 2 * BIAS + BITS - (int)(__float_as_uint(most[i]) >> 23);
        scale[i] = __uint_as_float((uint32_t)(field < 2 * BIAS ? field : 2 * BIAS) << 23);
        sum[i] = (int32_t)(d[i] * scale[i]);
    }
    for (int k = 0; k < 16; k++)
        for (int i = 0; i < n; i++)
            sum[i] += (int32_t)(a[k] * b[k][i] * scale[i]);
    for (int i = 0; i < n; i++)
        d[i] = emulated_cut((double)sum[i] / (double)scale[i]);
}

bool is_finite(int n, const float *v)
{
    float most = 0;
    for (int i = 0; i < n; i++)
        most = fabsf(v[i]) < INFINITY ? most : INFINITY;
    return most < INFINITY;
}

void multiply(int n, const float a[16][16], const float b[16][MOST_N], float d[16][MOST_N])
{
    bool finite = true;
    for (int k = 0; k < 16 && finite; k++)
        finite = is_finite(n, b[k]);
    for (int r = 0; r < 16; r++) {
        if (finite && is_finite(16, a[r]) && is_finite(n, d[r])) {
            multiply_row(n, a[r], b, d[r]);
            continue;
        }
        for (int k = 0; k < 16; k++)
            for (int i = 0; i < n; i++)
                d[r][i] += a[r][k] * b[k][i];
    }
}

/* Element i of lane's d: its row of 16, its column. */
int row_of(int lane, int i)
{
    return lane / 4 + i / 2 % 2 * 8;
}

int column_of(int lane, int i)
{
    return i / 4 * 8 + lane % 4 * 2 + i % 2;
}

/* The first product of warp w that is not done. */
void do_product(int w)
{
    struct warp &warp = warp_at(w);
    struct product &p = warp.products.front();
    alignas(64) float a[16][16], b[16][MOST_N], d[16][MOST_N] = {};
    read_a(p, w % 4 * 16, a);
    read_b(p, b);
    for (int lane = 0; lane < WARP && p.p.add; lane++)
        for (int i = 0; i < p.p.n / 2; i++)
            d[row_of(lane, i)][column_of(lane, i)] = p.sums[lane]->value[i];
    multiply(p.p.n, a, b, d);
    for (int lane = 0; lane < WARP; lane++) {
        struct sums *s = p.sums[lane];
        for (int i = 0; i < p.p.n / 2; i++)
            s->value[i] = d[row_of(lane, i)][column_of(lane, i)];
        if (s->last != warp.done)
            continue;
        memcpy(s->d, s->value, (size_t)s->n * sizeof *s->value);
        s->d = nullptr;
    }
    warp.products.pop_front();
    warp.done++;
}

/* The sums in flight of this thread's d; new ones begin with what d holds. */
struct sums *sums_of(struct thread *t, float *d, int n)
{
    struct sums *none = nullptr;
    for (struct sums &s : t->sums) {
        if (s.d == d)
            return s.n == n ? &s : (emulator_die("a d of another shape under way"), nullptr);
        if (s.d && d < s.d + s.n && s.d < d + n)
            emulator_die("two d that overlap under way");
        none = s.d ? none : &s;
    }
    if (!none)
        emulator_die("more d under way than the twin has room for");
    none->d = d;
    none->n = n;
    memcpy(none->value, d, (size_t)n * sizeof *d);
    memset((void *)d, 0xff, (size_t)n * sizeof *d);
    return none;
}

bool same_product(const struct emulated_wgmma_call &x, const struct emulated_wgmma_call &y)
{
    return x.f16 == y.f16 && x.in_registers == y.in_registers && x.n == y.n && x.a == y.a && x.b == y.b &&
           x.add == y.add;
}

/* All warps of the group have begun as many products; the same ones, as far as they are to be seen. */
struct group_wait {
    int first; /* warp */
    uint64_t target;
};

bool group_has_begun(void *ctx)
{
    const struct group_wait *g = (const struct group_wait *)ctx;
    for (int w = g->first; w < g->first + 4; w++) {
        struct warp &warp = warp_at(w);
        if (warp.done + warp.products.size() < g->target)
            return false;
        if (warp.done < g->target && warp.products[(size_t)(g->target - 1 - warp.done)].lanes < WARP)
            return false;
    }
    return true;
}

void compare_group(int w, uint64_t index)
{
    const struct emulated_wgmma_call &mine = warp_at(w).products[(size_t)(index - warp_at(w).done)].p;
    for (int other = w / 4 * 4; other < w / 4 * 4 + 4; other++) {
        struct warp &warp = warp_at(other);
        if (warp.done <= index && !same_product(mine, warp.products[(size_t)(index - warp.done)].p))
            emulator_die("the warps of a group begin different products");
    }
}

/* ---- barriers: 20 bits that are to arrive, 20 bits of each phase, 16 bits of phases, 8 bits that say that it is one
 */
enum : uint64_t { COUNT = 0xfffff, MADE = 0xa5 };

uint64_t made_of(const struct mbarrier *b)
{
    if (b->word >> 56 != MADE)
        emulator_die("a barrier that nobody has made");
    return b->word;
}

uint64_t phase_of(const struct mbarrier *b)
{
    return made_of(b) >> 40 & 0xffff;
}

struct phase_wait {
    const struct mbarrier *b;
    uint32_t parity;
};

bool phase_is_over(void *ctx)
{
    const struct phase_wait *w = (const struct phase_wait *)ctx;
    return (phase_of(w->b) & 1) != w->parity;
}

struct turn_wait {
    const struct named *n;
    uint64_t turn;
};

bool turn_is_over(void *ctx)
{
    const struct turn_wait *w = (const struct turn_wait *)ctx;
    return w->n->turn != w->turn;
}

uint64_t arrive_named(int name, int threads)
{
    if (name < 1 || name >= NAMES || threads < WARP || threads % WARP)
        emulator_die("barrier %d of %d threads", name, threads);
    struct named &n = here().names[name];
    if (n.arrived && n.threads != threads)
        emulator_die("barrier %d of %d threads is one of %d for others", name, threads, n.threads);
    uint64_t turn = n.turn;
    n.threads = threads;
    if (++n.arrived == threads) {
        n.arrived = 0;
        n.turn++;
    }
    return turn;
}

void deliver(const struct arrival &a)
{
    for (const emulated_copy &c : a.copies) {
        memcpy(c.to, &c.value, sizeof c.value);
        note_store(c.to);
    }
    mbarrier_arrive(a.barrier);
}

bool registers_are_there(void *ctx)
{
    return here().free_registers >= *(const int *)ctx;
}

} // namespace

/* ---- what emulator.cc asks */

void emulator_cta_begins(int n_threads, size_t shared_bytes)
{
    struct cta &c = here();
    if ((int)c.threads.size() < n_threads) {
        c.threads.resize(MOST_THREADS);
        c.warps.resize(MOST_THREADS / WARP);
    }
    for (int i = 0; i < n_threads; i++) {
        struct thread &t = c.threads[(size_t)i];
        t.open = false;
        t.begun = 0;
        t.seen = c.stores;
        t.closed.clear();
        t.registers = n_threads > 256 ? 65536 / n_threads / 8 * 8 : 248;
        for (struct sums &s : t.sums)
            s.d = nullptr;
    }
    for (int i = 0; i < n_threads / WARP; i++) {
        warp_at(i).products.clear();
        warp_at(i).done = 0;
    }
    c.n_threads = n_threads;
    c.shared_bytes = shared_bytes;
    c.free_registers = 0;
    c.arrivals.clear();
    memset(c.names, 0, sizeof c.names);
}

bool emulator_cta_stalls()
{
    struct cta &c = here();
    if (c.arrivals.empty())
        return false;
    struct mbarrier *first = c.arrivals.front().barrier;
    for (; !c.arrivals.empty() && c.arrivals.front().barrier == first; c.arrivals.pop_front())
        deliver(c.arrivals.front());
    return true;
}

void emulator_cta_ends()
{
    struct cta &c = here();
    if (!c.arrivals.empty())
        emulator_die("a CTA ended with copies under way");
    for (int w = 0; w < c.n_threads / WARP; w++)
        if (!warp_at(w).products.empty())
            emulator_die("a CTA ended with products under way");
    for (const struct named &n : c.names)
        if (n.arrived)
            emulator_die("a CTA ended while %d threads had arrived at a barrier with a name", n.arrived);
}

/* ---- the twins */

uint32_t shared_address(const void *p)
{
    return (uint32_t)((const unsigned char *)p - emulator_dynamic) + FIRST_ADDRESS;
}

void store_shared(void *p, uint4 v)
{
    memcpy(p, &v, sizeof v);
    note_store(p);
}

void fence_proxy_async(void)
{
    self().seen = here().stores;
}

void mbarrier_init(struct mbarrier *b, int n)
{
    b->word = MADE << 56 | (uint64_t)n << 20 | (uint64_t)n;
}

void mbarrier_arrive(struct mbarrier *b)
{
    uint64_t all = made_of(b) >> 20 & COUNT, left = (b->word & COUNT) - 1, phase = phase_of(b) + (left == 0);
    b->word = MADE << 56 | (phase & 0xffff) << 40 | all << 20 | (left ? left : all);
}

void mbarrier_wait(struct mbarrier *b, uint32_t parity)
{
    struct phase_wait w = {b, parity};
    made_of(b);
    emulator_wait_until(phase_is_over, &w);
}

void emulated_arrive_copies(struct mbarrier *b, std::vector<emulated_copy> &&copies)
{
    struct arrival a = {b, emulator_thread(), std::move(copies)};
    made_of(b);
    if (emulator_descends())
        deliver(a);
    else
        here().arrivals.push_back(std::move(a));
}

void emulated_drain_copies()
{
    std::deque<struct arrival> others;
    for (struct arrival &a : here().arrivals)
        if (a.thread == emulator_thread())
            deliver(a);
        else
            others.push_back(std::move(a));
    here().arrivals = std::move(others);
}

void named_barrier_arrive(int name, int threads)
{
    arrive_named(name, threads);
}

void named_barrier_sync(int name, int threads)
{
    struct turn_wait w = {&here().names[name & (NAMES - 1)], arrive_named(name, threads)};
    emulator_wait_until(turn_is_over, &w);
}

void emulated_setmaxnreg(int n)
{
    struct thread &t = self();
    int more = n - t.registers;
    if (more > 0)
        emulator_wait_until(registers_are_there, &more);
    here().free_registers -= more;
    t.registers = n;
}

void emulated_wgmma_fence()
{
    self().open = true;
}

void emulated_wgmma(const struct emulated_wgmma_call &p, float *d, const uint32_t *a)
{
    struct thread &t = self();
    struct warp &w = warp_at(emulator_thread() / WARP);
    int lane = emulator_lane();
    size_t at = (size_t)(t.begun - w.done);
    if (!t.open)
        emulator_die("a product without wgmma_fence");
    if (at == w.products.size()) {
        w.products.push_back({});
        w.products.back().p = p;
    }
    struct product &one = w.products[at];
    if (!same_product(one.p, p))
        emulator_die("the lanes of a warp begin different products");
    one.a[lane] = a;
    one.sums[lane] = sums_of(&t, d, p.n / 2);
    one.sums[lane]->last = t.begun++;
    one.seen[lane] = t.seen;
    one.lanes++;
}

void emulated_wgmma_commit()
{
    struct thread &t = self();
    t.open = false;
    t.closed.push_back(t.begun);
    if (t.closed.size() > 16)
        t.closed.pop_front();
}

void emulated_wgmma_wait(int but)
{
    struct thread &t = self();
    int w = emulator_thread() / WARP;
    uint64_t target = t.closed.size() > (size_t)but ? t.closed[t.closed.size() - 1 - (size_t)but] : 0;
    struct group_wait g = {w / 4 * 4, target};
    __syncwarp();
    emulator_wait_until(group_has_begun, &g);
    while (warp_at(w).done < target) {
        compare_group(w, warp_at(w).done);
        do_product(w);
    }
}
