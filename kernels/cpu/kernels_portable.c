#include "kernels/cpu/vec_portable.h"

#include "kernels/cpu/kernels_body.h"

const struct cpu_kernels *cpu_kernels_portable(void)
{
    static const struct cpu_kernels kernels = KERNELS_TABLE("portable");
    return &kernels;
}
