/* Instructions of compute capability 9.0 (sm_90a) that the kernels of the default mode use: wgmma (products by a warp
 * group of four warps, with operands in shared memory and sums in registers), mbarrier, cp.async that arrives at an
 * mbarrier, setmaxnreg and named barriers. Functions have the instructions' names; see the PTX ISA 9.0, sections
 * 9.7.13 and 9.7.15. CUDA C++ only, included after tensor.h. tests/emulator has host twins (hopper_twins.h) that
 * decode the descriptors bit by bit. Invariant: these functions are called only where HOPPER_CODE is 1.
 *
 * A product is d += a b or d = a b, where d is 64 rows by N columns, a is 64 by 16 and b is 16 by N. Thread 32 w + 4 g
 * + t of the group has in d[4 j] and d[4 j + 1] row 16 w + g, columns 8 j + 2 t and the next; in d[4 j + 2] and d[4 j
 * + 3] row 16 w + g + 8. When a is in registers, a[0] is row 16 w + g, columns 2 t and 2 t + 1; a[1] is row + 8; a[2]
 * and a[3] are the same at column + 8. So the sums of one product, in pairs, are the a of the next.
 *
 * Operands in shared memory have the 128-byte swizzle. Eight rows of 64 elements (128 bytes each) are an atom of 1
 * KiB, aligned to 1 KiB. Within an atom, 16-byte chunk c of row r lies at chunk c ^ r (swizzled_at). What the rows are
 * depends on the operand:
 *
 * - a, and b as it is ("K-major"): a row of the atom is a row of a, or a column of b, and holds 64 k. Eight rows
 *   further is `stride` bytes away, the next 16 k are 32 bytes away.
 * - b transposed ("MN-major"): a row of the atom is one k and holds 64 columns. The next 64 columns are `lead` bytes
 *   away, the next eight k `stride` bytes, the next 16 k 2 * stride. */
#ifndef CUDA_HOPPER_H
#define CUDA_HOPPER_H

#include "kernels/cuda/tensor.h"

#if !defined(__CUDACC__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define HOPPER_CODE 1
#else
#define HOPPER_CODE 0
#endif

enum { GROUP_THREADS = 128, ATOM_BYTES = 1024 };

/* A barrier in shared memory. It begins in phase 0 and enters the next phase when as many threads have arrived as it
 * was initialised with. */
struct mbarrier {
    uint64_t word;
};

#ifdef __CUDACC__

/* Where p is in the CTA's shared memory: atoms are aligned by this address. */
__device__ static inline uint32_t shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

__device__ static inline void store_shared(void *p, uint4 v)
{
    *(uint4 *)p = v;
}

/* ---- barriers */

__device__ static inline void mbarrier_init(struct mbarrier *b, int n)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(b)), "r"(n) : "memory");
}

__device__ static inline void mbarrier_arrive(struct mbarrier *b)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(b)) : "memory");
}

/* This thread arrives, as one, when all its cp.async so far have completed. */
__device__ static inline void mbarrier_arrive_copies(struct mbarrier *b)
{
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(b)) : "memory");
}

__device__ static inline bool mbarrier_try_wait(struct mbarrier *b, uint32_t parity)
{
    uint32_t past;
    asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
                 : "=r"(past)
                 : "r"(shared_address(b)), "r"(parity)
                 : "memory");
    return past;
}

__device__ static inline uint64_t time_ns(void)
{
    uint64_t t;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
    return t;
}

/* What is waited for takes microseconds. After so long it does not come any more, and a kernel that ended with an error
 * is a failed rank, while one that never ends would be a server that hangs. */
enum { WAIT_SECONDS = 4 };

/* Waits until the phase of this parity (0 or 1) is over. The phase before the first has parity 1 and counts as over. */
__device__ static inline void mbarrier_wait(struct mbarrier *b, uint32_t parity)
{
    if (mbarrier_try_wait(b, parity))
        return;
    for (uint64_t began = time_ns(); !mbarrier_try_wait(b, parity);)
        if (time_ns() - began > (uint64_t)WAIT_SECONDS * 1000000000)
            asm volatile("trap;");
}

/* Waits for all cp.async of this thread, committed or not. */
__device__ static inline void cp_async_wait_all(void)
{
    asm volatile("cp.async.wait_all;" ::: "memory");
}

/* Named barrier 1 .. 15 of so many threads: arrive and wait; arrive only. */
__device__ static inline void named_barrier_sync(int name, int threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(name), "r"(threads) : "memory");
}

__device__ static inline void named_barrier_arrive(int name, int threads)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(name), "r"(threads) : "memory");
}

/* ---- registers: the warps of a group release some of theirs, or request more and wait for them */

template <int N> __device__ static inline void setmaxnreg_dec(void)
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

template <int N> __device__ static inline void setmaxnreg_inc(void)
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}

/* ---- wgmma. All threads of a warp group take part in each of these. */

/* Makes what this thread has stored in shared memory, and what it knows that others have, visible to later wgmma. */
__device__ static inline void fence_proxy_async(void)
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* Needed before the first wgmma, and whenever registers of d or a were accessed since the last one. */
__device__ static inline void wgmma_fence(void)
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ static inline void wgmma_commit(void)
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* Waits until at most the latest N committed groups are pending. Until then no thread may access their d and a, or
 * write what they read. */
template <int N> __device__ static inline void wgmma_wait(void)
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

/* After a wait, for each d of the groups waited for: keeps the compiler from reading d earlier. */
template <int N> __device__ static inline void wgmma_fence_operand(float (&d)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("" : "+f"(d[i])::"memory");
}

#define OUT8(d, i)                                                                                                     \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]),        \
        "+f"(d[i + 7])
#define OUT32(d, i) OUT8(d, i), OUT8(d, i + 8), OUT8(d, i + 16), OUT8(d, i + 24)
#define LIST32                                                                                                         \
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%"  \
    "30,%31"
#define LIST64                                                                                                         \
    LIST32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57," \
           "%58,%59,%60,%61,%62,%63"

/* The last operands: scale-d, imm-scale-a, imm-scale-b, imm-trans-a (only from shared memory), imm-trans-b. */
#define WGMMA_SS_128(type)                                                                                             \
    asm volatile("{.reg .pred add; setp.ne.b32 add, %66, 0;\n"                                                         \
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type " {" LIST64                              \
                 "}, %64, %65, add, 1, 1, 0, 0;}"                                                                      \
                 : OUT32(d, 0), OUT32(d, 32)                                                                           \
                 : "l"(a), "l"(b), "r"((int)add))
#define WGMMA_RS_128(type)                                                                                             \
    asm volatile("{.reg .pred add; setp.ne.b32 add, %69, 0;\n"                                                         \
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type " {" LIST64                              \
                 "}, {%64,%65,%66,%67}, %68, add, 1, 1, 1;}"                                                           \
                 : OUT32(d, 0), OUT32(d, 32)                                                                           \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)add))
#define WGMMA_RS_64(type)                                                                                              \
    asm volatile("{.reg .pred add; setp.ne.b32 add, %37, 0;\n"                                                         \
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type " {" LIST32                               \
                 "}, {%32,%33,%34,%35}, %36, add, 1, 1, 1;}"                                                           \
                 : OUT32(d, 0)                                                                                         \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)add))

/* a and b in shared memory, neither transposed; N = 128. */
template <half_type H> __device__ static inline void wgmma_ss(float (&d)[64], uint64_t a, uint64_t b, bool add)
{
    if constexpr (H == half_type::f16)
        WGMMA_SS_128("f16");
    else
        WGMMA_SS_128("bf16");
}

/* a in registers, b transposed in shared memory; N = 128 or 64 by d. */
template <half_type H>
__device__ static inline void wgmma_rs(float (&d)[64], const uint32_t (&a)[4], uint64_t b, bool add)
{
    if constexpr (H == half_type::f16)
        WGMMA_RS_128("f16");
    else
        WGMMA_RS_128("bf16");
}

template <half_type H>
__device__ static inline void wgmma_rs(float (&d)[32], const uint32_t (&a)[4], uint64_t b, bool add)
{
    if constexpr (H == half_type::f16)
        WGMMA_RS_64("f16");
    else
        WGMMA_RS_64("bf16");
}

#undef OUT8
#undef OUT32
#undef LIST32
#undef LIST64
#undef WGMMA_SS_128
#undef WGMMA_RS_128
#undef WGMMA_RS_64

#else
#include <hopper_twins.h>
#endif

/* The descriptor of an operand whose first atom begins at `address`; for the next k add bytes / 16. lead and stride:
 * multiples of 16. */
__device__ static inline uint64_t wgmma_descriptor(uint32_t address, int lead, int stride)
{
    enum { SWIZZLE_128 = 1 };
    return (uint64_t)((address & 0x3ffff) >> 4) | (uint64_t)(lead >> 4) << 16 | (uint64_t)(stride >> 4) << 32 |
           (uint64_t)SWIZZLE_128 << 62;
}

/* Offset in bytes of 16-byte chunk c of row r, from the beginning of an atom. */
__device__ static inline int swizzled_at(int r, int c)
{
    return r * 128 + ((c ^ r) & 7) * 16;
}

#endif
