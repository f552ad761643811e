/* Kernels with one mistake each, which the emulator must show. */
#ifndef EMULATOR_WRONG_H
#define EMULATOR_WRONG_H

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

enum slip {
    NO_SLIP,
    READS_EARLY,         /* what the kernel before it writes, before it waits for that kernel */
    NEVER_WAITS,         /* though it may begin early */
    LAST_IS_LAST,        /* takes the last CTA of the grid for the last to come */
    READS_UNWRITTEN,     /* static shared memory */
    MISALIGNED_COPY,     /* to shared memory */
    MISALIGNED_FROM,     /* from memory */
    MISALIGNED_MATRIX,   /* a row of ldmatrix */
    GLOBAL_OF_SHARED,    /* a load that only global memory has, of shared memory */
    COPY_TO_LOCAL,       /* by the instruction that copies to shared memory */
    TOO_MUCH_STATIC,     /* shared memory */
    TOO_MUCH_ALLOWED,    /* dynamic, beside what is static, though not all is used */
    TOO_MUCH_DYNAMIC,    /* without saying so */
    TOO_MUCH_DYNAMIC_ALL /* more than there is */
};
enum { SLIP_CTAS = 8 };
/* in: set to 1 in each of SLIP_CTAS places, then out[i] = in[i] (LAST_IS_LAST: out[0] is their sum), by two kernels. */
cudaError_t slip(enum slip what, cudaStream_t s, float *in, float *out, unsigned *arrived);
/* 1 added to eight products of 2^-25 by an mma. */
float one_and_eight_small(void);

#ifdef __cplusplus
}
#endif

#endif
