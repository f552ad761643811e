/* The kernels of the probes. */
#include "kernels/cuda/prim.h"
#include "tests/bench/gpu/probe.h"

enum { THREADS = 512, CTAS = 1056, EACH = 4 };

__global__ static void read_all(const uint4 *p, size_t n, uint32_t *sink)
{
    size_t at = (size_t)blockIdx.x * THREADS + threadIdx.x, step = (size_t)gridDim.x * THREADS;
    uint32_t sum = 0;
    for (; at + (EACH - 1) * step < n; at += EACH * step) {
        uint4 v[EACH];
        for (int i = 0; i < EACH; i++)
            v[i] = p[at + i * step];
        for (int i = 0; i < EACH; i++)
            sum ^= v[i].x ^ v[i].y ^ v[i].z ^ v[i].w;
    }
    for (; at < n; at += step)
        sum ^= p[at].x ^ p[at].y ^ p[at].z ^ p[at].w;
    if (sum == 0x9e3779b9u) /* hardly ever, and the compiler does not know */
        *sink = sum;
}

__device__ static uint32_t mix(uint32_t x)
{
    x = (x ^ x >> 16) * 0x7feb352du;
    x = (x ^ x >> 15) * 0x846ca68bu;
    return x ^ x >> 16;
}

/* Two bf16 between -0.02 and 0.02. */
__device__ static uint32_t noise_pair(uint32_t i, uint32_t seed)
{
    uint32_t bits = mix(i * 2654435761u + seed);
    float low = ((float)(bits & 0xffffu) - 32767.5f) * (0.02f / 32768.0f),
          high = ((float)(bits >> 16) - 32767.5f) * (0.02f / 32768.0f);
    return to_bf16_bits(low) | (uint32_t)to_bf16_bits(high) << 16;
}

__global__ static void fill_noise(uint4 *p, size_t n, uint32_t seed)
{
    for (size_t at = (size_t)blockIdx.x * THREADS + threadIdx.x; at < n; at += (size_t)gridDim.x * THREADS) {
        uint32_t i = (uint32_t)at * 4;
        p[at] =
            make_uint4(noise_pair(i, seed), noise_pair(i + 1, seed), noise_pair(i + 2, seed), noise_pair(i + 3, seed));
    }
}

__global__ static void fill_codes(uint4 *p, size_t n, uint32_t seed)
{
    const uint32_t below_two = 0xbfbfbfbfu;
    for (size_t at = (size_t)blockIdx.x * THREADS + threadIdx.x; at < n; at += (size_t)gridDim.x * THREADS) {
        uint32_t i = (uint32_t)at * 4;
        p[at] =
            make_uint4(mix(i * 2654435761u + seed) & below_two, mix((i + 1) * 2654435761u + seed) & below_two,
                       mix((i + 2) * 2654435761u + seed) & below_two, mix((i + 3) * 2654435761u + seed) & below_two);
    }
}

static unsigned ctas_for(size_t n)
{
    size_t wanted = (n + THREADS - 1) / THREADS;
    return wanted < CTAS ? (unsigned)wanted : (unsigned)CTAS;
}

cudaError_t launch_read(cudaStream_t s, const void *p, size_t n, uint32_t *sink)
{
    return launch(read_all, dim3(ctas_for(n)), dim3(THREADS), 0, s, (const uint4 *)p, n, sink);
}

cudaError_t launch_noise(cudaStream_t s, void *p, size_t n, uint32_t seed)
{
    return launch(fill_noise, dim3(ctas_for(n)), dim3(THREADS), 0, s, (uint4 *)p, n, seed);
}

cudaError_t launch_codes(cudaStream_t s, void *p, size_t n, uint32_t seed)
{
    return launch(fill_codes, dim3(ctas_for(n)), dim3(THREADS), 0, s, (uint4 *)p, n, seed);
}
