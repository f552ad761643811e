/* Memory that kernels and a test both access: the process's own under the emulator, managed memory on a GPU. It begins
 * as NaN, aligned to 256 bytes. Owned by the test. Invariant: after a launch it is read only once unified_wait has
 * returned. */
#ifndef RIG_UNIFIED_H
#define RIG_UNIFIED_H

#include <cuda_runtime_api.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static inline void *unified(size_t bytes)
{
    void *p = NULL;
    size_t all = (bytes + 255) / 256 * 256 + 256;
#ifdef EMULATED
    p = aligned_alloc(256, all);
#else
    assert_int_equal(cudaMallocManaged(&p, all, cudaMemAttachGlobal), cudaSuccess);
#endif
    assert_non_null(p);
    memset(p, 0xff, all);
    return p;
}

static inline void unified_free(void *p)
{
#ifdef EMULATED
    free(p);
#else
    cudaFree(p);
#endif
}

/* Everything launched is done, without an error. */
static inline void unified_wait(void)
{
#ifndef EMULATED
    assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
#endif
}

/* False where there is no GPU to run on. */
static inline int unified_here(void)
{
    int n = 0;
    return cudaGetDeviceCount(&n) == cudaSuccess && n > 0;
}

#endif
