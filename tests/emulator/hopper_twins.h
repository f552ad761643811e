/* Host twins of kernels/cuda/hopper.h (hopper.cc). A wgmma is executed as late as possible, when a thread waits for
 * it, with what shared memory and the registers of a hold at that moment. Until then d is NaN, and anything written to
 * it is lost. Operands are found by the bits of their descriptors, as the PTX ISA describes the canonical layouts. All
 * four warps of a group must begin the same products. Copies that arrive at an mbarrier come when every thread of the
 * CTA waits for something (in descending order, see emulator_order, at once). A product that reads what was stored
 * without a proxy fence in between, products without wgmma_fence, barriers that were never initialised and threads
 * that wait for ever end the program with a line that says so. Included by hopper.h alone. Invariant: a sum can be
 * read only after a wait for it. */
#ifndef EMULATOR_HOPPER_TWINS_H
#define EMULATOR_HOPPER_TWINS_H

struct emulated_wgmma_call {
    bool f16, in_registers; /* in_registers: a, and b is transposed */
    int n;
    uint64_t a, b;
    bool add;
};
/* Of the running thread. */
void emulated_wgmma(const struct emulated_wgmma_call &p, float *d, const uint32_t *a);
void emulated_wgmma_commit();
void emulated_wgmma_fence();
void emulated_wgmma_wait(int but);
void emulated_arrive_copies(struct mbarrier *b, std::vector<emulated_copy> &&copies);
void emulated_drain_copies();
void emulated_setmaxnreg(int n);

uint32_t shared_address(const void *p);
void store_shared(void *p, uint4 v);
void mbarrier_init(struct mbarrier *b, int n);
void mbarrier_arrive(struct mbarrier *b);
void mbarrier_wait(struct mbarrier *b, uint32_t parity);
void named_barrier_sync(int name, int threads);
void named_barrier_arrive(int name, int threads);
void fence_proxy_async(void);

static inline void mbarrier_arrive_copies(struct mbarrier *b)
{
    emulated_copies &c = emulated_copies_now();
    std::vector<emulated_copy> all;
    for (const std::vector<emulated_copy> &group : c.closed)
        all.insert(all.end(), group.begin(), group.end());
    all.insert(all.end(), c.open.begin(), c.open.end());
    c.closed.clear();
    c.open.clear();
    emulated_arrive_copies(b, std::move(all));
}

static inline void cp_async_wait_all(void)
{
    cp_async_commit();
    cp_async_wait<0>();
    emulated_drain_copies();
}

template <int N> static inline void setmaxnreg_dec(void)
{
    static_assert(N >= 24 && N <= 256 && N % 8 == 0, "what setmaxnreg takes");
    emulated_setmaxnreg(N);
}

template <int N> static inline void setmaxnreg_inc(void)
{
    static_assert(N >= 24 && N <= 256 && N % 8 == 0, "what setmaxnreg takes");
    emulated_setmaxnreg(N);
}

static inline void wgmma_fence(void)
{
    emulated_wgmma_fence();
}

static inline void wgmma_commit(void)
{
    emulated_wgmma_commit();
}

template <int N> static inline void wgmma_wait(void)
{
    emulated_wgmma_wait(N);
}

template <int N> static inline void wgmma_fence_operand(float (&)[N]) {}

template <half_type H> static inline void wgmma_ss(float (&d)[64], uint64_t a, uint64_t b, bool add)
{
    emulated_wgmma({H == half_type::f16, false, 128, a, b, add}, d, nullptr);
}

template <half_type H, int N> static inline void wgmma_rs(float (&d)[N], const uint32_t (&a)[4], uint64_t b, bool add)
{
    static_assert(N == 64 || N == 32, "what hopper.h has");
    emulated_wgmma({H == half_type::f16, true, 2 * N, 0, b, add}, d, a);
}

#endif
