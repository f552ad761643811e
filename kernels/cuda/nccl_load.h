/* The functions of NCCL that the backend calls, found at run time: most machines have no use for it, and its header is
 * not needed to build. Types and numbers are those of its documented interface, version 2. Written once at open, read
 * by any thread. Invariant: the table has all functions or there is none. */
#ifndef CUDA_NCCL_LOAD_H
#define CUDA_NCCL_LOAD_H

#include <cuda_runtime_api.h>

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ncclComm *ncclComm_t;
typedef struct {
    char internal[128];
} ncclUniqueId;
enum { ncclSuccess = 0, ncclFloat32 = 7, ncclSum = 0 };

struct nccl_functions {
    int (*ncclGetUniqueId)(ncclUniqueId *id);
    int (*ncclCommInitRank)(ncclComm_t *c, int n, ncclUniqueId id, int rank); /* waits for all n */
    int (*ncclCommDestroy)(ncclComm_t c);
    int (*ncclCommAbort)(ncclComm_t c); /* what is under way ends, also on the other threads' streams */
    int (*ncclAllReduce)(const void *from, void *to, size_t n, int type, int op, ncclComm_t c, cudaStream_t s);
    const char *(*ncclGetErrorString)(int rc);
};

/* The library stays loaded for the life of the process. False: it is not here, or lacks one of these. */
bool nccl_load(struct nccl_functions *f);

#ifdef __cplusplus
}
#endif

#endif
