#include "kernels/cuda/hopper.h"
#include "tests/emulator/hopper_wrong.h"

enum { ONE = 0x3f80, SPACE = 24 << 10 }; /* 1 in bf16 */

struct mistake_job {
    enum mistake what;
    float *out;
    const uint4 *ones;
};

static void fill(uint8_t *base, int bytes)
{
    uint32_t pair = ONE | ONE << 16;
    for (int i = (int)threadIdx.x * 16; i < bytes; i += GROUP_THREADS * 16)
        store_shared(base + i, make_uint4(pair, pair, pair, pair));
}

/* Waits that never end, and others that end too early. */
static void wrong_waits(const struct mistake_job &j, struct mbarrier *b, uint8_t *base)
{
    if (j.what == NOBODYS_BARRIER)
        mbarrier_arrive(b);
    if (threadIdx.x == 0)
        mbarrier_init(b, GROUP_THREADS);
    __syncthreads();
    if (j.what == COPIES_FORGOTTEN || j.what == NO_PHASE) {
        cp_async(base + threadIdx.x * 16, j.ones, true);
        mbarrier_arrive_copies(b);
    } else if (j.what == WRONG_PARITY) {
        mbarrier_arrive(b);
    }
    if (j.what == WAITS_FOR_NOBODY || j.what == WRONG_PARITY)
        mbarrier_wait(b, j.what == WRONG_PARITY);
    if (j.what == WRONG_PARITY)
        mbarrier_wait(b, 1);
    if (j.what == NAME_TOO_FEW)
        named_barrier_sync(3, GROUP_THREADS + WARP);
    if (j.what == TOO_MANY_REGISTERS)
        setmaxnreg_inc<256>();
    if (j.what == NO_PHASE) {
        memcpy(&j.out[threadIdx.x], base + threadIdx.x * 16, sizeof *j.out);
        cp_async_wait_all();
    }
}

static void mistake_kernel(struct mistake_job j)
{
    SHARED_BYTES(shared);
    uint8_t *base = shared + (-shared_address(shared) & (ATOM_BYTES - 1));
    struct mbarrier *barrier = (struct mbarrier *)(base + (SPACE - 2 * ATOM_BYTES));
    float d[64] = {};
    uint64_t a = wgmma_descriptor(shared_address(base), 16, ATOM_BYTES),
             b = wgmma_descriptor(shared_address(base), 16, ATOM_BYTES);
    fill(base, 16 << 10);
    if (j.what != NO_PROXY_FENCE)
        fence_proxy_async();
    __syncthreads();
    if (j.what >= WAITS_FOR_NOBODY && j.what != NO_WAIT && j.what != WRITTEN_UNDER_WAY) {
        wrong_waits(j, barrier, base);
        return;
    }
    if (j.what != NO_WGMMA_FENCE)
        wgmma_fence();
    b += j.what == DIFFERENT_OPERANDS && threadIdx.x / WARP == 1 ? 2 : 0;
    b |= j.what == RESERVED_BITS ? 1ULL << 46 : j.what == BASE_OFFSET ? 1ULL << 49 : 0;
    b += j.what == PAST_THE_END ? SPACE / 2 / 16 : 0;
    if (j.what != HALF_A_GROUP || threadIdx.x < 64) {
        wgmma_ss<half_type::bf16>(d, a, b, true);
        if (j.what != NO_COMMIT)
            wgmma_commit();
    }
    if (j.what == STORED_UNDER_WAY)
        fill(base, 1 << 10);
    if (j.what == WRITTEN_UNDER_WAY)
        d[0] = 7;
    if (j.what == NO_WAIT)
        j.out[threadIdx.x] = d[0];
    wgmma_wait<0>();
    if (j.what != NO_WAIT)
        j.out[threadIdx.x] = d[0];
}

extern "C" void hopper_mistake(enum mistake m, float *out)
{
    static const uint4 ones = {0x3f800000, 0x3f800000, 0x3f800000, 0x3f800000};
    launch(mistake_kernel, dim3(1), dim3(GROUP_THREADS), SPACE, nullptr, mistake_job{m, out, &ones});
}
