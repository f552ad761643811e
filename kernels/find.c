#include <string.h>

#include "kernels/backend.h"

const struct backend_ops *backend_find(const char *name)
{
    if (!strcmp(name, "sim"))
        return backend_sim();
#if defined(MOONSHIFT_CUDA)
    if (!strcmp(name, "cuda"))
        return backend_cuda();
#endif
    return !strcmp(name, "cpu") ? backend_cpu() : NULL;
}
