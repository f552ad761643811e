/* Products of one warp group over operands that the host has laid out in shared memory byte by byte, for
 * tests/cuda/hopper.c: on a GPU and over the emulator's twins. Invariant: descriptors are made only from what the host
 * passes. */
#ifndef TESTS_HOPPER_CASE_H
#define TESTS_HOPPER_CASE_H

#include <cuda_runtime_api.h>

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { CASE_STEPS = 8, CASE_BYTES = 96 << 10 };
struct hopper_case {
    const uint32_t *image;                  /* [bytes / 4] shared memory from a multiple of 1 KiB on */
    int bytes, steps;                       /* steps: products, each 16 of k */
    uint64_t a_bits, b_bits;                /* descriptors without their addresses */
    int a_at[CASE_STEPS], b_at[CASE_STEPS]; /* where the operands of each begin in the image */
    const uint32_t *a;                      /* [steps][128][4] a in registers, b transposed; NULL: both as they are */
    bool f16, wide;                         /* wide: N = 128, else 64 (a in registers only) */
    float *d;                               /* [128][N / 2] added to */
};
cudaError_t hopper_case_prepare(bool *here);
cudaError_t launch_hopper_case(cudaStream_t s, const struct hopper_case *c);

#ifdef __cplusplus
}
#endif

#endif
