/* What this GPU can do, measured in the same run as what is compared with it: bytes per second of copying, of reading
 * only, and over the link from pinned memory; operations per second of the library's products. Medians of several
 * rounds, each timed by events. On one thread, the calling one's device. Invariant: products have random operands, and
 * reads are too large for any cache. */
#ifndef BENCH_GPU_PROBE_H
#define BENCH_GPU_PROBE_H

#include <cuda_runtime_api.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* probe.cu. n: 16-byte words. Noise: bf16 between -0.02 and 0.02, none of it zero for long; codes: E4M3 between -2
 * and 2. */
cudaError_t launch_read(cudaStream_t s, const void *p, size_t n, uint32_t *sink);
cudaError_t launch_noise(cudaStream_t s, void *p, size_t n, uint32_t seed);
cudaError_t launch_codes(cudaStream_t s, void *p, size_t n, uint32_t seed);

#ifdef __cplusplus
}
#endif

enum { PROBE_ROUNDS = 7 };

struct probe {
    cudaStream_t stream;
    cudaEvent_t begun, ended;
    struct probe_lt *lt; /* NULL: the library is not here */
    bool dry;            /* over the emulator: small sizes, times that mean nothing */
};

/* A call of CUDA that fails ends the program: these are benches. */
void probe_check(cudaError_t rc, const char *what);
void probe_open(struct probe *p, bool dry);
void probe_close(struct probe *p);
/* GB/s: bytes read and written; bytes read; bytes over the link. */
double probe_copy(struct probe *p);
double probe_read(struct probe *p);
double probe_pinned(struct probe *p);

enum probe_factors { PROBE_BF16, PROBE_F8_ROWS, PROBE_F8_BLOCKS };
/* y[rows][outs] = x[rows][cols] w[outs][cols]^T with f32 sums, by the best of the library's first proposals; weights in
 * turn from as many copies as no cache holds. Of bf16, or of fp8 with scales for each row of both, or for 128 x 128
 * elements of w and 128 columns of x. Seconds of one, 0: the library is not here, or has none. */
struct probe_product {
    int rows, outs, cols;
    enum probe_factors factors;
};
double probe_product(struct probe *p, const struct probe_product *what);
/* TFLOPS of a large one. */
double probe_rate(struct probe *p, enum probe_factors of);

/* Sorts. */
double median(double *v, int n);

#endif
