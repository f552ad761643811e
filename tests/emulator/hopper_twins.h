/* Host twins of kernels/cuda/hopper.h (hopper.cc). Products are done as late as may be: when a thread waits for them,
 * from what shared memory and the registers of a then hold; until then d is NaN, and what is written to it is lost.
 * Operands are found by the bits of their descriptors, as the PTX ISA describes the canonical layouts. All four warps
 * of a group must begin the same products. Copies that arrive at a barrier come when every thread of the CTA waits for
 * something (in descending order, emulator_order, at once). Reading in a product what was stored without a fence
 * between, products without products_open, barriers that nobody made and threads that wait for ever end the program
 * with a line that says so. Included by hopper.h alone. Invariant: a sum is there only after it was waited for. */
#ifndef EMULATOR_HOPPER_TWINS_H
#define EMULATOR_HOPPER_TWINS_H

struct emulated_product {
    bool f16, in_registers; /* in_registers: a, and b is transposed */
    int n;
    uint64_t a, b;
    bool add;
};
/* Of the running thread. */
void emulated_begin_product(const struct emulated_product &p, float *d, const uint32_t *a);
void emulated_close_products();
void emulated_open_products();
void emulated_wait_products(int but);
void emulated_arrive_copies(struct phases *b, std::vector<emulated_copy> &&copies);
void emulated_drain_copies();
void emulated_move_registers(int n);

uint32_t shared_address(const void *p);
void store_shared(void *p, uint4 v);
void phases_init(struct phases *b, int n);
void phases_arrive(struct phases *b);
void phases_wait(struct phases *b, uint32_t parity);
void named_wait(int name, int threads);
void named_arrive(int name, int threads);
void shared_to_products(void);

static inline void phases_arrive_copies(struct phases *b)
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

static inline void copies_wait_all(void)
{
    copies_close();
    copies_wait<0>();
    emulated_drain_copies();
}

template <int N> static inline void registers_give(void)
{
    static_assert(N >= 24 && N <= 256 && N % 8 == 0, "what setmaxnreg takes");
    emulated_move_registers(N);
}

template <int N> static inline void registers_take(void)
{
    static_assert(N >= 24 && N <= 256 && N % 8 == 0, "what setmaxnreg takes");
    emulated_move_registers(N);
}

static inline void products_open(void)
{
    emulated_open_products();
}

static inline void products_close(void)
{
    emulated_close_products();
}

template <int N> static inline void products_wait(void)
{
    emulated_wait_products(N);
}

template <int N> static inline void products_done(float (&)[N]) {}

template <half_type H> static inline void product_shared(float (&d)[64], uint64_t a, uint64_t b, bool add)
{
    emulated_begin_product({H == half_type::f16, false, 128, a, b, add}, d, nullptr);
}

template <half_type H, int N>
static inline void product_registers(float (&d)[N], const uint32_t (&a)[4], uint64_t b, bool add)
{
    static_assert(N == 64 || N == 32, "what hopper.h has");
    emulated_begin_product({H == half_type::f16, true, 2 * N, 0, b, add}, d, a);
}

#endif
