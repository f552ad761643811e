/* What is here, first of all that tests/gpu.sh runs: the GPUs and whether the first one runs a kernel of ours, which C
 * library, and with --libraries whether cuBLASLt loads, from where and of what version (and NCCL, which only several
 * GPUs need). Status 1: no GPU, or it does not answer; with --libraries: no cuBLASLt. usage: gpu_facts [--libraries] */
#include <dlfcn.h>
#include <gnu/libc-version.h>
#include <stdio.h>
#include <string.h>

#include "kernels/cuda/lt_load.h"
#include "kernels/cuda/nccl_load.h"
#include "tests/bench/gpu/probe.h"

enum { WORDS = 1 << 16 }; /* 1 MiB */

static const char *file_of(void *function)
{
    Dl_info where;
    return dladdr(function, &where) && where.dli_fname ? where.dli_fname : "?";
}

static void *address(void (*function)(void))
{
    void *p;
    memcpy(&p, &function, sizeof p);
    return p;
}

#if defined(CUBLAS_VERSION)
enum { BUILT_FOR = CUBLAS_VERSION }; /* the loader asks for a library of its major version first */
#else
enum { BUILT_FOR = 0 };
#endif

static int libraries(void)
{
    struct lt_functions lt;
    struct nccl_functions nccl;
    bool loads = lt_load(&lt);
    if (loads) {
        size_t v = lt.cublasLtGetVersion();
        printf("cuBLASLt %zu (built for %d) from %s%s\n", v, BUILT_FOR,
               file_of(address((void (*)(void))lt.cublasLtGetVersion)),
               v < LT_F8_VERSION ? "; products of fp8 need 12.9" : "");
    } else {
        const char *why = dlerror();
        printf("cuBLASLt does not load (built for %d): %s\n", BUILT_FOR, why ? why : "it lacks a function");
    }
    if (nccl_load(&nccl))
        printf("NCCL from %s\n", file_of(address((void (*)(void))nccl.ncclGetUniqueId)));
    else
        printf("NCCL does not load; one GPU needs none\n");
    return loads ? 0 : 1;
}

#if defined(EMULATED)
static void print_versions(void)
{
    printf("the emulator, no driver\n");
}

static void print_more(int i)
{
    (void)i;
}
#else
static void print_versions(void)
{
    int driver = 0, runtime = 0;
    probe_check(cudaDriverGetVersion(&driver), "the driver's version");
    probe_check(cudaRuntimeGetVersion(&runtime), "the runtime's version");
    if (!driver)
        printf("no NVIDIA driver here\n");
    else
        printf("the driver can CUDA %d.%d, the runtime is %d.%d%s\n", driver / 1000, driver % 1000 / 10, runtime / 1000,
               runtime % 1000 / 10, driver / 1000 < runtime / 1000 ? ": THE DRIVER IS TOO OLD FOR IT" : "");
}

static void print_more(int i)
{
    static const struct {
        enum cudaDeviceAttr which;
        const char *name;
    } asked[] = {{cudaDevAttrClockRate, "SM clock, kHz"},
                 {cudaDevAttrMemoryClockRate, "memory clock, kHz"},
                 {cudaDevAttrGlobalMemoryBusWidth, "memory bus, bits"},
                 {cudaDevAttrL2CacheSize, "L2, bytes"},
                 {cudaDevAttrMaxSharedMemoryPerMultiprocessor, "shared memory of an SM, bytes"},
                 {cudaDevAttrMaxRegistersPerMultiprocessor, "registers of an SM"},
                 {cudaDevAttrEccEnabled, "ECC"},
                 {cudaDevAttrComputeMode, "compute mode"}};
    for (size_t k = 0; k < sizeof asked / sizeof *asked; k++) {
        int value = 0;
        if (cudaDeviceGetAttribute(&value, asked[k].which, i) == cudaSuccess)
            printf("  %s: %d\n", asked[k].name, value);
    }
    size_t free = 0, total = 0;
    probe_check(cudaSetDevice(i), "taking a GPU");
    probe_check(cudaMemGetInfo(&free, &total), "its memory");
    printf("  free memory: %.2f of %.2f GiB\n", (double)free / 0x1p30, (double)total / 0x1p30);
}
#endif

static void print_devices(int n)
{
    for (int i = 0; i < n; i++) {
        struct cudaDeviceProp p;
        probe_check(cudaGetDeviceProperties(&p, i), "properties");
        printf("GPU %d: %s, compute capability %d.%d, %d SMs, %.2f GiB, shared memory of a CTA up to %zu bytes\n", i,
               p.name, p.major, p.minor, p.multiProcessorCount, (double)p.totalGlobalMem / 0x1p30,
               p.sharedMemPerBlockOptin);
        print_more(i);
        printf("  reads the memory of GPUs");
        for (int k = 0; k < n; k++) {
            int can = 0;
            if (k != i && cudaDeviceCanAccessPeer(&can, i, k) == cudaSuccess && can)
                printf(" %d", k);
        }
        printf(n > 1 ? "\n" : ": there is one\n");
    }
}

/* Noise made there is not all zero here: a kernel was found for this GPU and ran, and copies work. */
static int run_kernel(void)
{
    static unsigned char back[WORDS * 16];
    struct probe p;
    void *there = NULL;
    size_t zeros = 0;
    probe_check(cudaSetDevice(0), "taking GPU 0");
    probe_open(&p, true);
    probe_check(cudaMalloc(&there, sizeof back), "memory");
    probe_check(launch_noise(p.stream, there, WORDS, 1), "starting a kernel");
    probe_check(cudaMemcpyAsync(back, there, sizeof back, cudaMemcpyDeviceToHost, p.stream), "copying");
    probe_check(cudaStreamSynchronize(p.stream), "waiting for a kernel");
    for (size_t i = 0; i + 1 < sizeof back; i += 2)
        zeros += !back[i] && !back[i + 1];
    cudaFree(there);
    probe_close(&p);
    printf("a kernel ran on GPU 0: %s\n", zeros < sizeof back / 20 ? "right" : "WRONG, it wrote zeros");
    return zeros < sizeof back / 20 ? 0 : 1;
}

int main(int argc, char **argv)
{
    int n = 0;
    setvbuf(stdout, NULL, _IOLBF, 0); /* what was seen before a hang counts */
    if (argc > 1 && !strcmp(argv[1], "--libraries"))
        return libraries();
    printf("glibc %s\n", gnu_get_libc_version());
    print_versions();
    probe_check(cudaGetDeviceCount(&n), "counting GPUs");
    print_devices(n);
    return n > 0 ? run_kernel() : 1;
}
