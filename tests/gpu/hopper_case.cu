#include "kernels/cuda/hopper.h"
#include "tests/gpu/hopper_case.h"

enum { SPACE = CASE_BYTES + ATOM_BYTES };

template <half_type H, int N, bool REGISTERS>
__global__ void __launch_bounds__(GROUP_THREADS, 1) hopper_case_kernel(const __grid_constant__ struct hopper_case c)
{
#if HOPPER_CODE
    SHARED_BYTES(shared);
    uint8_t *base = shared + (-shared_address(shared) & (ATOM_BYTES - 1));
    float d[N / 2];
    for (int i = (int)threadIdx.x * 4; i < c.bytes / 4; i += GROUP_THREADS * 4)
        store_shared(base + i * 4, make_uint4(c.image[i], c.image[i + 1], c.image[i + 2], c.image[i + 3]));
#pragma unroll
    for (int i = 0; i < N / 2; i++)
        d[i] = c.d[(int)threadIdx.x * (N / 2) + i];
    fence_proxy_async();
    __syncthreads();
#pragma unroll 1
    for (int i = 0; i < c.steps; i++) {
        uint64_t at_a = c.a_bits | (shared_address(base + c.a_at[i]) & 0x3ffff) >> 4,
                 at_b = c.b_bits | (shared_address(base + c.b_at[i]) & 0x3ffff) >> 4;
        uint32_t a[4] = {};
#pragma unroll
        for (int k = 0; REGISTERS && k < 4; k++)
            a[k] = c.a[(i * GROUP_THREADS + (int)threadIdx.x) * 4 + k];
        wgmma_fence();
        if constexpr (REGISTERS)
            wgmma_rs<H>(d, a, at_b, true);
        else
            wgmma_ss<H>(d, at_a, at_b, true);
        wgmma_commit();
        wgmma_wait<0>();
        wgmma_fence_operand(d);
        (void)at_a;
    }
#pragma unroll
    for (int i = 0; i < N / 2; i++)
        c.d[(int)threadIdx.x * (N / 2) + i] = d[i];
#endif
}

template <half_type H, int N, bool REGISTERS> static cudaError_t run(cudaStream_t s, const struct hopper_case *c)
{
    cudaError_t e =
        cudaFuncSetAttribute(hopper_case_kernel<H, N, REGISTERS>, cudaFuncAttributeMaxDynamicSharedMemorySize, SPACE);
    return e ? e : launch(hopper_case_kernel<H, N, REGISTERS>, dim3(1), dim3(GROUP_THREADS), SPACE, s, *c);
}

template <half_type H> static cudaError_t run_type(cudaStream_t s, const struct hopper_case *c)
{
    if (!c->a)
        return run<H, 128, false>(s, c);
    return c->wide ? run<H, 128, true>(s, c) : run<H, 64, true>(s, c);
}

cudaError_t hopper_case_prepare(bool *here)
{
    struct cudaFuncAttributes a;
    cudaError_t e = cudaFuncGetAttributes(&a, hopper_case_kernel<half_type::bf16, 128, false>);
    *here = e == cudaSuccess && a.numRegs > 64;
    return e;
}

cudaError_t launch_hopper_case(cudaStream_t s, const struct hopper_case *c)
{
    return c->f16 ? run_type<half_type::f16>(s, c) : run_type<half_type::bf16>(s, c);
}
