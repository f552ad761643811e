#include "kernels/cuda/nccl_load.h"

#include <dlfcn.h>
#include <string.h>

static bool find(void *lib, const char *name, void *to)
{
    void *p = dlsym(lib, name);
    memcpy(to, &p, sizeof p);
    return p != NULL;
}

bool nccl_load(struct nccl_functions *f)
{
    void *lib = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    return lib && find(lib, "ncclGetUniqueId", &f->ncclGetUniqueId) &&
           find(lib, "ncclCommInitRank", &f->ncclCommInitRank) && find(lib, "ncclCommDestroy", &f->ncclCommDestroy) &&
           find(lib, "ncclCommAbort", &f->ncclCommAbort) && find(lib, "ncclAllReduce", &f->ncclAllReduce) &&
           find(lib, "ncclGetErrorString", &f->ncclGetErrorString);
}
