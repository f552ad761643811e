#include "tests/emulator/wrong.h"

#include "kernels/cuda/tensor.h"

struct slip_job {
    enum slip what;
    float *in, *out;
    unsigned *arrived;
};

static void first_kernel(struct slip_job j)
{
    griddepcontrol_launch_dependents();
    if (threadIdx.x == 0)
        j.in[blockIdx.x] = 1;
}

static void misalign(const struct slip_job &j, unsigned char *shared)
{
    uint32_t d[4];
    if (j.what == MISALIGNED_COPY)
        cp_async(shared + 8, j.in, true);
    if (j.what == MISALIGNED_FROM)
        cp_async(shared, j.in + 1, true);
    if (j.what == MISALIGNED_MATRIX)
        ldmatrix(d, shared + 2);
}

static void mistake_memory(const struct slip_job &j, unsigned char *shared)
{
    alignas(16) unsigned char local[16];
    if (j.what == GLOBAL_OF_SHARED)
        j.out[blockIdx.x] = __ldcg((const float *)shared);
    if (j.what == COPY_TO_LOCAL)
        cp_async(local, j.in, true);
}

/* Whether this CTA comes last. */
static bool is_last(const struct slip_job &j)
{
    SHARED(last, bool last);
    if (threadIdx.x == 0)
        last = atomicAdd(j.arrived, 1u) == gridDim.x - 1;
    __syncthreads();
    return j.what == LAST_IS_LAST ? blockIdx.x == gridDim.x - 1 : last;
}

static void second_kernel(struct slip_job j)
{
    SHARED_BYTES(shared);
    SHARED(written, float written[WARP]);
    float early = j.what == READS_EARLY ? j.in[blockIdx.x] : 0;
    if (j.what != NEVER_WAITS)
        griddepcontrol_wait();
    if (j.what == TOO_MUCH_STATIC) {
        SHARED(large, unsigned char large[49 << 10]);
        large[threadIdx.x] = 1;
    }
    misalign(j, shared);
    mistake_memory(j, shared);
    float value = j.what == READS_EARLY ? early : j.in[blockIdx.x];
    if (j.what != READS_UNWRITTEN)
        written[threadIdx.x] = value;
    if (threadIdx.x == 0)
        j.out[blockIdx.x] = written[threadIdx.x];
    if (!is_last(j) || threadIdx.x != 0)
        return;
    float sum = 0;
    for (unsigned i = 0; i < gridDim.x; i++)
        sum += j.out[i];
    j.out[gridDim.x] = sum;
}

extern "C" cudaError_t slip(enum slip what, cudaStream_t s, float *in, float *out, unsigned *arrived)
{
    struct slip_job j = {what, in, out, arrived};
    size_t shared = what == TOO_MUCH_DYNAMIC ? 64 << 10 : what == TOO_MUCH_DYNAMIC_ALL ? 228 << 10 : 1 << 10;
    cudaError_t rc = launch(first_kernel, dim3(SLIP_CTAS), dim3(WARP), 0, s, j);
    if (!rc && what == TOO_MUCH_ALLOWED)
        rc = cudaFuncSetAttribute(second_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 227 << 10);
    return rc ? rc : launch_pdl(second_kernel, dim3(SLIP_CTAS), dim3(WARP), shared, s, j);
}

static void mma_kernel(float *out)
{
    float c[4] = {1, 1, 1, 1};
    const uint32_t small = 0x3300u | 0x3300u << 16; /* 2^-25, in bf16, a pair */
    const uint32_t a[4] = {small, small, 0, 0}, b[2] = {0x3f803f80u, 0x3f803f80u};
    mma_bf16(c, a, b);
    if (threadIdx.x == 0)
        *out = c[0];
}

extern "C" float one_and_eight_small(void)
{
    float out = 0;
    launch(mma_kernel, dim3(1), dim3(WARP), 0, nullptr, &out);
    return out;
}
