/* The CUDA backend in invariant mode under the CPU's name: tests written for the CPU backend run over it as they are.
 */
#include "kernels/backend.h"

static int open_invariant(struct device **out, const struct device_opts *o, struct err *e)
{
    struct device_opts with = *o;
    with.invariant = true;
    return backend_cuda()->open(out, &with, e);
}

const struct backend_ops *backend_cuda_invariant(void);

const struct backend_ops *backend_cuda_invariant(void)
{
    static struct backend_ops ops; /* the same bytes, whoever writes them */
    struct backend_ops with = *backend_cuda();
    with.open = open_invariant;
    ops = with;
    return &ops;
}
